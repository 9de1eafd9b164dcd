"""Tensors as WebP files: maps without loss, photos with little."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from heatproof.figures.palette import DIVERGING, SEQUENTIAL, colour_map
from heatproof.tensor.filters import resize

PERCENTILE = 0.995  # of |map|: larger values have the colour at the end of the scale
SHADES = 32  # from white to the end of a scale
THUMBNAIL = 64  # px: least side of a thumbnail
LOSSLESS_BELOW = 160  # px: smaller images are drawn pixel by pixel, so that none may change
QUALITY = 82  # of larger photos
ZERO = 128  # the grey value of zero in a signed map
STEPS = 127  # grey values from zero to the end of the scale of a signed map


def photo(image: Tensor, small: bool = False, exact: bool = False) -> bytes:
    """Return an image as WebP: one channel is grey, of two their mean, of more the first three.

    Args:
        image: ``(C, H, W)`` uint8.
        small: Whether to make a thumbnail.
        exact: Whether no pixel of a large image may change.
    """
    picture = Image.fromarray(pixels(image))
    if small:
        return _lossy(picture.reduce(_reduction(picture.height)))
    if exact or max(picture.size) < LOSSLESS_BELOW:
        return _lossless(picture)
    return _lossy(picture)


def pixels(image: Tensor) -> np.ndarray:
    """Return what a picture of an image shows: ``(H, W, 3)``, or ``(H, W)`` of fewer channels."""
    if len(image) >= 3:
        return image[:3].permute(1, 2, 0).numpy()
    return image.float().mean(0).round().byte().numpy()


def grey_map(values: Tensor, signed: bool) -> tuple[bytes, float]:
    """Return a map as grey values of 8 bits, without loss; larger values have the last grey.

    A value is ``(grey - 128) / 127 * end`` for a signed map, and ``grey / 255 * end`` for others.

    Args:
        values: The map, of shape ``(h, w)``.
        signed: Whether values may be negative.

    Returns:
        The WebP file, and the value at the end of the scale.
    """
    array = values.float().numpy()
    end = scale_end(array)
    relative = np.clip(array / end, -1, 1) if end > 0 else np.zeros_like(array)
    grey = ZERO + np.round(STEPS * relative) if signed else np.round(255 * relative.clip(0))
    return _lossless(Image.fromarray(grey.astype(np.uint8))), end


def scale_end(values: np.ndarray) -> float:
    """Return the value at the end of a map's scale, which few pixels exceed."""
    magnitudes = np.abs(values)
    return float(np.quantile(magnitudes, PERCENTILE)) or float(magnitudes.max())


def heatmap(
    values: Tensor,
    size: tuple[int, int],
    signed: bool,
    scale: float | None = None,
    small: bool = False,
) -> bytes:
    """Return a map as WebP, resized as the protocols see it; white is zero.

    Args:
        values: The map, of shape ``(h, w)``.
        size: Height and width of the image.
        signed: Whether the colours are symmetric about zero.
        scale: The value at the end of the scale; by default each map has its own.
        small: Whether to make a thumbnail, whose pixels are means.
    """
    large = resized(values, size).numpy()
    scale = scale or scale_end(large)
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
    return _lossless(Image.fromarray(palette[indices]))


def resized(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize a map ``(h, w)`` to the size of the image, ``(H, W)``."""
    return resize(values.float()[None], *size)[0]


def scale_bar(signed: bool) -> bytes:
    """Return a colour map from its low to its high end, as WebP."""
    colours = colour_map(DIVERGING if signed else SEQUENTIAL, 240)
    return _lossless(Image.fromarray(colours[None].repeat(2, 0)))


def is_signed(maps: Tensor) -> bool:
    """Return whether any value is below zero."""
    return bool((torch.nan_to_num(maps.float()) < 0).any())


def _reduction(side: int) -> int:
    """Return how many pixels of an image become one of its thumbnail."""
    return max(1, side // THUMBNAIL)


def _lossless(picture: Image.Image) -> bytes:
    sink = io.BytesIO()
    picture.save(sink, "WEBP", lossless=True, method=2, quality=20)  # more effort saves nothing
    return sink.getvalue()


def _lossy(picture: Image.Image) -> bytes:
    sink = io.BytesIO()
    picture.save(sink, "WEBP", quality=QUALITY)
    return sink.getvalue()
