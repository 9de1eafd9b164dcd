"""The order in which pixels are removed, and the area under the resulting curve."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heatproof.tensor.noise import Rng, sample_ids


def tie_order(
    ids: Sequence[str], seed: int, pixels: int, device: torch.device | str = "cpu"
) -> Tensor:  # (B, pixels)
    """Draw the permutation of each sample in which pixels with equal values are ordered."""
    return Rng(seed, ids, device).uniform("tie order", (pixels,)).argsort(dim=1, stable=True)


def ranks_of(maps: Tensor, ties: Tensor) -> Tensor:
    """Rank the pixels of each map.

    Args:
        maps: ``(B, H, W)``.
        ties: Order of pixels with equal values, ``(B, H·W)``, from `tie_order`.

    Returns:
        Ranks ``(B, H, W)`` of int64; 0 is the most relevant pixel, and every rank occurs once.
    """
    flat = maps.flatten(1)
    by_value = flat.gather(1, ties).argsort(dim=1, descending=True, stable=True)
    order = ties.gather(1, by_value)
    ranks = torch.arange(flat.shape[1], device=maps.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, ranks).reshape(maps.shape)


def removal_order(maps: Tensor, ids: Sequence[str] | None = None, seed: int = 0) -> Tensor:
    """Rank the pixels of each map from most to least relevant.

    Pixels with equal values are ordered at random, in the same way for every map of a sample.

    Args:
        maps: Attribution maps ``(B, H, W)``.
        ids: Sample ids, which key the order of equal pixels; by default the row numbers.
        seed: Seed of the order of equal pixels.

    Returns:
        Ranks ``(B, H, W)`` of int64; 0 is the most relevant pixel, and every rank occurs once.
    """
    return ranks_of(maps, tie_order(sample_ids(ids, len(maps)), seed, maps[0].numel(), maps.device))


def auc(curve: Tensor) -> Tensor:
    """Compute the area under curves by the trapezoidal rule.

    Args:
        curve: Values ``(..., S)`` at S evenly spaced points of [0, 1].

    Returns:
        Areas ``(...)`` of float64.
    """
    return torch.trapezoid(curve.double(), dx=1 / (curve.shape[-1] - 1), dim=-1)
