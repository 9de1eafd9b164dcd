"""Soundness and completeness where the true attribution is known (Li et al. 2024, Fig. 6).

Points are drawn from N(0, I). Both the label and the model are the sign of their sum, so the true
attribution of a feature is its contribution to the label, or zero. Trials remove half of the true
attribution at random, or introduce attribution for half of the other features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heatproof.protocols.soundness import Soundness
from heatproof.tensor.curves import ranks_of, tie_order
from heatproof.tensor.noise import generator, sample_ids
from heatproof.tensor.soundness import included_mass, relative

KINDS = ("truth", "removed", "introduced")
LEVELS = tuple(round(0.05 * k, 2) for k in range(10, 21))  # chance level is one half
THRESHOLDS = tuple(k / 10 for k in range(9, 0, -1))
HALF = 0.5
Fill = Literal["mean", "draw"]  # a missing feature becomes 0, or another draw of N(0, 1)
FILLS: tuple[Fill, ...] = ("mean", "draw")


class Trials(NamedTuple):
    """Both metrics by kind of map, one row per trial; the truth is the same in all trials.

    Attributes:
        completeness: ``(T, thresholds)`` by kind.
        soundness: ``(T, levels)`` by kind; nan where the accuracy does not reach the level.
    """

    completeness: dict[str, np.ndarray]
    soundness: dict[str, np.ndarray]


def trials(
    count: int = 1000,
    points: int = 1000,
    features: int = 200,
    fill: Fill = "mean",
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Trials:
    """Compute completeness and soundness of the truth and of changed maps in random trials.

    Args:
        count: Number of trials.
        points: Number of points.
        features: Number of features per point.
        fill: What a missing feature is replaced by.
        seed: Seed of points and trials.
        progress: Called with 1 after every trial.

    Returns:
        Both metrics by kind of map.
    """
    draw = generator(seed, "known truth")
    x = torch.from_numpy(draw.standard_normal((points, features)))
    if fill == "draw":
        empty = torch.from_numpy(draw.standard_normal((points, features)))
    else:
        empty = torch.zeros_like(x)
    side = x.sum(1).sign()
    truth = relative((side[:, None] * x)[:, None])[:, 0]
    ties = tie_order(sample_ids(None, points), seed, features)
    completeness: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    soundness: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    for trial in range(count):
        chance = torch.from_numpy(generator(seed, "trial", trial).random((2, points, features)))
        changed = {
            "truth": truth,
            "removed": truth.masked_fill(chance[0] < HALF, 0),
            "introduced": torch.where((truth == 0) & (chance[0] < HALF), chance[1], truth),
        }
        for kind in KINDS[trial > 0 :]:
            maps = changed[kind]
            completeness[kind].append(_completeness(maps, x, empty, side))
            soundness[kind].append(_soundness(maps, x, empty, side, ties))
        if progress:
            progress(1)
    completeness["truth"] *= count
    soundness["truth"] *= count
    return Trials(_stacked(completeness), _stacked(soundness))


def _stacked(values: dict[str, list[Tensor]]) -> dict[str, np.ndarray]:
    return {kind: torch.stack(parts).numpy() for kind, parts in values.items()}


def _completeness(
    maps: Tensor, x: Tensor, empty: Tensor, side: Tensor
) -> Tensor:  # (N, D) each, (N,) -> (thresholds,)
    """Return the accuracy lost without the features above each threshold; it is 1 with all."""
    left = torch.stack([torch.where(maps > threshold, empty, x).sum(1) for threshold in THRESHOLDS])
    return 1 - (left.sign() == side).double().mean(1)


def _soundness(
    maps: Tensor, x: Tensor, empty: Tensor, side: Tensor, ties: Tensor
) -> Tensor:  # -> (levels,)
    protocol = Soundness()
    features = x.shape[1]
    ranks = ranks_of(maps[:, None], ties)
    counts = [features - int(features * fraction + 1e-6) for fraction in protocol.missing]
    gain = torch.empty_like(x).scatter_(1, ranks[:, 0], x - empty)
    sums = empty.sum(1, keepdim=True) + gain.cumsum(1)[:, [n - 1 for n in counts]]
    score = (sums.sign() == side[:, None]).double()
    mass = included_mass(maps[:, None], ranks, counts)
    return protocol.at_levels(LEVELS, score, mass, torch.ones(1, len(x)))[0]
