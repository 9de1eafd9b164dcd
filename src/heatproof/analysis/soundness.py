"""Results of the soundness protocol: points (accuracy, q), and soundness at levels of accuracy.

q is never averaged over steps: once the accuracy has reached its maximum, every further step counts
as false, for any map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from heatproof.analysis.intervals import RESAMPLES, Estimate, bootstrap_weights
from heatproof.bench.store import Store
from heatproof.protocols.soundness import Soundness

LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))
COLUMNS = ["model", "setting", "baseline", "method", "level", "soundness", "low", "high", "n"]


class Points(NamedTuple):
    """A curve: accuracy (or mean score) and mean q over the samples as pixels are included."""

    accuracy: np.ndarray  # (S,)
    q: np.ndarray  # (S,)

    @property
    def xy(self) -> np.ndarray:  # (S, 2)
        """Both as the columns of one array."""
        return np.stack(self, 1)


def table(
    store: Store, levels: Sequence[float] = LEVELS, resamples: int = RESAMPLES, seed: int = 0
) -> pd.DataFrame:
    """Tabulate the soundness of a run, one line per model, setting, baseline, method and level.

    Args:
        store: The run.
        levels: Levels of accuracy.
        resamples: Number of bootstrap draws.
        seed: Seed of the bootstrap.

    Returns:
        Soundness at each level with its 95 % interval, and the number of samples.
    """
    lines = []
    for part in store.pending_curves():
        protocol = part.protocol
        if isinstance(protocol, Soundness) and part.samples:
            score, mass = (part.curves[name].numpy() for name in protocol.aggregates)
            estimates = at_levels(protocol, score, mass, levels, resamples, seed)
            key = (part.model, protocol.setting, protocol.baseline_name, part.method)
            for level, estimate in zip(levels, estimates, strict=True):
                lines.append((*key, level, *estimate, len(score)))
    return pd.DataFrame(lines, columns=COLUMNS)


def points(protocol: Soundness, score: np.ndarray, mass: np.ndarray) -> Points:  # (N, S), (N, S)
    """Compute the curve of the samples whose maps have a positive part."""
    score, mass = _usable(protocol, score, mass)
    q = protocol.quality(torch.from_numpy(score), torch.from_numpy(mass)).numpy()
    return Points(score.mean(0), q.mean(0))


def at_levels(
    protocol: Soundness,
    score: np.ndarray,
    mass: np.ndarray,
    levels: Sequence[float] = LEVELS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Estimate]:
    """Estimate mean q at the first step whose accuracy reaches each level.

    False steps are decided anew in every bootstrap draw; an interval covers the draws that reach
    the level.

    Args:
        protocol: The protocol with its settings.
        score: Score of each sample after each step, ``(N, S)``.
        mass: Mass that each step newly includes, ``(N, S)``.
        levels: Levels of accuracy.
        resamples: Number of bootstrap draws.
        seed: Seed of the bootstrap.

    Returns:
        One estimate per level; nan for levels that are not reached.
    """
    values, amounts = (torch.from_numpy(part) for part in _usable(protocol, score, mass))
    n = len(values)
    values_at = protocol.at_levels(levels, values, amounts, torch.ones(1, n))[0].tolist()
    if n < 2:
        return [Estimate.of(value, np.empty(0)) for value in values_at]
    drawn = [
        protocol.at_levels(levels, values, amounts, torch.from_numpy(weights))
        for weights in bootstrap_weights(n, resamples, seed)
    ]
    draws = torch.cat(drawn).numpy()
    return [
        Estimate.of(value, column if np.isfinite(value) else np.empty(0))
        for value, column in zip(values_at, draws.T, strict=True)
    ]


def _usable(
    protocol: Soundness, score: np.ndarray, mass: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    usable = (
        np.isfinite(score).all(1)
        & np.isfinite(mass).all(1)
        & ((mass.sum(1) > 0) | (protocol.compat is not None))
    )
    return score[usable].astype(np.float64), mass[usable].astype(np.float64)
