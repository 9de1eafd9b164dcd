"""Box plots in several panels."""

from __future__ import annotations

from markupsafe import Markup

from heatproof.figures.axes import Axis
from heatproof.figures.charts import Box, BoxChart
from heatproof.figures.numbers import number, shortened
from heatproof.figures.svg.elements import LONG, label_width, svg, tag
from heatproof.figures.svg.lattice import panel_headings
from heatproof.figures.svg.marks import mark, row_background

ROW = 19.0
TOP = 50.0
BOTTOM = 8.0
GAP = 26.0  # between panels
GROUP_GAP = 9.0  # between groups of rows
NUMBER_WIDTH = 36.0
WIDTH = 1110.0
LONGEST_LABEL = 12  # characters


def draw_boxes(chart: BoxChart) -> Markup:
    """Draw box plots with their means; rows of one group stand together under its name."""
    panels = chart.panels
    rows = chart.rows
    label_x = 16 + label_width([row.group for row in rows], LONG)
    start = label_x + 24 + label_width([row.label for row in rows], LONGEST_LABEL)
    room = (WIDTH - (start - 12)) / len(panels) - NUMBER_WIDTH - GAP
    axis_width = max(140.0, min(260.0, room))
    lefts = [start + i * (axis_width + NUMBER_WIDTH + GAP) for i in range(len(panels))]
    starts_group = [i == 0 or rows[i - 1].group != row.group for i, row in enumerate(rows)]
    tops = [TOP + ROW * i + GROUP_GAP * sum(starts_group[1 : i + 1]) for i in range(len(rows))]
    width = lefts[-1] + axis_width + NUMBER_WIDTH + 4
    bottom = tops[-1] + ROW
    parts = panel_headings(panels, lefts, axis_width, NUMBER_WIDTH, TOP, bottom)
    for row, is_first, top in zip(rows, starts_group, tops, strict=True):
        y = top + ROW / 2
        inside = [row_background(0, top, width, ROW)]
        if is_first:
            inside.append(tag("text", shortened(row.group, LONG), class_="name", x=8, y=y + 4))
        label = shortened(row.label, LONGEST_LABEL)
        inside.append(tag("text", label, class_="tick", x=label_x, y=y + 4))
        for panel, left, box in zip(panels, lefts, row.boxes, strict=True):
            inside.append(_box(box, panel.axis, left, left + axis_width, y))
        parts.append(mark(row.family, *inside, method=row.method))
    return svg(width, bottom + BOTTOM, chart.title, *parts, kind="boxes")


def _box(box: Box | str, axis: Axis, left: float, right: float, y: float) -> Markup:
    if isinstance(box, str):
        return tag("text", box, class_="note", x=left + 4, y=y + 4)
    start, end = (axis.position(v, left, right) for v in box.whiskers)
    low, median, high = (axis.position(v, left, right) for v in box.quartiles)
    mean = number(box.mean, 2)
    return tag(
        "g",
        tag("rect", class_="row", x=left - 8, y=y - 9, width=right - left + 44, height=18),
        tag("line", class_="whisker stem", x1=start, x2=end, y1=y, y2=y),
        tag("rect", class_="dot box", x=low, y=y - 5.5, width=high - low, height=11.0),
        tag("line", class_="whisker median", x1=median, x2=median, y1=y - 5.5, y2=y + 5.5),
        tag("text", mean, class_="value", x=right + 36, y=y + 4, text_anchor="end"),
        data_tip=box.tip,
    )
