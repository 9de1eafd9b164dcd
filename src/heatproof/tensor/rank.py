"""Rank correlation, vectorised over a batch."""

from __future__ import annotations

import torch
from torch import Tensor


def average_ranks(values: Tensor) -> Tensor:  # (B, P) -> (B, P) float64
    """Ranks from 1, equal values share the mean of their ranks (Spearman's convention)."""
    ordered = values.sort(dim=-1).values
    first = torch.searchsorted(ordered, values.contiguous(), right=False)
    last = torch.searchsorted(ordered, values.contiguous(), right=True)
    return (first + last + 1).double() / 2


def spearman(a: Tensor, b: Tensor) -> Tensor:  # (B, P), (B, P) -> (B,) float64
    """Spearman's ρ per row; nan where a row is constant or not finite in either argument."""
    if a.shape != b.shape or a.ndim != 2:
        raise ValueError(
            f"spearman takes two tensors of one shape (B, P); got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    x, y = (r - r.mean(-1, keepdim=True) for r in (average_ranks(a), average_ranks(b)))
    rho = (x * y).sum(-1) / ((x * x).sum(-1) * (y * y).sum(-1)).sqrt()
    defined = torch.isfinite(a).all(-1) & torch.isfinite(b).all(-1) & torch.isfinite(rho)
    return torch.where(defined, rho.clamp(-1, 1), torch.nan)
