"""The curves of all methods on one axis: what happens to the score as pixels are removed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from heatproof.analysis.ranks import Standings
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.axes import Axis
from heatproof.figures.charts import CurveChart, Trace
from heatproof.report.sections.base import section
from heatproof.report.sections.common import panel_title
from heatproof.report.site import Figure, Site
from heatproof.report.stored_curves import (
    MeanCurve,
    StoredCurve,
    curve_title,
    curves_of,
    mean_curves,
)
from heatproof.runs.run import MOST_SAMPLES_READ

MOST_LABELS = 12  # names beside a figure; with more, the legend names the lines


@dataclass(frozen=True)
class Model:
    """The curves of a model: figures by title, and the methods that are drawn."""

    model: str
    figures: dict[str, Figure]
    methods: list[str]
    samples: int
    better: list[str]  # for each figure, which curves are good


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    models: list[Model]
    most: int


@section(
    "method-curves",
    short="Curves of all methods",
    question="How does the score change along the order of each map?",
    order=24,
    page="Ranking",
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Return the mean curves of all methods; None if no protocol of the run has curves."""
    models = [_model(run, site, standing) for standing in run.standings]
    with_curves = [model for model in models if model is not None]
    return Content(with_curves, MOST_SAMPLES_READ) if with_curves else None


def _model(run: RunStatistics, site: Site, standing: Standings) -> Model | None:
    ordered = list(dict.fromkeys([*standing.order, *standing.methods]))
    found = mean_curves(run, standing.model, curves_of(run, standing.settings), ordered)
    if not found:
        return None
    used: Counter[str] = Counter()
    dashes = {}
    for method in ordered:
        family = run.family(method)
        dashes[method] = used[family]
        used[family] += 1
    figures = {}
    better = []
    for (key, curve), by_method in found.items():
        title = curve_title(run, key, curve)
        lines = [
            Trace(
                method,
                run.family(method),
                tuple(mean.values.tolist()),
                tuple(curve.positions(run.protocols[key], len(mean.values))),
                tuple(mean.low),
                tuple(mean.high),
                dash=dashes[method],
            )
            for method, mean in by_method.items()
        ]
        axis = Axis.around([value for line in lines for value in line.values], most=5)
        spoken = f"{standing.model}, {title}: {curve.up} for each method, mean over the samples"
        chart = CurveChart(
            spoken,
            lines,
            axis,
            (curve.across, curve.up),
            labels=len(lines) <= MOST_LABELS,
            bands=False,
            model=standing.model,
            protocol=key[0],
            panel=panel_title(run, standing.model, key) + (f": {curve.part}" if curve.part else ""),
        )
        figures[title] = site.figure(chart)
        better.append(_better(key[0], curve, by_method))
    drawn = {method for by_method in found.values() for method in by_method}
    samples = max(mean.samples for by_method in found.values() for mean in by_method.values())
    return Model(standing.model, figures, [m for m in ordered if m in drawn], samples, better)


def _better(protocol: str, curve: StoredCurve, by_method: dict[str, MeanCurve]) -> str:
    """Say which curves are good: those that fall, or those that rise early."""
    if protocol == "insertion" or curve.part == "insertion" or curve.reverse:
        return "higher is better"
    return "higher is better" if "least" in curve.across else "lower is better"
