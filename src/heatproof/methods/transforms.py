"""What may be done to a map after its method, at the layer's own resolution."""

from __future__ import annotations

from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.methods.base import transform
from heatproof.tensor.filters import gaussian, separable


@transform("abs", removes_sign=True)
def absolute(maps: Tensor) -> Tensor:
    return maps.abs()


@transform("relu", removes_sign=True)
def positive_part(maps: Tensor) -> Tensor:
    return maps.relu()


@transform("smooth")
def smooth(maps: Tensor, size: int) -> Tensor:
    """Gaussian of K×K px, σ = K/4, zeros beyond the border (Rao et al. 2024)."""
    if not isinstance(size, int) or size < 1 or size % 2 == 0:
        raise HeatproofError(f"smooth takes an odd number of pixels, such as smooth(9); got {size}")
    return separable(maps[:, None], gaussian(size, size / 4), "constant")[:, 0]
