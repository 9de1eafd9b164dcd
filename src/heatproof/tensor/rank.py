"""Rank correlation of many pairs of rows at once."""

from __future__ import annotations

import torch
from torch import Tensor


def average_ranks(values: Tensor) -> Tensor:  # (B, P) -> (B, P) float64
    """Rank each row from 1; equal values get the mean of their ranks."""
    ordered = values.sort(dim=-1).values
    first = torch.searchsorted(ordered, values.contiguous(), right=False)
    last = torch.searchsorted(ordered, values.contiguous(), right=True)
    return (first + last + 1).double() / 2


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Compute Spearman's rank correlation of each pair of rows.

    Args:
        a: ``(B, P)``.
        b: ``(B, P)``.

    Returns:
        Correlations ``(B,)`` of float64; nan where a row is constant or not finite.

    Raises:
        ValueError: If the shapes differ or are not two-dimensional.
    """
    if a.shape != b.shape or a.ndim != 2:
        raise ValueError(
            "spearman needs two tensors of the same shape (B, P); "
            f"got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    x, y = (r - r.mean(-1, keepdim=True) for r in (average_ranks(a), average_ranks(b)))
    rho = (x * y).sum(-1) / ((x * x).sum(-1) * (y * y).sum(-1)).sqrt()
    defined = torch.isfinite(a).all(-1) & torch.isfinite(b).all(-1) & torch.isfinite(rho)
    return torch.where(defined, rho.clamp(-1, 1), torch.nan)
