"""What a map costs, and what it is worth: time alone, passes and memory against the mean rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from heatproof.analysis.costs import MEGABYTE, ModelCosts, all_costs
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.axes import Axis
from heatproof.figures.charts import Point, ScatterChart, Spot
from heatproof.figures.numbers import number
from heatproof.report.sections.base import section
from heatproof.report.site import Figure, Site

NO_PASSES = -0.5  # where a method without passes stands on the logarithmic axis
MOST_LABELS = 20  # names beside the figure


@dataclass(frozen=True)
class Model:
    """The costs of a model's methods, at one layer or at all."""

    title: str
    figure: Figure | None  # None if fewer than two methods have a rank and a known cost
    costs: ModelCosts


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    models: list[Model]
    megabyte: int = MEGABYTE

    @property
    def machines(self) -> list[str]:
        """What methods were timed on."""
        return list(dict.fromkeys(m.costs.machine for m in self.models if m.costs.machine))


@section(
    "costs",
    short="Costs",
    question="What does a map cost, and what is it worth?",
    order=22,
    page="Ranking",
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Return the costs of all methods by model; None if there are no scores."""
    models = []
    for costs in all_costs(run):
        layer = costs.evidence.layer
        title = f"{costs.evidence.model}, layer {layer}" if layer else costs.evidence.model
        models.append(Model(title, _figure(run, site, title, costs), costs))
    return Content(models) if models else None


def _figure(run: RunStatistics, site: Site, title: str, costs: ModelCosts) -> Figure | None:
    unit = "ms per map, alone" if costs.by_time else "passes per map, alone"
    points = {}
    for method in costs.methods:
        cost = costs.of(method)
        if method.rank is None or cost is None:
            continue
        shown = number(cost, 2 if costs.by_time and cost < 10 else 0)
        tip = f"{method.method}\nmean rank {number(method.rank.value, 2)}\n{shown} {unit}"
        spot = Spot(method.rank.value, method.rank.low, method.rank.high, tip)
        points[method.method] = Point(
            _position(cost),
            spot,
            run.family(method.method),
            method.method,
            method.method,
            large=True,
            method=method.method,
            number=cost,
        )
    if len(points) < 2:
        return None
    if len(points) > MOST_LABELS:
        points = {
            method: point if method in costs.front else replace(point, label="")
            for method, point in points.items()
        }
    places = [point.x for point in points.values()]
    first = math.floor(min(places)) if costs.by_time else 0
    last = max(first + 1, math.ceil(max(places)))
    powers = [*range(first, last + 1)]
    ticks = [(float(k), f"{10**k:,}" if k >= 0 else f"{10.0**k:g}") for k in powers]
    ticks = ticks if costs.by_time else [(NO_PASSES, "0"), *ticks]
    across = Axis(
        ticks[0][0] - 0.15, last + 0.1, tuple(k for k, _ in ticks), tuple(text for _, text in ticks)
    )
    worst = float(len(costs.methods))
    step = max(1, round(worst / 6))
    up = Axis(worst + 0.4, 0.6, tuple(float(k) for k in range(1, int(worst) + 1, step)))
    chart = ScatterChart(
        f"{title}: {unit} and mean rank of each method",
        list(points.values()),
        across,
        up,
        (unit, "mean rank (best on top)"),
        front=[(points[m].x, points[m].spot.value) for m in costs.front],
        model=costs.evidence.model,
        panel=title,
    )
    return site.figure(chart)


def _position(cost: float) -> float:
    return math.log10(cost) if cost > 0 else NO_PASSES
