"""Details of a verdict: each protocol alone, the leader's cost, and the ranking in short."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from heatproof.analysis import wording
from heatproof.analysis.evidence import Evidence
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures import svg
from heatproof.figures.axes import Axis

MOST_ROWS = 8  # methods of the ranking in short; controls are always in it


@dataclass(frozen=True)
class LeaderCost:
    """The cost of a map of the leader; None is unknown."""

    forwards: int
    backwards: int
    milliseconds: float | None  # of one map, alone; None: not timed
    is_from_run: bool  # whether that is the time in the run, as timing it alone would take long
    in_batch: float | None  # milliseconds of one map in a batch
    batch_size: int
    cheaper_milliseconds: float | None
    cheaper: str  # the cheapest method that may be the best as well, if it needs fewer passes
    cheaper_passes: int | None


@dataclass(frozen=True)
class BriefRow:
    """A method in the ranking in short."""

    position: int
    method: str
    rank: Estimate
    interval: Markup
    passes: int | None


@dataclass(frozen=True)
class BriefRanking:
    """The best methods and all controls."""

    rows: list[BriefRow]
    last: int  # the lowest rank that a method can have
    more: int  # methods that are only in the full ranking
    unranked: list[str]


def by_protocol(evidence: Evidence) -> list[str]:
    """Say which method is the best by each protocol that counts; nothing if there is only one."""
    standing = evidence.standing
    used = {i: standing.settings[i][0] for i, weight in enumerate(standing.weights) if weight}
    protocols = list(dict.fromkeys(used.values()))
    if len(protocols) < 2:
        return []
    sentences = []
    for protocol in protocols:
        chosen = [i for i, name in used.items() if name == protocol]
        alone = evidence.under(chosen)
        if alone.leader:
            score = alone.standing.score(0, alone.leader) if len(chosen) == 1 else None
            sentences.append(wording.by_protocol(alone, protocol, score))
    return sentences


def leader_cost(run: RunStatistics, evidence: Evidence) -> LeaderCost | None:
    """Return what a map of the leader costs; None if this is not known."""
    facts = run.methods[evidence.leader]
    if facts.cost is None:
        return None
    cheaper = evidence.cheapest
    latency = run.latencies.get((evidence.model, evidence.leader))
    of_cheaper = run.latencies.get((evidence.model, cheaper))
    return LeaderCost(
        forwards=facts.cost[0],
        backwards=facts.cost[1],
        milliseconds=latency.milliseconds if latency else None,
        is_from_run=bool(latency and latency.is_from_run),
        in_batch=latency.batch_milliseconds if latency else None,
        batch_size=latency.batch_size if latency else 0,
        cheaper_milliseconds=of_cheaper.milliseconds if of_cheaper else None,
        cheaper=cheaper,
        cheaper_passes=evidence.passes.get(cheaper),
    )


def brief_ranking(run: RunStatistics, evidence: Evidence) -> BriefRanking:
    """Return the best methods and all controls, with their mean ranks."""
    shown = [
        method
        for i, method in enumerate(evidence.ranked)
        if i < MOST_ROWS or method in evidence.controls
    ]
    axis = rank_axis(evidence)
    rows = []
    for method in shown:
        rank = evidence.mean_rank(method)
        rows.append(
            BriefRow(
                position=evidence.place(method),
                method=method,
                rank=rank,
                interval=svg.inline_interval(run.family(method), *rank, axis),
                passes=run.passes(method),
            )
        )
    unranked = [method for method in evidence.standing.methods if method not in evidence.ranked]
    more = len(evidence.ranked) - len(shown)
    return BriefRanking(rows, int(axis.high), more, unranked)


def rank_axis(evidence: Evidence) -> Axis:
    """Return the axis of mean ranks, which ends with the lowest rank of any setting."""
    counts = [len(scores.pairs.methods) for scores in evidence.used]
    return Axis(1.0, float(max([2, *counts])), ())
