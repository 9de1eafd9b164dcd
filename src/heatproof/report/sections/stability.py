"""Whether the ranking survives another baseline, setting or model: rank lines, and the agreement of the rankings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heatproof.analysis.ranks import Agreement, Standings, agreement
from heatproof.report import charts
from heatproof.report.charts import Line
from heatproof.report.run_data import Run
from heatproof.report.sections.base import section
from heatproof.report.site import Site

Ranking = tuple[Sequence[str], np.ndarray, np.ndarray]  # methods, ranks (M,), drawn ranks (R, M)
LARGEST_TABLE = 12  # rankings


@section(
    "stability",
    short="Stability",
    question="Does the ranking survive another baseline or another model?",
    order=60,
)
def content(run: Run, site: Site) -> dict[str, Any]:
    comparisons = [c for standing in run.standings for c in _of_model(run, site, standing)]
    models = [(s.methods, _places(s.mean_ranks), s.drawn_mean_ranks) for s in run.standings]
    comparisons.append(
        _compare(run, site, "From model to model", "", [s.model for s in run.standings], models)
    )
    return {
        "comparisons": [c for c in comparisons if c],
        "by_model": {
            s.model: [c for c in comparisons if c and c["model"] == s.model] for s in run.standings
        },
        "baselines": [c for c in comparisons if c and c.get("over") and c["found"]],
        "settings": len(run.protocols),
        "models": len(run.standings),
        "controls": run.controls(list(run.methods)),
        "twins": [twin for standing in run.standings for twin in _twins(run, standing)],
    }


def _of_model(run: Run, site: Site, standing: Standings) -> list[dict[str, Any] | None]:
    """From setting to setting; or, where protocols have several baselines, from baseline to baseline and from protocol to protocol."""
    groups: dict[tuple[str, str], list[int]] = {}
    for s, (protocol, setting, _) in enumerate(standing.settings):
        groups.setdefault((protocol, setting), []).append(s)
    if len(groups) == len(standing.settings) or len(groups) == 1:
        labels = [run.setting_labels[key] for key in standing.settings]
        rankings = [_ranking(standing, [s]) for s in range(len(labels))]
        whole = _compare(
            run,
            site,
            f"On {standing.model}, from setting to setting",
            standing.model,
            labels,
            rankings,
        )
        return [
            {**whole, "over": _over(run, standing, range(len(labels)))}
            if whole and len(groups) == 1
            else whole
        ]
    found: list[dict[str, Any] | None] = []
    for members in groups.values():
        labels, over = [standing.settings[s][2] for s in members], _over(run, standing, members)
        title = f"On {standing.model}, {over}: from baseline to baseline"
        one = _compare(
            run, site, title, standing.model, labels, [_ranking(standing, [s]) for s in members]
        )
        found.append({**one, "over": over} if one else None)
    labels = [_over(run, standing, members) for members in groups.values()]
    title = f"On {standing.model}, from protocol to protocol (mean rank over the baselines of each)"
    return [
        *found,
        _compare(
            run,
            site,
            title,
            standing.model,
            labels,
            [_ranking(standing, members) for members in groups.values()],
        ),
    ]


def _over(run: Run, standing: Standings, members: Sequence[int]) -> str:
    """What the settings of a group have in common, in few words."""
    told = [run.setting_labels[standing.settings[s]].split(" · ") for s in members]
    return (
        " · ".join(t for t in told[0] if all(t in other for other in told))
        or standing.settings[members[0]][0]
    )


def _ranking(standing: Standings, members: Sequence[int]) -> Ranking:
    means = standing.ranks[members].mean(0)
    return standing.methods, _places(means), standing.drawn_ranks[members].mean(0)


def _twins(run: Run, standing: Standings) -> list[dict[str, Any]]:
    """The ranking of the network as it is against that of its fine-tuned copy, where both were asked the same."""
    found = []
    for s, key in enumerate(standing.settings):
        twin = run.plain_twin(standing.model, key)
        both = [standing.settings.index(twin), s] if twin in standing.settings else []
        agreed = agreement(
            [(standing.methods, standing.ranks[i], standing.drawn_ranks[i]) for i in both],
            run.controls(standing.methods),
        )
        if agreed:
            ranked = [
                {
                    m: r
                    for m, r in zip(standing.methods, standing.ranks[i], strict=True)
                    if np.isfinite(r)
                }
                for i in both
            ]
            labels = [run.setting_labels[standing.settings[i]] for i in both]
            leaders = [_leader(run, r) for r in ranked]
            facts = {"model": run.short_names[standing.model], "labels": labels, "leaders": leaders}
            found.append({**facts, "agreed": agreed.mean, "methods": len(agreed.methods)})
    return found


def _places(ranks: np.ndarray) -> np.ndarray:  # (M,)
    """The rank of (mean) ranks: 1, 2, 3; equal ones share the better place."""
    return np.where(np.isfinite(ranks), 1.0 + (ranks[None, :] < ranks[:, None]).sum(1), np.nan)


def _compare(
    run: Run, site: Site, title: str, model: str, labels: list[str], rankings: Sequence[Ranking]
) -> dict[str, Any] | None:
    if len(labels) < 2:
        return None
    ranked = [
        {m: float(r) for m, r in zip(methods, ranks, strict=True) if np.isfinite(r)}
        for methods, ranks, _ in rankings
    ]
    shared = [m for m in ranked[0] if all(m in r for r in ranked)]
    if len(shared) < 2:
        return {"title": title, "model": model, "figure": None, "left_out": [], "found": None}
    lines = [Line(m, run.family(m), tuple(r[m] for r in ranked)) for m in shared]
    found = agreement(rankings, run.controls(shared))
    return {
        "title": title,
        "model": model,
        "figure": site.figure(charts.bump(labels, lines, f"{title}: the rank of each method")),
        "left_out": [
            m
            for m in dict.fromkeys(m for methods, _, _ in rankings for m in methods)
            if m not in shared
        ],
        "found": found,
        "labels": labels,
        "leaders": list(dict.fromkeys(_leader(run, r) for r in ranked)),
        "table": _table(found, len(labels)) if found else None,
    }


def _leader(run: Run, ranks: dict[str, float]) -> str:
    real = {m: r for m, r in ranks.items() if not run.is_control(m)} or ranks
    return min(real, key=lambda m: real[m])


def _table(found: Agreement, size: int) -> list[list[Any]] | None:
    """Every pair; for three rankings and more, up to what fits on a page."""
    if not 2 < size <= LARGEST_TABLE:
        return None
    return [
        [None if a == b else found.pairs[min(a, b), max(a, b)] for b in range(size)]
        for a in range(size)
    ]
