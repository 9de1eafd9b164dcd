"""Every method under every setting: mean and interval as dots and whiskers, and the tables with ranks, counts and cost."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from heatproof.analysis.ranks import Key, Standings
from heatproof.report import charts
from heatproof.report.charts import Axis, Mark, number
from heatproof.report.palette import FAMILIES
from heatproof.report.run_data import Run
from heatproof.report.sections.base import section
from heatproof.report.site import Site

ROOM = {1: 480.0, 2: 330.0}  # px for the marks, by the number of panels side by side
GZIP_ABOVE = 15_000  # rows: a plain file would be some 2 MB


@section(
    "ranking",
    short="Ranking",
    question="How do all methods score, and what do they cost?",
    order=30,
)
def content(run: Run, site: Site) -> dict[str, Any]:
    site.write("summary.csv", run.summary.to_csv(index=False))
    packed = len(run.rows) > GZIP_ABOVE
    scores = "scores.csv.gz" if packed else "scores.csv"
    run.rows.to_csv(
        site.root / scores,
        index=False,
        compression={"method": "gzip", "mtime": 0} if packed else None,
    )
    axes = {p: _axis(run, p) for p in dict.fromkeys(key[0] for key in run.protocols)}
    present = {run.family(m) for m in run.summary["method"]}
    shown = [
        name
        for name in FAMILIES
        if name in present or (name == "other" and present - set(FAMILIES))
    ]
    return {
        "models": [
            {
                "name": s.model,
                "panels": [_panel(run, site, s, key, axes[key[0]]) for key in s.settings],
                "overall": _overall(run, s),
            }
            for s in run.standings
        ],
        "families": [(name, FAMILIES[name].says) for name in shown],
        "scores_file": scores,
        "many_settings": len(run.protocols) > 1,
        "protocols": list({p.id: p for p in run.protocols.values()}.values()),
    }


def _axis(run: Run, protocol: str) -> Axis:
    """One for all models and settings of a protocol, so that panels can be compared by eye."""
    part = run.summary[run.summary["protocol"] == protocol]
    random = [
        p.random_score
        for p in run.protocols.values()
        if p.id == protocol and p.random_score is not None
    ]
    return Axis.around([*part["low"], *part["high"], *random])


def _panel(run: Run, site: Site, standing: Standings, key: Key, axis: Axis) -> dict[str, Any]:
    lines = _lines(run, standing.model, key)
    marks = [
        Mark(
            r["method"],
            run.family(r["method"]),
            r["mean"],
            r["low"],
            r["high"],
            r["rank"],
            _tip(r),
            _unscored(r),
        )
        for r in lines
    ]
    label = run.setting_labels[key]
    title = f"{standing.model}, {key[0]} ({key[1]}), baseline {key[2]}: mean score and 95 % interval of each method"
    return {
        "label": label,
        "figure": site.figure(
            charts.ranking(
                marks,
                axis,
                run.protocols[key].random_score,
                title,
                ROOM.get(len(standing.settings), 196),
            )
        ),
        "rows": lines,
        "judge": run.protocols[key],
    }


def _lines(run: Run, model: str, key: Key) -> list[dict[str, Any]]:
    found = run.summary
    for column, value in zip(
        ("model", "protocol", "setting", "baseline"), (model, *key), strict=True
    ):
        found = found[found[column] == value]
    ordered = found.sort_values("rank", kind="stable", na_position="last")
    return [{**line, **_facts(run, model, line["method"])} for line in _records(ordered)]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in record.items()} for record in frame.to_dict("records")]


def _facts(run: Run, model: str, method: str) -> dict[str, Any]:
    facts = run.methods[method]
    forwards, backwards = facts.cost or (None, None)
    return {
        "family": facts.family,
        "paper": facts.paper,
        "about": facts.summary,
        "canonical": facts.canonical,
        "forwards": forwards,
        "backwards": backwards,
        "milliseconds": run.milliseconds.get((model, method)),
    }


def _unscored(line: dict[str, Any]) -> str:
    kinds = [f"{line[k]} {k}" for k in ("undefined", "failed", "n/a", "skipped") if line[k]]
    return "no score: " + ", ".join(kinds) if kinds else "no score"


def _tip(line: dict[str, Any]) -> str:
    said = [line["method"] + (f"  ({line['paper']})" if line["paper"] else "")]
    if math.isfinite(line["mean"]):
        said.append(
            f"mean {number(line['mean'])} · 95 % interval {number(line['low'])} to {number(line['high'])}"
        )
        said.append(
            f"rank {line['rank']:.0f} · interval {number(line['rank_low'], 0)} to {number(line['rank_high'], 0)} · n = {line['n']}"
        )
    else:
        said.append(_unscored(line))
    return "\n".join(said)


def _overall(run: Run, standing: Standings) -> list[dict[str, Any]]:
    """Mean rank over the settings, and the mean score under each; methods without a score somewhere come last."""
    rest = [m for m in standing.methods if m not in standing.order]
    lines = []
    for method in [*standing.order, *rest]:
        column = standing.methods.index(method)
        place = 1 + int((standing.mean_ranks < standing.mean_ranks[column]).sum())
        lines.append(
            {
                "place": place if method in standing.order else None,
                "method": method,
                "rank": standing.mean_rank(method),
                "means": [float(v) for v in standing.means[:, column]],
                **_facts(run, standing.model, method),
            }
        )
    return lines
