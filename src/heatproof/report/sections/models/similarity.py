"""Does the fine-tuned copy behave like the original? Its confidence and its Grad-CAM maps.

Pairs of different networks show what a large difference is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.analysis.similarity import map_gaps, softmax_gaps, stretched
from heatproof.figures.axes import Axis
from heatproof.figures.charts import LatticeChart, Panel, Row, Spot
from heatproof.figures.numbers import interval, number
from heatproof.protocols import ViewKey
from heatproof.report.site import Figure, Site
from heatproof.runs.run import PLAIN_VIEW
from heatproof.tensor.filters import resize
from heatproof.tensor.scores import HeadName

CAM = "gradcam"
PAIRS = 10  # of different models
COLOURS = {True: "cam", False: "control"}  # a network and its copy, or two different ones
MEASURES = {"softmax": "probability of the label", "cam": "Grad-CAM maps"}


class Portrait(NamedTuple):
    """The part of one view of a model that is compared."""

    logits: dict[str, np.ndarray]  # sample -> (K,)
    labels: dict[str, int]
    maps: dict[str, np.ndarray]  # sample -> (h, w), from 0 to 1; nan if a map is constant
    size: tuple[int, int]  # height and width of the image
    head: HeadName = "softmax"


class Pair(NamedTuple):
    """Two networks and their differences, each with the number of samples."""

    label: str
    same: bool  # one network before and after fine-tuning
    softmax: tuple[Estimate, int] | None
    cam: tuple[Estimate, int] | None

    def difference(self, measure: str) -> tuple[Estimate, int] | None:
        """Return the difference by a measure: ``softmax`` or ``cam``."""
        return self.softmax if measure == "softmax" else self.cam


@dataclass(frozen=True)
class Similarity:
    """The differences of all pairs."""

    figure: Figure
    n: dict[str, int]  # samples by measure
    nearer: dict[str, bool | None]  # by title of the measure
    other: bool  # whether there are pairs of different networks
    same: bool  # whether there are networks with their copies
    left_out: int


def content(run: RunStatistics, site: Site) -> Similarity | None:
    """Compare networks with their copies and with each other; None if there are no pairs."""
    pairs = _pairs(run)
    measures = {m: title for m, title in MEASURES.items() if any(p.difference(m) for p in pairs)}
    if not measures:
        return None
    panels = [
        Panel(title, Axis.around([0.0, *_ends(pairs, measure)], most=5), 0.0)
        for measure, title in measures.items()
    ]
    rows = [
        Row(p.label, COLOURS[p.same], tuple(_spot(p, measure) for measure in measures))
        for p in pairs
    ]
    title = "Mean absolute difference between two networks and its 95 % interval"
    different = len(run.models) * (len(run.models) - 1) // 2
    return Similarity(
        figure=site.figure(LatticeChart(title, panels, rows, digits=3, longest=36)),
        n={measure: _most_samples(pairs, measure) for measure in MEASURES},
        nearer={title: nearer(pairs, measure) for measure, title in measures.items()},
        other=any(not p.same for p in pairs),
        same=any(p.same for p in pairs),
        left_out=max(0, different - PAIRS),
    )


def _most_samples(pairs: list[Pair], measure: str) -> int:
    return max((d[1] for p in pairs if (d := p.difference(measure))), default=0)


def nearer(pairs: list[Pair], measure: str) -> bool | None:
    """Return whether every copy is closer to its original than different networks are.

    Args:
        pairs: The pairs.
        measure: ``softmax`` or ``cam``.

    Returns:
        True if all intervals of copies lie below those of different networks; None if unknown.
    """
    differences: dict[bool, list[Estimate]] = {True: [], False: []}
    for pair in pairs:
        difference = pair.difference(measure)
        if difference:
            differences[pair.same].append(difference[0])
    estimates = [*differences[True], *differences[False]]
    if not all(differences.values()) or not all(math.isfinite(e.low) for e in estimates):
        return None
    return max(e.high for e in differences[True]) < min(e.low for e in differences[False])


def _pairs(run: RunStatistics) -> list[Pair]:
    """Pair each model with its copies, then different models in the first view they share."""
    portraits = {
        (model, view): _portrait(run, model, view)
        for model in run.models
        for view in run.networks(model)
    }
    pairs = []
    for model in run.models:
        copies = [
            v for v in run.networks(model) if v.is_fine_tuned and (model, PLAIN_VIEW) in portraits
        ]
        for view in copies:
            copy = view.description if len(copies) > 1 else "fine-tuned"
            label = f"{run.short_names[model]} ↔ {copy}"
            pairs.append(_pair(label, True, portraits[model, PLAIN_VIEW], portraits[model, view]))
    for one, other in list(combinations(run.models, 2))[:PAIRS]:
        common = sorted(
            set(run.networks(one)) & set(run.networks(other)), key=lambda view: view.label
        )
        if common:
            label = f"{run.short_names[one]} ↔ {run.short_names[other]}"
            pairs.append(
                _pair(label, False, portraits[one, common[0]], portraits[other, common[0]])
            )
    return [p for p in pairs if p.softmax or p.cam]


def _portrait(run: RunStatistics, model: str, view: ViewKey) -> Portrait:
    kept = run.kept(model, view)
    maps = {
        s: stretched(m.float()[None].numpy())[0]
        for s in kept.with_images
        if (m := kept.map(s, CAM)) is not None
    }
    labels = {s: label for s, label in zip(kept.ids, kept.labels, strict=True) if label is not None}
    logits = {s: v.numpy() for s, v in zip(kept.ids, kept.logits, strict=True)}
    size = run.image_size(model, view)
    return Portrait(logits, labels, maps, size if all(size) else (64, 64), kept.head)


def _pair(label: str, same: bool, a: Portrait, b: Portrait) -> Pair:
    both = [s for s in a.labels if s in b.logits and a.logits[s].shape == b.logits[s].shape]
    with_maps = [s for s in a.maps if s in b.maps]
    softmax = None
    cam = None
    if both:
        labels = np.array([a.labels[s] for s in both])
        logits = (_stack(a.logits, both), _stack(b.logits, both))
        softmax = _estimate(softmax_gaps(*logits, labels, (a.head, b.head)))
    if with_maps:
        size = max(a.size, b.size)
        cam = _estimate(map_gaps(_maps(a, with_maps, size), _maps(b, with_maps, size)))
    return Pair(label, same, softmax, cam)


def _maps(portrait: Portrait, samples: list[str], size: tuple[int, int]) -> np.ndarray:  # (N, H, W)
    return resize(torch.from_numpy(_stack(portrait.maps, samples)), *size).numpy()


def _stack(values: dict[str, np.ndarray], samples: list[str]) -> np.ndarray:
    return np.stack([values[s] for s in samples])


def _estimate(gaps: np.ndarray) -> tuple[Estimate, int] | None:
    finite = int(np.isfinite(gaps).sum())
    return (Estimate.mean(gaps), finite) if finite else None


def _ends(pairs: list[Pair], measure: str) -> list[float]:
    return [end for p in pairs if (d := p.difference(measure)) for end in d[0]]


def _spot(pair: Pair, measure: str) -> Spot | str:
    difference = pair.difference(measure)
    if not difference:
        return "not measured"
    (value, low, high), n = difference
    written = f"{number(value)} · 95 % interval {interval(value, low, high)}"
    tip = f"{pair.label}\nmean absolute difference {written} · n = {n}"
    return Spot(value, low, high, tip)
