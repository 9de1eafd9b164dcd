"""Images as a square grid of patches, numbered row by row."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from heatproof.errors import HeatproofError

MOST_POSSIBLE = 6  # numbers of patches in a message


def square_root(patches: int) -> int:
    """Return the number of patches per row of a square grid.

    Raises:
        HeatproofError: If ``patches`` is not a square number above 1; the message has the nearest.
    """
    side = math.isqrt(max(patches, 0))
    if side < 2 or side * side != patches:
        nearest = [n * n for n in (side, side + 1) if n > 1] or [4]
        raise HeatproofError(
            f"patches={patches} is not the square of a number above 1; the nearest: "
            f"{' or '.join(map(str, nearest))}"
        )
    return side


def grid_side(patches: int, height: int, width: int) -> int:
    """Return the number of patches per row.

    Raises:
        HeatproofError: If ``patches`` is not a square number, or the grid does not divide the
            image.
    """
    side = square_root(patches)
    if height % side or width % side:
        raise HeatproofError(
            f"a {side}×{side} grid does not divide an image of {height}×{width} px evenly; "
            f"{_possible(height, width, side)}"
        )
    return side


def _possible(height: int, width: int, side: int) -> str:
    """Return which numbers of patches divide an image, those nearest to what was asked for."""
    sides = [n for n in range(2, min(height, width) + 1) if not height % n and not width % n]
    if not sides:
        return f"no number of patches divides {height}×{width} px; choose another size of images"
    nearest = sorted(sorted(sides, key=lambda n: abs(n - side))[:MOST_POSSIBLE])
    return f"choose patches from {', '.join(str(n * n) for n in nearest)}"


def bands_of(height: int, bands: int) -> Tensor:  # (H,)
    """Return the band of each pixel row, for bands of equal height up to whole pixels."""
    return torch.arange(height) * bands // height


def patch_sums(maps: Tensor, patches: int = 16) -> Tensor:
    """Sum the attribution over the pixels of each patch.

    Args:
        maps: ``(B, H, W)``.
        patches: Number of patches P, a square number.

    Returns:
        Sums ``(B, P)`` of float64, patches row by row.

    Raises:
        HeatproofError: If ``patches`` is not a square number that divides the image.
    """
    return patch_view(maps.double(), grid_side(patches, *maps.shape[1:])).sum((2, 4)).flatten(1)


def patch_view(x: Tensor, side: int) -> Tensor:  # (…, H, W) -> (…, side, H / side, side, W / side)
    """View images as a grid of ``side`` × ``side`` patches, without copying."""
    return x.view(*x.shape[:-2], side, x.shape[-2] // side, side, x.shape[-1] // side)


@lru_cache(maxsize=8)
def patch_masks(patches: int, height: int, width: int) -> Tensor:  # (P, H, W) bool
    """Return one mask per patch, True for its pixels."""
    side = grid_side(patches, height, width)
    rows = torch.arange(height) // (height // side)
    columns = torch.arange(width) // (width // side)
    return (rows[:, None] * side + columns)[None] == torch.arange(patches)[:, None, None]
