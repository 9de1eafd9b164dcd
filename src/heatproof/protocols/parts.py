"""Part deletion (FunnyBirds, Hesse et al. 2023): does a map rank parts as the score drops do?

Parts are removed from the scene before it is rendered, so the images stay in-domain.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heatproof.models.model import Model
from heatproof.protocols.base import EvalBatch, Kind, Protocol, Scores, Shared, protocol
from heatproof.tensor.filters import Odd
from heatproof.tensor.rank import spearman

UNDEFINED = "the parts cannot be ranked: all are equal in the map or in their drops"


def part_sums(maps: Tensor, masks: Tensor, dilate: int) -> Tensor:
    """Sum attribution per part.

    Args:
        maps: Attribution maps ``(B, H, W)``.
        masks: Masks ``(B, P, K, H, W)`` of up to ``K`` instances of each part.
        dilate: Masks are dilated by a square of this many pixels.

    Returns:
        Sums ``(B, P)`` of float64; instances of a part are added.
    """
    dilated = F.max_pool2d(masks.flatten(1, 2).float(), dilate, 1, dilate // 2)
    sums = torch.einsum("bhw,bmhw->bm", maps.double(), dilated.double())
    return sums.reshape(masks.shape[:3]).sum(2)


@protocol
class PartDeletion(Protocol):
    id: ClassVar[str] = "parts"
    kind: ClassVar[Kind] = "in-domain"
    summary: ClassVar[str] = (
        "rank correlation of the attribution per part with the drop of the target's score "
        "when that part is removed"
    )
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float] | None] = (-1.0, 1.0)
    random_score: ClassVar[float | None] = 0.0
    citation: ClassVar[str] = (
        "Hesse, Schaub-Meyer, Roth: FunnyBirds: A Synthetic Vision Dataset for a Part-Based "
        "Analysis of Explainable AI Methods. ICCV 2023"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"parts"})
    shared_by_sample: ClassVar[tuple[str, ...]] = ("drops",)

    dilate: Odd | None = Field(
        default=None,
        description="side in pixels of the square that masks of parts are dilated by; by default "
        "5 px at 256 px, scaled with the image",
    )
    compat: Literal["funnybirds"] | None = Field(
        default=None, description="funnybirds: the scale of its framework, ½ρ + ½"
    )

    def facts(self) -> dict[str, Any]:
        return super().facts() | ({"range": (0.0, 1.0), "random_score": 0.5} if self.compat else {})

    def shared_passes(self) -> Mapping[Hashable, int]:
        return {"parts": 5}

    def compute_shared(self, model: Model, batch: EvalBatch) -> Shared:
        """Compute ``drops`` of the logit without each part, ``(B, P)``."""
        assert batch.parts is not None
        images = batch.parts.without
        logit = model.score_function("logit")
        parts = []
        for sample, part in model.passes.chunks(*images.shape[:2]):
            logits = model.logits(model.normalize(images[sample, part].float() / 255))
            parts.append(logit(logits, batch.target[sample]))
        left = torch.cat(parts).reshape(images.shape[:2])
        return {"drops": logit(batch.clean, batch.target)[:, None] - left}

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        assert batch.parts is not None
        dilate = self.dilate or 2 * round((5 * min(model.height, model.width) / 256 - 1) / 2) + 1
        sums = part_sums(maps, batch.parts.masks.to(maps.device), dilate)
        rho = spearman(sums, shared["drops"].double())
        reasons = [UNDEFINED if math.isnan(value) else "" for value in rho.tolist()]
        return Scores((rho + 1) / 2 if self.compat else rho, reasons)
