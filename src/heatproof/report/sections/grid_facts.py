"""More about grids (Rao et al. 2024): depth, smoothing, an image under every setting, costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import CONTROL, Key
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures import pictures, svg
from heatproof.figures.axes import Axis
from heatproof.figures.charts import CurveChart, Trace
from heatproof.report.sections.common import map_picture, size_of
from heatproof.report.site import Figure, Site
from heatproof.runs.format import TransformFacts
from heatproof.runs.run import Kept

ALONE = "alone"
MOST_IMAGES = 1  # that are shown under every setting
DEPTH_TITLES = ("relative depth of the layer", "mean localization")
DEPTH_AXIS = Axis(0.0, 1.02, (0.0, 0.25, 0.5, 0.75, 1.0))
PASSES = ("forward", "backward")


class LayerMethod(NamedTuple):
    """A method at a layer."""

    label: str
    method: str  # without its layer
    layer: str
    family: str
    depth: int  # counted from the input
    base: str  # without layer and transforms
    transforms: tuple[TransformFacts, ...]


class SmoothedScore(NamedTuple):
    """The mean of a smoothed method, and its correlation with Grad-CAM."""

    mean: Estimate
    rho: float


class SmoothedRow(NamedTuple):
    """A method at each width of the kernel; None where it was not run."""

    method: str
    layer: str
    family: str
    scores: list[SmoothedScore | None]


@dataclass(frozen=True)
class Smoothed:
    """Localization of smoothed maps, beside Grad-CAM at the last layer if the run has it."""

    widths: list[int]
    rows: list[SmoothedRow]
    reference: str | None
    reference_mean: Estimate | None


class FramedPicture(NamedTuple):
    """A picture with a border around the target cell."""

    file: str
    frame: Markup | str


class ImageRow(NamedTuple):
    """The maps of a method under each setting."""

    method: str
    layer: str
    family: str
    maps: list[FramedPicture | None]


@dataclass(frozen=True)
class ImageInSettings:
    """An image under each setting, with its maps."""

    name: str
    titles: list[str]
    photos: list[FramedPicture | None]
    rows: list[ImageRow]


@dataclass(frozen=True)
class Pool:
    """The images that grids are drawn from."""

    classes: dict[str, int]
    images: int
    least: int
    most: int
    reused: dict[str, int]  # images that occur in several grids of a setting, where there are any


@dataclass(frozen=True)
class SettingCost:
    """The cost of a setting: images by kind of pass, from the input and from later layers."""

    label: str
    maps: int
    whole: dict[str, int]
    later: dict[str, int]
    seconds: float


class _Occurrence(NamedTuple):
    """Where an image was evaluated."""

    kept: Kept
    sample: str
    cell: int | None  # None: alone
    side: int


def depth_lines(
    methods: Sequence[LayerMethod],
    layers: Sequence[str],
    means: Mapping[str, Estimate],
) -> list[Trace]:
    """Return the mean at each layer, for methods that have a score at all of them."""
    lines = []
    for method, family in dict.fromkeys((m.method, m.family) for m in methods):
        labels = {m.layer: m.label for m in methods if m.method == method and m.label in means}
        if len(layers) > 2 and all(layer in labels for layer in layers):
            at_layers = [means[labels[layer]] for layer in layers]
            if all(np.isfinite(mean.value) for mean in at_layers):
                values, low, high = zip(*at_layers, strict=True)
                lines.append(Trace(method, family, values, low=low, high=high))
    return lines


def over_depth(
    site: Site, title: str, lines: Sequence[Trace], random_score: float | None
) -> Figure | None:
    """Draw means over the depth of layers (Figs 9, 26); None if there are none."""
    if not lines:
        return None
    return site.figure(CurveChart(title, lines, DEPTH_AXIS, DEPTH_TITLES, random_score))


def depth_by_method(
    site: Site, setting: str, models: Mapping[str, Sequence[Trace]], random_score: float | None
) -> dict[str, Figure]:
    """Draw a figure per method with a line per model (Figs 9, 26).

    Args:
        site: The site that the figures become part of.
        setting: The label of the setting.
        models: The lines of each model, by its name.
        random_score: What a constant map scores.

    Returns:
        The figures of methods that several models have, by method.
    """
    by_method: dict[str, list[Trace]] = {}
    for number, (model, lines) in enumerate(models.items()):
        for line in lines:
            of_model = replace(line, label=model, dash=number)
            by_method.setdefault(line.label, []).append(of_model)
    figures = {}
    for method, lines in by_method.items():
        title = f"{method}, {setting}: mean localization on each model over the depth of the layer"
        figure = over_depth(site, title, lines, random_score) if len(lines) > 1 else None
        if figure is not None:
            figures[method] = figure
    return figures


def smoothed(
    methods: Sequence[LayerMethod], scores: pd.DataFrame, means: Mapping[str, Estimate]
) -> Smoothed | None:
    """Return the mean for each kernel width, and Spearman's ρ with Grad-CAM (Tables 1, 2)."""
    last_gradcams = [
        m.label for m in methods if m.method == "gradcam" and m.layer in ("final", "cam")
    ]
    reference = last_gradcams[-1] if last_gradcams else None
    has_reference = reference in scores
    by_width: dict[tuple[str, str, str], dict[int, SmoothedScore]] = {}
    for m in methods:
        if m.label not in scores or m.label == reference:
            continue
        if [t.name for t in m.transforms] not in ([], ["smooth"]):
            continue
        width = int(m.transforms[0].arguments[0]) if m.transforms else 0
        rho = np.nan
        if has_reference:
            rho = scores[[m.label, reference]].corr(method="spearman").iloc[0, 1]
        score = SmoothedScore(means[m.label], float(rho))
        by_width.setdefault((m.base, m.layer, m.family), {})[width] = score
    by_width = {row: widths for row, widths in by_width.items() if len(widths) > 1}
    if not by_width:
        return None
    widths = sorted({width for row in by_width.values() for width in row})
    rows = [SmoothedRow(*key, [row.get(w) for w in widths]) for key, row in by_width.items()]
    if reference is None or not has_reference:
        return Smoothed(widths, rows, None, None)
    return Smoothed(widths, rows, reference, means[reference])


def in_every_setting(
    run: RunStatistics, site: Site, model: str, keys: Sequence[Key], methods: Sequence[LayerMethod]
) -> list[ImageInSettings]:
    """Show images that most settings evaluated, with the maps of all methods (Figs 3, 25)."""
    occurrences: dict[str, dict[str, _Occurrence]] = {}
    for view, evaluated in run.views(model).items():
        setting = next((key for key in keys if key in evaluated), None)
        if setting is None and not view.is_plain:
            continue
        title = run.setting_labels[setting] if setting else ALONE
        side = int(run.protocols[setting].settings["grid"]) if setting else 1
        kept = run.kept(model, view)
        for sample in kept.with_images:
            grid = kept.grids.get(sample)
            image = grid.images[grid.cell] if grid else sample
            occurrence = _Occurrence(kept, sample, grid.cell if grid else None, side)
            occurrences.setdefault(image, {}).setdefault(title, occurrence)
    everywhere = {title for by_title in occurrences.values() for title in by_title}
    titles = [ALONE, *(run.setting_labels[key] for key in keys)]
    titles = [title for title in titles if title in everywhere]
    in_grids = {image: where for image, where in occurrences.items() if set(where) - {ALONE}}
    chosen = sorted(in_grids, key=lambda image: -len(in_grids[image]))[:MOST_IMAGES]
    return [_image(site, image, titles, in_grids[image], methods) for image in chosen]


def _image(
    site: Site,
    name: str,
    titles: list[str],
    occurrences: dict[str, _Occurrence],
    methods: Sequence[LayerMethod],
) -> ImageInSettings:
    rows = []
    for m in methods:
        if m.family != CONTROL:
            maps = [_framed(site, occurrences.get(title), m.label) for title in titles]
            if any(maps):
                rows.append(ImageRow(m.method, m.layer, m.family, maps))
    photos = [_framed(site, occurrences.get(title)) for title in titles]
    return ImageInSettings(name, titles, photos, rows)


def _framed(
    site: Site, occurrence: _Occurrence | None, method: str | None = None
) -> FramedPicture | None:
    """Return the map of a method, or the image itself, with its target cell."""
    if occurrence is None:
        return None
    kept, sample, cell, side = occurrence
    image = kept.image(sample)
    frame = "" if cell is None else svg.grid_cell_frame(side, cell)
    if method is None:
        return FramedPicture(site.picture(pictures.photo(image)), frame)
    file = map_picture(site, kept.map(sample, method), size_of(image))
    return FramedPicture(file, frame) if file else None


def pools(run: RunStatistics, model: str) -> list[Pool]:
    """Return the images that a model classifies confidently; pools that are the same once."""
    different: dict[str, Pool] = {}
    for view in run.plan.views:
        if view.model == model and view.pool:
            counts = view.pool
            named = {run.class_name(model, label): count for label, count in counts.items()}
            pool = Pool(named, sum(counts.values()), min(counts.values()), max(counts.values()), {})
            pool = different.setdefault(repr(sorted(counts.items())), pool)
            if view.reused:
                pool.reused[view.view.name] = view.reused
    return list(different.values())


def costs(run: RunStatistics, model: str, keys: Sequence[Key]) -> list[SettingCost]:
    """Return what each setting cost, as recorded by the run (Supplement F)."""
    rows = []
    for key in keys:
        whole = dict.fromkeys(PASSES, 0)
        later = dict.fromkeys(PASSES, 0)  # passes that begin at a later layer
        seconds = 0.0
        images = 0
        for task in run.tasks:
            evaluated = task.model == model and run.protocols[key].canonical in task.protocols
            timings = run.store.timings(task.name) if evaluated else None
            if timings is None:
                continue
            for count in timings.passes:
                (later if count.start else whole)[count.kind] += count.images
            seconds += sum(timing.seconds for timing in timings.seconds)
            images += timings.images
        if images:
            rows.append(SettingCost(run.setting_labels[key], images, whole, later, seconds))
    return rows
