"""Soundness (Li et al. 2024): how much of the attribution that a map includes is predictive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

Compat = Literal["soco"]
SOCO_ACCURACY_GATE = 0.04  # up to it, no step counts as false
SOCO_EPSILON = 1e-6  # soco adds it to denominators
BLOCK_SUMS_IN_MEMORY = 2**23
ACCURACY_TOLERANCE = 1e-6  # one more sample of 100 is a gain of 0.01


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
        gate = SOCO_ACCURACY_GATE if compat == "soco" else -torch.inf
    if compat == "soco":
        return (gain <= eps + ACCURACY_TOLERANCE) & (score > gate + ACCURACY_TOLERANCE)
    return (gain < eps - ACCURACY_TOLERANCE) & (score > gate + ACCURACY_TOLERANCE)


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
        gate = SOCO_ACCURACY_GATE if compat == "soco" else -torch.inf
    level = accuracy.double()
    if accuracy.ndim == 2:
        level = level.mean(0)
    false = false_steps(accuracy, eps, compat, gate=-torch.inf) & (
        level > gate + ACCURACY_TOLERANCE
    )
    mass = mass.double()
    false = (mass * false).cumsum(1)
    included = mass.cumsum(1)
    if compat == "soco":
        return (included - torch.nn.functional.pad(false, (1, 0))[:, :-1]) / (
            included + SOCO_EPSILON
        )
    return torch.where(included > 0, 1 - false / included, torch.nan)


def first_reached(accuracy: Tensor, level: float) -> Tensor:  # (..., S) -> (...,) int64
    """Find the first step whose accuracy is at least ``level``; -1 if there is none."""
    reached = accuracy.double() >= level - ACCURACY_TOLERANCE
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
    blocks: Tensor | None = None,
) -> Tensor:
    """Compute soundness at levels of accuracy for draws of the samples.

    The mean of q after step k is 1 − Σ_j≤k false_j · mean(mass_j / included_k), a matrix product
    for each k at which a draw reaches a level.

    Args:
        score: Score of each sample after each step, ``(N, S)``.
        mass: Mass that each step newly includes, ``(N, S)``.
        weights: Weight of each sample in each draw, ``(R, N)``, or of each block, ``(R, G)``.
        levels: The L levels of accuracy.
        eps: Smallest gain of a step that is not false.
        compat: See `soundness`.
        gate: See `soundness`.
        per_sample: Whether each sample's own score decides, instead of the accuracy of the draw.
        blocks: The block of each sample, ``(N,)``, if weights are those of blocks. All sums over
            samples are then computed once per block.

    Returns:
        Soundness ``(R, L)`` of float64; nan where a draw does not reach a level.
    """
    grouped = None if blocks is None else Blocks(blocks, weights.shape[1])
    weights = weights.double()
    if grouped is None:
        total = weights.sum(1)
        weights = weights / total[:, None]
        total = torch.ones_like(total)
    else:  # weights are large and the same for all methods: what they are multiplied with is scaled
        total = weights @ grouped.sizes
    if grouped is None or per_sample:
        score = score.double()
        mass = mass.double()
    accuracy = weights @ (score if grouped is None else grouped.sum(score)) / total[:, None]
    reached = torch.stack([first_reached(accuracy, level) for level in levels], 1)
    if per_sample:
        quality = soundness(score, mass, eps, compat, gate=gate)
        q = weights @ (quality if grouped is None else grouped.sum(quality)) / total[:, None]
        return torch.where(reached >= 0, q.gather(1, reached.clamp(min=0)), torch.nan)
    values = torch.full(reached.shape, torch.nan, dtype=torch.float64)
    false = false_steps(accuracy, eps, compat, gate).double()
    steps = sorted(set(reached[reached >= 0].tolist()))
    sums = None if grouped is None else _block_sums(grouped, mass, steps, compat)
    varies = (false != false[:1]).any(0)  # steps that are false in some draws, but not in all
    always = (false[0] > 0) & ~varies
    for k in steps:
        draws = (reached == k).any(1).nonzero()[:, 0]
        if sums is None:
            q = _drawn_after(k, mass, weights[draws], false[draws], compat)
        else:
            kept, lost = next(sums)
            until = lost.shape[1]
            some = varies[:until]
            left = kept - lost[:, always[:until]].sum(1)
            drawn = weights if len(draws) == len(weights) else weights[draws]
            missing = drawn @ lost[:, some] * false[draws, :until][:, some]
            q = ((drawn @ left - missing.sum(1)) / total[draws]).clamp(0, 1)
        values[draws] = torch.where(reached[draws] == k, q[:, None], values[draws])
    return values


class Blocks:
    """Samples that are drawn together in blocks of nearly the same size.

    Args:
        blocks: The block of each sample, ``(N,)``.
        count: The number of blocks G.

    Attributes:
        sizes: Number of samples in each block, ``(G,)`` of float64.
    """

    def __init__(self, blocks: Tensor, count: int):
        sizes = torch.bincount(blocks, minlength=count)
        self.sizes = sizes.double()
        order = blocks.argsort(stable=True)
        within = torch.arange(len(blocks)) - (sizes.cumsum(0) - sizes)[blocks[order]]
        # The samples of each block; len(blocks) where a block has fewer than the largest.
        self._samples = torch.full((count, int(sizes.max())), len(blocks))
        self._samples[blocks[order], within] = order

    def of(self, values: Tensor) -> Tensor:  # (N, S) -> (G, P, S)
        """Return the values of the samples of each block, with zeros for those it lacks."""
        if self._samples.numel() > len(values):
            values = torch.cat([values, torch.zeros_like(values[:1])])
        return values[self._samples.flatten()].view(*self._samples.shape, -1)

    def sum(self, values: Tensor) -> Tensor:  # (N, S) -> (G, S)
        """Sum up the values of each block."""
        return self.of(values).sum(1, dtype=torch.float64)


def _block_sums(
    blocks: Blocks, mass: Tensor, steps: Sequence[int], compat: Compat | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what `_drawn_after` needs of each block after each of some steps k.

    Yields:
        The sum of included / total over the samples of a block, ``(G,)``, and that of
        mass_j / total for every step j that may be false, ``(G, k + 1)``, or ``(G, k)`` for soco.
    """
    if not steps:
        return
    mass = mass[:, : steps[-1] + 1].double()
    included = mass.cumsum(1)[:, list(steps)]
    total = included + SOCO_EPSILON if compat else included
    kept = blocks.sum(included / total)
    each = blocks.of(mass).transpose(1, 2)
    inverse = blocks.of(1 / total)
    size = max(1, BLOCK_SUMS_IN_MEMORY // (each.shape[0] * each.shape[1]))
    for begin in range(0, len(steps), size):
        products = each @ inverse[..., begin : begin + size]  # (G, S, size)
        for i, k in enumerate(steps[begin : begin + size]):
            yield kept[:, begin + i], products[:, : k if compat else k + 1, i]


def _drawn_after(
    k: int, mass: Tensor, weights: Tensor, false: Tensor, compat: Compat | None
) -> Tensor:  # (N, S), (R, N), (R, S) -> (R,)
    """Return the mean q after step k; the weights of a draw sum to 1."""
    included = mass[:, : k + 1].sum(1)
    if compat:
        until = k
        total = included + SOCO_EPSILON
    else:
        until = k + 1
        total = included
    lost = (weights @ (mass[:, :until] / total[:, None]) * false[:, :until]).sum(1)
    return (weights @ (included / total) - lost).clamp(0, 1)  # beyond by rounding alone
