"""Rank correlation of many pairs of rows at once."""

from __future__ import annotations

import torch
from torch import Tensor


def average_ranks(values: Tensor) -> Tensor:  # (B, P) -> (B, P) float64
    """Rank each row from 1; equal values get the mean of their ranks."""
    if values.device.type == "cpu":  # several times as fast as sorting by PyTorch
        order = torch.from_numpy(values.detach().numpy().argsort(-1))
    else:
        order = values.argsort(-1)
    ordered = values.gather(-1, order)
    begins = torch.ones_like(ordered, dtype=torch.bool)  # a run of equal values
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    starts = begins.flatten().nonzero().flatten()
    lengths = starts.diff(append=starts.new_tensor([values.numel()]))
    means = starts % max(1, values.shape[-1]) + (lengths + 1).double() / 2
    ranks = means.repeat_interleave(lengths).view_as(ordered)
    return torch.empty_like(ranks).scatter_(-1, order, ranks)


def centred_ranks(values: Tensor) -> Tensor:  # (B, P) -> (B, P) float64
    """Rank each row, and subtract the mean rank; nan where a value is not finite."""
    ranks = average_ranks(values)
    ranks -= ranks.mean(-1, keepdim=True)
    return ranks.masked_fill_(~torch.isfinite(values).all(-1, keepdim=True), torch.nan)


def correlation(x: Tensor, y: Tensor) -> Tensor:
    """Correlate pairs of centred rows ``(B, P)``; nan where one is constant or has nan."""
    squares = torch.einsum("bp,bp->b", x, x) * torch.einsum("bp,bp->b", y, y)
    return (torch.einsum("bp,bp->b", x, y) / squares.sqrt()).clamp(-1, 1)


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
    return correlation(centred_ranks(a), centred_ranks(b))
