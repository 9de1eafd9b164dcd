"""A ranking: one row per method with its mean and interval, best first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from heatproof.figures.svg.axes import Axis, top_axis
from heatproof.figures.svg.elements import label_width, number, shortened, svg, tag
from heatproof.figures.svg.marks import dot_and_whisker, mark, row_background

ROW = 24.0
TOP = 26.0
BOTTOM = 30.0


@dataclass(frozen=True)
class Mark:
    """One method in a ranking; ``note`` stands where there is no score, a rank of nan for none."""

    label: str
    family: str
    mean: float
    low: float
    high: float
    rank: float
    tip: str
    note: str = ""


def ranking(
    marks: Sequence[Mark],
    axis: Axis,
    random_score: float | None,
    title: str,
    room: float = 196,
    line: str = "random map",
) -> Markup:
    """Draw means and intervals of all methods, one row each.

    Args:
        marks: The methods, best first.
        axis: Axis of the scores.
        random_score: Score of a random map, drawn as a dashed line, or None if it is unknown.
        title: Title for screen readers.
        room: Width of the axis in px.
        line: What the dashed line is.
    """
    left = 36 + label_width([m.label for m in marks], shortest=11)
    right = left + room
    width = right + 52
    bottom = TOP + ROW * len(marks)
    parts = top_axis(axis, left, right, TOP, bottom)
    if random_score is not None:
        parts += _line(axis.position(random_score, left, right), left, right, bottom, line)
    for i, method in enumerate(marks):
        parts.append(_row(method, axis, left, right, width, TOP + ROW * (i + 0.5)))
    rows = [
        {"rank": m.rank, "method": m.label, "mean": m.mean, "low": m.low, "high": m.high}
        for m in marks
    ]
    return svg(width, bottom + BOTTOM, title, *parts, kind="ranking", rows=rows)


def _line(x: float, left: float, right: float, bottom: float, label: str) -> list[Markup]:
    label_x = min(max(x, left + 20), right - 30)
    return [
        tag("line", class_="random", x1=x, x2=x, y1=TOP, y2=bottom + 6),
        tag("text", label, class_="tick", x=label_x, y=bottom + 20, text_anchor="middle"),
    ]


def _row(method: Mark, axis: Axis, left: float, right: float, width: float, y: float) -> Markup:
    scored = math.isfinite(method.mean)
    rank = f"{method.rank:.0f}" if scored else "–"
    if scored and math.isnan(method.rank):
        rank = ""
    parts = [
        row_background(0, y - ROW / 2, width, ROW),
        tag("text", rank, class_="rank", x=20, y=y + 4, text_anchor="end"),
        tag("text", shortened(method.label), class_="name", x=28, y=y + 4),
    ]
    if scored:
        mean = number(method.mean)
        dot = dot_and_whisker(
            method.family, method.mean, method.low, method.high, axis, left, right, y
        )
        parts += [
            *dot,
            tag("text", mean, class_="value", x=width - 4, y=y + 4, text_anchor="end"),
        ]
    else:
        note = tag("text", method.note, class_="note", x=width - 4, y=y + 4, text_anchor="end")
        parts.append(note)
    return mark(method.family, *parts, method=method.label, tip=method.tip)
