"""A ranking: one row per method with its mean and interval, best first."""

from __future__ import annotations

import math

from markupsafe import Markup

from heatproof.figures.axes import Axis
from heatproof.figures.charts import Mark, RankingChart
from heatproof.figures.numbers import number, shortened
from heatproof.figures.svg.axes import top_axis
from heatproof.figures.svg.elements import label_width, svg, tag
from heatproof.figures.svg.marks import dot_and_whisker, mark, row_background

ROW = 24.0
TOP = 26.0
BOTTOM = 30.0


def draw_ranking(chart: RankingChart) -> Markup:
    """Draw means and intervals of all methods, one row each."""
    marks = chart.marks
    axis = chart.axis
    left = 36 + label_width([m.label for m in marks], shortest=11)
    right = left + chart.room
    width = right + 52
    bottom = TOP + ROW * len(marks)
    parts = top_axis(axis, left, right, TOP, bottom)
    if chart.line is not None:
        x = axis.position(chart.line, left, right)
        parts += _line(x, left, right, bottom, chart.line_label)
    any_rank = any(math.isfinite(m.rank) for m in marks)
    for i, method in enumerate(marks):
        rank = f"{method.rank:.0f}" if math.isfinite(method.rank) else "–"
        if not any_rank and math.isfinite(method.mean):  # differences, which have none
            rank = ""
        parts.append(_row(method, rank, axis, left, right, width, TOP + ROW * (i + 0.5)))
    return svg(width, bottom + BOTTOM, chart.title, *parts, kind="ranking")


def _line(x: float, left: float, right: float, bottom: float, label: str) -> list[Markup]:
    label_x = min(max(x, left + 20), right - 30)
    return [
        tag("line", class_="random", x1=x, x2=x, y1=TOP, y2=bottom + 6),
        tag("text", label, class_="tick", x=label_x, y=bottom + 20, text_anchor="middle"),
    ]


def _row(
    method: Mark, rank: str, axis: Axis, left: float, right: float, width: float, y: float
) -> Markup:
    scored = math.isfinite(method.mean)
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
