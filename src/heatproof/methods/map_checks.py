"""Checks of what a method returned: is it a map, of which shape, and is it finite?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.methods.base import REDUCTIONS
from heatproof.methods.expression import Expression


class MapError(HeatproofError):
    """A method returned something that is not a map, or changed its input."""


def as_maps(raw: Any, x: Tensor) -> Any:
    """Convert what a user's method returned to a tensor, with channels first.

    Args:
        raw: A tensor or array ``(B, h, w)``, ``(B, C, h, w)`` or ``(B, H, W, C)``.
        x: The images that are explained, ``(B, C, H, W)``.

    Returns:
        A tensor ``(B, h, w)`` or ``(B, C, h, w)``; other things unchanged.

    Raises:
        HeatproofError: If the array has no numbers, or the position of its channels is ambiguous.
    """
    if isinstance(raw, np.ndarray | np.generic):
        if raw.dtype.kind not in "fiub":
            raise HeatproofError(f"a map has real numbers; got an array of {raw.dtype}")
        raw = torch.from_numpy(np.ascontiguousarray(raw))
    if not isinstance(raw, Tensor):
        return raw
    raw = raw.detach().to(x.device)
    if raw.ndim != 4 or raw.shape[2:] == x.shape[2:]:
        return raw
    channels, height, width = x.shape[1:]
    has_last = raw.shape[3] in (1, channels) and raw.shape[1] not in (1, channels)
    if has_last and raw.shape[1:3] == x.shape[2:]:
        return raw.permute(0, 3, 1, 2)
    if has_last and raw.shape[1] * width == raw.shape[2] * height:
        raise HeatproofError(
            f"it is not clear which dimension of a map of shape {tuple(raw.shape)} has the "
            "channels; return (B, C, h, w): maps.permute(0, 3, 1, 2)"
        )
    return raw


def check_map(raw: object, h: Tensor, expression: Expression) -> Tensor:
    """Check what a method returned, and reduce its channels."""
    if not isinstance(raw, Tensor):
        raise MapError(
            f"{expression.label} returned {type(raw).__name__}; "
            "a method returns a tensor (B, C, h, w) or (B, h, w)"
        )
    batch, height, width = len(h), *h.shape[2:]
    fits = (
        raw.ndim in (3, 4)
        and len(raw) == batch
        and raw.shape[-1] <= width
        and raw.shape[-2] <= height
        and raw.numel()
    )
    if not fits:
        raise MapError(
            f"{expression.label} returned shape {tuple(raw.shape)}; "
            f"expected ({batch}, C, h, w) or ({batch}, h, w) with h ≤ {height} and w ≤ {width}"
        )
    if raw.is_complex():
        raise MapError(f"{expression.label} returned complex numbers; a map is real")
    raw = raw.detach().float()
    return REDUCTIONS[expression.arguments["reduce"]](raw) if raw.ndim == 4 else raw


def finite(maps: Tensor) -> Tensor:  # (B, h, w) -> (B,) bool
    """Return which maps are finite everywhere."""
    low, high = ends(maps)
    return low.isfinite() & high.isfinite()


def ends(maps: Tensor) -> tuple[Tensor, Tensor]:  # (B, h, w) -> (B,), (B,)
    """Return the smallest and the largest value of each map; both are nan if any value is.

    In two passes, because ``aminmax`` takes four times as long.
    """
    flat = maps.flatten(1)
    return flat.amin(1), flat.amax(1)
