"""How far features are from a bank of others."""

from __future__ import annotations

import torch
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.tensor.batching import rows

ELEMENTS = 2**23  # of a distance table or of differences at a time


def knn_distance(
    features: Tensor, bank: Tensor, k: int = 1, normalize: bool = True
) -> Tensor:  # (N, D), (M, D) -> (N,) float64
    """The Euclidean distance of every row to its k-th nearest neighbour in the bank; nan for a row that is not finite.

    normalize: rows have length 1 first (one of zeros stays as it is), so distances lie in [0, 2]. A row that is in the bank itself is its
    own first neighbour, at exactly 0: k + 1 leaves it out.
    """
    if features.ndim != 2 or bank.ndim != 2 or features.shape[1] != bank.shape[1]:
        raise HeatproofError(
            f"features and bank must be (N, D) and (M, D); got {tuple(features.shape)} and {tuple(bank.shape)}"
        )
    if not 1 <= k <= len(bank):
        raise HeatproofError(
            f"k={k}, but the bank has {len(bank)} rows; k is a number from 1 to that"
        )
    if not torch.isfinite(bank).all():
        raise HeatproofError("the bank has features that are not finite; leave those rows out")
    bank = _unit(bank.double(), normalize)
    squares, found = (bank**2).sum(1), []
    for part in rows(features, max(1, ELEMENTS // len(bank))):
        part = _unit(part.double(), normalize)
        row, column = _candidates(part, bank, squares, k)
        exact = torch.full(
            (len(part), len(bank)), torch.inf, dtype=torch.float64, device=part.device
        )
        for r, c in zip(
            rows(row, size := max(1, ELEMENTS // bank.shape[1])), rows(column, size), strict=True
        ):
            exact[r, c] = ((part[r] - bank[c]) ** 2).sum(1)
        nearest = exact.kthvalue(k, 1).values.sqrt()
        found.append(nearest.where(torch.isfinite(part).all(1), torch.nan))
    return torch.cat(found) if found else features.new_empty(0, dtype=torch.float64)


def _unit(features: Tensor, normalize: bool) -> Tensor:
    return (
        features
        / (features**2).sum(1, keepdim=True).sqrt().clamp(min=torch.finfo(features.dtype).tiny)
        if normalize
        else features
    )


def _candidates(features: Tensor, bank: Tensor, squares: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(row, column) of all pairs that rounding may hide among the k nearest: a matrix product is fast, but loses what is close.

    Its error is below D·eps·(‖a‖² + ‖b‖²) whatever the order of summation, so what is further than some times that is out of the question.
    """
    own = (features**2).sum(1, keepdim=True)
    rough = own + squares - 2 * features @ bank.T
    slack = 16 * bank.shape[1] * torch.finfo(bank.dtype).eps * (own + squares.max())
    row, column = torch.nonzero(rough <= rough.kthvalue(k, 1, keepdim=True).values + slack).unbind(
        1
    )
    return row, column
