"""How much of a map lies where it should, and all maps of a method at once (Rao et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.tensor.patches import patch_sums

EDGES = (0, 2, 5, 50, 95, 98, 100)  # of the bins, in percent of the maps


def cell_sums(maps: Tensor, grid: int = 2) -> Tensor:  # (B, H, W) -> (B, grid²) float64
    """The positive part of a map in each cell, row by row."""
    return patch_sums(maps.clamp(min=0), grid**2)


def localization(
    maps: Tensor, cell: int | Tensor, grid: int = 2
) -> Tensor:  # (B, H, W), one cell or (B,) -> (B,) float64
    """The share of a map's positive part that lies in the cell; 0 where there is none. Maps have the size of the grid image."""
    return share_of(cell_sums(maps, grid), cell)


def share_of(sums: Tensor, cell: int | Tensor) -> Tensor:  # (B, grid²), one cell or (B,) -> (B,)
    total = sums.sum(1)
    inside = sums.gather(1, torch.as_tensor(cell, device=sums.device).expand(len(sums))[:, None])[
        :, 0
    ]
    return torch.where(total > 0, inside / torch.where(total > 0, total, 1), 0)


def mass_share(maps: Tensor, inside: Tensor) -> Tensor:  # (B, H, W), (B, H, W) bool -> (B,) float64
    """The share of a map's absolute values that lies inside; 0 where it has none."""
    scale = maps.abs().flatten(1).amax(1)
    mass = (maps.double() / torch.where(scale > 0, scale, 1).double()[:, None, None]).abs()
    total = mass.sum((1, 2))
    return torch.where(total > 0, (mass * inside).sum((1, 2)) / torch.where(total > 0, total, 1), 0)


class Aggregate(NamedTuple):
    bins: Tensor  # (bins, H, W): the mean map of each, best first
    order: Tensor  # (N,): which map stands where
    scale: float  # that all bins are drawn with


def aggregate_maps(
    maps: Tensor,  # (N, H, W)
    scores: Tensor,  # (N,)
    inside: Tensor,  # (N,)
    edges: Sequence[float] = EDGES,
    signed: bool = False,
    *,
    compat: Literal["rao"] | None = None,
) -> Aggregate:
    """AggAtt: all maps of a method in a few bins, from the best localised to the worst.

    scores, inside: of each map its localization, and the positive sum in the cell, which decides between equal scores (`cell_sums`).
    edges: of the bins, in percent. signed: means of the maps as they are, not of their positive part. The scale is the 99.5th percentile of
    all pixels of all bins, by their size. `compat=rao`: as that paper's code, a bin's sum is divided by the truncated ⌊N (b − a)⌋ (224 for
    the 225 maps of the fourth bin of 500), and the scale of signed maps goes by value, not by size.
    """
    if not len(maps) == len(scores) == len(inside):
        raise HeatproofError(
            f"{len(maps)} maps, but {len(scores)} scores and {len(inside)} sums inside the cell"
        )
    by_sum = inside.argsort(descending=True, stable=True)
    order = by_sum[scores[by_sum].argsort(descending=True, stable=True)]
    shown = maps if signed else maps.clamp(min=0)
    bins = torch.stack(
        [
            shown[order[part]].double().mean(0).to(maps.dtype)
            for part in bin_slices(len(maps), edges)
        ]
    )
    if compat == "rao":
        shares = torch.tensor([edge / 100 for edge in edges], dtype=torch.float64).diff()
        counts = torch.tensor([part.stop - part.start for part in bin_slices(len(maps), edges)])
        bins = bins * (counts / (len(maps) * shares).floor())[:, None, None].to(bins)
    return Aggregate(bins, order, common_scale(bins if compat == "rao" else bins.abs()))


def bin_slices(count: int, edges: Sequence[float] = EDGES) -> list[slice]:
    """Which places of the order belong to each bin; together they are all."""
    if list(edges) != sorted({*edges}) or edges[0] != 0 or edges[-1] != 100:
        raise HeatproofError(f"edges rise from 0 to 100 percent; got {tuple(edges)}")
    ends = [int(round(count * edge / 100, 6)) for edge in edges]
    if any(begin == end for begin, end in pairwise(ends)):
        narrowest = min(b - a for a, b in pairwise(edges))
        raise HeatproofError(
            f"{count} maps leave a bin of {narrowest:g} % empty; take at least {int(-(-100 // narrowest))} maps, or other edges"
        )
    return [slice(begin, end) for begin, end in pairwise(ends)]


def common_scale(maps: Tensor, share: float = 0.995) -> float:
    """The value below which that share of all pixels lies."""
    values = maps.flatten().sort().values
    return float(values[min(int(share * len(values)), len(values) - 1)])
