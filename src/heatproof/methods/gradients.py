"""Gradients, gradients times input, and their integrals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heatproof.baselines import Baseline, BaselineName
from heatproof.errors import HeatproofError
from heatproof.methods.base import method, noisy
from heatproof.models.batch import LayerBatch
from heatproof.models.model import Model
from heatproof.tensor.batching import blocks
from heatproof.tensor.noise import Rng
from heatproof.tensor.scores import ScoreName


@method(
    "saliency",
    family="gradient",
    paper="Simonyan et al. 2014",
    signed=False,
    reduce="abs_sum",
    needs=("gradient",),
)
def saliency(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    batch: LayerBatch,
    score: ScoreName = "logit",
) -> Tensor:
    """The gradient of the target's score; absolute value after summing the channels."""
    return batch.gradient(score)


@method("ixg", family="gradient", paper="Shrikumar et al. 2016", needs=("gradient",))
def ixg(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    batch: LayerBatch,
    score: ScoreName = "logit",
) -> Tensor:
    """Input × gradient."""
    return x * batch.gradient(score)


Steps = Annotated[int, Field(ge=1)]
Rule = Literal["gauss", "trapezoid"]


def _steps(arguments: Mapping[str, Any]) -> tuple[int, int]:
    return 0, arguments["steps"]


@method("ig", family="gradient", paper="Sundararajan et al. 2017", needs=("gradient",), cost=_steps)
def ig(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    steps: Steps = 50,
    baseline: BaselineName = "zero",
    baseline_prepared: Mapping[str, Tensor] | None = None,
    rule: Rule = "gauss",
    score: ScoreName = "logit",
) -> Tensor:
    """Integrated gradients along the straight line from a baseline.

    Args:
        model: The model to explain at its input.
        x: Its input, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        rng: The samples' noise, for the baseline.
        steps: The number of gradients per image.
        baseline: Where the line starts; at layers other than the input it is zero.
        baseline_prepared: What the baseline has prepared, if it prepares.
        rule: How to integrate: ``gauss`` (Gauss–Legendre) or ``trapezoid``.
        score: What to explain of the target: ``logit``, ``softmax`` or ``logprob``.
    """
    start = Baseline.parse(baseline)
    if model.start_layer != "input" and start.label != "zero":
        raise HeatproofError(
            f"ig at layer {model.start_layer} starts from zero features; "
            f"baseline={baseline} is for images"
        )
    filled = start.fill(x, model, rng, prepared=baseline_prepared)
    return integrated_gradients(model, x, filled, target, steps, rule, score)


@method(
    "ig-u",
    family="gradient",
    paper="Hesse et al. 2024",
    needs=("gradient",),
    cost=_steps,
    stochastic=True,
)
def ig_u(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    steps: Steps = 50,
    rule: Rule = "gauss",
    score: ScoreName = "logit",
) -> Tensor:
    """Integrated gradients from one image of U(-1, 1) noise, the same for all samples."""
    start = 2 * rng.once("ig-u", x.shape[1:]).to(x) - 1
    return integrated_gradients(model, x, start.expand_as(x), target, steps, rule, score)


def integrated_gradients(
    model: Model, x: Tensor, start: Tensor, target: Tensor, steps: int, rule: str, score: str
) -> Tensor:
    """Compute (x − x0) Σ_k w_k ∇f(x0 + α_k (x − x0)), all nodes of all samples batched.

    Args:
        model: The model to explain at its input.
        x: Its input, ``(B, C, h, w)``.
        start: The start of the line x0, of the shape of x.
        target: Class indices of shape ``(B,)``.
        steps: The number of nodes.
        rule: ``gauss`` or ``trapezoid``.
        score: The name of the score.

    Returns:
        Attributions of the shape of x.

    Raises:
        HeatproofError: If the trapezoid rule has fewer than two steps.
    """
    if rule == "trapezoid" and steps < 2:
        raise HeatproofError("ig(rule=trapezoid) needs at least 2 steps, the two ends of the line")
    ones = [1] * (x.ndim - 1)
    alpha, weight = (torch.from_numpy(v).to(x).reshape(-1, *ones) for v in _nodes(steps, rule))
    path = model.passes.to_layout(x - start)
    total = x.new_zeros(())
    starts_at_zero = start.stride(0) == 0 and not start[:1].any()
    for sample, node in model.passes.chunks(len(x), steps):
        parts = blocks(sample, node, steps)
        points = torch.empty_like(path[:1].expand(len(sample), *x.shape[1:]))
        for part in parts:
            torch.mul(path[part.samples, None], alpha[part.variants], out=part.select(points))
            if not starts_at_zero:
                part.select(points).add_(start[part.samples, None])
        gradient = model.gradient(points, target[sample.to(x.device)], score=score).gradient
        if not total.ndim:
            # Laid out in memory as gradients are.
            total = torch.zeros_like(gradient[:1].expand_as(x))
        for part in parts:
            for weighted in part.select(gradient).mul_(weight[part.variants]).unbind(1):
                total[part.samples] += weighted
    return path * total


def _nodes(steps: int, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights on [0, 1]."""
    if rule == "gauss":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        return (1 + nodes) / 2, weights / 2
    weights = np.full(steps, 1 / (steps - 1))
    weights[[0, -1]] /= 2
    return np.linspace(0, 1, steps), weights


# Noise is 15 % of the range from black to white, within what Smilkov et al. recommend. The papers'
# own numbers of copies and levels are in `methods/groups.py`.
noisy("ixg-sg", "ixg", paper="Smilkov et al. 2017", kind="mean", version=2)
noisy("ig-sg", "ig", paper="Smilkov et al. 2017", kind="mean", version=2)
noisy("ig-sq", "ig", paper="Hooker et al. 2019", kind="sq", version=2)
noisy("ig-var", "ig", paper="Adebayo et al. 2018", kind="var", version=2)
noisy("smoothgrad", "saliency", paper="Smilkov et al. 2017", n=50, kind="mean", version=2)
noisy("squaregrad", "saliency", paper="Hooker et al. 2019", n=50, kind="sq", version=2)
noisy("vargrad", "saliency", paper="Adebayo et al. 2018", n=50, kind="var", version=2)
