"""What may be done to a map after its method, at the layer's own resolution."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from heatproof.methods.base import transform
from heatproof.tensor.curves import removal_order
from heatproof.tensor.filters import Odd, gaussian, separable
from heatproof.tensor.noise import Rng
from heatproof.tensor.patches import bands_of
from heatproof.tensor.soundness import relative

Scheme = Literal["constant", "random", "partial"]
SHIFT = 0.6  # of a map in [0, 1]


@transform("abs", removes_sign=True)
def absolute(maps: Tensor) -> Tensor:
    """Absolute values."""
    return maps.abs()


@transform("relu", removes_sign=True)
def positive_part(maps: Tensor) -> Tensor:
    """The positive part."""
    return maps.relu()


@transform("smooth")
def smooth(maps: Tensor, size: Odd) -> Tensor:
    """Gaussian of K×K px, σ = K/4, zeros beyond the border (Rao et al. 2024)."""
    return separable(maps[:, None], gaussian(size, size / 4), "constant")[:, 0]


@transform("unit", removes_sign=True)
def unit(maps: Tensor) -> Tensor:
    """The positive part over its maximum."""
    return relative(maps)


@transform("rect", removes_sign=True)
def rect(maps: Tensor, share: Annotated[float, Field(gt=0, le=1)] = 0.268) -> Tensor:
    """A square of ones, that share of the height, about the centre of the map's mass; nothing where it has none (Li et al. 2024)."""
    mass, side = maps.abs().double(), max(1, round(share * maps.shape[1]))
    total = mass.sum((1, 2))
    inside = torch.ones_like(maps, dtype=torch.bool)
    for axis in (1, 2):
        places = torch.arange(maps.shape[axis], device=maps.device)
        centre = mass.sum(3 - axis) @ places.double() / torch.where(total > 0, total, 1)
        begin = (centre - (side - 1) / 2).round().clamp(0, maps.shape[axis] - side)[:, None]
        inside &= ((places >= begin) & (places < begin + side)).unsqueeze(3 - axis)
    return (inside & (total > 0)[:, None, None]).to(maps)


@transform("pooling")
def pooling(maps: Tensor, bands: Annotated[int, Field(ge=1)] = 7) -> Tensor:
    """The mean of each of so many bands of rows, everywhere in the band (Li et al. 2024)."""
    band = bands_of(maps.shape[1], bands).to(maps.device)
    sums = maps.new_zeros(len(maps), bands, dtype=torch.float64).index_add_(
        1, band, maps.double().mean(2)
    )
    means = sums / band.bincount(minlength=bands).clamp(min=1)
    return means[:, band, None].expand(maps.shape).to(maps.dtype)


@transform("remove", removes_sign=True)
def remove(maps: Tensor, scheme: Scheme, *, rng: Rng) -> Tensor:
    """The positive part over its maximum, less 0.6, less U(0, 0.6) a pixel, or with zeros from rank 60 to 80 % (Li et al. 2024)."""
    values = relative(maps)
    if scheme == "partial":
        return values.masked_fill(_ascending(values, rng, 0.6, 0.8), 0)
    return (values - _shift("remove", scheme, values, rng)).clamp(min=0)


@transform("introduce", removes_sign=True)
def introduce(maps: Tensor, scheme: Scheme, *, rng: Rng) -> Tensor:
    """The positive part over its maximum, plus 0.6, plus U(0, 0.6) a pixel, or with its 80 % quantile up to rank 40 % (Li et al. 2024)."""
    values = relative(maps)
    if scheme == "partial":
        high = values.flatten(1).quantile(0.8, dim=1)[:, None, None]
        return torch.where(_ascending(values, rng, 0, 0.4), high, values)
    return (values + _shift("introduce", scheme, values, rng)).clamp(max=1)


def _shift(what: str, scheme: Scheme, values: Tensor, rng: Rng) -> Tensor | float:
    return SHIFT if scheme == "constant" else SHIFT * rng.uniform(what, values.shape[1:]).to(values)


def _ascending(values: Tensor, rng: Rng, begin: float, end: float) -> Tensor:  # (B, h, w) -> bool
    """The pixels between two shares of all, in ascending order; ties have the order of their sample."""
    pixels = values[0].numel()
    places = pixels - 1 - removal_order(values, rng.ids, rng.seed)
    return (places >= int(begin * pixels + 1e-6)) & (places < int(end * pixels + 1e-6))
