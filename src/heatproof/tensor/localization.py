"""Localization: how much of a map lies where it should, and aggregated maps (Rao et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.tensor.patches import patch_sums

BIN_EDGE_PERCENTILES = (0, 2, 5, 50, 95, 98, 100)


def cell_sums(maps: Tensor, grid: int = 2) -> Tensor:  # (B, H, W) -> (B, grid²) float64
    """Sum the positive part of each map over every grid cell, row by row."""
    return patch_sums(maps.clamp(min=0), grid**2)


def localization(maps: Tensor, cell: int | Tensor, grid: int = 2) -> Tensor:
    """Compute the fraction of each map's positive part that lies in one grid cell.

    Args:
        maps: Maps ``(B, H, W)`` of the size of the grid image.
        cell: Index of the grid cell, row by row: one for all maps, or ``(B,)``.
        grid: Number of grid cells per side.

    Returns:
        Fractions ``(B,)`` of float64; 0 for maps without a positive part.

    Raises:
        HeatproofError: If the grid does not divide the map.
    """
    return cell_fraction(cell_sums(maps, grid), cell)


def cell_fraction(sums: Tensor, cell: int | Tensor) -> Tensor:
    """Compute the fraction of the positive part that lies in one grid cell.

    Args:
        sums: Sums per grid cell ``(B, grid²)``, from `cell_sums`.
        cell: Index of the grid cell: one for all maps, or ``(B,)``.

    Returns:
        Fractions ``(B,)``; 0 where all sums are 0.
    """
    total = sums.sum(1)
    cells = torch.as_tensor(cell, device=sums.device).expand(len(sums))
    inside = sums.gather(1, cells[:, None])[:, 0]
    return torch.where(total > 0, inside / torch.where(total > 0, total, 1), 0)


def mass_fraction(maps: Tensor, inside: Tensor) -> Tensor:
    """Compute the fraction of each map's absolute values that lies inside a region.

    Args:
        maps: ``(B, H, W)``.
        inside: The region, ``(B, H, W)`` of bool.

    Returns:
        Fractions ``(B,)`` of float64; 0 for maps that are 0 everywhere.
    """
    scale = maps.abs().flatten(1).amax(1)
    mass = (maps.double() / torch.where(scale > 0, scale, 1).double()[:, None, None]).abs()
    total = mass.sum((1, 2))
    return torch.where(total > 0, (mass * inside).sum((1, 2)) / torch.where(total > 0, total, 1), 0)


class Aggregate(NamedTuple):
    """All maps of a method, averaged in bins."""

    bins: Tensor  # (bins, H, W): mean map of each bin, best localised first
    order: Tensor  # (N,): indices of the maps, best localised first
    scale: float  # colour scale common to all bins


def aggregate_maps(
    maps: Tensor,
    scores: Tensor,
    inside: Tensor,
    edges: Sequence[float] = BIN_EDGE_PERCENTILES,
    signed: bool = False,
    *,
    compat: Literal["rao"] | None = None,
) -> Aggregate:
    """Compute AggAtt: the mean maps of a method in bins from the best localised to the worst.

    Args:
        maps: Maps ``(N, H, W)``.
        scores: Localization of each map, ``(N,)``.
        inside: Positive sum of each map in its grid cell, ``(N,)`` (see `cell_sums`); it orders
            maps with equal scores.
        edges: Edges of the bins in percent of the maps, from 0 to 100.
        signed: Whether to average the maps as they are instead of their positive part.
        compat: With ``rao``, as in the paper's code, a bin's sum is divided by the truncated
            ⌊N (b − a)⌋ (224 for the 225 maps of the fourth bin of 500), and the scale of signed
            maps is a percentile of the values instead of the absolute values.

    Returns:
        The mean maps, the order of the maps, and a common scale: the 99.5th percentile of the
        absolute values of all pixels of all bins.

    Raises:
        HeatproofError: If the numbers of maps, scores and sums differ, or a bin is empty.
    """
    if not len(maps) == len(scores) == len(inside):
        raise HeatproofError(
            f"{len(maps)} maps need as many scores and sums inside the grid cell; "
            f"got {len(scores)} and {len(inside)}"
        )
    order = best_first(scores, inside)
    values = maps if signed else maps.clamp(min=0)
    slices = bin_slices(len(maps), edges)
    means = [values[order[part]].double().mean(0).to(maps.dtype) for part in slices]
    bins = torch.stack(means)
    if compat == "rao":
        fractions = torch.tensor([edge / 100 for edge in edges], dtype=torch.float64).diff()
        counts = torch.tensor([part.stop - part.start for part in slices])
        bins = bins * (counts / (len(maps) * fractions).floor())[:, None, None].to(bins)
        return Aggregate(bins, order, color_scale(bins))
    return Aggregate(bins, order, color_scale(bins.abs()))


def best_first(scores: Tensor, inside: Tensor) -> Tensor:
    """Order maps from the best localised to the worst.

    Args:
        scores: Localization of each map, ``(N,)``.
        inside: Positive sum of each map in its grid cell, ``(N,)``; it orders equal scores.

    Returns:
        Indices ``(N,)``.
    """
    by_sum = inside.argsort(descending=True, stable=True)
    return by_sum[scores[by_sum].argsort(descending=True, stable=True)]


def bin_slices(count: int, edges: Sequence[float] = BIN_EDGE_PERCENTILES) -> list[slice]:
    """Return the positions of each bin in the order of the maps; together they cover all.

    Args:
        count: Number of maps.
        edges: Edges of the bins in percent, from 0 to 100.

    Raises:
        HeatproofError: If the edges do not rise from 0 to 100, or a bin would be empty.
    """
    if list(edges) != sorted({*edges}) or edges[0] != 0 or edges[-1] != 100:
        raise HeatproofError(f"edges must rise from 0 to 100 percent; got {tuple(edges)}")
    ends = [int(round(count * edge / 100, 6)) for edge in edges]
    if any(begin == end for begin, end in pairwise(ends)):
        narrowest = min(b - a for a, b in pairwise(edges))
        raise HeatproofError(
            f"{count} maps leave a bin of {narrowest:g} % empty; "
            f"take at least {int(-(-100 // narrowest))} maps, or other edges"
        )
    return [slice(begin, end) for begin, end in pairwise(ends)]


def color_scale(maps: Tensor, fraction: float = 0.995) -> float:
    """Return the value below which that fraction of all pixels lies."""
    values = maps.flatten().sort().values
    return float(values[min(int(fraction * len(values)), len(values) - 1)])
