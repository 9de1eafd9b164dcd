"""Images as a square grid of patches, numbered row by row."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from heatproof.errors import HeatproofError


def grid_side(patches: int, height: int, width: int) -> int:
    """How many patches stand in a row; an error where the grid does not divide the image."""
    side = math.isqrt(max(patches, 0))
    if side < 2 or side * side != patches:
        raise HeatproofError(
            f"patches={patches} is not the square of a number above 1; use 4, 16 or 64"
        )
    if height % side or width % side:
        raise HeatproofError(
            f"a {side}×{side} grid does not divide an image of {height}×{width} px evenly; choose other patches"
        )
    return side


def bands_of(height: int, bands: int) -> Tensor:  # (H,)
    """The band that each row of pixels lies in, of so many of the same height, or as nearly as whole pixels allow."""
    return torch.arange(height) * bands // height


def patch_sums(maps: Tensor, patches: int = 16) -> Tensor:  # (B, H, W) -> (B, P) float64
    """Attribution per patch: the sum over its pixels, in double precision."""
    return patch_view(maps.double(), grid_side(patches, *maps.shape[1:])).sum((2, 4)).flatten(1)


def patch_view(
    x: Tensor, side: int
) -> Tensor:  # (…, H, W) -> (…, side, H / side, side, W / side), the same memory
    return x.view(*x.shape[:-2], side, x.shape[-2] // side, side, x.shape[-1] // side)


@lru_cache(maxsize=8)
def patch_masks(patches: int, height: int, width: int) -> Tensor:  # (P, H, W) bool
    side = grid_side(patches, height, width)
    rows, columns = torch.arange(height) // (height // side), torch.arange(width) // (width // side)
    return (rows[:, None] * side + columns)[None] == torch.arange(patches)[:, None, None]
