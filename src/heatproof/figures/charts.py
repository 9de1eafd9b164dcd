"""The data of figures: a class per kind, which SVG, matplotlib and CSV are all made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from heatproof.figures.axes import PERCENT, Axis
from heatproof.figures.numbers import LONGEST_LABEL, interval, number
from heatproof.text import counted

TIP_LINES = 12  # points of a curve in its tooltip
WHISKER = 1.5  # times the length of a box

Line = dict[str, object]  # of the table of a figure: numbers by column


@dataclass(frozen=True)
class Chart:
    """A figure.

    Attributes:
        title: Its title for screen readers, which says all that it shows.
        model: The model that it is about; empty for several.
        protocol: The id of the protocol that it is about; empty for several.
        panel: Its title among other panels; by default its title.
    """

    title: str
    _: KW_ONLY
    model: str = ""
    protocol: str = ""
    panel: str = ""

    @property
    def table(self) -> list[Line]:
        """The numbers that it shows, one line per mark, all with the same columns."""
        raise NotImplementedError


@dataclass(frozen=True)
class Spot:
    """A value with its interval, and a text that is shown on hover."""

    value: float
    low: float
    high: float
    tip: str


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


@dataclass(frozen=True)
class RankingChart(Chart):
    """Means and intervals of methods, one row each, best first.

    Attributes:
        marks: The methods.
        axis: Axis of the scores.
        line: Where a dashed line stands, such as the score of a random map; None for none.
        line_label: Name of that line.
        across: Title of the axis.
        room: Width of the axis in px on a page.
        bars: Whether a figure for a paper has bars from zero in place of points.
    """

    marks: Sequence[Mark]
    axis: Axis
    line: float | None = None
    line_label: str = "random map"
    across: str = "mean score and 95 % interval"
    room: float = 196
    bars: bool = False

    @property
    def table(self) -> list[Line]:
        return [
            {"rank": m.rank, "method": m.label, "mean": m.mean, "low": m.low, "high": m.high}
            for m in self.marks
        ]


@dataclass(frozen=True)
class Ranks:
    """A method and its rank in each column."""

    label: str
    family: str
    ranks: tuple[float, ...]


@dataclass(frozen=True)
class BumpChart(Chart):
    """The rank of each method from one ranking to the next.

    Attributes:
        columns: Names of the rankings.
        lines: The methods, with one rank per column.
    """

    columns: Sequence[str]
    lines: Sequence[Ranks]

    @property
    def table(self) -> list[Line]:
        return [
            {"method": line.label, "ranking": column, "rank": rank}
            for line in self.lines
            for column, rank in zip(self.columns, line.ranks, strict=True)
        ]


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
    steps: tuple[str, ...] = ()  # names of the values in the tooltip; percentages if none

    @property
    def finite(self) -> list[int]:
        """The indices of finite values."""
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


@dataclass(frozen=True)
class CurveChart(Chart):
    """Curves over a fraction from 0 to 1, with their bands.

    Attributes:
        lines: The curves.
        up: Vertical axis.
        titles: Titles of the horizontal and the vertical axis.
        level: Height of a dashed line across; None for none.
        across: Horizontal axis, over which positions from 0 to 1 are spread.
        unit: Text behind the numbers of the horizontal axis.
        labels: Whether a page writes the names of the curves; if not, a legend has to.
        bands: Whether a page draws the bands; many of them hide each other.
        shaded: Where a shaded part that begins at the left ends, from 0 to 1; None shades nothing.
    """

    lines: Sequence[Trace]
    up: Axis
    titles: tuple[str, str]
    level: float | None = None
    across: Axis = PERCENT
    unit: str = " %"
    labels: bool = True
    bands: bool = True
    shaded: float | None = None

    @property
    def table(self) -> list[Line]:
        return [
            {
                "curve": line.label,
                self.titles[0]: round(self.x(line, k), 6),
                self.titles[1]: line.values[k],
                "low": line.low[k] if line.low else None,
                "high": line.high[k] if line.high else None,
            }
            for line in self.lines
            for k in line.finite
        ]

    def x(self, line: Trace, k: int) -> float:
        """Return where the k-th value of a curve lies on the horizontal axis."""
        return self.across.low + line.position(k) * (self.across.high - self.across.low)


class ChangedMapChart(CurveChart):
    """Curves of maps from which attribution was removed, or into which it was introduced."""


@dataclass(frozen=True)
class Point:
    """A point with a vertical interval; small ones are joined to the large ones of their series."""

    x: float
    spot: Spot
    family: str
    label: str  # not written if it is empty
    series: str
    large: bool
    method: str | None = None  # which the point lights up with
    number: float | None = None  # where the horizontal axis is not linear, in its units


@dataclass(frozen=True)
class ScatterChart(Chart):
    """Points with their intervals, and their labels.

    Attributes:
        points: The points; those of one series are joined.
        across: Horizontal axis.
        up: Vertical axis.
        titles: Titles of the horizontal and the vertical axis.
        unit: Text behind the numbers of the horizontal axis.
        fit: A straight line to draw.
        front: Points that a stepped line connects, from left to right.
    """

    points: Sequence[Point]
    across: Axis
    up: Axis
    titles: tuple[str, str]
    unit: str = ""
    fit: Callable[[float], float] | None = None
    front: Sequence[tuple[float, float]] = ()

    @property
    def table(self) -> list[Line]:
        return [
            {
                "series": p.series,
                "label": p.label,
                self.titles[0]: p.x if p.number is None else p.number,
                self.titles[1]: p.spot.value,
                "low": p.spot.low,
                "high": p.spot.high,
            }
            for p in self.points
        ]


@dataclass(frozen=True)
class Panel:
    """A column of a chart with an axis of its own."""

    title: str
    axis: Axis
    line: float | None = None  # dashed: the score of a random map, or no difference


@dataclass(frozen=True)
class Row:
    """A method and its value in each panel; a word stands where there is no number."""

    label: str
    family: str
    values: tuple[Spot | str, ...]


@dataclass(frozen=True)
class LatticeChart(Chart):
    """Rows that run through several panels, each with an axis of its own.

    Attributes:
        panels: The columns.
        rows: The rows, with one value per panel.
        digits: Digits of the numbers.
        longest: Characters of a row's label that a page shows.
    """

    panels: Sequence[Panel]
    rows: Sequence[Row]
    digits: int = 2
    longest: int = LONGEST_LABEL

    @property
    def table(self) -> list[Line]:
        return [
            {"row": row.label, "panel": panel.title} | _spot_line(value)
            for row in self.rows
            for panel, value in zip(self.panels, row.values, strict=True)
        ]


def _spot_line(value: Spot | str) -> Line:
    if isinstance(value, str):
        return {"value": None, "low": None, "high": None, "note": value}
    return {"value": value.value, "low": value.low, "high": value.high, "note": ""}


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

    @classmethod
    def line(cls, box: Box | str) -> Line:
        """Return the numbers of a box, or the word that stands in its place, by column."""
        names = ("low whisker", "lower quartile", "median", "upper quartile", "high whisker")
        columns = (*names, "mean")
        if isinstance(box, str):
            return dict.fromkeys(columns) | {"note": box}
        low, high = box.whiskers
        return dict(zip(columns, (low, *box.quartiles, high, box.mean), strict=True)) | {"note": ""}


@dataclass(frozen=True)
class BoxRow:
    """A row of box plots, one per panel; a word stands where there is no number."""

    group: str
    label: str
    method: str
    family: str
    boxes: tuple[Box | str, ...]


@dataclass(frozen=True)
class BoxChart(Chart):
    """Box plots with their means; rows of one group stand together under its name.

    Attributes:
        panels: The columns.
        rows: The rows, those of a group one after the other.
    """

    panels: Sequence[Panel]
    rows: Sequence[BoxRow]

    @property
    def table(self) -> list[Line]:
        return [
            {"group": row.group, "row": row.label, "panel": panel.title} | Box.line(box)
            for row in self.rows
            for panel, box in zip(self.panels, row.boxes, strict=True)
        ]


@dataclass(frozen=True)
class GridFractions:
    """The fraction of a map in each grid cell, row by row, and which cell holds the target."""

    values: tuple[float, ...]
    target: int


@dataclass(frozen=True)
class GridChart(Chart):
    """A small grid for each target cell; the target cell has a border.

    Attributes:
        rows: (method, family) of each row.
        groups: Names of the groups that stand side by side.
        grids: The grids of each row and group.
        side: Cells in a row of a grid.
    """

    rows: Sequence[tuple[str, str]]
    groups: Sequence[str]
    grids: Sequence[Sequence[Sequence[GridFractions]]]
    side: int

    @property
    def table(self) -> list[Line]:
        return [
            {
                "method": name,
                "group": group,
                "target": grid.target,
                "grid cell": cell,
                "fraction": value,
            }
            for (name, _), line in zip(self.rows, self.grids, strict=True)
            for group, grids in zip(self.groups, line, strict=True)
            for grid in grids
            for cell, value in enumerate(grid.values)
        ]


@dataclass(frozen=True)
class MatrixChart(Chart):
    """The correlations of all pairs of methods, each once.

    Attributes:
        names: (method, family) of each row.
        values: The symmetric matrix of correlations.
    """

    names: Sequence[tuple[str, str]]
    values: Sequence[Sequence[float]]

    @property
    def table(self) -> list[Line]:
        return [
            {"a": self.names[i][0], "b": self.names[j][0], "correlation": line[j]}
            for i, line in enumerate(self.values)
            for j in range(i)
        ]


@dataclass(frozen=True)
class AgreementChart(Chart):
    """The correlations of all pairs of rankings with their intervals, each pair once.

    Attributes:
        labels: Names of the rankings.
        cells: Correlation, lower and upper end of its interval by (column, row), where the column
            comes first in the order of the labels.
    """

    labels: Sequence[str]
    cells: Mapping[tuple[int, int], tuple[float, float, float]]

    @property
    def table(self) -> list[Line]:
        lines: list[Line] = []
        for row in range(1, len(self.labels)):
            for column in range(row):
                value, low, high = self.cells[column, row]
                pair: Line = {"a": self.labels[column], "b": self.labels[row]}
                lines.append(pair | {"correlation": value, "low": low, "high": high})
        return lines


class MeanMap(NamedTuple):
    """The mean map of a bin of maps.

    Attributes:
        method: The method.
        title: The bin, in percent of the maps from the best to the worst.
        map: Mean of the positive parts of its maps, ``(H, W)``.
        score: Mean score of its maps.
        maps: Number of its maps.
    """

    method: str
    title: str
    map: Tensor
    score: float
    maps: int


@dataclass(frozen=True)
class MeanMapChart(Chart):
    """Maps of each method, sorted by score and averaged in bins (AggAtt).

    A page shows them as pictures, with an example beside each.

    Attributes:
        rows: The bins of each method, best first.
    """

    rows: Sequence[Sequence[MeanMap]]

    @property
    def table(self) -> list[Line]:
        return [
            {"method": bin_.method, "bin": bin_.title, "score": bin_.score, "maps": bin_.maps}
            for row in self.rows
            for bin_ in row
        ]


def with_shared_axes(charts: Sequence[Chart]) -> list[Chart]:
    """Return charts that have the same axis where they show the same quantity of a protocol."""
    groups: dict[tuple[object, ...], list[Axis]] = {}
    for chart in charts:
        for name, key in _quantities(chart).items():
            groups.setdefault(key, []).append(getattr(chart, name))
    joint = {key: Axis.over(axes) for key, axes in groups.items()}
    shared: list[Chart] = []
    for chart in charts:
        axes: dict[str, Any] = {name: joint[key] for name, key in _quantities(chart).items()}
        shared.append(replace(chart, **axes))
    return shared


def _quantities(chart: Chart) -> dict[str, tuple[object, ...]]:
    """Return what the axes of a chart show, by the name of the axis."""
    titles = {}
    if isinstance(chart, RankingChart):
        titles = {"axis": chart.across}
    elif isinstance(chart, CurveChart):
        titles = {"up": chart.titles[1]}
    elif isinstance(chart, ScatterChart):
        titles = {"across": chart.titles[0], "up": chart.titles[1]}
    return {name: (type(chart), name, chart.protocol, title) for name, title in titles.items()}


def chart_labels(chart: Chart) -> list[str]:
    """Return what a chart writes beside its marks, lines, rows and columns."""
    labels: list[str] = []
    for field in fields(chart):
        for entry in _entries(getattr(chart, field.name)):
            if isinstance(entry, tuple) and entry and isinstance(entry[0], str):  # a named row
                labels.append(entry[0])
            elif field.name in ("labels", "columns", "groups") and isinstance(entry, str):
                labels.append(entry)
            labels += [
                value
                for name in ("label", "group", "series", "method", "title")
                if isinstance(value := getattr(entry, name, None), str) and value
            ]
    return list(dict.fromkeys(labels))


def _entries(value: object) -> Iterator[object]:
    """Yield the entries of a sequence, and of sequences in it."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return
    for entry in value:
        yield entry
        if isinstance(entry, list):
            yield from _entries(entry)
