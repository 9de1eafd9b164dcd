"""Every sample whose maps were kept: its maps, scores, curves and true drops, one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heatproof.analysis.ranks import Key
from heatproof.analysis.run_statistics import CRISP_BELOW_PIXELS, RunStatistics
from heatproof.figures import pictures
from heatproof.figures.palette import family_class
from heatproof.protocols import ViewKey
from heatproof.report.sections.base import section
from heatproof.report.sections.common import mean_scores, size_of
from heatproof.report.sections.example_maps import shown_methods
from heatproof.report.site import Site
from heatproof.report.stored_curves import curve_title, curves_of
from heatproof.runs.curve_files import map_ahead
from heatproof.runs.format import ModelView, TensorKey
from heatproof.runs.run import Kept
from heatproof.tensor.patches import patch_sums
from heatproof.text import with_short_titles

BYTES_PER_PIXEL = 0.85  # of a noisy map as WebP
REDUCTIONS = (1, 2, 4)  # pixels of a large map that become one, along each axis
LARGE = 112  # px: smaller maps are never reduced
FEWEST = 6  # samples that are shown however large their maps are


@dataclass(frozen=True)
class Collection:
    """The samples of one view of a model, as the page lists them before its script has run."""

    title: str
    shown: int
    kept: int  # samples whose maps are stored
    of: int
    fine_tuned: bool


@dataclass(frozen=True)
class Content:
    """The content of the template; the rest is read by the script."""

    collections: list[Collection]
    reduction: int  # pixels of a large map that were averaged, along each axis
    signed_bar: str  # scales of the two colour maps
    unsigned_bar: str


@dataclass(frozen=True)
class _Subject:
    """A view of a model with stored maps, before any picture is written."""

    model: str
    view: ViewKey
    kept: Kept
    methods: list[str]
    best_first: list[str]
    settings: list[Key]

    def pixels(self, reduction: int) -> int:
        """Return the number of pixels in the pictures of all maps of one sample."""
        sample = next(iter(self.kept.with_images))
        size = size_of(self.kept.image(sample))
        maps = (self.kept.map(sample, method) for method in self.methods)
        return sum(_as_drawn(m, size, reduction).numel() for m in maps if m is not None)


@section(
    "explorer",
    short="Explorer",
    question="What do the maps look like, sample by sample?",
    order=40,
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Write one file of data per sample; None if no maps were kept."""
    subjects = [s for standing in run.standings for s in _subjects(run, standing.model)]
    if not subjects:
        return None
    reduction, fraction = _fit(subjects, site.picture_bytes)
    collections = []
    index = []
    for number, subject in enumerate(subjects):
        available = list(subject.kept.with_images)
        most = max(FEWEST, int(fraction * len(available)))
        samples = choose(available, subject.best_first, most)
        index.append(_write_collection(run, site, number, subject, samples, reduction))
        collections.append(
            Collection(
                title=ModelView(subject.model, subject.view).title,
                shown=len(samples),
                kept=len(available),
                of=subject.kept.total,
                fine_tuned=subject.view.is_fine_tuned,
            )
        )
    site.data("explorer/index", index)
    return Content(
        collections,
        reduction,
        site.picture(pictures.scale_bar(True)),
        site.picture(pictures.scale_bar(False)),
    )


def _subjects(run: RunStatistics, model: str) -> list[_Subject]:
    columns = run.rows[["method", "protocol", "sample", "value"]]
    rows = columns[run.rows["model"] == model]
    order = next(s.order for s in run.standings if s.model == model)
    methods = list(dict.fromkeys([*order, *rows["method"].unique()]))
    real = [m for m in order if not run.is_control(m)] or order
    best_first = [str(s) for s in mean_scores(rows, real).index]
    subjects = []
    for view in _first_cells(run.views(model)):
        kept = run.kept(model, view)
        if kept.with_images:
            settings = [key for key in run.protocols if key in run.views(model)[view]]
            subjects.append(_Subject(model, view, kept, methods, best_first, settings))
    return subjects


def _first_cells(views: Iterable[ViewKey]) -> list[ViewKey]:
    """Return all views, but only the first of grids that differ in the target cell alone."""
    first: dict[ViewKey, ViewKey] = {}
    for view in views:
        first.setdefault(replace(view, cell=None), view)
    return list(first.values())


def _fit(subjects: Sequence[_Subject], budget: int) -> tuple[int, float]:
    """Return how far large maps are reduced, and which fraction of the samples is shown."""
    size = 0.0
    for reduction in REDUCTIONS:
        pixels = (len(s.kept.with_images) * s.pixels(reduction) for s in subjects)
        size = BYTES_PER_PIXEL * sum(pixels)
        if size <= budget:
            return reduction, 1.0
    return REDUCTIONS[-1], budget / size


def choose(samples: list[str], best_first: list[str], count: int) -> list[str]:
    """Choose samples in the order of the data: the best, the worst, and the first of the others.

    Args:
        samples: The samples to choose from.
        best_first: All samples that have a score, best first.
        count: How many to choose.
    """
    available = set(samples)
    ranked = [s for s in best_first if s in available]
    ends = min(count // 3, len(ranked) // 2)
    chosen = {*ranked[:ends], *ranked[::-1][:ends]}
    for sample in samples:
        if len(chosen) >= count:
            break
        chosen.add(sample)
    return [s for s in samples if s in chosen]


def _write_collection(
    run: RunStatistics,
    site: Site,
    number: int,
    subject: _Subject,
    samples: list[str],
    reduction: int,
) -> dict[str, object]:
    """Write the data of all samples; returns what the script needs to list them."""
    kept = subject.kept
    signed = {method: _is_signed(kept, method) for method in subject.methods}
    columns = ["sample", "method", "protocol", "setting", "baseline", "value", "status", "message"]
    chosen = (run.rows["model"] == subject.model) & run.rows["sample"].isin(samples)
    tables = _by_sample(run.rows[columns].iloc[np.flatnonzero(chosen)])
    listed = []
    scores = []
    for i, sample in enumerate(samples):
        image = kept.image(sample)
        row = kept.ids.index(sample)
        predicted, probability = kept.confidence(row)
        found = tables.get(sample, {})
        scores.append(
            [
                [_number(found.get((m, key), (None, ""))[0]) for m in subject.methods]
                for key in subject.settings
            ]
        )
        listed.append(
            [
                sample,
                run.class_name(subject.model, kept.labels[row]),
                run.class_name(subject.model, predicted),
                _number(probability),
                kept.correct[row],
                site.picture(pictures.photo(image, small=True)),
            ]
        )
        site.data(
            f"explorer/{number}/{i:05d}",
            _sample_data(run, site, subject, sample, signed, found, reduction),
        )
    return {
        "title": with_short_titles(ModelView(subject.model, subject.view).title, run.models),
        "methods": subject.methods,
        "families": [family_class(run.family(m)) for m in subject.methods],
        "controls": [run.is_control(m) for m in subject.methods],
        "first": _first_methods(run, subject),
        "settings": [run.setting_labels[key] for key in subject.settings],
        "higher": [run.protocols[key].higher_is_better for key in subject.settings],
        "crisp": max(size_of(kept.image(samples[0]))) < CRISP_BELOW_PIXELS,
        "samples": listed,
        "scores": scores,
    }


def _first_methods(run: RunStatistics, subject: _Subject) -> list[int]:
    """Return the methods that the overview shows as well, by their positions."""
    evidences = [e for e in run.evidence if e.model == subject.model and e.leader]
    shown = shown_methods(run, evidences[0], subject.kept) if evidences else {}
    return [i for i, method in enumerate(subject.methods) if method in shown]


def _by_sample(
    rows: pd.DataFrame,
) -> dict[str, dict[tuple[str, Key], tuple[float | None, str]]]:
    """Return the value of each (method, setting) by sample, or why there is none."""
    found: dict[str, dict[tuple[str, Key], tuple[float | None, str]]] = {}
    for sample, method, *key, value, status, message in rows.itertuples(index=False):
        reason = "" if status == "ok" else ": ".join(part for part in (status, message) if part)
        of_sample = found.setdefault(str(sample), {})
        of_sample[str(method), (key[0], key[1], key[2])] = (
            float(value) if status == "ok" else None,
            reason,
        )
    return found


def _sample_data(
    run: RunStatistics,
    site: Site,
    subject: _Subject,
    sample: str,
    signed: dict[str, bool],
    found: dict[tuple[str, Key], tuple[float | None, str]],
    reduction: int,
) -> dict[str, object]:
    kept = subject.kept
    image = kept.image(sample)
    size = size_of(image)
    drops = [_drops(run, kept, sample, key) for key in subject.settings]
    counts = sorted({len(values) for values in drops if values})
    maps: list[list[object] | None] = []
    sums: list[list[list[float | None]] | None] = []

    def draw(method: str) -> tuple[bytes, float] | None:
        values = kept.map(sample, method)
        if values is None or not bool(torch.isfinite(values).all()):
            return None
        return pictures.grey_map(_as_drawn(values, size, reduction), signed[method])

    for method, drawn in zip(subject.methods, map_ahead(draw, subject.methods), strict=True):
        values = kept.map(sample, method)
        if values is None or drawn is None:
            maps.append(None)
            sums.append(None)
            continue
        largest = kept.unscaled_map(sample, method)
        unit = float(largest.abs().max()) if largest is not None else None
        maps.append(_map_data(site, *drawn, signed[method], unit))
        sums.append(_patch_sums(values, size, counts))
    return {
        "photo": site.picture(pictures.photo(image)),
        "size": [size[1], size[0]],
        "maps": maps,
        "reasons": [
            [found.get((m, key), (None, "not evaluated"))[1] for m in subject.methods]
            for key in subject.settings
        ],
        "drops": drops,
        "counts": counts,
        "sums": sums,
        "curves": _curves(run, subject, sample),
    }


def _patch_sums(
    values: Tensor, size: tuple[int, int], counts: Sequence[int]
) -> list[list[float | None]]:
    """Sum up a map over patches, for several numbers of them."""
    if not counts:
        return []
    large = pictures.resized(values, size)[None]
    return [_numbers(patch_sums(large, count)[0]) for count in counts]


def _map_data(
    site: Site, grey: bytes, end: float, signed: bool, unit: float | None
) -> list[object]:
    """Write a map as a grey picture of 8 bits; returns its file, signs, and end of the scale.

    The end of the scale is in the method's own unit, or None if this is not on record; the last
    entry is the largest absolute value.
    """
    return [
        site.picture(grey),
        int(signed),
        None if unit is None else _number(end * unit),
        None if unit is None else _number(unit),
    ]


def _as_drawn(values: Tensor, size: tuple[int, int], reduction: int) -> Tensor:
    """Return a map as its picture has it.

    Those of small images, which are drawn pixel by pixel, have the size of the image. Others keep
    their own, which the browser enlarges; large ones may be reduced.
    """
    if max(size) < CRISP_BELOW_PIXELS:
        return pictures.resized(values, size)
    if reduction > 1 and min(values.shape) > LARGE:
        return torch.nn.functional.avg_pool2d(values.float()[None], reduction)[0]
    return values


def _drops(run: RunStatistics, kept: Kept, sample: str, key: Key) -> list[float | None] | None:
    """Return the drops of protocols that delete one patch at a time."""
    drops = kept.shared_row(sample, run.protocols[key], "drops")
    if drops is None or math.isqrt(len(drops)) ** 2 != len(drops):
        return None
    return _numbers(drops)


def _curves(run: RunStatistics, subject: _Subject, sample: str) -> list[dict[str, object]]:
    """Return the curves of all methods for one sample."""
    found: list[dict[str, object]] = []
    for key, curve in curves_of(run, subject.settings):
        canonical = run.protocols[key].canonical
        lines: list[list[float | None] | None] = []
        positions: list[float] = []
        for method in subject.methods:
            values = subject.kept.row(sample, TensorKey.curve(canonical, method, curve.name))
            if values is None:
                lines.append(None)
                continue
            values = values.flip(0) if curve.reverse else values
            positions = curve.positions(run.protocols[key], len(values))
            lines.append(_numbers(values))
        if positions:
            found.append(
                {
                    "title": curve_title(run, key, curve),
                    "across": curve.across,
                    "up": curve.up,
                    "x": [round(position, 4) for position in positions],
                    "lines": lines,
                }
            )
    return found


def _is_signed(kept: Kept, method: str) -> bool:
    maps = (kept.map(sample, method) for sample in kept.with_images)
    return any(pictures.is_signed(values) for values in maps if values is not None)


def _numbers(values: Tensor) -> list[float | None]:
    return [_number(value) for value in values.double().tolist()]


def _number(value: float | None) -> float | None:
    """Round to four digits; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(np.format_float_positional(value, precision=4, fractional=False, trim="-"))
