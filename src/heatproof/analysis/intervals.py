"""Confidence intervals of means and ranks; docs/statistics.md has the reasons and the coverage.

Draws come from one bootstrap with the same draws for all methods, so that comparisons are paired.
Clusters are drawn instead of samples: the samples of one grid share their images. A draw of a mean
is studentized (`bootstrap_means`): it is not the mean of resampled samples but a value that the
true mean could have, so that percentiles of draws are bootstrap-t intervals. They reach their
coverage for few and skewed scores, where percentiles of resampled means are too narrow.

An interval always contains its estimate. For means this follows from the construction; where draws
of another statistic are all on one side of the estimate, the interval is extended to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heatproof.analysis.tables import groups, positions, score_table
from heatproof.bench.store import PendingCurves, Store
from heatproof.protocols import PROTOCOLS
from heatproof.tensor.noise import generator

GROUP = ["model", "protocol", "setting", "baseline"]
STATUSES = ["ok", "undefined", "failed", "missing", "n/a", "skipped"]
RESAMPLES = 2000
TAILS = (0.025, 0.975)
CHUNK = 2**22  # bootstrap weights in memory at the same time
# More clusters than this are put together into as many blocks, which are drawn instead: the
# standard error of a mean is then estimated from 4000 values, with an error of 1.1 % of itself.
BLOCKS = 4000
HALVED = 1000  # blocks that halves of more clusters than `BLOCKS` consist of: an error of 2.2 %
CACHED = 2**23  # drawn weights that are kept, since all methods and settings draw the same
# A draw of a few equal samples has a standard error of nearly 0, and t would have no bound.
LEAST_ERROR = 0.25  # of the standard error of all samples
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
            The mean; a single cluster has no interval.
        """
        finite = np.isfinite(values)
        if not finite.any():
            return cls.of(np.nan, np.empty(0))
        kept = None if clusters is None else np.asarray(clusters)[finite]
        draws = bootstrap_means(values[finite][:, None], resamples, seed, kept)
        return cls.of(float(values[finite].mean()), draws[:, 0])

    @property
    def sign(self) -> int:
        """1 or -1 if the value is significantly above or below zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def summarize(
    rows: pd.DataFrame,
    resamples: int = RESAMPLES,
    seed: int = 0,
    aggregate_draws: AggregateDraws | None = None,
    layers: RankedLayers | None = None,
) -> pd.DataFrame:
    """Summarize scores, one line per model, protocol, setting, baseline and method.

    Args:
        rows: The scores of a run, one row per sample, protocol and method.
        resamples: Number of bootstrap draws.
        seed: Seed of the bootstrap.
        aggregate_draws: Draws of protocols that aggregate over all samples (see
            `bootstrap_aggregates`).
        layers: The layer within which each method is ranked (see `ranks.ranked_layers`).

    Returns:
        Mean with its 95 % interval, rank with its interval, the number of scores, and the numbers
        of undefined, failed, missing, not applicable and skipped samples, and of scores whose map
        has a note (``noted``).
    """
    lines = []
    for key, group in groups(rows, GROUP):
        higher = PROTOCOLS[key[1]].cls.higher_is_better
        table = score_table(group)
        means = table.means
        draws = bootstrap_means(table.values, resamples, seed, table.clusters, range_of(key[1]))
        insert_draws(draws, table.methods, key, aggregate_draws)
        statuses = _status_counts(group, table.methods)
        layer_of = group.drop_duplicates("method").set_index("method")["layer"]
        own_layers = [(layers or {}).get((key[0], method), "") for method in table.methods]
        together = ranked_together(own_layers)
        ranks = rank(means, higher, together)
        best, worst = rank_bounds(means, draws, higher, together)
        for i, method in enumerate(table.methods):
            estimate = Estimate.of(means[i], draws[:, i])
            lines.append(
                (
                    *key,
                    method,
                    str(layer_of[method]),
                    *estimate,
                    ranks[i],
                    best[i],
                    worst[i],
                    *statuses[i],
                )
            )
    statistics = ["mean", "low", "high", "rank", "rank_low", "rank_high"]
    columns = [*GROUP, "method", "layer", *statistics, "n", *STATUSES[1:], "noted"]
    return pd.DataFrame(lines, columns=columns)


def _status_counts(rows: pd.DataFrame, methods: Sequence[str]) -> list[list[int]]:
    """Count the rows of each method by status, and last its scores whose map has a note."""
    method_of = positions(rows["method"], methods)
    status_of = positions(rows["status"], STATUSES)
    size = (len(methods), len(STATUSES))
    counts = np.bincount(method_of * size[1] + status_of, minlength=size[0] * size[1])
    noted = np.zeros(size[0], dtype=np.intp)
    if "note" in rows:
        is_noted = (rows["status"] == "ok") & (rows["note"] != "")
        noted = np.bincount(method_of[is_noted.to_numpy()], minlength=size[0])
    return np.column_stack([counts.reshape(size), noted]).tolist()


def insert_draws(
    draws: np.ndarray,
    methods: Sequence[str],
    key: tuple[str, ...],
    aggregate_draws: AggregateDraws | None,
) -> None:
    """Replace the draws of methods whose values are aggregated over all samples.

    Args:
        draws: Drawn means ``(R, M)``, changed in place.
        methods: The M methods.
        key: Model, protocol, setting and baseline.
        aggregate_draws: Draws by key and method.
    """
    for i, method in enumerate(methods):
        if aggregate_draws and (*key, method) in aggregate_draws:
            draws[:, i] = aggregate_draws[*key, method]


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
    count, members, _ = _numbered(n, clusters)
    for part in _drawn_weights(count, resamples, seed, max(1, CHUNK // max(1, n))):
        yield part[:, members]


def _drawn_weights(count: int, resamples: int, seed: int, chunk: int) -> Iterator[np.ndarray]:
    """Draw how often each of some clusters occurs: float64, not to be changed."""
    if resamples * count > CACHED:
        yield from (p.astype(float) for p in _drawn_counts(count, resamples, seed, chunk))
        return
    drawn = _kept_weights(count, resamples, seed)
    for begin in range(0, resamples, chunk):
        yield drawn[begin : begin + chunk]


@lru_cache(maxsize=2)
def _kept_weights(count: int, resamples: int, seed: int) -> np.ndarray:  # (resamples, count)
    """Draw how often each of some clusters occurs, once for all methods and settings."""
    kept = np.empty((resamples, count))
    begin = 0
    for part in _drawn_counts(count, resamples, seed, max(1, CHUNK // max(1, count))):
        kept[begin : begin + len(part)] = part
        begin += len(part)
    kept.setflags(write=False)
    return kept


def _drawn_counts(count: int, resamples: int, seed: int, chunk: int) -> Iterator[np.ndarray]:
    """Draw how often each of some clusters occurs, ``(r, count)`` for some draws at a time."""
    draw = generator(seed, "bootstrap", count)
    for begin in range(0, resamples, chunk):
        size = min(chunk, resamples - begin)
        yield draw.multinomial(count, np.full(count, 1 / count), size=size)


def _numbered(
    n: int, clusters: Sequence[object] | np.ndarray | None, blocks: int = BLOCKS
) -> tuple[int, np.ndarray, bool]:
    """Return the number of clusters, the index of each sample's, ``(n,)``, and if they are blocks.

    More than `BLOCKS` clusters are put together at random into blocks of nearly the same size.
    """
    count = n
    members = np.arange(n)
    if clusters is not None:
        codes, names = pd.factorize(np.asarray(clusters), sort=True)
        count = len(names)
        members = codes
    if count <= BLOCKS:
        return count, members, False
    block_of = generator(0, "blocks", count).permutation(count) % blocks
    return blocks, block_of[members], True


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
    number, members, in_blocks = _numbered(len(values), clusters)
    finite = np.isfinite(values)
    totals = np.zeros((number, values.shape[1]))
    counts = np.zeros_like(totals)
    np.add.at(totals, members, np.where(finite, values, 0))
    np.add.at(counts, members, finite)
    groups = (counts > 0).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = totals.sum(0) / counts.sum(0)
        totals -= means * counts  # now of the deviations from the mean
        errors = np.sqrt((totals**2).sum(0)) / counts.sum(0)
        widen = np.sqrt((groups + 1) / (groups - 1))
    drawn = []
    summed: list[np.ndarray] = [counts, totals, totals**2, counts**2, totals * counts]
    drawn_weights = bootstrap_weights(number, resamples, seed)
    if in_blocks:  # one product without a copy of the weights is several times as fast as five
        summed = [np.hstack(summed)]
        drawn_weights = _drawn_weights(number, resamples, seed, CHUNK // number)
    for weights in drawn_weights:
        products = [weights @ part for part in summed]
        if in_blocks:
            products = np.hsplit(products[0], 5)
        count, total, squares, count_squares, mixed = products
        with np.errstate(invalid="ignore", divide="ignore"):
            shift = total / count
            squares += shift * (shift * count_squares - 2 * mixed)
            error = np.sqrt(np.maximum(squares, 0)) / count
            t = shift / np.maximum(error, LEAST_ERROR * errors)
            drawn.append(means - widen * np.where(errors > 0, t, 0) * errors)
    draws = np.concatenate(drawn)
    draws[:, groups < 2] = np.nan
    return draws if limits is None else draws.clip(*limits)


def range_of(protocol: str) -> tuple[float, float] | None:
    """Return the lowest and highest possible score of a protocol; None if there are none."""
    return getattr(PROTOCOLS[protocol].cls, "range", None)


def half_samples(
    n: int, resamples: int, seed: int = 0, clusters: Sequence[object] | np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Draw halves of the clusters without replacement.

    Args:
        n: Number of samples.
        resamples: Number of halves.
        seed: Seed of the draws.
        clusters: What samples are drawn together, ``(n,)``; by default each is drawn alone.

    Yields:
        Weights ``(r, n)`` of float64 for some of the draws at a time: 1 for samples in the half,
        0 for the others. Halves come in pairs that have no cluster in common.
    """
    return Halves.draw(n, resamples, seed, clusters).by_sample()


@dataclass(frozen=True)
class Halves:
    """Halves of clusters, or of blocks of them, drawn without replacement.

    Attributes:
        members: The cluster or block of each sample, ``(N,)``.
        drawn: Whether each cluster is in each half, ``(R, G)``.
        chunk: How many draws of all samples are made at a time.
        blocks: Whether clusters were put together into blocks.
    """

    members: np.ndarray
    drawn: np.ndarray
    chunk: int
    blocks: bool

    @classmethod
    def draw(
        cls,
        n: int,
        resamples: int,
        seed: int = 0,
        clusters: Sequence[object] | np.ndarray | None = None,
    ) -> Halves:
        """Draw halves; the arguments are those of `half_samples`."""
        count, members, in_blocks = _numbered(n, clusters, HALVED)
        draw = generator(seed, "halves", count)
        pairs = -(-resamples // 2)
        chunk = max(1, CHUNK // max(1, 2 * n))
        drawn = np.empty((2 * pairs, count), bool)
        for begin in range(0, pairs, chunk):
            size = min(chunk, pairs - begin)
            order = draw.random((size, count)).argsort(1).argsort(1)
            first = order < (count + 1) // 2
            both = np.stack([first, ~first], 1).reshape(-1, count)
            drawn[2 * begin : 2 * (begin + size)] = both
        return cls(members, drawn[:resamples], 2 * chunk, in_blocks)

    def take(self, samples: np.ndarray) -> Halves:
        """Return the halves of some samples, by their positions or a mask ``(N,)``."""
        return replace(self, members=self.members[samples])

    def by_sample(self) -> Iterator[np.ndarray]:
        """Yield weights ``(r, N)`` of float64, for some of the draws at a time."""
        for begin in range(0, len(self.drawn), self.chunk):
            part = self.drawn[begin : begin + self.chunk]
            yield part[:, self.members].astype(np.float64)

    def estimates(
        self, compute: Callable[[Tensor, Tensor | None], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Compute something of all samples and of every half.

        Args:
            compute: Takes the weights of samples, ``(r, N)``, and None; or those of blocks,
                ``(R, G)``, and the block of each sample, ``(N,)``. Returns ``(r, …)``.

        Returns:
            The result of all samples, ``(…)``, and those of the halves, ``(R, …)``.
        """
        if self.blocks:
            weights = np.ones((1 + len(self.drawn), self.drawn.shape[1]))
            weights[1:] = self.drawn
            found = compute(torch.from_numpy(weights), torch.from_numpy(self.members))
            return found[0], found[1:]
        whole = compute(torch.ones(1, len(self.members)), None)[0]
        parts = [compute(torch.from_numpy(part), None) for part in self.by_sample()]
        return whole, torch.cat(parts)


def around_estimate(
    value: float, of_halves: np.ndarray, count: int, limits: tuple[float, float] | None
) -> np.ndarray:
    """Draw values that an estimate could have had, from the estimates of half-samples.

    The spread of a statistic over halves drawn without replacement is that of the statistic over
    data sets of the full size (Politis, Romano, Wolf 1999). A half has fewer samples, so that its
    estimates are biased differently: only their deviations from their mean are used. The factor
    √(1 + 20 / count), chosen by simulation, makes up for few samples.

    Args:
        value: The estimate of all samples.
        of_halves: Estimates of halves, ``(R,)``; nan where a half has none.
        count: Number of samples.
        limits: Lowest and highest possible value.

    Returns:
        Draws ``(R,)``.
    """
    if not np.isfinite(of_halves).any():
        return np.full(len(of_halves), np.nan)
    draws = value + np.sqrt(1 + 20 / count) * (of_halves - np.nanmean(of_halves))
    return draws if limits is None else draws.clip(*limits)


class SettingHalves:
    """Halves of the samples of one setting, the same for all its methods.

    Args:
        rows: The scores of a run.
        key: Model, protocol, setting and baseline.
        resamples: Number of draws.
        seed: Seed of the draws.
    """

    def __init__(
        self,
        rows: pd.DataFrame,
        key: tuple[str, ...],
        resamples: int = RESAMPLES,
        seed: int = 0,
    ):
        columns = zip(GROUP, key, strict=True)
        group = np.logical_and.reduce([rows[column] == value for column, value in columns])
        names = [name for name in ("sample", "cluster") if name in rows]
        samples = rows.loc[group, names].drop_duplicates("sample").sort_values("sample")
        everyone = [str(sample) for sample in samples["sample"]]
        clusters = [str(cluster) for cluster in samples[names[-1]]]
        self.key = key
        self._position = {sample: i for i, sample in enumerate(everyone)}
        self._halves = Halves.draw(len(everyone), resamples, seed, np.array(clusters, object))

    def of(self, samples: Sequence[str]) -> Halves:
        """Return the halves of some samples, ``(N,)``."""
        position = self._position
        return self._halves.take(np.array([position[sample] for sample in samples], int))


def halves_of(
    before: SettingHalves | None,
    rows: pd.DataFrame,
    key: tuple[str, ...],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> SettingHalves:
    """Return the halves of a setting: those of the method before, if it is the same setting."""
    if before is not None and before.key == key:
        return before
    return SettingHalves(rows, key, resamples, seed)


def bootstrap_aggregates(
    store: Store, rows: pd.DataFrame, resamples: int = RESAMPLES, seed: int = 0
) -> AggregateDraws:
    """Draw the results of the protocols of a run that aggregate over all samples.

    Args:
        store: The run.
        rows: The scores of the run.
        resamples: Number of draws.
        seed: Seed of the draws.

    Returns:
        Draws ``(R,)`` by model, protocol, setting, baseline and method, from half-samples that are
        aggregated anew; nan for a single sample.
    """
    aggregated: dict[tuple[str, ...], np.ndarray] = {}
    halves: SettingHalves | None = None
    for part in store.pending_curves():
        key = (part.model, part.protocol.id, part.protocol.setting, part.protocol.baseline_name)
        if len(part.samples) < 2:
            aggregated[*key, part.method] = np.full(resamples, np.nan)
            continue
        halves = halves_of(halves, rows, key, resamples, seed)
        whole, of_halves = halves.of(part.samples).estimates(partial(_bootstrap, part))
        aggregated[*key, part.method] = around_estimate(
            whole.item(), of_halves.numpy(), len(part.samples), range_of(part.protocol.id)
        )
    return aggregated


def _bootstrap(part: PendingCurves, weights: Tensor, blocks: Tensor | None) -> Tensor:
    """Aggregate draws of samples, or of blocks of samples."""
    if blocks is None:
        return part.protocol.bootstrap(part.curves, weights)
    return part.protocol.bootstrap_blocks(part.curves, weights, blocks)


def rank(
    means: np.ndarray, higher_is_better: bool, together: np.ndarray | None = None
) -> np.ndarray:
    """Rank methods from 1 for the best; equal values have the same rank, and nan has none.

    Args:
        means: Scores ``(..., M)``.
        higher_is_better: The direction of the scores.
        together: Which pairs of methods are ranked against each other, ``(M, M)``; None for all.

    Returns:
        Ranks ``(..., M)``.
    """
    others = means[..., None, :]
    each = means[..., :, None]
    better = others > each if higher_is_better else others < each
    if together is not None:
        better = better & together
    return np.where(np.isfinite(means), 1.0 + better.sum(-1), np.nan)


def ranked_together(layers: Sequence[str]) -> np.ndarray | None:  # (M, M)
    """Return which methods are ranked against each other; None if all are.

    Args:
        layers: The layer within which each method is ranked; empty for one that is ranked with
            those of every layer.
    """
    if not any(layers):
        return None
    names = np.array(layers)
    anywhere = names == ""
    return (names[:, None] == names[None, :]) | anywhere[:, None] | anywhere[None, :]


def rank_bounds(
    means: np.ndarray,
    draws: np.ndarray,
    higher_is_better: bool,
    together: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute 95 % intervals of ranks from simultaneous intervals of differences.

    A method is ranked behind those that are significantly better, and before those that are
    significantly worse. The differences to all others are tested at once, so that the rank of the
    true mean is within the bounds with a probability of at least 95 % even among methods that are
    nearly equal (Mogstad, Romano, Shaikh, Wilhelm 2024). A method that is ahead in no draw, as
    of one with the highest possible score, is not ranked before.

    Args:
        means: Mean scores ``(M,)``; nan for a method without a score.
        draws: Draws of the means, ``(R, M)``.
        higher_is_better: Whether the highest mean has rank 1.
        together: Which methods are ranked against each other, ``(M, M)``; all by default.

    Returns:
        Lowest and highest rank, ``(M,)`` each; nan for methods without a score or without draws.
    """
    best = np.full(len(means), np.nan)
    worst = np.full(len(means), np.nan)
    drawn = np.isfinite(draws).any(0)
    ranked = np.flatnonzero(np.isfinite(means))
    sign = 1 if higher_is_better else -1
    for i in ranked[drawn[ranked]]:
        others = ranked[ranked != i]
        if together is not None:
            others = others[together[i, others]]
        ahead = sign * (means[others] - means[i])
        best[i] = 1.0
        worst[i] = 1.0 + len(others)
        testable = drawn[others]
        ahead = ahead[testable]
        moved = sign * (draws[:, others[testable]] - draws[:, i : i + 1]) - ahead
        moved = moved[np.isfinite(moved).all(1)]
        if not moved.size:
            continue
        scale = np.sqrt((moved**2).mean(0))
        rounding = 1e-12 * (1 + np.abs(means[i]))
        largest = np.abs(moved / np.maximum(scale, rounding)).max(1)
        margin = np.quantile(largest, TAILS[1] - TAILS[0]) * scale + rounding
        gap = moved + ahead
        never_behind = (ahead > 0) & (gap > rounding).all(0)
        never_ahead = (ahead <= 0) & (gap <= rounding).all(0)
        best[i] += ((ahead > margin) | never_behind).sum()
        worst[i] -= ((ahead < -margin) | never_ahead).sum()
    return best, worst
