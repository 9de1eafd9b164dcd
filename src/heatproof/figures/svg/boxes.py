"""Box plots in several panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from heatproof.figures.svg.axes import Axis
from heatproof.figures.svg.elements import LONG, label_width, number, shortened, svg, tag
from heatproof.figures.svg.lattice import Panel, panel_headings
from heatproof.figures.svg.marks import mark, row_background
from heatproof.text import counted

ROW = 19.0
TOP = 50.0
BOTTOM = 8.0
GAP = 26.0  # between panels
GROUP_GAP = 9.0  # between groups of rows
NUMBER_WIDTH = 36.0
WIDTH = 1110.0
LONGEST_LABEL = 12  # characters
WHISKER = 1.5  # times the length of the box


@dataclass(frozen=True)
class Box:
    """The quartiles, with whiskers to the last values within 1.5 box lengths of them."""

    whiskers: tuple[float, float]
    quartiles: tuple[float, float, float]
    mean: float
    tip: str

    @classmethod
    def of(cls, values: Sequence[float], label: str) -> Box:
        """Summarize values; ``label`` is the first line of the tooltip."""
        array = np.asarray(values, dtype=np.float64)
        low, median, high = (float(q) for q in np.quantile(array, [0.25, 0.5, 0.75]))
        reach = WHISKER * (high - low)
        inside = array[(array >= low - reach) & (array <= high + reach)]
        mean = float(array.mean())
        lines = [
            label,
            f"mean {number(mean)}",
            f"median {number(median)}",
            f"middle half {number(low)} to {number(high)}",
            counted(len(array), "map"),
        ]
        whiskers = (float(inside.min()), float(inside.max()))
        return cls(whiskers, (low, median, high), mean, "\n".join(lines))


@dataclass(frozen=True)
class BoxRow:
    """A row of box plots, one per panel; a word stands where there is no number."""

    group: str
    label: str
    method: str
    family: str
    boxes: tuple[Box | str, ...]


def boxes(panels: Sequence[Panel], rows: Sequence[BoxRow], title: str) -> Markup:
    """Draw box plots with their means; rows of one group stand together under its name.

    Args:
        panels: The columns.
        rows: The rows, those of a group one after the other.
        title: Title for screen readers.
    """
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
    numbers = [
        {"group": row.group, "row": row.label, "panel": panel.title} | _numbers(box)
        for row in rows
        for panel, box in zip(panels, row.boxes, strict=True)
    ]
    return svg(width, bottom + BOTTOM, title, *parts, kind="boxes", rows=numbers)


def _numbers(box: Box | str) -> dict[str, object]:
    columns = ("low whisker", "lower quartile", "median", "upper quartile", "high whisker", "mean")
    if isinstance(box, str):
        return dict.fromkeys(columns) | {"note": box}
    low, high = box.whiskers
    return dict(zip(columns, (low, *box.quartiles, high, box.mean), strict=True)) | {"note": ""}


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
