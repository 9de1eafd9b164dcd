"""What a soundness run says: the points (accuracy, q), and soundness at levels of accuracy with intervals.

q is never averaged over steps: once the accuracy is as high as it gets, every step counts as false, whatever the map.
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


class Points(NamedTuple):
    """Of a curve: as pixels come in, the accuracy (or the mean score) and the mean q over samples."""

    accuracy: np.ndarray  # (S,)
    q: np.ndarray  # (S,)

    @property
    def xy(self) -> np.ndarray:  # (S, 2)
        return np.stack(self, 1)


def table(
    store: Store, levels: Sequence[float] = LEVELS, resamples: int = RESAMPLES, seed: int = 0
) -> pd.DataFrame:
    """One line a (model, setting, baseline, method, level) of a run: soundness at that level, its 95 % interval, and how many samples."""
    lines = []
    for part in store.pending_curves():
        if isinstance(protocol := part.protocol, Soundness) and part.samples:
            score, mass = (part.curves[name].numpy() for name in protocol.aggregates)
            found = at_levels(protocol, score, mass, levels, resamples, seed)
            key = (part.model, protocol.setting, protocol.baseline_name, part.method)
            lines += [
                (*key, level, *estimate, len(score))
                for level, estimate in zip(levels, found, strict=True)
            ]
    return pd.DataFrame(
        lines,
        columns=[
            "model",
            "setting",
            "baseline",
            "method",
            "level",
            "soundness",
            "low",
            "high",
            "n",
        ],
    )


def points(protocol: Soundness, score: np.ndarray, mass: np.ndarray) -> Points:  # (N, S), (N, S)
    """Of the samples whose maps have something positive."""
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
    """Mean q at the first step at which the accuracy reaches each level; nan where it never does.

    Bootstrapped over samples with every decision made anew; the interval is over the draws in which the level is reached.
    """
    values, amounts = (torch.from_numpy(part) for part in _usable(protocol, score, mass))
    n = len(values)
    once = protocol.at_levels(levels, values, amounts, torch.ones(1, n))[0].tolist()
    if n < 2:
        return [Estimate.of(value, np.empty(0)) for value in once]
    weights = (torch.from_numpy(some) for some in bootstrap_weights(n, resamples, seed))
    draws = torch.cat(
        [protocol.at_levels(levels, values, amounts, some) for some in weights]
    ).numpy()
    return [
        Estimate.of(value, column if np.isfinite(value) else np.empty(0))
        for value, column in zip(once, draws.T, strict=True)
    ]


def _usable(
    protocol: Soundness, score: np.ndarray, mass: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    known = (
        np.isfinite(score).all(1)
        & np.isfinite(mass).all(1)
        & ((mass.sum(1) > 0) | (protocol.compat is not None))
    )
    return score[known].astype(np.float64), mass[known].astype(np.float64)
