"""Some samples with the maps of all methods, their scores, and the true drops."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from heatproof.analysis.ranks import Key
from heatproof.bench.layout import ModelView, ProtocolFacts
from heatproof.protocols import ViewKey
from heatproof.report import charts, pictures
from heatproof.report.run_data import CRISP_BELOW, Kept, Run, mean_scores
from heatproof.report.sections.base import section
from heatproof.report.sections.common import map_picture, size_of
from heatproof.report.site import Site
from heatproof.tensor.patches import patch_sums

FIRST = 6  # samples in the order of the data
BEST = 3
WORST = 3
ENDS = ("best for most methods", "worst for most methods")
BYTES = 3_000_000  # for all maps
ScoreRows = dict[tuple[str, str, Key], dict[str, Any]]  # (sample, method, setting) -> row


@dataclass(frozen=True)
class TileScore:
    """The score of a map; its value is None if there is none, and the text says why."""

    text: str
    value: float | None
    message: str


@dataclass(frozen=True)
class Tile:
    """The map of a method; its file is None if there is no map."""

    method: str
    family: str
    signed: bool
    file: str | None
    sums: str  # JSON: sums of the map by number of patches
    scores: dict[int, TileScore]  # by setting


@dataclass(frozen=True)
class Drops:
    """The true drops of a sample under a setting."""

    values: list[float]
    json: str
    svg: Markup


@dataclass(frozen=True)
class Sample:
    """A sample with the maps of all methods."""

    id: str
    reason: str  # why it was chosen
    photo: str
    width: int
    height: int
    label: str
    predicted: str
    confidence: float
    correct: bool | None  # None: it has no label
    drops: dict[int, Drops]  # by setting
    tiles: list[Tile]


@dataclass(frozen=True)
class View:
    """A view of a model, and the settings that evaluated it."""

    title: str
    fine_tuned: bool
    settings: list[int]
    samples: list[Sample]
    kept: int
    of: int


@dataclass(frozen=True)
class Model:
    """All views of a model."""

    name: str
    views: list[View]
    crisp: bool


@dataclass(frozen=True)
class Content:
    """What the template shows."""

    models: list[Model]
    signed_bar: str  # scales of the two colour maps
    unsigned_bar: str
    settings: list[str]  # their labels

    @property
    def has_drops(self) -> bool:
        """Whether any sample has true drops."""
        views = [view for model in self.models for view in model.views]
        return any(sample.drops for view in views for sample in view.samples)


@section(
    "gallery",
    short="Gallery",
    question="What do the maps look like, and what are they compared with?",
    order=100,
)
def content(run: Run, site: Site) -> Content:
    """Return some samples of each model with all their maps."""
    models = [_model(run, site, s.model, s.order) for s in run.standings]
    return Content(
        models=[model for model in models if model is not None],
        signed_bar=site.picture(pictures.scale_bar(True)),
        unsigned_bar=site.picture(pictures.scale_bar(False)),
        settings=[run.setting_labels[key] for key in run.protocols],
    )


def _model(run: Run, site: Site, model: str, order: list[str]) -> Model | None:
    """Show the same samples in every view, so that choosing a setting shows what changes."""
    rows = run.rows[run.rows["model"] == model]
    methods = list(dict.fromkeys([*order, *rows["method"]]))
    size = run.image_size(model)
    size = size if all(size) else (64, 64)
    real = [m for m in order if not run.is_control(m)] or order
    best_first = [str(s) for s in mean_scores(rows, real).index]
    count = _sample_count(run, len(methods), size)
    views = [
        _view(run, site, model, view, methods, best_first, count)
        for view in _first_cells(run.views(model))
    ]
    with_samples = [view for view in views if view is not None]
    return Model(model, with_samples, max(size) < CRISP_BELOW) if with_samples else None


def _sample_count(run: Run, methods: int, size: tuple[int, int]) -> int:
    """Return how many samples fit into the size of the report."""
    views = sum(len(_first_cells(run.views(model))) for model in run.models)
    bytes_per_sample = int(views * (methods + 1) * 0.25 * size[0] * size[1])
    return max(3, min(FIRST + BEST + WORST, BYTES // bytes_per_sample))


def _first_cells(views: Iterable[ViewKey]) -> list[ViewKey]:
    """Return all views, but only the first of grids that differ in the target cell alone."""
    first: dict[ViewKey, ViewKey] = {}
    for view in views:
        first.setdefault(replace(view, cell=None), view)
    return list(first.values())


def _view(
    run: Run,
    site: Site,
    model: str,
    view: ViewKey,
    methods: list[str],
    best_first: list[str],
    count: int,
) -> View | None:
    kept = run.kept(model, view)
    chosen = choose(list(kept.with_images), best_first, count)
    if not chosen:
        return None
    settings = {i: key for i, key in enumerate(run.protocols) if key in run.views(model)[view]}
    protocols = list(dict.fromkeys(key[0] for key in run.protocols))
    suffix = f" under {protocols[0]}" if len(protocols) > 1 else ""
    signed = {method: _is_signed(kept, method) for method in methods}
    rows = run.rows[(run.rows["model"] == model) & run.rows["sample"].isin(list(chosen))]
    scores: ScoreRows = {
        (r["sample"], r["method"], (r["protocol"], r["setting"], r["baseline"])): {
            str(k): v for k, v in r.items()
        }
        for r in rows.to_dict("records")
    }
    samples = []
    for sample, reason in chosen.items():
        reason += suffix if reason in ENDS else ""
        samples.append(_sample(run, site, model, kept, sample, reason, signed, scores, settings))
    return View(
        title=ModelView(model, view).title,
        fine_tuned=view.is_fine_tuned,
        settings=list(settings),
        samples=samples,
        kept=len(kept.with_images),
        of=kept.total,
    )


def _is_signed(kept: Kept, method: str) -> bool:
    maps = (kept.map(sample, method) for sample in kept.with_images)
    return any(pictures.is_signed(values) for values in maps if values is not None)


def choose(samples: list[str], best_first: list[str], count: int) -> dict[str, str]:
    """Choose the first samples, and the best and the worst of all.

    Args:
        samples: The samples to choose from.
        best_first: All samples that have a score, best first.
        count: How many to choose.

    Returns:
        The chosen samples, and why each was chosen.
    """
    available = set(samples)
    ranked = [s for s in best_first if s in available]
    ends = min(BEST, count // 3, len(ranked) // 3)
    extremes = dict.fromkeys(ranked[:ends], ENDS[0]) | dict.fromkeys(ranked[::-1][:ends], ENDS[1])
    others = [s for s in samples if s not in extremes]
    return dict.fromkeys(others[: count - len(extremes)], "one of the first") | extremes


def _sample(
    run: Run,
    site: Site,
    model: str,
    kept: Kept,
    sample: str,
    reason: str,
    signed: dict[str, bool],
    scores: ScoreRows,
    settings: dict[int, Key],
) -> Sample:
    image = kept.image(sample)
    size = size_of(image)
    row = kept.ids.index(sample)
    label = kept.labels[row]
    predicted, probability = kept.confidence(row)
    drops = {i: d for i, key in settings.items() if (d := _drops(kept, sample, run.protocols[key]))}
    patch_counts = sorted({len(d.values) for d in drops.values()})
    photo = site.picture(pictures.photo(image))
    tiles = []
    for method in signed:
        values = kept.map(sample, method)
        file = map_picture(site, values, size, signed[method])
        tiles.append(
            Tile(
                method=method,
                family=run.family(method),
                signed=signed[method],
                file=file,
                sums=_sums(values, size, patch_counts) if file and values is not None else "",
                scores={
                    i: _score(scores.get((sample, method, key))) for i, key in settings.items()
                },
            )
        )
    return Sample(
        id=sample,
        reason=reason,
        photo=photo,
        width=size[1],
        height=size[0],
        label=run.class_name(model, label),
        predicted=run.class_name(model, predicted),
        confidence=probability,
        correct=kept.correct[row],
        drops=drops,
        tiles=tiles,
    )


def _sums(values: torch.Tensor, size: tuple[int, int], patch_counts: list[int]) -> str:
    large = pictures.resized(values, size)[None]
    return json.dumps({count: _rounded(patch_sums(large, count)[0]) for count in patch_counts})


def _drops(kept: Kept, sample: str, protocol: ProtocolFacts) -> Drops | None:
    """Return the drops of protocols that delete one patch at a time."""
    drops = kept.shared_row(sample, protocol, "drops")
    if drops is None or math.isqrt(len(drops)) ** 2 != len(drops):
        return None
    values = [float(v) for v in drops]
    title = (
        "How far the target's score drops when one patch is replaced by the baseline "
        f"{protocol.baseline}"
    )
    grid = charts.patch_grid(values, max(map(abs, values)), title)
    return Drops(values, json.dumps(_rounded(drops)), grid)


def _rounded(values: torch.Tensor) -> list[float]:
    return [
        float(np.format_float_positional(v, precision=5, fractional=False, trim="-"))
        for v in values.double().numpy()
    ]


def _score(row: dict[str, Any] | None) -> TileScore:
    if row is None:
        return TileScore("not evaluated", None, "")
    if row["status"] != "ok":
        return TileScore(row["status"], None, row["message"])
    return TileScore(charts.number(row["value"], 2), row["value"], row["message"])
