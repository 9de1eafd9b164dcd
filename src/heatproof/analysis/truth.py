"""Soundness and completeness where the truth is known (Li et al. 2024, Fig. 6).

Points are drawn from N(0, I), the label is the sign of their sum, and so is the model: the truth about a feature is what it adds to the
right side, or nothing. Half of that is removed, or half of the rest is given something, again and again.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heatproof.protocols.soundness import Soundness
from heatproof.tensor.curves import ranks_of, tie_order
from heatproof.tensor.noise import generator, sample_ids
from heatproof.tensor.soundness import included_mass, relative

KINDS = ("truth", "removed", "introduced")
LEVELS = tuple(round(0.05 * k, 2) for k in range(10, 21))  # half of the labels are right by chance
THRESHOLDS = tuple(k / 10 for k in range(9, 0, -1))
HALF = 0.5
Fill = Literal[
    "mean", "draw"
]  # what a missing feature is replaced by: 0, or another draw of N(0, 1)


class Trials(NamedTuple):
    """By kind of map, one row a trial; the truth is the same in all."""

    completeness: dict[str, np.ndarray]  # (T, thresholds)
    soundness: dict[str, np.ndarray]  # (T, levels); nan where the accuracy does not reach the level


def trials(
    count: int = 1000, points: int = 1000, features: int = 200, fill: Fill = "mean", seed: int = 0
) -> Trials:
    """Both metrics of the truth and of changed maps, in random trials."""
    draw = generator(seed, "known truth")
    x = torch.from_numpy(draw.standard_normal((points, features)))
    empty = (
        torch.from_numpy(draw.standard_normal((points, features)))
        if fill == "draw"
        else torch.zeros_like(x)
    )
    side = x.sum(1).sign()
    truth = relative((side[:, None] * x)[:, None])[:, 0]
    ties = tie_order(sample_ids(None, points), seed, features)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {kind: [] for kind in KINDS}
    for trial in range(count):
        chance = torch.from_numpy(generator(seed, "trial", trial).random((2, points, features)))
        changed = {
            "truth": truth,
            "removed": truth.masked_fill(chance[0] < HALF, 0),
            "introduced": torch.where((truth == 0) & (chance[0] < HALF), chance[1], truth),
        }
        for kind in KINDS[trial > 0 :]:
            found[kind].append(
                (
                    _completeness(changed[kind], x, empty, side),
                    _soundness(changed[kind], x, empty, side, ties),
                )
            )
    found["truth"] *= count
    first, second = (
        {kind: torch.stack([pair[i] for pair in found[kind]]).numpy() for kind in KINDS}
        for i in (0, 1)
    )
    return Trials(first, second)


def _completeness(
    maps: Tensor, x: Tensor, empty: Tensor, side: Tensor
) -> Tensor:  # (N, D) each, (N,) -> (thresholds,)
    """Accuracy that is lost without the features above a threshold; all labels are right with all features."""
    left = torch.stack([torch.where(maps > share, empty, x).sum(1) for share in THRESHOLDS])
    return 1 - (left.sign() == side).double().mean(1)


def _soundness(
    maps: Tensor, x: Tensor, empty: Tensor, side: Tensor, ties: Tensor
) -> Tensor:  # -> (levels,)
    protocol, features = Soundness(), x.shape[1]
    ranks = ranks_of(maps[:, None], ties)
    counts = [features - int(features * share + 1e-6) for share in protocol.missing]
    gain = torch.empty_like(x).scatter_(1, ranks[:, 0], x - empty)
    sums = empty.sum(1, keepdim=True) + gain.cumsum(1)[:, [n - 1 for n in counts]]
    score = (sums.sign() == side[:, None]).double()
    return protocol.at_levels(
        LEVELS, score, included_mass(maps[:, None], ranks, counts), torch.ones(1, len(x))
    )[0]
