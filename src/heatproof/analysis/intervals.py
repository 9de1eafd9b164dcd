"""How sure a mean and a rank are: bootstrap over samples, the same draws for all methods, so that comparisons are paired."""

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
RESAMPLES = 2000
AT_ONCE = 2**22  # weights of a bootstrap in memory together
AggregateDraws = Mapping[tuple[str, ...], np.ndarray]  # (*GROUP, method) -> (R,)


class Estimate(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, draws: np.ndarray) -> Estimate:
        known = draws[np.isfinite(draws)]
        low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (np.nan, np.nan)
        return cls(float(value), float(low), float(high))

    @classmethod
    def mean(
        cls, values: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
    ) -> Estimate:  # (N,)
        """Bootstrap over the finite values; one value says nothing of its spread."""
        known = values[np.isfinite(values)]
        draws = bootstrap_means(known[:, None], resamples, seed) if len(known) > 1 else np.empty(0)
        return cls.of(float(known.mean()) if len(known) else np.nan, draws)

    @property
    def told(self) -> int:
        """1 or -1 where the whole interval is on one side of zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def summarize(
    rows: pd.DataFrame,
    resamples: int = RESAMPLES,
    seed: int = 0,
    again: AggregateDraws | None = None,
) -> pd.DataFrame:
    """One line a (model, protocol, setting, baseline, method): mean, 95 % interval, rank, rank interval, n, and what went wrong.

    again: the draws of protocols that conclude from all samples together (`bootstrap_aggregates`).
    """
    keys = [*GROUP, "method", "layer"]
    lines = []
    for key, group in rows.groupby(GROUP, sort=False):
        higher = PROTOCOLS[key[1]].cls.higher_is_better
        table = group.pivot(index="sample", columns=["method", "layer"], values="value")
        table = table[list(dict.fromkeys(zip(group["method"], group["layer"], strict=True)))]
        means, draws = table.mean().to_numpy(), bootstrap_means(table.to_numpy(), resamples, seed)
        put_in(draws, [method for method, _ in table.columns], key, again)
        counts = group.pivot_table(
            index=["method", "layer"],
            columns="status",
            values="sample",
            aggfunc="count",
            fill_value=0,
        )
        ranks, drawn_ranks = rank(means, higher), rank(draws, higher)
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
                    *(
                        int(status.get(s, 0))
                        for s in ("ok", "undefined", "failed", "n/a", "skipped")
                    ),
                )
            )
    columns = [
        *keys,
        "mean",
        "low",
        "high",
        "rank",
        "rank_low",
        "rank_high",
        "n",
        "undefined",
        "failed",
        "n/a",
        "skipped",
    ]
    return pd.DataFrame(lines, columns=columns)


def put_in(
    draws: np.ndarray, methods: Sequence[str], key: tuple[str, ...], again: AggregateDraws | None
) -> None:  # (R, M)
    """What was drawn of a group with every conclusion made anew, in place of means of its values."""
    for i, method in enumerate(methods):
        if again and (*key, method) in again:
            draws[:, i] = again[*key, method]


def bootstrap_weights(
    n: int, resamples: int, seed: int = 0
) -> Iterator[np.ndarray]:  # (r, n), some draws at a time
    """How often each of n samples is drawn."""
    draw, most = generator(seed, "bootstrap", n), max(1, AT_ONCE // max(1, n))
    for begin in range(0, resamples, most):
        yield draw.multinomial(n, np.full(n, 1 / n), size=min(most, resamples - begin)).astype(
            np.float64
        )


def bootstrap_means(
    values: np.ndarray, resamples: int, seed: int = 0
) -> np.ndarray:  # (N, M) -> (R, M)
    """Means of resampled rows; nan values are left out of a mean, as they are out of the table."""
    known = np.isfinite(values)
    filled, found = np.where(known, values, 0), []
    for weights in bootstrap_weights(len(values), resamples, seed):
        total, count = weights @ filled, weights @ known
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append(np.where(count > 0, total / count, np.nan))
    return np.concatenate(found)


def bootstrap_aggregates(
    store: Store, rows: pd.DataFrame, resamples: int = RESAMPLES, seed: int = 0
) -> AggregateDraws:
    """Bootstrap means of a run's protocols that conclude from all samples together: concluded anew in every draw."""
    found: dict[tuple[str, ...], np.ndarray] = {}
    for part in store.pending_curves():
        key = (part.model, part.protocol.id, part.protocol.setting, part.protocol.baseline_name)
        group = np.logical_and.reduce(
            [rows[column] == value for column, value in zip(GROUP, key, strict=True)]
        )
        samples = {sample: i for i, sample in enumerate(sorted(rows.loc[group, "sample"].unique()))}
        own = [samples[sample] for sample in part.samples]
        if own:
            draws = (
                torch.from_numpy(weights[:, own])
                for weights in bootstrap_weights(len(samples), resamples, seed)
            )
            found[*key, part.method] = torch.cat(
                [part.protocol.bootstrap(part.curves, weights) for weights in draws]
            ).numpy()
    return found


def rank(means: np.ndarray, higher_is_better: bool) -> np.ndarray:  # (..., M) -> (..., M)
    """1 is best; equal values share the better rank; nan has none."""
    better = (
        means[..., None, :] > means[..., :, None]
        if higher_is_better
        else means[..., None, :] < means[..., :, None]
    )
    return np.where(np.isfinite(means), 1.0 + better.sum(-1), np.nan)


def _percentiles(
    draws: np.ndarray, samples: np.ndarray, method: str = "linear"
) -> tuple[np.ndarray, np.ndarray]:
    """2.5 % and 97.5 % per column; nan where a column has none."""
    low, high = np.full(draws.shape[1], np.nan), np.full(draws.shape[1], np.nan)
    for i, column in enumerate(draws.T):
        known = column[np.isfinite(column)]
        if len(known) and samples[i] > 1:  # one sample says nothing of its spread
            low[i], high[i] = np.quantile(known, [0.025, 0.975], method=method)  # type: ignore[call-overload]
    return low, high
