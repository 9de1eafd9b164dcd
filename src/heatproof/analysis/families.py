"""Families of paired differences: which are significant, with one error rate for all of them.

A family is a set of differences that are tested together, such as those of all pairs of methods
under one setting. If two methods score alike, it is a matter of chance which of them is ahead on an
image: the sign of the difference could as well be the other one. So the signs of all differences of
an image (or a grid) are flipped together, thousands of times, and the largest t statistic of every
such table says how large one can be by chance. Comparing with the largest of those that are not
rejected yet (step-down max-T, Westfall and Young 1993; Romano and Wolf 2005) keeps the probability
of any false difference at 5 %, whatever the correlations between methods, and is exact where
differences are symmetric. docs/statistics-evidence.md has simulations.

Scores that are aggregated over all samples are no means of images: their errors come from draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from heatproof.analysis.intervals import rounded_for_sums
from heatproof.tensor.noise import generator

LEVEL = 0.05
POWER = 0.8
FLIPS = 2000
# Of so many clusters all flips are made; their number is 2 to the power of one less.
MOST_ENUMERATED_CLUSTERS = 11
# Of fewer clusters, half the probability of an equal statistic is too much to leave out.
FEWEST_FOR_MID_P = 7
RELATIVE_ROUNDING = 1e-9  # relative difference of statistics that are equal but for rounding
STATISTIC_WITHOUT_ERROR = 1e9  # of differences that are the same on all images


@dataclass(frozen=True)
class Family:
    """K differences that are tested together.

    Attributes:
        gaps: The differences, ``(K,)``.
        errors: Their standard errors, ``(K,)``; nan where there is no test.
        counts: Numbers of clusters, ``(K,)``.
        p: P-values of a difference in either direction, adjusted for all of the family, ``(K,)``;
            nan where there is no test.
        largest: The largest statistic of the whole family in every flip or draw, sorted, ``(R,)``.
    """

    gaps: np.ndarray
    errors: np.ndarray
    counts: np.ndarray
    p: np.ndarray
    largest: np.ndarray

    @property
    def significant(self) -> np.ndarray:  # (K,)
        """The differences that are significant, as a mask."""
        return np.nan_to_num(self.p, nan=1.0) <= LEVEL

    @property
    def critical(self) -> float:
        """Standard errors that a difference may be by chance, as the largest of the family.

        Infinity for a family without a test, and for so few clusters that none can succeed.
        """
        if len(self.largest) * LEVEL < 1:  # the order that was seen is one of them
            return math.inf
        value = float(np.quantile(self.largest, 1 - LEVEL, method="higher"))
        return value if value < STATISTIC_WITHOUT_ERROR else math.inf

    def p_of(self, statistics: np.ndarray) -> np.ndarray:
        """Return p-values of other statistics, adjusted as if they were of this family."""
        below = np.searchsorted(self.largest, statistics * (1 - RELATIVE_ROUNDING), side="left")
        return 1 - below / max(1, len(self.largest))

    @property
    def intervals(self) -> tuple[np.ndarray, np.ndarray]:  # (K,) each
        """Lower and upper ends that contain all true differences with a probability of 95 %."""
        reach = self.critical * self.errors if math.isfinite(self.critical) else np.nan
        return self.gaps - reach, self.gaps + reach

    def detectable(self, errors: np.ndarray | float) -> np.ndarray | float:
        """Return true differences that this family would find in four of five data sets.

        They are nan where there are too few clusters for any test to succeed.

        Args:
            errors: Standard errors of the differences.
        """
        reach = self.critical if math.isfinite(self.critical) else math.nan
        return (reach + _power_quantile()) * errors


def flip_family(
    totals: np.ndarray,
    samples: np.ndarray,
    counts: np.ndarray,
    shift: np.ndarray | float = 0.0,
    tolerance: float = 0.0,
) -> Family:
    """Test whether means of differences are zero, by flipping the signs of clusters.

    Args:
        totals: Sums of differences in each cluster, ``(G, K)``; 0 where a cluster has none.
        samples: Number of differences, ``(K,)``.
        counts: Number of clusters with a difference, ``(K,)``.
        shift: True differences to test for, instead of zero, ``(K,)`` or one for all; subtracted
            before the totals are given.
        tolerance: Differences up to this size are ties.
    """
    scaled = totals * counts / np.maximum(samples, 1)  # so that a mean is a sum over the clusters
    scaled = rounded_for_sums(scaled, len(totals))
    squares = np.einsum("gk,gk->k", scaled, scaled)
    flipped = np.concatenate([signs @ scaled for signs in _signs(len(totals))])
    return _family_of_flips(flipped, squares, counts, np.asarray(shift), tolerance)


def pair_family(
    totals: np.ndarray, samples: int, pairs: tuple[np.ndarray, np.ndarray], tolerance: float
) -> Family:
    """Test all pairs of columns that have a value on the same samples.

    Args:
        totals: Sums of values in each cluster, ``(G, M)``.
        samples: Number of samples.
        pairs: Indices of the first and of the second column of K pairs.
        tolerance: Differences up to this size are ties.
    """
    clusters = len(totals)
    first, second = pairs
    centred = totals - totals.mean(1, keepdims=True)  # what all have in common cancels
    scaled = rounded_for_sums(centred * clusters / max(samples, 1), clusters)
    products = scaled.T @ scaled
    own = np.diag(products)
    squares = np.maximum(own[first] + own[second] - 2 * products[first, second], 0)
    few = squares < 1e-6 * (own[first] + own[second])  # differences lost by rounding
    if few.any():
        differences = scaled[:, first[few]] - scaled[:, second[few]]
        squares[few] = np.einsum("gk,gk->k", differences, differences)
    sums = np.concatenate([signs @ scaled for signs in _signs(clusters)])
    flipped = sums[:, first] - sums[:, second]
    counts = np.full(len(first), clusters)
    return _family_of_flips(flipped, squares, counts, np.zeros(()), tolerance)


def draw_family(gaps: np.ndarray, draws: np.ndarray, count: int, tolerance: float) -> Family:
    """Test differences of which there are draws.

    Args:
        gaps: The differences, ``(K,)``.
        draws: Draws of them, ``(R, K)``; nan where there is none.
        count: Number of clusters.
        tolerance: Differences up to this size are ties.
    """
    draws = draws[np.isfinite(draws).all(1)]
    counts = np.full(len(gaps), count)
    if len(draws) < 2 or count < 2:
        nothing = np.full(len(gaps), np.nan)
        return Family(gaps, nothing, counts, nothing, np.empty(0))
    errors = draws.std(0)
    errors = np.where(errors > RELATIVE_ROUNDING * (1 + np.abs(gaps)), errors, np.nan)
    with np.errstate(invalid="ignore"):
        moved = np.abs(draws - draws.mean(0)) / errors
        statistics = np.where(np.abs(gaps) > tolerance, np.abs(gaps) / errors, 0)
    return _stepped_down(gaps, errors, counts, np.vstack([statistics, moved]), False, skip=1)


def _family_of_flips(
    flipped: np.ndarray,
    squares: np.ndarray,
    counts: np.ndarray,
    shift: np.ndarray,
    tolerance: float,
) -> Family:
    """Turn flipped sums of K differences, ``(R, K)`` with the unflipped first, into tests."""
    known = counts > 1
    number = np.where(known, counts, 2)
    means = flipped / number
    variances = np.maximum(squares / number - means**2, 0)
    gaps = np.where(counts > 0, means[0] + shift, np.nan)
    errors = np.where(known, np.sqrt(variances[0] / (number - 1)), np.nan)
    any_difference = np.sqrt(squares / number) > tolerance
    spread = variances > RELATIVE_ROUNDING * squares / number
    with np.errstate(invalid="ignore", divide="ignore"):
        statistics = np.abs(means) / np.sqrt(variances / (number - 1))
    statistics = np.where(spread, statistics, STATISTIC_WITHOUT_ERROR)
    statistics = np.where(known & any_difference, statistics, 0.0)
    statistics[0] = np.where(np.abs(means[0]) > tolerance, statistics[0], 0)
    clusters = int(counts.max(initial=0))
    return _stepped_down(gaps, errors, counts, statistics, clusters >= FEWEST_FOR_MID_P)


def _stepped_down(
    gaps: np.ndarray,
    errors: np.ndarray,
    counts: np.ndarray,
    statistics: np.ndarray,
    mid_p: bool,
    skip: int = 0,
) -> Family:
    """Adjust statistics ``(R, K)``, the observed ones first, by their largest under the null.

    Args:
        gaps: The differences.
        errors: Their standard errors.
        counts: Their numbers of clusters.
        statistics: Those observed, and those of flips or draws.
        mid_p: Whether equal statistics count half.
        skip: 1 if the observed ones are no draw themselves.
    """
    statistics = np.nan_to_num(statistics, nan=0.0)
    observed = statistics[0]
    order = np.argsort(-observed, kind="stable")
    remaining = np.maximum.accumulate(statistics[skip:, order[::-1]], axis=1)[:, ::-1]
    at_least = (remaining >= observed[order] * (1 - RELATIVE_ROUNDING)).mean(0)
    if mid_p:
        at_least = (at_least + (remaining > observed[order] * (1 + RELATIVE_ROUNDING)).mean(0)) / 2
    p = np.ones(len(gaps))
    p[order] = np.maximum.accumulate(at_least)
    p[observed == 0] = 1.0
    p[~np.isfinite(errors)] = np.nan
    largest = np.sort(remaining[:, 0]) if len(gaps) else np.empty(0)
    return Family(gaps, errors, counts, p, largest)


def _signs(clusters: int) -> list[np.ndarray]:
    """Return signs of the clusters, ``(r, G)`` at a time; in the first row all are 1."""
    if clusters <= MOST_ENUMERATED_CLUSTERS:
        patterns = np.arange(2 ** max(0, clusters - 1))
        return [1.0 - 2.0 * ((patterns[:, None] >> np.arange(clusters)) & 1)]
    return [part.astype(float) for part in np.array_split(_drawn_signs(clusters), 8)]


@lru_cache(maxsize=4)
def _drawn_signs(clusters: int) -> np.ndarray:  # (FLIPS, clusters) of int8
    drawn = generator(0, "flips", clusters).integers(2, size=(FLIPS, clusters), dtype=np.int8)
    signs = 1 - 2 * drawn
    signs[0] = 1
    signs.setflags(write=False)
    return signs


@lru_cache(maxsize=1)
def _power_quantile() -> float:
    from scipy.special import ndtri  # slow to import

    return float(ndtri(POWER))


def holm(p: np.ndarray) -> np.ndarray:
    """Adjust p-values for their number by Holm's procedure; nan is not a test.

    Args:
        p: P-values ``(K,)``.
    """
    adjusted = np.full(len(p), np.nan)
    tested = np.flatnonzero(np.isfinite(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1)
    return adjusted
