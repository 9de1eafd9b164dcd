"""Curves: what becomes of the target's score while pixels are removed in the order of a map.

`deletion`, `insertion` and their difference `srg` (as in Picard et al. 2024), `ids` (Samek et al. 2017 as in Hesse et al. 2024) and `road`
(Rong et al. 2022) are one engine: images without the pixels of some ranks, all steps of all samples batched. Protocols that ask for the
same images of the same maps share their passes, and the two ends of a curve are shared by all methods.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from heatproof.baselines import Baseline, BaselineName
from heatproof.baselines.base import Remove
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.protocols.base import PICTURES, EvalBatch, Protocol, Scores, Shared, protocol
from heatproof.tensor.batching import chunks, rows
from heatproof.tensor.curves import auc, ranks_of, removal_order, tie_order
from heatproof.tensor.information import INFORMATION
from heatproof.tensor.neighbours import knn_distance
from heatproof.tensor.noise import Rng, sample_ids
from heatproof.tensor.scores import Score, score_function

Side = Literal["most", "least"]  # which pixels go first
Steps = Annotated[int, Field(ge=1)]
Some = Annotated[int, Field(ge=2)]
Watched = Literal["logit", "softmax", "logprob", "sigmoid", "correct"]
DISTANCES = {"ood": True, "ood-raw": False}  # of embeddings of length 1, and as they are
BOUNDED = ("softmax", "sigmoid", "correct")


class Seen(NamedTuple):
    logits: Tensor  # (B, S, K)
    embedding: Tensor  # (B, S, D)


class Work(NamedTuple):
    """Images that are needed of one map: by it, protocols know what they have in common."""

    baseline: str
    side: Side
    shares: tuple[float, ...]  # of the pixels that are removed
    kept: bool = (
        False  # of the pixels that are kept, rather: the two round to whole pixels at the other end
    )
    positive: bool = (
        False  # in the order of the map's positive part: what is not above zero is tied
    )

    def bounds(self, pixels: int) -> list[int]:
        """Removed are the ranks below (side most) or from there on (side least)."""
        counts = pixel_counts(self.shares, pixels)
        return counts if self.side == "most" or self.kept else [pixels - n for n in counts]


def without(
    forward: Callable[[Tensor], tuple[Tensor, Tensor]],
    remove: Remove,
    ranks: Tensor,
    bounds: Sequence[int] | Tensor,  # (S,), or (B, S) where samples have their own
    side: Side,
    size: int,
) -> Seen:
    """What a network says of every sample without the pixels of some ranks, all steps of all samples batched."""
    limits, found = torch.as_tensor(bounds, device=ranks.device), []
    limits = limits.expand(len(ranks), limits.shape[-1])
    with torch.no_grad():
        for sample, step in chunks(len(limits), limits.shape[1], size):
            sample, step = sample.to(ranks.device), step.to(ranks.device)
            below = ranks[sample] < limits[sample, step][:, None, None]
            found.append(forward(remove(sample, below if side == "most" else ~below)))
    logits, embedding = (
        _by_sample(torch.cat(parts), len(ranks)) for parts in zip(*found, strict=True)
    )
    return Seen(logits, embedding)


def removal_curve(
    model: Model | Callable[[Tensor], Tensor],
    x: Tensor,
    target: Tensor,
    maps: Tensor,
    fractions: Sequence[float],
    order: Side = "most",
    baseline: str = "zero",
    score: str | Score = "logit",
    ids: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int = 64,
) -> Tensor:  # (B, len(fractions))
    """The target's score once that share of the pixels is replaced, most or least relevant first; one pass an image and fraction."""
    _check_maps(maps, x)
    known = sample_ids(ids, len(x))
    ranks = removal_order(maps, known, seed)
    forward, size, remove = _tools(model, x, baseline, known, seed, batch_size)
    bounds = Work(baseline, order, tuple(fractions)).bounds(ranks[0].numel())
    seen = without(forward, remove, ranks, bounds, order, size)
    return _scores(score_function(score), seen.logits, target)


def updated_curve(
    model: Model | Callable[[Tensor], Tensor],
    x: Tensor,
    target: Tensor,
    explain: Callable[[Tensor], Tensor],
    fractions: Sequence[float],
    order: Side = "most",
    baseline: str = "zero",
    score: str | Score = "logit",
    ids: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int = 64,
    *,
    first: Tensor | None = None,
) -> Tensor:  # (B, len(fractions))
    """The same with the map made anew before each step, of the image as it is by then; what is gone stays gone.

    explain: images (B, C, H, W) -> maps (B, H, W). `first`: the maps of the clean images, where they are known.
    """
    known = sample_ids(ids, len(x))
    forward, size, remove = _tools(model, x, baseline, known, seed, batch_size)
    scored, everyone = score_function(score), torch.arange(len(x), device=x.device)
    ties = tie_order(known, seed, x[0, 0].numel(), x.device)
    gone = torch.zeros_like(x[:, 0], dtype=torch.bool)
    forced = torch.inf if order == "most" else -torch.inf
    now, found, undefined = x, [], torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for count in pixel_counts(fractions, x[0, 0].numel()):
        if count > int(gone[0].sum()):
            maps = first if first is not None and now is x else explain(now)
            _check_shape(maps, x)
            undefined |= ~torch.isfinite(maps).flatten(1).all(1)
            ranks = ranks_of(maps.nan_to_num(0, 0, 0).masked_fill(gone, forced), ties)
            gone = ranks < count if order == "most" else ranks >= ranks[0].numel() - count
            now = remove(everyone, gone)
        with torch.no_grad():
            logits = torch.cat([forward(part)[0] for part in rows(now, size)])
        found.append(scored(logits, target).masked_fill(undefined, torch.nan))
    return torch.stack(found, 1)


def pixel_counts(fractions: Sequence[float], pixels: int) -> list[int]:
    """Whole pixels, rounded down."""
    if not fractions or min(fractions) < 0 or max(fractions) > 1:
        raise HeatproofError(
            f"fractions are shares of the pixels, from 0 to 1; got {list(fractions)}"
        )
    return [int(pixels * share + 1e-6) for share in fractions]


def _tools(
    model: Model | Callable[[Tensor], Tensor],
    x: Tensor,
    baseline: str,
    ids: Sequence[str],
    seed: int,
    batch_size: int,
) -> tuple[Callable[[Tensor], tuple[Tensor, Tensor]], int, Remove]:
    known = model if isinstance(model, Model) else None
    remove = Baseline.parse(baseline).remover(x, known, Rng(seed, ids, x.device))
    if known is not None:
        return known.forward, known.batch_size, remove
    return (lambda images: (model(images), images.new_zeros(len(images), 0))), batch_size, remove


def _scores(score: Score, logits: Tensor, target: Tensor) -> Tensor:  # (B, S, K), (B,) -> (B, S)
    return _by_sample(
        score(logits.flatten(0, 1), target.repeat_interleave(logits.shape[1])), len(logits)
    )


def _by_sample(found: Tensor, samples: int) -> Tensor:  # (B·S, …) -> (B, S, …)
    return found.reshape(samples, len(found) // samples, *found.shape[1:])


def _check_shape(maps: Tensor, x: Tensor) -> None:
    if maps.shape != (len(x), *x.shape[2:]):
        raise HeatproofError(
            f"maps must be {(len(x), *x.shape[2:])}, as large as the images; got {tuple(maps.shape)}"
        )


def _check_maps(maps: Tensor, x: Tensor) -> None:
    _check_shape(maps, x)
    if not torch.isfinite(maps).all():
        raise HeatproofError("a map is not finite, so its pixels have no order")


class Removal(Protocol):
    """What protocols share that look at images without some of their pixels: a subclass says which images it needs of a map (`work`)."""

    range: ClassVar[tuple[float, float] | None] = None
    random_score: ClassVar[float | None] = None

    baseline: BaselineName = "zero"
    score: Watched = "logit"

    def work(self) -> tuple[Work, ...]:
        """Without the clean image and the empty one, which are the same for all maps."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        return super().facts() | ({"range": (0.0, 1.0)} if self.score in BOUNDED else {})

    def passes(self) -> Mapping[Hashable, int]:
        return {work: len(work.shares) for work in self.work()}

    def _remover(self, model: Model, batch: EvalBatch) -> Remove:
        make = Baseline.parse(self.baseline).remover
        return once(
            batch.batch_cache, ("remover", self.baseline), lambda: make(batch.x, model, batch.rng)
        )

    def _ranks(self, batch: EvalBatch, maps: Tensor, positive: bool = False) -> Tensor:
        ties = once(
            batch.batch_cache,
            "ties",
            lambda: tie_order(batch.ids, batch.rng.seed, maps[0].numel(), maps.device),
        )
        positive = positive and bool((maps < 0).any())  # else the two orders are the same
        return once(
            batch.map_cache,
            ("ranks", positive),
            lambda: ranks_of(maps.clamp(min=0) if positive else maps, ties),
        )

    def seen(self, model: Model, batch: EvalBatch, maps: Tensor, work: Work) -> Seen:
        """What this or another protocol has asked of these maps before, or asks now."""
        work = work._replace(positive=work.positive and bool((maps < 0).any()))

        def look() -> Seen:
            ranks = self._ranks(batch, maps, work.positive)
            return without(
                model.forward,
                self._remover(model, batch),
                ranks,
                work.bounds(ranks[0].numel()),
                work.side,
                model.batch_size,
            )

        return once(batch.map_cache, work, look)

    def scores(self, logits: Tensor, target: Tensor) -> Tensor:  # (B, S, K), (B,) -> (B, S)
        return _scores(score_function(self.score), logits, target)


class Curve(Removal):
    """Evenly spaced steps; `ends` says whether images of which nothing is left are looked at."""

    ends: ClassVar[bool] = True

    steps: Steps = 10

    def check(self, model: Model) -> None:
        super().check(model)
        if self.steps > model.size**2:
            raise HeatproofError(
                f"{self.id}: steps={self.steps}, but an image of {model.name} has {model.size**2} pixels"
            )

    def _inner(self) -> tuple[float, ...]:
        return tuple(k / self.steps for k in range(1, self.steps))

    def shared_passes(self) -> Mapping[Hashable, int]:
        return {("all removed", self.baseline): 1} if self.ends else {}

    def compute_shared(self, model: Model, batch: EvalBatch) -> Shared:
        """The logits of images of which nothing is left."""
        if not self.ends:
            return {}
        end = self._end(model, batch)
        return {
            "end": end.logits[:, 0],
            "norm": end.embedding[:, 0].norm(dim=1),
            "picture": self._empty(model, batch),
        }

    def _empty(self, model: Model, batch: EvalBatch) -> Tensor:  # (n, C, H, W) uint8
        """What is left of the first images when everything is removed, to be looked at."""
        first = torch.arange(min(PICTURES, len(batch.x)), device=batch.x.device)
        images = self._remover(model, batch)(
            first, torch.ones_like(batch.x[first, 0], dtype=torch.bool)
        )
        return (model.denormalize(images) * 255).round().clamp(0, 255).byte()

    def _end(self, model: Model, batch: EvalBatch) -> Seen:
        def look() -> Seen:
            everything = torch.ones_like(batch.x[:, 0], dtype=torch.bool)
            logits, embedding = model.forward(
                self._remover(model, batch)(
                    torch.arange(len(batch.x), device=batch.x.device), everything
                )
            )
            return Seen(logits[:, None], embedding[:, None])

        return once(batch.batch_cache, ("all removed", self.baseline), look)


def once(memo: dict[Hashable, Any], key: Hashable, make: Callable[[], Any]) -> Any:
    if key not in memo:
        memo[key] = make()
    return memo[key]


class _Predicted(Curve):
    """Of what the model predicts, where the label is not asked for."""

    target: ClassVar[Literal["label", "prediction"]] = "prediction"

    of: Literal["label"] | None = (
        None  # label: maps of it and its score, as `soundness` and `completeness` have, which then share the passes
    )

    @property
    def target_policy(self) -> Literal["label", "prediction"]:
        return self.of or self.target


class _Stepped(_Predicted):
    """Evenly spaced steps from the image to nothing, or back."""

    citation: ClassVar[str] = (
        "Petsiuk, Das, Saenko: RISE. BMVC 2018; Picard, Boissin, Subhash, Cadène, Fel: Back to the Baseline. 2024"
    )

    ood: bool = False  # also watch how far out of domain the images on the way are, and how much the model still says of them

    @property
    def preparation_key(self) -> str:
        return "bank of embeddings" if self.ood else ""

    def prepare(self, model: Model, batches: Iterator[Tensor]) -> Mapping[str, Tensor]:
        """The embeddings of images that are not judged, and how far 95 % of them are at most from the nearest other one."""
        bank = torch.cat([model.forward(x)[1] for x in batches])
        if len(bank) < 2:
            raise HeatproofError(
                f"{self.id}: one reference image has no neighbours; name a reference with more"
            )
        far = [
            knn_distance(bank, bank, 2, normalize).quantile(0.95)
            for normalize in DISTANCES.values()
        ]
        return {"bank": bank, "far": torch.stack(far)}

    def shared_passes(self) -> Mapping[Hashable, int]:
        return {**super().shared_passes(), **({"clean embedding": 1} if self.ood else {})}

    def compute_shared(self, model: Model, batch: EvalBatch) -> Shared:
        """The logits of images of which nothing is left, and from which distance on an image is far out of domain."""
        far = batch.prepared["far"].expand(len(batch.x), -1) if self.ood else None
        return {**super().compute_shared(model, batch), **({"far": far} if far is not None else {})}

    def _watched(
        self, model: Model, batch: EvalBatch, logits: Tensor, embedding: Tensor
    ) -> dict[str, Tensor]:
        """(B, S) each: the distance to the nearest image of the bank, and measures of what the logits still say."""
        flat = embedding.flatten(0, 1)
        bank = batch.prepared["bank"]
        distances = {
            name: _by_sample(knn_distance(flat, bank, 1, unit), len(embedding))
            for name, unit in DISTANCES.items()
        }
        return distances | {name: measure(logits) for name, measure in INFORMATION.items()}

    def deleting(self) -> Work:
        return Work(self.baseline, "most", self._inner())

    def inserting(self) -> Work:
        return Work(self.baseline, "least", self._inner(), kept=True)

    def curve(
        self, model: Model, batch: EvalBatch, maps: Tensor, work: Work
    ) -> dict[str, Tensor]:  # (B, steps + 1) each
        """The score from the image to nothing (most relevant pixels go first), or from nothing to the image (they come first)."""
        inner = [self.seen(model, batch, maps, work)] if work.shares else []
        ends = [self._clean(model, batch), self._end(model, batch)]
        parts = [ends[0], *inner, ends[1]] if work.side == "most" else [ends[1], *inner, ends[0]]
        logits = torch.cat([seen.logits for seen in parts], 1)
        found = {"score": self.scores(logits, batch.target)}
        return found | (
            self._watched(model, batch, logits, torch.cat([seen.embedding for seen in parts], 1))
            if self.ood
            else {}
        )

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        curves = self.curve(model, batch, maps, self.work()[0])
        return measured(auc(curves["score"]), curves)

    def _clean(self, model: Model, batch: EvalBatch) -> Seen:
        """Its logits are known; a pass for the embedding only where that is watched."""
        if not self.ood:
            return Seen(batch.clean[:, None], batch.clean.new_empty(len(batch.clean), 1, 0))
        return once(
            batch.batch_cache,
            "clean embedding",
            lambda: Seen(batch.clean[:, None], model.forward(batch.x)[1][:, None]),
        )


@protocol
class Deletion(_Stepped):
    id: ClassVar[str] = "deletion"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = (
        "area under the target's score while pixels are removed, most relevant first"
    )
    higher_is_better: ClassVar[bool] = False

    def work(self) -> tuple[Work, ...]:
        return (self.deleting(),)


@protocol
class Insertion(_Stepped):
    id: ClassVar[str] = "insertion"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = (
        "area under the target's score while pixels are put into an empty image, most relevant first"
    )
    higher_is_better: ClassVar[bool] = True

    def work(self) -> tuple[Work, ...]:
        return (self.inserting(),)


@protocol
class RelevanceGain(_Stepped):
    id: ClassVar[str] = "srg"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "symmetric relevance gain: the area of insertion less that of deletion"
    higher_is_better: ClassVar[bool] = True
    random_score: ClassVar[float | None] = 0.0
    citation: ClassVar[str] = (
        "Blücher, Vielhaben, Strodthoff: Decoupling Pixel Flipping and Occlusion Strategy. TMLR 2024"
    )

    def facts(self) -> dict[str, Any]:
        return super().facts() | ({"range": (-1.0, 1.0)} if self.score in BOUNDED else {})

    def work(self) -> tuple[Work, ...]:
        return self.deleting(), self.inserting()

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        deleted, inserted = (self.curve(model, batch, maps, work) for work in self.work())
        ways = {"deletion": deleted, "insertion": inserted}
        both = {
            f"{way} {name}": curve for way, curves in ways.items() for name, curve in curves.items()
        }
        return measured(auc(inserted["score"]) - auc(deleted["score"]), both)


class _Ordered(Curve):
    """Most or least relevant pixels first. Either way a better map scores higher: with the least relevant first it is what is left that
    counts, with the most relevant first what is lost."""

    higher_is_better: ClassVar[bool] = True
    ends: ClassVar[bool] = False

    order: Side

    def verdict(self, clean: Tensor, curve: Tensor) -> Tensor:  # (B,), (B, S) -> (B,)
        kept = curve.double().mean(1)
        return kept if self.order == "least" else clean.double() - kept


@protocol
class IncrementalDeletion(_Ordered):
    id: ClassVar[str] = "ids"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = (
        "mean score of the target while pixels are removed, least relevant first; updated: with a new map before each step"
    )
    target: ClassVar[Literal["label", "prediction"]] = "label"
    citation: ClassVar[str] = (
        "Samek et al.: Evaluating the Visualization of What a Deep Neural Network Has Learned. TNNLS 2017; as in Hesse et al., NeurIPS 2024"
    )

    score: Watched = "softmax"
    order: Side = "least"
    steps: Some = 32
    updated: bool = False

    def work(self) -> tuple[Work, ...]:
        return () if self.updated else (Work(self.baseline, self.order, self._inner()),)

    def passes(self) -> Mapping[Hashable, int]:
        return {self.canonical: self.steps - 1} if self.updated else super().passes()

    def explanations(self) -> int:
        return (
            max(0, self.steps - 2) if self.updated else 0
        )  # the first step has the map of the clean image

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        clean = self.scores(batch.clean[:, None], batch.target)
        if self.updated:
            assert batch.explain is not None
            rest = updated_curve(
                model,
                batch.x,
                batch.target,
                batch.explain,
                self._inner(),
                self.order,
                self.baseline,
                self.score,
                batch.ids,
                batch.rng.seed,
                first=maps,
            )
        else:
            rest = self.scores(self.seen(model, batch, maps, self.work()[0]).logits, batch.target)
        curve = torch.cat([clean, rest], 1)
        return measured(self.verdict(clean[:, 0], curve), {"score": curve})


@protocol
class Road(_Ordered, _Predicted):
    id: ClassVar[str] = "road"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = (
        "remove and debias: how often the model changes its mind while pixels give way to a linear imputation, most relevant first"
    )
    citation: ClassVar[str] = (
        "Rong et al.: A Consistent and Efficient Evaluation Strategy for Attribution Methods. ICML 2022"
    )

    baseline: BaselineName = "linear"
    score: Watched = "correct"
    order: Side = "most"
    steps: Some = 10  # 10: at 10, 20, … 90 % of the pixels

    def work(self) -> tuple[Work, ...]:
        return (Work(self.baseline, self.order, self._inner()),)

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        curve = self.scores(self.seen(model, batch, maps, self.work()[0]).logits, batch.target)
        clean = self.scores(batch.clean[:, None], batch.target)[:, 0]
        return measured(self.verdict(clean, curve), {"score": curve})


def measured(value: Tensor, curves: Mapping[str, Tensor]) -> Scores:
    fine = torch.isfinite(value)
    return Scores(
        value,
        ["" if f else "the model's score or a map on the way is not finite" for f in fine.tolist()],
        curves,
    )
