"""Accuracy on intact images and on images without one patch (Hesse et al. 2024, Table 3)."""

from __future__ import annotations

import math

import numpy as np

from heatproof.analysis.intervals import Estimate

Z = 1.959963984540054  # 97.5 % of the normal distribution


def readings(
    correct: np.ndarray, patch_correct: np.ndarray, patch_log_prob: np.ndarray
) -> dict[str, np.ndarray]:
    """Compute per-sample accuracy in four readings.

    Args:
        correct: Whether the intact image is classified correctly, ``(N,)``.
        patch_correct: Whether the image without each patch is, ``(N, P)``.
        patch_log_prob: Log-probability of the label without each patch, ``(N, P)``.

    Returns:
        Values ``(N,)`` for the ``intact`` image, without a ``random`` patch (the mean over all),
        without the ``worst`` patch (lowest probability of the label), and without ``whichever``
        patch (correct for all of them).
    """
    worst = patch_log_prob.argmin(1)[:, None]
    return {
        "intact": correct.astype(float),
        "random": patch_correct.mean(1),
        "worst": np.take_along_axis(patch_correct, worst, 1)[:, 0].astype(float),
        "whichever": patch_correct.min(1).astype(float),
    }


def proportion(values: np.ndarray) -> Estimate:  # (N,) in [0, 1]
    """Estimate a mean of values in [0, 1].

    Binary values get Wilson's interval, since the bootstrap interval of samples that are all
    correct has no width.
    """
    if not _binary(values):
        return Estimate.mean(values)
    mean = float(values.mean())
    return Estimate(mean, *wilson(mean, len(values)))


def change(before: np.ndarray, after: np.ndarray) -> Estimate:  # (N,), (N,): the same samples
    """Estimate the paired difference ``after`` minus ``before``."""
    if _binary(before) and _binary(after):
        return newcombe(before, after)
    return Estimate.mean(after - before)


def wilson(p: float, n: int) -> tuple[float, float]:
    """Return the 95 % score interval of a proportion (Wilson 1927)."""
    if not n:
        return math.nan, math.nan
    middle = p + Z**2 / (2 * n)
    half = Z * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    low = (middle - half) / (1 + Z**2 / n)
    high = (middle + half) / (1 + Z**2 / n)
    return min(low, p), max(high, p)  # at 0 and 1 they are p but for rounding


def newcombe(before: np.ndarray, after: np.ndarray) -> Estimate:
    """Estimate the difference of two paired proportions.

    The interval is the score interval of Newcombe (1998, method 10), which always has a width.

    Args:
        before: Binary values ``(N,)``.
        after: Binary values ``(N,)`` of the same samples.

    Returns:
        The proportion of ``after`` minus that of ``before``.
    """
    n = len(before)
    p = float(after.mean())
    q = float(before.mean())
    p_low, p_high = wilson(p, n)
    q_low, q_high = wilson(q, n)
    phi = _phi(before > 0, after > 0)
    low = math.sqrt(
        max(0.0, (p - p_low) ** 2 - 2 * phi * (p - p_low) * (q_high - q) + (q_high - q) ** 2)
    )
    high = math.sqrt(
        max(0.0, (q - q_low) ** 2 - 2 * phi * (q - q_low) * (p_high - p) + (p_high - p) ** 2)
    )
    return Estimate(p - q, p - q - low, p - q + high)


def _phi(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of two binary columns, continuity-corrected; 0 if one is constant."""
    both, neither, one, other = (float(x.sum()) for x in (a & b, ~a & ~b, a & ~b, ~a & b))
    spread = math.sqrt((both + one) * (other + neither) * (both + other) * (one + neither))
    product = both * neither - one * other
    if not spread:
        return 0.0
    if product > 0:
        product = max(product - len(a) / 2, 0.0)
    return product / spread


def _binary(values: np.ndarray) -> bool:
    return bool(np.isin(values, (0, 1)).all())
