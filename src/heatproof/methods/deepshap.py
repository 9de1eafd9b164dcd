"""DeepSHAP with one reference of zeros, which is DeepLIFT's rescale rule.

Every nonlinearity passes on Δoutput / Δinput.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from heatproof.errors import NotApplicable
from heatproof.methods.base import method, reason_not_applicable
from heatproof.methods.relevance import norm_factors
from heatproof.models.intercept import (
    ELEMENTWISE_ACTIVATIONS,
    MOVES,
    Call,
    Intercept,
    NoRule,
    Rule,
    as_torch,
    naming_missing_rules,
    step,
)
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng
from heatproof.tensor.scores import HeadName, ScoreName

FLAT_DIFFERENCE = 1e-10  # below it the derivative stands for the slope, as in Captum
_INSTEAD = "ig(steps=50) works on any model"


def slope(x: Tensor, x0: Tensor, y: Tensor, y0: Tensor, derivative: Tensor) -> Tensor:
    """Compute (y − y0) / (x − x0), or the derivative where x is too close to x0."""
    difference = x - x0
    flat = difference.abs() < FLAT_DIFFERENCE
    return torch.where(flat, derivative, (y - y0) / difference.masked_fill(flat, 1))


# The last row of every tensor in the network belongs to the reference.


def activation(call: Call) -> Tensor:
    """The rescale rule, element by element."""

    def back(arrived: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor]:
        return (arrived * slope(x, x[-1:], y, y[-1:], call.vjp(x, torch.ones_like(y))),)

    y: Tensor = call.value()
    return step(y, back, (call.args[0], y), call.args[0])


def max_pool(call: Call) -> Tensor:
    """Attribute a pool's gain over the reference to its maximum, a loss to the reference's one."""
    y, winner = Call(call.function, call.args, {**call.kwargs, "return_indices": True}).value()

    def back(arrived: Tensor, x: Tensor, y: Tensor, winner: Tensor) -> tuple[Tensor]:
        top = torch.maximum(y, y[-1:])
        gradient = _scattered(x, (winner, arrived))
        gain = (winner, arrived * (top - y[-1:]))
        loss = (winner[-1:].expand_as(winner), arrived * (y - top))
        part = _scattered(x, gain, loss)
        return (slope(x, x[-1:], part, torch.zeros_like(part), gradient),)

    return step(y, back, (call.args[0], y, winner), call.args[0])


def _scattered(x: Tensor, *parts: tuple[Tensor, Tensor]) -> Tensor:
    """Add values at positions of a tensor of zeros, of the shape of x."""
    flat = torch.zeros_like(x).flatten(2)
    for positions, values in parts:
        flat.scatter_add_(2, positions.flatten(2), values.flatten(2))
    return flat.view_as(x)


def norm(call: Call) -> Any:
    """Multiply by a factor per channel; torch's own backward would keep the input as well."""
    factors = norm_factors(call)
    if factors is None:
        return call.run()
    factor = factors[0].reshape(-1, *[1] * (call.args[0].ndim - 2))
    return step(call.value(), lambda arrived: (arrived * factor,), (), call.args[0])


def product(call: Call) -> Any:
    """Run a product as torch does, which is linear where only one factor depends on the image."""
    if all(isinstance(factor, Tensor) and factor.requires_grad for factor in call.args[:2]):
        raise NoRule(call.function.__name__)
    return call.run()


def quotient(call: Call) -> Any:
    """Run a quotient as torch does, which is linear where the divisor is constant."""
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
    **dict.fromkeys(MOVES | _LINEAR, as_torch),
    **dict.fromkeys(ELEMENTWISE_ACTIVATIONS | {"exp", "log", "sqrt", "square"}, activation),
    **dict.fromkeys(_MAX_POOLS, max_pool),
    "batch_norm": norm,
    **dict.fromkeys(["mul", "multiply", "matmul", "mm", "bmm", "addmm"], product),
    **dict.fromkeys(["div", "true_divide"], quotient),
}
COMPAT: dict[str | None, dict[str, Rule]] = {
    None: RULES,
    # Behind a ReLU, Captum loses its rule for max pools (0.7, 0.9).
    "captum": RULES | dict.fromkeys(_MAX_POOLS, as_torch),
}


def _logits(
    model: Model, x: Tensor, rules: Mapping[str, Rule] = RULES
) -> Tensor:  # (B, C, h, w) -> (B + 1, K), the last of zeros
    with naming_missing_rules(model.module, "deepshap", _INSTEAD), Intercept(rules) as seen:
        return seen.result(model(torch.cat([x, torch.zeros_like(x[:1])])))


@reason_not_applicable
def _why_no_rule(model: Model) -> None:
    """Check that every operation has a rule."""
    _logits(model, model.passes.zero_activation())


def logit_multipliers(
    logits: Tensor, target: Tensor, score: str, head: HeadName = "softmax"
) -> Tensor:  # (B + 1, K), (B,) -> (B, K)
    """Compute the multipliers of the logits for a score.

    Softmax is taken apart into exponentials, a sum and a logarithm. A sigmoid of the target's logit
    is a function of one number, with a single slope.
    """
    z = logits[:-1]
    z0 = logits[-1:]
    chosen = F.one_hot(target, z.shape[1]).to(z)
    if score == "logit":
        return chosen
    if head != "softmax":
        sigmoid, sigmoid0 = z.sigmoid(), z0.sigmoid()
        if score == "softmax":
            return chosen * slope(z, z0, sigmoid, sigmoid0, sigmoid * (1 - sigmoid))
        return chosen * slope(z, z0, F.logsigmoid(z), F.logsigmoid(z0), 1 - sigmoid)
    peak = torch.maximum(z, z0).amax(1, keepdim=True)
    e = (z - peak).exp()
    e0 = (z0 - peak).exp()
    total = e.sum(1, keepdim=True)
    total0 = e0.sum(1, keepdim=True)
    log_multipliers = chosen - slope(total, total0, total.log(), total0.log(), 1 / total) * slope(
        z, z0, e, e0, e
    )
    if score == "logprob":
        return log_multipliers
    log, log0 = (
        (v * chosen).sum(1, keepdim=True)
        for v in (z - peak - total.log(), z0 - peak - total0.log())
    )
    return log_multipliers * slope(log, log0, log.exp(), log0.exp(), log.exp())


@method(
    "deepshap",
    family="relevance",
    paper="Lundberg & Lee 2017",
    needs=("rules",),
    cost=(0, 1),
    applies=_why_no_rule,
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
    """Input × slopes between the image and a reference of zeros (DeepLIFT, rescale).

    The map sums to the difference of their scores. With ``compat=captum``, max pools pass on the
    gradient alone, as in that library.
    """

    head = model.head if model.derived is None else model.derived.head(model.head)
    if score != "logit" and model.derived is not None and head == "softmax":
        raise NotApplicable(f"it has no rule for the {score} of a group; write score=logit")

    def attribute(leaf: Tensor, goal: Tensor) -> Tensor:
        logits = _logits(model, leaf, COMPAT[compat])
        weights = F.pad(logit_multipliers(logits.detach(), goal, score, head), (0, 0, 0, 1))
        return leaf * torch.autograd.grad(logits, leaf, weights)[0]

    return model.passes.attribute(x, target, attribute)
