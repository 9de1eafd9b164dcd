"""DeepSHAP with one reference of zeros, which is DeepLIFT's rescale rule: every nonlinearity passes on Δoutput / Δinput."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from heatproof.errors import NotApplicable
from heatproof.methods.base import method, remembered
from heatproof.methods.relevance import norm_factors
from heatproof.models.intercept import (
    ACTIVATIONS,
    MOVES,
    Call,
    Intercept,
    NoRule,
    Rule,
    plainly,
    refusing,
    step,
)
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng
from heatproof.tensor.scores import ScoreName

FLAT = 1e-10  # below this difference of inputs the derivative stands for the slope, as in Captum
_INSTEAD = "ig(steps=50) works on any model"


def slope(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor, derivative: Tensor) -> Tensor:
    """(y − y0) / (x − x0)."""
    difference = x - x0
    flat = difference.abs() < FLAT
    return torch.where(flat, derivative, (y - y0) / difference.masked_fill(flat, 1))


# The last row of every tensor in the network belongs to the reference.


def activation(call: Call) -> Tensor:
    def back(arrived: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor]:
        return (arrived * slope(x, x[-1:], y, y[-1:], call.pulled(x, torch.ones_like(y))),)

    y: Tensor = call.value()
    return step(y, back, (call.args[0], y), call.args[0])


def max_pool(call: Call) -> Tensor:
    """What the image's winner has over the reference's output is the winner's, what is lacking is the reference's winner's."""
    y, winner = Call(call.function, call.args, {**call.kwargs, "return_indices": True}).value()

    def back(arrived: Tensor, x: Tensor, y: Tensor, winner: Tensor) -> tuple[Tensor]:
        top = torch.maximum(y, y[-1:])
        gradient = _scattered(x, (winner, arrived))
        share = _scattered(
            x,
            (winner, arrived * (top - y[-1:])),
            (winner[-1:].expand_as(winner), arrived * (y - top)),
        )
        return (slope(x, x[-1:], share, torch.zeros_like(share), gradient),)

    return step(y, back, (call.args[0], y, winner), call.args[0])


def _scattered(x: Tensor, *parts: tuple[Tensor, Tensor]) -> Tensor:
    flat = torch.zeros_like(x).flatten(2)
    for places, values in parts:
        flat.scatter_add_(2, places.flatten(2), values.flatten(2))
    return flat.view_as(x)


def norm(call: Call) -> Any:
    """A factor for each channel; torch's own backward would keep the input as well."""
    found = norm_factors(call)
    if found is None:
        return call.run()
    factor = found[0].reshape(-1, *[1] * (call.args[0].ndim - 2))
    return step(call.value(), lambda arrived: (arrived * factor,), (), call.args[0])


def product(call: Call) -> Any:
    """Linear where only one factor depends on the image."""
    if all(isinstance(factor, Tensor) and factor.requires_grad for factor in call.args[:2]):
        raise NoRule(call.function.__name__)
    return call.run()


def quotient(call: Call) -> Any:
    if isinstance(call.args[1], Tensor) and call.args[1].requires_grad:
        raise NoRule(call.function.__name__)
    return call.run()


_LINEAR = frozenset(
    (
        "conv2d",
        "linear",
        "avg_pool2d",
        "adaptive_avg_pool2d",
        "mean",
        "sum",
        "add",
        "sub",
        "__rsub__",
        "neg",
        "interpolate",
    )
)
_MAX_POOLS = ("max_pool2d", "adaptive_max_pool2d")
RULES: dict[str, Rule] = {
    **dict.fromkeys(MOVES | _LINEAR, plainly),
    **dict.fromkeys(ACTIVATIONS | {"exp", "log", "sqrt", "square"}, activation),
    **dict.fromkeys(_MAX_POOLS, max_pool),
    "batch_norm": norm,
    **dict.fromkeys(["mul", "multiply", "matmul", "mm", "bmm", "addmm"], product),
    **dict.fromkeys(["div", "true_divide"], quotient),
}
COMPAT: dict[str | None, dict[str, Rule]] = {
    None: RULES,
    "captum": RULES
    | dict.fromkeys(
        _MAX_POOLS, plainly
    ),  # behind a ReLU, its rule for max pools is lost (0.7, 0.9)
}


def _logits(
    model: Model, x: Tensor, rules: Mapping[str, Rule] = RULES
) -> Tensor:  # (B, C, h, w) -> (B + 1, K), the last of zeros
    with refusing(model.module, "deepshap", _INSTEAD), Intercept(rules) as seen:
        return seen.result(model(torch.cat([x, torch.zeros_like(x[:1])])))


@remembered
def _no_rule(model: Model) -> str:
    try:
        with model.passes.frozen_eval():
            _logits(model, model.passes.zero_activation())
    except NotApplicable as error:
        return str(error)
    return ""


def start(logits: Tensor, target: Tensor, score: str) -> Tensor:  # (B + 1, K), (B,) -> (B, K)
    """The multipliers of the logits: softmax is taken apart into exponentials, a sum and a logarithm."""
    z, z0 = logits[:-1], logits[-1:]
    chosen = F.one_hot(target, z.shape[1]).to(z)
    if score == "logit":
        return chosen
    peak = torch.maximum(z, z0).amax(1, keepdim=True)
    e, e0 = (z - peak).exp(), (z0 - peak).exp()
    total, total0 = e.sum(1, keepdim=True), e0.sum(1, keepdim=True)
    of_log = chosen - slope(total, total0, total.log(), total0.log(), 1 / total) * slope(
        z, z0, e, e0, e
    )
    if score == "logprob":
        return of_log
    log, log0 = (
        (v * chosen).sum(1, keepdim=True)
        for v in (z - peak - total.log(), z0 - peak - total0.log())
    )
    return of_log * slope(log, log0, log.exp(), log0.exp(), log.exp())


@method(
    "deepshap",
    family="relevance",
    paper="Lundberg & Lee 2017",
    needs=("rules",),
    cost=(0, 1),
    applies=_no_rule,
)
def deepshap(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    score: ScoreName = "logit",
    compat: Literal["captum"] | None = None,
) -> Tensor:
    """Input × slopes between the image and a reference of zeros (DeepLIFT, rescale); sums to the difference of their scores.

    `compat=captum`: max pools pass on the gradient alone, as in that library.
    """

    def attribute(leaf: Tensor, goal: Tensor) -> Tensor:
        logits = _logits(model, leaf, COMPAT[compat])
        weights = F.pad(start(logits.detach(), goal, score), (0, 0, 0, 1))
        return leaf * torch.autograd.grad(logits, leaf, weights)[0]

    return model.passes.attribute(x, target, attribute)
