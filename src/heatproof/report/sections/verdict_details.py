"""What a verdict rests on: each protocol alone, the winner's cost, and the ranking in short."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Standings
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures import svg
from heatproof.figures.axes import Axis
from heatproof.runs.format import ProtocolFacts

MOST_ROWS = 8  # methods of the ranking in short; controls are always in it


@dataclass(frozen=True)
class ProtocolVerdict:
    """The best method by one protocol alone."""

    protocol: ProtocolFacts
    settings: int
    best: str
    score: Estimate | None  # None if there are several settings
    ties: list[str]  # methods that do not rank significantly below it
    compared: int


@dataclass(frozen=True)
class WinnerCost:
    """What a map of the winner costs; None is unknown."""

    forwards: int
    backwards: int
    milliseconds: float | None  # None: not timed alone
    cheaper: str  # the cheapest method that ties with it and needs fewer passes
    cheaper_passes: int


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
    more: int  # methods that are only in the full ranking
    unranked: list[str]


def by_protocol(run: RunStatistics, standing: Standings) -> list[ProtocolVerdict]:
    """Return the best method by each protocol; none if there is only one."""
    if standing.one_protocol:
        return []
    verdicts = []
    for protocol in dict.fromkeys(key[0] for key in standing.settings):
        chosen = [i for i, key in enumerate(standing.settings) if key[0] == protocol]
        alone = standing.under(chosen)
        real = [method for method in alone.order if not run.is_control(method)]
        if not real:
            continue
        best, *others = real
        verdicts.append(
            ProtocolVerdict(
                protocol=run.protocols[alone.settings[0]],
                settings=len(chosen),
                best=best,
                score=alone.score(0, best) if len(chosen) == 1 else None,
                ties=[m for m in others if not alone.rank_gap(best, m).low > 0],
                compared=len(real),
            )
        )
    return verdicts


def passes(run: RunStatistics, method: str) -> int | None:
    """Return how many passes a map of a method takes; None if this is not known."""
    facts = run.methods.get(method)
    return sum(facts.cost) if facts and facts.cost else None


def winner_cost(run: RunStatistics, model: str, winner: str, ties: list[str]) -> WinnerCost | None:
    """Return what a map of the winner costs; None if this is not known."""
    facts = run.methods[winner]
    if facts.cost is None:
        return None
    of_ties = {m: count for m in ties if (count := passes(run, m)) is not None}
    cheaper = min(of_ties, key=lambda m: of_ties[m], default="")
    if not cheaper or of_ties[cheaper] >= sum(facts.cost):
        cheaper = ""
    return WinnerCost(
        forwards=facts.cost[0],
        backwards=facts.cost[1],
        milliseconds=None if facts.shares else run.milliseconds.get((model, winner)),
        cheaper=cheaper,
        cheaper_passes=of_ties.get(cheaper, 0),
    )


def brief_ranking(run: RunStatistics, standing: Standings) -> BriefRanking:
    """Return the best methods and all controls, with their mean ranks."""
    shown = [
        method for i, method in enumerate(standing.order) if i < MOST_ROWS or run.is_control(method)
    ]
    axis = Axis(1.0, float(max(2, len(standing.methods))), ())
    rows = []
    for method in shown:
        rank = standing.mean_rank(method)
        rows.append(
            BriefRow(
                position=1 + standing.order.index(method),
                method=method,
                rank=rank,
                interval=svg.inline_interval(run.family(method), *rank, axis),
                passes=passes(run, method),
            )
        )
    unranked = [method for method in standing.methods if method not in standing.order]
    return BriefRanking(rows, len(standing.order) - len(shown), unranked)
