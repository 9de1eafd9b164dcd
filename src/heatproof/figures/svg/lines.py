"""Curves over a fraction from 0 to 1, with their bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from heatproof.figures.svg.axes import Axis, Plot
from heatproof.figures.svg.elements import interval, number, shortened, svg, tag
from heatproof.figures.svg.marks import mark, spread

TIP_LINES = 12  # points of a curve in its tooltip
DASH_PATTERNS = 4
WIDTH = 452.0
PERCENT = Axis(0.0, 100.0, (0.0, 25.0, 50.0, 75.0, 100.0))
LABEL_GAP = 12.5


@dataclass(frozen=True)
class Trace:
    """A curve with a name; values that are not finite are left out."""

    label: str
    family: str
    values: tuple[float, ...]
    positions: tuple[float, ...] = ()  # from 0 to 1; evenly spaced if none are given
    low: tuple[float, ...] = ()  # of a band around the curve
    high: tuple[float, ...] = ()
    dash: int = 0  # tells lines of the same colour apart
    steps: tuple[str, ...] = ()  # what the values are called in the tooltip; percentages if none

    @property
    def finite(self) -> list[int]:
        """Return the indices of finite values."""
        return [k for k, value in enumerate(self.values) if math.isfinite(value)]

    def position(self, k: int) -> float:
        """Return where the k-th value lies, from 0 to 1."""
        return self.positions[k] if self.positions else k / (len(self.values) - 1)

    def end(self, index: int) -> float:
        """Return the first (0) or the last (-1) finite value."""
        return self.values[self.finite[index]]

    def tip(self) -> str:
        """Return the tooltip: some of the points and their intervals."""
        lines = [self.label]
        for k in self.finite[:: math.ceil(len(self.finite) / TIP_LINES)]:
            value = self.values[k]
            band = f" ({interval(value, self.low[k], self.high[k], 2)})" if self.low else ""
            step = self.steps[k] if self.steps else f"{100 * self.position(k):.0f} %"
            lines.append(f"{step}: {number(value, 2)}{band}")
        return "\n".join(lines)


def traces(
    lines: Sequence[Trace],
    up: Axis,
    titles: tuple[str, str],
    title: str,
    level: float | None = None,
    across: Axis = PERCENT,
    unit: str = " %",
    labels: bool = True,
) -> Markup:
    """Draw curves, each labelled at the end where they are furthest apart.

    Args:
        lines: The curves.
        up: Vertical axis.
        titles: Titles of the horizontal and the vertical axis.
        title: Title for screen readers.
        level: Height of a dashed line across.
        across: Horizontal axis, over which positions from 0 to 1 are spread.
        unit: Text behind the numbers of the horizontal axis.
        labels: Whether to write the names of the curves; if not, a legend has to.
    """
    lines = [line for line in lines if line.finite]
    labels_left = labels and _range_of([line.end(0) for line in lines]) > _range_of(
        [line.end(-1) for line in lines]
    )
    left = 172.0 if labels_left else 52.0
    right = left + 248 if labels else WIDTH - 12
    plot = Plot(across, up, left, right, top=22.0, bottom=250.0)
    parts = plot.axes(titles, unit, labels_right=labels_left)
    if level is not None:
        parts.append(plot.level(level))
    end = 0 if labels_left else -1
    ordered = sorted(lines, key=lambda line: -line.end(end))
    heights = spread(
        [plot.y(line.end(end)) for line in ordered], LABEL_GAP, plot.top, plot.bottom + 4
    )
    for line, height in zip(ordered, heights, strict=True):
        parts.append(_trace(plot, line, height, labels_left, labels))
    rows = [row for line in lines for row in _rows(line, across, titles)]
    return svg(WIDTH, plot.bottom + 44, title, *parts, kind="traces", rows=rows)


def _rows(line: Trace, across: Axis, titles: tuple[str, str]) -> list[dict[str, object]]:
    """Return the points of a curve, in the units of the axes."""
    return [
        {
            "curve": line.label,
            titles[0]: round(across.low + line.position(k) * (across.high - across.low), 6),
            titles[1]: line.values[k],
            "low": line.low[k] if line.low else None,
            "high": line.high[k] if line.high else None,
        }
        for k in line.finite
    ]


def _range_of(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _trace(
    plot: Plot, line: Trace, label_height: float, label_left: bool, labelled: bool
) -> Markup:
    x = [_x(plot, line, k) for k in line.finite]
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
    if labelled:
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
    if line.low:
        inside.insert(0, tag("path", class_="band", d=_band(plot, line)))
    return mark(line.family, *inside, method=line.label, tip=line.tip())


def _x(plot: Plot, line: Trace, k: int) -> float:
    across = plot.across
    return plot.x(across.low + line.position(k) * (across.high - across.low))


def _path(x: Sequence[float], y: Sequence[float]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _band(plot: Plot, line: Trace) -> str:
    """Return an area: along its lower edge, and back along the upper one."""
    inside = [k for k in line.finite if math.isfinite(line.low[k]) and math.isfinite(line.high[k])]
    if not inside:
        return ""
    x = [_x(plot, line, k) for k in inside]
    low = [plot.y(line.low[k]) for k in inside]
    high = [plot.y(line.high[k]) for k in inside]
    return _path([*x, *reversed(x)], [*low, *reversed(high)]) + "Z"
