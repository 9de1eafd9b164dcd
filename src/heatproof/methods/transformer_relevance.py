"""AttnLRP (Achtibat et al. 2024): relevance through attention, norms and activations.

Relevance is written as input times a multiplier, R = x · m, and the backward carries m: the rules
are modified gradients, and no value is divided by an activation that may be zero. The multiplier of
the target's logit is 1, so its relevance is the logit itself.

- Softmax: the first order of its Taylor series, R_i = x_i (R_i − s_i Σ R), is its gradient.
- Products of two values that depend on the image share the relevance equally (uniform rule).
- Norms and activations pass relevance on (identity rule): a norm is linear once its deviation is
  taken for a constant, and the multiplier of an activation is its output divided by its input.
- Convolutions and fully connected layers follow the γ rule; for γ = 0, which is the ε rule with a
  vanishing ε, that is their gradient.

Biases, also those of norms, and other constants keep their part, and a softmax takes some, so that
a map does not sum to the logit. Where none of these take part, it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heatproof.methods.base import method, reason_not_applicable
from heatproof.methods.relevance import Affine
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

_INSTEAD = "it is for transformers and convolutional networks; ixg works on any model"
Softmax = Literal["taylor", "constant"]
Gamma = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def scaled(x: Tensor, factor: float) -> Tensor:
    """Return x, whose multiplier is scaled on the way back."""
    return step(x.detach(), lambda m: (m * factor,), (), x)


def gamma_multiplier(layer: Affine, x: Tensor, z: Tensor, m: Tensor, gamma: float) -> Tensor:
    """Compute the multiplier of a layer's input by the γ rule.

    Contributions of the output's sign count 1 + γ times, as in `relevance.gamma_rule`. With
    W⁺ = (W + |W|)/2 that takes two products of each direction instead of four.

    Args:
        layer: z = W x + b.
        x: The input.
        z: The output.
        m: The multiplier of the output, of its shape.
        gamma: γ.
    """
    sizes = layer(x.abs(), layer.weight.abs())
    ups = (
        z - layer.along(layer.bias.clamp(max=0)) + layer.along(layer.bias.clamp(min=0)) + sizes
    ) / 2
    total = z + gamma * torch.where(z > 0, ups, z - ups)
    s = torch.where(z == 0, 0, m * z / torch.where(z == 0, 1, total))
    whole = layer.back(s, layer.weight, x)
    of_sizes = layer.back(s * z.sign(), layer.weight.abs(), x)
    return whole + gamma / 2 * (whole + x.sign() * of_sizes)


class Rules:
    """The rules by the names of operations.

    Args:
        gamma: γ of fully connected layers.
        conv_gamma: γ of convolutions.
        softmax: ``taylor``; or ``constant``: attention is a constant, as in CP-LRP.
    """

    def __init__(self, gamma: float, conv_gamma: float, softmax: Softmax):
        self.gamma = gamma
        self.conv_gamma = conv_gamma
        self.keeps_attention = softmax == "constant"
        self.table: dict[str, Rule] = {
            **dict.fromkeys(MOVES | _LINEAR, as_torch),
            **dict.fromkeys(ELEMENTWISE_ACTIVATIONS, activation),
            **dict.fromkeys(("mul", "multiply", "matmul", "bmm", "__matmul__"), product),
            **dict.fromkeys(("div", "true_divide"), quotient),
            **dict.fromkeys(("max_pool2d", "adaptive_max_pool2d"), as_torch),
            "linear": self.matrix,
            "conv2d": self.convolution,
            "softmax": self.softmax,
            "layer_norm": layer_norm,
            "normalize": unit_length,
            "batch_norm": batch_norm,
            "baddbmm": _no_rule,
            "scaled_dot_product_attention": self.attention,
        }

    def matrix(self, call: Call) -> Tensor:
        """Follow the γ rule of fully connected layers."""
        x, weight, bias = (call.argument(i, n) for i, n in enumerate(("input", "weight", "bias")))
        return self._affine(call, x, weight, bias, None, self.gamma)

    def convolution(self, call: Call) -> Tensor:
        """Follow the γ rule of convolutions."""
        names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        defaults = (None, None, None, 1, 0, 1, 1)
        x, weight, bias, *rest = (
            call.argument(i, n, d) for i, (n, d) in enumerate(zip(names, defaults, strict=True))
        )
        options = dict(zip(names[3:], rest, strict=True))
        if isinstance(options["padding"], str) and self.conv_gamma:
            raise NoRule(f"conv2d with padding={options['padding']}")
        return self._affine(call, x, weight, bias, options, self.conv_gamma)

    def _affine(
        self,
        call: Call,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        options: dict[str, Any] | None,
        gamma: float,
    ) -> Tensor:
        if weight.requires_grad:
            raise NoRule(f"{call.function.__name__} of a weight that depends on the image")
        if not gamma:
            return call.run()
        layer = Affine(weight, weight.new_zeros(len(weight)) if bias is None else bias, options)
        z = call.value()
        return step(z, lambda m, x, z: (gamma_multiplier(layer, x, z, m, gamma),), (x, z), x)

    def softmax(self, call: Call) -> Tensor:
        """Follow the Taylor series, or take the attention for a constant."""
        if not self.keeps_attention:
            return call.run()
        return call.value()

    def attention(self, call: Call) -> Tensor:
        """Write the product of queries, keys and values out, and follow the rules of its parts."""
        q, k, v = (call.argument(i, n) for i, n in enumerate(("query", "key", "value")))
        mask, dropout = call.argument(3, "attn_mask"), call.argument(4, "dropout_p", 0.0)
        scale = call.kwargs.get("scale") or 1 / math.sqrt(q.shape[-1])
        known = {"attn_mask", "dropout_p", "scale", "query", "key", "value", "is_causal"}
        if dropout or call.argument(5, "is_causal", False) or call.kwargs.keys() - known:
            raise NoRule("scaled_dot_product_attention with dropout or causal")
        if mask is not None:
            raise NoRule("scaled_dot_product_attention with a mask")
        scores = _half(q, k.mT, torch.matmul) * scale
        weights = scores.softmax(-1)
        return weights.detach() @ v if self.keeps_attention else _half(weights, v, torch.matmul)


# Operations of which every value is a weighted sum of the inputs.
_LINEAR = frozenset(("mean", "sum", "add", "sub", "__rsub__", "neg", "interpolate", "roll"))
_LINEAR |= {"avg_pool2d", "adaptive_avg_pool2d", "expand", "expand_as"}


def activation(call: Call) -> Tensor:
    """Pass relevance on: the multiplier of the input is that of the output times f(x) / x."""
    x = call.args[0]

    def back(m: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor]:
        at_zero = call.vjp(x, torch.ones_like(x))  # the limit of the ratio where f(0) = 0
        return (m * torch.where(x == 0, at_zero, y / torch.where(x == 0, 1, x)),)

    y = call.value()
    return step(y, back, (x, y), x)


def _half(a: Tensor, b: Tensor, function: Callable[..., Tensor]) -> Tensor:
    """Multiply two values that depend on the image: each gets half of the relevance."""
    return scaled(function(a, b), 0.5)


def product(call: Call) -> Tensor:
    """Share relevance equally between two factors; a constant factor leaves it all to the other."""
    if call.kwargs or len(call.args) != 2:
        raise NoRule(f"{call.function.__name__} with keywords")
    depend = [isinstance(factor, Tensor) and factor.requires_grad for factor in call.args]
    if all(depend):
        return scaled(call.run(), 0.5)
    out: Tensor = call.run()
    return out


def quotient(call: Call) -> Tensor:
    """Divide by a constant."""
    if isinstance(call.args[1], Tensor) and call.args[1].requires_grad:
        raise NoRule(call.function.__name__)
    out: Tensor = call.run()
    return out


def layer_norm(call: Call) -> Tensor:
    """Take the deviation for a constant."""
    x, shape, weight = (
        call.argument(i, name) for i, name in enumerate(("input", "normalized_shape", "weight"))
    )
    eps = call.argument(4, "eps", 1e-5)
    dims = tuple(range(-len(tuple(shape)), 0))
    deviation = (x.detach().var(dims, correction=0, keepdim=True) + eps).sqrt()

    def back(m: Tensor) -> tuple[Tensor]:
        arrived = (m if weight is None else m * weight.detach()) / deviation
        return (arrived - arrived.mean(dims, keepdim=True),)

    return step(call.value(), back, (), x)


def unit_length(call: Call) -> Tensor:
    """Take the length that a vector is divided by for a constant."""
    x: Tensor = call.args[0]
    names = {"p": 2.0, "dim": 1, "eps": 1e-12}
    p, dim, eps = (call.argument(i, n, d) for i, (n, d) in enumerate(names.items(), 1))
    length = x.detach().norm(p, dim, keepdim=True).clamp_min(eps)
    return step(call.value(), lambda m: (m / length,), (), x)


def batch_norm(call: Call) -> Tensor:
    """Run the norm as torch does, which is linear with running statistics."""
    if call.argument(1, "running_mean") is None or call.argument(5, "training", False):
        raise NoRule("batch_norm with the statistics of the batch")
    out: Tensor = call.run()
    return out


def _no_rule(call: Call) -> Tensor:
    raise NoRule(call.function.__name__)


def _logits(model: Model, x: Tensor, rules: Rules) -> Tensor:
    """Run the network with the rules; the head's derived logits are linear in its logits."""
    with (
        naming_missing_rules(model.module, "attnlrp", _INSTEAD),
        Intercept(rules.table) as seen,
    ):
        for part in model.passes.steps():
            if part.kind == "target":
                rules.gamma = 0.0
            x = seen.current(part.run(x))
        return seen.result(x)


@reason_not_applicable
def _why_no_rule(model: Model) -> None:
    """Check that every operation has a rule."""
    _logits(model, model.passes.zero_activation(), Rules(0.0, 0.0, "taylor"))


@method(
    "attnlrp",
    family="relevance",
    paper="Achtibat et al. 2024",
    needs=("rules",),
    cost=(0, 1),
    applies=_why_no_rule,
)
def attnlrp(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    gamma: Gamma = 0.05,
    conv_gamma: Gamma = 0.25,
    softmax: Softmax = "taylor",
) -> Tensor:
    """LRP with rules for softmax, products and norms; γ in linear layers; for transformers.

    ``softmax=constant`` sends no relevance through the attention weights, as CP-LRP (Ali et al.
    2022), which the authors' code uses for ViTs.

    Args:
        model: The model.
        x: Input or features of shape ``(B, …)``.
        target: Class indices of shape ``(B,)``.
        rng: Not used.
        gamma: γ of fully connected layers; 0: the ε rule.
        conv_gamma: γ of convolutions.
        softmax: The rule of the softmax.
    """

    def attribute(leaf: Tensor, goal: Tensor) -> Tensor:
        logits = _logits(model, leaf, Rules(gamma, conv_gamma, softmax))
        chosen = F.one_hot(goal, logits.shape[1]).to(logits)
        return leaf * torch.autograd.grad(logits, leaf, chosen)[0]

    return model.passes.attribute(x, target, attribute)
