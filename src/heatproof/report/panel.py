"""One picture with images in rows and methods in columns, as drawn by `heatproof explain`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from heatproof.report.pictures import heatmap, is_signed, photo

SIDE = 224
GAP = 12
TOP = 34


def panel(
    images: Sequence[Tensor], captions: Sequence[str], maps: Mapping[str, Tensor]
) -> Image.Image:
    """Draw images and their maps; white is zero, and each map has its own scale.

    Args:
        images: Images ``(3, H, W)`` uint8.
        captions: A text per image.
        maps: Maps ``(B, h, w)`` by label, with one map per image.
    """
    width = GAP + (1 + len(maps)) * (SIDE + GAP)
    height = TOP + len(images) * (SIDE + TOP)
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    for column, label in enumerate(maps, 1):
        _write(draw, label, GAP + column * (SIDE + GAP), 10)
    for row, (image, caption) in enumerate(zip(images, captions, strict=True)):
        top = TOP + row * (SIDE + TOP)
        size = (image.shape[1], image.shape[2])
        heatmaps = [heatmap(m[row], size, is_signed(m)) for m in maps.values()]
        for column, picture in enumerate([photo(image), *heatmaps]):
            left = GAP + column * (SIDE + GAP)
            sheet.paste(_scaled(picture), (left, top))
            draw.rectangle((left - 1, top - 1, left + SIDE, top + SIDE), outline="#d0d0d0")
        _write(draw, caption, GAP, top + SIDE + 8)
    return sheet


def _scaled(png: bytes) -> Image.Image:
    """Scale a picture to the side of a tile; small ones keep their pixels."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    small = picture.width < SIDE
    resampling = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
    return picture.resize((SIDE, SIDE), resampling)


def _write(draw: ImageDraw.ImageDraw, text: str, left: int, top: int) -> None:
    font = ImageFont.load_default(15)
    while draw.textlength(text, font) > SIDE and len(text) > 4:
        text = text[:-2] + "…"
    draw.text((left, top), text, fill="#222222", font=font)
