"""Curves over a fraction from 0 to 1, with their bands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from heatproof.figures.charts import CurveChart, Trace
from heatproof.figures.numbers import shortened
from heatproof.figures.svg.axes import Plot
from heatproof.figures.svg.elements import svg, tag
from heatproof.figures.svg.marks import mark, spread

DASH_PATTERNS = 4
WIDTH = 452.0
LABEL_GAP = 12.5


def draw_curves(chart: CurveChart) -> Markup:
    """Draw curves, each labelled at the end where they are furthest apart."""
    lines = [line for line in chart.lines if line.finite]
    labels_left = chart.labels and _range_of([line.end(0) for line in lines]) > _range_of(
        [line.end(-1) for line in lines]
    )
    left = 172.0 if labels_left else 52.0
    right = left + 248 if chart.labels else WIDTH - 12
    plot = Plot(chart.across, chart.up, left, right, top=22.0, bottom=250.0)
    parts = plot.axes(chart.titles, chart.unit, labels_right=labels_left)
    if chart.shaded is not None:
        parts.insert(0, plot.shade(chart.shaded))
    if chart.level is not None:
        parts.append(plot.level(chart.level))
    end = 0 if labels_left else -1
    ordered = sorted(lines, key=lambda line: -line.end(end))
    heights = spread(
        [plot.y(line.end(end)) for line in ordered], LABEL_GAP, plot.top, plot.bottom + 4
    )
    for line, height in zip(ordered, heights, strict=True):
        parts.append(_trace(plot, chart, line, height, labels_left))
    return svg(WIDTH, plot.bottom + 44, chart.title, *parts, kind="traces")


def _range_of(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _trace(
    plot: Plot, chart: CurveChart, line: Trace, label_height: float, label_left: bool
) -> Markup:
    x = [plot.x(chart.x(line, k)) for k in line.finite]
    y = [plot.y(line.values[k]) for k in line.finite]
    path = _path(x, y)
    end = 0 if label_left else -1
    edge = plot.left if label_left else plot.right
    outward = -1 if label_left else 1
    leader = f"M{x[end]:.1f} {y[end]:.1f}L{edge + 10 * outward:.1f} {label_height:.1f}"
    inside = [
        tag("path", class_="halo", d=path),
        tag("path", class_=f"line thin dash-{line.dash % DASH_PATTERNS}", d=path),
    ]
    if chart.labels:
        inside += [
            tag("path", class_="leader", d=leader),
            tag(
                "text",
                shortened(line.label, 22),
                class_="name small",
                x=edge + 13 * outward,
                y=label_height + 4,
                text_anchor="end" if label_left else "start",
            ),
        ]
    if line.low and chart.bands:
        inside.insert(0, tag("path", class_="band", d=_band(plot, chart, line)))
    return mark(line.family, *inside, method=line.label, tip=line.tip())


def _path(x: Sequence[float], y: Sequence[float]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _band(plot: Plot, chart: CurveChart, line: Trace) -> str:
    """Return an area: along its lower edge, and back along the upper one."""
    inside = [k for k in line.finite if math.isfinite(line.low[k]) and math.isfinite(line.high[k])]
    if not inside:
        return ""
    x = [plot.x(chart.x(line, k)) for k in inside]
    low = [plot.y(line.low[k]) for k in inside]
    high = [plot.y(line.high[k]) for k in inside]
    return _path([*x, *reversed(x)], [*low, *reversed(high)]) + "Z"
