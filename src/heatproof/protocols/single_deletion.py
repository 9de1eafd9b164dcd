"""Single deletion (Hesse et al. 2024): does a map order the patches as the model's own drops do?

`sds` judges the model as it is, `idsds` the one that was fine-tuned so that images without a patch are nothing new to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import field_validator
from torch import Tensor

from heatproof.baselines import Baseline, BaselineName
from heatproof.data.base import Data
from heatproof.models.model import Model
from heatproof.models.zoo import load_fine_tuned
from heatproof.protocols.base import EvalBatch, Protocol, Scores, Shared, View, ViewKey, protocol
from heatproof.tensor.batching import chunks, rows
from heatproof.tensor.noise import Rng, sample_ids
from heatproof.tensor.patches import grid_side, patch_masks, patch_sums
from heatproof.tensor.rank import spearman
from heatproof.tensor.scores import Score, ScoreName, score_function


def patch_drops(
    model: Model | Callable[[Tensor], Tensor],
    x: Tensor,
    target: Tensor,
    patches: int = 16,
    baseline: str = "zero",
    score: str | Score = "logit",
    ids: Sequence[str] | None = None,
    seed: int = 0,
    *,
    clean: Tensor | None = None,
    batch_size: int = 64,
) -> Tensor:  # (B, P)
    """f_t(x) − f_t(x without the patch) for every patch; P passes an image and one for the clean score, unless `clean` logits are given."""
    scored = score_function(score)
    (left,) = without_patches(model, x, target, (scored,), patches, baseline, ids, seed, batch_size)
    if clean is None:
        logits, size = (
            (model.logits, model.batch_size) if isinstance(model, Model) else (model, batch_size)
        )
        with torch.no_grad():
            clean = torch.cat([logits(part) for part in rows(x, size)])
    return scored(clean, target)[:, None] - left


def without_patches(
    model: Model | Callable[[Tensor], Tensor],
    x: Tensor,
    target: Tensor,
    scores: Sequence[Score],
    patches: int,
    baseline: str,
    ids: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int = 64,
    logits: Callable[[Tensor], Tensor] | None = None,
) -> list[Tensor]:  # (B, P) each
    """What scores say of x without each patch; P passes an image, whatever their number. `logits`: of another network than the model's."""
    known = model if isinstance(model, Model) else None
    size = known.batch_size if known and not logits else batch_size
    logits = logits or (known.logits if known else model)
    remove = Baseline.parse(baseline).remover(
        x, known, Rng(seed, sample_ids(ids, len(x)), x.device)
    )
    masks = patch_masks(patches, *x.shape[2:]).to(x.device)
    found: list[list[Tensor]] = []
    with torch.no_grad():
        for sample, patch in chunks(len(x), patches, size):
            out = logits(remove(sample, masks[patch]))
            found.append([score(out, target[sample]) for score in scores])
    return [torch.cat(parts).reshape(len(x), patches) for parts in zip(*found, strict=True)]


@protocol
class SingleDeletion(Protocol):
    id: ClassVar[str] = "sds"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = (
        "rank correlation of the attribution per patch with the drop of the target's score when that patch is deleted"
    )
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float] | None] = (-1.0, 1.0)
    random_score: ClassVar[float | None] = 0.0
    target: ClassVar[Literal["label", "prediction"]] = "label"
    citation: ClassVar[str] = (
        "Hesse, Schaub-Meyer, Roth: Benchmarking the Attribution Quality of Vision Models. NeurIPS 2024"
    )

    baseline: BaselineName = "zero"
    patches: int = 16
    score: ScoreName = "logit"

    @field_validator("patches")
    @classmethod
    def _square(cls, value: int) -> int:
        grid_side(value, value, value)
        return value

    def check(self, model: Model) -> None:
        super().check(model)
        grid_side(self.patches, model.size, model.size)

    def shared_passes(self) -> Mapping[Hashable, int]:
        return {("patches", self.patches, self.baseline): self.patches}

    def compute_shared(self, model: Model, batch: EvalBatch) -> Shared:
        """(B, P): how far the score drops; whether the target is still the answer, and its log-probability, without each patch."""
        scored = score_function(self.score)
        scores = (scored, score_function("correct"), score_function("logprob"))
        left, correct, log_prob = without_patches(
            model,
            batch.x,
            batch.target,
            scores,
            self.patches,
            self.baseline,
            batch.ids,
            batch.rng.seed,
        )
        return {
            "drops": scored(batch.clean, batch.target)[:, None] - left,
            "correct": correct,
            "log_prob": log_prob,
        }

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        sums = patch_sums(maps, self.patches)
        rho = spearman(sums, shared["drops"].double())
        flat = (sums == sums[:, :1]).all(1)
        finite = torch.isfinite(shared["drops"]).all(1)
        why = [
            ""
            if r == r
            else "the model's score is not finite"
            if not f
            else "the map is the same in every patch"
            if c
            else "every patch drops the score alike"
            for r, f, c in zip(rho.tolist(), finite.tolist(), flat.tolist(), strict=True)
        ]
        return Scores(rho, why)


@protocol
class InDomainSingleDeletion(SingleDeletion):
    id: ClassVar[str] = "idsds"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = (
        "sds on the weights that were fine-tuned with deleted patches, so that deletions are in-domain"
    )

    @property
    def fine_tuning(self) -> str:
        return f"{self.patches}/{self.baseline}"

    def views(
        self, model: Model, data: Data, among: Sequence[tuple[Model, Data]] = ()
    ) -> list[View]:
        key = ViewKey("fine-tuned", self.fine_tuning)
        return [View(key, load_fine_tuned(model, self.fine_tuning), data)]
