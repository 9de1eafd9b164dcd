"""Gaussian filters and resizing."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field
from torch import Tensor


def _odd(size: int) -> int:
    if size % 2 == 0:
        raise ValueError("the filter size must be odd, so that the filter has a centre")
    return size


# The bound is far above any image, and below what exhausts memory.
Odd = Annotated[int, Field(ge=1, le=65535), AfterValidator(_odd)]


def scaled_odd(size: int, factor: float) -> int:
    """Return the odd number that is nearest to a size times a factor, at least 1."""
    return max(1, 2 * round((size * factor - 1) / 2) + 1)


def gaussian(size: int, sigma: float) -> Tensor:  # (size,)
    """Return a Gaussian kernel that sums to 1."""
    offsets = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    weights = torch.exp(-(offsets**2) / (2 * sigma**2))
    return (weights / weights.sum()).float()


def separable(x: Tensor, kernel: Tensor, padding: str) -> Tensor:
    """Filter rows and columns with the same kernel.

    The filter is a product with matrices that contain kernel and border; a convolution of single
    channels takes 2 to 9 times as long.

    Args:
        x: Images ``(B, C, H, W)``.
        kernel: Kernel ``(size,)`` of odd size.
        padding: Mode of ``torch.nn.functional.pad``; ``constant`` pads with zeros.

    Returns:
        Filtered images ``(B, C, H, W)``.
    """
    planes = x.shape[:2].numel()
    down = _filter_matrix(kernel, x.shape[2], padding).to(x).expand(planes, -1, -1)
    across = _filter_matrix(kernel, x.shape[3], padding).to(x).expand(planes, -1, -1)
    return torch.bmm(torch.bmm(down.mT, x.flatten(0, 1)), across).view(x.shape)


def _filter_matrix(kernel: Tensor, side: int, padding: str) -> Tensor:  # (from side, to side)
    half = len(kernel) // 2
    impulses = F.pad(torch.eye(side).to(kernel)[:, None], (half, half), padding)
    return F.conv1d(impulses, kernel[None, None])[:, 0]


def resize(maps: Tensor, height: int, width: int) -> Tensor:  # (B, h, w) -> (B, H, W)
    """Resize maps bilinearly; maps that already have the size are returned unchanged."""
    if maps.shape[-2:] == (height, width):
        return maps
    return F.interpolate(maps[:, None], (height, width), mode="bilinear", align_corners=False)[:, 0]
