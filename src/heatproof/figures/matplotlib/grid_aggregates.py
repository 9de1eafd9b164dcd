"""A figure of aggregated maps of grids (AggAtt, Rao et al. 2024), from the stored maps of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import Tensor

from heatproof.analysis.paired_differences import table
from heatproof.errors import HeatproofError
from heatproof.figures.matplotlib.panels import heat_colours, panel_grid, short
from heatproof.figures.mean_maps import COARSER, FEWEST_IN_BIN, fills_bins, mean_maps
from heatproof.runs.format import ProtocolFacts
from heatproof.tensor.localization import bin_slices, color_scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from heatproof.analysis.run_statistics import RunStatistics

MOST_METHODS = 24


@dataclass(frozen=True)
class Aggregate:
    """The mean map of a bin of maps.

    Attributes:
        method: The method.
        title: The bin, in percent of the maps from the best to the worst.
        map: Mean of the positive parts of its maps, ``(H, W)``.
        score: Mean score of its maps.
        count: Number of its maps.
    """

    method: str
    title: str
    map: Tensor
    score: float
    count: int


def aggregates(
    result: RunStatistics, model: str | None, protocol: str | None
) -> list[list[Aggregate]]:
    """Sort the stored maps of a grid cell by score and average them in bins.

    Returns:
        The bins of every method, best maps first.

    Raises:
        HeatproofError: If there are several models and none is named, or too few maps of grids.
    """
    found = [rows for facts in _protocols(result, protocol) for rows in _of(result, model, facts)]
    if not found:
        raise HeatproofError(
            f"aggregated maps need the maps of {FEWEST_IN_BIN} grids or more: run gridpg, difull "
            "or dipart with keep_maps: all"
        )
    return found[:MOST_METHODS]


def aggregates_data(result: RunStatistics, model: str | None, protocol: str | None) -> pd.DataFrame:
    """Return one line per method and bin: its mean score and the number of its maps."""
    lines = [
        (bin_.method, bin_.title, bin_.score, bin_.count)
        for row in aggregates(result, model, protocol)
        for bin_ in row
    ]
    return pd.DataFrame(lines, columns=["method", "bin", "score", "maps"])


def draw_aggregates(result: RunStatistics, model: str | None, protocol: str | None) -> Figure:
    """Draw the mean map of every bin; all maps of a method have one scale, and white is zero."""
    rows = aggregates(result, model, protocol)
    if all(len(row) == 1 for row in rows):  # too few maps for bins: methods side by side
        return _draw_means(rows)
    across = max(len(row) for row in rows)
    figure, axes = panel_grid(across * len(rows), width=1.35, height=1.55, across=across)
    for number, row in enumerate(rows):
        scale = max(color_scale(bin_.map[None]) for bin_ in row) or 1.0
        for place, bin_ in enumerate(row):
            ax = axes[number * across + place]
            ax.imshow(bin_.map.numpy(), cmap=heat_colours(signed=False), vmin=0, vmax=scale)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.set_xlabel(f"{bin_.score:.2f} (n = {bin_.count})", fontsize=7)
            if number == 0:
                ax.set_title(bin_.title, fontsize=8)
        axes[number * across].set_ylabel(short(row[0].method, 18), fontsize=7)
    return figure


def _draw_means(rows: list[list[Aggregate]]) -> Figure:
    figure, axes = panel_grid(len(rows), width=1.7, height=1.95, across=6)
    for (mean,), ax in zip(rows, axes, strict=True):
        scale = color_scale(mean.map[None]) or 1.0
        ax.imshow(mean.map.numpy(), cmap=heat_colours(signed=False), vmin=0, vmax=scale)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_title(short(mean.method, 22), fontsize=8)
        ax.set_xlabel(f"{mean.score:.2f} (n = {mean.count})", fontsize=7)
    return figure


def _protocols(result: RunStatistics, protocol: str | None) -> Iterator[ProtocolFacts]:
    """Yield the first setting of grids that is asked for."""
    for facts in result.protocols.values():
        if facts.id in ("gridpg", "difull", "dipart") and protocol in (None, facts.id):
            yield facts
            return


def _of(
    result: RunStatistics, model: str | None, facts: ProtocolFacts
) -> Iterator[list[Aggregate]]:
    notes = result.grids
    chosen = model or result.models[0]
    scores = table(result.rows, chosen, facts.key)
    cells = [notes[sample].cell for sample in scores.index if sample in notes]
    for method in scores.columns:
        maps = {
            sample: values
            for sample, values in result.maps(str(method), model=model, protocol=facts.id)
            if sample in notes and notes[sample].cell == min(cells)
        }
        of_method = scores[method].reindex(list(maps)).dropna()
        order = [str(sample) for sample in of_method.sort_values(ascending=False).index]
        edges = next((edges for edges in COARSER if fills_bins(len(order), edges)), None)
        if edges is None:
            continue
        size = tuple(result.image(order[0], model=model, protocol=facts.id).shape[1:])
        row = []
        for (begin, end), part in zip(pairwise(edges), bin_slices(len(order), edges), strict=True):
            members = order[part]
            mean = mean_maps((maps[sample] for sample in members), (size[0], size[1]), False)
            score = float(np.mean([of_method[sample] for sample in members]))
            row.append(Aggregate(str(method), f"{begin}–{end} %", mean, score, len(members)))
        yield row
