"""Is an accurate network harder to explain? Best score against accuracy (Hesse 2024, Fig. 5b)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from heatproof.analysis.accuracy import wilson
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Key
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.axes import Axis
from heatproof.figures.charts import Point, ScatterChart, Spot
from heatproof.figures.numbers import interval, number
from heatproof.protocols import ViewKey
from heatproof.report.sections.common import describe_mean, select
from heatproof.report.site import Figure, Site


class Best(NamedTuple):
    """The best method of a network under a setting."""

    model: str
    view: ViewKey
    setting: str
    method: str
    score: Estimate
    accuracy: Estimate
    labelled: int


@dataclass(frozen=True)
class BestMethods:
    """The best methods; the figure is None if all networks have the same accuracy."""

    figure: Figure | None
    rows: list[Best]
    pairs: bool  # whether there are both original and fine-tuned weights


def content(run: RunStatistics, site: Site) -> BestMethods | None:
    """Return the best method of each network under one setting; None for a single model."""
    candidates = [best(run, model, key) for model in run.models for key in _settings(run, model)]
    winners = [b for b in candidates if b is not None]
    if len({b.model for b in winners}) < 2:
        return None
    varied = len({b.accuracy.value for b in winners}) > 1
    return BestMethods(
        figure=_figure(run, site, winners) if varied else None,
        rows=winners,
        pairs=any(b.view.is_fine_tuned for b in winners) and any(b.view.is_plain for b in winners),
    )


def _figure(run: RunStatistics, site: Site, winners: list[Best]) -> Figure:
    last = {b.model: b for b in winners}
    points = []
    for b in winners:
        is_last = b is last[b.model]
        points.append(
            Point(
                x=100 * b.accuracy.value,
                spot=_spot(run, b),
                family=run.family(b.method),
                label=f"{run.short_names[b.model]}: {b.method}" if is_last else "",
                series=b.model,
                large=is_last,
            )
        )
    across = Axis.around([p.x for p in points], most=6)
    up = Axis.around([v for b in winners for v in b.score])
    labels = ("accuracy on intact images", "mean score of the best method")
    title = "Score of the best method against the accuracy of the model"
    return site.figure(ScatterChart(title, points, across, up, labels, " %"))


def _settings(run: RunStatistics, model: str) -> list[Key]:
    """Return the preferred setting, after the same one for the original weights."""
    key = run.preferred[0]
    twin = run.plain_twin(model, key)
    return [twin, key] if twin else [key]


def best(run: RunStatistics, model: str, key: Key) -> Best | None:
    """Return the best method that is not a control; None without scores or labels.

    Args:
        run: The run.
        model: Name of the model.
        key: (protocol, setting, baseline).
    """
    view = run.view_of(model, key)
    correct, labelled = run.accuracy_of(model, view)
    lines = select(run.summary_frame, model, key)
    lines = lines[~lines["method"].map(run.is_control).astype(bool) & lines["rank"].notna()]
    if not len(lines) or not labelled:
        return None
    ascending = not run.protocols[key].higher_is_better
    line = lines.sort_values("mean", ascending=ascending, kind="stable").iloc[0]
    accuracy = Estimate(correct / labelled, *wilson(correct / labelled, labelled))
    score = Estimate(line["mean"], line["low"], line["high"])
    setting = run.setting_labels[key]
    return Best(model, view, setting, str(line["method"]), score, accuracy, labelled)


def _spot(run: RunStatistics, best: Best) -> Spot:
    value, low, high = best.score
    accuracy = Estimate(*(100 * v for v in best.accuracy))
    lines = [
        f"{run.short_names[best.model]}, {best.view.description}: {best.method}",
        f"{best.setting}: {describe_mean(value, low, high)}",
        f"accuracy: {number(accuracy.value, 1)} % ({interval(*accuracy, 1)})",
    ]
    return Spot(value, low, high, "\n".join(lines))
