"""Whether the ranking survives another baseline, setting or model: ranks, and their agreement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from heatproof.analysis import wording
from heatproof.analysis.agreement import (
    BASELINE,
    Ranking,
    ranking_under,
    setting_text,
    shared_settings,
)
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Agreement, Standings, agreement
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.analysis.seeds import SeedSpread
from heatproof.analysis.variance import Shares
from heatproof.figures.charts import BumpChart, Ranks
from heatproof.report.sections.base import section
from heatproof.report.site import Figure, Site

LARGEST_TABLE = 12  # rankings
SAME_FROM = 0.7  # mean correlation of two rankings that are much the same
SAME_BELOW = 0.25  # standard deviations of the scores: of zero, mean and median it is 0.02
PAPER_BASELINES = (  # Picard et al. 2024
    "zero",
    "uniform",
    "normal",
    "permutation",
    "local-mean",
    "local-permutation",
    "mean",
    "median",
    "random-color",
    "scramble-phase",
    "scramble-magnitude",
)


@dataclass(frozen=True)
class Subset:
    """The agreement of the rankings under some of the baselines."""

    label: str
    baselines: tuple[str, ...]
    agreement: Agreement


@dataclass(frozen=True)
class Comparison:
    """Rankings side by side; the figure is None if fewer than two methods are in all of them."""

    title: str
    model: str  # empty for a comparison of models
    over: str = ""  # what the rankings have in common, if they differ in one setting alone
    factor: str = ""  # that setting, or "protocol" or "model"
    labels: tuple[str, ...] = ()
    figure: Figure | None = None
    agreement: Agreement | None = None
    leaders: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    table: list[list[Estimate | None]] | None = None
    subsets: tuple[Subset, ...] = ()
    alike: tuple[tuple[str, ...], ...] = ()  # groups of baselines with nearly the same scores

    @property
    def choice(self) -> str:
        """The setting in which the rankings differ."""
        return self.factor or "setting"


@dataclass(frozen=True)
class Twins:
    """The same protocol on a network and on its fine-tuned copy."""

    model: str
    labels: list[str]
    leaders: list[str]
    agreement: Estimate
    methods: int


@dataclass(frozen=True)
class Answer:
    """How far rankings agree when one kind of choice changes: their mean correlations."""

    choice: str  # such as "baseline"
    text: str
    least: Comparison
    most: Comparison
    count: int


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    comparisons: list[Comparison]
    by_model: dict[str, list[Comparison]]
    baselines: list[Comparison]
    controls: list[str]
    twins: list[Twins]
    variance: Shares | None
    seeds: dict[str, list[SeedSpread]]  # by model
    answers: list[Answer]


@section(
    "stability",
    short="Stability",
    question="Does the ranking hold for other baselines and models?",
    order=30,
)
def content(run: RunStatistics, site: Site) -> Content:
    """Return all comparisons of rankings that the run allows."""
    comparisons = []
    for standing in run.standings:
        for at_layer in standing.by_layer:
            real = len(at_layer.methods) - len(run.controls(at_layer.methods))
            if real > 1 or not at_layer.layer:
                comparisons += _comparisons_of_model(run, site, at_layer)
    comparisons += _between_models(run, site)
    return Content(
        comparisons=comparisons,
        by_model={s.model: [c for c in comparisons if c.model == s.model] for s in run.standings},
        baselines=[c for c in comparisons if c.factor == BASELINE and c.agreement],
        controls=run.controls(list(run.methods)),
        answers=_answers(comparisons),
        twins=[twins for standing in run.standings for twins in _twins(run, standing)],
        variance=run.variance_split,
        seeds={m: [s for s in run.seed_spreads if s.key[0] == m] for m in run.models},
    )


def _answers(comparisons: Sequence[Comparison]) -> list[Answer]:
    """Say how far each kind of choice changes the ranking."""
    kinds: dict[str, list[Comparison]] = {}
    for compared in comparisons:
        if compared.agreement and np.isfinite(compared.agreement.mean.value):
            kinds.setdefault(compared.choice, []).append(compared)
    answers = []
    for choice, group in kinds.items():
        ordered = sorted(group, key=lambda compared: _mean_correlation(compared).value)
        text = wording.changes_ranking(choice, _mean_correlation(ordered[0]), SAME_FROM)
        answers.append(Answer(choice, text, ordered[0], ordered[-1], len(group)))
    return answers


def _mean_correlation(compared: Comparison) -> Estimate:
    assert compared.agreement is not None  # or it would not be compared
    return compared.agreement.mean


def _comparisons_of_model(run: RunStatistics, site: Site, standing: Standings) -> list[Comparison]:
    """Compare settings that differ in one thing alone, then protocols under the same settings."""
    comparisons = []
    by_protocol: dict[str, list[int]] = {}
    for s, (protocol, _, _) in enumerate(standing.settings):
        by_protocol.setdefault(protocol, []).append(s)
    for protocol, members in by_protocol.items():
        comparisons += _comparisons_of_protocol(run, site, standing, protocol, members)
    if len(by_protocol) > 1:
        comparisons.append(_between_protocols(run, site, standing))
    return comparisons


def _comparisons_of_protocol(
    run: RunStatistics, site: Site, standing: Standings, protocol: str, members: list[int]
) -> list[Comparison]:
    """Vary one setting of a protocol while all others are equal."""
    where = _where(standing)
    settings = {s: run.setting_values(standing.settings[s]) for s in members}
    varied = _varied(list(settings.values()))
    comparisons = []
    for name in varied:
        groups: dict[tuple[str, ...], list[int]] = {}
        for s in members:
            held = tuple(_part(other, settings[s]) for other in varied if other != name)
            groups.setdefault(held, []).append(s)
        for held, group in groups.items():
            if len(group) < 2:
                continue
            over = " · ".join([protocol, *held])
            labels = [_part(name, settings[s]) for s in group]
            between = "baselines" if name == BASELINE else f"values of {name}"
            title = f"On {where}, {over}: between {between}"
            rankings = [ranking_under(standing, [s]) for s in group]
            if standing.layer:
                over = f"{over} · layer {standing.layer}"
            compared = _compare(
                run, site, title, standing.model, labels, rankings, over, name, protocol
            )
            if name == BASELINE:
                compared = _with_distinct_baselines(run, standing, compared, group)
            comparisons.append(compared)
    if varied and not comparisons:
        labels = [run.setting_labels[standing.settings[s]] for s in members]
        title = f"On {where}, {protocol}: between settings that differ in several things"
        rankings = [ranking_under(standing, [s]) for s in members]
        comparisons.append(
            _compare(run, site, title, standing.model, labels, rankings, protocol=protocol)
        )
    return comparisons


def _between_protocols(run: RunStatistics, site: Site, standing: Standings) -> Comparison:
    """Compare protocols under the settings that they share; a protocol may lack a setting."""
    values = [(key[0], run.setting_values(key)) for key in standing.settings]
    chosen, shared = shared_settings(values)
    labels = []
    for protocol, members in chosen.items():
        single = run.setting_labels[standing.settings[members[0]]]
        labels.append(single if len(members) == 1 else protocol)
    under = f" under {shared}" if shared else ""
    averaged = any(len(members) > 1 for members in chosen.values())
    note = " (mean rank over the settings of each)" if averaged else ""
    title = f"On {_where(standing)}, between protocols{under}{note}"
    rankings = [ranking_under(standing, members) for members in chosen.values()]
    return _compare(run, site, title, standing.model, labels, rankings, factor="protocol")


def _between_models(run: RunStatistics, site: Site) -> list[Comparison]:
    """Compare models at the same layer, under the settings that all of them have."""
    by_layer: dict[str, list[Standings]] = {}
    for standing in run.standings:
        for at_layer in standing.by_layer:
            by_layer.setdefault(at_layer.layer, []).append(at_layer)
    comparisons = []
    for layer, group in by_layer.items():
        shared = [key for key in group[0].settings if all(key in s.settings for s in group)]
        if len(group) < 2 or not shared:
            continue
        rankings = [ranking_under(s, [s.settings.index(key) for key in shared]) for s in group]
        title = f"Between models, at layer {layer}" if layer else "Between models"
        models = [s.model for s in group]
        comparisons.append(_compare(run, site, title, "", models, rankings, factor="model"))
    return comparisons


def _where(standing: Standings) -> str:
    return f"{standing.model} at layer {standing.layer}" if standing.layer else standing.model


def _varied(settings: list[dict[str, str]]) -> list[str]:
    """Return the settings that have several values."""
    names = dict.fromkeys(name for values in settings for name in values)
    return [name for name in names if len({values.get(name) for values in settings}) > 1]


def _part(name: str, settings: dict[str, str]) -> str:
    """Return how a label names the value of a setting."""
    return setting_text(name, settings.get(name, "default"))


def _with_distinct_baselines(
    run: RunStatistics, standing: Standings, compared: Comparison, members: list[int]
) -> Comparison:
    """Add the agreement over baselines that differ, and over those of Picard et al."""
    names = [standing.settings[s][2] for s in members]
    rows = run.rows[
        (run.rows["model"] == standing.model)
        & run.rows["method"].isin([m for m in standing.methods if not run.is_control(m)])
    ]
    key = standing.settings[members[0]]
    rows = rows[(rows["protocol"] == key[0]) & (rows["setting"] == key[1])]
    scores = rows.pivot(index=["method", "sample"], columns="baseline", values="value")
    same = same_baselines(scores.reindex(columns=names))
    first = [group[0] for group in same]
    subsets = {}
    if len(first) < len(names):
        subsets["distinct baselines"] = first
    if set(PAPER_BASELINES) < set(names):
        subsets["the paper's eleven"] = list(PAPER_BASELINES)
    agreements = []
    for label, chosen in subsets.items():
        rankings = [ranking_under(standing, [members[names.index(name)]]) for name in chosen]
        agreed = agreement(rankings, run.controls(standing.methods))
        if agreed:
            agreements.append(Subset(label, tuple(chosen), agreed))
    alike = tuple(tuple(group) for group in same if len(group) > 1)
    return replace(compared, subsets=tuple(agreements), alike=alike)


def same_baselines(scores: pd.DataFrame) -> list[list[str]]:
    """Group baselines whose scores are nearly the same, as those of equal fills are.

    Two baselines count as the same if the root mean square of the differences of their scores is
    less than a quarter of the scores' standard deviation. On images with a grey background, the
    mean colour is such a copy of the middle grey.

    Args:
        scores: Methods and samples down, baselines across.

    Returns:
        All baselines in groups, in their order; a baseline is in the group of the first that it is
        the same as.
    """
    groups: list[list[str]] = []
    for name in scores.columns:
        for group in groups:
            pair = scores[[group[0], name]].dropna()
            difference = float(((pair.iloc[:, 0] - pair.iloc[:, 1]) ** 2).mean() ** 0.5)
            spread = float(pair.var().mean() ** 0.5)
            if len(pair) > 1 and difference <= SAME_BELOW * spread:
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _twins(run: RunStatistics, standing: Standings) -> list[Twins]:
    """Compare the ranking of a network with that of its fine-tuned copy."""
    compared = []
    for s, key in enumerate(standing.settings):
        twin = run.plain_twin(standing.model, key)
        if twin not in standing.settings:
            continue
        both = [standing.settings.index(twin), s]
        rankings = [(standing.methods, standing.ranks[i], standing.drawn_ranks[i]) for i in both]
        agreed = agreement(rankings, run.controls(standing.methods))
        if agreed:
            compared.append(
                Twins(
                    model=run.short_names[standing.model],
                    labels=[run.setting_labels[standing.settings[i]] for i in both],
                    leaders=[_leader(run, _ranks_by_method(ranking)) for ranking in rankings],
                    agreement=agreed.mean,
                    methods=len(agreed.methods),
                )
            )
    return compared


def _ranks_by_method(ranking: Ranking) -> dict[str, float]:
    """Return the finite ranks of a ranking."""
    methods, ranks, _ = ranking
    return {m: float(r) for m, r in zip(methods, ranks, strict=True) if np.isfinite(r)}


def _compare(
    run: RunStatistics,
    site: Site,
    title: str,
    model: str,
    labels: list[str],
    rankings: Sequence[Ranking],
    over: str = "",
    factor: str = "",
    protocol: str = "",
) -> Comparison:
    ranked = [_ranks_by_method(ranking) for ranking in rankings]
    shared = [m for m in ranked[0] if all(m in ranks for ranks in ranked)]
    if len(shared) < 2:
        return Comparison(title, model, over, factor)
    lines = [Ranks(m, run.family(m), tuple(ranks[m] for ranks in ranked)) for m in shared]
    chart = BumpChart(
        f"{title}: the rank of each method",
        labels,
        lines,
        model=model,
        protocol=protocol,
        panel=title,
    )
    agreed = agreement(rankings, run.controls(shared))
    everywhere = dict.fromkeys(m for methods, _, _ in rankings for m in methods)
    return Comparison(
        title,
        model,
        over,
        factor,
        labels=tuple(labels),
        figure=site.figure(chart),
        agreement=agreed,
        leaders=_leaders(run, ranked),
        left_out=tuple(m for m in everywhere if m not in shared),
        table=_table(agreed, len(labels)) if agreed else None,
    )


def _leaders(run: RunStatistics, ranked: Sequence[dict[str, float]]) -> tuple[str, ...]:
    """Return the best method of every ranking: one that is best in all, alone or tied, or each."""
    best = []
    for ranks in ranked:
        first = ranks[_leader(run, ranks)]
        best.append([m for m, r in ranks.items() if r == first and not run.is_control(m)])
    everywhere = [m for m in best[0] if all(m in tied for tied in best)]
    if everywhere:
        return (everywhere[0],)
    return tuple(dict.fromkeys(_leader(run, ranks) for ranks in ranked))


def _leader(run: RunStatistics, ranks: dict[str, float]) -> str:
    """Return the best method; a control only if there is nothing else."""
    real = {m: r for m, r in ranks.items() if not run.is_control(m)} or ranks
    return min(real, key=lambda m: real[m])


def _table(agreed: Agreement, size: int) -> list[list[Estimate | None]] | None:
    """Return the agreement of all pairs, for three rankings and more, as far as they fit."""
    if not 2 < size <= LARGEST_TABLE:
        return None
    return [
        [None if a == b else agreed.pairs[min(a, b), max(a, b)] for b in range(size)]
        for a in range(size)
    ]
