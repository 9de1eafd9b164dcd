"""Layer-wise relevance propagation (Bach et al. 2015; Montavon et al. 2019), for networks of convolutions, ReLUs, pools and residual sums.

The relevance of the target's logit is 1, or the logit itself (`start=logit`). From 1, a negative logit turns the map around: what has made
it negative comes out positive. On a grid of images, where a class's mean logit is often negative, `start=logit` is what is meant. Every
operation shares what arrives at its outputs among its inputs. Convolutions follow one rule and fully connected layers another, by what they
do: a fully connected layer that slides as a convolution is still one. Biases keep their share, so sums shrink or grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.nn.grad import conv2d_input

from heatproof.errors import NotApplicable
from heatproof.methods.base import method, remembered
from heatproof.models.intercept import (
    ACTIVATIONS,
    MOVES,
    Call,
    Intercept,
    NoRule,
    plainly,
    refusing,
    step,
)
from heatproof.models.intercept import Rule as Operation
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng

TINY = 1e-6  # Zennit's stabiliser
_INSTEAD = "it is for convolutions, ReLUs, pools and sums; ixg works on any model"


@dataclass(frozen=True)
class Affine:
    """z = W x + b: a convolution or a matrix, and what is merged into it."""

    weight: Tensor
    bias: Tensor  # (outputs,)
    options: Mapping[str, Any] | None  # of the convolution; None: a matrix

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return (
            F.linear(x, weight, bias)
            if self.options is None
            else F.conv2d(x, weight, bias, **self.options)
        )

    def back(self, s: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """Wᵀ s, of the shape of x."""
        if self.options is None:
            return s @ weight
        found: Tensor = conv2d_input(list(x.shape), weight, s, **self.options)  # type: ignore[no-untyped-call]
        return found

    def along(self, values: Tensor) -> Tensor:
        """One value an output, as it stands against z."""
        return values if self.options is None else values[:, None, None]

    def then(self, scale: Tensor, shift: Tensor) -> Affine:
        """With z · scale + shift behind it, both (outputs,)."""
        weight = self.weight * scale.reshape(-1, *[1] * (self.weight.ndim - 1))
        return replace(self, weight=weight, bias=self.bias * scale + shift)


Share = Callable[
    [Affine, Tensor, Tensor, Tensor], Tensor
]  # (layer, x, z, relevance of z) -> relevance of x


def stable(z: Tensor, epsilon: float = TINY) -> Tensor:
    """z + ε sign(z), with sign(0) = 1."""
    return z + torch.where(z < 0, -epsilon, epsilon)


def epsilon_rule(epsilon: float) -> Share:
    return lambda layer, x, z, relevance: (
        x * layer.back(relevance / stable(z, epsilon), layer.weight, x)
    )


def positive(layer: Affine, x: Tensor) -> Tensor:
    """x⁺W⁺ + x⁻W⁻."""
    found = layer(x.clamp(min=0), layer.weight.clamp(min=0))
    return found + layer(x.clamp(max=0), layer.weight.clamp(max=0)) if (x < 0).any() else found


def shared(layer: Affine, x: Tensor, s: Tensor, more: Tensor, less: Tensor) -> Tensor:
    """x⁺ · moreᵀ s + x⁻ · lessᵀ s."""
    if not s.any():
        return torch.zeros_like(x)
    found = x.clamp(min=0) * layer.back(s, more, x)
    return found + x.clamp(max=0) * layer.back(s, less, x) if (x < 0).any() else found


def z_plus(layer: Affine, x: Tensor, z: Tensor, relevance: Tensor) -> Tensor:
    """By positive contributions alone."""
    s = relevance / stable(positive(layer, x) + layer.along(layer.bias.clamp(min=0)))
    return shared(layer, x, s, layer.weight.clamp(min=0), layer.weight.clamp(max=0))


def gamma_rule(gamma: float) -> Share:
    """Contributions that agree with the output's sign count 1 + γ times; an output of zero shares nothing."""
    if math.isinf(gamma):
        return z_plus

    def share(layer: Affine, x: Tensor, z: Tensor, relevance: Tensor) -> Tensor:
        ups = positive(layer, x) + layer.along(layer.bias.clamp(min=0))
        total = z + gamma * torch.where(z > 0, ups, z - ups)  # W x + b is the sum of ups and downs
        s = torch.where(z == 0, 0, relevance / stable(total))
        more, less = (
            layer.weight + gamma * part
            for part in (layer.weight.clamp(min=0), layer.weight.clamp(max=0))
        )
        return shared(layer, x, s.where(z > 0, 0), more, less) + shared(
            layer, x, s.where(z < 0, 0), less, more
        )

    return share


def box_rule(low: Tensor, high: Tensor) -> Share:
    """z^B, for pixels between low and high, (C, 1, 1)."""

    def share(layer: Affine, x: Tensor, z: Tensor, relevance: Tensor) -> Tensor:
        ups, downs = layer.weight.clamp(min=0), layer.weight.clamp(max=0)
        lowest = layer(low.expand_as(x[:1]), ups, layer.bias.clamp(min=0))
        highest = layer(high.expand_as(x[:1]), downs, layer.bias.clamp(max=0))
        s = relevance / stable(z - lowest - highest)
        whole, up = layer.back(s, layer.weight, x), layer.back(s, ups, x)
        return x * whole - low * up - high * (whole - up)

    return share


@dataclass(frozen=True)
class Rules:
    convolution: Share
    connected: Share
    image: Share | None = None  # for convolutions that see the image itself


class Propagation:
    """A run of the network whose backward carries relevance. What follows a layer's z by a factor and a shift is merged into the layer."""

    def __init__(self, model: Model, rules: Rules):
        self.model, self.rules = model, rules
        self.kind = ""
        self.start: Tensor | None = None
        self.boxed = False  # a convolution has seen the image
        self.last: tuple[Affine, Tensor, Tensor] | None = (
            None  # the layer just met, its input, its output
        )
        self.operations: dict[str, Operation] = {
            **dict.fromkeys(MOVES | {"max_pool2d", "adaptive_max_pool2d"}, plainly),
            **dict.fromkeys(ACTIVATIONS, passed),
            **dict.fromkeys(["avg_pool2d", "adaptive_avg_pool2d", "mean", "sum"], in_proportion),
            "conv2d": self.convolution,
            "linear": self.matrix,
            "batch_norm": self.norm,
            "add": self.sum,
            "mul": self.product,
        }

    def logits(self, x: Tensor) -> Tensor:
        self.start = x
        with refusing(self.model.module, "lrp", _INSTEAD), Intercept(self.operations) as seen:
            for kind, run in self.model.passes.steps():
                self.kind = kind
                x = seen.current(run(x))
                self.start = x if kind == "crop" else self.start  # a part of the image is the image
            x = seen.result(x)
        self.start = self.last = None
        return x

    def convolution(self, call: Call) -> Tensor:
        x, weight, bias = (
            call.argument(i, name) for i, name in enumerate(("input", "weight", "bias"))
        )
        stride, padding, dilation, groups = (
            call.argument(i, name, default)
            for i, (name, default) in enumerate(
                (("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1)), 3
            )
        )
        if isinstance(padding, str):
            around = [
                d * (k - 1) * (padding == "same")
                for d, k in zip(_pair(dilation), weight.shape[2:], strict=True)
            ]
            if any(n % 2 for n in around):
                raise NoRule("conv2d with padding=same and an even kernel")
            padding = [n // 2 for n in around]
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return self.met(x, Affine(weight, _bias(weight, bias), options), call.value())

    def matrix(self, call: Call) -> Tensor:
        x, weight, bias = (
            call.argument(i, name) for i, name in enumerate(("input", "weight", "bias"))
        )
        return self.met(x, Affine(weight, _bias(weight, bias), None), call.value())

    def met(self, x: Tensor, layer: Affine, z: Tensor) -> Tensor:
        rule = self._rule(x, layer)
        out = step(z, lambda relevance, x, z: (rule(layer, x, z, relevance),), (x, z), x)
        self.last = (layer, x, out)
        return out

    def _rule(self, x: Tensor, layer: Affine) -> Share:
        convolves = layer.options is not None
        if self.rules.image and convolves:
            self.boxed |= x is self.start
            if not self.boxed:
                raise NoRule(
                    "conv2d of a changed image; hp.Model(mean=…, std=…) is the place to normalise it"
                )
            if x is self.start:
                return self.rules.image
        return self.rules.convolution if convolves and self.kind != "head" else self.rules.connected

    def norm(self, call: Call) -> Tensor:
        found = norm_factors(call)
        if found is None:
            raise NoRule("batch_norm with the statistics of the batch")
        return self.merged(
            call,
            lambda layer: found if layer.options or call.args[0].ndim == 2 else None,
            self.norm_alone,
        )

    def norm_alone(self, call: Call) -> Tensor:
        """Where the explained layer lies between a convolution and its norm, its relevance is that of the two together."""
        if call.args[0] is not self.start or self.model.start_layer == "input":
            raise NoRule("batch_norm behind no convolution")
        return passed(call)

    def merged(
        self,
        call: Call,
        change: Callable[[Affine], tuple[Tensor, Tensor] | None],
        otherwise: Operation,
    ) -> Tensor:
        """As part of the layer before it, if that is where its operand is from and a factor and a shift for each output is what it does."""
        if self.last is None or self.last[2] is not call.args[0]:
            return otherwise(call)
        layer, x, _ = self.last
        changed = change(layer)
        return (
            otherwise(call) if changed is None else self.met(x, layer.then(*changed), call.value())
        )

    def sum(self, call: Call) -> Tensor:
        call, other, depends = _operands(call)
        if depends:
            return in_proportions(call.args[0], other, call.value())
        return self.merged(call, lambda layer: _factor_and_shift(layer, 1, other), in_proportion)

    def product(self, call: Call) -> Tensor:
        call, other, depends = _operands(call)
        if depends:
            raise NoRule("mul")
        return self.merged(call, lambda layer: _factor_and_shift(layer, other, 0), passed)


def norm_factors(call: Call) -> tuple[Tensor, Tensor] | None:
    """The factor and the shift of each channel, (outputs,), of a batch norm; None where they are the batch's own."""
    mean, variance, weight, bias = (
        call.argument(i, n)
        for i, n in enumerate(("running_mean", "running_var", "weight", "bias"), 1)
    )
    if mean is None or call.argument(5, "training", False):
        return None
    scale: Tensor = (variance + call.argument(7, "eps", 1e-5)).rsqrt() * (
        1 if weight is None else weight
    )
    return scale, (0 if bias is None else bias) - mean * scale


def _operands(call: Call) -> tuple[Call, Any, bool]:
    """What depends on the input as the first operand; the second, and whether that does too."""
    if call.kwargs or len(call.args) != 2:
        raise NoRule(f"{call.function.__name__} with keywords")
    a, b = call.args
    a, b = (a, b) if isinstance(a, Tensor) and a.requires_grad else (b, a)
    return Call(call.function, (a, b), {}), b, isinstance(b, Tensor) and b.requires_grad


def _factor_and_shift(layer: Affine, *values: Any) -> tuple[Tensor, Tensor] | None:
    """Numbers, or tensors with one number for each output, as (outputs,)."""
    each = layer.along(layer.bias)
    found = [torch.as_tensor(value).to(each) for value in values]
    if any(
        v.numel() > 1 and (v.numel() != each.numel() or v.shape[-each.ndim :] != each.shape)
        for v in found
    ):
        return None
    factor, shift = (v.reshape(-1).expand_as(layer.bias) for v in found)
    return factor, shift


def _bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight.new_zeros(len(weight)) if bias is None else bias


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def passed(call: Call) -> Tensor:
    """Activations and factors hand on what arrives."""
    return step(call.value(), lambda relevance: (relevance,), (), call.args[0])


def in_proportion(call: Call) -> Tensor:
    """Averages and shifts, by what each input adds."""

    def back(relevance: Tensor, x: Tensor, z: Tensor) -> tuple[Tensor]:
        return (x * call.pulled(x, relevance / stable(z)),)

    z = call.value()
    return step(z, back, (call.args[0], z), call.args[0])


def in_proportions(a: Tensor, b: Tensor, z: Tensor) -> Tensor:
    """Residual sums, by what each branch adds."""
    if a.shape != b.shape:
        raise NoRule("add of different shapes")

    def back(relevance: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        s = relevance / stable(a + b)  # added again, so that it need not be kept
        return a * s, b * s

    return step(z, back, (a, b), a, b)


def relevance(
    model: Model,
    x: Tensor,
    target: Tensor,
    convolution: Share,
    epsilon: float,
    box: bool = True,
    start: str = "one",
) -> Tensor:
    """Of each value of x for the target's logit. z^B at convolutions of the image, if `box`."""
    rules = Rules(
        convolution,
        epsilon_rule(epsilon),
        box_rule(*model.input_range) if box and model.start_layer == "input" else None,
    )

    def attribute(leaf: Tensor, goal: Tensor) -> Tensor:
        logits = Propagation(model, rules).logits(leaf)
        chosen = F.one_hot(goal, logits.shape[1]).to(logits)
        return torch.autograd.grad(
            logits, leaf, chosen * logits.detach() if start == "logit" else chosen
        )[0]

    halved = model.with_batch_size(-(-model.batch_size // 2))  # more is kept than for a gradient
    return halved.passes.attribute(x, target, attribute)


@remembered
def _no_rule(model: Model) -> str:
    rules = Rules(z_plus, z_plus, z_plus if model.start_layer == "input" else None)
    try:
        with model.passes.frozen_eval():
            Propagation(model, rules).logits(model.passes.zero_activation())
    except NotApplicable as error:
        return str(error)
    return ""


Epsilon = Annotated[float, Field(gt=0)]
Gamma = Annotated[float, Field(ge=0)]
Start = Literal["one", "logit"]


@method(
    "lrp-focus",
    family="relevance",
    paper="Rao et al. 2024",
    needs=("rules",),
    cost=(0, 1),
    applies=_no_rule,
)
def lrp_focus(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    epsilon: Epsilon = 0.25,
    start: Start = "one",
) -> Tensor:
    """LRP: z⁺ in convolutions, ε where fully connected, z^B at the image."""
    return relevance(model, x, target, z_plus, epsilon, start=start)


@method(
    "lrp-composite",
    family="relevance",
    paper="Rao et al. 2024",
    needs=("rules",),
    cost=(0, 1),
    applies=_no_rule,
)
def lrp_composite(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    gamma: Gamma = 0.25,
    epsilon: Epsilon = 0.25,
    start: Start = "one",
) -> Tensor:
    """LRP: γ in convolutions (gamma=inf: z⁺), ε where fully connected, z^B at the image."""
    return relevance(model, x, target, gamma_rule(gamma), epsilon, start=start)
