"""Results of the soundness protocol: points (accuracy, q), and soundness at levels of accuracy.

q is never averaged over steps: once the accuracy has reached its maximum, every further step counts
as false, for any map.

The truth that an interval is about is the result for all images that the evaluated ones were drawn
from: a step is false if it raises the accuracy over all of them by less than eps. With few images
the gain of many steps is not known well enough to decide this, and the estimate, which decides
every step by the images at hand, is biased. An interval therefore leaves these steps open: it
reaches from the value with nearly all of them false to the value with nearly none. It covers the
truth in 94 % to 100 % of simulated cases, and is wide where `undecided` is large. More images help.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from heatproof.analysis.intervals import RESAMPLES, Estimate, bootstrap_weights, weights_of
from heatproof.bench.store import Store
from heatproof.protocols.soundness import UNDECIDED, Soundness
from heatproof.tensor.noise import generator
from heatproof.tensor.soundness import first_reached, undecided_steps

LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))
COLUMNS = [
    "model",
    "setting",
    "baseline",
    "method",
    "level",
    "soundness",
    "low",
    "high",
    "steps",
    "undecided",
    "n",
]


class Points(NamedTuple):
    """A curve: accuracy (or mean score) and mean q over the samples as pixels are included."""

    accuracy: np.ndarray  # (S,)
    q: np.ndarray  # (S,)

    @property
    def xy(self) -> np.ndarray:  # (S, 2)
        """Both as the columns of one array."""
        return np.stack(self, 1)


def table(
    store: Store,
    levels: Sequence[float] = LEVELS,
    resamples: int = RESAMPLES,
    seed: int = 0,
    rows: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Tabulate the soundness of a run, one line per model, setting, baseline, method and level.

    Args:
        store: The run.
        levels: Levels of accuracy.
        resamples: Number of bootstrap draws.
        seed: Seed of the bootstrap.
        rows: The scores of the run; read from the directory by default.

    Returns:
        Soundness at each level with its 95 % interval, the number of steps up to the level and how
        many of them are undecided, and the number of samples. Intervals at the level of the
        protocol are those of `summarize`.
    """
    rows = store.rows() if rows is None else rows
    lines = []
    for part in store.pending_curves():
        protocol = part.protocol
        if isinstance(protocol, Soundness) and part.samples:
            score, mass = (part.curves[name].numpy() for name in protocol.aggregates)
            key = (part.model, protocol.setting, protocol.baseline_name, part.method)
            group = (part.model, protocol.id, protocol.setting, protocol.baseline_name)
            weights = weights_of(rows, group, part.samples, resamples, seed)
            noise = generator(seed, "decisions", part.method)
            estimates = at_levels(protocol, score, mass, levels, weights=weights, noise=noise)
            steps = steps_until(protocol, score, levels)
            for level, estimate, counts in zip(levels, estimates, steps, strict=True):
                lines.append((*key, level, *estimate, *counts, len(score)))
    return pd.DataFrame(lines, columns=COLUMNS)


def points(protocol: Soundness, score: np.ndarray, mass: np.ndarray) -> Points:  # (N, S), (N, S)
    """Compute the curve of the samples whose maps have a positive part."""
    usable = _usable(protocol, score, mass)
    score = score[usable].astype(np.float64)
    mass = mass[usable].astype(np.float64)
    q = protocol.quality(torch.from_numpy(score), torch.from_numpy(mass)).numpy()
    return Points(score.mean(0), q.mean(0))


def at_levels(
    protocol: Soundness,
    score: np.ndarray,
    mass: np.ndarray,
    levels: Sequence[float] = LEVELS,
    resamples: int = RESAMPLES,
    seed: int = 0,
    *,
    weights: Iterable[np.ndarray] | None = None,
    noise: np.random.Generator | None = None,
) -> list[Estimate]:
    """Estimate mean q at the first step whose accuracy reaches each level.

    An interval is over the draws that reach the level.

    Args:
        protocol: The protocol with its settings.
        score: Score of each sample after each step, ``(N, S)``.
        mass: Mass that each step newly includes, ``(N, S)``.
        levels: Levels of accuracy.
        resamples: Number of bootstrap draws.
        seed: Seed of the bootstrap.
        weights: How often each sample is drawn, ``(r, N)`` for some draws at a time; by default
            samples are drawn one by one.
        noise: Draws which undecided steps are false.

    Returns:
        One estimate per level; nan for levels that are not reached.
    """
    usable = _usable(protocol, score, mass)
    values, amounts = (torch.from_numpy(part[usable].astype(float)) for part in (score, mass))
    values_at = protocol.at_levels(levels, values, amounts).tolist()
    if len(values) < 2:
        return [Estimate.of(value, np.empty(0)) for value in values_at]
    if weights is None:
        weights = bootstrap_weights(len(score), resamples, seed)
    noise = noise or generator(seed, "decisions", "")
    drawn = [
        protocol.draw_levels(levels, values, amounts, torch.from_numpy(some[:, usable]), noise)
        for some in weights
    ]
    draws = torch.cat(drawn).numpy()
    return [Estimate.of(value, column) for value, column in zip(values_at, draws.T, strict=True)]


def steps_until(
    protocol: Soundness, score: np.ndarray, levels: Sequence[float]
) -> list[tuple[int, int]]:
    """Count the steps up to each level, and those among them that are undecided.

    Args:
        protocol: The protocol with its settings.
        score: Score of each sample after each step, ``(N, S)``.
        levels: Levels of accuracy.

    Returns:
        Both numbers for each level; 0 if it is not reached, or if each sample decides for itself.
    """
    finite = torch.from_numpy(score[np.isfinite(score).all(1)].astype(float))
    if protocol.score != "correct" or not len(finite):
        return [(0, 0)] * len(levels)
    undecided = undecided_steps(finite, protocol.eps, UNDECIDED)
    accuracy = finite.mean(0)
    ends = [int(first_reached(accuracy, level)) + 1 for level in levels]
    return [(end, int(undecided[:end].sum())) for end in ends]


def _usable(protocol: Soundness, score: np.ndarray, mass: np.ndarray) -> np.ndarray:  # (N,) bool
    return (
        np.isfinite(score).all(1)
        & np.isfinite(mass).all(1)
        & ((mass.sum(1) > 0) | (protocol.compat is not None))
    )
