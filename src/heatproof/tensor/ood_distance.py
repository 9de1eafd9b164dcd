"""The OOD distance: how far features are from their nearest neighbours in a bank."""

from __future__ import annotations

import torch
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.tensor.batching import rows

MOST_TABLE_ELEMENTS = 2**23  # which bounds the memory


def knn_distance(features: Tensor, bank: Tensor, k: int = 1, normalize: bool = True) -> Tensor:
    """Compute the Euclidean distance of each row to its k-th nearest neighbour in a bank.

    A row that is in the bank itself is its own first neighbour, at exactly 0; use k + 1 to leave
    it out.

    Args:
        features: ``(N, D)``.
        bank: ``(M, D)``.
        k: Which neighbour, from 1 to M.
        normalize: Whether to scale rows to length 1 first, except for rows of zeros; distances
            then lie in [0, 2].

    Returns:
        Distances ``(N,)`` of float64; nan for rows that are not finite.

    Raises:
        HeatproofError: If the shapes do not match, k is out of range, or the bank is not finite.
    """
    if features.ndim != 2 or bank.ndim != 2 or features.shape[1] != bank.shape[1]:
        raise HeatproofError(
            f"features and bank must be (N, D) and (M, D); "
            f"got {tuple(features.shape)} and {tuple(bank.shape)}"
        )
    if not 1 <= k <= len(bank):
        raise HeatproofError(
            f"k={k}, but the bank has {len(bank)} rows; choose k from 1 to that number"
        )
    if not torch.isfinite(bank).all():
        raise HeatproofError("the bank has features that are not finite; leave those rows out")
    bank = _unit(bank.double(), normalize)
    bank_squares = (bank**2).sum(1)
    distances = []
    for part in rows(features, max(1, MOST_TABLE_ELEMENTS // len(bank))):
        unit = _unit(part.double(), normalize)
        nearest = _squared_distances(unit, bank, bank_squares, k).kthvalue(k, 1).values.sqrt()
        distances.append(nearest.where(torch.isfinite(unit).all(1), torch.nan))
    return torch.cat(distances) if distances else features.new_empty(0, dtype=torch.float64)


def _unit(features: Tensor, normalize: bool) -> Tensor:
    if not normalize:
        return features
    norms = (features**2).sum(1, keepdim=True).sqrt()
    return features / norms.clamp(min=torch.finfo(features.dtype).tiny)


def _squared_distances(features: Tensor, bank: Tensor, bank_squares: Tensor, k: int) -> Tensor:
    """Return distances (N, M): exact for pairs that may be among the k nearest, else infinite."""
    row, column = _candidates(features, bank, bank_squares, k)
    exact = torch.full(
        (len(features), len(bank)), torch.inf, dtype=torch.float64, device=features.device
    )
    size = max(1, MOST_TABLE_ELEMENTS // bank.shape[1])
    for r, c in zip(rows(row, size), rows(column, size), strict=True):
        exact[r, c] = ((features[r] - bank[c]) ** 2).sum(1)
    return exact


def _candidates(
    features: Tensor, bank: Tensor, bank_squares: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Return row and column of all pairs that may be among the k nearest.

    Distances by a matrix product are fast, but imprecise for close pairs. Their error is below
    D·eps·(‖a‖² + ‖b‖²) in any order of summation, so pairs that are farther apart by a
    multiple of that are ruled out.
    """
    feature_squares = (features**2).sum(1, keepdim=True)
    rough = feature_squares + bank_squares - 2 * features @ bank.T
    largest = feature_squares + bank_squares.max()
    slack = 16 * bank.shape[1] * torch.finfo(bank.dtype).eps * largest
    limit = rough.kthvalue(k, 1, keepdim=True).values + slack
    row, column = torch.nonzero(rough <= limit).unbind(1)
    return row, column
