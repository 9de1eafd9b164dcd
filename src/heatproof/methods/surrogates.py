"""Attributions of the cells of a grid over the image, from scores with cells removed.

Linear surrogates (LIME), Shapley values, indices of variance and of dependence.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from heatproof.baselines import BaselineName
from heatproof.errors import HeatproofError
from heatproof.methods.perturbation import (
    Compat,
    Count,
    baseline_fill,
    clean_scores,
    masked_scores,
    perturbation,
)
from heatproof.models.model import Model
from heatproof.tensor.batching import map_rows
from heatproof.tensor.noise import Rng
from heatproof.tensor.resample import cubic, nearest
from heatproof.tensor.scores import ScoreName

CELLS_PER_SIDE = 8
Cells = Annotated[int, Field(ge=2, le=64)] | None  # along a side; None: 8, or fewer if x is smaller


def cells_per_side(x: Tensor, cells: int | None) -> int:
    """Return the number of cells along a side of the grid over x.

    Raises:
        HeatproofError: If there are more cells than positions.
    """
    smallest = min(x.shape[2:])
    if cells and cells > smallest:
        raise HeatproofError(
            f"cells={cells}: a map of {x.shape[2]}×{x.shape[3]} has at most {smallest} along a side"
        )
    if smallest < 2:
        raise HeatproofError(
            f"a map of {x.shape[2]}×{x.shape[3]} cannot be divided into cells; "
            "choose an earlier layer"
        )
    return cells or min(CELLS_PER_SIDE, smallest)


def spread(values: Tensor, x: Tensor) -> Tensor:  # (n, cells²) -> (n, H, W)
    """Give every position the value of its cell."""
    cells = round(values.shape[1] ** 0.5)
    down, along = (nearest(length, cells).to(values.device) for length in x.shape[2:])
    return values.reshape(-1, cells, cells)[:, down[:, None], along]


def cell_scores(
    model: Model,
    x: Tensor,
    target: Tensor,
    masks: Tensor,
    rng: Rng,
    baseline: str,
    score: str,
    prepared: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Compute the score of every sample with the cells that each mask keeps.

    Args:
        model: The model.
        x: Its input, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        masks: How much of each cell is kept, ``(N, cells²)`` in [0, 1].
        rng: The samples' noise, for the baseline.
        baseline: What removed pixels become.
        score: The name of the score.
        prepared: What the baseline has prepared, if it prepares.

    Returns:
        Scores of shape ``(B, N)``, in double precision.
    """
    kept = masks.to(x)
    fill = baseline_fill(model, x, baseline, rng, prepared)

    def keep(mask: Tensor) -> Tensor:
        return spread(kept[mask], x)

    return masked_scores(model, x, target, len(masks), keep, score=score, fill=fill)


# Linear surrogates


@perturbation(
    "lime",
    paper="Ribeiro et al. 2016",
    cost=lambda arguments: (arguments["masks"], 0),
    stochastic=True,
)
def lime(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    masks: Count = 1000,
    cells: Cells = None,
    alpha: Annotated[float, Field(ge=0)] = 1.0,
    width: Annotated[float, Field(gt=0)] = 0.25,
    baseline: BaselineName = "zero",
    baseline_prepared: Mapping[str, Tensor] | None = None,
    score: ScoreName = "logit",
) -> Tensor:
    """Coefficients of a linear model of the score, fitted around the image on random masks.

    As in the authors' code for images, half of the cells are kept, and the first mask keeps all. A
    mask's weight is √exp(−d²/width²) with its cosine distance d from all ones; the intercept of the
    ridge regression is free. All samples have the same masks.

    Args:
        model: The model to explain at its input.
        x: Its input, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        rng: The noise that masks are drawn from.
        masks: The number of masks.
        cells: The number of cells along a side; by default 8.
        alpha: The penalty of the ridge regression.
        width: The width of the kernel.
        baseline: What removed pixels become.
        baseline_prepared: What the baseline has prepared, if it prepares.
        score: What to explain of the target: ``logit``, ``softmax`` or ``logprob``.
    """
    kept = rng.once("lime", (masks, cells_per_side(x, cells) ** 2)).to(x.device) < 0.5
    kept[0] = True
    scores = cell_scores(model, x, target, kept, rng, baseline, score, baseline_prepared)
    distance = 1 - kept.double().mean(1).sqrt()
    return spread(ridge(kept, scores, torch.exp(-((distance / width) ** 2) / 2), alpha), x)


def ridge(
    masks: Tensor, scores: Tensor, weights: Tensor, alpha: float
) -> Tensor:  # (N, d), (B, N), (N,) -> (B, d)
    """Solve weighted least squares with a free intercept, once for all samples."""
    z = masks.double()
    fractions = weights / weights.sum()
    z = z - fractions @ z
    weighted = z.T * weights
    penalty = alpha * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    solution = torch.linalg.pinv(weighted @ z + penalty, hermitian=True) @ weighted
    return map_rows(lambda y: solution @ (y - fractions @ y), scores)


def _coalitions(arguments: Mapping[str, Any]) -> tuple[int, int]:
    return min(arguments["masks"], 2 ** ((arguments["cells"] or CELLS_PER_SIDE) ** 2) - 2) + 2, 0


@perturbation("kernelshap", paper="Lundberg & Lee 2017", cost=_coalitions, stochastic=True)
def kernelshap(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    masks: Count = 1000,
    cells: Cells = None,
    baseline: BaselineName = "zero",
    baseline_prepared: Mapping[str, Tensor] | None = None,
    score: ScoreName = "logit",
) -> Tensor:
    """Shapley values of cells by weighted least squares.

    They sum to the difference between the image's score and the baseline's. Coalitions are drawn by
    the Shapley kernel, each with its complement, the same for all samples. Where ``masks`` are
    enough for all coalitions, all are taken, and the values are exact.

    Args:
        model: The model to explain at its input.
        x: Its input, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        rng: The noise that coalitions are drawn from.
        masks: The number of coalitions.
        cells: The number of cells along a side; by default 8.
        baseline: What removed pixels become.
        baseline_prepared: What the baseline has prepared, if it prepares.
        score: What to explain of the target: ``logit``, ``softmax`` or ``logprob``.
    """
    players = cells_per_side(x, cells) ** 2
    every = players < 32 and 2**players - 2 <= masks
    if not every and masks < 2 * players:
        raise HeatproofError(
            f"kernelshap: {players} cells need at least {2 * players} masks; got masks={masks}"
        )
    if every:
        coalitions, weights = all_coalitions(players)
    else:
        coalitions, weights = drawn_coalitions(rng, players, masks)
    coalitions = torch.cat([coalitions, torch.zeros(1, players, dtype=torch.bool)]).to(x.device)
    scores = cell_scores(model, x, target, coalitions, rng, baseline, score, baseline_prepared)
    empty = scores[:, -1:]
    total = clean_scores(model, x, target, score)[:, None] - empty
    return spread(
        efficient(coalitions[:-1], scores[:, :-1] - empty, weights.to(x.device), total), x
    )


def shapley_kernel(players: int) -> Tensor:
    """Return the weight of all coalitions of each size from 1, ``(players − 1,)``."""
    sizes = torch.arange(1, players, dtype=torch.float64)
    weight = 1 / (sizes * (players - sizes))
    return weight / weight.sum()


def all_coalitions(players: int) -> tuple[Tensor, Tensor]:  # (2^d − 2, d) bool, (2^d − 2,)
    """Return all coalitions and their weights."""
    coalitions = (torch.arange(1, 2**players - 1)[:, None] >> torch.arange(players)) % 2 == 1
    sizes = coalitions.sum(1)
    return coalitions, (shapley_kernel(players) / torch.bincount(sizes)[1:])[sizes - 1]


def drawn_coalitions(
    rng: Rng, players: int, count: int
) -> tuple[Tensor, Tensor]:  # (N, d) bool, (N,)
    """Draw sizes by the kernel and members at random; every second one is a complement."""
    pairs = -(-count // 2)
    borders = shapley_kernel(players).cumsum(0)[:-1]
    sizes = 1 + torch.searchsorted(
        borders, rng.once("kernelshap sizes", (pairs,)).cpu().double(), right=True
    )
    ranks = rng.once("kernelshap members", (pairs, players)).cpu().argsort(1).argsort(1)
    half = ranks < sizes[:, None]
    coalitions = torch.stack([half, ~half], 1).flatten(0, 1)[:count]
    return coalitions, torch.ones(count, dtype=torch.float64)


def efficient(
    masks: Tensor, gains: Tensor, weights: Tensor, total: Tensor
) -> Tensor:  # (N, d), (B, N), (N,), (B, 1) -> (B, d)
    """Solve weighted least squares without intercept, for coefficients that sum to ``total``."""
    z = masks.double()
    weighted = z.T * weights
    inverse = torch.linalg.pinv(weighted @ z, hermitian=True)
    solution = inverse @ weighted
    toward = inverse.sum(1)
    free = map_rows(lambda y: solution @ y, gains)
    return free + (total - free.sum(1, keepdim=True)) * toward / toward.sum()


# Sensitivity


def _designs(arguments: Mapping[str, Any]) -> tuple[int, int]:
    return arguments["designs"] * ((arguments["cells"] or CELLS_PER_SIDE) ** 2 + 1), 0


@perturbation("sobol", paper="Fel et al. 2021", signed=False, cost=_designs)
def sobol(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    designs: Annotated[int, Field(ge=2)] = 32,
    cells: Cells = None,
    baseline: BaselineName = "zero",
    baseline_prepared: Mapping[str, Tensor] | None = None,
    score: ScoreName = "logit",
    compat: Compat = None,
) -> Tensor:
    """The fraction of the score's variance that a cell takes part in.

    This is Jansen's total index over a Sobol sequence of masks in [0, 1], enlarged to the map
    bicubically, with negative values set to zero.

    Args:
        model: The model to explain at its input.
        x: Its input, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        rng: The samples' noise, for the baseline.
        designs: The number of masks per replicated design.
        cells: The number of cells along a side; by default 8.
        baseline: What removed pixels become.
        baseline_prepared: What the baseline has prepared, if it prepares.
        score: What to explain of the target: ``logit``, ``softmax`` or ``logprob``.
        compat: ``xplique`` keeps the negative values that enlarging gives.
    """
    designed = replicated_designs(cells_per_side(x, cells) ** 2, designs)
    scores = cell_scores(model, x, target, designed, rng, baseline, score, baseline_prepared)
    return enlarged(total_indices(scores, designs), x, compat)


def sobol_sequence(count: int, dimensions: int) -> Tensor:  # (count, dimensions) in (0, 1)
    """Return a Sobol sequence, not scrambled, without its first point, the origin."""
    from scipy.stats import qmc  # takes a second to import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a power of two is better balanced
        return torch.from_numpy(qmc.Sobol(dimensions, scramble=False).fast_forward(1).random(count))


def replicated_designs(dimensions: int, designs: int) -> Tensor:  # ((d + 1) · designs, d)
    """Return A, then for every i a copy of A with the i-th column of B (B itself is not needed)."""
    a, b = sobol_sequence(designs, 2 * dimensions).chunk(2, 1)
    return torch.cat(
        [a, torch.where(torch.eye(dimensions, dtype=torch.bool)[:, None], b, a).flatten(0, 1)]
    )


def total_indices(scores: Tensor, designs: int) -> Tensor:  # (B, (d + 1) · designs) -> (B, d)
    """Compute Σ (f_A − f_Ci)² / (2 N var f_A)."""
    whole = scores[:, None, :designs]
    changed = scores[:, designs:].reshape(len(scores), -1, designs)
    return ((whole - changed) ** 2).mean(2) / (2 * whole.var(2))


@perturbation(
    "hsic",
    paper="Novello et al. 2022",
    signed=False,
    cost=lambda arguments: (arguments["masks"], 0),
)
def hsic(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    masks: Annotated[int, Field(ge=2)] = 1000,
    cells: Cells = None,
    baseline: BaselineName = "zero",
    baseline_prepared: Mapping[str, Tensor] | None = None,
    score: ScoreName = "logit",
    compat: Compat = None,
) -> Tensor:
    """How much the score depends on whether a cell is kept, by the Hilbert–Schmidt criterion.

    The masks are a binary Sobol sequence. The output kernel's width is the median distance between
    two different scores. Values are enlarged to the map bicubically; negative ones become zero.

    Args:
        model: The model to explain at its input.
        x: Its input, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        rng: The samples' noise, for the baseline.
        masks: The number of masks.
        cells: The number of cells along a side; by default 8.
        baseline: What removed pixels become.
        baseline_prepared: What the baseline has prepared, if it prepares.
        score: What to explain of the target: ``logit``, ``softmax`` or ``logprob``.
        compat: ``xplique`` takes the median score as the width, although a logit's zero is
            arbitrary (there is no map where it is 0), and keeps negative values.
    """
    kept = sobol_sequence(masks, cells_per_side(x, cells) ** 2) > 0.5
    scores = cell_scores(model, x, target, kept, rng, baseline, score, baseline_prepared)
    return enlarged(dependence(kept.to(x.device), scores, compat), x, compat)


def dependence(
    masks: Tensor, scores: Tensor, compat: str | None = None
) -> Tensor:  # (N, d) bool, (B, N) -> (B, d)
    """Compute tr(K H L H) / N.

    The kernel of a cell is 3/2 where two masks agree and 1/2 elsewhere, that is 1 + s sᵀ/2 with
    s = ±1. H removes constants, so they are left out.
    """
    sign = 2 * masks.double() - 1
    sign = sign - sign.mean(0)
    return map_rows(
        lambda y: (sign * (output_kernel(y, compat) @ sign)).sum(0) / (2 * len(sign)), scores
    )


def output_kernel(scores: Tensor, compat: str | None = None) -> Tensor:  # (N,) -> (N, N)
    """Compute exp(−d²/2w²) − 1, which is exactly 0 where scores are equal."""
    distances = (scores[:, None] - scores).abs()
    if not distances.any():
        return distances
    width = scores.quantile(0.5) if compat == "xplique" else distances[distances > 0].median()
    return torch.expm1(-((distances / width) ** 2) / 2)


def enlarged(values: Tensor, x: Tensor, compat: str | None) -> Tensor:  # (B, cells²) -> (B, H, W)
    """Enlarge the values of cells to a map, bicubically."""
    cells = round(values.shape[1] ** 0.5)
    down, along = (cubic(length, cells).to(values) for length in x.shape[2:])
    maps = map_rows(lambda grid: down @ grid @ along.T, values.reshape(-1, cells, cells))
    return maps if compat == "xplique" else maps.clamp(min=0)
