"""Whether the ranking survives another baseline, setting or model: ranks, and their agreement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Agreement, Standings, agreement
from heatproof.report import charts
from heatproof.report.charts import Line
from heatproof.report.run_data import Run
from heatproof.report.sections.base import section
from heatproof.report.site import Figure, Site

Ranking = tuple[Sequence[str], np.ndarray, np.ndarray]  # methods, ranks (M,), drawn ranks (R, M)
LARGEST_TABLE = 12  # rankings


@dataclass(frozen=True)
class Comparison:
    """Rankings side by side; the figure is None if fewer than two methods are in all of them."""

    title: str
    model: str  # empty for a comparison of models
    over: str = ""  # what the rankings have in common if they differ in the baseline alone
    labels: tuple[str, ...] = ()
    figure: Figure | None = None
    agreement: Agreement | None = None
    leaders: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    table: list[list[Estimate | None]] | None = None


@dataclass(frozen=True)
class Twins:
    """The same protocol on a network and on its fine-tuned copy."""

    model: str
    labels: list[str]
    leaders: list[str]
    agreement: Estimate
    methods: int


@dataclass(frozen=True)
class Content:
    """What the template shows."""

    comparisons: list[Comparison]
    by_model: dict[str, list[Comparison]]
    baselines: list[Comparison]
    controls: list[str]
    twins: list[Twins]


@section(
    "stability",
    short="Stability",
    question="Does the ranking hold for other baselines and models?",
    order=60,
)
def content(run: Run, site: Site) -> Content:
    """Return all comparisons of rankings that the run allows."""
    comparisons = []
    for standing in run.standings:
        comparisons += _comparisons_of_model(run, site, standing)
    if len(run.standings) > 1:
        models = [(s.methods, _positions(s.mean_ranks), s.drawn_mean_ranks) for s in run.standings]
        names = [s.model for s in run.standings]
        comparisons.append(_compare(run, site, "Between models", "", "", names, models))
    return Content(
        comparisons=comparisons,
        by_model={s.model: [c for c in comparisons if c.model == s.model] for s in run.standings},
        baselines=[c for c in comparisons if c.over and c.agreement],
        controls=run.controls(list(run.methods)),
        twins=[twins for standing in run.standings for twins in _twins(run, standing)],
    )


def _comparisons_of_model(run: Run, site: Site, standing: Standings) -> list[Comparison]:
    """Compare settings or, where protocols have several baselines, baselines and protocols."""
    model = standing.model
    groups: dict[tuple[str, str], list[int]] = {}
    for s, (protocol, setting, _) in enumerate(standing.settings):
        groups.setdefault((protocol, setting), []).append(s)
    if len(standing.settings) < 2:
        return []
    if len(groups) in (1, len(standing.settings)):
        everything = range(len(standing.settings))
        labels = [run.setting_labels[key] for key in standing.settings]
        over = _in_common(run, standing, everything) if len(groups) == 1 else ""
        rankings = [_ranking(standing, [s]) for s in everything]
        title = f"On {model}, between settings"
        return [_compare(run, site, title, model, over, labels, rankings)]
    comparisons = []
    for members in groups.values():
        if len(members) > 1:
            over = _in_common(run, standing, members)
            labels = [standing.settings[s][2] for s in members]
            rankings = [_ranking(standing, [s]) for s in members]
            title = f"On {model}, {over}: between baselines"
            comparisons.append(_compare(run, site, title, model, over, labels, rankings))
    labels = [_in_common(run, standing, members) for members in groups.values()]
    rankings = [_ranking(standing, members) for members in groups.values()]
    title = f"On {model}, between protocols (mean rank over the baselines of each)"
    return [*comparisons, _compare(run, site, title, model, "", labels, rankings)]


def _in_common(run: Run, standing: Standings, members: Sequence[int]) -> str:
    """Return the parts of the label that the settings of a group share."""
    labels = [run.setting_parts(standing.settings[s]) for s in members]
    shared = [part for part in labels[0] if all(part in other for other in labels)]
    return " · ".join(shared) or standing.settings[members[0]][0]


def _ranking(standing: Standings, members: Sequence[int]) -> Ranking:
    means = standing.ranks[members].mean(0)
    return standing.methods, _positions(means), standing.drawn_ranks[members].mean(0)


def _twins(run: Run, standing: Standings) -> list[Twins]:
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


def _positions(ranks: np.ndarray) -> np.ndarray:  # (M,)
    """Return the ranks of mean ranks: 1, 2, 3; equal ones share the better rank."""
    return np.where(np.isfinite(ranks), 1.0 + (ranks[None, :] < ranks[:, None]).sum(1), np.nan)


def _ranks_by_method(ranking: Ranking) -> dict[str, float]:
    """Return the finite ranks of a ranking."""
    methods, ranks, _ = ranking
    return {m: float(r) for m, r in zip(methods, ranks, strict=True) if np.isfinite(r)}


def _compare(
    run: Run,
    site: Site,
    title: str,
    model: str,
    over: str,
    labels: list[str],
    rankings: Sequence[Ranking],
) -> Comparison:
    ranked = [_ranks_by_method(ranking) for ranking in rankings]
    shared = [m for m in ranked[0] if all(m in ranks for ranks in ranked)]
    if len(shared) < 2:
        return Comparison(title, model, over)
    lines = [Line(m, run.family(m), tuple(ranks[m] for ranks in ranked)) for m in shared]
    agreed = agreement(rankings, run.controls(shared))
    everywhere = dict.fromkeys(m for methods, _, _ in rankings for m in methods)
    return Comparison(
        title,
        model,
        over,
        labels=tuple(labels),
        figure=site.figure(charts.bump(labels, lines, f"{title}: the rank of each method")),
        agreement=agreed,
        leaders=tuple(dict.fromkeys(_leader(run, ranks) for ranks in ranked)),
        left_out=tuple(m for m in everywhere if m not in shared),
        table=_table(agreed, len(labels)) if agreed else None,
    )


def _leader(run: Run, ranks: dict[str, float]) -> str:
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
