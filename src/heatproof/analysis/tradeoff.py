"""What a baseline does to images on the way from the whole to nothing: how far out of domain they are, and how much is left to be seen.

Everything is bootstrapped over samples with the same draws for all baselines, so that baselines are compared on the same images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heatproof.analysis.intervals import RESAMPLES, Estimate, bootstrap_means
from heatproof.analysis.ranks import rank_correlation


@dataclass(frozen=True)
class Tradeoff:
    """Over baselines: is the one that removes more the one that is further out of domain?"""

    correlation: Estimate  # Spearman's, of the two means over the baselines
    slope: float  # of the straight line through the means, by least squares
    intercept: float
    residuals: np.ndarray  # (K,): how far each baseline is above the line; below it, it removes more than its distance pays for

    def line(self, x: float) -> float:
        return self.intercept + self.slope * x


def tradeoff(
    distance: np.ndarray, left: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
) -> Tradeoff | None:
    """Of (N, K): for each sample and baseline, the means over the steps. None for fewer than three baselines, or no spread."""
    known = np.isfinite(distance).all(1) & np.isfinite(left).all(1)
    distance, left = distance[known], left[known]
    if distance.shape[1] < 3 or len(distance) < 2:
        return None
    x, y = distance.mean(0), left.mean(0)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    slope, intercept = np.polyfit(x, y, 1)
    drawn = (bootstrap_means(values, resamples, seed) for values in (distance, left))
    correlation = Estimate.of(float(rank_correlation(x, y)), rank_correlation(*drawn))
    return Tradeoff(correlation, float(slope), float(intercept), y - (intercept + slope * x))
