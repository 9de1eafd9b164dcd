"""Enlarging small grids: interpolation along one side as a matrix (side, cells); a map is rows @ grid @ columns.T."""

from __future__ import annotations

import torch
from torch import Tensor


def nearest(side: int, cells: int) -> Tensor:  # (side,)
    """The cell that each place lies in."""
    return torch.arange(side) * cells // side


def linear(side: int, cells: int, mirror: bool = False) -> Tensor:
    """Bilinear between centres; beyond the outer centres the grid goes on as it is, or mirrored about them."""
    places, last = _places(side, cells), cells - 1
    places = last - (last - places.abs()).abs() if mirror and last else places.clamp(0, last)
    return (1 - (places[:, None] - torch.arange(cells)).abs()).clamp(min=0).float()


def cubic(side: int, cells: int) -> Tensor:
    """Keys' kernel with a = −1/2, where the grid ends renormalised over the cells there are."""
    r = (_places(side, cells)[:, None] - torch.arange(cells)).abs()
    near, far = 1.5 * r**3 - 2.5 * r**2 + 1, -0.5 * r**3 + 2.5 * r**2 - 4 * r + 2
    weights = torch.where(r <= 1, near, torch.where(r < 2, far, 0))
    return (weights / weights.sum(1, keepdim=True)).float()


def _places(side: int, cells: int) -> Tensor:
    """Centres of the places in units of cells."""
    return (torch.arange(side, dtype=torch.float64) + 0.5) * cells / side - 0.5
