"""Results of the soundness protocol: points (accuracy, q), and soundness at levels of accuracy.

q is never averaged over steps: once the accuracy has reached its maximum, every further step counts
as false, for any map.

An interval is about the mean result of data sets with as many images as were evaluated. With few
images the gain of many steps is not known well enough to say whether it is less than eps, and the
result of more images can differ from that of few by more than the interval: `undecided` counts
these steps, and more images decide them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from heatproof.analysis.halves import (
    MOST_HALVES,
    Halves,
    HalvesOfSettings,
    around_estimate,
)
from heatproof.analysis.intervals import Estimate
from heatproof.protocols.soundness import Soundness
from heatproof.runs.run import Run
from heatproof.scoring.aggregate import PendingCurves
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
    run: Run,
    levels: Sequence[float] = LEVELS,
    resamples: int = MOST_HALVES,
    seed: int = 0,
    most: int | None = None,
) -> pd.DataFrame:
    """Tabulate the soundness of a run, one line per model, setting, baseline, method and level.

    Args:
        run: The run.
        levels: Levels of accuracy.
        resamples: Number of half-samples, of which at most `MOST_HALVES` are drawn.
        seed: Seed of the draws.
        most: How many samples of a model are read at most; by default all.

    Returns:
        Soundness at each level with its 95 % interval, the number of steps up to the level and how
        many of them are undecided, and the number of samples. Intervals at the level of the
        protocol are those of `summarize`.
    """
    settings = HalvesOfSettings(run.rows, min(resamples, MOST_HALVES), seed)

    def lines_of(part: PendingCurves) -> list[tuple[object, ...]]:
        protocol = part.protocol
        if not isinstance(protocol, Soundness) or not part.samples:
            return []
        score, mass = (part.curves[name].numpy() for name in protocol.aggregates)
        key = (part.model, protocol.setting, protocol.baseline_name, part.method)
        estimates = at_levels(protocol, score, mass, levels, halves=settings.of(part))
        steps = steps_until(protocol, score, levels)
        return [
            (*key, level, *estimate, *counts, len(score))
            for level, estimate, counts in zip(levels, estimates, steps, strict=True)
        ]

    found = run.all_curves.map(lines_of, most)
    return pd.DataFrame([line for _, lines in found for line in lines], columns=COLUMNS)


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
    resamples: int = MOST_HALVES,
    seed: int = 0,
    *,
    halves: Halves | None = None,
) -> list[Estimate]:
    """Estimate mean q at the first step whose accuracy reaches each level.

    An interval is from the halves that reach the level.

    Args:
        protocol: The protocol with its settings.
        score: Score of each sample after each step, ``(N, S)``.
        mass: Mass that each step newly includes, ``(N, S)``.
        levels: Levels of accuracy.
        resamples: Number of half-samples.
        seed: Seed of the draws.
        halves: Which samples are in each half; by default samples are drawn one by one.

    Returns:
        One estimate per level; nan for levels that are not reached.
    """
    usable = _usable(protocol, score, mass)
    values, amounts = (torch.from_numpy(part[usable].astype(float)) for part in (score, mass))
    compute = partial(protocol.at_levels, levels, values, amounts)
    if len(values) < 2:
        values_at = compute(torch.ones(1, len(values)))[0].tolist()
        return [Estimate.of(value, np.empty(0)) for value in values_at]
    if halves is None:
        halves = Halves.draw(len(score), resamples, seed)
    whole, drawn = halves.take(usable).estimates(compute)
    values_at = whole.tolist()
    of_halves = drawn.numpy()
    return [
        Estimate.of(value, around_estimate(value, column, len(values), protocol.range))
        for value, column in zip(values_at, of_halves.T, strict=True)
    ]


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
    undecided = undecided_steps(finite, protocol.eps)
    accuracy = finite.mean(0)
    ends = [int(first_reached(accuracy, level)) + 1 for level in levels]
    return [(end, int(undecided[:end].sum())) for end in ends]


def _usable(protocol: Soundness, score: np.ndarray, mass: np.ndarray) -> np.ndarray:  # (N,) bool
    return (
        np.isfinite(score).all(1)
        & np.isfinite(mass).all(1)
        & ((mass.sum(1) > 0) | (protocol.compat is not None))
    )
