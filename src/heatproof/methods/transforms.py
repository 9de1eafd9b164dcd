"""What may be done to a map after its method, at the layer's own resolution."""

from __future__ import annotations

from torch import Tensor

from heatproof.methods.base import transform
from heatproof.tensor.filters import Odd, gaussian, separable


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
