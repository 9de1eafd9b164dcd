"""Does a map lie on the object? Localization on masks and boxes.

``pointing`` looks at the largest value (Zhang et al. 2018), ``mass`` at the positive values (Wang
et al. 2020) and ``rank-accuracy`` at as many of the largest as the object has pixels (Arras et al.
2022).
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heatproof.models.model import Model
from heatproof.models.targets import Explains
from heatproof.protocols.base import EvalBatch, Kind, Protocol, Scores, Shared, protocol
from heatproof.tensor.localization import mass_fraction

NO_OBJECT = "no pixel of the image is of an object of the class"


def top_fraction(maps: Tensor, inside: Tensor, count: Tensor) -> Tensor:
    """Compute how much of each map's largest values lies inside a region.

    Values that are equal share the places that are left for them.

    Args:
        maps: ``(B, H, W)``.
        inside: The region, ``(B, H, W)`` of bool.
        count: How many of the largest values count, ``(B,)``, at least one.

    Returns:
        Fractions ``(B,)`` of float64.
    """
    values = maps.flatten(1)
    region = inside.flatten(1).double()
    last = values.sort(1, descending=True).values.gather(1, count[:, None] - 1)
    above = values > last
    level = values == last
    places = count - above.sum(1)
    at_level = (level * region).sum(1) / level.sum(1)
    return ((above * region).sum(1) + places * at_level) / count


class OnObject(Protocol):
    """Base class of protocols that ask how much of a map lies on the object."""

    kind: ClassVar[Kind] = "localization"
    explains: ClassVar[Explains] = "object"
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    random_score: ClassVar[float | None] = None  # the fraction of the pixels of the object
    needs: ClassVar[frozenset[str]] = frozenset({"silhouette"})
    constant_maps: ClassVar[bool] = True

    def fraction(self, maps: Tensor, inside: Tensor) -> Tensor:
        """Return the score of each map, ``(B,)``; regions ``(B, H, W)`` are not empty."""
        raise NotImplementedError

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """Score maps; an image without an object is undefined."""
        assert batch.silhouette is not None
        inside = batch.silhouette.to(maps.device)
        defined = inside.flatten(1).any(1)
        value = torch.full((len(maps),), torch.nan, dtype=torch.float64, device=maps.device)
        value[defined] = self.fraction(maps[defined], inside[defined])
        return Scores(value, ["" if d else NO_OBJECT for d in defined.tolist()])


@protocol
class Pointing(OnObject):
    id: ClassVar[str] = "pointing"
    summary: ClassVar[str] = "whether the largest value of the map lies on the object"
    citation: ClassVar[str] = (
        "Zhang, Bargal, Lin, Brandt, Shen, Sclaroff: "
        "Top-down Neural Attention by Excitation Backprop. IJCV 2018"
    )

    tolerance: int = Field(
        default=0, ge=0, le=255, description="pixels beside the object that count as well"
    )

    def fraction(self, maps: Tensor, inside: Tensor) -> Tensor:
        if self.tolerance:
            steps = torch.arange(-self.tolerance, self.tolerance + 1, device=maps.device)
            disc = (steps[:, None] ** 2 + steps**2 <= self.tolerance**2).to(maps)[None, None]
            inside = F.conv2d(inside[:, None].to(maps), disc, padding=self.tolerance)[:, 0] > 0.5
        return top_fraction(maps, inside, torch.ones(len(maps), dtype=torch.long).to(maps.device))


@protocol
class Mass(OnObject):
    id: ClassVar[str] = "mass"
    summary: ClassVar[str] = "the fraction of the map's positive values on the object"
    citation: ClassVar[str] = (
        "Wang, Wang, Du, Yang, Zhang, Ding, Mardziel, Hu: "
        "Score-CAM: Score-Weighted Visual Explanations for Convolutional Neural Networks. "
        "CVPR Workshops 2020"
    )

    def fraction(self, maps: Tensor, inside: Tensor) -> Tensor:
        return mass_fraction(maps.clamp(min=0), inside)


@protocol
class RankAccuracy(OnObject):
    id: ClassVar[str] = "rank-accuracy"
    summary: ClassVar[str] = (
        "the fraction of the map's largest values, as many as the object has pixels, on the object"
    )
    citation: ClassVar[str] = (
        "Arras, Osman, Samek: CLEVR-XAI: A Benchmark Dataset for the Ground Truth Evaluation of "
        "Neural Network Explanations. Information Fusion 2022"
    )

    def fraction(self, maps: Tensor, inside: Tensor) -> Tensor:
        return top_fraction(maps, inside, inside.flatten(1).sum(1))
