"""Networks trained on modified images (Li et al. 2024): their accuracy, and what maps point at."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from heatproof.analysis import wording
from heatproof.analysis.accuracy import proportion
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures import pictures
from heatproof.figures.numbers import number
from heatproof.plan.spec import PLAIN
from heatproof.report.sections.base import section
from heatproof.report.sections.common import (
    MethodEstimates,
    estimate_or_none,
    map_picture,
    size_of,
)
from heatproof.report.site import Site
from heatproof.runs.run import Kept

MASS = "attr-mass"


@dataclass(frozen=True)
class AccuracyRow:
    """How accurate a network is; None without labels."""

    model: str
    trained_on: str
    evaluated_on: str
    n: int
    accuracy: Estimate | None


@dataclass(frozen=True)
class MassTable:
    """The fraction of the maps on the pixels that determine the class."""

    models: list[str]
    rows: list[MethodEstimates]


@dataclass(frozen=True)
class Tile:
    """A map; its file is None if there is none, and its score empty."""

    method: str
    file: str | None
    score: str


@dataclass(frozen=True)
class PictureRow:
    """An image of a model and its maps."""

    model: str
    photo: str
    label: str
    tiles: list[Tile]


@dataclass(frozen=True)
class Contrast:
    """Two networks that saw as many pixels, each evaluated on what it was trained on."""

    shape: AccuracyRow  # what is removed is the same for all classes
    revealing: AccuracyRow  # its position reveals the class
    text: str  # whether the second is more accurate


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    rows: list[AccuracyRow]
    contrast: Contrast | None
    mass: MassTable | None
    methods: list[str]  # that have maps
    pictures: list[PictureRow]  # one per model
    crisp: bool
    part: str  # which samples the accuracy is of; empty if it is of all


@section(
    "retraining",
    short="Modified images",
    question="What does a network learn from modified images, and do maps show it?",
    order=65,
    page="Values",
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Return what networks learned from modified images; None if there are no such networks."""
    specs = dict(zip(run.models, run.provenance.spec.get("models", []), strict=False))
    changes = {}
    for model, spec in specs.items():
        trained_on = spec.get("trained_on") if isinstance(spec, dict) else None
        evaluated_on = spec.get("evaluated_on") if isinstance(spec, dict) else None
        if trained_on or evaluated_on:
            changes[model] = (trained_on, evaluated_on or trained_on)
    altered = {alteration for pair in changes.values() for alteration in pair} - {PLAIN, None}
    if not altered:
        return None
    kept = {model: run.kept(model) for model in changes}
    methods = [m for m in run.methods if any(k.has_maps(m) for k in kept.values())]
    rows = [
        _accuracy(model, trained_on or "original weights", evaluated_on or PLAIN, kept[model])
        for model, (trained_on, evaluated_on) in changes.items()
    ]
    return Content(
        rows=rows,
        contrast=_contrast(rows),
        mass=_mass(run, list(changes)),
        methods=methods,
        pictures=_pictures(run, site, kept, methods),
        crisp=all(run.is_crisp(model) for model in changes),
        part=next((k.part for k in kept.values() if k.part), ""),
    )


def _contrast(rows: list[AccuracyRow]) -> Contrast | None:
    """Compare a disc with a disc and a notch of as many pixels (Li et al. 2024, Fig. 1)."""
    retrained = {row.trained_on: row for row in rows if row.trained_on == row.evaluated_on}
    shape = retrained.get("disc")
    revealing = retrained.get("disc-notch")
    if not (shape and revealing and shape.accuracy and revealing.accuracy):
        return None
    differ = revealing.accuracy.low > shape.accuracy.high
    text = wording.retrained(_percentage(revealing.accuracy), _percentage(shape.accuracy), differ)
    return Contrast(shape, revealing, text)


def _percentage(accuracy: Estimate) -> str:
    value, low, high = (number(100 * part, 1) for part in accuracy)
    return f"{value} % ({low} to {high})"


def _accuracy(model: str, trained_on: str, evaluated_on: str, kept: Kept) -> AccuracyRow:
    correct = [right for right in kept.correct if right is not None]
    accuracy = proportion(np.array(correct, dtype=float)) if correct else None
    return AccuracyRow(model, trained_on, evaluated_on, len(correct), accuracy)


def _mass(run: RunStatistics, models: list[str]) -> MassTable | None:
    """Return the scores of attr-mass; None if no pixels determine the class."""
    summary = run.summary_frame
    scored = (summary["protocol"] == MASS) & summary["model"].isin(models) & (summary["n"] > 0)
    rows = summary[scored]
    if not len(rows):
        return None
    columns = [model for model in models if model in set(rows["model"])]
    estimates = {
        (r["model"], r["method"]): estimate_or_none(r["mean"], r["low"], r["high"])
        for r in rows.to_dict("records")
    }
    table = [
        MethodEstimates(
            method, run.family(method), [estimates.get((model, method)) for model in columns]
        )
        for method in dict.fromkeys(rows["method"])
    ]
    return MassTable([run.short_names[model] for model in columns], table)


def _pictures(
    run: RunStatistics, site: Site, kept: dict[str, Kept], methods: list[str]
) -> list[PictureRow]:
    rows = run.rows[run.rows["protocol"] == MASS]
    scores = rows.set_index(["model", "sample", "method"])["value"]
    pictured = [_picture_row(run, site, model, kept[model], methods, scores) for model in kept]
    return [row for row in pictured if row is not None]


def _picture_row(
    run: RunStatistics, site: Site, model: str, kept: Kept, methods: list[str], scores: pd.Series
) -> PictureRow | None:
    """Return the first sample with a score for every method, or else the first sample."""

    def score(sample: str, method: str) -> float:
        return float(scores.get((model, sample, method), math.nan))

    scored = [s for s in kept.with_images if all(math.isfinite(score(s, m)) for m in methods)]
    sample = next(iter(scored or kept.with_images), None)
    if sample is None:
        return None
    image = kept.image(sample)
    tiles = []
    for method in methods:
        value = score(sample, method)
        file = map_picture(site, kept.map(sample, method), size_of(image))
        tiles.append(Tile(method, file, number(value, 2) if math.isfinite(value) else ""))
    label = run.class_name(model, kept.labels[kept.ids.index(sample)])
    return PictureRow(run.short_names[model], site.picture(pictures.photo(image)), label, tiles)
