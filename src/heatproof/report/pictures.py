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
SHADES = 32  # from white to the end of a scale
COLOURS, THUMBNAIL = 96, 64  # of a small photo, and the least px of its side


def photo(image: Tensor, small: bool = False) -> bytes:  # (C, H, W) uint8
    """small: a thumbnail in few colours."""
    pixels = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    return _png(picture.reduce(_times(picture.height)).quantize(COLOURS) if small else picture)


def heatmap(
    values: Tensor,
    size: tuple[int, int],
    signed: bool,
    scale: float | None = None,
    small: bool = False,
) -> bytes:  # (h, w)
    """Resized as the protocols see it; white is zero, symmetric where there are signs. Without a scale, each map has its own.

    small: a thumbnail, each of its pixels the mean of some.
    """
    large = resized(values, size).numpy()
    scale = scale or float(np.quantile(np.abs(large), PERCENTILE)) or float(np.abs(large).max())
    large = (
        torch.nn.functional.avg_pool2d(torch.from_numpy(large)[None], _times(size[0]))[0].numpy()
        if small
        else large
    )
    shares = np.clip(large / scale, -1, 1) if scale > 0 else np.zeros_like(large)
    shares = np.round(shares * SHADES) / SHADES  # what no eye can tell apart is a third of a file
    indices = np.round(127 + 127 * shares if signed else 255 * shares.clip(0)).astype(np.uint8)
    picture = Image.fromarray(indices)
    picture.putpalette(
        colour_map(DIVERGING if signed else SEQUENTIAL, 255 if signed else 256).tobytes()
    )
    return _png(picture)


def resized(values: Tensor, size: tuple[int, int]) -> Tensor:  # (h, w) -> (H, W)
    return resize(values.float()[None], *size)[0]


def scale_bar(signed: bool) -> bytes:
    """One row of the colour map, from its low to its high end."""
    return _png(
        Image.fromarray(colour_map(DIVERGING if signed else SEQUENTIAL, 240)[None].repeat(2, 0))
    )


def is_signed(maps: Tensor) -> bool:
    """Whether there is anything below zero; an absolute value of a signed map is not signed."""
    return bool((torch.nan_to_num(maps.float()) < 0).any())


def _times(side: int) -> int:
    """How often a thumbnail goes into a side."""
    return max(1, side // THUMBNAIL)


def _png(picture: Image.Image) -> bytes:
    sink = io.BytesIO()
    picture.save(sink, "PNG", optimize=True)
    return sink.getvalue()
