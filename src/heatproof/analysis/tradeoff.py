"""The trade-off of baselines: how far out of domain images get, and how much information is left.

The units of a trend over baselines are the baselines. It is tested by permuting them, and only if
there are eight or more; which images were drawn hardly matters beside which baselines were tried.
Baselines that depend on the model are what a trend of the others is to be compared with (Picard et
al. 2024), so they have no part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heatproof.analysis.families import LEVEL, holm
from heatproof.analysis.ranks import average_ranks
from heatproof.tensor.noise import generator

FEWEST_BASELINES = 8
PERMUTATIONS = 9999


@dataclass(frozen=True)
class Tradeoff:
    """Relation of distance and remaining information over K baselines.

    Attributes:
        correlation: Spearman correlation of the two means over the fitted baselines.
        p: P-value of a permutation test of it; nan for fewer than `FEWEST_BASELINES`.
        fitted: Number of baselines in the correlation and the line.
        slope: Slope of the least-squares line through the means.
        intercept: Intercept of that line.
        off: -1 or 1 for baselines that are significantly below or above the line through the
            others, else 0, ``(K,)``.
    """

    correlation: float
    p: float
    fitted: int
    slope: float
    intercept: float
    off: np.ndarray

    def line(self, x: float) -> float:
        """Return the remaining information on the line at distance x."""
        return self.intercept + self.slope * x


def tradeoff(
    distance: np.ndarray, left: np.ndarray, of_model: Sequence[bool] | None = None
) -> Tradeoff | None:
    """Relate distance to the domain and remaining information over baselines.

    Args:
        distance: Mean distance over the steps, ``(N, K)`` for N samples and K baselines.
        left: Mean remaining information over the steps, ``(N, K)``.
        of_model: Which baselines depend on the model, ``(K,)``; they are left out of the fit.

    Returns:
        The relation, or None for fewer than three baselines, or without variation.
    """
    finite = np.isfinite(distance).all(1) & np.isfinite(left).all(1)
    if not finite.any():
        return None
    x = distance[finite].mean(0)
    y = left[finite].mean(0)
    fitted = ~np.asarray(of_model if of_model is not None else np.zeros(len(x)), dtype=bool)
    if fitted.sum() < 3 or np.ptp(x[fitted]) == 0 or np.ptp(y[fitted]) == 0:
        return None
    slope, intercept = np.polyfit(x[fitted], y[fitted], 1)
    correlation, p = _rank_correlation(x[fitted], y[fitted])
    off = np.zeros(len(x), dtype=int)
    if fitted.sum() >= FEWEST_BASELINES:
        tests = [_residual(x, y, fitted, k) for k in range(len(x))]
        adjusted = holm(np.array([q for _, q in tests]))
        off = np.array(
            [sign if q <= LEVEL else 0 for (sign, _), q in zip(tests, adjusted, strict=True)]
        )
    return Tradeoff(correlation, p, int(fitted.sum()), float(slope), float(intercept), off)


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return Spearman's correlation and the p-value of a permutation test."""
    a, b = (ranks - ranks.mean() for ranks in (average_ranks(x), average_ranks(y)))
    scale = np.sqrt((a**2).sum() * (b**2).sum())
    found = float(a @ b / scale)
    if len(x) < FEWEST_BASELINES:
        return found, np.nan
    draw = generator(0, "permutations", len(x))
    permuted = draw.permuted(np.tile(b, (PERMUTATIONS, 1)), axis=1) @ a / scale
    return found, float((1 + (np.abs(permuted) >= abs(found) - 1e-12).sum()) / (1 + PERMUTATIONS))


def _residual(x: np.ndarray, y: np.ndarray, fitted: np.ndarray, k: int) -> tuple[int, float]:
    """Compare a baseline with the line through the others: its side, and a p-value."""
    from scipy.special import stdtr  # slow to import

    others = fitted.copy()
    others[k] = False
    a, b = x[others], y[others]
    slope, intercept = np.polyfit(a, b, 1)
    residual = y[k] - (intercept + slope * x[k])
    freedom = len(a) - 2
    error = np.sqrt(((b - intercept - slope * a) ** 2).sum() / freedom)
    spread = error * np.sqrt(1 + 1 / len(a) + (x[k] - a.mean()) ** 2 / ((a - a.mean()) ** 2).sum())
    p = 2 * stdtr(freedom, -abs(residual) / spread) if spread > 0 else 1.0
    return int(np.sign(residual)), float(p)
