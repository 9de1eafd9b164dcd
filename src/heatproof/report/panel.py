"""One picture with images in rows and methods in columns, as drawn by `heatproof explain`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from heatproof.figures.pictures import heatmap, is_signed, photo

SIDE = 224
GAP = 12
TOP = 34


def panel(
    images: Sequence[Tensor], captions: Sequence[str], maps: Mapping[str, Tensor]
) -> Image.Image:
    """Draw images and their maps; white is zero, and each map has its own scale.

    Args:
        images: Images ``(C, H, W)`` uint8, all of one size.
        captions: A text per image.
        maps: Maps ``(B, h, w)`` by label, with one map per image.
    """
    tile = _tile_size(*images[0].shape[1:])
    width = GAP + (1 + len(maps)) * (tile[0] + GAP)
    height = TOP + len(images) * (tile[1] + TOP)
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    for column, label in enumerate(maps, 1):
        _write(draw, label, GAP + column * (tile[0] + GAP), 10, tile[0])
    for row, (image, caption) in enumerate(zip(images, captions, strict=True)):
        top = TOP + row * (tile[1] + TOP)
        size = (image.shape[1], image.shape[2])
        heatmaps = [heatmap(m[row], size, is_signed(m)) for m in maps.values()]
        for column, picture in enumerate([photo(image, exact=True), *heatmaps]):
            left = GAP + column * (tile[0] + GAP)
            sheet.paste(_scaled(picture, tile), (left, top))
            frame = (left - 1, top - 1, left + tile[0], top + tile[1])
            draw.rectangle(frame, outline="#d0d0d0")
        _write(draw, caption, GAP, top + tile[1] + 8, tile[0])
    return sheet


def _tile_size(height: int, width: int) -> tuple[int, int]:
    """Return width and height of a tile: of the image's shape, the shorter side as for a square."""
    shorter = min(height, width)
    return round(SIDE * width / shorter), round(SIDE * height / shorter)


def _scaled(image: bytes, tile: tuple[int, int]) -> Image.Image:
    """Scale a picture to the size of a tile; small ones keep their pixels."""
    picture = Image.open(io.BytesIO(image)).convert("RGB")
    small = picture.width < tile[0]
    resampling = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
    return picture.resize(tile, resampling)


def _write(draw: ImageDraw.ImageDraw, text: str, left: int, top: int, width: int) -> None:
    font = ImageFont.load_default(15)
    while draw.textlength(text, font) > width and len(text) > 4:
        text = text[:-2] + "…"
    draw.text((left, top), text, fill="#222222", font=font)
