"""Confidence intervals of means and ranks.

They are bootstrapped over samples with the same draws for all methods, so that comparisons are
paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from heatproof.bench.store import Store
from heatproof.protocols import PROTOCOLS
from heatproof.tensor.noise import generator

GROUP = ["model", "protocol", "setting", "baseline"]
STATUSES = ["ok", "undefined", "failed", "missing", "n/a", "skipped"]
RESAMPLES = 2000
CHUNK = 2**22  # bootstrap weights in memory at the same time
AggregateDraws = Mapping[tuple[str, ...], np.ndarray]  # (*GROUP, method) -> (R,)


class Estimate(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, draws: np.ndarray) -> Estimate:  # (R,)
        """Take the interval from the percentiles of bootstrap draws that are finite."""
        finite = draws[np.isfinite(draws)]
        if not len(finite):
            return cls(float(value), np.nan, np.nan)
        low, high = np.quantile(finite, [0.025, 0.975])
        return cls(float(value), float(low), float(high))

    @classmethod
    def mean(
        cls, values: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
    ) -> Estimate:  # (N,)
        """Estimate the mean of the finite values; a single value has no interval."""
        finite = values[np.isfinite(values)]
        if not len(finite):
            return cls.of(np.nan, np.empty(0))
        draws = np.empty(0)
        if len(finite) > 1:
            draws = bootstrap_means(finite[:, None], resamples, seed)
        return cls.of(float(finite.mean()), draws)

    @property
    def sign(self) -> int:
        """1 or -1 if the value is significantly above or below zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def summarize(
    rows: pd.DataFrame,
    resamples: int = RESAMPLES,
    seed: int = 0,
    aggregate_draws: AggregateDraws | None = None,
) -> pd.DataFrame:
    """Summarize scores, one line per model, protocol, setting, baseline and method.

    Args:
        rows: The scores of a run, one row per sample, protocol and method.
        resamples: Number of bootstrap draws.
        seed: Seed of the bootstrap.
        aggregate_draws: Draws of protocols that aggregate over all samples (see
            `bootstrap_aggregates`).

    Returns:
        Mean with its 95 % interval, rank with its interval, the number of scores, and the numbers
        of undefined, failed, missing, not applicable and skipped samples, and of scores whose map
        has a note (``noted``).
    """
    lines = []
    for key, group in rows.groupby(GROUP, sort=False):
        higher = PROTOCOLS[key[1]].cls.higher_is_better
        table = group.pivot(index="sample", columns=["method", "layer"], values="value")
        table = table[list(dict.fromkeys(zip(group["method"], group["layer"], strict=True)))]
        means = table.mean().to_numpy()
        draws = bootstrap_means(table.to_numpy(), resamples, seed)
        insert_draws(draws, [method for method, _ in table.columns], key, aggregate_draws)
        counts = group.pivot_table(
            index=["method", "layer"],
            columns="status",
            values="sample",
            aggfunc="count",
            fill_value=0,
        )
        noted = group[(group["status"] == "ok") & (group.get("note", "") != "")]
        noted_of = noted.groupby(["method", "layer"]).size()
        ranks = rank(means, higher)
        drawn_ranks = rank(draws, higher)
        samples = table.notna().sum().to_numpy()
        with np.errstate(invalid="ignore"):
            low, high = _percentiles(draws, samples)
            best, worst = _percentiles(drawn_ranks, samples, method="nearest")
        for i, (method, layer) in enumerate(table.columns):
            status = counts.loc[(method, layer)]
            lines.append(
                (
                    *key,
                    method,
                    layer,
                    means[i],
                    low[i],
                    high[i],
                    ranks[i],
                    best[i],
                    worst[i],
                    *(int(status.get(name, 0)) for name in STATUSES),
                    int(noted_of.get((method, layer), 0)),
                )
            )
    statistics = ["mean", "low", "high", "rank", "rank_low", "rank_high"]
    columns = [*GROUP, "method", "layer", *statistics, "n", *STATUSES[1:], "noted"]
    return pd.DataFrame(lines, columns=columns)


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


def bootstrap_weights(n: int, resamples: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Draw how often each sample occurs in each bootstrap draw.

    Args:
        n: Number of samples.
        resamples: Number of draws.
        seed: Seed of the draws.

    Yields:
        Counts ``(r, n)`` of float64, for some of the draws at a time.
    """
    draw = generator(seed, "bootstrap", n)
    chunk = max(1, CHUNK // max(1, n))
    for begin in range(0, resamples, chunk):
        size = min(chunk, resamples - begin)
        yield draw.multinomial(n, np.full(n, 1 / n), size=size).astype(np.float64)


def bootstrap_means(
    values: np.ndarray, resamples: int, seed: int = 0
) -> np.ndarray:  # (N, M) -> (R, M)
    """Compute the means of resampled rows; values that are not finite are left out."""
    finite = np.isfinite(values)
    filled = np.where(finite, values, 0)
    means = []
    for weights in bootstrap_weights(len(values), resamples, seed):
        total = weights @ filled
        count = weights @ finite
        with np.errstate(invalid="ignore", divide="ignore"):
            means.append(np.where(count > 0, total / count, np.nan))
    return np.concatenate(means)


def bootstrap_aggregates(
    store: Store, rows: pd.DataFrame, resamples: int = RESAMPLES, seed: int = 0
) -> AggregateDraws:
    """Bootstrap the protocols of a run that aggregate over all samples.

    Args:
        store: The run.
        rows: The scores of the run.
        resamples: Number of bootstrap draws.
        seed: Seed of the bootstrap.

    Returns:
        Draws ``(R,)`` by model, protocol, setting, baseline and method, aggregated anew in each.
    """
    aggregated: dict[tuple[str, ...], np.ndarray] = {}
    for part in store.pending_curves():
        key = (part.model, part.protocol.id, part.protocol.setting, part.protocol.baseline_name)
        group = np.logical_and.reduce(
            [rows[column] == value for column, value in zip(GROUP, key, strict=True)]
        )
        samples = {sample: i for i, sample in enumerate(sorted(rows.loc[group, "sample"].unique()))}
        indices = [samples[sample] for sample in part.samples]
        if indices:
            draws = (
                torch.from_numpy(weights[:, indices])
                for weights in bootstrap_weights(len(samples), resamples, seed)
            )
            aggregated[*key, part.method] = torch.cat(
                [part.protocol.bootstrap(part.curves, weights) for weights in draws]
            ).numpy()
    return aggregated


def rank(means: np.ndarray, higher_is_better: bool) -> np.ndarray:  # (..., M) -> (..., M)
    """Rank methods from 1 for the best; equal values have the same rank, and nan has none."""
    others = means[..., None, :]
    each = means[..., :, None]
    better = others > each if higher_is_better else others < each
    return np.where(np.isfinite(means), 1.0 + better.sum(-1), np.nan)


def _percentiles(
    draws: np.ndarray, samples: np.ndarray, method: str = "linear"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the 2.5 % and 97.5 % percentiles per column; nan for fewer than two samples."""
    low = np.full(draws.shape[1], np.nan)
    high = np.full(draws.shape[1], np.nan)
    for i, column in enumerate(draws.T):
        finite = column[np.isfinite(column)]
        if len(finite) and samples[i] > 1:
            low[i], high[i] = np.quantile(finite, [0.025, 0.975], method=method)  # type: ignore[call-overload]
    return low, high
