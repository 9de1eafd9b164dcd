"""Confidence sequences of all pairs of methods under one setting, round by round.

The scores of a setting are a table of samples and methods. Differences are paired and clustered: a
grid counts as one image. A score that is missing never helps the method that lacks it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from heatproof.analysis.families import Family
from heatproof.analysis.rank_intervals import RELATIVE_TIE, tie_tolerance
from heatproof.analysis.sequential import (
    TINY,
    bet_evidence,
    bet_low,
    t_evidence,
    t_reach,
)
from heatproof.analysis.settings import Key, Limits
from heatproof.analysis.significance import PairedTests, first_fractions

SKEWED = 0.5  # standard errors of the skewness of normal values, from which bets count
FAR = 2  # how many times as far as any that was seen values may be, where they have no bounds


@dataclass
class Table:
    """The scores of one setting in the order in which they are evaluated.

    Attributes:
        key: Protocol, setting and baseline.
        values: Scores ``(N, M)``, higher being better; nan where there is none.
        clusters: The number of the cluster of each sample, in the order of rounds, ``(N,)``.
        limits: Lowest and highest possible score; None if there are none.
        together: Which methods are compared, ``(M, M)``; None for all.
    """

    key: Key
    values: np.ndarray
    clusters: np.ndarray
    limits: Limits = None
    together: np.ndarray | None = None


@dataclass
class PairSequences:
    """Confidence sequences of all pairs of M methods under one setting.

    Attributes:
        key: Protocol, setting and baseline.
        methods: The M methods.
        compared: Which pairs are compared, ``(M, M)``.
        level: The error of one pair.
        scale: The scale of the mixture.
        exact: Whether scores with bounds are compared by bets.
        together: Which methods are ranked against each other, ``(M, M)``; None for all.
        p: P-values of the row being ahead of the column, for all rounds so far and not adjusted.
        low: How far the row is ahead of the column at least; negative if it may be behind.
        gaps: Mean differences at the last round of a pair.
        errors: Their standard errors.
        counts: Number of clusters of a pair.
    """

    key: Key
    methods: list[str]
    compared: np.ndarray
    level: float
    scale: float
    exact: bool = False
    together: np.ndarray | None = None
    p: np.ndarray = field(init=False)
    low: np.ndarray = field(init=False)
    gaps: np.ndarray = field(init=False)
    errors: np.ndarray = field(init=False)
    counts: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        shape = self.compared.shape
        self.p = np.ones(shape)
        self.low = np.full(shape, -np.inf)
        self.gaps = np.full(shape, np.nan)
        self.errors = np.full(shape, np.nan)
        self.counts = np.zeros(shape, dtype=int)

    @property
    def ahead(self) -> np.ndarray:  # (M, M)
        """Which methods are ahead of which."""
        return (self.p <= self.level) & self.compared

    def within(self, margin: float) -> np.ndarray:  # (M, M)
        """Return which pairs differ by less than a margin."""
        return (self.low > -margin) & (-margin < self.low.T)

    def tests(self, methods: Sequence[str], means: np.ndarray, draws: np.ndarray) -> PairedTests:
        """Return the tests of all pairs of some methods, which hold whenever the race stopped.

        Args:
            methods: Some of the methods, best first.
            means: How they stand, higher being better.
            draws: Draws of this, ``(R, m)``.
        """
        chosen = [self.methods.index(method) for method in methods]
        block = np.ix_(chosen, chosen)
        adjusted = np.minimum(self.p, self.p.T) * max(1, int(self.compared.sum()) // 2)
        adjusted = np.where(self.compared, np.minimum(adjusted, 1), np.nan)[block]
        gaps, errors, counts = self.gaps[block], self.errors[block], self.counts[block]
        pairs = np.triu_indices(len(chosen), 1)
        nothing = np.empty(0)  # no draws, as the number of images was not fixed
        family = Family(gaps[pairs], errors[pairs], counts[pairs], adjusted[pairs], nothing)
        return PairedTests(
            list(methods),
            gaps,
            errors,
            int(counts.max(initial=0)),
            adjusted,
            np.zeros(len(chosen), dtype=bool),
            means,
            first_fractions(draws),
            family,
            None if self.together is None else self.together[block],
        )

    def images_for(self, i: int, j: int, most: int) -> float:
        """Return about how many images would tell two methods apart, if they differ as they do.

        Args:
            i: The first method.
            j: The second.
            most: More images than this count as infinitely many.
        """
        count = int(self.counts[i, j])
        gap = abs(float(self.gaps[i, j]))
        variance = np.array(float(self.errors[i, j]) ** 2 * (count - 1))
        if not gap > 0 or not np.isfinite(variance):
            return math.inf

        def is_enough(images: int) -> bool:
            number = np.array(images)
            return float(t_reach(number, variance, self.scale, self.level)) <= gap

        low, high = 1, 2
        while not is_enough(high):
            low, high = high, 2 * high
            if low > most:
                return math.inf
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        return high

    def update(self, table: Table, images: int, active: np.ndarray) -> None:
        """Look at the scores of the first images.

        Args:
            table: The scores.
            images: Number of images, or of grids.
            active: The methods that are evaluated on all of them, ``(M,)``.
        """
        chosen = np.flatnonzero(active)
        inside = table.clusters < images
        values = table.values[inside][:, chosen]
        clusters = table.clusters[inside]
        finite = np.isfinite(values)
        if not finite.any():
            return
        worst = float(values[finite].min())
        tolerance = tie_tolerance(np.nanmean(np.where(finite.any(0), values, 0.0), axis=0))
        filled = np.where(finite, values, worst)
        sizes = np.bincount(clusters, minlength=images).astype(float)
        whole = bool(finite.all())
        for row, i in enumerate(chosen.tolist()):
            others = self.compared[i, chosen]
            if not others.any():
                continue
            columns = chosen[others]
            differences = filled[:, [row]] - values[:, others]
            totals, counts = _totals(differences, clusters, sizes, whole)
            self._compare(i, columns, totals, counts, tolerance, table.limits)
            if not whole:  # what is shown is of the samples that both have a score for
                totals, counts = _totals(values[:, [row]] - values[:, others], clusters, sizes)
            self._describe(i, columns, totals, counts)

    def _compare(
        self,
        i: int,
        columns: np.ndarray,
        totals: np.ndarray,
        counts: np.ndarray,
        tolerance: float,
        limits: Limits,
    ) -> None:
        """Test whether a method is ahead of others, given sums and numbers in each cluster."""
        number, mean, variance, deviations = _moments(totals, counts)
        known = number > 1
        count = np.maximum(number, 1)
        evidence = t_evidence(count, mean, variance, self.scale)
        reach = t_reach(count, variance, self.scale, self.level)
        unseen = _unseen(totals, counts, limits)
        evidence = np.minimum(evidence, count * mean / np.maximum(unseen, TINY))
        reach = np.maximum(reach, -math.log(self.level) * unseen / count)
        low = mean - reach
        exact = self.exact and limits is not None and _same_sizes(counts)
        by_bets = known & (exact | _is_skewed(deviations, variance, number))
        if by_bets.any():
            values = (mean + deviations)[counts.max(1) > 0][:, by_bets]
            width = math.inf if limits is None else limits[1] - limits[0]
            far = width if exact else np.minimum(FAR * np.abs(values).max(0), width)
            lowest = -np.broadcast_to(np.maximum(far, TINY), values.shape[1:])
            of_bets = bet_evidence(values, lowest) - math.log(2)  # in either direction
            low_of_bets = bet_low(values, lowest, self.level / 2)
            if not exact:
                of_bets = np.minimum(of_bets, evidence[by_bets])
                low_of_bets = np.minimum(low_of_bets, low[by_bets])
            evidence[by_bets], low[by_bets] = of_bets, low_of_bets
        is_higher = known & (mean > tolerance)
        p = np.where(is_higher, np.exp(-np.maximum(evidence, 0)), 1.0)
        low = np.where(known, low, -np.inf)
        self.p[i, columns] = np.minimum(self.p[i, columns], p)
        self.low[i, columns] = np.maximum(self.low[i, columns], low)

    def _describe(
        self, i: int, columns: np.ndarray, totals: np.ndarray, counts: np.ndarray
    ) -> None:
        number, mean, variance, _ = _moments(totals, counts)
        self.gaps[i, columns] = np.where(number > 0, mean, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.sqrt(variance / (number - 1))
        self.errors[i, columns] = np.where(number > 1, error, np.nan)
        self.counts[i, columns] = number


def _totals(
    differences: np.ndarray, clusters: np.ndarray, sizes: np.ndarray, whole: bool = False
) -> tuple[np.ndarray, np.ndarray]:  # (G, K) each
    """Return the sum and the number of finite differences ``(N, K)`` in each cluster."""
    number = len(sizes)
    if whole and number == len(differences):  # a cluster is a sample
        totals = np.empty_like(differences)
        totals[clusters] = differences
        return totals, np.broadcast_to(sizes[:, None], totals.shape)
    finite = np.isfinite(differences)
    filled = np.where(finite, differences, 0.0)
    totals = np.stack([np.bincount(clusters, column, number) for column in filled.T], 1)
    counts = np.stack([np.bincount(clusters, column, number) for column in finite.T], 1)
    return totals, counts


def _moments(
    totals: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # (K,) three times, (G, K)
    """Return the number of clusters, the mean of all samples, and how clusters vary about it.

    The last two are the variance of a cluster, and the deviation of each.
    """
    number = (counts > 0).sum(0)
    samples = np.maximum(counts.sum(0), 1)
    mean = totals.sum(0) / samples
    per_cluster = samples / np.maximum(number, 1)
    deviations = (totals - mean * counts) / per_cluster
    return number, mean, (deviations**2).sum(0) / np.maximum(number, 1), deviations


def _is_skewed(deviations: np.ndarray, variance: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Return where low values are farther off than high ones, and likely too few were seen.

    The mean of such values is mostly overestimated, and so is what `t_evidence` says for it.
    """
    third = (deviations**3).sum(0) / np.maximum(number, 1)
    return np.asarray(third < -SKEWED * np.sqrt(6 / np.maximum(number, 1)) * variance**1.5)


def _unseen(totals: np.ndarray, counts: np.ndarray, limits: Limits) -> np.ndarray:  # (K,)
    """Return how large a difference can be that was not seen yet, where this matters; else 0.

    Where most differences are one and the same number, such as 0 between scores of 0 and 1, their
    spread says little: others may be too rare to have been seen in so many images. Of N images, a
    difference that none has occurs with a probability of more than log(1 / error) / N with at most
    this error.
    """
    with np.errstate(invalid="ignore"):
        means = np.where(counts > 0, totals / counts, np.nan)
    largest = np.nanmax(np.abs(means), axis=0, initial=0.0)
    if limits is not None:
        largest = np.full(len(largest), limits[1] - limits[0])
    usual = np.nanmedian(means, axis=0)
    equal = np.abs(means - usual) <= RELATIVE_TIE * np.maximum(largest, TINY)
    piled = 2 * equal.sum(0) >= (counts > 0).sum(0)
    return np.where(piled, largest, 0.0)


def _same_sizes(counts: np.ndarray) -> bool:
    found = counts[counts > 0]
    return bool(len(found)) and bool((found == found[0]).all())
