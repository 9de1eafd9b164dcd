"""Orders in which pixels are removed, and the area under what a score does meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heatproof.tensor.noise import Rng, sample_ids


def tie_order(
    ids: Sequence[str], seed: int, pixels: int, device: torch.device | str = "cpu"
) -> Tensor:  # (B, pixels)
    """A permutation that belongs to a sample: in that order come pixels that a map does not tell apart."""
    return Rng(seed, ids, device).uniform("tie order", (pixels,)).argsort(dim=1, stable=True)


def ranks_of(maps: Tensor, ties: Tensor) -> Tensor:  # (B, H, W), (B, H·W) -> (B, H, W) int64
    """0 = most relevant; every rank once."""
    flat = maps.flatten(1)
    sorted_ = flat.gather(1, ties).argsort(dim=1, descending=True, stable=True)
    order = ties.gather(1, sorted_)
    places = torch.arange(flat.shape[1], device=maps.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places).reshape(maps.shape)


def removal_order(
    maps: Tensor, ids: Sequence[str] | None = None, seed: int = 0
) -> Tensor:  # (B, H, W) -> (B, H, W)
    """The rank of every pixel, 0 = most relevant. Ties have an order that is fixed for a sample."""
    known = sample_ids(ids, len(maps))
    return ranks_of(maps, tie_order(known, seed, maps[0].numel(), maps.device))


def auc(curve: Tensor) -> Tensor:  # (..., S) -> (...,) float64
    """The area under a curve whose points are evenly spaced on [0, 1], by the trapezoid rule."""
    return torch.trapezoid(curve.double(), dx=1 / (curve.shape[-1] - 1), dim=-1)
