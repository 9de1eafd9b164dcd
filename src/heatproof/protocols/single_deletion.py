"""Single deletion (Hesse et al. 2024): does a map order the patches as the model's own drops do?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import field_validator
from torch import Tensor

from heatproof.baselines import Baseline, BaselineName
from heatproof.models.model import Model
from heatproof.protocols.base import Judged, Measured, Protocol, Shared, protocol
from heatproof.tensor.batching import chunks, rows
from heatproof.tensor.noise import Rng
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
    known = model if isinstance(model, Model) else None
    logits = known.logits if known else model
    size = known.batch_size if known else batch_size
    rng = Rng(seed, ids if ids is not None else [str(i) for i in range(len(x))], x.device)
    remove = Baseline.parse(baseline).remover(x, known, rng)
    masks, scored = patch_masks(patches, *x.shape[2:]).to(x.device), score_function(score)
    with torch.no_grad():
        if clean is None:
            clean = torch.cat([logits(part) for part in rows(x, size)])
        without = [scored(logits(remove(sample, masks[patch])), target[sample]) for sample, patch in chunks(len(x), patches, size)]
        return scored(clean, target)[:, None] - torch.cat(without).reshape(len(x), patches)


@protocol
class SingleDeletion(Protocol):
    id: ClassVar[str] = "sds"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "rank correlation of the attribution per patch with the drop of the target's score when that patch is deleted"
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    random_score: ClassVar[float] = 0.0
    target: ClassVar[Literal["label", "prediction"]] = "label"
    citation: ClassVar[str] = "Hesse, Schaub-Meyer, Roth: Benchmarking the Attribution Quality of Vision Models. NeurIPS 2024"

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

    def forwards(self) -> int:
        return self.patches

    def share(self, model: Model, batch: Judged) -> Shared:
        drops = patch_drops(
            model, batch.x, batch.target, self.patches, self.baseline, self.score, batch.ids, batch.rng.seed, clean=batch.clean
        )
        return {"drops": drops}

    def measure(self, model: Model, batch: Judged, shared: Shared, maps: Tensor) -> Measured:
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
        return Measured(rho, why)
