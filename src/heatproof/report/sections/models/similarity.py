"""Is the fine-tuned network still the same one? Its confidence and its Grad-CAM maps, with other networks as a measure of what is far."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.similarity import map_gaps, softmax_gaps, stretched
from heatproof.protocols import ViewKey
from heatproof.report import charts
from heatproof.report.charts import Axis, Panel, Row, Spot, number
from heatproof.report.run_data import PLAIN_VIEW, Run
from heatproof.report.site import Site
from heatproof.tensor.filters import resize

CAM = "gradcam"
PAIRS = 10  # of different models
COLOURS = {True: "cam", False: "control"}  # the same network twice, or two


class Portrait(NamedTuple):
    """What is compared of one view of a model."""

    logits: dict[str, np.ndarray]  # sample -> (K,)
    labels: dict[str, int]
    maps: dict[
        str, np.ndarray
    ]  # sample -> (h, w), from 0 to 1; nan where a map is the same everywhere
    size: int  # of the image


class Pair(NamedTuple):
    label: str
    same: bool  # one network before and after
    softmax: tuple[Estimate, int] | None  # and over how many samples
    cam: tuple[Estimate, int] | None


def content(run: Run, site: Site) -> dict[str, Any] | None:
    pairs = _pairs(run)
    if not pairs:
        return None
    measures = [("softmax", "probability of the label"), ("cam", "Grad-CAM maps")]
    shown = [(name, title) for name, title in measures if any(getattr(p, name) for p in pairs)]
    if not shown:
        return None
    panels = [
        Panel(title, Axis.around([0.0, *_ends(pairs, name)], most=5), 0.0) for name, title in shown
    ]
    rows = [
        Row(p.label, COLOURS[p.same], tuple(_spot(p, name) for name, _ in shown)) for p in pairs
    ]
    title = "Mean absolute difference of two networks and its 95 % interval"
    return {
        "figure": site.figure(charts.lattice(panels, rows, title, digits=3, longest=36)),
        "n": {
            name: max((found[1] for p in pairs if (found := getattr(p, name))), default=0)
            for name, _ in measures
        },
        "nearer": {title: nearer(pairs, name) for name, title in shown},
        "other": any(not p.same for p in pairs),
        "same": any(p.same for p in pairs),
        "left_out": max(0, len(run.models) * (len(run.models) - 1) // 2 - PAIRS),
    }


def nearer(pairs: list[Pair], name: str) -> bool | None:
    """Whether every copy is nearer to its original than any two different networks are, intervals included."""
    gaps = {
        same: [found[0] for p in pairs if p.same is same and (found := getattr(p, name))]
        for same in (True, False)
    }
    known = all(gaps.values()) and all(
        math.isfinite(e.low) for found in gaps.values() for e in found
    )
    return max(e.high for e in gaps[True]) < min(e.low for e in gaps[False]) if known else None


def _pairs(run: Run) -> list[Pair]:
    """Each model with its fine-tuned copies, then different models in the plainest weights that they have in common."""
    seen = {
        (model, view): _portrait(run, model, view)
        for model in run.models
        for view in run.networks(model)
    }
    found = []
    for model in run.models:
        copies = [v for v in run.networks(model) if v.is_fine_tuned and (model, PLAIN_VIEW) in seen]
        for view in copies:
            copy = view.description if len(copies) > 1 else "fine-tuned"
            label = f"{run.short_names[model]} ↔ {copy}"
            found.append(_pair(label, True, seen[model, PLAIN_VIEW], seen[model, view]))
    for one, other in list(combinations(run.models, 2))[:PAIRS]:
        common = sorted(
            set(run.networks(one)) & set(run.networks(other)), key=lambda view: view.label
        )
        if common:
            label = f"{run.short_names[one]} ↔ {run.short_names[other]}"
            found.append(_pair(label, False, seen[one, common[0]], seen[other, common[0]]))
    return [p for p in found if p.softmax or p.cam]


def _portrait(run: Run, model: str, view: ViewKey) -> Portrait:
    kept = run.kept(model, view)
    maps = {
        s: stretched(m.float()[None].numpy())[0]
        for s in kept.shown
        if (m := kept.map(s, CAM)) is not None
    }
    labels = {s: label for s, label in zip(kept.ids, kept.labels, strict=True) if label is not None}
    logits = {s: v.numpy() for s, v in zip(kept.ids, kept.logits, strict=True)}
    return Portrait(logits, labels, maps, run.image_size(model, view) or 64)


def _pair(label: str, same: bool, a: Portrait, b: Portrait) -> Pair:
    both = [s for s in a.labels if s in b.logits and a.logits[s].shape == b.logits[s].shape]
    drawn = [s for s in a.maps if s in b.maps]
    softmax = (
        softmax_gaps(
            _stack(a.logits, both), _stack(b.logits, both), np.array([a.labels[s] for s in both])
        )
        if both
        else None
    )
    size = max(a.size, b.size)
    cam = (
        map_gaps(
            *(resize(torch.from_numpy(_stack(p.maps, drawn)), size, size).numpy() for p in (a, b))
        )
        if drawn
        else None
    )
    return Pair(label, same, _estimate(softmax), _estimate(cam))


def _stack(values: dict[str, np.ndarray], samples: list[str]) -> np.ndarray:
    return np.stack([values[s] for s in samples])


def _estimate(gaps: np.ndarray | None) -> tuple[Estimate, int] | None:
    known = int(np.isfinite(gaps).sum()) if gaps is not None else 0
    return (Estimate.mean(gaps), known) if gaps is not None and known else None


def _ends(pairs: list[Pair], name: str) -> list[float]:
    return [end for p in pairs if (found := getattr(p, name)) for end in found[0]]


def _spot(pair: Pair, name: str) -> Spot | str:
    found = getattr(pair, name)
    if not found:
        return "n/a"
    (value, low, high), n = found
    interval = f"95 % interval {number(low)} to {number(high)}"
    return Spot(
        value,
        low,
        high,
        f"{pair.label}\nmean absolute difference {number(value)} · {interval} · n = {n}",
    )
