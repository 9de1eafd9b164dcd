"""Baselines of noise, and baselines that keep the coarse structure of the image."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heatproof.baselines.base import baseline
from heatproof.baselines.colours import value_range
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.filters import Odd, gaussian, separable
from heatproof.tensor.noise import Rng
from heatproof.tensor.resample import nearest

Cells = Annotated[int, Field(ge=1)]  # grid cells per side; at most as many as there are pixels


@baseline("uniform", group="noise", blind=True)
def uniform(
    x: Tensor, *, model: Model | None, rng: Rng, low: float | None = None, high: float | None = None
) -> Tensor:
    """Uniform noise over the model's input range, drawn per pixel and channel.

    The IDSDS paper uses ``uniform(-1, 1)``.
    """
    bottom, top = value_range("uniform", x, model, low, high)
    return bottom + (top - bottom) * rng.uniform("baseline uniform", x.shape[1:]).to(x)


@baseline("normal", group="noise", blind=True)
def normal(
    x: Tensor, *, model: Model | None, rng: Rng, low: float | None = None, high: float | None = None
) -> Tensor:
    """Standard normal noise in the input space, clipped to the model's input range.

    Picard et al. (2024) use ``normal(-1, 1)``.
    """
    bottom, top = value_range("normal", x, model, low, high)
    return rng.normal("baseline normal", x.shape[1:]).to(x).clamp(bottom, top)


@baseline("blur", group="local")
def blur(
    x: Tensor,
    *,
    model: Model | None,
    rng: Rng,
    size: Odd | None = None,
    sigma: Annotated[float, Field(gt=0)] | None = None,
    compat: Literal["idsds"] | None = None,
) -> Tensor:
    """Gaussian blur, 51 px wide with σ = 41 at 224 px and scaled with the image size.

    ``compat=idsds`` follows the published code of the IDSDS paper.
    """
    if compat == "idsds":
        # The published code has a fixed size, σ larger by √2, and zeros beyond the border.
        return separable(x, gaussian(size or 51, (sigma or 41.0) * 2**0.5), "constant")
    scale = x.shape[-1] / 224
    width = size or max(3, 2 * round((51 * scale - 1) / 2) + 1)
    if width // 2 >= min(x.shape[2:]):
        raise HeatproofError(
            f"blur: {width} px is too wide for an image of {x.shape[-2]}×{x.shape[-1]} px; "
            "give a smaller size"
        )
    return separable(x, gaussian(width, sigma or 41 * scale), "reflect")


@baseline("local-mean", group="local")
def local_mean(
    x: Tensor,
    *,
    model: Model | None,
    rng: Rng,
    cells: Cells = 8,
    compat: Literal["xplique"] | None = None,
) -> Tensor:
    """A mosaic of 8×8 grid cells, each filled with the mean of its pixels.

    ``compat=xplique`` samples each grid cell bilinearly at its centre instead.
    """
    if compat == "xplique":
        return enlarged(cell_centers(x, cells), *x.shape[2:])
    return mosaic(x, cells)


def mosaic(x: Tensor, cells: int) -> Tensor:  # (B, C, H, W) -> same
    """Fill every grid cell with its mean; the sizes of cells that do not fit differ by a pixel."""
    means = x.double()
    for axis in (2, 3):
        cell = nearest(x.shape[axis], min(cells, x.shape[axis])).to(x.device)
        parts: tuple[Tensor, ...] = torch.split(means, cell.bincount().tolist(), axis)
        means = torch.stack([part.mean(axis) for part in parts], axis).index_select(axis, cell)
    return means.to(x)


def cell_centers(x: Tensor, cells: int) -> Tensor:  # (B, C, H, W) -> (B, C, cells, cells)
    """Sample the image bilinearly at the centre of every grid cell."""
    return F.interpolate(x, (cells, cells), mode="bilinear", align_corners=False)


def enlarged(
    grid: Tensor, height: int, width: int
) -> Tensor:  # (B, C, cells, cells) -> (B, C, height, width)
    return F.interpolate(grid, (height, width), mode="nearest-exact")
