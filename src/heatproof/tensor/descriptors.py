"""Numbers that describe a single map: how few pixels hold its mass, and how many levels it has."""

from __future__ import annotations

import torch
from torch import Tensor


def gini(maps: Tensor) -> Tensor:
    """Compute the Gini index of the absolute values of each map (Chalasani et al. 2020).

    Args:
        maps: ``(B, H, W)``.

    Returns:
        Indices ``(B,)`` of float64, from 0 (all pixels are equal) to 1 − 1/N (one pixel has all);
        nan for maps that are 0 everywhere.
    """
    fractions = _fractions(maps).sort(1).values
    pixels = fractions.shape[1]
    weights = 2 * torch.arange(1, pixels + 1, dtype=torch.float64, device=maps.device) - pixels - 1
    return fractions @ weights / pixels


def entropy(maps: Tensor) -> Tensor:
    """Compute the entropy of the fractions that pixels have of a map's mass (Bhatt et al. 2020).

    Args:
        maps: ``(B, H, W)``.

    Returns:
        Entropies ``(B,)`` of float64 in nats, from 0 (one pixel has all) to log N (all are equal);
        nan for maps that are 0 everywhere.
    """
    fractions = _fractions(maps)
    return -torch.xlogy(fractions, fractions).sum(1)


def level_entropy(maps: Tensor, bins: int = 100) -> Tensor:
    """Compute the entropy of the histogram of each map's values (Hedström et al. 2024).

    Args:
        maps: ``(B, H, W)``.
        bins: Number of bins of equal width between the smallest and the largest value.

    Returns:
        Entropies ``(B,)`` of float64 in nats; 0 for maps with one value.
    """
    values = maps.double().flatten(1)
    low = values.amin(1, keepdim=True)
    span = values.amax(1, keepdim=True) - low
    bin_of = ((values - low) / torch.where(span > 0, span, 1) * bins).long().clamp(max=bins - 1)
    counts = torch.zeros(len(maps), bins, dtype=torch.float64, device=maps.device)
    counts.scatter_add_(1, bin_of, torch.ones_like(values))
    fractions = counts / values.shape[1]
    return -torch.xlogy(fractions, fractions).sum(1)


def _fractions(maps: Tensor) -> Tensor:  # (B, H, W) -> (B, H·W)
    mass = maps.double().abs().flatten(1)
    return mass / mass.sum(1, keepdim=True)
