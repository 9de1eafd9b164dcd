"""Confidence intervals of means and ranks; docs/statistics-methods.md has the reasons.

Draws come from one bootstrap with the same draws for all methods, so that comparisons are paired.
Clusters are drawn instead of samples: the samples of one grid share their images. A draw of a mean
is studentized (`bootstrap_means`): it is not the mean of resampled samples but a value that the
true mean could have, so that percentiles of draws are bootstrap-t intervals. They reach their
coverage for few and skewed scores, where percentiles of resampled means are too narrow.

Sums over drawn clusters are products of a matrix of counts with the table of scores. Scores are
rounded before to as many digits as such a sum can have without an error, about 12: a draw of a
method depends neither on the other methods of the table nor on the processor.

An interval always contains its estimate. For means this follows from the construction; where draws
of another statistic are all on one side of the estimate, the interval is extended to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from heatproof.protocols import PROTOCOLS
from heatproof.tensor.noise import generator

GROUP = ["model", "protocol", "setting", "baseline"]
RESAMPLES = 10_000
TAILS = (0.025, 0.975)
MOST_WEIGHTS_IN_MEMORY = 2**22  # bootstrap weights in memory at the same time
MOST_DRAWN_AT_A_TIME = 2**18  # clusters drawn at a time, few enough for the processor's cache
# More clusters than this are put together at random into `BLOCKS`, which are drawn instead: the
# standard error of a mean is then estimated from 1000 values, with an error of 2.2 % of itself.
MOST_CLUSTERS = 4000
BLOCKS = 1000
# All methods and settings share the drawn counts, which are kept if there are no more than this.
MOST_KEPT_COUNTS = RESAMPLES * MOST_CLUSTERS
MOST_KEPT_WEIGHTS = RESAMPLES * BLOCKS  # the same in double precision
EXACT_BITS = 52  # bits of a sum that has no rounding error
# Of fewer, more than 2.5 % of the draws are one cluster alone, which has no standard error.
FEWEST_CLUSTERS = 4
# A draw of a few equal samples has a standard error of nearly 0, and t would have no bound.
LEAST_RELATIVE_ERROR = 0.25  # of the standard error of all samples
AggregateDraws = Mapping[tuple[str, ...], np.ndarray]  # (*GROUP, method) -> (R,)
RankedLayers = Mapping[tuple[str, str], str]  # (model, method) -> layer that it is ranked within


class Estimate(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, draws: np.ndarray) -> Estimate:  # (R,)
        """Take the interval from the percentiles of the finite draws, and extend it to the value.

        Without a finite value or draw there is no interval.
        """
        finite = draws[np.isfinite(draws)]
        if not len(finite) or not np.isfinite(value):
            return cls(float(value), np.nan, np.nan)
        low, high = np.quantile(finite, TAILS)
        return cls(float(value), min(float(low), float(value)), max(float(high), float(value)))

    @classmethod
    def mean(
        cls,
        values: np.ndarray,
        clusters: Sequence[object] | None = None,
        resamples: int = RESAMPLES,
        seed: int = 0,
    ) -> Estimate:
        """Estimate the mean of the finite values.

        Args:
            values: Values ``(N,)``.
            clusters: What values were drawn together from, ``(N,)``; by default each is its own.
            resamples: Number of bootstrap draws.
            seed: Seed of the bootstrap.

        Returns:
            The mean; fewer than `FEWEST_CLUSTERS` have no interval.
        """
        finite = np.isfinite(values)
        if not finite.any():
            return cls.of(np.nan, np.empty(0))
        kept = None if clusters is None else np.asarray(clusters)[finite]
        number = finite.sum() if kept is None else len(set(kept.tolist()))
        if number < FEWEST_CLUSTERS:
            return cls.of(float(values[finite].mean()), np.empty(0))
        draws = bootstrap_means(values[finite][:, None], resamples, seed, kept)
        return cls.of(float(values[finite].mean()), draws[:, 0])

    @classmethod
    def means(
        cls,
        values: np.ndarray,
        clusters: Sequence[object] | None = None,
        limits: tuple[float, float] | None = None,
    ) -> list[Estimate]:
        """Estimate the means of columns as `mean` does, those on the same samples at once.

        Args:
            values: Values ``(N, M)``; those that are not finite are left out.
            clusters: What values were drawn together from, ``(N,)``; by default each is its own.
            limits: Lowest and highest possible value, which no interval exceeds and which bound the
                mean of few clusters; None if there are none.
        """
        finite = np.isfinite(values)
        found = [cls.of(np.nan, np.empty(0))] * values.shape[1]
        same: dict[bytes, list[int]] = {}
        for column, is_finite in enumerate(finite.T):
            same.setdefault(is_finite.tobytes(), []).append(column)
        for columns in same.values():
            rows = finite[:, columns[0]]
            if not rows.any():
                continue
            part = values[np.ix_(rows, columns)]
            labels = None if clusters is None else np.asarray(clusters)[rows]
            draws = bootstrap_means(part, RESAMPLES, 0, labels, limits)
            if limits is None and numbered(len(part), labels)[0] < FEWEST_CLUSTERS:
                draws = draws[:0]
            ends = np.stack(mean_ends(part, draws, labels, limits))
            for i, column in enumerate(columns):
                found[column] = cls(float(part[:, i].mean()), *map(float, ends[:, i]))
        return found

    @property
    def sign(self) -> int:
        """1 or -1 if the value is significantly above or below zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def clusters_of(rows: pd.DataFrame, samples: Sequence[str] | pd.Index) -> np.ndarray:
    """Return the cluster of each sample: the grid that it belongs to, else the sample itself.

    Args:
        rows: The scores of a run; without a column ``cluster``, samples are their own clusters.
        samples: Ids of the samples, ``(N,)``.

    Returns:
        Clusters ``(N,)``.
    """
    cluster = {}
    if "cluster" in rows:
        cluster = dict(zip(rows["sample"], rows["cluster"], strict=True))
    return np.array([cluster.get(sample, sample) for sample in samples], dtype=object)


def bootstrap_weights(
    n: int, resamples: int, seed: int = 0, clusters: Sequence[object] | np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Draw how often each sample occurs in each bootstrap draw.

    Args:
        n: Number of samples.
        resamples: Number of draws.
        seed: Seed of the draws.
        clusters: What samples are drawn together, ``(n,)``; by default each is drawn alone.

    Yields:
        Counts ``(r, n)`` of float64, for some of the draws at a time. The samples of a cluster have
        the same counts.
    """
    count, members, _ = numbered(n, clusters)
    for part in _drawn_counts(count, resamples, seed, max(1, MOST_WEIGHTS_IN_MEMORY // max(1, n))):
        yield part[:, members].astype(float)


def _drawn_counts(count: int, resamples: int, seed: int, chunk: int) -> Iterator[np.ndarray]:
    """Draw how often each of some clusters occurs: ``(r, count)`` of uint16, not to be changed."""
    if resamples * count > MOST_KEPT_COUNTS:
        yield from _count_draws(count, resamples, seed, chunk)
        return
    drawn = _kept_counts(count, resamples, seed)
    for begin in range(0, resamples, chunk):
        yield drawn[begin : begin + chunk]


def _drawn_weights(count: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Draw how often each of some clusters occurs: ``(r, count)`` of float64, not to be changed."""
    if resamples * count <= MOST_KEPT_WEIGHTS:
        yield _kept_weights(count, resamples, seed)
        return
    chunk = max(1, MOST_WEIGHTS_IN_MEMORY // max(1, count))
    yield from (part.astype(float) for part in _drawn_counts(count, resamples, seed, chunk))


@lru_cache(maxsize=2)
def _kept_weights(count: int, resamples: int, seed: int) -> np.ndarray:  # (resamples, count)
    """Return the counts of all draws in double precision, ready to be multiplied."""
    kept = _kept_counts(count, resamples, seed).astype(float)
    kept.setflags(write=False)
    return kept


@lru_cache(maxsize=4)
def _kept_counts(count: int, resamples: int, seed: int) -> np.ndarray:  # (resamples, count)
    """Draw how often each of some clusters occurs, once for all methods and settings."""
    kept = np.empty((resamples, count), np.uint16)
    begin = 0
    for part in _count_draws(count, resamples, seed, max(1, MOST_DRAWN_AT_A_TIME // max(1, count))):
        kept[begin : begin + len(part)] = part
        begin += len(part)
    kept.setflags(write=False)
    return kept


def _count_draws(count: int, resamples: int, seed: int, chunk: int) -> Iterator[np.ndarray]:
    """Draw as many clusters as there are, with replacement, and count them.

    The draws do not depend on how many are made at a time.
    """
    draw = generator(seed, "bootstrap", count)
    for begin in range(0, resamples, chunk):
        size = min(chunk, resamples - begin)
        drawn = draw.integers(count, size=(size, count), dtype=np.uint32)
        cells = drawn + count * np.arange(size)[:, None]
        counts = np.bincount(cells.ravel(), minlength=size * count)
        yield counts.reshape(size, count).astype(np.uint16)


def numbered(
    n: int, clusters: Sequence[object] | np.ndarray | None
) -> tuple[int, np.ndarray, bool]:
    """Return the number of clusters, the index of each sample's, ``(n,)``, and if they are blocks.

    More than `MOST_CLUSTERS` are put together at random into `BLOCKS` of nearly the same size.
    """
    count = n
    members = np.arange(n)
    if clusters is not None:
        codes, names = pd.factorize(np.asarray(clusters), sort=True)
        count = len(names)
        members = codes
    if count <= MOST_CLUSTERS:
        return count, members, False
    return BLOCKS, _block_of(count)[members], True


@lru_cache(maxsize=4)
def _block_of(count: int) -> np.ndarray:  # (count,)
    """Put clusters together into blocks at random, the same for all methods and settings."""
    block_of: np.ndarray = generator(0, "blocks", count).permutation(count) % BLOCKS
    block_of.setflags(write=False)
    return block_of


def bootstrap_means(
    values: np.ndarray,
    resamples: int,
    seed: int = 0,
    clusters: Sequence[object] | np.ndarray | None = None,
    limits: tuple[float, float] | None = None,
) -> np.ndarray:
    """Draw values that the mean of each column could have, given its samples.

    With the mean m, its standard error s and the mean and standard error of resampled clusters m*
    and s*, a draw is m − κ (m* − m) s / s*: its percentiles are the bootstrap-t interval. The
    factor κ = √((G + 1) / (G − 1)) for G clusters makes up for the few values that a draw of few
    clusters can have. The draws of different columns belong together.

    Args:
        values: Values ``(N, M)``; those that are not finite are left out.
        resamples: Number of draws.
        seed: Seed of the draws.
        clusters: What rows are drawn together, ``(N,)``; by default each is drawn alone.
        limits: Lowest and highest possible value, which no draw exceeds; None if there are none.

    Returns:
        Draws ``(R, M)``; nan for columns with values in fewer than two clusters.
    """
    number, members, _ = numbered(len(values), clusters)
    finite = np.isfinite(values)
    totals = _cluster_sums(np.where(finite, values, 0), members, number)
    counts = _cluster_sums(finite, members, number)
    groups = (counts > 0).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = _column_sums(totals) / counts.sum(0)
        totals -= means * counts  # now of the deviations from the mean
        errors = np.sqrt(_column_sums(totals**2)) / counts.sum(0)
        widen = np.sqrt((groups + 1) / (groups - 1))
    drawn = []
    for count, total, squares, count_squares, mixed in _drawn_sums(
        np.nan_to_num(totals), counts, resamples, seed
    ):
        with np.errstate(invalid="ignore", divide="ignore"):
            shift = total / count
            squares += shift * (shift * count_squares - 2 * mixed)
            error = np.sqrt(np.maximum(squares, 0)) / count
            t = shift / np.maximum(error, LEAST_RELATIVE_ERROR * errors)
            drawn.append(means - widen * np.where(errors > 0, t, 0) * errors)
    draws = np.concatenate(drawn)
    draws[:, groups < 2] = np.nan
    return draws if limits is None else draws.clip(*limits)


def _column_sums(values: np.ndarray) -> np.ndarray:  # (G, M) -> (M,)
    """Sum up columns in an order that does not depend on how many there are."""
    sums: np.ndarray = np.ascontiguousarray(values.T).sum(1)
    return sums


def _cluster_sums(values: np.ndarray, members: np.ndarray, number: int) -> np.ndarray:
    """Sum up the rows of each cluster, column by column: ``(N, M)`` to ``(number, M)``."""
    columns = [np.bincount(members, column, number) for column in values.T]
    return np.stack(columns, 1) if columns else np.zeros((number, 0))


def _drawn_sums(
    totals: np.ndarray, counts: np.ndarray, resamples: int, seed: int
) -> Iterator[tuple[np.ndarray, ...]]:
    """Sum up what each draw of clusters contains.

    Args:
        totals: Sum of a column's deviations from its mean in each cluster, ``(G, M)``.
        counts: Number of a column's values in each cluster, ``(G, M)``.
        resamples: Number of draws R.
        seed: Seed of the draws.

    Yields:
        Sums of counts, totals, totals², counts² and totals · counts, ``(r, M)`` each, for some of
        the draws at a time.
    """
    clusters = len(totals)
    patterns = counts[:, :1]
    which = np.zeros(counts.shape[1], int)
    if (counts != patterns).any():
        patterns, which = np.unique(counts, axis=1, return_inverse=True)
        which = which.ravel()
    largest = counts.max(0, initial=0)
    same = bool(((counts == 0) | (counts == largest)).all())  # clusters have c values, or none
    parts = [patterns, totals, totals**2]
    if not same:
        parts += [patterns**2, totals * counts]
    rounded = [rounded_for_sums(part, clusters) for part in parts]
    ends = np.cumsum([part.shape[1] for part in rounded])[:-1]
    table = np.hstack(rounded)
    for drawn in _drawn_weights(clusters, resamples, seed):
        sums = np.split(drawn @ table, ends, axis=1)
        count = sums[0][:, which]
        if same:
            yield count, sums[1], sums[2], largest * count, largest * sums[1]
        else:
            yield count, sums[1], sums[2], sums[3][:, which], sums[4]


def rounded_for_sums(columns: np.ndarray, most: int) -> np.ndarray:
    """Round columns so that sums of their values have no rounding errors in any order.

    Args:
        columns: Values ``(G, K)``.
        most: How many values a sum has at most.

    Returns:
        Multiples of a power of two for each column, with 52 − log₂ ``most`` bits.
    """
    largest = np.abs(columns).max(0, initial=0)
    _, exponent = np.frexp(largest * most)
    unit = np.ldexp(1.0, np.maximum(exponent - EXACT_BITS, -1000))
    rounded: np.ndarray = np.rint(columns / unit) * unit
    return rounded


def mean_ends(
    values: np.ndarray,
    draws: np.ndarray,
    clusters: Sequence[object] | np.ndarray | None = None,
    limits: tuple[float, float] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the 95 % intervals of the means of columns.

    The ends are percentiles of draws. Where a score has limits and at least half of its values are
    the same, as of one that is nearly always perfect, what is rare may not have been seen yet, and
    percentiles are too narrow, or have no width at all. There an end is moved to that of the
    interval of Clopper and Pearson (1934) for how often other values occur, as if each were at the
    limit. It is exact for scores of 0 and 1.

    Args:
        values: Values ``(N, M)``; those that are not finite are left out.
        draws: Draws of the means, ``(R, M)``.
        clusters: What rows belong together, ``(N,)``; by default each is alone.
        limits: Lowest and highest possible value; None if there are none.

    Returns:
        Lower and upper ends, ``(M,)`` each; nan for columns without draws.
    """
    number, members, _ = numbered(len(values), clusters)
    ends = np.full((2, values.shape[1]), np.nan)
    for column, (scores, drawn) in enumerate(zip(values.T, draws.T, strict=True)):
        finite = np.isfinite(scores)
        if not finite.any():
            continue
        estimate = Estimate.of(float(scores[finite].mean()), drawn)
        ends[:, column] = estimate[1:]
        if limits is None or np.isnan(estimate.low):
            continue
        counts = np.bincount(members[finite], minlength=number)
        means = np.bincount(members[finite], scores[finite], number)[counts > 0]
        low, high = rare_ends(means / counts[counts > 0], limits)
        ends[:, column] = min(estimate.low, low), max(estimate.high, high)
    return ends[0], ends[1]


def rare_ends(
    values: np.ndarray, limits: tuple[float, float], confidence: float = TAILS[1]
) -> tuple[float, float]:
    """Return where values that are rare, or were not seen, could move a mean: down and up.

    Args:
        values: One value of each cluster.
        limits: Lowest and highest possible value.
        confidence: Probability that the mean is not further down; the same holds for up.

    Returns:
        Infinities, which move no end, if fewer than half of the values are the same.
    """
    from scipy.special import betaincinv  # slow to import

    lowest, highest = limits
    equal = 1e-6 * (highest - lowest)
    usual = float(np.median(values))
    if np.mean(np.abs(values - usual) <= equal) < 0.5:
        return math.inf, -math.inf
    count = len(values)

    def further(room: float, seen: np.ndarray) -> float:
        """Return by how much more than was seen values on one side could move the mean."""
        if room <= equal:
            return 0.0
        rare = float(seen.clip(0).sum() / room)
        most = float(betaincinv(rare + 1, max(count - rare, 1e-9), confidence))
        return room * (most - rare / count)

    mean = float(values.mean())
    below = further(usual - lowest, usual - values)
    above = further(highest - usual, values - usual)
    return mean - below, mean + above


def range_of(protocol: str) -> tuple[float, float] | None:
    """Return the lowest and highest possible score of a protocol; None if there are none."""
    return getattr(PROTOCOLS[protocol].cls, "range", None)
