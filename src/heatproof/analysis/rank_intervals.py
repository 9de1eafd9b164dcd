"""Ranks of methods by their means, and their 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heatproof.analysis.intervals import TAILS


def rank(
    means: np.ndarray, higher_is_better: bool, together: np.ndarray | None = None
) -> np.ndarray:
    """Rank methods from 1 for the best; equal values have the same rank, and nan has none.

    Args:
        means: Scores ``(..., M)``.
        higher_is_better: The direction of the scores.
        together: Which pairs of methods are ranked against each other, ``(M, M)``; None for all.

    Returns:
        Ranks ``(..., M)``.
    """
    values = -means if higher_is_better else means
    if together is None:
        ranks = places(values)
    else:  # comparing all pairs at once would take M times the memory
        ranks = np.ones(means.shape)
        for j in range(means.shape[-1]):
            ranks += (values[..., j : j + 1] < values) & together[j]
    return np.where(np.isfinite(means), ranks, np.nan)


def places(values: np.ndarray) -> np.ndarray:  # (..., M) -> same
    """Return the place of each value from 1 for the lowest; equal values share the first."""
    order = values.argsort(-1)
    sorted_values = np.take_along_axis(values, order, -1)
    place = np.zeros(values.shape)
    new = sorted_values[..., 1:] != sorted_values[..., :-1]
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


def rank_bounds(
    means: np.ndarray,
    draws: np.ndarray,
    higher_is_better: bool,
    together: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute 95 % intervals of ranks from simultaneous intervals of differences.

    A method is ranked behind those that are significantly better, and before those that are
    significantly worse. The differences to all others are tested at once, so that the rank of the
    true mean is within the bounds with a probability of at least 95 % even among methods that are
    nearly equal (Mogstad, Romano, Shaikh, Wilhelm 2024). A method that is ahead in no draw, as
    of one with the highest possible score, is not ranked before.

    Args:
        means: Mean scores ``(M,)``; nan for a method without a score.
        draws: Draws of the means, ``(R, M)``.
        higher_is_better: Whether the highest mean has rank 1.
        together: Which methods are ranked against each other, ``(M, M)``; all by default.

    Returns:
        Lowest and highest rank, ``(M,)`` each; nan for methods without a score or without draws.
    """
    best = np.full(len(means), np.nan)
    worst = np.full(len(means), np.nan)
    drawn = np.isfinite(draws).any(0)
    ranked = np.flatnonzero(np.isfinite(means))
    complete = bool(np.isfinite(draws[:, drawn]).all())
    sign = 1 if higher_is_better else -1
    for i in ranked[drawn[ranked]]:
        others = ranked[ranked != i]
        if together is not None:
            others = others[together[i, others]]
        ahead = sign * (means[others] - means[i])
        best[i] = 1.0
        worst[i] = 1.0 + len(others)
        testable = drawn[others]
        ahead = ahead[testable]
        moved = sign * (draws[:, others[testable]] - draws[:, i : i + 1])
        moved -= ahead
        if not complete:
            moved = moved[np.isfinite(moved).all(1)]
        if not moved.size:
            continue
        scale = np.sqrt(np.einsum("rj,rj->j", moved, moved) / len(moved))
        rounding = 1e-12 * (1 + np.abs(means[i]))
        least, most = moved.min(0) + ahead, moved.max(0) + ahead
        moved /= np.maximum(scale, rounding)
        largest = np.maximum(moved.max(1), -moved.min(1))
        margin = np.quantile(largest, TAILS[1] - TAILS[0]) * scale + rounding
        never_behind = (ahead > 0) & (least > rounding)
        never_ahead = (ahead <= 0) & (most <= rounding)
        best[i] += ((ahead > margin) | never_behind).sum()
        worst[i] -= ((ahead < -margin) | never_ahead).sum()
    return best, worst
