"""Part deletion (Hesse et al. 2023, FunnyBirds): does a map order an object's parts as the model's own drops do?

The parts are really taken off, in the scene: nothing is painted over, so the pictures are ones the model knows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from heatproof.models.model import Model
from heatproof.protocols.base import EvalBatch, Protocol, Scores, Shared, protocol
from heatproof.tensor.filters import Odd
from heatproof.tensor.rank import spearman
from heatproof.tensor.scores import score_function


def part_sums(
    maps: Tensor, masks: Tensor, dilate: int
) -> Tensor:  # (B, H, W), (B, P, K, H, W) -> (B, P) float64
    """Attribution per part: the sum over each instance's mask, widened by a square of `dilate` px; instances are added."""
    wide = F.max_pool2d(masks.flatten(1, 2).float(), dilate, 1, dilate // 2)
    sums = torch.einsum("bhw,bmhw->bm", maps.double(), wide.double())
    return sums.reshape(masks.shape[:3]).sum(2)


@protocol
class PartDeletion(Protocol):
    id: ClassVar[str] = "parts"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = (
        "rank correlation of the attribution per part with the drop of the target's score when that part is taken off"
    )
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float] | None] = (-1.0, 1.0)
    random_score: ClassVar[float | None] = 0.0
    target: ClassVar[Literal["label", "prediction"]] = "label"
    citation: ClassVar[str] = (
        "Hesse, Schaub-Meyer, Roth: FunnyBirds: A Synthetic Vision Dataset for a Part-Based Analysis of Explainable AI Methods. ICCV 2023"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"parts"})

    dilate: Odd | None = None  # None: 5 px at 256 px, in proportion elsewhere
    compat: Literal["funnybirds"] | None = None  # that framework's scale, ½ρ + ½

    def facts(self) -> dict[str, Any]:
        return super().facts() | ({"range": (0.0, 1.0), "random_score": 0.5} if self.compat else {})

    def shared_passes(self) -> Mapping[Hashable, int]:
        return {"parts": 5}

    def compute_shared(self, model: Model, batch: EvalBatch) -> Shared:
        """(B, P): f_t(x) − f_t(x without the part)."""
        assert batch.parts is not None
        without, logit = batch.parts.without, score_function("logit")
        found = [
            logit(
                model.logits(model.normalize(without[sample, part].float() / 255)),
                batch.target[sample],
            )
            for sample, part in model.passes.chunks(*without.shape[:2])
        ]
        return {
            "drops": logit(batch.clean, batch.target)[:, None]
            - torch.cat(found).reshape(without.shape[:2])
        }

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        assert batch.parts is not None
        dilate = self.dilate or 2 * round((5 * model.size / 256 - 1) / 2) + 1
        rho = spearman(
            part_sums(maps, batch.parts.masks.to(maps.device), dilate), shared["drops"].double()
        )
        why = [
            "" if r == r else "the parts cannot be ordered: all alike in the map or in their drops"
            for r in rho.tolist()
        ]
        return Scores((rho + 1) / 2 if self.compat else rho, why)
