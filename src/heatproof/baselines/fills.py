"""Baselines that replace pixels by values of their own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from heatproof.baselines.base import baseline
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.filters import Odd, gaussian, separable
from heatproof.tensor.noise import Rng


@baseline("zero")
def zero(x: Tensor, *, model: Model | None, rng: Rng) -> Tensor:
    """Zero in the model's input space: the mean colour for most CNNs, mid-grey or black for others."""
    return x.new_zeros(())


@baseline("uniform")
def uniform(x: Tensor, *, model: Model | None, rng: Rng, low: float | None = None, high: float | None = None) -> Tensor:
    """Noise over the model's input range, per pixel and channel; `uniform(-1, 1)` is the IDSDS paper's."""
    if low is not None and high is not None:
        bottom, top = x.new_tensor(low), x.new_tensor(high)
    elif low is not None or high is not None:
        raise HeatproofError("uniform takes both ends or none, such as uniform(-1, 1)")
    elif model is None:
        raise HeatproofError("baseline uniform without ends is the model's input range; pass an hp.Model, or say uniform(-1, 1)")
    else:
        bottom, top = model.input_range
    return bottom + (top - bottom) * rng.uniform("baseline uniform", x.shape[1:]).to(x)


@baseline("blur")
def blur(
    x: Tensor,
    *,
    model: Model | None,
    rng: Rng,
    size: Odd | None = None,
    sigma: Annotated[float, Field(gt=0)] | None = None,
    compat: Literal["idsds"] | None = None,
) -> Tensor:
    """Gaussian blur, 51 px wide with σ = 41 at 224 px and in proportion elsewhere; `compat=idsds` is that paper's code."""
    if compat == "idsds":
        return _blur_idsds(x, size or 51, sigma or 41.0)
    scale = x.shape[-1] / 224
    width = size or max(3, 2 * round((51 * scale - 1) / 2) + 1)
    if width // 2 >= min(x.shape[2:]):
        raise HeatproofError(f"blur: {width} px is too wide for an image of {x.shape[-2]}×{x.shape[-1]} px")
    return separable(x, gaussian(width, sigma or 41 * scale), "reflect")


def _blur_idsds(x: Tensor, size: int, sigma: float) -> Tensor:
    """Absolute size, σ wider by √2, zeros beyond the border."""
    return separable(x, gaussian(size, sigma * 2**0.5), "constant")
