"""Attr% (Zhou et al. 2022): how much of a map lies on the pixels that tell the class, where the data is made so that they are known."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from heatproof.models.model import Model
from heatproof.protocols.base import EvalBatch, Protocol, Scores, Shared, protocol
from heatproof.tensor.localization import mass_fraction


@protocol
class AttributionMass(Protocol):
    id: ClassVar[str] = "attr-mass"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = (
        "the share of the map's absolute values that lies on the pixels that tell the class, or on the object"
    )
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    random_score: ClassVar[float | None] = None  # the share of the pixels that matter
    target: ClassVar[Literal["label", "prediction"]] = "label"
    citation: ClassVar[str] = (
        "Zhou, Booth, Ribeiro, Shah: Do Feature Attribution Methods Correctly Attribute Features? AAAI 2022"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"silhouette"})
    constant_maps: ClassVar[bool] = True

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """A map of nothing has no share and scores 0; where no pixel tells the class, no map can be right or wrong."""
        assert batch.silhouette is not None
        inside = batch.silhouette.to(maps.device)
        some = inside.flatten(1).any(1)
        value = torch.where(some, mass_fraction(maps, inside), torch.nan)
        return Scores(
            value, ["" if s else "no pixel of the image tells its class" for s in some.tolist()]
        )
