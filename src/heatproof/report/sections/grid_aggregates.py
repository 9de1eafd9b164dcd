"""Aggregated maps of grids (AggAtt, Rao et al. 2024): maps sorted by score and averaged in bins."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pandas as pd
import torch
from markupsafe import Markup
from torch import Tensor

from heatproof.analysis.ranks import CONTROL
from heatproof.errors import HeatproofError
from heatproof.report import charts, pictures
from heatproof.report.run_data import Kept
from heatproof.report.sections.common import size_of
from heatproof.report.sections.grid_facts import LayerMethod
from heatproof.report.site import Site
from heatproof.tensor.filters import resize
from heatproof.tensor.localization import EDGES, aggregate_maps, bin_slices, cell_fraction

COARSER = (EDGES, (0, 10, 50, 90, 100), (0, 50, 100))  # bins, for fewer and fewer maps
MOST_MAPS = 200  # more would need gigabytes
MOST_ROWS = 12  # with more, each method is shown at its best layer only


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
class Aggregated:
    """The aggregated maps of all methods, for one target cell."""

    rows: list[Row]
    titles: list[str]
    maps: int
    of: int
    every_layer: bool
    frame: Markup
    row: int
    column: int


def content(
    site: Site,
    kept: Kept,
    sums: dict[LayerMethod, Tensor],
    scores: pd.DataFrame,
    cell: int,
    side: int,
) -> Aggregated | None:
    """Aggregate the stored maps of one target cell.

    Args:
        site: The site that the pictures become part of.
        kept: Stored tensors of the view.
        sums: Positive part of each map in each grid cell, ``(N, side²)``, by method.
        scores: Samples down, methods across.
        cell: The target cell.
        side: Grid cells in a row.

    Returns:
        The aggregated maps; None if too few maps are stored.
    """
    samples = list(kept.with_images)[:MOST_MAPS]
    edges = next((edges for edges in COARSER if fills_bins(len(samples), edges)), None)
    if edges is None:
        return None
    real = [m for m in sums if m.family != CONTROL]
    chosen = _chosen(real, scores)
    candidates = [_row(site, kept, samples, m, sums[m], cell, edges) for m in chosen]
    rows = [row for row in candidates if row is not None]
    if not rows:
        return None
    return Aggregated(
        rows=rows,
        titles=[f"{a}–{b} %" for a, b in pairwise(edges)],
        maps=len(samples),
        of=len(kept.ids),
        every_layer=len(chosen) == len(real),
        frame=charts.grid_cell_frame(side, cell),
        row=cell // side + 1,
        column=cell % side + 1,
    )


def _chosen(methods: list[LayerMethod], scores: pd.DataFrame) -> list[LayerMethod]:
    """Return all methods or, if these are too many, each at the layer where it localizes best."""
    if len(methods) <= MOST_ROWS:
        return methods
    worst_first = sorted(methods, key=lambda m: float(scores[m.label].mean()))
    best = {m.method: m for m in worst_first}
    return [m for m in methods if best[m.method] == m]


def fills_bins(count: int, edges: tuple[float, ...]) -> bool:
    """Return whether each bin gets a map."""
    try:
        return bool(bin_slices(count, edges))
    except HeatproofError:
        return False


def _row(
    site: Site,
    kept: Kept,
    samples: list[str],
    method: LayerMethod,
    sums: Tensor,
    cell: int,
    edges: tuple[float, ...],
) -> Row | None:
    maps_by_sample = {}
    for sample in samples:
        values = kept.unscaled_map(sample, method.label)
        if values is not None and torch.isfinite(sums[kept.ids.index(sample)]).all():
            maps_by_sample[sample] = values
    usable = list(maps_by_sample)
    if not fills_bins(len(usable), edges):
        return None
    size = size_of(kept.image(usable[0]))
    maps = torch.cat([resize(values[None], *size) for values in maps_by_sample.values()])
    sums = sums[[kept.ids.index(sample) for sample in usable]]
    scores = cell_fraction(sums, cell)
    positive = aggregate_maps(maps, scores, sums[:, cell], edges)
    signed = None
    if pictures.is_signed(maps):
        signed = aggregate_maps(maps, scores, sums[:, cell], edges, signed=True)
    bins = []
    for i, part in enumerate(bin_slices(len(usable), edges)):
        middle = int(positive.order[(part.start + part.stop - 1) // 2])
        signed_map = None
        if signed:
            picture = pictures.heatmap(signed.bins[i], size, True, signed.scale, small=True)
            signed_map = site.picture(picture)
        example = pictures.heatmap(maps[middle], size, signed is not None, small=True)
        bins.append(
            Bin(
                map=site.picture(pictures.heatmap(positive.bins[i], size, False, positive.scale)),
                signed=signed_map,
                score=float(scores[positive.order[part]].mean()),
                count=part.stop - part.start,
                photo=site.picture(pictures.photo(kept.image(usable[middle]), small=True)),
                example=site.picture(example),
                example_score=float(scores[middle]),
                sample=usable[middle],
            )
        )
    return Row(method.method, method.layer, method.label, method.family, bins)
