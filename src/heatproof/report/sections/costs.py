"""What a map costs, and what it is worth: passes and milliseconds against the mean rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Standings
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.axes import Axis
from heatproof.figures.charts import Point, ScatterChart, Spot
from heatproof.figures.numbers import number
from heatproof.report.sections.base import section
from heatproof.report.site import Figure, Site

NO_PASSES = -0.5  # where a method without passes stands on the logarithmic axis
MOST_LABELS = 20  # names beside the figure


@dataclass(frozen=True)
class Row:
    """The cost of a method."""

    method: str
    rank: Estimate | None  # None if a score is missing
    forwards: int | None
    backwards: int | None
    milliseconds: float | None
    shared: bool  # whether it was timed while it shared passes with others
    on_front: bool


@dataclass(frozen=True)
class Model:
    """The costs of a model's methods, at one layer or at all."""

    title: str
    figure: Figure | None  # None if fewer than two methods have a rank and known passes
    rows: list[Row]


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    models: list[Model]


@section(
    "costs",
    short="Costs",
    question="What does a map cost, and what is it worth?",
    order=22,
    page="Ranking",
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Return the costs of all methods by model; None if there are no scores."""
    models = [_model(run, site, s) for standing in run.standings for s in standing.by_layer]
    return Content(models) if models else None


def _model(run: RunStatistics, site: Site, standing: Standings) -> Model:
    front = _front(run, standing)
    evidence = run.evidence_of(standing)
    rows = []
    for method in dict.fromkeys([*standing.order, *standing.methods]):
        facts = run.methods[method]
        forwards, backwards = facts.cost or (None, None)
        rows.append(
            Row(
                method=method,
                rank=evidence.mean_rank(method) if method in standing.order else None,
                forwards=forwards,
                backwards=backwards,
                milliseconds=run.milliseconds.get((standing.model, method)),
                shared=facts.shares,
                on_front=method in front,
            )
        )
    title = f"{standing.model}, layer {standing.layer}" if standing.layer else standing.model
    return Model(title, _figure(run, site, standing.model, title, rows, front), rows)


def _front(run: RunStatistics, standing: Standings) -> list[str]:
    """Return the methods that no other beats in mean rank with as few passes, cheapest first."""
    priced = [
        (count, float(standing.mean_ranks[standing.methods.index(m)]), m)
        for m in standing.order
        if not run.is_control(m) and (count := run.passes(m)) is not None
    ]
    front: list[str] = []
    best = math.inf
    for _, rank, method in sorted(priced):
        if rank < best:
            front.append(method)
            best = rank
    return front


def _figure(
    run: RunStatistics, site: Site, model: str, title: str, rows: list[Row], front: list[str]
) -> Figure | None:
    points = {}
    for row in rows:
        count = run.passes(row.method)
        if row.rank is None or count is None:
            continue
        tip = f"{row.method}\nmean rank {number(row.rank.value, 2)}\n{count} passes per map"
        spot = Spot(row.rank.value, row.rank.low, row.rank.high, tip)
        points[row.method] = Point(
            _position(count),
            spot,
            run.family(row.method),
            row.method,
            row.method,
            large=True,
            method=row.method,
            number=count,
        )
    if len(points) < 2:
        return None
    if len(points) > MOST_LABELS:
        points = {
            method: point if method in front else replace(point, label="")
            for method, point in points.items()
        }
    last = max(1.0, math.ceil(max(point.x for point in points.values())))
    powers = [float(k) for k in range(int(last) + 1)]
    across = Axis(
        NO_PASSES - 0.15,
        last + 0.1,
        (NO_PASSES, *powers),
        ("0", *(f"{10 ** int(k):,}" for k in powers)),
    )
    worst = float(len(rows))
    step = max(1, round(worst / 6))
    up = Axis(worst + 0.4, 0.6, tuple(float(k) for k in range(1, len(rows) + 1, step)))
    chart = ScatterChart(
        f"{title}: passes per map and mean rank of each method",
        list(points.values()),
        across,
        up,
        ("passes per map, alone", "mean rank (best on top)"),
        front=[(points[m].x, points[m].spot.value) for m in front],
        model=model,
        panel=title,
    )
    return site.figure(chart)


def _position(count: int) -> float:
    return math.log10(count) if count > 0 else NO_PASSES
