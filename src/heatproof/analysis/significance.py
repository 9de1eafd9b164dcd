"""Which methods differ significantly: paired tests, letters for ties, and how many images it takes.

All pairs of methods under one setting are tested. The test is a paired t-test over the samples that
both methods have a score for; samples of one grid are one observation. Its p-values are adjusted by
Holm's procedure, so that the probability of any false difference is at most 5 %
(docs/statistics.md has the simulation).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import GROUP, RESAMPLES, AggregateDraws, RankedLayers
from heatproof.analysis.settings import SettingScores, scored_settings
from heatproof.analysis.tables import ScoreTable

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


@cache
def _factor() -> float:
    from scipy.special import ndtri  # slow to import

    return float(ndtri(1 - LEVEL / 2) + ndtri(POWER))


def paired_tests(
    table: ScoreTable,
    higher_is_better: bool,
    draws: np.ndarray,
    aggregated: Collection[str] = (),
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
    methods = [table.methods[i] for i in order]
    found = _tested(sign * table.values[:, order], table.clusters)
    drawn = sign * draws[:, order]
    from_draws = np.array([method in aggregated for method in methods], dtype=bool)
    _test_by_draws(found, means[order], drawn, from_draws[:, None] | from_draws)
    if together is not None:
        found.leave_out(~together[np.ix_(order, order)])
    p = found.p_values()
    adjusted = np.full_like(p, np.nan)
    upper = np.triu_indices(len(order), 1)
    adjusted[upper] = holm(p[upper])
    adjusted.T[upper] = adjusted[upper]
    first = first_fractions(drawn)
    return PairedTests(methods, found.gaps, found.errors, found.counts, p, adjusted, first)


@dataclass
class _Tested:
    """Differences of all pairs of M methods, ``(M, M)`` each, before p-values are computed.

    Attributes:
        gaps: Means of the differences; nan where two methods have no sample in common.
        errors: Their standard errors; nan for fewer than two clusters.
        counts: Numbers of clusters.
        normal: Whether the error is that of draws, so that there are no degrees of freedom.
    """

    gaps: np.ndarray
    errors: np.ndarray
    counts: np.ndarray
    normal: np.ndarray

    def leave_out(self, pairs: np.ndarray) -> None:
        """Remove the tests of some pairs."""
        self.gaps[pairs] = np.nan
        self.errors[pairs] = np.nan
        self.counts[pairs] = 0

    def p_values(self) -> np.ndarray:
        """Compute the p-values of t-tests, or of normal ones for errors of draws."""
        p = _p_values(self.gaps, self.errors, self.counts, self.normal)
        np.fill_diagonal(p, np.nan)
        return p


def _tested(values: np.ndarray, clusters: np.ndarray) -> _Tested:  # (N, M), (N,)
    """Compute the paired differences of all columns, with those of a cluster together."""
    codes, names = pd.factorize(clusters)
    count = values.shape[1]
    gaps, errors = (np.full((count, count), np.nan) for _ in range(2))
    counts = np.zeros((count, count), dtype=np.intp)
    complete = np.zeros(count, dtype=bool)
    if len(values) > MANY and len(names) > 1:
        complete = np.isfinite(values).all(0)
        block = np.ix_(complete, complete)
        gaps[block], errors[block] = _by_products(values[:, complete], codes, len(names))
        counts[block] = len(names)
    for i in range(count):
        others = [j for j in range(i + 1, count) if not (complete[i] and complete[j])]
        if others:
            differences = values[:, i : i + 1] - values[:, others]
            found = _clustered_means(differences, codes, len(names))
            gaps[i, others], errors[i, others], counts[i, others] = found
            gaps[others, i] = -gaps[i, others]
            errors[others, i] = errors[i, others]
            counts[others, i] = counts[i, others]
    np.fill_diagonal(gaps, np.nan)
    np.fill_diagonal(errors, np.nan)
    np.fill_diagonal(counts, 0)
    return _Tested(gaps, errors, counts, np.zeros((count, count), dtype=bool))


def _by_products(
    values: np.ndarray, codes: np.ndarray, clusters: int
) -> tuple[np.ndarray, np.ndarray]:  # (M, M) each
    """Return the mean differences of all pairs of complete columns, and their errors.

    They come from the products of all pairs, so that no test reads all samples again. This is for
    many samples: differences of sums of squares have rounding errors, which matter where two
    columns are nearly the same on few samples.
    """
    means = values.mean(0)
    totals = np.stack([np.bincount(codes, c, clusters) for c in (values - means).T], 1)
    products = totals.T @ totals
    own = np.diag(products)
    squares = np.maximum(own[:, None] + own - 2 * products, 0)
    return means[:, None] - means, np.sqrt(squares * clusters / (clusters - 1)) / len(values)


def _clustered_means(
    values: np.ndarray, codes: np.ndarray, clusters: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # (K,) each
    """Return the mean of each column, its standard error, and the number of its clusters.

    Args:
        values: Values ``(N, K)``; those that are not finite are left out.
        codes: The cluster of each row, ``(N,)``.
        clusters: Number of clusters.
    """
    finite = np.isfinite(values)
    samples = finite.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(finite, values, 0).sum(0) / samples
        totals = np.where(finite, values - means, 0)
        count = samples
        if clusters < len(values):
            totals = np.stack([np.bincount(codes, column, clusters) for column in totals.T], 1)
            present = np.stack([np.bincount(codes, column, clusters) for column in finite.T], 1)
            count = (present > 0).sum(0)
        squares = np.einsum("nk,nk->k", totals, totals)
        errors = np.sqrt(squares * count / (count - 1)) / samples
    return means, np.where(count > 1, errors, np.nan), count


def _test_by_draws(found: _Tested, means: np.ndarray, draws: np.ndarray, pairs: np.ndarray) -> None:
    """Replace what is known of pairs whose scores are not means over samples.

    Args:
        found: The differences, changed in place; the numbers of clusters stay.
        means: The scores ``(M,)``.
        draws: Draws of them, ``(R, M)``.
        pairs: Which pairs, ``(M, M)``.
    """
    for i, j in zip(*np.nonzero(np.triu(pairs, 1)), strict=True):
        differences = draws[:, i] - draws[:, j]
        differences = differences[np.isfinite(differences)]
        known = len(differences) and found.counts[i, j] > 1
        error = float(differences.std()) if known else np.nan
        found.gaps[i, j] = means[i] - means[j]
        found.gaps[j, i] = means[j] - means[i]
        found.errors[i, j] = found.errors[j, i] = error
        found.normal[i, j] = found.normal[j, i] = True


def _p_values(
    gaps: np.ndarray, errors: np.ndarray, counts: np.ndarray, normal: np.ndarray
) -> np.ndarray:
    """Return p-values of differences in either direction; nan where there is no error.

    A p-value is at least that of the signs of all clusters being equal by chance, so that few equal
    differences prove nothing.
    """
    from scipy.special import ndtr, stdtr  # slow to import

    sizes = np.abs(gaps)
    equal = errors <= np.where(
        normal, 0, 1e-12 * (1 + sizes)
    )  # equal differences, but for rounding
    with np.errstate(invalid="ignore", divide="ignore"):
        statistic = sizes / errors
        tested = np.where(normal, ndtr(-statistic), stdtr(np.maximum(counts - 1, 1), -statistic))
        none = sizes <= np.where(normal, 0, 1e-12)
    least = np.ldexp(1.0, 1 - counts)
    p = np.maximum(np.where(equal, none, 2 * tested), least)
    return np.where(np.isfinite(errors), np.minimum(p, 1), np.nan)


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
    codes, names = pd.factorize(np.asarray(clusters))
    found = _clustered_means(differences[:, None], codes, len(names))
    (p,) = _p_values(*found, np.zeros(1, dtype=bool))
    (mean,), (error,), (count,) = found
    return float(mean), float(error), float(p), int(count)


def drawn_p_value(gap: float, draws: np.ndarray, count: int) -> float:
    """Return the p-value of a difference whose error is that of draws, as if it were normal.

    Args:
        gap: The difference.
        draws: Draws of it, ``(R,)``.
        count: Number of clusters.
    """
    finite = draws[np.isfinite(draws)]
    error = finite.std() if len(finite) and count > 1 else np.nan
    from_draws = np.ones(1, dtype=bool)
    p = _p_values(np.array([gap]), np.array([error]), np.array([count]), from_draws)
    return float(p[0])


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
    groups = [(1 << count) - 1] if count else []  # one bit per method
    for i in range(count):
        for j in range(i + 1, count):
            if different[i, j]:
                groups = _without_pair(groups, 1 << i, 1 << j)
    members = [[i for i in range(count) if group >> i & 1] for group in groups]
    members.sort()
    return [
        "".join(_letter(k) for k, group in enumerate(members) if i in group) for i in range(count)
    ]


def _without_pair(groups: list[int], i: int, j: int) -> list[int]:
    """Split every group that has both members, and drop the parts that are within a group."""
    both = i | j
    whole = [group for group in groups if group & both != both]
    parts = {part for g in groups if g & both == both for part in (g & ~i, g & ~j)}
    largest_first = sorted(parts, key=int.bit_count, reverse=True)
    for part in largest_first:
        if not any(part & group == part for group in whole):
            whole.append(part)
    return whole


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
    return pairs_of(scored_settings(rows, resamples, seed, aggregate_draws, layers))


def pairs_of(settings: Sequence[SettingScores]) -> dict[tuple[str, ...], PairedTests]:
    """Test all pairs of methods under some settings.

    Returns:
        The tests by model, protocol, setting and baseline.
    """
    return {
        scores.key: paired_tests(
            scores.table,
            scores.higher_is_better,
            scores.draws,
            scores.aggregated,
            scores.together,
        )
        for scores in settings
    }


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
            bool(different[i, j]),
            found.counts[i, j],
            found.needed(i, j),
            found.detectable(i, j),
        )
        for key, found, different in ((k, f, f.different) for k, f in tests.items())
        for i in range(len(found.methods))
        for j in range(i + 1, len(found.methods))
        if found.counts[i, j]
    ]
    names = ["better", "other", "ahead", "p", "significant", "n", "needed", "detectable"]
    return pd.DataFrame(lines, columns=[*GROUP, *names])
