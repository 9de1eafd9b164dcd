"""A baseline takes pixels out of an image. Most paint a whole image once per sample, from which the removed pixels are taken."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import AfterValidator
from torch import Tensor

from heatproof.expressions import call_label, options, parse_call
from heatproof.models.model import Model
from heatproof.registry import Registry
from heatproof.tensor.noise import Rng

Fill = Callable[..., Tensor]  # (x (B, C, H, W) in the model's input space, *, model, rng, …) -> image, broadcastable to x


@dataclass(frozen=True)
class BaselineEntry:
    id: str
    fill: Fill
    summary: str
    version: int = 1

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return options(self.fill, "x", "model", "rng")


BASELINES: Registry[BaselineEntry] = Registry("baseline")


def baseline(id: str, *, version: int = 1) -> Callable[[Fill], Fill]:
    """Register a function `(x, *, model, rng, …) -> image`."""

    def register(fill: Fill) -> Fill:
        BASELINES.add(BaselineEntry(id, fill, inspect.getdoc(fill) or "", version))
        return fill

    return register


@dataclass(frozen=True)
class Baseline:
    """A baseline with its arguments, such as `blur` or `uniform(-1, 1)`."""

    entry: BaselineEntry
    arguments: dict[str, Any] = field(hash=False)
    label: str

    @classmethod
    def parse(cls, text: str) -> Baseline:
        call = parse_call(text)
        entry = BASELINES[call.name]
        arguments = call.bind(entry.parameters, "baseline")
        return cls(entry, arguments, call_label(call, arguments, entry.parameters))

    def fill(self, x: Tensor, model: Model | None, rng: Rng) -> Tensor:  # (B, C, H, W)
        return self.entry.fill(x, model=model, rng=rng, **self.arguments).expand_as(x)

    def remover(self, x: Tensor, model: Model | None, rng: Rng) -> Callable[[Tensor, Tensor], Tensor]:
        """remove(samples (n,), removed (n, H, W) bool) -> (n, C, H, W); the fill is painted once."""
        painted = self.fill(x, model, rng)

        def remove(samples: Tensor, removed: Tensor) -> Tensor:
            return torch.where(removed[:, None], painted[samples], x[samples])

        return remove


BaselineName = Annotated[str, AfterValidator(lambda text: Baseline.parse(text).label)]  # as an argument of a method or a protocol
