"""Gaussian filters and resizing."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field
from torch import Tensor


def _odd(size: int) -> int:
    if size % 2 == 0:
        raise ValueError("a filter has a middle: the size must be odd")
    return size


Odd = Annotated[int, Field(ge=1), AfterValidator(_odd)]


def gaussian(size: int, sigma: float) -> Tensor:  # (size,), sums to 1
    offsets = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    weights = torch.exp(-(offsets**2) / (2 * sigma**2))
    return (weights / weights.sum()).float()


def separable(x: Tensor, kernel: Tensor, padding: str) -> Tensor:  # (B, C, H, W) -> same
    """Filter rows and columns with one odd kernel; `padding` as in torch.nn.functional.pad (`constant` is zero).

    As products with matrices that hold kernel and border: a convolution of single channels takes 2 to 9 times as long.
    """
    down, across = (
        _filter(kernel, side, padding).to(x).expand(x.shape[:2].numel(), -1, -1)
        for side in x.shape[2:]
    )
    return torch.bmm(torch.bmm(down.mT, x.flatten(0, 1)), across).view(x.shape)


def _filter(
    kernel: Tensor, side: int, padding: str
) -> Tensor:  # (side, side): from a pixel, to a pixel
    half = len(kernel) // 2
    return F.conv1d(
        F.pad(torch.eye(side).to(kernel)[:, None], (half, half), padding), kernel[None, None]
    )[:, 0]


def resize(maps: Tensor, height: int, width: int) -> Tensor:  # (B, h, w) -> (B, H, W)
    if maps.shape[-2:] == (height, width):
        return maps
    return F.interpolate(maps[:, None], (height, width), mode="bilinear", align_corners=False)[:, 0]
