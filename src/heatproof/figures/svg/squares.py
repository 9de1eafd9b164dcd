"""Numbers as coloured squares: patches of an image, grid cells, correlations; and overlays."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from heatproof.figures.charts import AgreementChart, GridChart, GridFractions, MatrixChart
from heatproof.figures.numbers import interval, number, shortened
from heatproof.figures.palette import diverging_colour
from heatproof.figures.svg.elements import LONG, label_width, overlay, svg, tag
from heatproof.figures.svg.marks import mark

DARK_ABOVE = 0.6  # of the scale: numbers are white there
PATCH_GRID = 160.0  # px
MOST_WITH_NUMBERS = 5  # patches in a row
GRID = 56.0  # px: a grid of images
GRID_GAP = 9.0
GROUP_GAP = 20.0
LEAST_WITH_NUMBER = 28  # px: a grid cell
MATRIX_SQUARE = 32.0
LONGEST_IN_MATRIX = LONG + 10
CELL = (108.0, 50.0)  # px: a correlation with its interval
LONGEST_ABOVE = 14  # characters above such a column


def _square(
    x: float,
    y: float,
    side: float,
    value: float,
    scale: float,
    tip: str,
    digits: int | None = None,
    small: bool = False,
    twin: str | None = None,
) -> list[Markup]:
    """Draw a square in the diverging colours; its number is written if ``digits`` is given."""
    parts = [
        tag(
            "rect",
            class_="patch",
            x=x,
            y=y,
            width=side,
            height=side,
            fill=diverging_colour(value, scale),
            data_tip=tip,
            data_twin=twin,
        )
    ]
    if digits is not None:
        classes = ["in-patch"]
        if small:
            classes.append("small")
        if scale > 0 and abs(value) > DARK_ABOVE * scale:
            classes.append("on-dark")
        parts.append(
            tag(
                "text",
                number(value, digits),
                class_=" ".join(classes),
                x=x + side / 2,
                y=y + side / 2 + 4,
                text_anchor="middle",
            )
        )
    return parts


def patch_grid(values: Sequence[float], scale: float, title: str) -> Markup:
    """Draw one number per patch of an image; written out where there is room.

    Args:
        values: Numbers of a square grid of patches, row by row.
        scale: The value that has the darkest colour.
        title: Title for screen readers.
    """
    side = math.isqrt(len(values))
    size = PATCH_GRID / side
    digits = 1 if scale >= 1 else 2
    parts = []
    for i, value in enumerate(values):
        row, column = divmod(i, side)
        parts += _square(
            size * column,
            size * row,
            size,
            value,
            scale,
            tip=f"patch {row + 1}, {column + 1}: {number(value)}",
            digits=digits if side <= MOST_WITH_NUMBERS else None,
            twin=f"patch {i}",
        )
    return svg(PATCH_GRID, PATCH_GRID, title, *parts, kind="patches")


def draw_grids(chart: GridChart) -> Markup:
    """Draw a small grid for each target cell; the target cell has a border."""
    rows = chart.rows
    groups = chart.groups
    top = 34.0
    start = 16 + label_width([name for name, _ in rows], LONG)
    most = [max(len(line[g]) for line in chart.grids) for g in range(len(groups))]
    lefts = []
    for count in most:
        lefts.append(start)
        start += count * (GRID + GRID_GAP) + GROUP_GAP
    parts = [
        tag("text", name, class_="column", x=left, y=18)
        for name, left in zip(groups, lefts, strict=True)
    ]
    for i, ((name, family), line) in enumerate(zip(rows, chart.grids, strict=True)):
        y = top + i * (GRID + GRID_GAP)
        middle = y + GRID / 2 + 4
        inside = [tag("text", shortened(name, LONG), class_="name", x=8, y=middle)]
        for group, left, grids in zip(groups, lefts, line, strict=True):
            if not grids:
                inside.append(tag("text", "–", class_="note", x=left, y=middle))
            for k, fractions in enumerate(grids):
                x = left + k * (GRID + GRID_GAP)
                inside += _fraction_grid(fractions, x, y, chart.side, f"{name}, {group}")
        parts.append(mark(family, *inside))
    width = lefts[-1] + most[-1] * (GRID + GRID_GAP) + 4
    height = top + len(rows) * (GRID + GRID_GAP)
    return svg(width, height, chart.title, *parts, kind="fraction-grids")


def _fraction_grid(
    fractions: GridFractions, left: float, top: float, side: int, label: str
) -> list[Markup]:
    size = GRID / side
    parts = []
    for i, value in enumerate(fractions.values):
        row, column = divmod(i, side)
        target = " (target)" if i == fractions.target else ""
        parts += _square(
            left + size * column,
            top + size * row,
            size,
            value,
            scale=1,
            tip=f"{label}\ngrid cell {row + 1}, {column + 1}{target}: {number(value)}",
            digits=2 if size >= LEAST_WITH_NUMBER else None,
        )
    row, column = divmod(fractions.target, side)
    border = tag(
        "rect",
        class_="target",
        x=left + size * column + 1,
        y=top + size * row + 1,
        width=size - 2,
        height=size - 2,
    )
    return [*parts, border]


def draw_matrix(chart: MatrixChart) -> Markup:
    """Draw the correlations of all pairs, each once; columns have the numbers of the rows."""
    names = chart.names
    size = MATRIX_SQUARE
    top = 24.0
    left = 40 + label_width([name for name, _ in names], LONGEST_IN_MATRIX)
    parts = []
    for i, ((name, family), line) in enumerate(zip(names, chart.values, strict=True)):
        y = top + size * i
        middle = y + size / 2 + 4
        column = left + size * (i + 0.5)
        label = str(i + 1)
        parts.append(tag("text", label, class_="tick", x=column, y=y - 6, text_anchor="middle"))
        inside = [
            tag("text", label, class_="rank", x=20, y=middle, text_anchor="end"),
            tag("text", shortened(name, LONGEST_IN_MATRIX), class_="name", x=28, y=middle),
        ]
        for j, value in enumerate(line[: i + 1]):
            tip = f"{name} and {names[j][0]}: {number(value, 2)}"
            inside += _square(left + size * j, y, size, value, 1, tip, digits=2, small=True)
        parts.append(mark(family, *inside, method=name))
    width = left + size * len(names) + 4
    height = top + size * len(names) + 4
    return svg(width, height, chart.title, *parts, kind="matrix-plot")


def draw_agreement(chart: AgreementChart) -> Markup:
    """Draw the correlations of all pairs of rankings with their intervals, each pair once."""
    labels = chart.labels
    width, height = CELL
    top = 22.0
    left = 16 + label_width(list(labels[1:]), LONG)
    parts = []
    for j, label in enumerate(labels[:-1]):
        x = left + width * (j + 0.5)
        name = shortened(label, LONGEST_ABOVE)
        parts.append(tag("text", name, class_="column", x=x, y=14, text_anchor="middle"))
    for i, label in enumerate(labels[1:]):
        y = top + height * i
        name = shortened(label, LONG)
        parts.append(tag("text", name, class_="name", x=8, y=y + height / 2 + 4))
        for j in range(i + 1):
            pair = (labels[j], label)
            parts += _correlation(left + width * j, y, *chart.cells[j, i + 1], pair)
    count = len(labels) - 1
    right = left + width * count + 4
    return svg(right, top + height * count + 4, chart.title, *parts, kind="correlations")


def _correlation(
    x: float, y: float, value: float, low: float, high: float, pair: tuple[str, str]
) -> list[Markup]:
    width, height = CELL
    if not math.isfinite(value):
        note = {"x": x + width / 2, "y": y + height / 2 + 4, "text_anchor": "middle"}
        return [tag("text", "all methods tie", class_="note", **note)]
    tone = " on-dark" if abs(value) > DARK_ABOVE else ""
    ends = interval(value, low, high, 2)
    tip = f"{pair[0]} and {pair[1]}: {number(value, 2)}, 95 % interval {ends}"
    middle = x + width / 2
    return [
        tag(
            "rect",
            class_="patch",
            x=x,
            y=y,
            width=width,
            height=height,
            fill=diverging_colour(value, 1),
            data_tip=tip,
        ),
        tag(
            "text",
            number(value, 2),
            class_=f"in-patch large{tone}",
            x=middle,
            y=y + height / 2 - 1,
            text_anchor="middle",
        ),
        tag(
            "text",
            ends,
            class_=f"in-patch small{tone}",
            x=middle,
            y=y + height / 2 + 14,
            text_anchor="middle",
        ),
    ]


def grid_lines(side: int) -> Markup:
    """Return the borders of a grid of patches, to lie over a picture."""
    lines = [
        tag("path", d=f"M{k} 0V{side}M0 {k}H{side}", vector_effect="non-scaling-stroke")
        for k in range(1, side)
    ]
    return overlay(side, *lines, kind="grid-lines")


def grid_cell_frame(side: int, cell: int) -> Markup:
    """Return a border around one grid cell, to lie over a picture."""
    row, column = divmod(cell, side)
    border = tag("path", d=f"M{column} {row}h1v1h-1z", vector_effect="non-scaling-stroke")
    return overlay(side, border, kind="grid-cell-frame")
