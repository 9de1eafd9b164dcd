"""Figures of results, drawn with matplotlib.

Figures are made without pyplot: nothing is shown or registered, no setting of matplotlib is
changed, and no display is needed. Notebooks show a figure that a cell returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import RESAMPLES, Estimate, bootstrap_means
from heatproof.analysis.metric_curves import MetricCurves, metric_curves
from heatproof.analysis.ranks import Key
from heatproof.errors import HeatproofError, unknown
from heatproof.figures.matplotlib.grid_aggregates import aggregates_data, draw_aggregates
from heatproof.figures.matplotlib.panels import (
    GREY,
    MARKERS,
    check_panels,
    figure_class,
    finish,
    heat_colours,
    legend,
    panel_grid,
    short,
)
from heatproof.figures.matplotlib.relations import RELATIONS
from heatproof.figures.palette import FAMILIES
from heatproof.figures.pictures import PERCENTILE, is_signed, resized
from heatproof.runs.format import ProtocolFacts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from heatproof.analysis.run_statistics import RunStatistics

DASHES: tuple[Any, ...] = (  # of the methods of one family
    "solid",
    "dashed",
    "dotted",
    "dashdot",
    (0, (6, 2, 1, 2, 1, 2)),
    (0, (1, 4)),
    (0, (10, 3)),
    (0, (2, 1)),
)


FIGURES = {  # with what they show
    "ranking": "mean score of every method, with intervals",
    "stability": "rank of every method under every baseline",
    "curves": "mean curves of all methods, with bands; soundness over accuracy",
    "cost": "milliseconds per map",
    "maps": "an image and its maps",
    "aggregates": "mean maps of grids, sorted by score (AggAtt)",
    **{name: relation.description for name, relation in RELATIONS.items()},
}
NO_CURVES = (
    "this result has no curves; evaluate a protocol that has them: "
    'protocols=["deletion", "insertion"]'
)
WITHOUT_DATA = ("maps",)  # figures whose numbers are no table


class Panel(NamedTuple):
    """One pair of axes: a model under a setting."""

    model: str
    facts: ProtocolFacts
    title: str


class Plots:
    """Figures of a result. Each method returns a ``matplotlib.figure.Figure``.

    Args:
        result: The result.

    Raises:
        HeatproofError: If matplotlib is not installed.
    """

    def __init__(self, result: RunStatistics):
        figure_class()
        self._result = result
        self._run = result

    def ranking(self, *, model: str | None = None, protocol: str | None = None) -> Figure:
        """Draw the mean score of every method with its 95 % interval, best on top.

        Args:
            model: A model; by default all.
            protocol: A protocol; by default all.

        Returns:
            One panel per model and setting. A dotted line marks the score of a random map, where
            the protocol has one.

        Raises:
            HeatproofError: If there is no such model or protocol, or there are too many panels.
        """
        panels = self._panels(model, protocol)
        summary = self._result.summary_frame
        methods = summary.groupby(["model", "protocol", "setting", "baseline"]).size().max()
        figure, axes = panel_grid(len(panels), width=4.6, height=1.1 + 0.27 * methods)
        for panel, ax in zip(panels, axes, strict=True):
            lines = _select(summary, panel.model, panel.facts.key)
            self._draw_ranking(ax, panel, lines.sort_values("rank", kind="stable"))
        self._explain_colours(figure)
        return figure

    def _draw_ranking(self, ax: Axes, panel: Panel, lines: pd.DataFrame) -> None:
        for y, line in enumerate(lines.to_dict("records")):
            colour = self._colour(line["method"])
            ax.plot([line["low"], line["high"]], [y, y], color=colour, linewidth=2, alpha=0.55)
            ax.plot(line["mean"], y, "o", color=colour, markersize=5)
        if panel.facts.random_score is not None:
            ax.axvline(panel.facts.random_score, color=GREY, linewidth=1, linestyle=":")
        ax.set_yticks(range(len(lines)), [short(name) for name in lines["method"]], fontsize=8)
        ax.set_ylim(len(lines) - 0.4, -0.6)
        better = "higher" if panel.facts.higher_is_better else "lower"
        ax.set_xlabel(f"mean score and 95 % interval ({better} is better)", fontsize=8)
        finish(ax, panel.title)

    def curves(
        self,
        *,
        methods: Sequence[str] | None = None,
        model: str | None = None,
        protocol: str | None = None,
    ) -> Figure:
        """Draw the mean curve of every method with its 95 % band.

        Args:
            methods: Some of the methods; by default all.
            model: A model; by default all.
            protocol: A protocol with curves, such as ``deletion``; by default all.

        Returns:
            One panel per model and setting.

        Raises:
            HeatproofError: If no protocol stored curves, or a name is unknown.
        """
        wanted = self._methods(methods)
        drawn = []
        for panel in self._panels(model, protocol, limit=False):
            metric = metric_curves(self._run, panel.model, panel.facts)
            chosen = {m: curves for m, curves in metric.items() if m in wanted}
            if chosen:
                drawn.append((panel, chosen))
        if not drawn:
            raise HeatproofError(NO_CURVES)
        check_panels(len(drawn))
        figure, axes = panel_grid(len(drawn), width=4.6, height=3.2)
        for (panel, chosen), ax in zip(drawn, axes, strict=True):
            seen: dict[str, int] = {}
            for method, curves in chosen.items():
                family = self._run.family(method)
                dash = DASHES[seen.get(family, 0) % len(DASHES)]
                seen[family] = seen.get(family, 0) + 1
                xy = curves.xy
                colour = self._colour(method)
                ax.plot(*xy.T, color=colour, linestyle=dash, label=short(method), linewidth=1.5)
                if isinstance(curves, MetricCurves):
                    low, high = _band(curves.values)
                    ax.fill_between(xy[:, 0], low, high, color=colour, alpha=0.12, linewidth=0)
            ax.set_xlabel(_across(panel.facts), fontsize=8)
            ax.set_ylabel(_up(panel.facts), fontsize=8)
            finish(ax, panel.title)
        legend(figure, axes)
        return figure

    def stability(self, *, model: str | None = None, protocol: str | None = None) -> Figure:
        """Draw the rank of every method under every baseline of a protocol.

        Args:
            model: A model; by default all.
            protocol: A protocol; by default all with several baselines.

        Returns:
            One panel per model, protocol and setting: baselines across, rank 1 on top, and a line
            per method.

        Raises:
            HeatproofError: If no protocol has several baselines, or a name is unknown.
        """
        several = self._with_baselines(model, protocol)
        check_panels(len(several))
        summary = self._result.summary_frame
        widest = max(len(panels) for panels in several)
        methods = summary["method"].nunique()
        figure, axes = panel_grid(
            len(several), width=3.4 + 0.45 * widest, height=1.6 + 0.24 * methods, across=2
        )
        for panels, ax in zip(several, axes, strict=True):
            self._draw_stability(ax, panels, summary)
        self._explain_colours(figure)
        return figure

    def _with_baselines(self, model: str | None, protocol: str | None) -> list[list[Panel]]:
        """Return the panels of every protocol with several baselines, which become one."""
        groups: dict[tuple[str, str, str], list[Panel]] = {}
        for panel in self._panels(model, protocol, limit=False):
            groups.setdefault((panel.model, *panel.facts.key[:2]), []).append(panel)
        several = [panels for panels in groups.values() if len(panels) > 1]
        if not several:
            raise HeatproofError(
                "no protocol of this result has several baselines; name some: "
                'protocols=[{"name": "sds", "baseline": ["zero", "blur", "uniform"]}]'
            )
        return several

    def _draw_stability(self, ax: Axes, panels: Sequence[Panel], summary: pd.DataFrame) -> None:
        keys = [panel.facts.key for panel in panels]
        of_model = _select(summary, panels[0].model)
        ranks = {
            method: [_rank(lines, key) for key in keys]
            for method, lines in of_model.groupby("method", sort=False)
        }
        order = sorted(ranks, key=lambda m: np.nan_to_num(ranks[m][-1], nan=math.inf))
        places = _spread([ranks[method][-1] for method in order])
        for number, (method, place) in enumerate(zip(order, places, strict=True)):
            colour = self._colour(method)
            marker = MARKERS[number % len(MARKERS)]
            ax.plot(range(len(keys)), ranks[method], color=colour, marker=marker, markersize=4)
            if np.isfinite(ranks[method][-1]):
                ax.annotate(
                    short(method),
                    (len(keys) - 1, ranks[method][-1]),
                    (len(keys) - 1 + 0.12, place),
                    fontsize=8,
                    color=colour,
                    va="center",
                    annotation_clip=False,
                )
        ax.set_xticks(range(len(keys)), [key[2] for key in keys], fontsize=8)
        for label in ax.get_xticklabels():
            label.set(rotation=35, ha="right", rotation_mode="anchor")
        highest = max(np.nanmax(list(ranks.values())), places[-1] if places else 1)
        ax.set_ylim(highest + 0.6, 0.4)
        ax.set_yticks(range(1, len(ranks) + 1))
        ax.set_ylabel("rank", fontsize=8)
        facts = panels[0].facts
        models = f"{panels[0].model} · " if len(self._run.models) > 1 else ""
        finish(ax, f"{models}{facts.id}({facts.setting})")

    def maps(
        self,
        sample: str,
        methods: Sequence[str] | None = None,
        *,
        model: str | None = None,
        protocol: str | None = None,
    ) -> Figure:
        """Draw an image and its maps side by side; white is zero, and each map has its own scale.

        Args:
            sample: The id of the sample, as in ``scores``.
            methods: Some of the methods; by default all.
            model: The model, if the result has several.
            protocol: The protocol whose view of model and data the maps are of, and whose score
                stands under each map; by default the first.

        Raises:
            HeatproofError: If the image is not stored, or a name is unknown.
        """
        chosen = self._methods(methods)
        image = self._result.image(sample, model=model, protocol=protocol)
        size = (image.shape[1], image.shape[2])
        scores = self._scores(sample, model, protocol)
        figure, axes = panel_grid(1 + len(chosen), width=1.7, height=2.1, across=6)
        for ax, title in zip(axes, [sample, *chosen], strict=True):
            ax.set_title(short(title, 22), fontsize=8)
            ax.set_xticks([])
            ax.set_yticks([])
        pixels = image.permute(1, 2, 0).numpy()
        axes[0].imshow(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels, cmap="gray")
        for method, ax in zip(chosen, axes[1:], strict=True):
            values = self._result.map(method, sample, model=model, protocol=protocol)
            large = resized(values, size).numpy()
            scale = float(np.nanquantile(np.abs(large), PERCENTILE)) or 1.0
            signed = is_signed(values)
            ax.imshow(large, cmap=heat_colours(signed), vmin=-scale if signed else 0, vmax=scale)
            if method in scores:
                ax.set_xlabel(scores[method], fontsize=8)
        return figure

    def cost(self, *, model: str | None = None) -> Figure:
        """Draw the time that each method took per map, beyond the passes shared with others.

        Args:
            model: A model; by default all.

        Raises:
            HeatproofError: If there is no such model, or no time is on record.
        """
        models = self._models(model)
        times = {
            name: {m: t for (of, m), t in self._run.milliseconds.items() if of == name and t > 0}
            for name in models
        }
        times = {name: of_model for name, of_model in times.items() if of_model}
        if not times:
            raise HeatproofError("the run has no times of single methods on record")
        most = max(len(of_model) for of_model in times.values())
        figure, axes = panel_grid(len(times), width=4.6, height=1.1 + 0.27 * most)
        for (name, of_model), ax in zip(times.items(), axes, strict=True):
            order = sorted(of_model, key=of_model.__getitem__)
            colours = [self._colour(method) for method in order]
            ax.barh(range(len(order)), [of_model[m] for m in order], color=colours, height=0.65)
            ax.set_yticks(range(len(order)), [short(m) for m in order], fontsize=8)
            ax.set_ylim(len(order) - 0.4, -0.6)
            ax.set_xscale("log")
            ax.set_xlabel("milliseconds per map (shared passes count for none)", fontsize=8)
            finish(ax, name)
        self._explain_colours(figure)
        return figure

    def aggregates(self, *, model: str | None = None, protocol: str | None = None) -> Figure:
        """Draw the stored maps of grids, sorted by score and averaged in bins (AggAtt).

        Args:
            model: The model, if the result has several.
            protocol: ``gridpg``, ``difull`` or ``dipart``; by default the first.

        Raises:
            HeatproofError: If too few maps of grids are stored, or a name is unknown.
        """
        return draw_aggregates(self._result, model, protocol)

    def agreement(self, *, model: str | None = None) -> Figure:
        """Draw the rank correlations of protocols as a matrix, with 95 % intervals.

        Args:
            model: A model; by default all.

        Raises:
            HeatproofError: If there are fewer than two protocols or three methods.
        """
        return self._relation("agreement", model)

    def variance(self) -> Figure:
        """Draw which choice moves the ranking: shares of the variance of ranks.

        Raises:
            HeatproofError: If there are fewer than two settings or three methods.
        """
        return self._relation("variance")

    def quality(self, *, model: str | None = None) -> Figure:
        """Draw the mean rank of every method against its time per map.

        A line connects the methods that no other method beats in both.

        Args:
            model: A model; by default all.

        Raises:
            HeatproofError: If no time is on record.
        """
        return self._relation("quality", model)

    def layers(self, *, model: str | None = None, protocol: str | None = None) -> Figure:
        """Draw the scores of methods that were run at several layers.

        Args:
            model: A model; by default all.
            protocol: A protocol; by default all.

        Raises:
            HeatproofError: If no method was run at several layers.
        """
        return self._relation("layers", model, protocol)

    def tradeoff(self, *, model: str | None = None, protocol: str | None = None) -> Figure:
        """Draw how far baselines move images out of the data, and how much information is left.

        Args:
            model: A model; by default all.
            protocol: ``deletion`` or ``insertion``; by default both.

        Raises:
            HeatproofError: If distances of three baselines are not stored.
        """
        return self._relation("tradeoff", model, protocol)

    def published(self, *, model: str | None = None) -> Figure:
        """Draw the numbers of papers beside those of the run.

        Args:
            model: A model; by default all.

        Raises:
            HeatproofError: If the run has none of the published numbers.
        """
        return self._relation("published", model)

    def _relation(self, name: str, model: str | None = None, protocol: str | None = None) -> Figure:
        frame = self._relation_data(name, model, protocol)
        return RELATIONS[name].draw(self._run, frame)

    def _relation_data(self, name: str, model: str | None, protocol: str | None) -> pd.DataFrame:
        self._models(model)
        if protocol is not None:
            self._panels(model, protocol, limit=False)
        return RELATIONS[name].data(self._result, {"model": model, "protocol": protocol})

    def data(
        self, figure: str, *, model: str | None = None, protocol: str | None = None
    ) -> pd.DataFrame:
        """Return the numbers of a figure, for a table or another program.

        Args:
            figure: The name of a figure, such as ``ranking``; all but ``maps`` have numbers.
            model: A model; by default all.
            protocol: A protocol; by default all.

        Returns:
            For a ranking and stability the lines of ``summary``; for curves one line per point,
            with ``x``, ``mean`` and its 95 % interval; for cost the milliseconds per map; for the
            others what is drawn.

        Raises:
            HeatproofError: If there is no such figure or name.
        """
        with_data = [name for name in FIGURES if name not in WITHOUT_DATA]
        if figure not in with_data:
            raise unknown("figure", figure, with_data)
        if figure == "aggregates":
            return aggregates_data(self._result, model, protocol)
        if figure in RELATIONS:
            return self._relation_data(figure, model, protocol)
        if figure == "cost":
            models = self._models(model)
            times = self._run.milliseconds.items()
            lines = [(of, method, t) for (of, method), t in times if of in models and t > 0]
            return pd.DataFrame(lines, columns=["model", "method", "milliseconds"])
        panels = self._panels(model, protocol, limit=False)
        if figure == "stability":
            panels = [panel for group in self._with_baselines(model, protocol) for panel in group]
        if figure != "curves":
            summary = self._result.summary_frame
            parts = [_select(summary, panel.model, panel.facts.key) for panel in panels]
            return pd.concat(parts, ignore_index=True)
        points = [line for panel in panels for line in self._points(panel)]
        if not points:
            raise HeatproofError(NO_CURVES)
        names = ["model", "protocol", "setting", "baseline", "method", "x", "mean", "low", "high"]
        return pd.DataFrame(points, columns=names)

    def _points(self, panel: Panel) -> Iterator[tuple[Any, ...]]:
        """Yield the points of the curves of a panel."""
        curves = metric_curves(self._run, panel.model, panel.facts)
        for method, of_method in curves.items():
            low: Sequence[float] | np.ndarray = [np.nan] * len(of_method.xy)
            high = low
            if isinstance(of_method, MetricCurves):
                low, high = _band(of_method.values)
            for (x, y), *ends in zip(of_method.xy, low, high, strict=True):
                yield (panel.model, *panel.facts.key, method, x, y, *ends)

    def _panels(self, model: str | None, protocol: str | None, limit: bool = True) -> list[Panel]:
        """Return the models and settings that are asked for and have scores."""
        ids = {facts.id for facts in self._run.plan.protocols}
        if protocol is not None and protocol not in ids:
            raise unknown("protocol", protocol, ids)
        labels = self._run.setting_labels
        several = len(self._run.models) > 1
        panels = []
        for name in self._models(model):
            for key, facts in self._run.protocols.items():
                rows = _select(self._run.rows, name, key)
                if protocol in (None, facts.id) and rows["value"].notna().any():
                    title = f"{name} · {labels[key]}" if several else labels[key]
                    panels.append(Panel(name, facts, title))
        if not panels:
            raise HeatproofError("no method has a score; result.left_out says why")
        if limit:
            check_panels(len(panels))
        return panels

    def _models(self, model: str | None) -> list[str]:
        if model is not None and model not in self._run.models:
            raise unknown("model", model, self._run.models)
        return self._run.models if model is None else [model]

    def _methods(self, methods: Sequence[str] | None) -> list[str]:
        chosen = list(self._run.methods) if methods is None else list(methods)
        for method in chosen:
            if method not in self._run.methods:
                raise unknown("method", method, self._run.methods)
        return chosen

    def _scores(self, sample: str, model: str | None, protocol: str | None) -> dict[str, str]:
        """Return the score of a sample under the first setting, as text, by method."""
        facts = next(p for p in self._run.plan.protocols if protocol in (None, p.id))
        rows = _select(self._run.rows, model or self._run.models[0], facts.key)
        rows = rows[(rows["sample"] == sample) & rows["value"].notna()]
        pairs = zip(rows["method"], rows["value"], strict=True)
        return {method: f"{facts.id} {value:.2f}" for method, value in pairs}

    def _colour(self, method: str) -> str:
        return FAMILIES.get(self._run.family(method), FAMILIES["other"]).light

    def _explain_colours(self, figure: Figure) -> None:
        """Say under the panels which family of methods has which colour."""
        from matplotlib.lines import Line2D

        colours = {self._run.family(m): self._colour(m) for m in self._run.methods}
        dots = [Line2D([], [], color=c, marker="o", linestyle="") for c in colours.values()]
        columns = max(1, int(figure.get_size_inches()[0] / 1.2))
        figure.legend(
            dots,
            list(colours),
            loc="outside lower center",
            ncols=min(columns, len(colours)),
            fontsize=8,
            frameon=False,
            handletextpad=0.1,
        )


def _select(frame: pd.DataFrame, model: str, key: Key | None = None) -> pd.DataFrame:
    chosen = frame["model"] == model
    for column, value in zip(("protocol", "setting", "baseline"), key or (), strict=False):
        chosen &= frame[column] == value
    return frame[chosen]


def _rank(lines: pd.DataFrame, key: Key) -> float:
    found = lines[
        (lines["protocol"] == key[0]) & (lines["setting"] == key[1]) & (lines["baseline"] == key[2])
    ]
    return float(found["rank"].iloc[0]) if len(found) else np.nan


def _spread(ranks: Sequence[float]) -> list[float]:
    """Return where labels stand so that those of equal ranks do not overlap."""
    places: list[float] = []
    for rank in ranks:
        lowest = places[-1] + 0.9 if places else -math.inf
        places.append(max(rank, lowest) if np.isfinite(rank) else lowest)
    return places


def _band(values: np.ndarray) -> tuple[list[float], list[float]]:  # (N, S) -> (S,), (S,)
    draws = bootstrap_means(values, RESAMPLES)
    ends = [Estimate.of(m, d) for m, d in zip(values.mean(0), draws.T, strict=True)]
    return [end.low for end in ends], [end.high for end in ends]


def _across(facts: ProtocolFacts) -> str:
    if facts.id == "soundness":
        return _score_name(facts)
    if facts.id == "completeness":
        return "threshold"
    change = "inserted" if facts.id == "insertion" else "removed"
    side = "least" if facts.settings.get("order") == "least" else "most"
    return f"fraction of the pixels {change}, {side} relevant first"


def _up(facts: ProtocolFacts) -> str:
    if facts.id == "soundness":
        return "soundness"
    lost = " lost" if facts.id == "completeness" else ""
    return f"{_score_name(facts)}{lost}"


def _score_name(facts: ProtocolFacts) -> str:
    score = facts.settings.get("score", "score")
    return "accuracy" if score == "correct" else f"mean {score} of the target"
