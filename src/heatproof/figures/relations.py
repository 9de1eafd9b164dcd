"""Charts of what pages show as tables, which have more columns than a figure has room for.

These are costs, the split of the variance, layers, and papers beside the run. Tables and charts
are made from the same analysis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from heatproof.analysis.published import all_comparisons
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.axes import Axis
from heatproof.figures.charts import (
    Chart,
    CurveChart,
    LatticeChart,
    Mark,
    Panel,
    RankingChart,
    Row,
    Spot,
    Trace,
)

SETTING = ["model", "protocol", "setting", "baseline"]


def cost_charts(run: RunStatistics) -> list[Chart]:
    """Return the milliseconds of one map of every method, timed alone."""
    charts: list[Chart] = []
    for model in run.models:
        timed = {m: t.milliseconds for (of, m), t in run.latencies.items() if of == model}
        times = {m: ms for m, ms in timed.items() if ms}
        order = sorted(times, key=times.__getitem__)
        marks = [
            Mark(m, run.family(m), times[m], math.nan, math.nan, rank, "")
            for rank, m in enumerate(order, 1)
        ]
        if marks:
            charts.append(
                RankingChart(
                    f"{model}: milliseconds of one map, alone",
                    marks,
                    Axis.powers(list(times.values())),
                    across="milliseconds of one map, alone",
                    model=model,
                    panel=model,
                )
            )
    return charts


def variance_charts(run: RunStatistics) -> list[Chart]:
    """Return the shares of the variance of ranks that each choice has."""
    lines = run.variance().to_dict("records")
    marks = [
        Mark(line["between"], "other", line["share"], math.nan, math.nan, math.nan, "")
        for line in lines
    ]
    if not marks:
        return []
    title = "Which choice moves the ranking"
    axis = Axis.around([0.0, 1.0, *(mark.high for mark in marks)])
    across = "share of the variance of ranks"
    return [RankingChart(title, marks, axis, across=across, bars=True)]


def layer_charts(run: RunStatistics) -> list[Chart]:
    """Return the scores of methods that were run at several layers, from image to output."""
    summary = run.summary_frame
    base = [run.methods[m].layerless if m in run.methods else m for m in summary["method"]]
    summary = summary.assign(base=base)
    several = summary.groupby([*SETTING, "base"], sort=False)["layer"].transform("nunique") > 1
    chosen = summary[several & summary["mean"].notna()]
    return [
        _layer_chart(run, str(model), lines)
        for (model, *_), lines in chosen.groupby(SETTING, sort=False)
    ]


def _layer_chart(run: RunStatistics, model: str, lines: pd.DataFrame) -> Chart:
    layers = _ordered_layers(run, model, lines["layer"].unique().tolist())
    last = len(layers) - 1
    traces = []
    for base, of_base in lines.groupby("base", sort=False):
        at = of_base.set_index("layer")[["mean", "low", "high"]].reindex(layers)
        mean, low, high = (tuple(at[name].tolist()) for name in ("mean", "low", "high"))
        family = run.family(of_base["method"].iloc[0])
        positions = tuple(k / last for k in range(last + 1))
        traces.append(Trace(str(base), family, mean, positions, low, high))
    _, protocol, setting, baseline = (str(lines[name].iloc[0]) for name in SETTING)
    label = run.setting_labels[protocol, setting, baseline]
    where = f"{model} · {label}" if len(run.models) > 1 else label
    return CurveChart(
        f"{where}: mean score of methods at several layers",
        traces,
        Axis.around([v for line in traces for v in (*line.low, *line.high)]),
        ("layer, from the image to the output", "mean score and 95 % interval"),
        across=Axis(0.0, float(last), tuple(map(float, range(last + 1))), tuple(layers)),
        unit="",
        model=model,
        protocol=protocol,
        panel=where,
    )


def _ordered_layers(run: RunStatistics, model: str, names: Sequence[str]) -> list[str]:
    """Return layers in the order of the computation, as far as it is on record."""
    facts = run.facts(model)
    known = ["input", *(facts.all_layers if facts else [])]
    return sorted(names, key=lambda name: known.index(name) if name in known else -1)


def published_charts(run: RunStatistics) -> list[Chart]:
    """Return the numbers of papers beside those of the run."""
    charts: list[Chart] = []
    for comparison in all_comparisons(run):
        groups: dict[tuple[str, str], list[Row]] = {}
        for line in comparison.lines:
            published = Spot(line.entry.value, math.nan, math.nan, "")
            rows = groups.setdefault((line.model, line.entry.quantity), [])
            values = (published, Spot(*line.found, line.shown_verdict), line.shown_verdict)
            rows.append(Row(line.entry.row, "other", values))
        for (model, quantity), rows in groups.items():
            spots = [spot for row in rows for spot in row.values[:2] if isinstance(spot, Spot)]
            axis = Axis.around([v for spot in spots for v in (spot.value, spot.low, spot.high)])
            names = (comparison.table.name, "this run and 95 % interval", "verdict")
            panels = [Panel(name, axis) for name in names]
            where = f"{model} · {quantity}"
            title = f"{comparison.table.name}, {where}: published numbers and those of the run"
            charts.append(LatticeChart(title, panels, rows, model=model, panel=where))
    return charts
