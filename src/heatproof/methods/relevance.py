"""Layer-wise relevance propagation (Bach et al. 2015; Montavon et al. 2019).

It is for networks of convolutions, ReLUs, pools and residual sums. The relevance of the target's
logit is the logit itself, as in Bach et al., so positive relevance speaks for the class whatever
the sign of its logit. From 1 (``start=one``, as in Zennit's readme), a negative logit turns
the map around: what made it negative becomes positive. Else the two differ in scale only, since
relevance is linear in what it starts from. (Where the last layer is a convolution that follows z⁺,
a negative logit has no positive relevance: only the ε rule and pools keep both signs.)

Every operation distributes what arrives at its outputs among its inputs. Convolutions follow one
rule and fully connected layers another, by what they do: a fully connected layer that slides as a
convolution is still fully connected. Biases keep their part, so sums shrink or grow.

A network may normalize the image itself, as ``transform_input`` of torchvision's GoogLeNet does. A
factor and a shift per pixel are part of its first convolution: z^B is applied to what they make of
the image, of black and of white, which is the same as if they were merged into the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.nn.grad import conv2d_input

from heatproof.methods.base import method, reason_not_applicable
from heatproof.methods.notes import MapNotes, note_sign
from heatproof.models.batch import LayerBatch
from heatproof.models.intercept import (
    ELEMENTWISE_ACTIVATIONS,
    MOVES,
    Call,
    Intercept,
    NoRule,
    as_torch,
    naming_missing_rules,
    step,
)
from heatproof.models.intercept import Rule as Operation
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng

ZENNIT_STABILISER = 1e-6
_INSTEAD = "it is for convolutions, ReLUs, pools and sums; ixg works on any model"


@dataclass(frozen=True)
class Affine:
    """z = W x + b: a convolution or a matrix, with what is merged into it.

    Attributes:
        weight: The weights W.
        bias: The bias b, ``(outputs,)``.
        options: Arguments of the convolution; None for a matrix.
    """

    weight: Tensor
    bias: Tensor
    options: Mapping[str, Any] | None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Apply the layer to x with other weights."""
        if self.options is None:
            return F.linear(x, weight, bias)
        return F.conv2d(x, weight, bias, **self.options)

    def back(self, s: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """Compute Wᵀ s, of the shape of x."""
        if self.options is None:
            return s @ weight
        arrived: Tensor = conv2d_input(  # type: ignore[no-untyped-call]
            list(x.shape), weight, s, **self.options
        )
        return arrived

    def along(self, values: Tensor) -> Tensor:
        """Shape one value per output so that it broadcasts against z."""
        return values if self.options is None else values[:, None, None]

    def then(self, scale: Tensor, shift: Tensor) -> Affine:
        """Return the layer followed by z · scale + shift, each ``(outputs,)``."""
        weight = self.weight * scale.reshape(-1, *[1] * (self.weight.ndim - 1))
        return replace(self, weight=weight, bias=self.bias * scale + shift)


# (layer, x, z, relevance of z) -> relevance of x
Rule = Callable[[Affine, Tensor, Tensor, Tensor], Tensor]


def stable(z: Tensor, epsilon: float = ZENNIT_STABILISER) -> Tensor:
    """Compute z + ε sign(z), with sign(0) = 1."""
    return z + torch.where(z < 0, -epsilon, epsilon)


def epsilon_rule(epsilon: float) -> Rule:
    """Return the rule that distributes by contributions to the stabilized output."""
    return lambda layer, x, z, relevance: (
        x * layer.back(relevance / stable(z, epsilon), layer.weight, x)
    )


def positive(layer: Affine, x: Tensor) -> Tensor:
    """Compute x⁺W⁺ + x⁻W⁻."""
    total = layer(x.clamp(min=0), layer.weight.clamp(min=0))
    if (x < 0).any():
        total = total + layer(x.clamp(max=0), layer.weight.clamp(max=0))
    return total


def distributed(layer: Affine, x: Tensor, s: Tensor, more: Tensor, less: Tensor) -> Tensor:
    """Compute x⁺ · moreᵀ s + x⁻ · lessᵀ s."""
    if not s.any():
        return torch.zeros_like(x)
    total = x.clamp(min=0) * layer.back(s, more, x)
    if (x < 0).any():
        total = total + x.clamp(max=0) * layer.back(s, less, x)
    return total


def z_plus(layer: Affine, x: Tensor, z: Tensor, relevance: Tensor) -> Tensor:
    """Distribute by positive contributions alone."""
    s = relevance / stable(positive(layer, x) + layer.along(layer.bias.clamp(min=0)))
    return distributed(layer, x, s, layer.weight.clamp(min=0), layer.weight.clamp(max=0))


def gamma_rule(gamma: float) -> Rule:
    """Return the rule in which contributions of the output's sign count 1 + γ times.

    An output of zero distributes nothing.
    """
    if math.isinf(gamma):
        return z_plus

    def rule(layer: Affine, x: Tensor, z: Tensor, relevance: Tensor) -> Tensor:
        ups = positive(layer, x) + layer.along(layer.bias.clamp(min=0))
        total = z + gamma * torch.where(z > 0, ups, z - ups)  # W x + b is the sum of ups and downs
        s = torch.where(z == 0, 0, relevance / stable(total))
        more = layer.weight + gamma * layer.weight.clamp(min=0)
        less = layer.weight + gamma * layer.weight.clamp(max=0)
        from_positive = distributed(layer, x, s.where(z > 0, 0), more, less)
        return from_positive + distributed(layer, x, s.where(z < 0, 0), less, more)

    return rule


def box_rule(low: Tensor, high: Tensor) -> Rule:
    """Return the z^B rule, for pixels between low and high, ``(C, 1, 1)`` each."""

    def rule(layer: Affine, x: Tensor, z: Tensor, relevance: Tensor) -> Tensor:
        ups = layer.weight.clamp(min=0)
        downs = layer.weight.clamp(max=0)
        lowest = layer(low.expand_as(x[:1]), ups, layer.bias.clamp(min=0))
        highest = layer(high.expand_as(x[:1]), downs, layer.bias.clamp(max=0))
        s = relevance / stable(z - lowest - highest)
        whole = layer.back(s, layer.weight, x)
        up = layer.back(s, ups, x)
        return x * whole - low * up - high * (whole - up)

    return rule


@dataclass(frozen=True)
class Rules:
    """The rules of a composite.

    Attributes:
        convolution: For convolutions.
        connected: For fully connected layers.
        bounds: Black and white, ``(C, 1, 1)`` each: convolutions of the image itself follow z^B;
            None: they follow the rule of other convolutions.
    """

    convolution: Rule
    connected: Rule
    bounds: tuple[Tensor, Tensor] | None = None


class Image(NamedTuple):
    """The image, or what the network makes of it by moving, scaling and shifting its pixels.

    Attributes:
        pixels: The tensor in the network, ``(B, C, H, W)``.
        low: What becomes of black, ``(1, C, H, W)``, where it is the smaller value.
        high: What becomes of white.
    """

    pixels: Tensor
    low: Tensor
    high: Tensor


# Of the operations on an image, those that make an image again if their other operand is constant.
_ARITHMETIC = frozenset(("add", "sub", "__rsub__", "mul", "div", "true_divide"))


class Propagation:
    """A run of the network whose backward carries relevance.

    A factor and a shift after a layer are merged into the layer.
    """

    def __init__(self, model: Model, rules: Rules):
        self.model = model
        self.rules = rules
        self.kind = ""
        self.start: Tensor | None = None
        self.images: dict[int, Image] = {}  # by the id of their pixels
        self.boxed = False  # whether a convolution has seen the image
        # The last layer, its input and its output.
        self.last: tuple[Affine, Tensor, Tensor] | None = None
        self.crop: Callable[[Tensor], Tensor] | None = None
        self.parts = 1  # along a side, of which the crop takes one
        # By layer, tensors whose relevance adds up to that of the layer.
        self.watched: dict[int, list[Tensor]] = {}
        self.operations: dict[str, Operation] = {
            **dict.fromkeys(["max_pool2d", "adaptive_max_pool2d"], as_torch),
            **dict.fromkeys(MOVES, self.move),
            **dict.fromkeys(ELEMENTWISE_ACTIVATIONS, passed),
            **dict.fromkeys(["avg_pool2d", "adaptive_avg_pool2d", "mean", "sum"], in_proportion),
            "conv2d": self.convolution,
            "linear": self.matrix,
            "batch_norm": self.norm,
            **dict.fromkeys(_ARITHMETIC, self.arithmetic),
        }

    def logits(self, x: Tensor, watch: Collection[int] = ()) -> Tensor:
        """Run the network; the gradient of the result by x is relevance.

        Args:
            x: What is explained.
            watch: Later layers whose relevance will be asked for, too.

        Raises:
            NotApplicable: If an operation of the network has no rule.
        """
        self._begin(x)
        self.watched = {self.model.start: [x]}
        with (
            naming_missing_rules(self.model.module, "lrp", _INSTEAD),
            Intercept(self.operations) as seen,
        ):
            for kind, layer, run in self.model.passes.steps():
                self.kind = kind
                before = x
                x = seen.current(run(x))
                if kind == "crop":  # a part of the image is the image
                    self._begin(x)
                    self.crop = run
                    self.parts = before.shape[-1] // x.shape[-1]
                elif layer is not None and layer in watch and id(x) not in self.images:
                    self.watched[layer] = [x]
            x = seen.result(x)
        self.start = self.last = None
        self.images = {}
        return x

    def _begin(self, x: Tensor) -> None:
        """Take a tensor as what is explained."""
        self.start = x
        if self.rules.bounds is not None:
            low, high = (bound.to(x).expand_as(x[:1]) for bound in self.rules.bounds)
            self.images = {id(x): Image(x, low, high)}

    def convolution(self, call: Call) -> Tensor:
        """Follow the rule of convolutions."""
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
            added = [
                d * (k - 1) * (padding == "same")
                for d, k in zip(_pair(dilation), weight.shape[2:], strict=True)
            ]
            if any(n % 2 for n in added):
                raise NoRule("conv2d with padding=same and an even kernel")
            padding = [n // 2 for n in added]
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return self.apply(x, Affine(weight, _bias(weight, bias), options), call.value())

    def matrix(self, call: Call) -> Tensor:
        """Follow the rule of fully connected layers."""
        x, weight, bias = (
            call.argument(i, name) for i, name in enumerate(("input", "weight", "bias"))
        )
        layer = Affine(weight, _bias(weight, bias), None)
        if self.kind == "target" and self.last is not None and self.last[2] is x:
            before, x, _ = self.last  # the weights of a class minus those of another
            if before.options is None:
                weight = layer.weight @ before.weight
                layer = Affine(weight, layer.weight @ before.bias + layer.bias, None)
            else:
                x = call.args[0]
        return self.apply(x, layer, call.value())

    def apply(self, x: Tensor, layer: Affine, z: Tensor) -> Tensor:
        """Record a layer with its rule."""
        rule = self._rule(x, layer)
        out = step(z, lambda relevance, x, z: (rule(layer, x, z, relevance),), (x, z), x)
        self.last = (layer, x, out)
        return out

    def _rule(self, x: Tensor, layer: Affine) -> Rule:
        convolves = layer.options is not None
        if self.rules.bounds and convolves:
            image = self.images.get(id(x))
            self.boxed |= image is not None
            if not self.boxed:
                raise NoRule("conv2d of an image whose pixels were mixed or cut off")
            if image is not None:
                return box_rule(image.low, image.high)
        return self.rules.convolution if convolves and self.kind != "head" else self.rules.connected

    def move(self, call: Call) -> Any:
        """Move values as torch does."""
        out = call.run()
        self._track(call, out)
        return out

    def arithmetic(self, call: Call) -> Tensor:
        """Add or multiply: the image and a constant, two branches, or a layer and a constant."""
        if len(call.operands) == 1:
            (operand,) = call.operands
            if id(operand) in self.images:
                out = step(call.value(), lambda relevance: (relevance,), (), operand)
                self._track(call, out)
                return out
        name = call.function.__name__
        if name not in ("add", "mul"):
            raise NoRule(name)
        return self.sum(call) if name == "add" else self.product(call)

    def _track(self, call: Call, out: Any) -> None:
        """Note that the output is an image, where all operands are, and what its bounds are."""
        if not call.operands or any(id(operand) not in self.images for operand in call.operands):
            return
        black = call.with_tensors(lambda t: self.images[id(t)].low if id(t) in self.images else t)
        white = call.with_tensors(lambda t: self.images[id(t)].high if id(t) in self.images else t)
        ends = (_as_tuple(values) for values in (out, black.value(), white.value()))
        for pixels, a, b in zip(*ends, strict=True):
            self.images[id(pixels)] = Image(pixels, torch.minimum(a, b), torch.maximum(a, b))

    def norm(self, call: Call) -> Tensor:
        """Merge a batch norm into the layer before it."""
        factors = norm_factors(call)
        if factors is None:
            raise NoRule("batch_norm with the statistics of the batch")
        watched = [] if self.last is None else self._watched(self.last[2])
        out = self.merged(
            call,
            lambda layer: factors if layer.options or call.args[0].ndim == 2 else None,
            self.norm_alone,
        )
        for at in watched:  # that of the two together, as in ``norm_alone``
            self.watched[at] = [call.args[0], out]
        return out

    def norm_alone(self, call: Call) -> Tensor:
        """Pass relevance on where the explained layer lies between a convolution and its norm.

        Its relevance is then that of the two together.
        """
        if call.args[0] is not self.start or self.model.start_layer == "input":
            raise NoRule("batch_norm that follows no convolution")
        return passed(call)

    def merged(
        self,
        call: Call,
        change: Callable[[Affine], tuple[Tensor, Tensor] | None],
        otherwise: Operation,
    ) -> Tensor:
        """Merge an operation into the layer whose output it works on.

        Args:
            call: The operation.
            change: Returns the factor and the shift of each output; None if it is not of that kind.
            otherwise: The rule for an operation that cannot be merged.
        """
        if self.last is None or self.last[2] is not call.args[0]:
            return otherwise(call)
        layer, x, _ = self.last
        factors = change(layer)
        if factors is None:
            return otherwise(call)
        for at in self._watched(call.args[0]):
            del self.watched[at]  # its relevance bypasses it
        return self.apply(x, layer.then(*factors), call.value())

    def _watched(self, x: Tensor) -> list[int]:
        """Return the later layers that a tensor is watched for."""
        return [
            at
            for at, tensors in self.watched.items()
            if at != self.model.start and any(tensor is x for tensor in tensors)
        ]

    def relevance(self, logits: Tensor, arriving: Tensor) -> dict[int, Tensor]:
        """Compute the relevance of each watched layer from that of the logits.

        A layer is missing if operations after it are merged into what comes before it.
        """
        tensors = [tensor for of_layer in self.watched.values() for tensor in of_layer]
        arrived = iter(torch.autograd.grad(logits, tensors, arriving, materialize_grads=True))
        found = {}
        for layer, of_layer in self.watched.items():
            total = next(arrived)
            for _ in of_layer[1:]:
                total = total + next(arrived)
            found[layer] = total if layer == self.model.start else self._uncropped(total)
        return found

    def _uncropped(self, part: Tensor) -> Tensor:
        """Put what belongs to a part of the image where that lies; nothing arrives elsewhere."""
        if self.crop is None:
            return part
        height, width = (side * self.parts for side in part.shape[-2:])
        whole = part.new_zeros((*part.shape[:-2], height, width), requires_grad=True)
        return torch.autograd.grad(self.crop(whole), whole, part)[0]

    def sum(self, call: Call) -> Tensor:
        """Distribute between branches, or merge a constant into the layer before it."""
        call, other, depends = _operands(call)
        if depends:
            return in_proportions(call.args[0], other, call.value())
        return self.merged(call, lambda layer: _factor_and_shift(layer, 1, other), in_proportion)

    def product(self, call: Call) -> Tensor:
        """Merge a constant factor into the layer before it."""
        call, other, depends = _operands(call)
        if depends:
            raise NoRule("mul")
        return self.merged(call, lambda layer: _factor_and_shift(layer, other, 0), passed)


def norm_factors(call: Call) -> tuple[Tensor, Tensor] | None:
    """Return the factor and the shift of each channel of a batch norm, ``(outputs,)`` each.

    None if the norm uses the statistics of the batch.
    """
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
    """Put the operand that depends on the input first.

    Returns:
        The call, its second operand, and whether that depends on the input, too.
    """
    if call.kwargs or len(call.args) != 2:
        raise NoRule(f"{call.function.__name__} with keywords")
    a, b = call.args
    if not (isinstance(a, Tensor) and a.requires_grad):
        a, b = b, a
    return Call(call.function, (a, b), {}), b, isinstance(b, Tensor) and b.requires_grad


def _factor_and_shift(layer: Affine, *values: Any) -> tuple[Tensor, Tensor] | None:
    """Return numbers, or tensors with one number per output, as ``(outputs,)``; None for others."""
    per_output = layer.along(layer.bias)
    tensors = [torch.as_tensor(value).to(per_output) for value in values]
    for value in tensors:
        same_count = value.numel() == per_output.numel()
        same_shape = value.shape[-per_output.ndim :] == per_output.shape
        if value.numel() > 1 and not (same_count and same_shape):
            return None
    factor, shift = (value.reshape(-1).expand_as(layer.bias) for value in tensors)
    return factor, shift


def _bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight.new_zeros(len(weight)) if bias is None else bias


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def passed(call: Call) -> Tensor:
    """Pass relevance on unchanged, as activations and factors do."""
    return step(call.value(), lambda relevance: (relevance,), (), call.args[0])


def in_proportion(call: Call) -> Tensor:
    """Distribute by what each input adds, as averages and shifts do."""

    def back(relevance: Tensor, x: Tensor, z: Tensor) -> tuple[Tensor]:
        return (x * call.vjp(x, relevance / stable(z)),)

    z = call.value()
    return step(z, back, (call.args[0], z), call.args[0])


def in_proportions(a: Tensor, b: Tensor, z: Tensor) -> Tensor:
    """Distribute by what each branch adds, as residual sums do."""
    if a.shape != b.shape:
        raise NoRule("add of different shapes")

    def back(relevance: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        s = relevance / stable(a + b)  # added again, to save memory
        return a * s, b * s

    return step(z, back, (a, b), a, b)


def relevance(
    batch: LayerBatch,
    convolution: Rule,
    epsilon: float,
    box: bool = True,
    start: str = "logit",
    notes: MapNotes | None = None,
) -> Tensor:
    """Compute the relevance of a layer for the target's logit, from one pass for all layers.

    Args:
        batch: The batch at the layer.
        convolution: The rule for convolutions.
        epsilon: The ε of the rule for fully connected layers.
        box: Whether convolutions of the image follow z^B.
        start: The relevance of the logit: the ``logit`` itself, or ``one``.
        notes: Where the sign of the logit is noted.

    Returns:
        Relevance of the shape of the layer's activation.

    Raises:
        NotApplicable: If an operation of the network has no rule.
    """
    target = batch.target

    def compute(model: Model, h: Tensor, layers: Sequence[int]) -> dict[int, tuple[Tensor, Tensor]]:
        of_image = box and model.start_layer == "input"
        rules = Rules(convolution, epsilon_rule(epsilon), model.input_range if of_image else None)
        # more is kept than for a gradient
        halved = model.with_batch_size(-(-model.batch_size // 2)).passes
        parts: list[tuple[Tensor, dict[int, Tensor]]] = []
        with halved.frozen_eval():
            for leaf, goal in halved.grad_batches(h, target, "backward"):
                propagation = Propagation(model, rules)
                logits = propagation.logits(leaf, layers)
                arriving = F.one_hot(goal, logits.shape[1]).to(logits)
                if start == "logit":
                    arriving = arriving * logits.detach()
                parts.append((logits.detach(), propagation.relevance(logits, arriving)))
        # Only the last batch has padding rows, so they come after the rows of h.
        logits = torch.cat([part[0] for part in parts])[: len(h)]
        return {
            layer: (logits, torch.cat([found[layer] for _, found in parts])[: len(h)])
            for layer in parts[0][1]
        }

    logits, maps = batch.own_pass(compute)
    note_sign(notes, logits, target, reversed_map=start == "one")
    return maps


@reason_not_applicable
def _why_no_rule(model: Model) -> None:
    """Check that every operation has a rule."""
    rules = Rules(z_plus, z_plus, model.input_range if model.start_layer == "input" else None)
    Propagation(model, rules).logits(model.passes.zero_activation())


Epsilon = Annotated[float, Field(gt=0)]
Gamma = Annotated[float, Field(ge=0)]
Start = Literal["logit", "one"]


@method(
    "lrp-focus",
    family="relevance",
    paper="Rao et al. 2024",
    needs=("rules",),
    cost=(0, 1),
    applies=_why_no_rule,
    version=2,
)
def lrp_focus(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    batch: LayerBatch,
    rng: Rng,
    notes: MapNotes,
    epsilon: Epsilon = 0.25,
    start: Start = "logit",
) -> Tensor:
    """LRP: z⁺ in convolutions, ε where fully connected, z^B at the image."""
    return relevance(batch, z_plus, epsilon, start=start, notes=notes)


@method(
    "lrp-composite",
    family="relevance",
    paper="Rao et al. 2024",
    needs=("rules",),
    cost=(0, 1),
    applies=_why_no_rule,
    version=2,
)
def lrp_composite(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    batch: LayerBatch,
    rng: Rng,
    notes: MapNotes,
    gamma: Gamma = 0.25,
    epsilon: Epsilon = 0.25,
    start: Start = "logit",
) -> Tensor:
    """LRP: γ in convolutions (gamma=inf: z⁺), ε where fully connected, z^B at the image."""
    return relevance(batch, gamma_rule(gamma), epsilon, start=start, notes=notes)
