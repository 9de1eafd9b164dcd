"""The figures of a result for papers: the charts of the report, drawn with matplotlib.

Figures are made without pyplot: nothing is shown or registered, no setting of matplotlib is
changed, and no display is needed. Notebooks show a figure that a cell returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from heatproof.errors import HeatproofError, unknown
from heatproof.figures.charts import (
    AgreementChart,
    BoxChart,
    BumpChart,
    ChangedMapChart,
    Chart,
    CurveChart,
    GridChart,
    LatticeChart,
    MatrixChart,
    MeanMapChart,
    RankingChart,
    ScatterChart,
)
from heatproof.figures.matplotlib.layout import Layout, scale_marks
from heatproof.figures.matplotlib.panels import (
    figure_class,
    heat_colours,
    panel_grid,
    without_ticks,
)
from heatproof.figures.matplotlib.renderers import draw, given_axes
from heatproof.figures.numbers import labelling, shortened
from heatproof.figures.paper_names import paper_names
from heatproof.figures.pictures import is_signed, pixels, resized, scale_end
from heatproof.figures.relations import cost_charts, layer_charts, published_charts, variance_charts
from heatproof.report.sections.base import SECTIONS
from heatproof.report.sections.common import select
from heatproof.report.site import Charts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from heatproof.analysis.run_statistics import RunStatistics


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a run.

    Attributes:
        description: Its content, in a few words.
        charts: Returns its charts.
        missing: What a run needs to have it.
        of_images: Whether its numbers are means over images, whose count captions say.
    """

    description: str
    charts: Callable[[RunStatistics], list[Chart]]
    missing: str
    of_images: bool = True


def _in_report(kind: type[Chart], *sections: str) -> Callable[[RunStatistics], list[Chart]]:
    """Return a function that collects the charts of a kind which sections of the report have."""

    def charts(run: RunStatistics) -> list[Chart]:
        site = Charts()
        for name in sections:
            SECTIONS[name].content(run, site)
        return [chart for chart in site.charts if type(chart) is kind]

    return charts


def _tradeoff_charts(run: RunStatistics) -> list[Chart]:
    """Return the charts of trade-offs in the first order of features of each model and protocol."""
    charts = _in_report(ScatterChart, "curves")(run)
    first: dict[tuple[str, str], str] = {}
    for chart in charts:
        first.setdefault((chart.model, chart.protocol), chart.panel)
    return [chart for chart in charts if chart.panel == first[chart.model, chart.protocol]]


FIGURES: dict[str, PaperFigure] = {
    "ranking": PaperFigure(
        "mean score of every method, with intervals",
        _in_report(RankingChart, "ranking"),
        "no method has a score; result.left_out says why",
    ),
    "stability": PaperFigure(
        "rank of every method under every baseline, setting, protocol and model",
        _in_report(BumpChart, "stability"),
        "there is one ranking; run several baselines: "
        'protocols=[{"name": "sds", "baseline": ["zero", "blur", "uniform"]}]',
    ),
    "curves": PaperFigure(
        "mean curves of all methods, with bands; soundness over accuracy",
        _in_report(CurveChart, "method-curves", "soundness"),
        "this result has no curves; evaluate a protocol that has them: "
        'protocols=["deletion", "insertion"]',
    ),
    "cost": PaperFigure(
        "milliseconds of one map, alone",
        cost_charts,
        "no method was timed alone: workers do not time methods; run the spec again without them",
        of_images=False,
    ),
    "quality": PaperFigure(
        "mean rank against passes per map",
        _in_report(ScatterChart, "costs"),
        "fewer than two methods have a rank and known passes",
    ),
    "agreement": PaperFigure(
        "rank correlation of protocols, with intervals",
        _in_report(AgreementChart, "agreement"),
        "agreement needs two protocols and three methods besides controls; "
        'evaluate more: protocols=["sds", "deletion"]',
    ),
    "variance": PaperFigure(
        "which choice moves the ranking",
        variance_charts,
        "a split of the variance needs two settings and three methods that are not ranked "
        "within layers; evaluate more protocols or baselines",
    ),
    "layers": PaperFigure(
        "scores of methods at several layers",
        layer_charts,
        "no method was run at several layers; name some: methods=[ixg@middle, ixg@final]",
    ),
    "baselines": PaperFigure(
        "score, distance to the data and information left along deletion, for each baseline",
        _in_report(CurveChart, "curves"),
        "no curves of deletion or insertion are stored",
    ),
    "tradeoff": PaperFigure(
        "distance to the data and information left, for each baseline",
        _tradeoff_charts,
        "a trade-off needs three baselines whose distance to the data was measured: "
        "protocols=[{name: deletion, baseline: [zero, blur, uniform], ood: true}]",
    ),
    "models": PaperFigure(
        "networks, and copies of them, side by side",
        _in_report(LatticeChart, "models"),
        "the run has a single network",
    ),
    "accuracy": PaperFigure(
        "score of each network's best method, against its accuracy",
        _in_report(ScatterChart, "models"),
        "this takes two networks whose accuracies on labelled images differ",
    ),
    "fine_tuning": PaperFigure(
        "worst-patch accuracy and IDSDS over the epochs of fine-tuning",
        _in_report(CurveChart, "models"),
        "no network was fine-tuned in this run: protocols=[idsds]",
    ),
    "changes": PaperFigure(
        "absolute values against signed ones, probability against logit",
        _in_report(RankingChart, "pairs"),
        "no method was run in both forms: methods=[ixg, ixg|abs]",
    ),
    "localization": PaperFigure(
        "distribution of scores on grids, by method and layer",
        _in_report(BoxChart, "grids"),
        "the run has no grids: protocols=[gridpg]",
    ),
    "cells": PaperFigure(
        "fraction of the maps in each grid cell",
        _in_report(GridChart, "grids"),
        "the run has no grids: protocols=[gridpg]",
    ),
    "methods": PaperFigure(
        "correlation of the localization of methods",
        _in_report(MatrixChart, "grids"),
        "the run has no grids, or a single method: protocols=[gridpg]",
    ),
    "depth": PaperFigure(
        "localization over the depth of the layer",
        _in_report(CurveChart, "grids"),
        "no method has grids at three layers",
    ),
    "aggregates": PaperFigure(
        "mean maps of grids, sorted by score (AggAtt)",
        _in_report(MeanMapChart, "grids"),
        "aggregated maps need the maps of several grids: run gridpg, difull or dipart with "
        "keep_maps: all",
    ),
    "distinctness": PaperFigure(
        "curves of maps from which attribution was removed, or into which it was introduced",
        _in_report(ChangedMapChart, "soundness"),
        "no method was run with attribution removed and introduced",
    ),
    "published": PaperFigure(
        "the run beside published numbers",
        published_charts,
        "the run has none of the published numbers; heatproof study lists the studies that have",
        of_images=False,
    ),
}
MOST_NAMED = 3  # protocols in a caption
MAPS = "maps"  # a figure of pictures, which has no numbers
DESCRIPTIONS = {name: figure.description for name, figure in FIGURES.items()} | {
    MAPS: "an image and its maps"
}


class Plots:
    """Figures of a result. Each method returns a ``matplotlib.figure.Figure``.

    ``result.plot.ranking()`` draws the figure ``ranking``, and so on for every name of
    ``heatproof figure RUN --list``. All take ``model`` and ``protocol``, to draw one of them,
    ``style`` (``column``, ``page`` or ``slide``), ``width`` and ``height`` in inches, and ``ax``,
    axes of a figure of yours, one for each panel.

    Args:
        result: The result.

    Raises:
        HeatproofError: If matplotlib is not installed.
    """

    def __init__(self, result: RunStatistics):
        figure_class()
        self._result = result
        self._names = paper_names(result.provenance.spec)
        self._charts: dict[str, list[Chart]] = {}

    def __getattr__(self, name: str) -> Callable[..., Figure]:
        if name not in FIGURES:
            raise AttributeError(str(unknown("figure", name, DESCRIPTIONS)))

        def draw_figure(
            *,
            model: str | None = None,
            protocol: str | None = None,
            width: float | None = None,
            height: float | None = None,
            style: str | None = None,
            ax: Axes | Sequence[Axes] | None = None,
        ) -> Figure:
            layout = Layout(width, height, style)
            return self._draw(name, self.charts(name, model, protocol), ax, layout)

        draw_figure.__name__ = name
        draw_figure.__doc__ = f"Draw {FIGURES[name].description}; see `Plots.draw`."
        return draw_figure

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *FIGURES]

    def draw(self, figure: str, **options: Any) -> Figure:
        """Draw a figure.

        Args:
            figure: Its name, such as ``ranking``.
            **options: ``model``, ``protocol``: one of them; by default all. ``style``: ``column``,
                ``page`` or ``slide``, which have a width and a size of text. ``width``,
                ``height``: inches; by default those of the style, or what the panels need.
                ``ax``: axes of a figure of yours, one for each panel; by default a figure is made.

        Returns:
            One panel per model and setting, as the report has them. Panels of the same protocol
            have the same axis, and say the protocol and the number of images.

        Raises:
            HeatproofError: If the run does not have the figure, a name is unknown, or there are
                too many panels.
        """
        if figure not in DESCRIPTIONS:
            raise unknown("figure", figure, DESCRIPTIONS)
        drawn: Figure = getattr(self, figure)(**options)
        return drawn

    def _draw(
        self,
        figure: str,
        charts: Sequence[Chart],
        ax: Axes | Sequence[Axes] | None,
        layout: Layout,
    ) -> Figure:
        def caption(chart: Chart, title: str) -> str:
            return self._caption(chart, title) if FIGURES[figure].of_images else title

        return draw(charts, ax, self._names, layout, caption)

    def _caption(self, chart: Chart, title: str) -> str:
        """Return the title of a panel, with the protocol and the number of images."""
        frame = self._result.summary_frame
        for column, value in (("model", chart.model), ("protocol", chart.protocol)):
            frame = frame[frame[column] == value] if value else frame
        ids = [str(name) for name in frame["protocol"].unique()]
        if not any(name in title for name in ids):
            named = ", ".join(ids) if len(ids) <= MOST_NAMED else f"{len(ids)} protocols"
            title = f"{title} · {named}"
        counts = frame.loc[frame["n"] > 0, "n"]
        if not len(counts):
            return title
        low, high = counts.min(), counts.max()
        return f"{title}, n\u00a0=\u00a0{low}" + (f" to {high}" if high > low else "")

    def curves(
        self,
        *,
        methods: Sequence[str] | None = None,
        model: str | None = None,
        protocol: str | None = None,
        width: float | None = None,
        height: float | None = None,
        style: str | None = None,
        ax: Axes | Sequence[Axes] | None = None,
    ) -> Figure:
        """Draw the mean curve of every method with its 95 % band.

        Args:
            methods: Some of the methods; by default all.
            model: A model; by default all.
            protocol: A protocol with curves, such as ``deletion``; by default all.
            width: Width in inches; by default that of the style, or what the panels need.
            height: Height in inches; by default what the panels need.
            style: ``column``, ``page`` or ``slide``.
            ax: Axes of a figure of yours, one for each panel; by default a figure is made.

        Raises:
            HeatproofError: If no protocol stored curves, or a name is unknown.
        """
        wanted = self._methods(methods)
        charts = [
            replace(chart, lines=[line for line in chart.lines if line.label in wanted])
            for chart in self.charts("curves", model, protocol)
            if isinstance(chart, CurveChart)
        ]
        layout = Layout(width, height, style)
        return self._draw("curves", [chart for chart in charts if chart.lines], ax, layout)

    def maps(
        self,
        sample: str,
        methods: Sequence[str] | None = None,
        *,
        model: str | None = None,
        protocol: str | None = None,
        width: float | None = None,
        height: float | None = None,
        style: str | None = None,
        ax: Sequence[Axes] | None = None,
    ) -> Figure:
        """Draw an image and its maps side by side; white is zero, and each map has its own scale.

        Args:
            sample: The id of the sample, as in ``scores``.
            methods: Some of the methods; by default all.
            model: The model, if the result has several.
            protocol: The protocol whose view of model and data the maps are of, and whose score
                stands under each map; by default the first.
            width: Width in inches; by default that of the style, or what the panels need.
            height: Height in inches; by default what the panels need.
            style: ``column``, ``page`` or ``slide``.
            ax: Axes of a figure of yours: one for the image and one for each map.

        Raises:
            HeatproofError: If the image is not stored, or a name is unknown.
        """
        chosen = self._methods(methods)
        image = self._result.image(sample, model=model, protocol=protocol)
        size = (image.shape[1], image.shape[2])
        scores = self._scores(sample, model, protocol)
        names = labelling([sample, *chosen], self._names)
        layout = Layout(width, height, style)
        if ax is None:
            figure, axes = panel_grid(1 + len(chosen), (1.7, 2.1), 6, layout)
        else:
            figure, axes = given_axes(ax, [sample, *chosen], layout)
        with names:
            for on, title in zip(axes, [sample, *chosen], strict=True):
                on.set_title(shortened(title, 22), fontsize=8)
                without_ticks(on)
        axes[0].imshow(pixels(image), cmap="gray", vmin=0, vmax=255)
        for method, on in zip(chosen, axes[1:], strict=True):
            values = self._result.map(method, sample, model=model, protocol=protocol)
            large = resized(values, size).numpy()
            scale = scale_end(np.nan_to_num(large)) or 1.0
            signed = is_signed(values)
            on.imshow(large, cmap=heat_colours(signed), vmin=-scale if signed else 0, vmax=scale)
            if method in scores:
                on.set_xlabel(scores[method], fontsize=8)
        scale_marks(axes, layout.scale)
        return figure

    def data(
        self, figure: str, *, model: str | None = None, protocol: str | None = None
    ) -> pd.DataFrame:
        """Return the numbers of a figure, for a table or another program.

        Args:
            figure: The name of a figure, such as ``ranking``; all but ``maps`` have numbers.
            model: A model; by default all.
            protocol: A protocol; by default all.

        Returns:
            One line per mark, with the chart that it is in.

        Raises:
            HeatproofError: If there is no such figure or name.
        """
        return chart_table(self.charts(figure, model, protocol))

    def charts(
        self, figure: str, model: str | None = None, protocol: str | None = None
    ) -> list[Chart]:
        """Return the charts of a figure; see `draw`."""
        if figure not in FIGURES:
            raise unknown("figure", figure, FIGURES)
        if model is not None and model not in self._result.models:
            raise unknown("model", model, self._result.models)
        ids = {facts.id for facts in self._result.plan.protocols}
        if protocol is not None and protocol not in ids:
            raise unknown("protocol", protocol, ids)
        if figure not in self._charts:
            self._charts[figure] = FIGURES[figure].charts(self._result)
        charts = [chart for chart in self._charts[figure] if chart.table]
        for name, wanted in (("model", model), ("protocol", protocol)):
            if wanted is not None:
                if charts and not any(getattr(chart, name) for chart in charts):
                    raise HeatproofError(f"the figure {figure} is of all; leave out {name}")
                charts = [chart for chart in charts if getattr(chart, name) == wanted]
        if not charts:
            raise HeatproofError(FIGURES[figure].missing)
        return charts

    def _methods(self, methods: Sequence[str] | None) -> list[str]:
        chosen = list(self._result.methods) if methods is None else list(methods)
        for method in chosen:
            if method not in self._result.methods:
                raise unknown("method", method, self._result.methods)
        return chosen

    def _scores(self, sample: str, model: str | None, protocol: str | None) -> dict[str, str]:
        """Return the score of a sample under the first setting, as text, by method."""
        facts = next(p for p in self._result.plan.protocols if protocol in (None, p.id))
        rows = select(self._result.rows, model or self._result.models[0], facts.key)
        rows = rows[(rows["sample"] == sample) & rows["value"].notna()]
        pairs = zip(rows["method"], rows["value"], strict=True)
        return {method: f"{facts.id} {value:.2f}" for method, value in pairs}


def chart_table(charts: Sequence[Chart]) -> pd.DataFrame:
    """Return the numbers of charts as one table, with the chart that each line is in."""
    lines = [
        {"model": chart.model, "protocol": chart.protocol, "chart": chart.panel or chart.title}
        | line
        for chart in charts
        for line in chart.table
    ]
    return pd.DataFrame(lines)
