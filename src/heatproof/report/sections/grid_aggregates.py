"""Aggregated maps of grids (AggAtt, Rao et al. 2024): maps sorted by score and averaged in bins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from markupsafe import Markup
from torch import Tensor

from heatproof.analysis.ranks import CONTROL
from heatproof.figures import pictures
from heatproof.figures import svg as charts
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


def content(
    site: Site,
    kept: Kept,
    sums: dict[LayerMethod, Tensor],
    cell: int,
    side: int,
) -> Aggregated | None:
    """Aggregate the stored maps of one target cell.

    Args:
        site: The site that the pictures become part of.
        kept: Stored tensors of the view.
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
    by_layer = _by_layer(real)
    tables = []
    for layer, methods in by_layer.items():
        candidates = [_row(site, kept, samples, m, sums[m], cell, edges) for m in methods]
        rows = [row for row in candidates if row is not None]
        if rows:
            tables.append(Table(layer, rows))
    if not tables:
        return None
    return Aggregated(
        tables=tables,
        titles=[f"{a}–{b} %" for a, b in pairwise(edges)],
        maps=len(samples),
        of=kept.total,
        every_layer=sum(map(len, by_layer.values())) == len(real),
        paper_bins=edges == BIN_EDGE_PERCENTILES,
        frame=charts.grid_cell_frame(side, cell),
        row=cell // side + 1,
        column=cell % side + 1,
    )


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


def _row(
    site: Site,
    kept: Kept,
    samples: list[str],
    method: LayerMethod,
    sums: Tensor,
    cell: int,
    edges: tuple[float, ...],
) -> Row | None:
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
    means: dict[bool, Tensor] = {}  # (bins, H, W), by whether they have signs
    for signed in (False, True)[: 1 + has_signs]:
        in_bins = []
        for part in slices:
            members = _read(kept, (usable[i] for i in order[part]), method.label)
            in_bins.append(mean_maps(members, size, signed))
        means[signed] = torch.stack(in_bins)
    scales = {signed: color_scale(maps.abs()) for signed, maps in means.items()}
    bins = []
    for i, part in enumerate(slices):
        middle = order[(part.start + part.stop - 1) // 2]
        signed_map = None
        if has_signs:
            picture = pictures.heatmap(means[True][i], size, True, scales[True], small=True)
            signed_map = site.picture(picture)
        (middle_map,) = _read(kept, [usable[middle]], method.label)
        large = resize(middle_map[None], *size)[0]
        example = pictures.heatmap(large, size, has_signs, small=True)
        bins.append(
            Bin(
                map=site.picture(pictures.heatmap(means[False][i], size, False, scales[False])),
                signed=signed_map,
                score=float(scores[order[part]].mean()),
                count=part.stop - part.start,
                photo=site.picture(pictures.photo(kept.image(usable[middle]), small=True)),
                example=site.picture(example),
                example_score=float(scores[middle]),
                sample=usable[middle],
            )
        )
    return Row(method.method, method.layer, method.label, method.family, bins)
