"""The score of every method on every model, the paired differences, and the best score against the accuracy."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from heatproof.analysis.compare import gap, table
from heatproof.analysis.ranks import Key
from heatproof.report import charts
from heatproof.report.charts import Axis, Panel, Row, Spot, number
from heatproof.report.gather import Run
from heatproof.report.site import Site


def content(run: Run, site: Site) -> list[dict[str, Any]]:
    """One comparison a setting; none with one model."""
    return [_setting(run, site, key) for key in run.preferred] if len(run.models) > 1 else []


def _setting(run: Run, site: Site, key: Key) -> dict[str, Any]:
    lines = run.summary
    for column, value in zip(("protocol", "setting", "baseline"), key, strict=True):
        lines = lines[lines[column] == value]
    found = {(line["model"], line["method"]): line for line in lines.to_dict("records")}
    judge = run.judges[key]
    axis = Axis.around([*lines["low"], *lines["high"], *lines["mean"], judge["random_score"]], most=4)
    means = lines.groupby("method", sort=False)["mean"].mean().sort_values(ascending=not judge["higher_is_better"], na_position="last")
    methods = [str(m) for m in means.index]
    panels = [Panel(run.short_names[m], axis, judge["random_score"]) for m in run.models]
    rows = [Row(m, run.family(m), tuple(_spot(run, model, found.get((model, m))) for model in run.models)) for m in methods]
    label = run.setting_labels[key]
    title = f"{label}: mean score and 95 % interval of each method on each model"
    return {
        "label": label,
        "judge": judge,
        "figure": site.figure(charts.lattice(panels, rows, title)),
        "against": run.short_names[run.models[0]],
        "others": [run.short_names[m] for m in run.models[1:]],
        "gaps": _gaps(run, key, methods),
    }


def _spot(run: Run, model: str, line: dict[str, Any] | None) -> Spot | str:
    if line is None or not math.isfinite(line["mean"]):
        return "not judged" if line is None else next((k for k in ("n/a", "failed", "undefined") if line[k]), "no score")
    interval = f"95 % interval {number(line['low'])} to {number(line['high'])}"
    return Spot(line["mean"], line["low"], line["high"], f"{line['method']} on {model}\nmean {number(line['mean'])} · {interval} · n = {line['n']}")


def _gaps(run: Run, key: Key, methods: list[str]) -> list[dict[str, Any]]:
    """Every model minus the first, method by method, on the samples that both have."""
    first, *others = (table(run.rows, model, key) for model in run.models)
    empty = pd.Series(dtype=float)
    rows = []
    for method in methods:
        found = [gap(other.get(method, empty), first.get(method, empty)) for other in others]
        rows.append({"method": method, "family": run.family(method), "cells": [(e, n) if n else None for e, n in found]})
    return rows
