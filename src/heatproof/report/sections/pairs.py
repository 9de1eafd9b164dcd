"""Pairs of methods that differ in one respect: signed or absolute values, logit or softmax.

Hesse et al. 2024, Figs 2b, 4b and 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from heatproof.analysis import wording
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.paired_differences import family_of_gaps
from heatproof.analysis.ranks import Key
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.axes import Axis
from heatproof.figures.charts import Mark, RankingChart
from heatproof.report.sections.base import section
from heatproof.report.sections.common import describe_mean
from heatproof.report.site import Figure, Site

KINDS = {
    "absolute": "Absolute in place of signed values",
    "softmax": "The softmax explained in place of the logit",
}
FEWEST = 3  # pairs of a kind, below which there is no pattern to see
ROOM = 420.0  # px for the marks


@dataclass(frozen=True)
class Comparison:
    """All pairs of one kind, on one model under one setting."""

    model: str
    setting: str
    figure: Figure
    text: str  # how many of them differ


@dataclass(frozen=True)
class Content:
    """The content of the template: comparisons by the title of their kind."""

    kinds: dict[str, list[Comparison]]


@section(
    "pairs",
    short="Pairs",
    question="What do absolute values, or the softmax, change?",
    order=26,
    page="Ranking",
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Compare methods with their counterparts; None if there are too few pairs."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    for kind, original, changed in _pairs(run):
        pairs.setdefault(kind, []).append((original, changed))
    kinds = {}
    for kind, of_kind in pairs.items():
        compared = [
            _compare(run, site, standing.model, key, KINDS[kind], of_kind)
            for standing in run.standings
            for key in standing.settings
        ]
        found = [comparison for comparison in compared if comparison is not None]
        if found:
            kinds[KINDS[kind]] = found
    return Content(kinds) if kinds else None


def _pairs(run: RunStatistics) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the original and the changed method of every pair."""
    by_canonical = {facts.canonical: label for label, facts in run.methods.items()}
    for label, facts in run.methods.items():
        last = facts.transforms[-1].name if facts.transforms else ""
        if last == "abs" and facts.before_last in run.methods:
            yield "absolute", facts.before_last, label
        of_logit = facts.canonical.replace("score=softmax", "score=logit")
        if of_logit != facts.canonical and of_logit in by_canonical:
            yield "softmax", by_canonical[of_logit], label


def _compare(
    run: RunStatistics, site: Site, model: str, key: Key, title: str, pairs: list[tuple[str, str]]
) -> Comparison | None:
    scores = run.table(model, key)
    scored = [pair for pair in pairs if set(pair) <= set(scores)]
    originals = scores[[o for o, _ in scored]]
    found = family_of_gaps(scores[[c for _, c in scored]], originals, run.clusters)
    marks = []
    differences: list[Estimate] = []
    significant = []
    low, high = found.intervals
    for k, (original, changed) in enumerate(scored):
        if found.counts[k] < 2:
            continue
        difference = Estimate(float(found.gaps[k]), float(low[k]), float(high[k]))
        differences.append(difference)
        significant.append(bool(found.significant[k]))
        tip = f"{changed} − {original}\n{describe_mean(*difference)}"
        marks.append(Mark(original, run.family(original), *difference, float("nan"), tip, ""))
    if len(differences) < FEWEST:
        return None
    marks.sort(key=lambda mark: -mark.mean)
    axis = Axis.around([value for difference in differences for value in difference] + [0.0])
    caption = f"{model}, {run.setting_labels[key]}: {title.lower()}, difference of each method"
    chart = RankingChart(
        caption,
        marks,
        axis,
        0.0,
        "no change",
        "difference of the means and 95 % interval",
        ROOM,
        model=model,
        protocol=key[0],
    )
    signs = [
        (d.value > 0) - (d.value < 0) if s else 0
        for d, s in zip(differences, significant, strict=True)
    ]
    better = "higher" if run.protocols[key].higher_is_better else "lower"
    return Comparison(
        model=run.short_names[model],
        setting=run.setting_labels[key],
        figure=site.figure(chart),
        text=wording.counts_of_differences(
            signs.count(1), signs.count(-1), len(differences), better
        ),
    )
