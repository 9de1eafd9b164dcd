"""Aggregated maps of grids (AggAtt, Rao et al. 2024): maps sorted by score and averaged in bins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor

from heatproof.analysis.ranks import CONTROL
from heatproof.figures import pictures, svg
from heatproof.figures.charts import MeanMap, MeanMapChart
from heatproof.figures.mean_maps import COARSER, fills_bins, mean_maps
from heatproof.report.sections.common import size_of
from heatproof.report.sections.grid_facts import LayerMethod
from heatproof.report.site import Site
from heatproof.runs.run import Kept
from heatproof.tensor.filters import resize
from heatproof.tensor.localization import (
    BIN_EDGE_PERCENTILES,
    best_first,
    bin_slices,
    cell_fraction,
    color_scale,
)

REFERENCES = ("gradcam@final", "gradcam")  # whose bins choose grids that all methods show
MOST_ROWS = 12  # with more, there is a table for each layer
MOST_LAYERS = 4  # with more, there are tables for the first, middle and last layer


@dataclass(frozen=True)
class Bin:
    """The mean map of a bin, and the sample in its middle."""

    map: str
    signed: str | None
    score: float
    count: int
    photo: str
    example: str
    example_score: float
    sample: str


class BinnedMaps(NamedTuple):
    """The maps of a method in bins, from the best to the worst.

    Attributes:
        method: The method.
        samples: The samples whose maps are used.
        scores: Score of each sample.
        order: The indices of the samples of each bin, best first.
        means: The mean map of each bin ``(bins, H, W)``, by whether it has signs.
    """

    method: LayerMethod
    samples: list[str]
    scores: Tensor
    order: list[list[int]]
    means: dict[bool, Tensor]

    @property
    def has_signs(self) -> bool:
        """Whether a map has negative values."""
        return True in self.means

    def score(self, i: int) -> float:
        """Return the mean score of a bin."""
        return float(self.scores[self.order[i]].mean())


@dataclass(frozen=True)
class Row:
    """A method, from the best bin to the worst."""

    method: str
    layer: str
    label: str
    family: str
    bins: list[Bin]


@dataclass(frozen=True)
class Table:
    """The methods at one layer, or all methods if these are few."""

    layer: str  # empty: all layers
    rows: list[Row]


class Shown(NamedTuple):
    """The map of a method for a given sample, and its score."""

    map: str
    score: float


@dataclass(frozen=True)
class SameGrids:
    """What several methods show of the grids in the middle of one method's bins.

    Attributes:
        of: The label of the method whose bins they are.
        photos: A picture of each grid.
        rows: The maps of each method by its label, in the order of the bins.
    """

    of: str
    photos: list[str]
    rows: dict[str, list[Shown]]


@dataclass(frozen=True)
class Aggregated:
    """The aggregated maps of all methods, for one target cell."""

    tables: list[Table]
    titles: list[str]
    maps: int
    of: int
    every_layer: bool
    paper_bins: bool
    frame: Markup
    row: int
    column: int
    same: SameGrids | None


def content(
    site: Site,
    kept: Kept,
    setting: tuple[str, str],
    sums: dict[LayerMethod, Tensor],
    cell: int,
    side: int,
) -> Aggregated | None:
    """Aggregate the stored maps of one target cell.

    Args:
        site: The site that the pictures become part of.
        kept: Stored tensors of the view.
        setting: The model and the protocol.
        sums: Positive part of each map in each grid cell, ``(N, side²)``, by method.
        cell: The target cell.
        side: Grid cells in a row.

    Returns:
        The aggregated maps; None if too few maps are stored.
    """
    samples = list(kept.with_images)
    edges = next((edges for edges in COARSER if fills_bins(len(samples), edges)), None)
    if edges is None:
        return None
    real = [m for m in sums if m.family != CONTROL]
    titles = [f"{a}–{b} %" for a, b in pairwise(edges)]
    by_layer = _by_layer(real)
    tables = []
    of_methods: dict[str, BinnedMaps] = {}
    for layer, methods in by_layer.items():
        found = [_bins(kept, samples, m, sums[m], cell, edges) for m in methods]
        binned = [bins for bins in found if bins is not None]
        of_methods |= {bins.method.label: bins for bins in binned}
        if binned:
            tables.append(Table(layer, [_row(site, kept, bins) for bins in binned]))
            site.pictures(_chart(setting, layer, titles, binned))
    if not tables:
        return None
    return Aggregated(
        tables=tables,
        titles=titles,
        maps=len(samples),
        of=kept.total,
        every_layer=sum(map(len, by_layer.values())) == len(real),
        paper_bins=edges == BIN_EDGE_PERCENTILES,
        frame=svg.grid_cell_frame(side, cell),
        row=cell // side + 1,
        column=cell % side + 1,
        same=_same_grids(site, kept, of_methods),
    )


def _same_grids(site: Site, kept: Kept, found: dict[str, BinnedMaps]) -> SameGrids | None:
    """Show the same grids by all methods: those in the middle of the bins of Grad-CAM's last layer.

    Rao et al. 2024, Fig. 25. None if there is no such method, or no other.
    """
    of = next((label for label in REFERENCES if label in found), None)
    if of is None or len(found) < 2:
        return None
    reference = found[of]
    samples = [reference.samples[part[(len(part) - 1) // 2]] for part in reference.order]
    rows = {}
    for label, bins in found.items():
        shown = []
        for sample in samples:
            if sample not in bins.samples:
                break
            size = size_of(kept.image(sample))
            (values,) = _read(kept, [sample], label)
            large = resize(values[None], *size)[0]
            picture = pictures.heatmap(large, size, bins.has_signs, small=True)
            shown.append(
                Shown(site.picture(picture), float(bins.scores[bins.samples.index(sample)]))
            )
        if len(shown) == len(samples):
            rows[label] = shown
    photos = [site.picture(pictures.photo(kept.image(sample), small=True)) for sample in samples]
    return SameGrids(of, photos, rows)


def _by_layer(methods: list[LayerMethod]) -> dict[str, list[LayerMethod]]:
    """Return all methods or, if these are too many, those of each layer, from first to last."""
    if len(methods) <= MOST_ROWS:
        return {"": methods}
    depths = {m.depth: m.layer for m in sorted(methods, key=lambda m: m.depth)}
    layers = list(dict.fromkeys(depths.values()))
    if len(layers) > MOST_LAYERS:
        layers = [layers[0], layers[len(layers) // 2], layers[-1]]
    return {layer: [m for m in methods if m.layer == layer] for layer in layers}


def _read(kept: Kept, samples: Iterable[str], method: str) -> Iterator[Tensor]:
    """Yield the stored maps of a method, in their original scale."""
    for sample in samples:
        values = kept.unscaled_map(sample, method)
        if values is not None:
            yield values


def _bins(
    kept: Kept,
    samples: list[str],
    method: LayerMethod,
    sums: Tensor,
    cell: int,
    edges: tuple[float, ...],
) -> BinnedMaps | None:
    """Sort the maps of a method by score and average them in bins; None if there are too few."""
    index_of = {sample: i for i, sample in enumerate(kept.ids)}
    usable: list[str] = []
    has_signs = False
    for sample in samples:
        values = kept.unscaled_map(sample, method.label)
        if values is not None and torch.isfinite(sums[index_of[sample]]).all():
            has_signs = has_signs or pictures.is_signed(values)
            usable.append(sample)
    if not fills_bins(len(usable), edges):
        return None
    size = size_of(kept.image(usable[0]))
    sums = sums[[index_of[sample] for sample in usable]]
    scores = cell_fraction(sums, cell)
    order = best_first(scores, sums[:, cell]).tolist()
    slices = bin_slices(len(usable), edges)
    means = {}
    for signed in (False, True)[: 1 + has_signs]:
        in_bins = []
        for part in slices:
            members = _read(kept, (usable[i] for i in order[part]), method.label)
            in_bins.append(mean_maps(members, size, signed))
        means[signed] = torch.stack(in_bins)
    return BinnedMaps(method, usable, scores, [order[part] for part in slices], means)


def _chart(
    setting: tuple[str, str], layer: str, titles: list[str], binned: list[BinnedMaps]
) -> MeanMapChart:
    model, protocol = setting
    rows = [
        [
            MeanMap(bins.method.label, title, bins.means[False][i], bins.score(i), count)
            for i, (title, count) in enumerate(zip(titles, map(len, bins.order), strict=True))
        ]
        for bins in binned
    ]
    where = f"{model}, {protocol} at layer {layer}" if layer else f"{model}, {protocol}"
    title = f"{where}: mean of the positive attribution of maps, sorted by their score"
    return MeanMapChart(title, rows, model=model, protocol=protocol, panel=where)


def _row(site: Site, kept: Kept, found: BinnedMaps) -> Row:
    """Save the mean maps of a method as pictures, and an example of each."""
    method = found.method
    size = size_of(kept.image(found.samples[0]))
    scales = {signed: color_scale(maps.abs()) for signed, maps in found.means.items()}
    bins = []
    for i, part in enumerate(found.order):
        middle = part[(len(part) - 1) // 2]
        signed_map = None
        if found.has_signs:
            picture = pictures.heatmap(found.means[True][i], size, True, scales[True], small=True)
            signed_map = site.picture(picture)
        sample = found.samples[middle]
        (middle_map,) = _read(kept, [sample], method.label)
        large = resize(middle_map[None], *size)[0]
        example = pictures.heatmap(large, size, found.has_signs, small=True)
        mean = pictures.heatmap(found.means[False][i], size, False, scales[False])
        bins.append(
            Bin(
                map=site.picture(mean),
                signed=signed_map,
                score=found.score(i),
                count=len(part),
                photo=site.picture(pictures.photo(kept.image(sample), small=True)),
                example=site.picture(example),
                example_score=float(found.scores[middle]),
                sample=sample,
            )
        )
    return Row(method.method, method.layer, method.label, method.family, bins)
