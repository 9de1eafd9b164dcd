"""What happens along a curve (Picard et al. 2024): score, distance and remaining information."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from heatproof.analysis import wording
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Key, Standings
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.analysis.tradeoff import FEWEST_BASELINES, tradeoff
from heatproof.baselines import Baseline
from heatproof.figures import pictures
from heatproof.figures.axes import Axis
from heatproof.figures.charts import CurveChart, Point, ScatterChart, Spot, Trace
from heatproof.figures.numbers import interval, number
from heatproof.report.sections.base import section
from heatproof.report.sections.common import size_of
from heatproof.report.site import Figure, Site
from heatproof.runs.format import ProtocolFacts
from heatproof.runs.run import Kept
from heatproof.tensor.curves import removal_order
from heatproof.tensor.information import (
    INFORMATION,
    area_beyond,
    area_reached,
    prediction_entropy,
)
from heatproof.tensor.noise import Rng
from heatproof.tensor.scores import class_probabilities

PROTOCOLS = {"deletion": "removed", "insertion": "inserted"}
GROUPS = {  # of baselines: a family of methods, whose colour they have, and a description
    "colour": ("gradient", "one colour"),
    "noise": ("cam", "noise"),
    "local": ("perturbation", "the image itself, coarser or shuffled"),
    "spectral": ("relevance", "the image's spectrum, shuffled"),
    "imputed": ("attention", "imputed from the remaining pixels"),
    "model": ("yours", "optimized for the model"),
    "other": ("other", "other"),
}
DISTANCES = {  # in the order in which protocols store the largest usual distances
    "ood": "distance to reference images (normalized embeddings)",
    "ood-raw": "distance to reference images (raw embeddings)",
}
LEFT = {  # of Picard et al. 2024, or heatproof's own; others are shown under their own names
    "negentropy": "information left (nats; not in the paper)",
    "logit-variance": "variance of the logits (not in the paper)",
    "mean-logit": "mean logit (the paper's text, Fig. 4)",
    "energy": "energy of the logits (the paper's text, Sec. 3.3)",
    "mean-sigmoid": "mean sigmoid of the logits (the paper's code)",
}
STEPS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # fractions of the pixels that are removed
TOP = 5  # predictions when nothing is left


class BaselineCurves(NamedTuple):
    """The curves of one method with one baseline."""

    baseline: str
    key: Key
    protocol: ProtocolFacts
    score: Tensor  # (N, S)
    others: dict[str, Tensor]  # (N, S): distances and information left; empty without ood
    far: dict[str, float]  # by distance: what 95 % of in-distribution images stay below

    @property
    def family(self) -> str:
        """Return the family whose colour the baseline has."""
        return GROUPS.get(_group(self.baseline), GROUPS["other"])[0]

    @property
    def distances(self) -> list[str]:
        """Return the names of the distances that were measured."""
        return [name for name in DISTANCES if name in self.others]

    @property
    def information(self) -> list[str]:
        """Return the names of the measures of information that were computed."""
        names = dict.fromkeys([*LEFT, *self.others])
        return [name for name in names if name in self.others and name not in DISTANCES]


@dataclass(frozen=True)
class Row:
    """Where the area under the curve of a baseline comes from."""

    protocol: str
    baseline: str
    family: str
    reached: float  # fraction of the pixels by which 80 % of the area is reached
    # by distance: fraction of the area above the minimum that is out of distribution
    beyond: dict[str, Estimate]
    means: dict[str, Estimate]


@dataclass(frozen=True)
class TradeoffFigure:
    """Distance against information left, for each baseline."""

    distance: str
    figure: Figure
    trend: str  # whether there is one over the baselines, in words; empty without a fit
    off_the_line: str


@dataclass(frozen=True)
class Tradeoffs:
    """The trade-off for one order of the pixels and one measure, by each distance."""

    method: str
    measure: str
    figures: list[TradeoffFigure]


@dataclass(frozen=True)
class Strip:
    """A sample from complete to empty, and the output for the empty image."""

    baseline: str
    family: str
    images: list[str]
    top: list[tuple[str, float]]
    norm: float | None
    entropy: float
    distances: list[float | None]  # in the order of DISTANCES


@dataclass(frozen=True)
class Strips:
    """A sample whose pixels are removed with each baseline."""

    sample: str
    label: str
    confidence: float
    rows: list[Strip]
    fractions: list[str]


@dataclass(frozen=True)
class Model:
    """The curves of the best method on a model."""

    model: str
    method: str
    samples: int
    of: int  # samples of the run, of which the first are shown
    figures: dict[str, dict[str, Figure]]  # by protocol, and by what is drawn
    reached: dict[str, float]  # by protocol: what is shaded
    rows: list[Row]
    tradeoffs: list[Tradeoffs]
    distances: dict[str, str]  # that were measured, and their descriptions
    information: dict[str, str]
    strips: Strips | None
    crisp: bool
    groups: set[str]


@dataclass(frozen=True)
class Content:
    """The content of the template.

    Attributes:
        models: One entry per model.
        groups: The kinds of baselines, as a legend.
        optimized: The images of baselines that are optimized for the model, beside each other:
            by baseline, one per model or None (Figs 5 and 7 of Picard et al. 2024).
    """

    models: list[Model]
    groups: list[tuple[str, str]]
    optimized: dict[str, list[Strip | None]]


@section(
    "curves",
    short="Curves",
    question="What happens as pixels are removed?",
    order=35,
    page="Stability",
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Return the curves of deletion and insertion; None if the run has none."""
    models = [_model(run, site, standing) for standing in run.standings]
    with_curves = [model for model in models if model is not None]
    if not with_curves:
        return None
    used = {group for model in with_curves for group in model.groups}
    legend = [entry for group, entry in GROUPS.items() if group in used]
    return Content(with_curves, legend, _optimized(with_curves))


def _optimized(models: list[Model]) -> dict[str, list[Strip | None]]:
    """Return the strips of model-dependent baselines, one per model."""
    of_models = []
    for model in models:
        rows = model.strips.rows if model.strips else []
        of_models.append({row.baseline: row for row in rows if _needs_model(row.baseline)})
    names = dict.fromkeys(name for rows in of_models for name in rows)
    return {name: [rows.get(name) for rows in of_models] for name in names}


def _model(run: RunStatistics, site: Site, standing: Standings) -> Model | None:
    kept = run.kept(standing.model)
    for method in [*standing.order, *standing.methods]:
        of_method = {p: _curves(run, kept, standing, p, method) for p in PROTOCOLS}
        by_protocol = {p: curves for p, curves in of_method.items() if curves}
        if by_protocol:
            break
    else:
        return None
    figures = {}
    rows = []
    for protocol, curves in by_protocol.items():
        figures[protocol] = _figures(site, standing.model, protocol, method, curves)
        rows += [_row(protocol, c) for c in curves]
    first, curves = next(iter(by_protocol.items()))
    return Model(
        model=standing.model,
        method=method,
        samples=len(kept.ids),
        of=kept.total,
        figures=figures,
        reached={protocol: _reached(curves) for protocol, curves in by_protocol.items()},
        rows=rows,
        tradeoffs=_tradeoffs(run, site, kept, standing, first, method),
        distances={name: DISTANCES[name] for name in curves[0].distances},
        information={name: _information_label(name) for name in curves[0].information},
        strips=_strips(run, site, kept, standing.model, method, curves),
        crisp=run.is_crisp(standing.model),
        groups={_group(c.baseline) for c in curves},
    )


def _curves(
    run: RunStatistics, kept: Kept, standing: Standings, protocol: str, method: str
) -> list[BaselineCurves]:
    """Return the curves of the first setting of a protocol, for each baseline."""
    settings = [key for key in standing.settings if key[0] == protocol]
    curves = []
    for key in settings:
        if key[1] != settings[0][1]:
            continue
        facts = run.protocols[key]
        score = kept.curves(facts, method, "score")
        if score is None:
            continue
        others = {}
        for name in (*DISTANCES, *INFORMATION):
            values = kept.curves(facts, method, name)
            if values is not None:
                others[name] = values
        shared = kept.shared(facts, "far")
        far = dict(zip(DISTANCES, shared[0].tolist(), strict=True)) if shared is not None else {}
        curves.append(BaselineCurves(key[2], key, facts, score, others, far))
    return curves


def _figures(
    site: Site, model: str, protocol: str, method: str, curves: list[BaselineCurves]
) -> dict[str, Figure]:
    across = f"of the pixels {PROTOCOLS[protocol]}, most relevant first"
    reached = _reached(curves)
    shown = {"score": "score of the target"}
    shown |= {name: DISTANCES[name] for name in curves[0].distances}
    shown |= {name: _information_label(name) for name in curves[0].information[:1]}
    return {
        label: _figure(site, across, name, label, model, protocol, method, curves, reached)
        for name, label in shown.items()
    }


def _information_label(name: str) -> str:
    return LEFT.get(name, name)


def _figure(
    site: Site,
    across: str,
    name: str,
    label: str,
    model: str,
    protocol: str,
    method: str,
    curves: list[BaselineCurves],
    reached: float,
) -> Figure:
    """Draw one curve per baseline, and mark the largest usual distance by a dashed line.

    As in Fig. 3 of Picard et al. (2024), a shade ends where the mean score over the baselines has
    reached 80 % of its area.
    """
    lines = [
        Trace(c.baseline, c.family, _mean(c.score if name == "score" else c.others[name]))
        for c in curves
    ]
    level = curves[0].far.get(name)
    values = [v for line in lines for v in line.values]
    if level is not None:
        values.append(level)
    title = f"{protocol}, {method}: {label}, mean over the samples, for each baseline"
    chart = CurveChart(
        title,
        lines,
        Axis.around(values, most=5),
        (across, label),
        level,
        shaded=reached if math.isfinite(reached) else None,
        model=model,
        protocol=protocol,
    )
    return site.figure(chart)


def _reached(curves: list[BaselineCurves]) -> float:
    """Return where the mean curve over the baselines reaches 80 % of its area."""
    means = torch.stack([c.score.double().nanmean(0) for c in curves])
    return float(area_reached(means.mean(0)))


def _mean(curve: Tensor) -> tuple[float, ...]:
    return tuple(curve.double().nanmean(0).tolist())


def _row(protocol: str, curves: BaselineCurves) -> Row:
    score = curves.score.double()
    beyond = {}
    for name in curves.far:
        area = area_beyond(score, curves.others[name].double(), curves.far[name])
        beyond[name] = Estimate.mean(area.numpy())
    return Row(
        protocol=protocol,
        baseline=curves.baseline,
        family=curves.family,
        reached=float(area_reached(score.nanmean(0))),
        beyond=beyond,
        means={name: Estimate.mean(_per_sample(curves, name)) for name in curves.others},
    )


def _per_sample(curves: BaselineCurves, name: str) -> np.ndarray:  # (N,)
    return curves.others[name].double().mean(1).numpy()


def _tradeoffs(
    run: RunStatistics, site: Site, kept: Kept, standing: Standings, protocol: str, method: str
) -> list[Tradeoffs]:
    """Compare baselines in the order of a method, and in a random order."""
    tradeoffs = []
    orders = [method, *(m for m in standing.methods if m == "random")]
    for order in dict.fromkeys(orders):
        curves = [c for c in _curves(run, kept, standing, protocol, order) if c.others]
        if len(curves) >= 3:
            for measure in curves[0].information:
                figures = [
                    _tradeoff(site, standing.model, order, curves, distance, measure)
                    for distance in curves[0].distances
                ]
                tradeoffs.append(Tradeoffs(order, _information_label(measure), figures))
    return tradeoffs


def _tradeoff(
    site: Site, model: str, order: str, curves: list[BaselineCurves], distance: str, measure: str
) -> TradeoffFigure:
    protocol = curves[0].key[0]
    where = f"{model}, {protocol} in the order of {order}"
    label = _information_label(measure)
    distances = np.stack([_per_sample(c, distance) for c in curves], 1)
    left = np.stack([_per_sample(c, measure) for c in curves], 1)
    trade = tradeoff(distances, left, [_needs_model(c.baseline) for c in curves])
    points = []
    for k, c in enumerate(curves):
        x = Estimate.mean(distances[:, k])
        y = Estimate.mean(left[:, k])
        tip = "\n".join([c.baseline, _described("distance", x), _described(label, y)])
        spot = Spot(y.value, y.low, y.high, tip)
        points.append(Point(x.value, spot, c.family, c.baseline, c.baseline, large=True))
    across = Axis.around([p.x for p in points])
    up = Axis.around([v for p in points for v in (p.spot.low, p.spot.high, p.spot.value)])
    title = f"{where}: {DISTANCES[distance]} and {label}, for each baseline"
    fit = trade.line if trade else None
    titles = (DISTANCES[distance], label)
    chart = ScatterChart(
        title, points, across, up, titles, fit=fit, model=model, protocol=protocol, panel=where
    )
    if trade is None:
        return TradeoffFigure(DISTANCES[distance], site.figure(chart), "", "")
    text = wording.tradeoff(trade.correlation, trade.p, trade.fitted, FEWEST_BASELINES)
    off = ""
    if trade.fitted >= FEWEST_BASELINES:
        below, above = (
            [c.baseline for c, sign in zip(curves, trade.off, strict=True) if sign == wanted]
            for wanted in (-1, 1)
        )
        off = wording.off_the_line(below, above)
    return TradeoffFigure(DISTANCES[distance], site.figure(chart), text, off)


def _needs_model(baseline: str) -> bool:
    known = Baseline.find(baseline)
    return known is not None and known.entry.group == "model"


def _described(name: str, estimate: Estimate) -> str:
    return f"{name} {number(estimate.value)} ({interval(*estimate)})"


def _strips(
    run: RunStatistics,
    site: Site,
    kept: Kept,
    model: str,
    method: str,
    curves: list[BaselineCurves],
) -> Strips | None:
    """Remove the pixels of the first sample with each baseline."""
    sample = next(iter(kept.with_images), None)
    small = kept.map(sample, method) if sample is not None else None
    if sample is None or small is None:
        return None
    image = kept.image(sample)
    large = pictures.resized(small, size_of(image))
    ranks = removal_order(large[None].nan_to_num(0), [sample])[0]
    strips = [_strip(run, site, kept, model, sample, image, ranks, c) for c in curves]
    rows = [strip for strip in strips if strip is not None]
    if not rows:
        return None
    predicted, probability = kept.confidence(kept.ids.index(sample))
    fractions = [f"{100 * step:.0f} %" for step in STEPS]
    return Strips(sample, run.class_name(model, predicted), probability, rows, fractions)


def _strip(
    run: RunStatistics,
    site: Site,
    kept: Kept,
    model: str,
    sample: str,
    image: Tensor,
    ranks: Tensor,
    curves: BaselineCurves,
) -> Strip | None:
    empty = kept.shared_row(sample, curves.protocol, "picture")
    logits = kept.shared_row(sample, curves.protocol, "end")
    norm = kept.shared_row(sample, curves.protocol, "norm")
    if empty is None or logits is None:
        return None
    images = []
    for step in STEPS:
        removed = ranks < int(step * ranks.numel())
        images.append(
            site.picture(pictures.photo(_without(image, empty, removed, curves.baseline)))
        )
    probabilities = class_probabilities(logits.double(), kept.head)
    values, classes = probabilities.topk(min(TOP, len(logits)))
    if kept.head == "regression":
        values, classes = values[:0], classes[:0]
    distances: list[float | None] = []
    for name in curves.distances:
        at_end = curves.others[name][kept.ids.index(sample), -1]
        distances.append(float(at_end) if curves.key[0] == "deletion" else None)
    return Strip(
        baseline=curves.baseline,
        family=curves.family,
        images=images,
        top=[
            (run.class_name(model, int(c)), float(p)) for p, c in zip(values, classes, strict=True)
        ],
        norm=float(norm) if norm is not None else None,
        entropy=float(prediction_entropy(logits.double(), kept.head)),
        distances=distances,
    )


def _without(
    image: Tensor, empty: Tensor, removed: Tensor, baseline: str
) -> Tensor:  # (C, H, W) uint8
    """Remove pixels as the protocol did; what a baseline imputes is imputed again."""
    known = Baseline.find(baseline)
    # A user-defined baseline may need the model, which is not available here.
    imputes = known is not None and known.entry.imputes and known.entry.source is None
    if known is None or not imputes or removed.all():
        return torch.where(removed, empty, image)
    fill = known.remover(image[None].float() / 255, None, Rng(0, [""]))
    filled = fill(torch.tensor([0]), removed[None])[0]
    return (filled * 255).round().clamp(0, 255).byte()


def _group(baseline: str) -> str:
    known = Baseline.find(baseline)
    return known.entry.group if known else "other"
