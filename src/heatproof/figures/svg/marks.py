"""The mark of one method in a figure: its symbol, its interval and its group."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from heatproof.figures.axes import Axis
from heatproof.figures.palette import family_class
from heatproof.figures.svg.elements import tag


def symbol(family: str, x: float, y: float, size: float = 4.6) -> Markup:
    """Draw a dot; controls have a hollow one and user-defined methods a diamond."""
    if family == "yours":
        r = size * 1.3
        corners = ((x, y - r), (x + r, y), (x, y + r), (x - r, y))
        path = "L".join(f"{corner_x:.1f} {corner_y:.1f}" for corner_x, corner_y in corners)
        return tag("path", class_="dot", d=f"M{path}Z")
    if family == "control":
        return tag("circle", class_="dot hollow", cx=x, cy=y, r=size - 0.5)
    return tag("circle", class_="dot", cx=x, cy=y, r=size)


def dot_and_whisker(
    family: str,
    mean: float,
    low: float,
    high: float,
    axis: Axis,
    left: float,
    right: float,
    y: float,
    size: float = 4.6,
) -> list[Markup]:
    """Draw a mean and its interval on a horizontal axis from ``left`` to ``right``."""
    if not math.isfinite(low):  # a single sample has no interval
        low = high = mean
    start = axis.position(low, left, right)
    end = axis.position(high, left, right)
    return [
        tag("line", class_="whisker", x1=start, x2=end, y1=y, y2=y),
        symbol(family, axis.position(mean, left, right), y, size),
    ]


def inline_interval(
    family: str, mean: float, low: float, high: float, axis: Axis, random: float | None = None
) -> Markup:
    """Draw a mean and its interval in the line of a table, which has the numbers as well."""
    width = 132.0
    height = 16.0
    left = 7.0
    right = width - left
    middle = height / 2
    parts = [tag("line", class_="grid", x1=left, x2=right, y1=middle, y2=middle)]
    if random is not None:
        x = axis.position(random, left, right)
        parts.append(tag("line", class_="random", x1=x, x2=x, y1=0, y2=height))
    parts += dot_and_whisker(family, mean, low, high, axis, left, right, middle, 4.2)
    return tag(
        "svg",
        *parts,
        class_=f"chart inline {family_class(family)}",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        aria_hidden="true",
    )


def mark(family: str, *children: str, method: str | None = None, tip: str | None = None) -> Markup:
    """Group what belongs to a method: it has the family's colour, and lights up on hover."""
    return tag(
        "g",
        *children,
        class_=f"mark {family_class(family)}",
        data_method=method,
        data_tip=tip,
    )


def row_background(x: float, y: float, width: float, height: float) -> Markup:
    """Draw the area that lights up when a row is pointed at."""
    return tag("rect", class_="row", x=x, y=y, width=width, height=height, rx=4)


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Push sorted positions apart until they are at least ``gap`` from each other.

    Args:
        positions: Positions in ascending order.
        gap: Least distance of two neighbours.
        low: Least position of the first.
        high: Largest position of the last, as far as there is room.
    """
    moved: list[float] = []
    for position in positions:
        least = moved[-1] + gap if moved else low
        moved.append(max(position, least))
    limit = max(high, low + gap * (len(moved) - 1))
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], limit)
        limit = moved[i] - gap
    return moved
