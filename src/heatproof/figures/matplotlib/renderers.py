"""Charts drawn with matplotlib: a function per kind, and panels of several charts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from heatproof.errors import HeatproofError
from heatproof.figures.axes import Axis
from heatproof.figures.charts import (
    AgreementChart,
    Box,
    BoxChart,
    BumpChart,
    ChangedMapChart,
    Chart,
    CurveChart,
    GridChart,
    LatticeChart,
    MatrixChart,
    MeanMap,
    MeanMapChart,
    Panel,
    RankingChart,
    ScatterChart,
    Spot,
    chart_labels,
    with_shared_axes,
)
from heatproof.figures.matplotlib.layout import Layout, scale_marks, wrap_labels
from heatproof.figures.matplotlib.panels import (
    GREY,
    MARKERS,
    check_panels,
    colour_of,
    family_legend,
    finish,
    heat_colours,
    legend,
    panel_grid,
    set_title,
    without_ticks,
)
from heatproof.figures.numbers import NO_NAMES, interval, labelling, number, shortened
from heatproof.tensor.localization import color_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_NAME = 28  # characters of a method's name
ON_SCREEN = Layout()
DASHES: tuple[Any, ...] = (  # tell the methods of a family apart
    "solid",
    "dashed",
    "dotted",
    "dashdot",
    (0, (6, 2, 1, 2, 1, 2)),
    (0, (1, 4)),
    (0, (10, 3)),
    (0, (2, 1)),
)


class Sheet(NamedTuple):
    """One pair of axes to be drawn.

    Attributes:
        title: Its title.
        size: Width and height in inches.
        draw: Draws into the axes.
        families: The families whose colours need a legend; empty if marks have names.
        across: How many stand side by side at most.
        whole: Whether just as many have to stand side by side.
    """

    title: str
    size: tuple[float, float]
    draw: Callable[[Axes], None]
    families: tuple[str, ...] = ()
    across: int = 3
    whole: bool = False


def draw(
    charts: Sequence[Chart],
    ax: Axes | Sequence[Axes] | None = None,
    names: Mapping[str, str] = NO_NAMES,
    layout: Layout = ON_SCREEN,
    caption: Callable[[Chart, str], str] = lambda chart, title: title,
) -> Figure:
    """Draw charts side by side; those of the same quantity and protocol have the same axes.

    Args:
        charts: The charts.
        ax: Axes of a figure of yours, one for each panel; by default a figure is made.
        names: What is written in place of labels of methods.
        layout: How large the figure is.
        caption: Returns what stands above a panel of a chart, given its title.

    Returns:
        The figure.

    Raises:
        HeatproofError: If there are too many panels to be read, or not one for each pair of axes.
    """
    charts = with_shared_axes(charts)
    sheets = [
        sheet._replace(title=sheet.title and caption(chart, sheet.title))
        for chart in charts
        for sheet in SHEETS[type(chart)](chart)
    ]
    if ax is not None:
        figure, axes = given_axes(ax, [sheet.title for sheet in sheets], layout)
    else:
        check_panels(sum(not isinstance(chart, MeanMapChart) for chart in charts) and len(sheets))
        size = (max(sheet.size[0] for sheet in sheets), max(sheet.size[1] for sheet in sheets))
        across = max(sheet.across for sheet in sheets)
        whole = any(sheet.whole for sheet in sheets)
        figure, axes = panel_grid(len(sheets), size, across, layout, whole=whole)
    labels = dict.fromkeys(label for chart in charts for label in chart_labels(chart))
    scale = layout.scale
    columns = axes[0].get_subplotspec().get_gridspec().ncols if ax is None else 1  # type: ignore
    for sheet, on in zip(sheets, axes, strict=True):
        wide = sheet.size[0] if ax is not None else figure.get_size_inches()[0] / columns / scale
        with labelling(labels, names):
            sheet.draw(on)
        if sheet.title:
            set_title(on, sheet.title, round(11 * wide))
        wrap_labels(on, max(8, round(11 * wide)))
    scale_marks(axes, scale)
    if ax is None:
        families = dict.fromkeys(name for sheet in sheets for name in sheet.families)
        if set(families) == {"other"}:
            pass  # one colour, which means nothing
        elif families:
            family_legend(figure, list(families), scale)
        else:
            legend(figure, axes, scale, below=layout.full_width is not None)
        if layout.height is not None:
            figure.set_size_inches(figure.get_size_inches()[0], layout.height)
        scale_marks([figure], scale)
    return figure


def given_axes(
    ax: Axes | Sequence[Axes], titles: Sequence[str], layout: Layout
) -> tuple[Figure, list[Axes]]:
    """Return axes of the user, and their figure, after checking that there is one for each panel.

    Args:
        ax: One pair of axes, or several.
        titles: The titles of the panels.
        layout: What was asked for: axes have a size already.
    """
    axes = list(ax) if isinstance(ax, Iterable) else [ax]
    if layout.width is not None or layout.height is not None:
        raise HeatproofError("axes of yours have the size of their figure; leave out width, height")
    if len(axes) != len(titles):
        some = ", ".join(titles[:4]) + (", …" if len(titles) > 4 else "")
        raise HeatproofError(
            f"ax= takes one pair of axes for each panel: this figure has {len(titles)} ({some}), "
            f"and there are {len(axes)}; choose panels with model= and protocol="
        )
    figure = axes[0].get_figure(root=True)
    assert figure is not None  # axes that are drawn into belong to one
    return figure, axes


def _title(chart: Chart) -> str:
    return chart.panel or chart.title


def _set_axis(axis: Any, scale: Axis, unit: str = "") -> None:
    """Give an axis of matplotlib the ends and ticks of a chart."""
    labels = scale.labels or [number(tick, scale.digits) + unit for tick in scale.ticks]
    if scale.log:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_ticks(scale.ticks, labels)
    axis.axes.set(**{f"{axis.axis_name}lim": (scale.low, scale.high)})


def _errors(spot: Spot) -> list[list[float]]:
    """Return how far an interval extends below and above a value, as matplotlib wants it."""
    if not math.isfinite(spot.low):
        return [[0.0], [0.0]]
    return [[max(0.0, spot.value - spot.low)], [max(0.0, spot.high - spot.value)]]


def _note(ax: Axes, y: float, text: str) -> None:
    place = ax.get_yaxis_transform()
    ax.text(0.98, y, text, transform=place, ha="right", va="center", fontsize=7, color=GREY)


def _spot(ax: Axes, value: Spot, family: str, y: float) -> None:
    """Draw a value and its interval."""
    colour = colour_of(family)
    if math.isfinite(value.low):
        ax.plot([value.low, value.high], [y, y], color=colour, linewidth=2, alpha=0.55)
    ax.plot(value.value, y, "o", color=colour, markersize=5)


class _Row(NamedTuple):
    """A row of a sheet; a text is shown in place of a value."""

    label: str
    family: str
    value: Spot | Box | str
    bar: bool = False


def _rows(title: str, rows: Sequence[_Row], panel: Panel, across: str = "") -> Sheet:
    """Return a sheet with a value per row, on the axis of a panel."""

    def draw_rows(ax: Axes) -> None:
        for y, row in enumerate(rows):
            if isinstance(row.value, str):
                _note(ax, y, row.value)
            elif isinstance(row.value, Box):
                _box(ax, row.value, row.family, y)
            elif row.bar:
                ax.barh(y, row.value.value, height=0.6, color=colour_of(row.family), zorder=2)
            else:
                _spot(ax, row.value, row.family, y)
        if panel.line is not None:
            ax.axvline(panel.line, color=GREY, linewidth=1, linestyle=":")
        names = [shortened(row.label, LONGEST_NAME) for row in rows]
        ax.set_yticks(range(len(rows)), names, fontsize=8)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        _set_axis(ax.xaxis, panel.axis)
        ax.set_xlabel(across, fontsize=8)
        finish(ax)

    families = tuple(row.family for row in rows)
    return Sheet(title, (4.6, 1.1 + 0.27 * len(rows)), draw_rows, families)


def _ranking(chart: RankingChart) -> list[Sheet]:
    rows = [
        _Row(
            mark.label,
            mark.family,
            Spot(mark.mean, mark.low, mark.high, "") if math.isfinite(mark.mean) else mark.note,
            chart.bars,
        )
        for mark in chart.marks
    ]
    return [_rows(_title(chart), rows, Panel("", chart.axis, chart.line), chart.across)]


def _lattice(chart: LatticeChart) -> list[Sheet]:
    before = f"{chart.panel} · " if chart.panel else ""
    return [
        _rows(
            before + panel.title,
            [_Row(row.label, row.family, row.values[column]) for row in chart.rows],
            panel,
        )
        for column, panel in enumerate(chart.panels)
    ]


def _boxes(chart: BoxChart) -> list[Sheet]:
    return [
        _rows(
            f"{chart.model} · {panel.title}",
            [_Row(f"{row.group} {row.label}", row.family, row.boxes[i]) for row in chart.rows],
            panel,
        )
        for i, panel in enumerate(chart.panels)
    ]


def _box(ax: Axes, box: Box, family: str, y: float) -> None:
    low, median, high = box.quartiles
    ax.plot(box.whiskers, [y, y], color="#222222", linewidth=0.8, zorder=1)
    ax.barh(y, high - low, left=low, height=0.6, color=colour_of(family), zorder=2)
    ax.plot([median, median], [y - 0.3, y + 0.3], color="#222222", linewidth=1.2, zorder=3)


def _bump(chart: BumpChart) -> list[Sheet]:
    def draw_lines(ax: Axes) -> None:
        last = len(chart.columns) - 1
        order = sorted(chart.lines, key=lambda line: line.ranks[-1])
        places = _spread([line.ranks[-1] for line in order])
        for count, (line, place) in enumerate(zip(order, places, strict=True)):
            colour = colour_of(line.family)
            marker = MARKERS[count % len(MARKERS)]
            ax.plot(range(last + 1), line.ranks, color=colour, marker=marker, markersize=4)
            ax.annotate(
                shortened(line.label, LONGEST_NAME),
                (last, line.ranks[-1]),
                (last + 0.12, place),
                fontsize=8,
                color=colour,
                va="center",
                annotation_clip=False,
            )
        ax.set_xticks(range(last + 1), [shortened(name) for name in chart.columns], fontsize=8)
        _turn_labels(ax)
        ax.set_ylim(max(places[-1], *(max(line.ranks) for line in order)) + 0.6, 0.4)
        ax.set_yticks(range(1, len(order) + 1))
        ax.set_ylabel("rank", fontsize=8)
        finish(ax)

    size = (3.4 + 0.45 * len(chart.columns), 1.6 + 0.24 * len(chart.lines))
    families = tuple(line.family for line in chart.lines)
    return [Sheet(_title(chart), size, draw_lines, families, across=2)]


def _turn_labels(ax: Axes) -> None:
    for label in ax.get_xticklabels():
        label.set(rotation=35, ha="right", rotation_mode="anchor")


def _spread(ranks: Sequence[float]) -> list[float]:
    """Return where labels stand so that those of equal ranks do not overlap."""
    places: list[float] = []
    for rank in ranks:
        places.append(max(rank, places[-1] + 0.9) if places else rank)
    return places


def _curves(chart: CurveChart) -> list[Sheet]:
    def draw_lines(ax: Axes) -> None:
        seen: Counter[str] = Counter()
        for line in chart.lines:
            dash = DASHES[seen[line.family] % len(DASHES)]
            seen[line.family] += 1
            colour = colour_of(line.family)
            name = shortened(line.label, LONGEST_NAME)
            x = [chart.x(line, k) for k in line.finite]
            y = [line.values[k] for k in line.finite]
            ax.plot(x, y, color=colour, linestyle=dash, label=name, linewidth=1.5)
            if line.low:
                low = [line.low[k] for k in line.finite]
                high = [line.high[k] for k in line.finite]
                ax.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        if chart.level is not None:
            ax.axhline(chart.level, color=GREY, linewidth=1, linestyle=":")
        if chart.shaded is not None:
            span = chart.across.high - chart.across.low
            ax.axvspan(
                chart.across.low,
                chart.across.low + chart.shaded * span,
                color=GREY,
                alpha=0.15,
                linewidth=0,
            )
        _set_axis(ax.xaxis, chart.across, chart.unit)
        ax.set_xlabel(chart.titles[0], fontsize=8)
        ax.set_ylabel(chart.titles[1], fontsize=8)
        finish(ax)

    return [Sheet(_title(chart), (4.6, 3.2), draw_lines)]


def _scatter(chart: ScatterChart) -> list[Sheet]:
    def draw_points(ax: Axes) -> None:
        seen: Counter[str] = Counter()
        for point in chart.points:
            marker = MARKERS[seen[point.family] % len(MARKERS)]
            seen[point.family] += 1
            ax.errorbar(
                point.x,
                point.spot.value,
                yerr=_errors(point.spot),
                color=colour_of(point.family),
                marker=marker,
                markersize=6 if point.large else 4,
                elinewidth=1,
                alpha=0.9,
                linestyle="",
                label=shortened(point.label or point.series, LONGEST_NAME),
            )
            for large in chart.points:
                if large.large and not point.large and large.series == point.series:
                    ends = [point.spot.value, large.spot.value]
                    ax.plot([point.x, large.x], ends, color=GREY, linewidth=0.8, zorder=0)
        if chart.fit:
            x = np.linspace(chart.across.low, chart.across.high, 2)
            ax.plot(x, [chart.fit(at) for at in x], color=GREY, linewidth=1, linestyle=":")
        if len(chart.front) > 1:
            ax.step(*zip(*chart.front, strict=True), where="post", color=GREY, linewidth=1)
        _set_axis(ax.xaxis, chart.across, chart.unit)
        _set_axis(ax.yaxis, chart.up)
        ax.set_xlabel(chart.titles[0], fontsize=8)
        ax.set_ylabel(chart.titles[1], fontsize=8)
        finish(ax)

    return [Sheet(_title(chart), (5.0, 3.9), draw_points, across=2)]


def _agreement(chart: AgreementChart) -> list[Sheet]:
    count = len(chart.labels)
    values = np.full((count, count), np.nan)
    texts = {}
    for (i, j), (value, low, high) in chart.cells.items():
        values[j, i] = value
        text = "all tied"
        if math.isfinite(value):
            text = f"{number(value, 2)}\n{interval(value, low, high, 2)}"
        texts[j, i] = text

    def draw_cells(ax: Axes) -> None:
        _draw_matrix(ax, values, texts, list(chart.labels))

    size = 1.6 + 0.72 * count
    return [Sheet(_title(chart), (size + 0.8, size), draw_cells)]


def _matrix(chart: MatrixChart) -> list[Sheet]:
    values = np.asarray(chart.values)
    values = np.where(np.tri(len(values), dtype=bool), values, np.nan)
    cells = np.argwhere(np.isfinite(values)).tolist()
    texts = {(i, j): number(values[i, j], 2) for i, j in cells}

    def draw_cells(ax: Axes) -> None:
        _draw_matrix(ax, values, texts, [name for name, _ in chart.names])

    size = 1.8 + 0.4 * len(values)
    return [Sheet(f"{chart.model}, {chart.protocol}", (size + 0.8, size), draw_cells)]


def _draw_matrix(
    ax: Axes, values: np.ndarray, texts: dict[tuple[int, int], str], names: list[str]
) -> None:
    ax.imshow(values, cmap=heat_colours(signed=True), vmin=-1, vmax=1)
    for (i, j), text in texts.items():
        colour = "white" if abs(values[i, j]) > 0.7 else "black"
        ax.text(j, i, text, ha="center", va="center", fontsize=6.5, color=colour)
    shown = [shortened(name) for name in names]
    ax.set_xticks(range(len(names)), shown)
    ax.set_yticks(range(len(names)), shown)
    _turn_labels(ax)
    finish(ax)
    ax.grid(visible=False)


def _grids(chart: GridChart) -> list[Sheet]:
    most = [max(len(line[g]) for line in chart.grids) for g in range(len(chart.groups))]
    starts = np.cumsum([0, *(count * 1.15 + 0.35 for count in most)])

    def draw_grids(ax: Axes) -> None:
        from matplotlib.patches import Rectangle

        for y, line in enumerate(chart.grids):
            for start, grids in zip(starts, line, strict=False):
                for k, grid in enumerate(grids):
                    left = start + 1.15 * k
                    cells = np.reshape(grid.values, (chart.side, chart.side))
                    extent = (left, left + 1, 1.15 * y + 1, 1.15 * y)
                    colours = heat_colours(signed=True)
                    ax.imshow(cells, cmap=colours, vmin=-1, vmax=1, extent=extent)
                    row, column = divmod(grid.target, chart.side)
                    corner = (left + column / chart.side, 1.15 * y + row / chart.side)
                    side = 1 / chart.side
                    ax.add_patch(Rectangle(corner, side, side, fill=False, edgecolor="#222222"))
        ax.set_xlim(-0.1, starts[-1])
        ax.set_ylim(1.15 * len(chart.rows), -0.1)
        middles = 1.15 * np.arange(len(chart.rows)) + 0.5
        ax.set_yticks(middles, [shortened(name, LONGEST_NAME) for name, _ in chart.rows])
        centres = [s + 0.5 * c * 1.15 for s, c in zip(starts, most, strict=False)]
        ax.set_xticks(centres, list(chart.groups))
        finish(ax)
        ax.grid(visible=False)

    size = (1.8 + 0.45 * float(starts[-1]), 0.9 + 0.52 * len(chart.rows))
    return [Sheet(f"{chart.model}, {chart.protocol}", size, draw_grids, across=1)]


def _mean_maps(chart: MeanMapChart) -> list[Sheet]:
    """Draw the mean map of every bin; all maps of a method have one scale, and white is zero."""

    def sheet(bin_: MeanMap, scale: float, single: bool, first: bool, top: bool) -> Sheet:
        def draw_map(ax: Axes) -> None:
            ax.imshow(bin_.map.numpy(), cmap=heat_colours(signed=False), vmin=0, vmax=scale)
            without_ticks(ax)
            ax.set_xlabel(f"{bin_.score:.2f} (n = {bin_.maps})", fontsize=7)
            if first and not single:
                ax.set_ylabel(shortened(bin_.method, 18), fontsize=7)

        title = shortened(bin_.method, 22) if single else bin_.title if top else ""
        across = 6 if single else len(chart.rows[0])
        return Sheet(title, (1.6, 1.9), draw_map, across=across, whole=not single)

    sheets = []
    for y, row in enumerate(chart.rows):
        scale = max(color_scale(bin_.map[None]) for bin_ in row) or 1.0
        for x, bin_ in enumerate(row):
            sheets.append(sheet(bin_, scale, len(row) == 1, x == 0, y == 0))
    return sheets


SHEETS: dict[type[Chart], Callable[[Any], list[Sheet]]] = {
    AgreementChart: _agreement,
    BoxChart: _boxes,
    BumpChart: _bump,
    ChangedMapChart: _curves,
    CurveChart: _curves,
    GridChart: _grids,
    LatticeChart: _lattice,
    MatrixChart: _matrix,
    MeanMapChart: _mean_maps,
    RankingChart: _ranking,
    ScatterChart: _scatter,
}
