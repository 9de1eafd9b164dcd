"""Colours of families and of heat maps, safe for the common kinds of colour blindness."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np


class Family(NamedTuple):
    """The colours of a family of methods, for light and dark pages."""

    light: str
    dark: str
    description: str


FAMILIES = {
    "gradient": Family("#0067a8", "#62b0ee", "gradients and their integrals"),
    "cam": Family("#cf5200", "#ff9a57", "class activation maps"),
    "perturbation": Family("#00875f", "#4fd0a3", "perturbations of the image"),
    "relevance": Family("#9a6a00", "#e6b955", "backward relevance propagation"),
    "attention": Family("#2c8fb5", "#93dcf7", "attention weights"),
    "intrinsic": Family("#3b3950", "#d9d6ea", "built into the model"),
    "yours": Family("#8d2a8a", "#e295dd", "defined by you"),
    "control": Family("#6b6a70", "#a9a8b0", "never look at the model; methods should score better"),
    "other": Family("#4b5563", "#c0c7d2", "other"),
}


def family_class(family: str) -> str:
    """Return the CSS class of a family, from a fixed set: text from a run never becomes one."""
    return f"f-{family if family in FAMILIES else 'other'}"


DIVERGING = ("#06306e", "#2f79b9", "#a6cde4", "#ffffff", "#f7b799", "#d2493c", "#720a1e")  # −, 0, +
SEQUENTIAL = ("#ffffff", "#fde6ad", "#fbb05a", "#ec6a31", "#b51d2b", "#4e0722")  # 0, +


@cache
def colour_map(anchors: tuple[str, ...], steps: int = 256) -> np.ndarray:  # (steps, 3) uint8
    """Interpolate linearly between colours."""
    rgb = np.array([[int(a[i : i + 2], 16) for i in (1, 3, 5)] for a in anchors], dtype=np.float64)
    positions = np.linspace(0, len(anchors) - 1, steps)
    channels = [np.interp(positions, np.arange(len(anchors)), rgb[:, c]) for c in range(3)]
    colours = np.stack(channels, 1).round().astype(np.uint8)
    colours.setflags(write=False)
    return colours


def diverging_colour(value: float, scale: float) -> str:
    """Return the colour of a value on a scale from ``-scale`` to ``scale``; nan is white."""
    position = 0.5
    if scale > 0 and value == value:
        position += 0.5 * max(-1.0, min(1.0, value / scale))
    red, green, blue = colour_map(DIVERGING, 257)[round(position * 256)]
    return f"#{red:02x}{green:02x}{blue:02x}"


def colour_tables() -> dict[str, tuple[str, ...]]:
    """Return the red, green and blue of both colour maps, as SVG filters take them."""
    tables = {}
    for name, anchors in (("signed", DIVERGING), ("unsigned", SEQUENTIAL)):
        channels: list[list[int]] = colour_map(anchors, len(anchors)).T.tolist()
        tables[name] = tuple(
            " ".join(f"{value / 255:.4f}" for value in channel) for channel in channels
        )
    return tables
