"""Does a map change where the image hardly does (Yeh et al. 2019, Alvarez-Melis et al. 2018)?

Noise that changes the prediction may change the map as well, so only noise that does not counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from heatproof.models.model import Model
from heatproof.protocols.base import EvalBatch, Kind, Protocol, Scores, Shared, protocol
from heatproof.protocols.removal import cached

ALWAYS_CHANGED = "the noise always changes the prediction"
NOT_FINITE = "the map of a noisy image is not finite"


@protocol
class Sensitivity(Protocol):
    id: ClassVar[str] = "sensitivity"
    kind: ClassVar[Kind] = "robustness"
    summary: ClassVar[str] = (
        "change of the map under small noise that keeps the prediction, relative to the map"
    )
    higher_is_better: ClassVar[bool] = False
    random_score: ClassVar[float | None] = 0.0  # its noise belongs to the sample
    citation: ClassVar[str] = (
        "Yeh, Hsieh, Suggala, Inouye, Ravikumar: "
        "On the (In)fidelity and Sensitivity of Explanations. NeurIPS 2019"
    )
    shared_by_sample: ClassVar[tuple[str, ...]] = ("kept",)

    statistic: Literal["max", "mean", "lipschitz"] = Field(
        default="max",
        description="largest or mean change over noisy copies; lipschitz: the largest, divided by "
        "the norm of the noise in place of the map's",
    )
    copies: int = Field(default=10, ge=1, description="noisy copies of each image")
    radius: float = Field(
        default=0.02, gt=0, le=1, description="largest change of a pixel, for images in [0, 1]"
    )

    def shared_passes(self) -> Mapping[Hashable, int]:
        return {("noisy", self.copies, self.radius): self.copies}

    def explanations(self) -> Mapping[Hashable, int]:
        return self.shared_passes()

    def _noise(self, model: Model, batch: EvalBatch, copy: int) -> Tensor:
        uniform = batch.rng.uniform(f"sensitivity {copy}", batch.x.shape[1:]).to(batch.x)
        return self.radius / model.std * (2 * uniform - 1)

    def compute_shared(self, model: Model, batch: EvalBatch) -> Shared:
        """Return ``kept``: whether each copy has the same prediction as its image, ``(B, N)``."""
        clean = model.class_logits(batch.clean).argmax(1)
        kept = [
            model.class_logits(model.logits(batch.x + self._noise(model, batch, i))).argmax(1)
            == clean
            for i in range(self.copies)
        ]
        return {"kept": torch.stack(kept, 1).float()}

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """Score maps; the curve ``change`` ``(B, N)`` is nan where the prediction changes."""
        assert batch.explain is not None
        explain = batch.explain

        def norms() -> Tensor:  # of changes and of the noise, (2, B, N)
            pairs = []
            for i in range(self.copies):
                noise = self._noise(model, batch, i)
                change = explain(batch.x + noise).double() - maps.double()
                pairs.append(torch.stack([change.flatten(1).norm(dim=1), _norm(noise)]))
            return torch.stack(pairs, 2)

        changes, noise = cached(batch.map_cache, ("noisy maps", self.copies, self.radius), norms)
        scale = noise if self.statistic == "lipschitz" else _norm(maps)[:, None]
        kept = shared["kept"] > 0
        change = torch.where(kept, changes / scale, torch.nan)
        finite = (torch.isfinite(changes) | ~kept).all(1)
        if self.statistic == "mean":
            value = change.nanmean(1)
        else:
            value = change.nan_to_num(-torch.inf).amax(1)
        value = torch.where(finite & kept.any(1), value, torch.nan)
        reasons = []
        for any_kept, is_finite in zip(kept.any(1).tolist(), finite.tolist(), strict=True):
            reasons.append("" if any_kept and is_finite else NOT_FINITE)
            if not any_kept:
                reasons[-1] = ALWAYS_CHANGED
        return Scores(value, reasons, {"change": change})


def _norm(values: Tensor) -> Tensor:  # (B, …) -> (B,) float64
    return values.double().flatten(1).norm(dim=1)
