"""Attr% (Zhou et al. 2022): the fraction of a map that lies on the pixels that determine the class.

It needs data made so that these pixels are known.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from heatproof.models.model import Model
from heatproof.models.targets import Explains
from heatproof.protocols.base import EvalBatch, Kind, Protocol, Scores, Shared, protocol
from heatproof.tensor.localization import mass_fraction


@protocol
class AttributionMass(Protocol):
    id: ClassVar[str] = "attr-mass"
    kind: ClassVar[Kind] = "localization"
    explains: ClassVar[Explains] = "object"
    summary: ClassVar[str] = (
        "the fraction of the map's absolute values on the pixels that determine the class, "
        "or on the object"
    )
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    random_score: ClassVar[float | None] = None  # the fraction of the pixels that matter
    citation: ClassVar[str] = (
        "Zhou, Booth, Ribeiro, Shah: "
        "Do Feature Attribution Methods Correctly Attribute Features? AAAI 2022"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"silhouette"})
    constant_maps: ClassVar[bool] = True

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """Score maps; an all-zero map scores 0, an image without such pixels is undefined."""
        assert batch.silhouette is not None
        inside = batch.silhouette.to(maps.device)
        defined = inside.flatten(1).any(1)
        value = torch.where(defined, mass_fraction(maps, inside), torch.nan)
        reasons = [
            "" if d else "no pixel of the image determines its class" for d in defined.tolist()
        ]
        return Scores(value, reasons)
