"""One picture with images in rows and methods in columns: what `heatproof explain` draws."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from heatproof.report.pictures import heatmap, is_signed, photo

SIDE, GAP, TOP = 224, 12, 34


def panel(
    images: Sequence[Tensor], captions: Sequence[str], maps: Mapping[str, Tensor]
) -> Image.Image:
    """images: (3, H, W) uint8 each; maps: label -> (B, h, w). White is zero; every map has a scale of its own."""
    width = GAP + (1 + len(maps)) * (SIDE + GAP)
    height = TOP + len(images) * (SIDE + TOP)
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    for column, label in enumerate(maps, 1):
        _write(draw, label, GAP + column * (SIDE + GAP), 10)
    for row, (image, caption) in enumerate(zip(images, captions, strict=True)):
        top = TOP + row * (SIDE + TOP)
        pictures = [
            photo(image),
            *(
                heatmap(m[row], (image.shape[1], image.shape[2]), is_signed(m))
                for m in maps.values()
            ),
        ]
        for column, picture in enumerate(pictures):
            left = GAP + column * (SIDE + GAP)
            small = Image.open(io.BytesIO(picture)).convert("RGB")
            sheet.paste(
                small.resize(
                    (SIDE, SIDE),
                    Image.Resampling.NEAREST if small.width < SIDE else Image.Resampling.LANCZOS,
                ),
                (left, top),
            )
            draw.rectangle((left - 1, top - 1, left + SIDE, top + SIDE), outline="#d0d0d0")
        _write(draw, caption, GAP, top + SIDE + 8)
    return sheet


def _write(draw: ImageDraw.ImageDraw, text: str, left: int, top: int) -> None:
    font = ImageFont.load_default(15)
    while draw.textlength(text, font) > SIDE and len(text) > 4:
        text = text[:-2] + "…"
    draw.text((left, top), text, fill="#222222", font=font)
