"""Enlarging small grids.

Interpolation along one side is a matrix ``(side, points)``, so an enlarged map is
``rows @ grid @ columns.T``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def nearest(side: int, points: int) -> Tensor:  # (side,)
    """Return the nearest grid point of each pixel."""
    return torch.arange(side) * points // side


def linear(side: int, points: int, mirror: bool = False) -> Tensor:  # (side, points)
    """Return the matrix of linear interpolation between grid points.

    Args:
        side: Number of pixels.
        points: Number of grid points.
        mirror: Whether the grid is mirrored about its outermost points instead of continued as a
            constant.
    """
    positions = _positions(side, points)
    last = points - 1
    if mirror and last:
        positions = last - (last - positions.abs()).abs()
    else:
        positions = positions.clamp(0, last)
    return (1 - (positions[:, None] - torch.arange(points)).abs()).clamp(min=0).float()


def cubic(side: int, points: int) -> Tensor:  # (side, points)
    """Return the matrix of cubic interpolation (Keys' kernel with a = −1/2).

    At the border the weights are renormalised over the existing grid points.
    """
    r = (_positions(side, points)[:, None] - torch.arange(points)).abs()
    near = 1.5 * r**3 - 2.5 * r**2 + 1
    far = -0.5 * r**3 + 2.5 * r**2 - 4 * r + 2
    weights = torch.where(r <= 1, near, torch.where(r < 2, far, 0))
    return (weights / weights.sum(1, keepdim=True)).float()


def _positions(side: int, points: int) -> Tensor:  # (side,)
    """Return the pixel centres in units of grid points."""
    return (torch.arange(side, dtype=torch.float64) + 0.5) * points / side - 0.5
