"""Transforms of maps, applied after a method.

They act at the layer's resolution, or with ``at="image"`` on the map resized to the image.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from heatproof.methods.base import transform
from heatproof.tensor.curves import removal_order
from heatproof.tensor.filters import Odd, gaussian, scaled_odd, separable
from heatproof.tensor.noise import Rng
from heatproof.tensor.patches import bands_of
from heatproof.tensor.soundness import relative

Scheme = Literal["constant", "random", "partial"]
SHIFT = 0.6  # how much is added or subtracted, for maps in [0, 1]


@transform("abs", removes_sign=True)
def absolute(maps: Tensor) -> Tensor:
    """Absolute values."""
    return maps.abs()


@transform("relu", removes_sign=True)
def positive_part(maps: Tensor) -> Tensor:
    """The positive part."""
    return maps.relu()


@transform("smooth")
def smooth(maps: Tensor, size: Odd, of: Annotated[int, Field(ge=1)] | None = None) -> Tensor:
    """Gaussian of K×K px, σ = K/4, zeros beyond the border (Rao et al. 2024).

    Args:
        maps: Maps of shape ``(B, h, w)``.
        size: The side K of the kernel.
        of: The side of the maps that ``size`` is meant for; on other maps the kernel has the same
            relative size, rounded to an odd number. By default ``size`` is in pixels of the map.
    """
    if of is not None:
        size = scaled_odd(size, maps.shape[1] / of)
    return separable(maps[:, None], gaussian(size, size / 4), "constant")[:, 0]


@transform("unit", removes_sign=True, at="image", version=2)
def unit(maps: Tensor) -> Tensor:
    """The positive part divided by its maximum."""
    return relative(maps)


@transform("rect", removes_sign=True, at="image", version=2)
def rect(maps: Tensor, fraction: Annotated[float, Field(gt=0, le=1)] = 0.268) -> Tensor:
    """A square of ones around the map's centre of mass (Li et al. 2024); zero where it has no mass.

    Args:
        maps: Maps of shape ``(B, h, w)``.
        fraction: The side of the square, as a fraction of the height.
    """
    mass = maps.abs().double()
    side = max(1, round(fraction * maps.shape[1]))
    total = mass.sum((1, 2))
    inside = torch.ones_like(maps, dtype=torch.bool)
    for axis in (1, 2):
        positions = torch.arange(maps.shape[axis], device=maps.device)
        centre = mass.sum(3 - axis) @ positions.double() / torch.where(total > 0, total, 1)
        begin = (centre - (side - 1) / 2).round().clamp(0, maps.shape[axis] - side)[:, None]
        inside &= ((positions >= begin) & (positions < begin + side)).unsqueeze(3 - axis)
    return (inside & (total > 0)[:, None, None]).to(maps)


@transform("pooling", at="image", version=2)
def pooling(maps: Tensor, bands: Annotated[int, Field(ge=1, le=65535)] = 7) -> Tensor:
    """The mean of each band of rows, repeated over the band (Li et al. 2024).

    Args:
        maps: Maps of shape ``(B, h, w)``.
        bands: The number of bands that the rows are divided into.
    """
    band = bands_of(maps.shape[1], bands).to(maps.device)
    sums = maps.new_zeros(len(maps), bands, dtype=torch.float64).index_add_(
        1, band, maps.double().mean(2)
    )
    means = sums / band.bincount(minlength=bands).clamp(min=1)
    return means[:, band, None].expand(maps.shape).to(maps.dtype)


@transform("remove", removes_sign=True, at="image", version=2)
def remove(maps: Tensor, scheme: Scheme, *, rng: Rng) -> Tensor:
    """The map in [0, 1] with attribution removed (Li et al. 2024).

    The positive part divided by its maximum is reduced by 0.6 (``constant``) or by U(0, 0.6) per
    pixel (``random``), or set to zero from rank 60 to 80 % (``partial``).
    """
    values = relative(maps)
    if scheme == "partial":
        return values.masked_fill(_between_ranks(values, rng, 0.6, 0.8), 0)
    return (values - _shift("remove", scheme, values, rng)).clamp(min=0)


@transform("introduce", removes_sign=True, at="image", version=2)
def introduce(maps: Tensor, scheme: Scheme, *, rng: Rng) -> Tensor:
    """The map in [0, 1] with attribution introduced (Li et al. 2024).

    The positive part divided by its maximum is increased by 0.6 (``constant``) or by U(0, 0.6) per
    pixel (``random``), or set to its 80 % quantile up to rank 40 % (``partial``).
    """
    values = relative(maps)
    if scheme == "partial":
        high = values.flatten(1).quantile(0.8, dim=1)[:, None, None]
        return torch.where(_between_ranks(values, rng, 0, 0.4), high, values)
    return (values + _shift("introduce", scheme, values, rng)).clamp(max=1)


def _shift(purpose: str, scheme: Scheme, values: Tensor, rng: Rng) -> Tensor | float:
    if scheme == "constant":
        return SHIFT
    return SHIFT * rng.uniform(purpose, values.shape[1:]).to(values)


def _between_ranks(
    values: Tensor, rng: Rng, begin: float, end: float
) -> Tensor:  # (B, h, w) -> bool
    """Mark the pixels whose ascending rank lies between two fractions of all pixels.

    Ties are broken at random, in the same order for every map of a sample.
    """
    pixels = values[0].numel()
    ranks = pixels - 1 - removal_order(values, rng.ids, rng.seed)
    return (ranks >= int(begin * pixels + 1e-6)) & (ranks < int(end * pixels + 1e-6))
