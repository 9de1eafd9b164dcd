"""Is an accurate network harder to explain? The score of the best method against the accuracy (Figure 5b of Hesse et al. 2024)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from heatproof.analysis.accuracy import wilson
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Key
from heatproof.protocols import ViewKey
from heatproof.report import charts
from heatproof.report.charts import Axis, Point, Spot, number
from heatproof.report.run_data import Run
from heatproof.report.site import Site


class Best(NamedTuple):
    model: str
    view: ViewKey
    setting: str
    method: str
    score: Estimate
    accuracy: Estimate
    labelled: int


def content(run: Run, site: Site) -> dict[str, Any] | None:
    """One setting, under the fine-tuned weights and under those as they are; none with a single mark."""
    found = [
        b for model in run.models for key in _settings(run, model) if (b := best(run, model, key))
    ]
    if len({b.model for b in found}) < 2:
        return None
    last = {b.model: b for b in found}
    points = [
        Point(
            100 * b.accuracy.value,
            _spot(run, b),
            run.family(b.method),
            _label(run, b) if b is last[b.model] else "",
            b.model,
            b is last[b.model],
        )
        for b in found
    ]
    title = "Score of the best method against the accuracy of the model"
    labels = ("correct on intact images", "mean score of the best method")
    varied = len({p.x for p in points}) > 1
    across, up = (
        Axis.around([p.x for p in points], most=6),
        Axis.around([v for b in found for v in b.score]),
    )
    return {
        "figure": site.figure(charts.scatter(points, across, up, labels, title, " %"))
        if varied
        else None,
        "rows": [
            {
                "best": b,
                "model": run.short_names[b.model],
                "family": run.family(b.method),
                "weights": "fine-tuned" if b.view.is_fine_tuned else "as it is",
            }
            for b in found
        ],
        "pairs": any(b.view.is_fine_tuned for b in found) and any(b.view.is_plain for b in found),
    }


def _settings(run: Run, model: str) -> list[Key]:
    """The same question, first of the model as it is."""
    key = run.preferred[0]
    twin = run.plain_twin(model, key)
    return [twin, key] if twin else [key]


def best(run: Run, model: str, key: Key) -> Best | None:
    """Of what is no control; none without a score, or without labels."""
    protocol, view = run.protocols[key], run.view_of(model, key)
    lines = run.summary[
        (run.summary["model"] == model) & ~run.summary["method"].map(run.is_control)
    ]
    for column, value in zip(("protocol", "setting", "baseline"), key, strict=True):
        lines = lines[lines[column] == value]
    lines = lines[lines["mean"].notna()].sort_values(
        "mean", ascending=not protocol.higher_is_better, kind="stable"
    )
    correct, labelled = run.accuracy_of(model, view)
    if not len(lines) or not labelled:
        return None
    line = lines.iloc[0]
    share = Estimate(correct / labelled, *wilson(correct / labelled, labelled))
    score = Estimate(line["mean"], line["low"], line["high"])
    return Best(model, view, run.setting_labels[key], str(line["method"]), score, share, labelled)


def _label(run: Run, found: Best) -> str:
    return f"{run.short_names[found.model]}: {found.method}"


def _spot(run: Run, found: Best) -> Spot:
    score, share = found.score, found.accuracy
    interval = (
        f" (95 % interval {number(score.low)} to {number(score.high)})"
        if math.isfinite(score.low)
        else ""
    )
    said = [
        f"{run.short_names[found.model]}, {found.view.description}: {found.method}",
        f"{found.setting}: {number(score.value)}{interval}",
        f"correct: {number(100 * share.value, 1)} % ({number(100 * share.low, 1)} to {number(100 * share.high, 1)})",
    ]
    return Spot(*score, "\n".join(said))
