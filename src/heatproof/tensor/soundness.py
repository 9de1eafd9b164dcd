"""Soundness (Li et al. 2024): how much of the attribution that a map includes is predictive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Compat = Literal["soco"]
GATE = 0.04  # up to this accuracy, soco counts no step as false
TINY = 1e-6  # soco adds it to denominators
ROUNDING = 1e-6  # tolerance when accuracies are compared: one more sample of 100 is a gain of 0.01


def relative(maps: Tensor) -> Tensor:  # (B, H, W) -> same, in [0, 1]
    """Divide the positive part of each map by its maximum; zero where there is none."""
    positive = maps.clamp(min=0)
    largest = positive.flatten(1).amax(1)[:, None, None]
    return torch.where(largest > 0, positive / largest, 0.0)


def included_mass(values: Tensor, ranks: Tensor, counts: Sequence[int]) -> Tensor:
    """Sum the attribution that each step includes in addition to the step before.

    Args:
        values: Relative attribution ``(B, H, W)``.
        ranks: Ranks of the pixels ``(B, H, W)``, 0 for the most relevant.
        counts: Number of pixels that each of the S steps includes.

    Returns:
        Newly included mass ``(B, S)`` of float64.
    """
    by_rank = torch.zeros_like(values, dtype=torch.float64).flatten(1)
    by_rank = by_rank.scatter_(1, ranks.flatten(1), values.double().flatten(1))
    total = torch.nn.functional.pad(by_rank.cumsum(1), (1, 0))
    return total[:, torch.as_tensor(counts, device=values.device)].diff(dim=1, prepend=total[:, :1])


def false_steps(
    score: Tensor,
    eps: float = 0.01,
    compat: Compat | None = None,
    gate: float | None = None,
) -> Tensor:  # (..., S) -> bool
    """Find the steps that gain less than ``eps``, so that what they include counts as false.

    Args:
        score: Accuracies or scores of single samples, ``(..., S)``.
        eps: Smallest gain of a step that is not false.
        compat: With ``soco``, a gain of exactly ``eps`` is false too, and the default gate is 0.04.
        gate: Steps up to this score are never false.

    Returns:
        ``(..., S)`` of bool.
    """
    score = score.double()
    gain = score.diff(dim=-1, prepend=torch.zeros_like(score[..., :1]))
    if gate is None:
        gate = GATE if compat == "soco" else -torch.inf
    if compat == "soco":
        return (gain <= eps + ROUNDING) & (score > gate + ROUNDING)
    return (gain < eps - ROUNDING) & (score > gate + ROUNDING)


def soundness(
    accuracy: Tensor,
    mass: Tensor,
    eps: float = 0.01,
    compat: Compat | None = None,
    *,
    gate: float | None = None,
) -> Tensor:
    """Compute which fraction of the included mass is not false, after every step.

    Args:
        accuracy: Accuracy of the data set after each step, ``(S,)``, which decides for all
            samples; or scores of each sample, ``(N, S)``, which decide for that sample alone.
        mass: Mass that each step newly includes, ``(N, S)``.
        eps: Smallest gain of a step that is not false.
        compat: With ``soco``, as in the paper's code: decisions take effect from the next step on,
            a gain of exactly ``eps`` is false, and the result is 0 where nothing is included.
        gate: Steps up to this accuracy, or mean score of all samples, are never false. By default
            there is no gate; with ``compat="soco"`` it is 0.04.

    Returns:
        Fractions q ``(N, S)`` of float64; nan where nothing is included.
    """
    if gate is None:
        gate = GATE if compat == "soco" else -torch.inf
    level = accuracy.double()
    if accuracy.ndim == 2:
        level = level.mean(0)
    false = false_steps(accuracy, eps, compat, gate=-torch.inf) & (level > gate + ROUNDING)
    mass = mass.double()
    false = (mass * false).cumsum(1)
    included = mass.cumsum(1)
    if compat == "soco":
        return (included - torch.nn.functional.pad(false, (1, 0))[:, :-1]) / (included + TINY)
    return torch.where(included > 0, 1 - false / included, torch.nan)


def first_reached(accuracy: Tensor, level: float) -> Tensor:  # (..., S) -> (...,) int64
    """Find the first step whose accuracy is at least ``level``; -1 if there is none."""
    reached = accuracy.double() >= level - ROUNDING
    return torch.where(reached.any(-1), reached.to(torch.uint8).argmax(-1), -1)


def gain_errors(score: Tensor, eps: float) -> Tensor:  # (N, S) -> (S,) float64
    """Compute the standard error of the accuracy that each step gains.

    A step at which no sample changes is given the error that it has if its true gain is ``eps``.
    """
    change = score.double().diff(dim=1, prepend=torch.zeros_like(score[:, :1]).double())
    return ((change**2).mean(0).clamp(min=eps) / len(score)).sqrt()


def undecided_steps(score: Tensor, eps: float, errors: float = 2.0) -> Tensor:
    """Find the steps that may be false or not: their gain is within its errors of ``eps``.

    Args:
        score: Score of each sample after each step, ``(N, S)``.
        eps: Smallest gain of a step that is not false.
        errors: Number of standard errors.

    Returns:
        ``(S,)`` of bool.
    """
    accuracy = score.double().mean(0)
    gain = accuracy.diff(prepend=torch.zeros_like(accuracy[:1]))
    return (gain - eps).abs() < errors * gain_errors(score, eps)


def drawn_soundness(
    score: Tensor,
    mass: Tensor,
    weights: Tensor,
    levels: Sequence[float],
    eps: float = 0.01,
    compat: Compat | None = None,
    gate: float | None = None,
    *,
    per_sample: bool = False,
) -> Tensor:
    """Compute soundness at levels of accuracy for draws of the samples.

    The mean of q after step k is 1 − Σ_j≤k false_j · mean(mass_j / included_k), a matrix product
    for each k at which a draw reaches a level.

    Args:
        score: Score of each sample after each step, ``(N, S)``.
        mass: Mass that each step newly includes, ``(N, S)``.
        weights: Weight of each sample in each draw, ``(R, N)``.
        levels: The L levels of accuracy.
        eps: Smallest gain of a step that is not false.
        compat: See `soundness`.
        gate: See `soundness`.
        per_sample: Whether each sample's own score decides, instead of the accuracy of the draw.

    Returns:
        Soundness ``(R, L)`` of float64; nan where a draw does not reach a level.
    """
    score, mass, weights = _in_double(score, mass, weights)
    accuracy = weights @ score
    reached = torch.stack([first_reached(accuracy, level) for level in levels], 1)
    if per_sample:
        q = weights @ soundness(score, mass, eps, compat, gate=gate)
        return torch.where(reached >= 0, q.gather(1, reached.clamp(min=0)), torch.nan)
    values = torch.full(reached.shape, torch.nan, dtype=torch.float64)
    false = false_steps(accuracy, eps, compat, gate).double()
    for k in sorted(set(reached[reached >= 0].tolist())):
        draws = (reached == k).any(1).nonzero()[:, 0]
        q = _drawn_after(k, mass, weights[draws], false[draws], compat)
        values[draws] = torch.where(reached[draws] == k, q[:, None], values[draws])
    return values


def _in_double(score: Tensor, mass: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Convert to double precision and scale the weights of each draw to a sum of 1."""
    weights = weights.double()
    return score.double(), mass.double(), weights / weights.sum(1, keepdim=True)


def _drawn_after(
    k: int, mass: Tensor, weights: Tensor, false: Tensor, compat: Compat | None
) -> Tensor:  # (N, S), (R, N), (R, S) -> (R,)
    """Return the mean q after step k; the weights of a draw sum to 1."""
    included = mass[:, : k + 1].sum(1)
    if compat:
        until = k
        total = included + TINY
    else:
        until = k + 1
        total = included
    lost = (weights @ (mass[:, :until] / total[:, None]) * false[:, :until]).sum(1)
    return (weights @ (included / total) - lost).clamp(0, 1)  # beyond by rounding alone
