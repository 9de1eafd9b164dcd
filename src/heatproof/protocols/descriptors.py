"""How concentrated is a map? Neither much nor little is right, so nobody wins by these."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from heatproof.models.model import Model
from heatproof.protocols.base import EvalBatch, Kind, Protocol, Scores, Shared, protocol
from heatproof.tensor.descriptors import entropy, gini

EMPTY = "the map is 0 everywhere"


class Descriptor(Protocol):
    """Base class of protocols that describe maps and rank no methods."""

    kind: ClassVar[Kind] = "description"
    ranked: ClassVar[bool] = False
    constant_maps: ClassVar[bool] = True

    def describe(self, maps: Tensor) -> Tensor:
        """Return one number for each map, ``(B,)``; nan for maps that are 0 everywhere."""
        raise NotImplementedError

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        value = self.describe(maps)
        return Scores(value, [EMPTY if nan else "" for nan in torch.isnan(value).tolist()])


@protocol
class Sparseness(Descriptor):
    id: ClassVar[str] = "sparseness"
    summary: ClassVar[str] = (
        "the Gini index of the map's absolute values: 0 where all are equal, 1 where one has all"
    )
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    random_score: ClassVar[float | None] = 2**0.5 - 1  # absolute values of normal numbers
    citation: ClassVar[str] = (
        "Chalasani, Chen, Chowdhury, Jha, Wu: "
        "Concise Explanations of Neural Networks using Adversarial Training. ICML 2020"
    )

    def describe(self, maps: Tensor) -> Tensor:
        return gini(maps)


@protocol
class Complexity(Descriptor):
    id: ClassVar[str] = "complexity"
    summary: ClassVar[str] = (
        "the effective number of pixels that hold the map's absolute values, of all pixels"
    )
    higher_is_better: ClassVar[bool] = False
    range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    # √(exp(γ)/π) for the absolute values of normal numbers, γ Euler's constant
    random_score: ClassVar[float | None] = 0.7529495
    citation: ClassVar[str] = (
        "Bhatt, Weller, Moura: Evaluating and Aggregating Feature-based Model Explanations. "
        "IJCAI 2020"
    )

    unit: Literal["fraction", "pixels", "nats"] = Field(
        default="fraction",
        description="fraction: exp(entropy) over the number of pixels; pixels: exp(entropy), the "
        "effective number; nats: the entropy itself",
    )

    def facts(self) -> dict[str, Any]:
        if self.unit == "fraction":
            return super().facts()
        return super().facts() | {"range": None, "random_score": None}

    def describe(self, maps: Tensor) -> Tensor:
        nats = entropy(maps)
        if self.unit == "nats":
            return nats
        return nats.exp() / (maps[0].numel() if self.unit == "fraction" else 1)
