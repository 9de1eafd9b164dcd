"""The score of every method on every network, and the paired differences."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pandas as pd

from heatproof.analysis.compare import gap, table
from heatproof.analysis.ranks import Key
from heatproof.report import charts
from heatproof.report.charts import Axis, Panel, Row, Spot, number
from heatproof.report.run_data import Run
from heatproof.report.site import Site


class Column(NamedTuple):
    title: str
    model: str
    key: Key


def models(run: Run, site: Site) -> list[dict[str, Any]]:
    """All models under each setting; none with one model."""
    if len(run.models) < 2:
        return []
    columns = {
        key: [Column(run.short_names[model], model, key) for model in run.models]
        for key in run.preferred
    }
    return [
        found
        for key in columns
        if (found := _compare(run, site, run.setting_labels[key], columns[key]))
    ]


def copies(run: Run, site: Site) -> list[dict[str, Any]]:
    """Each network and its fine-tuned copy, asked the same."""
    found = []
    for model in run.models:
        pairs = [(twin, key) for key in run.preferred if (twin := run.plain_twin(model, key))]
        for twin, key in pairs:
            label = run.short_names[model] + (
                f", {run.setting_labels[key]}" if len(pairs) > 1 else ""
            )
            columns = [
                Column(f"{what} ({run.setting_labels[k]})", model, k)
                for what, k in (("as it is", twin), ("fine-tuned", key))
            ]
            found.append(_compare(run, site, label, columns))
    return [f for f in found if f]


def _compare(run: Run, site: Site, label: str, columns: list[Column]) -> dict[str, Any] | None:
    protocol = run.protocols[columns[0].key]
    lines = [_lines(run, column) for column in columns]
    if not any(lines):
        return None
    ends = [
        line[end] for found in lines for line in found.values() for end in ("low", "high", "mean")
    ]
    axis = Axis.around(
        [*ends, *([protocol.random_score] if protocol.random_score is not None else [])], most=4
    )
    methods = _order(lines, protocol.higher_is_better)
    panels = [Panel(column.title, axis, protocol.random_score) for column in columns]
    rows = [
        Row(
            m,
            run.family(m),
            tuple(_spot(c, found.get(m)) for c, found in zip(columns, lines, strict=True)),
        )
        for m in methods
    ]
    return {
        "label": label,
        "judge": protocol,
        "figure": site.figure(
            charts.lattice(panels, rows, f"{label}: mean score and 95 % interval of each method")
        ),
        "against": columns[0].title,
        "others": [column.title for column in columns[1:]],
        "gaps": _gaps(run, columns, methods),
    }


def _lines(run: Run, column: Column) -> dict[str, dict[str, Any]]:
    """method -> its line in the summary"""
    found = run.summary[run.summary["model"] == column.model]
    for name, value in zip(("protocol", "setting", "baseline"), column.key, strict=True):
        found = found[found[name] == value]
    return {line["method"]: line for line in found.to_dict("records")}


def _order(lines: list[dict[str, dict[str, Any]]], higher_is_better: bool) -> list[str]:
    """Best mean over the columns first; a method that is missing from one comes later, whatever its mean."""
    means = pd.DataFrame(
        [{method: line["mean"] for method, line in found.items()} for found in lines]
    )
    ordered = pd.DataFrame(
        {"missing": means.isna().sum(), "score": means.mean() * (-1 if higher_is_better else 1)}
    )
    return [str(m) for m in ordered.sort_values(["missing", "score"], kind="stable").index]


def _spot(column: Column, line: dict[str, Any] | None) -> Spot | str:
    if line is None or not math.isfinite(line["mean"]):
        return (
            "not judged"
            if line is None
            else next((k for k in ("n/a", "failed", "undefined") if line[k]), "no score")
        )
    said = f"mean {number(line['mean'])} · 95 % interval {number(line['low'])} to {number(line['high'])} · n = {line['n']}"
    return Spot(
        line["mean"], line["low"], line["high"], f"{line['method']}: {column.title}\n{said}"
    )


def _gaps(run: Run, columns: list[Column], methods: list[str]) -> list[dict[str, Any]]:
    """Every column minus the first, method by method, on the samples that both have."""
    first, *others = (table(run.rows, column.model, column.key) for column in columns)
    empty = pd.Series(dtype=float)
    rows = []
    for method in methods:
        found = [gap(other.get(method, empty), first.get(method, empty)) for other in others]
        rows.append(
            {
                "method": method,
                "family": run.family(method),
                "cells": [(e, n) if n else None for e, n in found],
            }
        )
    return rows
