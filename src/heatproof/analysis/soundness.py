"""What a soundness run says: the points (accuracy, q), and soundness at levels of accuracy with intervals.

q is never averaged over steps: once the accuracy is as high as it gets, every step counts as false, whatever the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from heatproof.analysis.intervals import RESAMPLES, Estimate
from heatproof.bench.store import Store
from heatproof.protocols.soundness import Soundness
from heatproof.tensor.noise import generator
from heatproof.tensor.soundness import TINY, false_steps, first_reached

LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))
AT_ONCE = 2**22  # weights of a bootstrap in memory together


class Points(NamedTuple):
    """Of a curve: as pixels come in, the accuracy (or the mean score) and the mean q over samples."""

    accuracy: np.ndarray  # (S,)
    q: np.ndarray  # (S,)

    @property
    def xy(self) -> np.ndarray:  # (S, 2)
        return np.stack(self, 1)


def table(store: Store, levels: Sequence[float] = LEVELS, resamples: int = RESAMPLES, seed: int = 0) -> pd.DataFrame:
    """One line a (model, setting, baseline, method, level) of a run: soundness at that level, its 95 % interval, and how many samples."""
    lines = []
    for part in store.undecided():
        if isinstance(protocol := part.protocol, Soundness) and len(part.rows):
            score, mass = (part.curves[name].numpy() for name in protocol.concludes)
            found = at_levels(protocol, score, mass, levels, resamples, seed)
            key = (part.model, protocol.setting, protocol.removal, part.method)
            lines += [(*key, level, *estimate, len(score)) for level, estimate in zip(levels, found, strict=True)]
    return pd.DataFrame(lines, columns=["model", "setting", "baseline", "method", "level", "soundness", "low", "high", "n"])


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
    score, mass = _usable(protocol, score, mass)
    n = len(score)
    once = _at_levels(protocol, score, mass, np.full((1, n), 1 / n), levels)[0]
    if n < 2:
        return [Estimate.of(float(value), np.empty(0)) for value in once]
    draw, most = generator(seed, "bootstrap", n), max(1, AT_ONCE // n)
    sizes = [min(most, resamples - begin) for begin in range(0, resamples, most)]
    weights = (draw.multinomial(n, np.full(n, 1 / n), size=size) / n for size in sizes)
    draws = np.concatenate([_at_levels(protocol, score, mass, part, levels) for part in weights])
    return [Estimate.of(float(value), column if np.isfinite(value) else np.empty(0)) for value, column in zip(once, draws.T, strict=True)]


def _usable(protocol: Soundness, score: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    known = np.isfinite(score).all(1) & np.isfinite(mass).all(1) & ((mass.sum(1) > 0) | (protocol.compat is not None))
    return score[known].astype(np.float64), mass[known].astype(np.float64)


def _at_levels(
    protocol: Soundness, score: np.ndarray, mass: np.ndarray, weights: np.ndarray, levels: Sequence[float]
) -> np.ndarray:  # weights (R, N) that add up to 1 -> (R, L)
    """The mean over samples of q after step k is 1 − Σ_j≤k false_j · mean(mass_j / included_k): a product of matrices for each k."""
    accuracy = torch.from_numpy(weights @ score)
    at = np.stack([first_reached(accuracy, level).numpy() for level in levels], 1)
    found = np.full(at.shape, np.nan)
    shared = protocol.score == "correct"
    if not shared:
        q = protocol.quality(torch.from_numpy(score), torch.from_numpy(mass)).numpy()
        found[at >= 0] = np.take_along_axis(weights @ q, at, 1)[at >= 0]
        return found
    false = false_steps(accuracy, protocol.eps, protocol.compat, protocol.gate).numpy()
    included = mass.cumsum(1)
    for k in np.unique(at[at >= 0]):
        draws = np.flatnonzero((at == k).any(1))
        until, total = (k, included[:, k] + TINY) if protocol.compat else (k + 1, included[:, k])
        lost = (weights[draws] @ (mass[:, :until] / total[:, None]) * false[draws, :until]).sum(1)
        q = weights[draws] @ (included[:, k] / total) - lost
        found[draws] = np.where(at[draws] == k, q[:, None], found[draws])
    return found
