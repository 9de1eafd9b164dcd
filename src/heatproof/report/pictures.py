"""Tensors as PNG files."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from heatproof.report.palette import DIVERGING, SEQUENTIAL, colour_map
from heatproof.tensor.filters import resize

PERCENTILE = 0.995  # of |map|: larger values have the colour at the end of the scale
SHADES = 32  # from white to the end of a scale
THUMBNAIL_COLOURS = 96
THUMBNAIL = 64  # px: least side of a thumbnail


def photo(image: Tensor, small: bool = False) -> bytes:
    """Return an image as PNG: one channel is grey, of two their mean, of more the first three.

    Args:
        image: ``(C, H, W)`` uint8.
        small: Whether to make a thumbnail in few colours.
    """
    visible = image[:3] if len(image) >= 3 else image.float().mean(0, keepdim=True).round().byte()
    pixels = visible.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    if small:
        picture = picture.reduce(_reduction(picture.height)).quantize(THUMBNAIL_COLOURS)
    return _png(picture)


def heatmap(
    values: Tensor,
    size: tuple[int, int],
    signed: bool,
    scale: float | None = None,
    small: bool = False,
) -> bytes:
    """Return a map as PNG, resized as the protocols see it; white is zero.

    Args:
        values: The map, of shape ``(h, w)``.
        size: Height and width of the image.
        signed: Whether the colours are symmetric about zero.
        scale: The value at the end of the scale; by default each map has its own.
        small: Whether to make a thumbnail, whose pixels are means.
    """
    large = resized(values, size).numpy()
    scale = scale or float(np.quantile(np.abs(large), PERCENTILE)) or float(np.abs(large).max())
    if small:
        pooled = torch.nn.functional.avg_pool2d(torch.from_numpy(large)[None], _reduction(size[0]))
        large = pooled[0].numpy()
    relative = np.clip(large / scale, -1, 1) if scale > 0 else np.zeros_like(large)
    relative = np.round(relative * SHADES) / SHADES  # makes files three times smaller
    if signed:
        indices = np.round(127 + 127 * relative).astype(np.uint8)
        palette = colour_map(DIVERGING, 255)
    else:
        indices = np.round(255 * relative.clip(0)).astype(np.uint8)
        palette = colour_map(SEQUENTIAL, 256)
    picture = Image.fromarray(indices)
    picture.putpalette(palette.tobytes())
    return _png(picture)


def resized(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize a map ``(h, w)`` to the size of the image, ``(H, W)``."""
    return resize(values.float()[None], *size)[0]


def scale_bar(signed: bool) -> bytes:
    """Return a colour map from its low to its high end, as PNG."""
    colours = colour_map(DIVERGING if signed else SEQUENTIAL, 240)
    return _png(Image.fromarray(colours[None].repeat(2, 0)))


def is_signed(maps: Tensor) -> bool:
    """Return whether any value is below zero."""
    return bool((torch.nan_to_num(maps.float()) < 0).any())


def _reduction(side: int) -> int:
    """Return how many pixels of an image become one of its thumbnail."""
    return max(1, side // THUMBNAIL)


def _png(picture: Image.Image) -> bytes:
    sink = io.BytesIO()
    picture.save(sink, "PNG", optimize=True)
    return sink.getvalue()
