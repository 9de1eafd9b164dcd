"""Whether the ranking survives another baseline, setting or model: rank lines, and the agreement of the rankings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heatproof.analysis.ranks import Agreement, Standings, agreement
from heatproof.report import charts
from heatproof.report.charts import Line
from heatproof.report.gather import Run
from heatproof.report.site import Site

Ranking = tuple[Sequence[str], np.ndarray, np.ndarray]  # methods, ranks (M,), drawn ranks (R, M)
LARGEST_TABLE = 12  # rankings


def content(run: Run, site: Site) -> dict[str, Any]:
    comparisons = []
    for standing in run.standings:
        labels = [run.setting_labels[key] for key in standing.settings]
        rankings = [(standing.methods, standing.ranks[s], standing.drawn_ranks[s]) for s in range(len(labels))]
        comparisons.append(_compare(run, site, f"On {standing.model}, from setting to setting", standing.model, labels, rankings))
    models = [(s.methods, _places(s), s.drawn_mean_ranks) for s in run.standings]
    comparisons.append(_compare(run, site, "From model to model", "", [s.model for s in run.standings], models))
    return {
        "comparisons": [c for c in comparisons if c],
        "settings": len(run.judges),
        "models": len(run.standings),
        "controls": run.controls(list(run.methods)),
        "twins": [twin for standing in run.standings for twin in _twins(run, standing)],
    }


def _twins(run: Run, standing: Standings) -> list[dict[str, Any]]:
    """The ranking of the network as it is against that of its fine-tuned copy, where both were asked the same."""
    found = []
    for s, key in enumerate(standing.settings):
        twin = run.plain_twin(standing.model, key)
        both = [standing.settings.index(twin), s] if twin in standing.settings else []
        agreed = agreement([(standing.methods, standing.ranks[i], standing.drawn_ranks[i]) for i in both], run.controls(standing.methods))
        if agreed:
            ranked = [{m: r for m, r in zip(standing.methods, standing.ranks[i], strict=True) if np.isfinite(r)} for i in both]
            labels = [run.setting_labels[standing.settings[i]] for i in both]
            leaders = [_leader(run, r) for r in ranked]
            facts = {"model": run.short_names[standing.model], "labels": labels, "leaders": leaders}
            found.append({**facts, "agreed": agreed.mean, "methods": len(agreed.methods)})
    return found


def _places(standing: Standings) -> np.ndarray:  # (M,)
    """The rank of the mean ranks: 1, 2, 3; equal ones share the better place."""
    means = standing.mean_ranks
    return np.where(np.isfinite(means), 1.0 + (means[None, :] < means[:, None]).sum(1), np.nan)


def _compare(run: Run, site: Site, title: str, model: str, labels: list[str], rankings: Sequence[Ranking]) -> dict[str, Any] | None:
    if len(labels) < 2:
        return None
    ranked = [{m: float(r) for m, r in zip(methods, ranks, strict=True) if np.isfinite(r)} for methods, ranks, _ in rankings]
    shared = [m for m in ranked[0] if all(m in r for r in ranked)]
    if len(shared) < 2:
        return {"title": title, "model": model, "figure": None, "left_out": [], "found": None}
    lines = [Line(m, run.family(m), tuple(r[m] for r in ranked)) for m in shared]
    found = agreement(rankings, run.controls(shared))
    return {
        "title": title,
        "model": model,
        "figure": site.figure(charts.bump(labels, lines, f"{title}: the rank of each method")),
        "left_out": [m for m in dict.fromkeys(m for methods, _, _ in rankings for m in methods) if m not in shared],
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
    return [[None if a == b else found.pairs[min(a, b), max(a, b)] for b in range(size)] for a in range(size)]
