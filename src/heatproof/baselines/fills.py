"""Baselines of noise, and baselines that keep the coarse structure of the image."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heatproof.baselines.base import baseline
from heatproof.baselines.colours import image_mean, value_range
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.filters import Odd, gaussian, separable
from heatproof.tensor.noise import Rng
from heatproof.tensor.resample import nearest

Cells = Annotated[int, Field(ge=1)]  # grid cells per side; at most as many as there are pixels


@baseline("uniform", group="noise", blind=True, stochastic=True)
def uniform(
    x: Tensor, *, model: Model | None, rng: Rng, low: float | None = None, high: float | None = None
) -> Tensor:
    """Uniform noise over the model's input range, drawn per pixel and channel.

    The IDSDS paper uses ``uniform(-1, 1)``.
    """
    bottom, top = value_range("uniform", x, model, low, high)
    return bottom + (top - bottom) * rng.uniform("baseline uniform", x.shape[1:]).to(x)


@baseline("normal", group="noise", version=2, blind=True, stochastic=True)
def normal(
    x: Tensor,
    *,
    model: Model | None,
    rng: Rng,
    low: float | None = None,
    high: float | None = None,
    clip: bool = False,
) -> Tensor:
    """Standard normal noise in the input space, drawn per pixel and channel.

    ``clip=true`` clips it to the model's input range, ``normal(-1, 1)`` to [-1, 1] as the notebooks
    of Picard et al. (2024) do.
    """
    noise = rng.normal("baseline normal", x.shape[1:]).to(x)
    if not clip and low is None and high is None:
        return noise
    return noise.clamp(*value_range("normal", x, model, low, high))


@baseline("additive-uniform", group="noise", stochastic=True)
def additive_uniform(
    x: Tensor, *, model: Model | None, rng: Rng, low: float = 0.0, high: float = 1.0
) -> Tensor:
    """The image plus uniform noise, drawn per pixel and channel (Picard et al. 2024, Prop. 3.2).

    The bounds are in the model's input units. The result is not clipped.
    """
    noise = rng.uniform("baseline additive-uniform", x.shape[1:]).to(x)
    return x + low + (high - low) * noise


@baseline("additive-normal", group="noise", stochastic=True)
def additive_normal(
    x: Tensor, *, model: Model | None, rng: Rng, std: Annotated[float, Field(gt=0)] = 1.0
) -> Tensor:
    """The image plus normal noise, drawn per pixel and channel.

    ``std`` is in the model's input units. The result is not clipped.
    """
    return x + std * rng.normal("baseline additive-normal", x.shape[1:]).to(x)


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


@baseline("mosaic", group="local")
def mosaic(
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
    return cell_means(x, cells)


@baseline("local-mean", group="colour", version=2)
def local_mean(
    x: Tensor, *, model: Model | None, rng: Rng, compat: Literal["xplique"] | None = None
) -> Tensor:
    """The mean colour of each image: ``local mean`` in the text of Picard et al. (2024).

    It is the same as ``image-mean``. ``compat=xplique`` is the mosaic that their notebooks call by
    this name, ``mosaic(compat=xplique)``.
    """
    if compat == "xplique":
        return mosaic(x, model=model, rng=rng, compat=compat)
    return image_mean(x, model=model, rng=rng)


def cell_means(x: Tensor, cells: int) -> Tensor:  # (B, C, H, W) -> same
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
