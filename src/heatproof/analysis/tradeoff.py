"""The trade-off of baselines: how far out of domain images get, and how much information is left.

Everything is bootstrapped over samples with the same draws for all baselines, so that baselines are
compared on the same images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heatproof.analysis.intervals import RESAMPLES, Estimate, bootstrap_means
from heatproof.analysis.ranks import rank_correlation


@dataclass(frozen=True)
class Tradeoff:
    """Relation of distance and remaining information over K baselines.

    Attributes:
        correlation: Spearman correlation of the two means over the baselines.
        slope: Slope of the least-squares line through the means.
        intercept: Intercept of that line.
        residuals: How far each baseline is above the line, ``(K,)``; a baseline below it removes
            more information than others at its distance.
    """

    correlation: Estimate
    slope: float
    intercept: float
    residuals: np.ndarray

    def line(self, x: float) -> float:
        """Return the remaining information on the line at distance x."""
        return self.intercept + self.slope * x


def tradeoff(
    distance: np.ndarray, left: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
) -> Tradeoff | None:
    """Relate distance to the domain and remaining information over baselines.

    Args:
        distance: Mean distance over the steps, ``(N, K)`` for N samples and K baselines.
        left: Mean remaining information over the steps, ``(N, K)``.
        resamples: Number of bootstrap draws.
        seed: Seed of the bootstrap.

    Returns:
        The relation, or None for fewer than three baselines or two samples, or without variation.
    """
    finite = np.isfinite(distance).all(1) & np.isfinite(left).all(1)
    distance = distance[finite]
    left = left[finite]
    if distance.shape[1] < 3 or len(distance) < 2:
        return None
    x = distance.mean(0)
    y = left.mean(0)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    slope, intercept = np.polyfit(x, y, 1)
    drawn = (bootstrap_means(values, resamples, seed) for values in (distance, left))
    correlation = rank_correlation(x, y, *drawn)
    return Tradeoff(correlation, float(slope), float(intercept), y - (intercept + slope * x))
