"""Which methods differ significantly: paired tests, letters for ties, and how many images it takes.

All pairs of methods under one setting are tested. The test is a paired t-test over the samples that
both methods have a score for; samples of one grid are one observation. Its p-values are adjusted by
Holm's procedure, so that the probability of any false difference is at most 5 %
(docs/statistics.md has the simulation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import (
    GROUP,
    RESAMPLES,
    AggregateDraws,
    RankedLayers,
    bootstrap_means,
    insert_draws,
    range_of,
    ranked_together,
)
from heatproof.analysis.tables import ScoreTable, groups, score_table
from heatproof.protocols import PROTOCOLS

LEVEL = 0.05
POWER = 0.8
MANY = 2000  # samples, above which all pairs are tested from one product of the table
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class PairedTests:
    """All pairs of M methods under one setting.

    Attributes:
        methods: The methods with a score, best first.
        gaps: How far the method of the row is ahead of that of the column, ``(M, M)``: the mean of
            paired differences of scores, positive if the row is better.
        errors: Standard errors of the gaps, ``(M, M)``.
        counts: Number of independent observations (images or grids) of each pair, ``(M, M)``.
        p: P-values of a difference in either direction, ``(M, M)``; nan where there is no test.
        adjusted: The same after Holm's adjustment for the number of pairs.
        first: Fraction of bootstrap draws in which each method has the best mean, ``(M,)``.
    """

    methods: list[str]
    gaps: np.ndarray
    errors: np.ndarray
    counts: np.ndarray
    p: np.ndarray
    adjusted: np.ndarray
    first: np.ndarray

    @property
    def different(self) -> np.ndarray:  # (M, M)
        """Which pairs differ significantly."""
        return np.nan_to_num(self.adjusted, nan=1.0) < LEVEL

    @property
    def letters(self) -> list[str]:  # (M,)
        """Letters of each method; methods that share one do not differ significantly."""
        return tie_letters(self.different)

    def detectable(self, i: int, j: int) -> float:
        """Return the smallest true difference that a test would find in four of five data sets.

        It is for one test of this pair, without an adjustment for other pairs.
        """
        return _factor() * float(self.errors[i, j])

    def needed(self, i: int, j: int) -> float:
        """Return how many images or grids would show the difference in four of five data sets.

        The observed difference is taken for the true one; infinity if there is none.
        """
        gap = abs(self.gaps[i, j])
        if not gap > 0:
            return math.inf
        return math.ceil(self.counts[i, j] * (self.detectable(i, j) / gap) ** 2)


def _factor() -> float:
    from scipy.stats import norm  # takes a second to import

    return float(norm.ppf(1 - LEVEL / 2) + norm.ppf(POWER))


def paired_tests(
    table: ScoreTable,
    higher_is_better: bool,
    draws: np.ndarray,
    aggregated: Sequence[str] = (),
    together: np.ndarray | None = None,
) -> PairedTests:
    """Test all pairs of methods under one setting.

    Args:
        table: The scores.
        higher_is_better: The direction of the scores.
        draws: Draws of the means, ``(R, M)``.
        aggregated: Methods whose score is not a mean over samples; their errors come from draws.
        together: Which methods are compared, ``(M, M)``; all by default.

    Returns:
        The tests of the methods that have a score.
    """
    sign = 1 if higher_is_better else -1
    means = sign * table.means
    order = [int(i) for i in np.argsort(-means, kind="stable") if np.isfinite(means[i])]
    count = len(order)
    gaps, errors, p = (np.full((count, count), np.nan) for _ in range(3))
    counts = np.zeros((count, count), dtype=np.intp)
    known = Products(table) if len(table.values) > MANY else None
    for a in range(count):
        for b in range(a + 1, count):
            i, j = order[a], order[b]
            if together is not None and not together[i, j]:
                continue
            if table.methods[i] in aggregated or table.methods[j] in aggregated:
                scored = np.isfinite(table.values[:, [i, j]]).all(1)
                drawn = sign * (draws[:, i] - draws[:, j])
                observations = len(set(table.clusters[scored]))
                found = _drawn_test(means[i] - means[j], drawn, observations)
            elif known is not None and known.has(i, j):
                found = known.test(i, j, sign)
            else:
                difference = sign * (table.values[:, i] - table.values[:, j])
                found = clustered_t_test(difference, table.clusters)
            gaps[a, b], errors[a, b], p[a, b], counts[a, b] = found
            gaps[b, a], errors[b, a], p[b, a], counts[b, a] = -found[0], *found[1:]
    adjusted = np.full_like(p, np.nan)
    upper = np.triu_indices(count, 1)
    adjusted[upper] = holm(p[upper])
    adjusted.T[upper] = adjusted[upper]
    methods = [table.methods[i] for i in order]
    first = first_fractions(sign * draws[:, order])
    return PairedTests(methods, gaps, errors, counts, p, adjusted, first)


class Products:
    """Products of the scores of all pairs of methods, so that no test reads all samples again.

    They are for tables with many samples: differences of sums of squares have rounding errors,
    which matter where two methods have nearly the same scores on few samples.
    """

    def __init__(self, table: ScoreTable):
        codes, names = pd.factorize(table.clusters)
        complete = np.isfinite(table.values).all(0)
        values = table.values[:, complete]
        means = values.mean(0)
        totals = np.zeros((len(names), values.shape[1]))
        np.add.at(totals, codes, values - means)
        self._samples = len(values)
        self._clusters = len(names)
        self._means = means
        self._products = totals.T @ totals
        self._place = {int(i): k for k, i in enumerate(np.flatnonzero(complete))}

    def has(self, i: int, j: int) -> bool:
        """Return whether both methods have a score on every sample."""
        return i in self._place and j in self._place and self._clusters > 1

    def test(self, i: int, j: int, sign: int) -> tuple[float, float, float, int]:
        """Return what `clustered_t_test` returns for the differences of two methods."""
        a, b = self._place[i], self._place[j]
        products = self._products
        squares = max(products[a, a] + products[b, b] - 2 * products[a, b], 0.0)
        mean = sign * float(self._means[a] - self._means[b])
        return _t_test(mean, float(squares), self._samples, self._clusters)


def clustered_t_test(
    differences: np.ndarray, clusters: Sequence[object] | np.ndarray
) -> tuple[float, float, float, int]:
    """Test whether the mean of differences is zero, where those of a cluster belong together.

    Args:
        differences: Differences ``(N,)``; those that are not finite are left out.
        clusters: The cluster of each, ``(N,)``.

    Returns:
        The mean, its standard error, the p-value of a t-test, and the number of clusters. With
        clusters of one sample each this is the paired t-test. The p-value is at least that of the
        signs of all clusters being equal by chance, so that few equal differences prove nothing.
    """
    finite = np.isfinite(differences)
    values = differences[finite]
    if not len(values):
        return math.nan, math.nan, math.nan, 0
    codes, names = pd.factorize(np.asarray(clusters)[finite])
    count = len(names)
    mean = float(values.mean())
    if count < 2:
        return mean, math.nan, math.nan, count
    totals = np.bincount(codes, values - mean, minlength=count)
    return _t_test(mean, float((totals**2).sum()), len(values), count)


def _t_test(
    mean: float, squares: float, samples: int, count: int
) -> tuple[float, float, float, int]:
    """Return a mean, its standard error, the p-value and the number of clusters.

    Args:
        mean: Mean of the differences.
        squares: Sum of the squared totals of their deviations from the mean, over clusters.
        samples: Number of differences.
        count: Number of clusters.
    """
    from scipy.stats import t  # takes a second to import

    error = float(np.sqrt(squares * count / (count - 1))) / samples
    least = 2.0 ** (1 - count)
    if error <= 1e-12 * (1 + abs(mean)):  # equal differences, but for rounding
        return mean, error, 1.0 if abs(mean) <= 1e-12 else least, count
    p = 2 * float(t.sf(abs(mean) / error, count - 1))
    return mean, error, max(p, least), count


def _drawn_test(gap: float, draws: np.ndarray, count: int) -> tuple[float, float, float, int]:
    """Return a difference, its standard error over draws, and the p-value if it is normal."""
    from scipy.stats import norm

    finite = draws[np.isfinite(draws)]
    if not len(finite) or count < 2:
        return float(gap), math.nan, math.nan, count
    error = float(finite.std())
    p = 2 * float(norm.sf(abs(gap) / error)) if error > 0 else float(gap == 0)
    return float(gap), error, max(p, 2.0 ** (1 - count)), count


def holm(p: np.ndarray) -> np.ndarray:
    """Adjust p-values for their number by Holm's procedure; nan is not a test.

    Args:
        p: P-values ``(K,)``.

    Returns:
        Adjusted p-values ``(K,)``: a difference is significant at a level if its value is below it.
    """
    adjusted = np.full(len(p), np.nan)
    tested = np.flatnonzero(np.isfinite(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1)
    return adjusted


def first_fractions(draws: np.ndarray) -> np.ndarray:
    """Return the fraction of draws in which each column is the highest; ties are shared.

    Args:
        draws: Draws ``(R, M)``; columns without draws are never first.

    Returns:
        Fractions ``(M,)``.
    """
    filled = np.where(np.isfinite(draws), draws, -np.inf)
    if not np.isfinite(filled).any():
        return np.full(draws.shape[1], np.nan)
    filled = filled[np.isfinite(filled).any(1)]
    best = filled == filled.max(1, keepdims=True)
    fractions: np.ndarray = (best / best.sum(1, keepdims=True)).mean(0)
    return fractions


def tie_letters(different: np.ndarray) -> list[str]:
    """Give letters to methods so that two share a letter if and only if they do not differ.

    The letters are found by insertion and absorption (Piepho 2004): one group of all methods is
    split by every pair that differs, and groups within another are dropped.

    Args:
        different: Which pairs differ, symmetric ``(M, M)``; the methods are ordered best first.

    Returns:
        Letters of each method; "a" is the group of the best one.
    """
    count = len(different)
    groups = [frozenset(range(count))] if count else []
    for i in range(count):
        for j in range(i + 1, count):
            if different[i, j]:
                groups = _without_pair(groups, i, j)
    groups.sort(key=sorted)
    return [
        "".join(_letter(k) for k, group in enumerate(groups) if i in group) for i in range(count)
    ]


def _without_pair(groups: list[frozenset[int]], i: int, j: int) -> list[frozenset[int]]:
    """Split every group that has both members, and drop those within another group."""
    split = {part for g in groups for part in ({g - {i}, g - {j}} if {i, j} <= g else {g})}
    return [g for g in split if not any(g < other for other in split)]


def _letter(number: int) -> str:
    turns, place = divmod(number, len(LETTERS))
    return LETTERS[place] + ("" if turns == 0 else str(turns + 1))


def pairs_of_methods(
    rows: pd.DataFrame,
    resamples: int = RESAMPLES,
    seed: int = 0,
    aggregate_draws: AggregateDraws | None = None,
    layers: RankedLayers | None = None,
) -> dict[tuple[str, ...], PairedTests]:
    """Test all pairs of methods under every setting of every model.

    Args:
        rows: The scores of a run, one row per sample, protocol and method.
        resamples: Number of bootstrap draws.
        seed: Seed of the bootstrap.
        aggregate_draws: Draws of protocols that aggregate over all samples.
        layers: The layer within which each method is ranked (see `ranks.ranked_layers`).

    Returns:
        The tests by model, protocol, setting and baseline.
    """
    tests = {}
    for key, group in groups(rows, GROUP):
        table = score_table(group)
        draws = bootstrap_means(table.values, resamples, seed, table.clusters, range_of(key[1]))
        insert_draws(draws, table.methods, key, aggregate_draws)
        aggregated = [m for m in table.methods if (*key, m) in (aggregate_draws or {})]
        own_layers = [(layers or {}).get((key[0], method), "") for method in table.methods]
        higher = PROTOCOLS[key[1]].cls.higher_is_better
        together = ranked_together(own_layers)
        tests[key] = paired_tests(table, higher, draws, aggregated, together)
    return tests


def pair_lines(tests: dict[tuple[str, ...], PairedTests]) -> pd.DataFrame:
    """Return one line per pair of methods, the better one first.

    Returns:
        Model, protocol, setting, baseline, ``better``, ``other``, ``ahead`` (the mean paired
        difference in the direction of better), ``p`` after Holm's adjustment, ``significant``,
        ``n`` (images or grids), ``needed`` (how many would show the difference in four of five
        data sets) and ``detectable`` (the difference that as many as there are would show).
    """
    lines = [
        (
            *key,
            found.methods[i],
            found.methods[j],
            found.gaps[i, j],
            found.adjusted[i, j],
            bool(found.different[i, j]),
            found.counts[i, j],
            found.needed(i, j),
            found.detectable(i, j),
        )
        for key, found in tests.items()
        for i in range(len(found.methods))
        for j in range(i + 1, len(found.methods))
        if found.counts[i, j]
    ]
    names = ["better", "other", "ahead", "p", "significant", "n", "needed", "detectable"]
    return pd.DataFrame(lines, columns=[*GROUP, *names])
