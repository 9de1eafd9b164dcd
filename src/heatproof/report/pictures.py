"""From tensors to PNG files."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from heatproof.report.palette import DIVERGING, SEQUENTIAL, colour_map
from heatproof.tensor.filters import resize

PERCENTILE = 0.995  # of |map|: what is beyond has the end's colour


def photo(image: Tensor) -> bytes:  # (C, H, W) uint8
    pixels = image.permute(1, 2, 0).numpy()
    return _png(Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0]))


def heatmap(values: Tensor, size: tuple[int, int], signed: bool, scale: float | None = None) -> bytes:  # (h, w)
    """Resized as the protocols see it; white is zero, symmetric where there are signs. Without a scale, each map has its own."""
    large = resized(values, size).numpy()
    scale = scale or float(np.quantile(np.abs(large), PERCENTILE)) or float(np.abs(large).max())
    shares = np.clip(large / scale, -1, 1) if scale > 0 else np.zeros_like(large)
    indices = np.round(127 + 127 * shares if signed else 255 * shares.clip(0)).astype(np.uint8)
    picture = Image.fromarray(indices)
    picture.putpalette(colour_map(DIVERGING if signed else SEQUENTIAL, 255 if signed else 256).tobytes())
    return _png(picture)


def resized(values: Tensor, size: tuple[int, int]) -> Tensor:  # (h, w) -> (H, W)
    return resize(values.float()[None], *size)[0]


def scale_bar(signed: bool) -> bytes:
    """One row of the colour map, from its low to its high end."""
    return _png(Image.fromarray(colour_map(DIVERGING if signed else SEQUENTIAL, 240)[None].repeat(2, 0)))


def is_signed(maps: Tensor) -> bool:
    """Whether there is anything below zero; an absolute value of a signed map is not signed."""
    return bool((torch.nan_to_num(maps.float()) < 0).any())


def _png(picture: Image.Image) -> bytes:
    sink = io.BytesIO()
    picture.save(sink, "PNG", optimize=True)
    return sink.getvalue()
