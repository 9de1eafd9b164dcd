"""Soundness (Li et al. 2024): how much of what a map includes is predictive, from what each step includes and what it gains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Compat = Literal["soco"]
GATE = 0.04  # soco decides nothing up to this accuracy
TINY = 1e-6  # soco adds it to denominators
ROUNDING = (
    1e-6  # of accuracies: one more sample of a hundred is a gain of 0.01, whatever its last digit
)


def relative(maps: Tensor) -> Tensor:  # (B, H, W) -> same, in [0, 1]
    """The positive part over its maximum; zero where there is none."""
    positive = maps.clamp(min=0)
    largest = positive.flatten(1).amax(1)[:, None, None]
    return torch.where(largest > 0, positive / largest, 0.0)


def included_mass(
    values: Tensor, ranks: Tensor, counts: Sequence[int]
) -> Tensor:  # (B, H, W), (B, H, W) -> (B, S) float64
    """What each step includes that the one before did not, where the pixels of the first `counts` ranks are included."""
    along = (
        torch.zeros_like(values, dtype=torch.float64)
        .flatten(1)
        .scatter_(1, ranks.flatten(1), values.double().flatten(1))
    )
    total = torch.nn.functional.pad(along.cumsum(1), (1, 0))
    return total[:, torch.as_tensor(counts, device=values.device)].diff(dim=1, prepend=total[:, :1])


def false_steps(
    score: Tensor, eps: float = 0.01, compat: Compat | None = None, gate: float | None = None
) -> Tensor:  # (..., S) -> bool
    """Where the score (the accuracy, or that of a sample) gains less than eps, so that what was included counts as false.

    gate: nothing is decided up to this accuracy. compat=soco: a gain of eps is too little as well, and the gate of accuracies is 0.04.
    """
    score = score.double()
    gain = score.diff(dim=-1, prepend=torch.zeros_like(score[..., :1]))
    if compat == "soco":
        return (gain <= eps + ROUNDING) & (score > (GATE if gate is None else gate) + ROUNDING)
    return (gain < eps - ROUNDING) & (score > (-torch.inf if gate is None else gate) + ROUNDING)


def soundness(
    accuracy: Tensor,
    mass: Tensor,
    eps: float = 0.01,
    compat: Compat | None = None,
    *,
    gate: float | None = None,
) -> Tensor:
    """The share of the included mass that is not false, q (N, S) float64, after every step; nan where nothing is included.

    accuracy: (S,) of the data set, so that one decision is made for all samples, or (N, S) scores of each sample that decide for it alone.
    mass: (N, S), what a step newly includes.
    gate: up to this accuracy nothing is false; by default there is none (compat=soco: 0.04 for the accuracy of the data set).
    compat: soco as its code: decisions count from the next step on, a gain of eps is too little, and q is 0 where nothing is included.
    """
    if accuracy.ndim == 2 and gate is None:
        gate = -torch.inf
    mass = mass.double()
    false = (mass * false_steps(accuracy, eps, compat, gate)).cumsum(1)
    included = mass.cumsum(1)
    if compat == "soco":
        return (included - torch.nn.functional.pad(false, (1, 0))[:, :-1]) / (included + TINY)
    return torch.where(included > 0, 1 - false / included, torch.nan)


def first_reached(accuracy: Tensor, level: float) -> Tensor:  # (..., S) -> (...,) int64
    """The first step at which the accuracy is at least the level; -1 where it never is."""
    reached = accuracy.double() >= level - ROUNDING
    return torch.where(reached.any(-1), reached.to(torch.uint8).argmax(-1), -1)


def drawn_soundness(
    score: Tensor,
    mass: Tensor,
    weights: Tensor,
    levels: Sequence[float],
    eps: float = 0.01,
    compat: Compat | None = None,
    gate: float | None = None,
    *,
    each: bool = False,
) -> Tensor:  # (N, S), (N, S), (R, N) -> (R, L)
    """Soundness at levels for every draw of weighted samples, with all decisions made anew; nan where a draw does not reach the level.

    each: every sample decides for itself, rather than the accuracy for all.

    The mean of q after step k is 1 − Σ_j≤k false_j · mean(mass_j / included_k): a product of matrices for every k that some draw stops at.
    """
    score, mass, weights = (
        score.double(),
        mass.double(),
        weights.double() / weights.double().sum(1, keepdim=True),
    )
    accuracy = weights @ score
    at = torch.stack([first_reached(accuracy, level) for level in levels], 1)
    if each:
        q = weights @ soundness(score, mass, eps, compat, gate=gate)
        return torch.where(at >= 0, q.gather(1, at.clamp(min=0)), torch.nan)
    found = torch.full(at.shape, torch.nan, dtype=torch.float64)
    false = false_steps(accuracy, eps, compat, gate).double()
    for k in sorted(set(at[at >= 0].tolist())):
        draws = (at == k).any(1).nonzero()[:, 0]
        q = _drawn_after(k, mass, weights[draws], false[draws], compat)
        found[draws] = torch.where(at[draws] == k, q[:, None], found[draws])
    return found


def drawn_points(
    score: Tensor,
    mass: Tensor,
    weights: Tensor,
    eps: float = 0.01,
    compat: Compat | None = None,
    gate: float | None = None,
    *,
    each: bool = False,
) -> Tensor:  # (N, S), (N, S), (R, N) -> (R, S, 2)
    """The accuracy (or the mean score) and the mean q after every step, for every draw of samples, with all decisions made anew."""
    score, mass, weights = (
        score.double(),
        mass.double(),
        weights.double() / weights.double().sum(1, keepdim=True),
    )
    accuracy = weights @ score
    if each:
        return torch.stack([accuracy, weights @ soundness(score, mass, eps, compat, gate=gate)], 2)
    false = false_steps(accuracy, eps, compat, gate).double()
    return torch.stack(
        [
            accuracy,
            torch.stack(
                [_drawn_after(k, mass, weights, false, compat) for k in range(mass.shape[1])], 1
            ),
        ],
        2,
    )


def _drawn_after(
    k: int, mass: Tensor, weights: Tensor, false: Tensor, compat: Compat | None
) -> Tensor:  # (N, S), (R, N), (R, S) -> (R,)
    """The mean q after step k; weights sum to 1."""
    included = mass[:, : k + 1].sum(1)
    until, total = (k, included + TINY) if compat else (k + 1, included)
    lost = (weights @ (mass[:, :until] / total[:, None]) * false[:, :until]).sum(1)
    return weights @ (included / total) - lost
