"""Cost of a map of each method alone, and the methods that are worth it.

A method is on the front if no other has a better mean rank at a lower cost. The cost is the time of
one map, timed alone on one machine; where some method was not timed, the number of passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from heatproof.analysis.evidence import Evidence
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.runs.format import Latency

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class MethodCost:
    """Cost of a map of a method on one model.

    Attributes:
        method: The method.
        rank: Its mean rank; None if it is not ranked.
        forwards: Forward passes of a map; None if they are unknown.
        backwards: Backward passes, which include their forward passes.
        latency: Its time alone; None if it was not timed.
    """

    method: str
    rank: Estimate | None
    forwards: int | None
    backwards: int | None
    latency: Latency | None

    @property
    def passes(self) -> int | None:
        """Forward and backward passes together; None if they are unknown."""
        if self.forwards is None or self.backwards is None:
            return None
        return self.forwards + self.backwards

    @property
    def milliseconds(self) -> float | None:
        """The time of one map alone; None if it is unknown."""
        return self.latency.milliseconds if self.latency else None


@dataclass(frozen=True)
class ModelCosts:
    """Costs of the methods of a model, at one layer or at all.

    Attributes:
        evidence: What is known about their quality.
        methods: The costs of all methods, the best first.
        by_time: Whether all ranked methods were timed, so that the front is drawn by time.
        front: The methods that no other beats at a lower cost, the cheapest first.
    """

    evidence: Evidence
    methods: list[MethodCost]
    by_time: bool
    front: list[str]

    @property
    def machine(self) -> str:
        """The machine that timed the methods; empty if they were not timed."""
        return next((cost.latency.machine for cost in self.methods if cost.latency), "")

    def of(self, cost: MethodCost) -> float | None:
        """Return what the front is drawn by: milliseconds, or passes."""
        return cost.milliseconds if self.by_time else cost.passes


def all_costs(run: RunStatistics) -> list[ModelCosts]:
    """Return the costs of all methods by model, and by layer where methods are ranked within."""
    return [model_costs(run, evidence) for evidence in run.evidence]


def model_costs(run: RunStatistics, evidence: Evidence) -> ModelCosts:
    """Return the costs of the methods of one model, or of those at one of its layers."""
    methods = []
    for method in dict.fromkeys([*evidence.ranked, *evidence.standing.methods]):
        forwards, backwards = run.methods[method].cost or (None, None)
        rank = evidence.mean_rank(method) if method in evidence.ranked else None
        latency = run.latencies.get((evidence.model, method))
        methods.append(MethodCost(method, rank, forwards, backwards, latency))
    ranked = [cost for cost in methods if cost.rank and cost.method not in evidence.controls]
    by_time = bool(ranked) and all(cost.milliseconds is not None for cost in ranked)
    costs = {c.method: c.milliseconds if by_time else c.passes for c in ranked}
    return ModelCosts(evidence, methods, by_time, _front(ranked, costs))


def _front(ranked: Sequence[MethodCost], costs: Mapping[str, float | None]) -> list[str]:
    priced = sorted(
        (cost, method.rank.value, method.method)
        for method in ranked
        if method.rank and (cost := costs[method.method]) is not None
    )
    front: list[str] = []
    best = math.inf
    for _, rank, method in priced:
        if rank < best:
            front.append(method)
            best = rank
    return front


def cost_frame(run: RunStatistics) -> pd.DataFrame:
    """Return one line per model and method; see `Result.costs`."""
    lines = [
        {
            "model": costs.evidence.model,
            "layer": costs.evidence.layer,
            "method": cost.method,
            "mean_rank": cost.rank.value if cost.rank else math.nan,
            "forwards": cost.forwards,
            "backwards": cost.backwards,
            **_times(cost.latency),
            "on_front": cost.method in costs.front,
        }
        for costs in all_costs(run)
        for cost in costs.methods
    ]
    return pd.DataFrame(lines)


def _times(latency: Latency | None) -> dict[str, float | int | str | None]:
    """Return the columns of a frame that come from the time alone."""
    known = latency or Latency(model="", map_key="", machine="", reason="not timed")
    peak = known.peak_bytes
    reason = "from the run: timing it alone would take long" if known.is_from_run else known.reason
    return {
        "ms": known.milliseconds,
        "ms_in_batch": known.batch_milliseconds,
        "batch_size": known.batch_size or None,
        "peak_mb": None if peak is None else round(peak / MEGABYTE, 1),
        "machine": known.machine,
        "time_note": reason,
    }
