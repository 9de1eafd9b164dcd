"""The score of each method on each network, and the paired differences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from heatproof.analysis import wording
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.paired_differences import family_of_gaps
from heatproof.analysis.ranks import Key
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.axes import Axis
from heatproof.figures.charts import LatticeChart, Panel, Row, Spot
from heatproof.report.sections.common import MethodEstimates, describe_mean, select
from heatproof.report.site import Figure, Site
from heatproof.runs.format import ProtocolFacts

Summary = dict[str, dict[str, Any]]  # method -> its line in the summary


class Column(NamedTuple):
    """A model under a setting."""

    title: str
    model: str
    key: Key


@dataclass(frozen=True)
class Comparison:
    """Networks side by side."""

    label: str
    protocol: ProtocolFacts
    figure: Figure
    against: str
    others: list[str]
    rows: list[MethodEstimates]  # the other columns minus the first, on the samples of both
    marked: list[list[int]]  # by method and other column: 1 better, -1 worse, 0 not shown
    texts: list[str]  # how many methods differ in each other column


def models(run: RunStatistics, site: Site) -> list[Comparison]:
    """Compare all models under each setting; empty for a single model."""
    if len(run.models) < 2:
        return []
    comparisons = []
    for key in run.preferred:
        columns = [Column(run.short_names[model], model, key) for model in run.models]
        comparisons.append(_compare(run, site, run.setting_labels[key], columns))
    return [c for c in comparisons if c is not None]


def copies(run: RunStatistics, site: Site) -> list[Comparison]:
    """Compare each network with its fine-tuned copy under the same setting."""
    comparisons = []
    for model in run.models:
        twins = [(twin, key) for key in run.preferred if (twin := run.plain_twin(model, key))]
        for twin, key in twins:
            suffix = f", {run.setting_labels[key]}" if len(twins) > 1 else ""
            columns = [
                Column(f"original ({run.setting_labels[twin]})", model, twin),
                Column(f"fine-tuned ({run.setting_labels[key]})", model, key),
            ]
            comparisons.append(_compare(run, site, run.short_names[model] + suffix, columns))
    return [c for c in comparisons if c is not None]


def _compare(
    run: RunStatistics, site: Site, label: str, columns: list[Column]
) -> Comparison | None:
    protocol = run.protocols[columns[0].key]
    summaries = [_summary(run, column) for column in columns]
    if not any(summaries):
        return None
    methods = _order(summaries, protocol.higher_is_better)
    axis = _axis(summaries, protocol.random_score)
    panels = [Panel(column.title, axis, protocol.random_score) for column in columns]
    rows = []
    for method in methods:
        spots = [
            _spot(column, summary.get(method))
            for column, summary in zip(columns, summaries, strict=True)
        ]
        rows.append(Row(method, run.family(method), tuple(spots)))
    title = f"{label}: mean score and 95 % interval of each method"
    differences, marked = _differences(run, columns, methods)
    return Comparison(
        label=label,
        protocol=protocol,
        figure=site.figure(LatticeChart(title, panels, rows, panel=label)),
        against=columns[0].title,
        others=[column.title for column in columns[1:]],
        rows=differences,
        marked=marked,
        texts=[_count(run, columns, methods, marked, i) for i in range(len(columns) - 1)],
    )


def _count(
    run: RunStatistics, columns: list[Column], methods: list[str], marked: list[list[int]], i: int
) -> str:
    """Say how many methods, controls aside, differ between a column and the first."""
    higher_is_better = run.protocols[columns[0].key].higher_is_better
    sign = 1 if higher_is_better else -1
    real = [
        sign * m[i] for method, m in zip(methods, marked, strict=True) if not run.is_control(method)
    ]
    text = wording.counts_of_differences(
        real.count(1), real.count(-1), len(real), "higher" if higher_is_better else "lower"
    )
    return f"{columns[i + 1].title}: {text}"


def _summary(run: RunStatistics, column: Column) -> Summary:
    lines = select(run.summary_frame, column.model, column.key).to_dict("records")
    return {line["method"]: {str(k): v for k, v in line.items()} for line in lines}


def _axis(summaries: list[Summary], random_score: float | None) -> Axis:
    values = [] if random_score is None else [random_score]
    for summary in summaries:
        for line in summary.values():
            values += [line["low"], line["high"], line["mean"]]
    return Axis.around(values, most=4)


def _order(summaries: list[Summary], higher_is_better: bool) -> list[str]:
    """Return the methods, best mean over the columns first; those missing from one come later."""
    means = pd.DataFrame(
        [{method: line["mean"] for method, line in summary.items()} for summary in summaries]
    )
    sign = -1 if higher_is_better else 1
    keys = pd.DataFrame({"missing": means.isna().sum(), "score": means.mean() * sign})
    return [str(m) for m in keys.sort_values(["missing", "score"], kind="stable").index]


def _spot(column: Column, line: dict[str, Any] | None) -> Spot | str:
    if line is None:
        return "not evaluated"
    mean, low, high = (line[column] for column in ("mean", "low", "high"))
    if not math.isfinite(mean):
        status = next((s for s in ("n/a", "failed", "missing", "undefined") if line[s]), "no score")
        return "does not apply" if status == "n/a" else status
    numbers = f"{describe_mean(mean, low, high)} · n = {line['n']}"
    return Spot(mean, low, high, f"{line['method']}: {column.title}\n{numbers}")


def _differences(
    run: RunStatistics, columns: list[Column], methods: list[str]
) -> tuple[list[MethodEstimates], list[list[int]]]:
    """Subtract the first column from the others, on the samples that both have, as one family.

    Returns:
        The differences, and by method and column 1 for better, -1 for worse, and 0 for neither.
    """
    tables = [run.table(column.model, column.key) for column in columns]
    first, *others = (table.reindex(columns=methods) for table in tables)
    repeated = pd.concat([first] * len(others), axis=1, keys=range(len(others)))
    found = family_of_gaps(
        pd.concat(others, axis=1, keys=range(len(others))), repeated, run.clusters
    )
    low, high = found.intervals
    direction = 1 if run.protocols[columns[0].key].higher_is_better else -1
    rows, marked = [], []
    for i, method in enumerate(methods):
        places = range(i, len(found.gaps), len(methods))
        ends = [Estimate(*map(float, (found.gaps[k], low[k], high[k]))) for k in places]
        estimates = [e if found.counts[k] else None for e, k in zip(ends, places, strict=True)]
        rows.append(MethodEstimates(method, run.family(method), estimates))
        signs = [
            direction * int(np.sign(found.gaps[k])) if found.significant[k] else 0 for k in places
        ]
        marked.append(signs)
    return rows, marked
