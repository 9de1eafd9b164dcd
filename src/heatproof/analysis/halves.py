"""Half-samples: the spread of results that are aggregated over all samples.

A result such as soundness is not a mean over samples. Its interval comes from halves of the
clusters, drawn without replacement and aggregated anew; docs/statistics-others.md has the reasons.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heatproof.analysis.intervals import (
    GROUP,
    MOST_WEIGHTS_IN_MEMORY,
    RESAMPLES,
    AggregateDraws,
    numbered,
    range_of,
)
from heatproof.runs.run import Run
from heatproof.scoring.aggregate import PendingCurves
from heatproof.tensor.noise import generator

MOST_HALVES = 2000  # each aggregates all samples anew, which takes far longer than a mean


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
        count, members, in_blocks = numbered(n, clusters)
        draw = generator(seed, "halves", count)
        pairs = -(-resamples // 2)
        chunk = max(1, MOST_WEIGHTS_IN_MEMORY // max(1, 2 * n))
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
        part = replace(self, members=self.members[samples])
        if self.blocks:  # which have the same weights
            part.__dict__["block_weights"] = self.block_weights
        return part

    @cached_property
    def block_weights(self) -> Tensor:
        """Weights of the blocks in the whole data set and in every half, ``(1 + R, G)``."""
        weights = np.ones((1 + len(self.drawn), self.drawn.shape[1]))
        weights[1:] = self.drawn
        return torch.from_numpy(weights)

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
            found = compute(self.block_weights, torch.from_numpy(self.members))
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
        self._latest: tuple[Sequence[str], Halves] = ((), self._halves)

    def of(self, samples: Sequence[str]) -> Halves:
        """Return the halves of some samples, ``(N,)``; methods often have the same ones."""
        if samples is not self._latest[0]:
            position = self._position
            order = np.array([position[sample] for sample in samples], int)
            self._latest = (samples, self._halves.take(order))
        return self._latest[1]


def setting_of(part: PendingCurves) -> tuple[str, ...]:
    """Return model, protocol, setting and baseline of curves."""
    protocol = part.protocol
    return (part.model, protocol.id, protocol.setting, protocol.baseline_name)


class HalvesOfSettings:
    """Halves of one setting after the other, in any thread.

    Args:
        rows: The scores of a run.
        resamples: Number of draws.
        seed: Seed of the draws.
    """

    def __init__(self, rows: pd.DataFrame, resamples: int, seed: int = 0):
        self._rows = rows
        self._resamples = resamples
        self._seed = seed
        self._lock = threading.Lock()
        self._latest: SettingHalves | None = None

    def of(self, part: PendingCurves) -> Halves:
        """Return the halves of the samples of curves; methods of a setting have the same."""
        key = setting_of(part)
        with self._lock:
            if self._latest is None or self._latest.key != key:
                self._latest = SettingHalves(self._rows, key, self._resamples, self._seed)
            return self._latest.of(part.samples)


def bootstrap_aggregates(run: Run, resamples: int = RESAMPLES, seed: int = 0) -> AggregateDraws:
    """Draw the results of the protocols of a run that aggregate over all samples.

    Args:
        run: The run.
        resamples: Number of draws.
        seed: Seed of the draws.

    Returns:
        Draws ``(R,)`` by model, protocol, setting, baseline and method, from half-samples that are
        aggregated anew; nan for a single sample. At most `MOST_HALVES` are drawn, and repeated to
        be as many as the draws of means.
    """
    settings = HalvesOfSettings(run.rows, min(resamples, MOST_HALVES), seed)

    def draw(part: PendingCurves) -> np.ndarray:
        if len(part.samples) < 2:
            return np.full(resamples, np.nan)
        whole, of_halves = settings.of(part).estimates(partial(_bootstrap, part))
        draws = around_estimate(
            whole.item(), of_halves.numpy(), len(part.samples), range_of(part.protocol.id)
        )
        return np.resize(draws, resamples)

    return {(*setting_of(part), part.method): draws for part, draws in run.all_curves.map(draw)}


def _bootstrap(part: PendingCurves, weights: Tensor, blocks: Tensor | None) -> Tensor:
    """Aggregate draws of samples, or of blocks of samples."""
    if blocks is None:
        return part.protocol.bootstrap(part.curves, weights)
    return part.protocol.bootstrap_blocks(part.curves, weights, blocks)
