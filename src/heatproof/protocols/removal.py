"""The engine of protocols that remove pixels in the order of a map.

Images without the pixels of some ranks are evaluated with all steps of all samples in one batch.
Protocols that need the same images of the same maps share their passes, and all methods share the
two ends of a curve.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from heatproof.baselines import Baseline, BaselineName
from heatproof.baselines.base import Remove
from heatproof.errors import HeatproofError
from heatproof.models.model import Model, model_score
from heatproof.protocols.base import (
    SAMPLES_WITH_PICTURES,
    EvalBatch,
    Kind,
    Protocol,
    Scores,
    Shared,
)
from heatproof.protocols.known_outputs import KnownOutputs, removed_pixels
from heatproof.tensor.batching import rows
from heatproof.tensor.curves import ranks_of, removal_order, tie_order
from heatproof.tensor.noise import Rng, sample_ids
from heatproof.tensor.scores import Score

Side = Literal["most", "least"]  # which pixels are removed first
Steps = Annotated[int, Field(ge=1)]
AtLeastTwo = Annotated[int, Field(ge=2)]
CurveScore = Literal["logit", "softmax", "logprob", "sigmoid", "correct"]
BOUNDED = ("softmax", "sigmoid", "correct")


class Outputs(NamedTuple):
    """Logits and embeddings of some images of each sample."""

    logits: Tensor  # (B, S, K)
    embedding: Tensor  # (B, S, D)


class RemovalSteps(NamedTuple):
    """The images that a protocol needs of one map; protocols with equal steps share passes.

    Attributes:
        baseline: What replaces removed pixels.
        side: Whether the most or the least relevant pixels are removed.
        fractions: Fractions of the pixels that are removed.
        counts_kept: Whether ``fractions`` are rounded to whole pixels as fractions of kept pixels.
        positive: Whether only the positive part of the map orders the pixels; all others are tied.
    """

    baseline: str
    side: Side
    fractions: tuple[float, ...]
    counts_kept: bool = False
    positive: bool = False

    def bounds(self, pixels: int) -> list[int]:
        """Return the ranks that separate removed from kept pixels."""
        counts = pixel_counts(self.fractions, pixels)
        if self.side == "most" or self.counts_kept:
            return counts
        return [pixels - count for count in counts]


def outputs_without(
    forward: Callable[[Tensor], tuple[Tensor, Tensor]],
    remove: Remove,
    ranks: Tensor,
    bounds: Sequence[int] | Tensor,
    side: Side,
    size: int,
    known: KnownOutputs | None = None,
    baseline: str = "",
) -> Outputs:
    """Run a network on every sample without the pixels of some ranks.

    Args:
        forward: Maps images ``(n, C, H, W)`` to logits ``(n, K)`` and embeddings ``(n, D)``.
        remove: Removes pixels from samples (see ``Baseline.remover``).
        ranks: Rank of every pixel, ``(B, H, W)``.
        bounds: Ranks that separate removed from kept pixels, ``(S,)``, or ``(B, S)`` per sample.
        side: Whether pixels below (``most``) or from the bound on (``least``) are removed.
        size: Images per pass.
        known: Outputs of these samples without some pixels, which are not run again; those of this
            call are added.
        baseline: What replaces removed pixels, for ``known``.

    Returns:
        Logits ``(B, S, K)`` and embeddings ``(B, S, D)``.
    """
    limits = torch.as_tensor(bounds, device=ranks.device)
    limits = limits.expand(len(ranks), limits.shape[-1])

    def run(pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Run the images of (sample, step) pairs, numbered sample by sample."""
        outputs = []
        with torch.no_grad():
            for part in rows(pairs.to(ranks.device), size):
                sample = part // limits.shape[1]
                step = part % limits.shape[1]
                below = ranks[sample] < limits[sample, step][:, None, None]
                outputs.append(forward(remove(sample, below if side == "most" else ~below)))
        logits, embedding = zip(*outputs, strict=True)
        return torch.cat(logits), torch.cat(embedding)

    if known is None:
        outputs = run(torch.arange(limits.numel()))
    else:
        images = [
            (baseline, sample, removed)
            for sample, steps in enumerate(removed_pixels(ranks, limits, below=side == "most"))
            for removed in steps
        ]
        outputs = known.complete(images, run)
    return Outputs(*(by_sample(part, len(ranks)) for part in outputs))


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
    *,
    prepared: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Compute the target's score after removing fractions of the pixels in the order of a map.

    It costs one forward pass per image and fraction.

    Args:
        model: A ``Model`` or any callable from images ``(B, C, H, W)`` to logits ``(B, K)``.
        x: Images in the model's input space, ``(B, C, H, W)``.
        target: Class indices ``(B,)``.
        maps: Attribution maps ``(B, H, W)``.
        fractions: Fractions of the pixels to remove, from 0 to 1.
        order: Whether the most or the least relevant pixels are removed first.
        baseline: What replaces removed pixels.
        score: ``logit``, ``softmax``, ``logprob``, ``sigmoid``, ``correct``, or a function of
            logits and targets.
        ids: Sample ids, which key noise and the order of equal pixels; by default the row numbers.
        seed: Seed for noise and the order of equal pixels.
        batch_size: Images per pass, if ``model`` is not a ``Model``.
        prepared: What the baseline has prepared, if it needs reference images.

    Returns:
        Scores of shape ``(B, len(fractions))``.

    Raises:
        HeatproofError: If maps have another size than the images or are not finite, or a fraction
            is not between 0 and 1.
    """
    _check_maps(maps, x)
    ids = sample_ids(ids, len(x))
    ranks = removal_order(maps, ids, seed)
    forward, size, remove = _network(model, x, baseline, ids, seed, batch_size, prepared)
    bounds = RemovalSteps(baseline, order, tuple(fractions)).bounds(ranks[0].numel())
    outputs = outputs_without(forward, remove, ranks, bounds, order, size)
    return _scores(model_score(model, score), outputs.logits, target)


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
    prepared: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Compute a removal curve with a new map before each step.

    Each map explains the image without the pixels removed so far. Removed pixels stay removed.

    Args:
        model: A ``Model`` or any callable from images ``(B, C, H, W)`` to logits ``(B, K)``.
        x: Images in the model's input space, ``(B, C, H, W)``.
        target: Class indices ``(B,)``.
        explain: Maps images ``(B, C, H, W)`` to attribution maps ``(B, H, W)``.
        fractions: Fractions of the pixels to remove, from 0 to 1.
        order: Whether the most or the least relevant pixels are removed first.
        baseline: What replaces removed pixels.
        score: ``logit``, ``softmax``, ``logprob``, ``sigmoid``, ``correct``, or a function of
            logits and targets.
        ids: Sample ids, which key noise and the order of equal pixels; by default the row numbers.
        seed: Seed for noise and the order of equal pixels.
        batch_size: Images per pass, if ``model`` is not a ``Model``.
        first: Maps of the clean images ``(B, H, W)``, if they are known.
        prepared: What the baseline has prepared, if it needs reference images.

    Returns:
        Scores of shape ``(B, len(fractions))``; NaN from the step on whose map is not finite.

    Raises:
        HeatproofError: If maps have another size than the images, or a fraction is not between 0
            and 1.
    """
    ids = sample_ids(ids, len(x))
    forward, size, remove = _network(model, x, baseline, ids, seed, batch_size, prepared)
    score_of = model_score(model, score)
    samples = torch.arange(len(x), device=x.device)
    pixels = x[0, 0].numel()
    ties = tie_order(ids, seed, pixels, x.device)
    removed = torch.zeros_like(x[:, 0], dtype=torch.bool)
    removed_value = torch.inf if order == "most" else -torch.inf
    undefined = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    images = x
    scores = []
    for count in pixel_counts(fractions, pixels):
        if count > int(removed[0].sum()):
            maps = first if first is not None and images is x else explain(images)
            _check_shape(maps, x)
            undefined |= ~torch.isfinite(maps).flatten(1).all(1)
            ranks = ranks_of(maps.nan_to_num(0, 0, 0).masked_fill(removed, removed_value), ties)
            removed = ranks < count if order == "most" else ranks >= pixels - count
            images = remove(samples, removed)
        with torch.no_grad():
            logits = torch.cat([forward(part)[0] for part in rows(images, size)])
        scores.append(score_of(logits, target).masked_fill(undefined, torch.nan))
    return torch.stack(scores, 1)


def pixel_counts(fractions: Sequence[float], pixels: int) -> list[int]:
    """Convert fractions to numbers of pixels, rounded down.

    Raises:
        HeatproofError: If there are no fractions, or one is not between 0 and 1.
    """
    if not fractions or min(fractions) < 0 or max(fractions) > 1:
        raise HeatproofError(f"fractions must be between 0 and 1; got {list(fractions)}")
    return [int(pixels * fraction + 1e-6) for fraction in fractions]


def _network(
    model: Model | Callable[[Tensor], Tensor],
    x: Tensor,
    baseline: str,
    ids: Sequence[str],
    seed: int,
    batch_size: int,
    prepared: Mapping[str, Tensor] | None,
) -> tuple[Callable[[Tensor], tuple[Tensor, Tensor]], int, Remove]:
    """Return the forward pass, the images per pass, and the function that removes pixels."""
    make_remover = Baseline.parse(baseline).remover
    rng = Rng(seed, ids, x.device)
    if isinstance(model, Model):
        return model.forward, model.batch_size, make_remover(x, model, rng, prepared)

    def forward(images: Tensor) -> tuple[Tensor, Tensor]:
        return model(images), images.new_zeros(len(images), 0)

    return forward, batch_size, make_remover(x, None, rng, prepared)


def _scores(score: Score, logits: Tensor, target: Tensor) -> Tensor:  # (B, S, K), (B,) -> (B, S)
    return by_sample(
        score(logits.flatten(0, 1), target.repeat_interleave(logits.shape[1])), len(logits)
    )


def by_sample(values: Tensor, samples: int) -> Tensor:  # (B·S, …) -> (B, S, …)
    return values.reshape(samples, len(values) // samples, *values.shape[1:])


def _check_shape(maps: Tensor, x: Tensor) -> None:
    if maps.shape != (len(x), *x.shape[2:]):
        raise HeatproofError(
            f"maps must have the size of the images, {(len(x), *x.shape[2:])}; "
            f"got {tuple(maps.shape)}"
        )


def _check_maps(maps: Tensor, x: Tensor) -> None:
    _check_shape(maps, x)
    if not torch.isfinite(maps).all():
        raise HeatproofError("a map is not finite, so its pixels cannot be ordered")


class PixelRemoval(Protocol):
    """Base class of protocols that evaluate images without some of their pixels.

    A subclass says which images it needs of a map (``removal_steps``).
    """

    kind: ClassVar[Kind] = "faithfulness"

    baseline: BaselineName = Field(default="zero", description="what replaces removed pixels")
    score: CurveScore = Field(
        default="logit", description="the score of the target along the curve"
    )

    def removal_steps(self) -> tuple[RemovalSteps, ...]:
        """Return the images needed of a map.

        The clean image and the one without any pixels are the same for all maps and left out.
        """
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        return super().facts() | ({"range": (0.0, 1.0)} if self.score in BOUNDED else {})

    def passes(self) -> Mapping[Hashable, int]:
        return {steps: len(steps.fractions) for steps in self.removal_steps()}

    def _remover(self, model: Model, batch: EvalBatch) -> Remove:
        def make() -> Remove:
            baseline = Baseline.parse(self.baseline)
            prepared = baseline.prepared_by(batch.prepared_baseline)
            return baseline.remover(batch.x, model, batch.rng, prepared)

        return cached(batch.batch_cache, ("remover", self.baseline), make)

    def _ranks(self, batch: EvalBatch, maps: Tensor, positive: bool = False) -> Tensor:
        ties = cached(
            batch.batch_cache,
            "ties",
            lambda: tie_order(batch.ids, batch.rng.seed, maps[0].numel(), maps.device),
        )
        positive = positive and bool((maps < 0).any())  # else the two orders are the same
        return cached(
            batch.map_cache,
            ("ranks", positive),
            lambda: ranks_of(maps.clamp(min=0) if positive else maps, ties),
        )

    def outputs(self, model: Model, batch: EvalBatch, maps: Tensor, steps: RemovalSteps) -> Outputs:
        """Run the model on the images of these steps, or reuse another protocol's results."""
        steps = steps._replace(positive=steps.positive and bool((maps < 0).any()))

        def compute() -> Outputs:
            ranks = self._ranks(batch, maps, steps.positive)
            bounds = steps.bounds(ranks[0].numel())
            return self._outputs_without(model, batch, ranks, bounds, steps.side)

        return cached(batch.map_cache, steps, compute)

    def _outputs_without(
        self,
        model: Model,
        batch: EvalBatch,
        ranks: Tensor,
        bounds: Sequence[int] | Tensor,
        side: Side,
    ) -> Outputs:
        """Run the model on images without some pixels, each once for all methods and protocols."""
        known = None
        if Baseline.parse(self.baseline).entry.source is None:  # a user's may look at the batch
            known = cached(batch.batch_cache, "known outputs", KnownOutputs)
        remove = self._remover(model, batch)
        return outputs_without(
            model.forward, remove, ranks, bounds, side, model.batch_size, known, self.baseline
        )

    def scores(
        self, model: Model, logits: Tensor, target: Tensor
    ) -> Tensor:  # (B, S, K), (B,) -> (B, S)
        return _scores(model_score(model, self.score), logits, target)


class Curve(PixelRemoval):
    """Base class of protocols with evenly spaced steps."""

    ends: ClassVar[bool] = True  # whether images without any pixels are evaluated as well

    steps: Steps = Field(
        default=10, description="steps of the curve; 10: at 0, 10, … 100 % of the pixels"
    )

    def check(self, model: Model) -> None:
        super().check(model)
        pixels = model.height * model.width
        if self.steps > pixels:
            raise HeatproofError(
                f"{self.id}: steps={self.steps}, but an image of {model.name} has only "
                f"{pixels} pixels"
            )

    def inner_fractions(self) -> tuple[float, ...]:
        return tuple(k / self.steps for k in range(1, self.steps))

    def shared_passes(self) -> Mapping[Hashable, int]:
        return {("all removed", self.baseline): 1} if self.ends else {}

    def compute_shared(self, model: Model, batch: EvalBatch) -> Shared:
        """Return logits and embedding norms of images without any pixels, and some pictures."""
        if not self.ends:
            return {}
        end = self.end(model, batch)
        return {
            "end": model.class_logits(end.logits[:, 0]),
            "norm": end.embedding[:, 0].norm(dim=1),
            "picture": self._pictures(model, batch),
        }

    def _pictures(self, model: Model, batch: EvalBatch) -> Tensor:  # (n, C, H, W) uint8
        """Return the first images with all pixels removed, for the report."""
        first = torch.arange(min(SAMPLES_WITH_PICTURES, len(batch.x)), device=batch.x.device)
        all_pixels = torch.ones_like(batch.x[first, 0], dtype=torch.bool)
        images = self._remover(model, batch)(first, all_pixels)
        return (model.denormalize(images) * 255).round().clamp(0, 255).byte()

    def end(self, model: Model, batch: EvalBatch) -> Outputs:
        """Run the model on images without any pixels."""

        def compute() -> Outputs:
            all_pixels = torch.ones_like(batch.x[:, 0], dtype=torch.bool)
            samples = torch.arange(len(batch.x), device=batch.x.device)
            logits, embedding = model.forward(self._remover(model, batch)(samples, all_pixels))
            return Outputs(logits[:, None], embedding[:, None])

        return cached(batch.batch_cache, ("all removed", self.baseline), compute)


def cached(cache: dict[Hashable, Any], key: Hashable, compute: Callable[[], Any]) -> Any:
    """Return the cached value of a key, computing it the first time."""
    if key not in cache:
        cache[key] = compute()
    return cache[key]


def scores_with_reasons(value: Tensor, curves: Mapping[str, Tensor]) -> Scores:
    """Return scores ``(B,)``, marking those that are not finite as undefined."""
    reasons = [
        "" if finite else "the model's score or a map on the way is not finite"
        for finite in torch.isfinite(value).tolist()
    ]
    return Scores(value, reasons, curves)
