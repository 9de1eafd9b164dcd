"""Rows that run through several panels, each with an axis of its own: dot, whisker and number."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from heatproof.figures.axes import Axis
from heatproof.figures.charts import LatticeChart, Panel, Spot
from heatproof.figures.numbers import interval, number, shortened
from heatproof.figures.svg.axes import top_axis
from heatproof.figures.svg.elements import CHARACTER, label_width, svg, tag
from heatproof.figures.svg.marks import dot_and_whisker, mark, row_background

ROW = 24.0
TOP = 50.0
BOTTOM = 8.0
GAP = 22.0  # between panels
WIDTH_FOR_PANELS = 960.0
MOST_WITH_INTERVALS = 4  # panels; with more there is no room for the intervals in figures


def draw_lattice(chart: LatticeChart) -> Markup:
    """Draw rows through several panels."""
    panels = chart.panels
    rows = chart.rows
    digits = chart.digits
    with_intervals = len(panels) <= MOST_WITH_INTERVALS
    axis_width = max(100.0, min(240.0, WIDTH_FOR_PANELS / len(panels) - 140))
    number_width = 40 + (4 + 5.3 * (2 * digits + 10)) * with_intervals
    start = 28 + label_width([row.label for row in rows], chart.longest)
    lefts = [start + i * (axis_width + number_width + GAP) for i in range(len(panels))]
    width = lefts[-1] + axis_width + number_width + 4
    bottom = TOP + ROW * len(rows)
    parts = panel_headings(panels, lefts, axis_width, number_width, TOP, bottom)
    for i, row in enumerate(rows):
        y = TOP + ROW * (i + 0.5)
        inside = [
            row_background(0, y - ROW / 2, width, ROW),
            tag("text", shortened(row.label, chart.longest), class_="name", x=8, y=y + 4),
        ]
        for panel, left, value in zip(panels, lefts, row.values, strict=True):
            right = left + axis_width
            if isinstance(value, str):
                note_x = right + (number_width if with_intervals else 38)
                inside.append(
                    tag("text", value, class_="note", x=note_x, y=y + 4, text_anchor="end")
                )
                continue
            spot = [
                tag(
                    "rect",
                    class_="row",
                    x=left - 8,
                    y=y - 12,
                    width=axis_width + number_width + 8,
                    height=24,
                ),
                *_spot(row.family, value, panel.axis, left, right, y, digits),
            ]
            if with_intervals:
                text = interval(value.value, value.low, value.high, digits)
                spot.append(tag("text", text, class_="span", x=right + 44, y=y + 4))
            inside.append(tag("g", *spot, data_tip=value.tip))
        parts.append(mark(row.family, *inside, method=row.label))
    return svg(width, bottom + BOTTOM, chart.title, *parts, kind="lattice")


def _spot(
    family: str, spot: Spot, axis: Axis, left: float, right: float, y: float, digits: int
) -> list[Markup]:
    text = number(spot.value, digits)
    return [
        *dot_and_whisker(family, spot.value, spot.low, spot.high, axis, left, right, y, 3.8),
        tag("text", text, class_="value", x=right + 38, y=y + 4, text_anchor="end"),
    ]


def panel_headings(
    panels: Sequence[Panel],
    lefts: Sequence[float],
    axis_width: float,
    number_width: float,
    top: float,
    bottom: float,
) -> list[Markup]:
    """Draw the title, the axis and the dashed line of each panel."""
    parts = []
    characters = int((axis_width + number_width) / CHARACTER)
    for panel, left in zip(panels, lefts, strict=True):
        right = left + axis_width
        title = shortened(panel.title, characters)
        parts.append(tag("text", title, class_="column", x=left, y=18))
        parts += top_axis(panel.axis, left, right, top, bottom)
        if panel.line is not None:
            x = panel.axis.position(panel.line, left, right)
            parts.append(tag("line", class_="random", x1=x, x2=x, y1=top, y2=bottom))
    return parts
