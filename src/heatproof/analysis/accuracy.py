"""How often a network is right, on intact images and on images without one patch (Table 3 of Hesse et al. 2024)."""

from __future__ import annotations

import math

import numpy as np

from heatproof.analysis.intervals import Estimate

Z = 1.959963984540054  # 97.5 % of the normal distribution


def readings(
    correct: np.ndarray, right: np.ndarray, chance: np.ndarray
) -> dict[str, np.ndarray]:  # (N,), (N, P), (N, P) -> (N,) each
    """correct: the answer to the intact image; right: without each patch; chance: log-probability of the label without each patch."""
    worst = chance.argmin(1)[:, None]
    return {
        "intact": correct.astype(float),
        "random": right.mean(1),
        "worst": np.take_along_axis(right, worst, 1)[:, 0].astype(float),
        "whichever": right.min(1).astype(float),
    }


def share(values: np.ndarray) -> Estimate:  # (N,) in [0, 1]
    """The mean with its interval: Wilson's where a sample is right or wrong, since a bootstrap of none wrong has no width."""
    return (
        Estimate(float(values.mean()), *wilson(float(values.mean()), len(values)))
        if _binary(values)
        else Estimate.mean(values)
    )


def change(before: np.ndarray, after: np.ndarray) -> Estimate:  # (N,), (N,): the same samples
    """After minus before, paired."""
    return (
        newcombe(before, after)
        if _binary(before) and _binary(after)
        else Estimate.mean(after - before)
    )


def wilson(p: float, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927)."""
    if not n:
        return math.nan, math.nan
    middle, half = p + Z**2 / (2 * n), Z * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return (middle - half) / (1 + Z**2 / n), (middle + half) / (1 + Z**2 / n)


def newcombe(before: np.ndarray, after: np.ndarray) -> Estimate:
    """Difference of two paired proportions, with the score interval of Newcombe (1998, method 10), never without a width."""
    n, p, q = len(before), float(after.mean()), float(before.mean())
    (p_low, p_high), (q_low, q_high) = wilson(p, n), wilson(q, n)
    phi = _phi(before > 0, after > 0)
    low = math.sqrt(
        max(0.0, (p - p_low) ** 2 - 2 * phi * (p - p_low) * (q_high - q) + (q_high - q) ** 2)
    )
    high = math.sqrt(
        max(0.0, (q - q_low) ** 2 - 2 * phi * (q - q_low) * (p_high - p) + (p_high - p) ** 2)
    )
    return Estimate(p - q, p - q - low, p - q + high)


def _phi(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation of two yes-or-no columns, with the continuity correction; 0 where one does not vary."""
    both, neither, one, other = (float(x.sum()) for x in (a & b, ~a & ~b, a & ~b, ~a & b))
    spread = math.sqrt((both + one) * (other + neither) * (both + other) * (one + neither))
    product = both * neither - one * other
    return (max(product - len(a) / 2, 0.0) if product > 0 else product) / spread if spread else 0.0


def _binary(values: np.ndarray) -> bool:
    return bool(np.isin(values, (0, 1)).all())
