"""Ranks of methods by their means, and their 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RELATIVE_TIE = 1e-6  # of the largest mean: means that differ by less are equal but for rounding


def tie_tolerance(means: np.ndarray) -> float:
    """Return the largest difference of means that is a tie."""
    finite = np.abs(means[np.isfinite(means)])
    return RELATIVE_TIE * float(finite.max(initial=0.0))


def rank(
    means: np.ndarray,
    higher_is_better: bool,
    together: np.ndarray | None = None,
    tolerance: float = 0.0,
) -> np.ndarray:
    """Rank methods from 1 for the best; equal values have the same rank, and nan has none.

    Args:
        means: Scores ``(..., M)``.
        higher_is_better: The direction of the scores.
        together: Which pairs of methods are ranked against each other, ``(M, M)``; None for all.
        tolerance: Values that differ by no more are equal.

    Returns:
        Ranks ``(..., M)``.
    """
    values = -means if higher_is_better else means
    if together is None:
        ranks = places(values, tolerance)
    else:  # comparing all pairs at once would take M times the memory
        ranks = np.ones(means.shape)
        for j in range(means.shape[-1]):
            ranks += (values[..., j : j + 1] < values - tolerance) & together[j]
    return np.where(np.isfinite(means), ranks, np.nan)


def places(values: np.ndarray, tolerance: float = 0.0) -> np.ndarray:  # (..., M) -> same
    """Return the place of each value from 1 for the lowest; equal values share the first."""
    order = values.argsort(-1)
    sorted_values = np.take_along_axis(values, order, -1)
    place = np.zeros(values.shape)
    with np.errstate(invalid="ignore"):
        new = sorted_values[..., 1:] - sorted_values[..., :-1] > tolerance
    new |= np.isnan(sorted_values[..., 1:])
    place[..., 1:] = np.where(new, np.arange(1, values.shape[-1]), 0)
    np.maximum.accumulate(place, axis=-1, out=place)
    found = np.empty(values.shape)
    np.put_along_axis(found, order, place + 1, -1)
    return found


def ranked_together(layers: Sequence[str]) -> np.ndarray | None:  # (M, M)
    """Return which methods are ranked against each other; None if all are.

    Args:
        layers: The layer within which each method is ranked; empty for one that is ranked with
            those of every layer.
    """
    if not any(layers):
        return None
    names = np.array(layers)
    anywhere = names == ""
    return (names[:, None] == names[None, :]) | anywhere[:, None] | anywhere[None, :]


def rank_ends(ahead: np.ndarray, together: np.ndarray | None = None) -> np.ndarray:  # (2, M)
    """Return the 95 % intervals of all ranks, which hold together.

    A rank is behind those of the methods that are significantly ahead, and before those of the
    methods that it is significantly ahead of.

    Args:
        ahead: Whether the method of the row is significantly ahead of the column's, ``(M, M)``.
        together: Which methods are ranked against each other, ``(M, M)``; all by default.

    Returns:
        Lowest and highest rank.
    """
    count = len(ahead)
    ranked = count * np.ones(count) if together is None else together.sum(1)
    return np.stack([1.0 + ahead.sum(0), ranked - ahead.sum(1)])
