"""Where maps of grids of images point (Rao et al. 2024): localization by layer and grid cell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Key
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures import pictures
from heatproof.figures.axes import Axis
from heatproof.figures.charts import (
    Box,
    BoxChart,
    BoxRow,
    GridChart,
    GridFractions,
    MatrixChart,
    Panel,
    Trace,
)
from heatproof.protocols import PROTOCOLS
from heatproof.protocols.grids import Localization
from heatproof.report.sections import grid_aggregates, grid_facts
from heatproof.report.sections.base import section
from heatproof.report.sections.grid_aggregates import Aggregated
from heatproof.report.sections.grid_facts import (
    ImageInSettings,
    LayerMethod,
    Pool,
    SettingCost,
    Smoothed,
)
from heatproof.report.site import Figure, Site

LAYERS = ("input", "middle", "final", "cam")  # aliases in the order of depth; others come after
MOST_IN_FIGURE = 24  # methods at layers in a figure of pairs
UNIT_AXIS = Axis(-0.02, 1.02, (0.0, 0.25, 0.5, 0.75, 1.0))
Fractions = dict[str, list[GridFractions]]  # by label of the method


@dataclass(frozen=True)
class Correlation:
    """Spearman correlations between the localization of methods."""

    figure: Figure
    values: np.ndarray  # (M, M); nan if a method has the same score on all samples
    labels: list[str]


@dataclass(frozen=True)
class Setting:
    """A setting of a grid protocol; parts are None if there is nothing to show."""

    label: str
    fractions: Fractions
    cells: Figure | None
    aggregated: Aggregated | None
    correlation: Correlation | None
    depth: Figure | None
    depth_lines: list[Trace]
    smoothed: Smoothed | None


@dataclass(frozen=True)
class Model:
    """All grid protocols of a model."""

    model: str
    boxes: Figure
    counts: dict[str, SampleCounts]  # by setting
    settings: list[Setting]
    images: list[ImageInSettings]
    pools: list[Pool]
    costs: list[SettingCost]
    left_out: int
    crisp: bool


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    models: list[Model]
    bar: str
    depth: dict[str, dict[str, Figure]]  # by setting and method, with a line per model


@section(
    "grids",
    short="Grids",
    question="Do maps point at the correct grid cell?",
    order=50,
    page="Layers",
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Return localization on grids; None if no grid protocol has a score."""
    models = []
    for standing in run.standings:
        keys = [
            key
            for key, means in zip(standing.settings, standing.means, strict=True)
            if issubclass(PROTOCOLS[key[0]].cls, Localization) and np.isfinite(means).any()
        ]
        if keys:
            models.append(_model(run, site, standing.model, keys))
    if not models:
        return None
    return Content(models, site.picture(pictures.scale_bar(False)), _depth(run, site, models))


def _depth(run: RunStatistics, site: Site, models: list[Model]) -> dict[str, dict[str, Figure]]:
    """Draw the depth of several models in one figure per method, for each setting."""
    figures = {}
    labels = {setting.label for model in models for setting in model.settings}
    for key, label in run.setting_labels.items():
        if label in labels:
            lines = {
                run.short_names[model.model]: setting.depth_lines
                for model in models
                for setting in model.settings
                if setting.label == label
            }
            random_score = run.protocols[key].random_score
            figures[label] = grid_facts.depth_by_method(site, label, lines, random_score)
    return {label: of_setting for label, of_setting in figures.items() if of_setting}


def _model(run: RunStatistics, site: Site, model: str, keys: list[Key]) -> Model:
    tables = {key: run.table(model, key) for key in keys}
    facts = run.facts(model)
    layers = facts.all_layers if facts else []
    labels = dict.fromkeys(label for scores in tables.values() for label in scores.columns)
    methods = _by_layer(run, list(labels), layers)
    few = _few(methods)
    settings = [_setting(run, site, model, key, tables[key], methods, few, layers) for key in keys]
    return Model(
        model=model,
        settings=settings,
        boxes=_boxes(run, site, model, tables, methods),
        counts={run.setting_labels[key]: run.counts_of[model, key] for key in keys},
        images=grid_facts.in_every_setting(run, site, model, keys, few),
        pools=grid_facts.pools(run, model),
        costs=grid_facts.costs(run, model, keys),
        left_out=len(methods) - len(few),
        crisp=run.is_crisp(model),
    )


def _setting(
    run: RunStatistics,
    site: Site,
    model: str,
    key: Key,
    scores: pd.DataFrame,
    methods: list[LayerMethod],
    few: list[LayerMethod],
    layers: list[str],
) -> Setting:
    protocol = run.protocols[key]
    label = run.setting_labels[key]
    side = protocol.settings["grid"]
    fractions: Fractions = {}
    aggregated = None
    for view in (v for v, keys in run.views(model).items() if key in keys):
        kept = run.kept(model, view)
        if not kept.ids or view.cell is None:
            continue
        curves = kept.curves_of(protocol, [m.label for m in methods], "cells")
        sums = {m: curves[m.label].double() for m in methods if m.label in curves}
        for method, values in sums.items():
            mean = _mean_fractions(values)
            if mean is not None:
                of_method = fractions.setdefault(method.label, [])
                of_method.append(GridFractions(tuple(mean.tolist()), view.cell))
        if aggregated is None:
            aggregated = grid_aggregates.content(site, kept, (model, key[0]), sums, view.cell, side)
    title = (
        f"{model}, {label}: mean localization of each method over the depth of the layer, "
        "with 95 % intervals"
    )
    clusters = [run.clusters[sample] for sample in scores.index]
    estimates = Estimate.means(scores.to_numpy(float), clusters, protocol.range)
    means = dict(zip(scores, estimates, strict=True))
    lines = grid_facts.depth_lines(methods, layers, means)
    return Setting(
        label=label,
        fractions=fractions,
        cells=_cells(site, model, key, few, fractions, side) if fractions else None,
        aggregated=aggregated,
        correlation=_correlation(site, model, key, few, scores),
        depth=grid_facts.over_depth(site, title, lines, protocol.random_score),
        depth_lines=lines,
        smoothed=grid_facts.smoothed(methods, scores, means),
    )


def _mean_fractions(sums: Tensor) -> Tensor | None:  # (N, grid²) -> (grid²,)
    """Return the mean fraction of maps in each grid cell; None if no map has a positive part."""
    usable = sums[torch.isfinite(sums).all(1) & (sums.sum(1) > 0)]
    return (usable / usable.sum(1, keepdim=True)).mean(0) if len(usable) else None


def _by_layer(run: RunStatistics, labels: list[str], layers: list[str]) -> list[LayerMethod]:
    """Return methods in the order of the run, each from its first layer to its last."""
    names = dict.fromkeys([*LAYERS[:1], *layers, *LAYERS[1:]])
    depths = {layer: i for i, layer in enumerate(names)}
    methods = []
    for label in labels:
        facts = run.methods[label]
        depth = depths.get(facts.layer, len(depths))
        methods.append(
            LayerMethod(
                label,
                facts.layerless,
                facts.layer,
                facts.family,
                depth,
                facts.layerless_base,
                facts.transforms,
            )
        )
    order = list(dict.fromkeys(m.method for m in methods))
    return sorted(methods, key=lambda m: (order.index(m.method), m.depth))


def _few(methods: list[LayerMethod]) -> list[LayerMethod]:
    """Return what fits a figure of pairs: if need be, only first, middle and last layers."""
    if len(methods) <= MOST_IN_FIGURE:
        return methods
    few = []
    for name in dict.fromkeys(m.method for m in methods):
        layers = [m for m in methods if m.method == name]
        kept = sorted({0, len(layers) // 2, len(layers) - 1})
        few += [layers[k] for k in kept]
    return few


def _boxes(
    run: RunStatistics,
    site: Site,
    model: str,
    tables: dict[Key, pd.DataFrame],
    methods: list[LayerMethod],
) -> Figure:
    panels = [
        Panel(run.setting_labels[key], UNIT_AXIS, run.protocols[key].random_score) for key in tables
    ]
    rows = []
    for m in methods:
        boxes = [_box(scores, m, run.setting_labels[key]) for key, scores in tables.items()]
        rows.append(BoxRow(m.method, m.layer, m.label, m.family, tuple(boxes)))
    title = (
        f"{model}: fraction of the positive attribution in the target cell, "
        "for each method and layer"
    )
    return site.figure(BoxChart(title, panels, rows, model=model))


def _box(scores: pd.DataFrame, method: LayerMethod, setting: str) -> Box | str:
    values = list(scores[method.label].dropna()) if method.label in scores else []
    if not values:
        return "no score"
    return Box.of(values, f"{method.label} at {method.layer}, {setting}")


def _cells(
    site: Site,
    model: str,
    key: Key,
    methods: list[LayerMethod],
    fractions: Fractions,
    side: int,
) -> Figure:
    drawn = [m for m in methods if m.label in fractions]
    rows = list(dict.fromkeys((m.method, m.family) for m in drawn))
    layers = list(dict.fromkeys(m.layer for m in sorted(drawn, key=lambda m: m.depth)))
    by_layer = {(m.method, m.family, m.layer): fractions[m.label] for m in drawn}
    grids = [[by_layer.get((*row, layer), []) for layer in layers] for row in rows]
    title = (
        f"{model}, {key[0]}: mean fraction of the positive attribution in each grid cell, "
        "for each target cell"
    )
    return site.figure(GridChart(title, rows, layers, grids, side, model=model, protocol=key[0]))


def _correlation(
    site: Site, model: str, key: Key, methods: list[LayerMethod], scores: pd.DataFrame
) -> Correlation | None:
    """Correlate the scores of methods over the samples that both have."""
    scored = [m for m in methods if m.label in scores and scores[m.label].notna().sum() > 2]
    if len(scored) < 2:
        return None
    labels = [m.label for m in scored]
    values = scores[labels].corr(method="spearman").to_numpy(np.float64)
    title = (
        f"{model}, {key[0]}: Spearman correlation between the localization of two methods "
        "over the samples"
    )
    names = [(f"{m.method} at {m.layer}", m.family) for m in scored]
    chart = MatrixChart(title, names, values.tolist(), model=model, protocol=key[0])
    return Correlation(site.figure(chart), values, labels)
