"""Baselines that replace pixels by values of their own."""

from __future__ import annotations

from torch import Tensor

from heatproof.baselines.base import baseline
from heatproof.errors import HeatproofError, unknown
from heatproof.models.model import Model
from heatproof.tensor.filters import gaussian, separable
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
        raise HeatproofError("uniform takes both ends or none: uniform(-1, 1)")
    elif model is None:
        raise HeatproofError("baseline uniform without ends is the model's input range; pass an hp.Model, or say uniform(-1, 1)")
    else:
        bottom, top = model.input_range
    return bottom + (top - bottom) * rng.uniform("baseline uniform", x.shape[1:]).to(x)


@baseline("blur")
def blur(
    x: Tensor, *, model: Model | None, rng: Rng, size: int | None = None, sigma: float | None = None, compat: str | None = None
) -> Tensor:
    """Gaussian blur, 51 px wide with σ = 41 at 224 px and in proportion elsewhere; `compat=idsds` is that paper's code."""
    if compat == "idsds":
        return _blur_idsds(x, size or 51, sigma or 41.0)
    if compat is not None:
        raise unknown("compat of blur", compat, ["idsds"])
    scale = x.shape[-1] / 224
    width = size or 2 * round((51 * scale - 1) / 2) + 1
    if width % 2 == 0 or width < 1:
        raise HeatproofError(f"blur: size must be odd; got {width}")
    return separable(x, gaussian(max(width, 3), sigma or 41 * scale), "reflect")


def _blur_idsds(x: Tensor, size: int, sigma: float) -> Tensor:
    """Absolute size, σ wider by √2, zeros beyond the border."""
    return separable(x, gaussian(size, sigma * 2**0.5), "constant")
