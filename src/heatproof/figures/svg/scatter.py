"""Scatter plots: of points with intervals, and of the ranks of patches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup

from heatproof.figures.axes import Axis
from heatproof.figures.charts import Point, ScatterChart
from heatproof.figures.numbers import rank_text, shortened
from heatproof.figures.svg.axes import Plot
from heatproof.figures.svg.elements import svg, tag
from heatproof.figures.svg.marks import mark, spread, symbol

WIDTH = 640.0
MANY_PATCHES = 30  # have smaller dots
LABEL_GAP = 15.0
RANKS_SIDE = 208.0


def draw_scatter(chart: ScatterChart) -> Markup:
    """Draw points with their intervals, and their labels on the right."""
    points = chart.points
    plot = Plot(chart.across, chart.up, left=52.0, right=470.0, top=22.0, bottom=330.0)
    parts = plot.axes(chart.titles, chart.unit)
    if chart.fit:
        parts.append(_fitted_line(plot, chart.fit))
    if len(chart.front) > 1:
        parts.append(_stepped_line(plot, chart.front))
    parts += _joins(plot, points)
    labelled = sorted((p for p in points if p.label), key=lambda p: plot.y(p.spot.value))
    heights = spread([plot.y(p.spot.value) for p in labelled], LABEL_GAP, plot.top + 4, plot.bottom)
    label_heights = dict(zip(labelled, heights, strict=True))
    parts += [_point(plot, point, label_heights.get(point)) for point in points]
    return svg(WIDTH, plot.bottom + 44, chart.title, *parts, kind="scatter-plot")


def _point(plot: Plot, point: Point, label_height: float | None) -> Markup:
    spot = point.spot
    x = plot.x(point.x)
    y = plot.y(spot.value)
    low = plot.y(spot.low if math.isfinite(spot.low) else spot.value)
    high = plot.y(spot.high if math.isfinite(spot.high) else spot.value)
    inside = [
        tag("line", class_="whisker", x1=x, x2=x, y1=low, y2=high),
        symbol(point.family, x, y, 5.4 if point.large else 3.2),
    ]
    if label_height is not None:
        leader = f"M{x + 7:.1f} {y:.1f}L{plot.right + 6:.1f} {label_height:.1f}"
        label = shortened(point.label)
        inside += [
            tag("path", class_="leader", d=leader),
            tag("text", label, class_="name", x=plot.right + 10, y=label_height + 4),
        ]
    return mark(point.family, *inside, method=point.method, tip=spot.tip)


def _stepped_line(plot: Plot, front: Sequence[tuple[float, float]]) -> Markup:
    (x, y), *rest = [(plot.x(x), plot.y(y)) for x, y in front]
    steps = "".join(f"H{next_x:.1f}V{next_y:.1f}" for next_x, next_y in rest)
    return tag("path", class_="front", d=f"M{x:.1f} {y:.1f}{steps}")


def _joins(plot: Plot, points: Sequence[Point]) -> list[Markup]:
    """Join the small points of each series to its large ones."""
    lines = []
    for small in points:
        for large in points:
            if large.large and not small.large and large.series == small.series:
                lines.append(
                    tag(
                        "line",
                        class_="join",
                        x1=plot.x(small.x),
                        y1=plot.y(small.spot.value),
                        x2=plot.x(large.x),
                        y2=plot.y(large.spot.value),
                    )
                )
    return lines


def _fitted_line(plot: Plot, fit: Callable[[float], float]) -> Markup:
    start = _nearest_inside(plot, fit, plot.across.low)
    end = _nearest_inside(plot, fit, plot.across.high)
    return tag(
        "line",
        class_="random",
        x1=plot.x(start),
        y1=plot.y(fit(start)),
        x2=plot.x(end),
        y2=plot.y(fit(end)),
    )


def _nearest_inside(plot: Plot, line: Callable[[float], float], x: float) -> float:
    """Return the value nearest to x at which the line is inside the plot."""
    candidates = [
        float(at)
        for at in np.linspace(plot.across.low, plot.across.high, 201)
        if plot.up.low <= line(at) <= plot.up.high
    ]
    return min(candidates, key=lambda at: abs(at - x), default=x)


def ranks(
    across: Sequence[float], up: Sequence[float], labels: tuple[str, str], title: str
) -> Markup:
    """Draw one dot per patch at its two ranks; on the dashed line both are the same.

    Args:
        across: Horizontal rank of each patch, row by row.
        up: Vertical rank of each patch.
        labels: What the two ranks are ranks of.
        title: Title for screen readers.
    """
    low = 28.0
    high = 190.0
    count = max(2, len(across))
    axis = Axis(1.0, float(count), ())
    side = math.isqrt(len(across))
    first = RANKS_SIDE - low
    last = RANKS_SIDE - high
    parts = [
        tag("line", class_="random", x1=low, y1=first, x2=high, y2=last),
        tag("text", f"{labels[0]} →", class_="tick", x=high + 10, y=202.0, text_anchor="end"),
        tag("text", f"↑ {labels[1]}", class_="tick", x=9.0, y=15.0),
    ]
    for i, (rank_x, rank_y) in enumerate(zip(across, up, strict=True)):
        tip = (
            f"patch {i // side + 1}, {i % side + 1}: rank {rank_text(rank_x)} by the {labels[0]}, "
            f"{rank_text(rank_y)} by the {labels[1]}"
        )
        parts.append(
            tag(
                "circle",
                class_="patch-dot",
                cx=axis.position(rank_x, low, high),
                cy=axis.position(rank_y, first, last),
                r=5.0 if count < MANY_PATCHES else 3.0,
                data_tip=tip,
                data_twin=f"patch {i}",
            )
        )
    return svg(RANKS_SIDE, RANKS_SIDE, title, *parts, kind="ranks")
