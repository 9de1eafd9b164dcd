"""Attention of plain vision transformers: ours, and those that ``models/convert.py`` converts.

A map has one value per patch. It is repeated over the patch's pixels, as in the papers' code; with
``resize=bilinear`` the map is resized to the image like those of other methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot

from heatproof.errors import HeatproofError
from heatproof.methods.base import method
from heatproof.models.arithmetic import Product, Sum
from heatproof.models.heads import as_logits
from heatproof.models.hooks import ModuleCall, record_calls
from heatproof.models.model import Model
from heatproof.models.vit import Attention, Block, ClassToken, Tokens, is_vit
from heatproof.tensor.noise import Rng

Start = Annotated[int, Field(ge=0)]
Resize = Literal["nearest", "bilinear"]


def _why_not_plain_vit(model: Model) -> str:
    if is_vit(model.module):
        return ""
    reason = f" ({model.unconverted})" if model.unconverted else ""
    return (
        f"{model.name} is not a plain vision transformer, as paperbirds/vit is{reason}; "
        "ixg works on any model, gradcam on convolutions"
    )


attending = partial(
    method,
    family="attention",
    signed=False,
    needs=("ViT",),
    applies=_why_not_plain_vit,
    layers="input",
    version=2,
)


@attending("rollout", paper="Abnar & Zuidema 2020", cost=(1, 0))
def rollout(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    start: Start = 1,
    resize: Resize = "nearest",
) -> Tensor:
    """Attention followed from the class token to the patches; the same for every class.

    It starts at block ``start``, counted from 0.
    """
    blocks = _blocks(model, start)

    def explain(images: Tensor, goal: Tensor) -> Tensor:
        with (
            torch.no_grad(),
            record_calls(_attentions(blocks), keep=lambda call: call.output.mean(1)) as mean,
        ):
            model(images)
        return class_row([mean_attention(mean[softmax]) for softmax in _attentions(blocks)])

    return _enlarged(_patches(model, x, target, "forward", explain), x, resize)


def _why_not_linear(model: Model) -> str:
    if model.derived is not None and not model.derived.is_linear:
        return "it has no rule for log-sum-exp; explain the mean of classes"
    return _why_not_plain_vit(model)


@attending("chefer", paper="Chefer et al. 2021", cost=(0, 1), applies=_why_not_linear)
def chefer(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    start: Start = 1,
    resize: Resize = "nearest",
) -> Tensor:
    """Relevance × gradient of attention, positive part, followed from the class token.

    It starts at block ``start``, counted from 0.
    """

    def explain(images: Tensor, goal: Tensor) -> Tensor:
        gradients, relevances = attention_evidence(model, images, goal, start)
        layers = ((g * r).relu().mean(1) for g, r in zip(gradients, relevances, strict=True))
        return class_row([layer + torch.eye(layer.shape[-1]).to(layer) for layer in layers])

    return _enlarged(_patches(model, x, target, "backward", explain), x, resize)


@attending("vit-gradcam", paper="Chefer et al. 2021", cost=(0, 1))
def vit_gradcam(
    model: Model, x: Tensor, target: Tensor, *, rng: Rng, resize: Resize = "nearest"
) -> Tensor:
    """Attention of the class token in the last block, heads weighted by their mean gradient.

    The positive part is scaled to [0, 1].
    """
    last = _blocks(model, 0)[-1:]

    def explain(images: Tensor, goal: Tensor) -> Tensor:
        with (
            torch.enable_grad(),
            record_calls(_attentions(last), keep=lambda call: call.output) as attention,
        ):
            (gradient,) = attention_gradients(model(images), goal, list(attention.values()))
        (row,) = (a.detach()[:, :, 0] for a in attention.values())  # (B, heads, tokens)
        weight = gradient[:, :, 0, 1:].mean(-1, keepdim=True)
        return (row * weight).mean(1).relu()

    return _enlarged(_zero_to_one(_patches(model, x, target, "backward", explain)), x, resize)


@attending("grad-rollout", paper="Chefer et al. 2021b", cost=(0, 1))
def grad_rollout(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    start: Start = 0,
    resize: Resize = "nearest",
) -> Tensor:
    """Attention × its gradient, positive part, followed from the class token.

    It starts at block ``start``, counted from 0.
    """
    attentions = _attentions(_blocks(model, start))

    def explain(images: Tensor, goal: Tensor) -> Tensor:
        with torch.enable_grad(), record_calls(attentions, keep=lambda call: call.output) as seen:
            logits = model(images)
            values = [seen[softmax] for softmax in attentions]
            gradients = attention_gradients(logits, goal, values)
        pairs = zip(values, gradients, strict=True)
        layers = [(a.detach() * g).relu().mean(1) for a, g in pairs]
        return class_row([layer + torch.eye(layer.shape[-1]).to(layer) for layer in layers])

    return _enlarged(_patches(model, x, target, "backward", explain), x, resize)


@attending("legrad", paper="Bousselham et al. 2025", cost=(0, 1))
def legrad(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    blocks: Annotated[int, Field(ge=1)] = 2,
    resize: Resize = "nearest",
) -> Tensor:
    """Positive gradient of attention in the last blocks, for the head on each block's mean token.

    The tokens after a block are averaged and given to the last norm and the head. The gradient of
    the target's logit there, with respect to the attention in that block, is averaged over heads
    and queries; ``blocks`` maps are added and scaled to [0, 1]. The authors' code resizes them
    bilinearly (``resize=bilinear``).
    """
    depth = len(_blocks(model, 0))
    if blocks > depth:
        raise HeatproofError(f"blocks={blocks}: {model.name} has {depth} blocks")
    tokens, *stages = model.module.children()
    norm, head = stages[-3], stages[-1]
    last = _blocks(model, depth - blocks)

    def explain(images: Tensor, goal: Tensor) -> Tensor:
        total: Tensor = torch.zeros(())
        h = tokens(images)
        with (
            torch.enable_grad(),
            record_calls(_attentions(last), keep=lambda call: call.output) as seen,
        ):
            for block in stages[:-3]:
                # Each block is on its own: its attention has the gradient of its own logit alone.
                h = block(h.detach().requires_grad_(block in last))
                if block in last:
                    logits = as_logits(head(norm(h.mean(1))), model.head)
                    logits = logits if model.derived is None else model.derived(logits)
                    total = total + logits.gather(1, goal[:, None]).sum()
            attention = [seen[softmax] for softmax in _attentions(last)]
            gradients = torch.autograd.grad(total, attention)
        return torch.stack([g.clamp(min=0).mean((1, 2)) for g in gradients]).sum(0)

    return _enlarged(_zero_to_one(_patches(model, x, target, "backward", explain)), x, resize)


def _blocks(model: Model, start: int) -> list[Block]:
    """Return the blocks from ``start`` on."""
    blocks = [stage for stage in model.module.children() if isinstance(stage, Block)]
    if start >= len(blocks):
        raise HeatproofError(
            f"start={start}: {model.name} has {len(blocks)} blocks, counted from 0"
        )
    return blocks[start:]


def _attentions(blocks: Sequence[Block]) -> list[nn.Module]:
    return [block.attn.softmax for block in blocks]


def _patches(
    model: Model, x: Tensor, target: Tensor, kind: str, explain: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Call a function that gives rows ``(B, 1 + patches)``; maps are ``(B, h, w)``."""
    rows = torch.cat([explain(*piece) for piece in model.passes.grad_batches(x, target, kind)])[
        : len(x)
    ]
    tokens = cast(Tokens, next(model.module.children()))
    height, width = (
        side // patch for side, patch in zip(x.shape[2:], tokens.proj.kernel_size, strict=True)
    )
    return rows[:, 1:].reshape(-1, height, width)


def _enlarged(maps: Tensor, x: Tensor, resize: str) -> Tensor:  # (B, h, w) -> (B, H, W)
    """Repeat each value over its patch; bilinear maps are left to the resizing of all maps."""
    if resize == "bilinear":
        return maps
    down, along = (side // count for side, count in zip(x.shape[2:], maps.shape[1:], strict=True))
    return maps.repeat_interleave(down, 1).repeat_interleave(along, 2)


def mean_attention(attention: Tensor) -> Tensor:  # (B, tokens, tokens) -> same
    """Add the residual connection to the attention; rows sum to 1."""
    both = attention + torch.eye(attention.shape[-1]).to(attention)
    return both / both.sum(-1, keepdim=True)


def class_row(layers: Sequence[Tensor]) -> Tensor:  # each (B, tokens, tokens) -> (B, tokens)
    """Compute the class token's row of the product of layers, with the last one leftmost."""
    row = layers[-1][:, :1]
    for layer in reversed(layers[:-1]):
        row = row @ layer
    return row[:, 0]


def _zero_to_one(maps: Tensor) -> Tensor:  # (B, h, w) -> same; a flat map is zero
    low = maps.amin((1, 2), keepdim=True)
    high = maps.amax((1, 2), keepdim=True)
    return (maps - low) / torch.where(high > low, high - low, 1)


def attention_gradients(
    logits: Tensor, target: Tensor, attention: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Compute the gradients of the target's logit with respect to attentions."""
    return torch.autograd.grad(logits.gather(1, target[:, None]).sum(), attention)


class Evidence(NamedTuple):
    """Gradient and relevance of each block's attention, ``(B, heads, tokens, tokens)`` each."""

    gradients: tuple[Tensor, ...]
    relevances: tuple[Tensor, ...]


def attention_evidence(model: Model, images: Tensor, target: Tensor, start: int) -> Evidence:
    """Compute the gradients and the relevances for the target's logit, from one forward pass.

    Args:
        model: The model of a plain vision transformer.
        images: Images that require gradients, ``(B, 3, H, W)``.
        target: Class indices of shape ``(B,)``.
        start: The first block, counted from 0.
    """
    attentions = _attentions(_blocks(model, start))
    stages = list(model.module.children())[1 + start :]
    ruled = (m for stage in stages for m in stage.modules() if type(m) in RULES)
    with torch.enable_grad(), record_calls(ruled, keep=lambda call: call) as calls:
        logits = model(images)
        gradients = attention_gradients(
            logits, target, [calls[softmax].output for softmax in attentions]
        )
    with torch.no_grad():
        arriving = one_hot(target, logits.shape[1]).to(logits)
        if model.derived is not None:  # a head with the weights of derived logits, too
            head = nn.Linear(1, 1, bias=False)
            weight = cast(nn.Linear, stages[-1]).weight
            head.weight = nn.Parameter(model.derived(as_logits(weight.mT, model.head)).mT)
            calls[head] = calls[stages[-1]]
            stages[-1] = head
        elif model.head == "binary":
            # The weights of class 0 are those of z with the other sign, which is the same as if
            # their input had it.
            last = stages[-1]
            sign = (2 * target - 1).to(logits)[:, None]
            calls[last] = calls[last]._replace(inputs=(sign * calls[last].inputs[0],))
            arriving = torch.ones_like(sign)
        relevance = Relevance(calls)
        relevance.back_through(stages, arriving)
    return Evidence(gradients, tuple(relevance.at[softmax] for softmax in attentions))


class Relevance:
    """Propagates relevance back through modules, by one rule per type of module.

    The rules are those of Chefer et al. 2021 with α = 1 and β = 0. Each takes the relevance of a
    module's output and returns that of its input, or of both inputs. Where a tensor went two ways,
    the relevances that come back are added.
    """

    def __init__(self, calls: dict[nn.Module, ModuleCall]):
        self.calls = calls
        self.at: dict[nn.Module, Tensor] = {}  # the relevance of attentions

    def back(self, module: nn.Module, relevance: Tensor) -> Any:
        """Return the relevance of a module's input, from that of its output."""
        if isinstance(module, nn.Softmax):
            self.at[module] = relevance
        return RULES[type(module)](self, module, relevance)

    def back_through(self, modules: Sequence[nn.Module], relevance: Tensor) -> Tensor:
        """Go back through modules that run one after the other."""
        for module in reversed(modules):
            relevance = self.back(module, relevance)
        return relevance


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """Compute a / b, or 0 where b is 0."""
    return torch.where(b == 0, 0, a / (b + torch.where(b < 0, -1e-9, 1e-9)))


def _passed_on(walk: Relevance, module: nn.Module, relevance: Tensor) -> Tensor:
    return relevance


def _linear(walk: Relevance, module: nn.Linear, relevance: Tensor) -> Tensor:
    """Distribute in proportion to positive contributions, z = x⁺W⁺ + x⁻W⁻, without the bias."""
    x = walk.calls[module].inputs[0]
    positive = (x.clamp(min=0), module.weight.clamp(min=0))
    negative = (x.clamp(max=0), module.weight.clamp(max=0))
    ratio = _ratio(relevance, linear(*positive) + linear(*negative))
    first, second = (a * (ratio @ w) for a, w in (positive, negative))
    return first + second


def _product(walk: Relevance, module: Product, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Distribute in proportion to the terms of each sum of products, half to either factor."""
    (a, b), output = walk.calls[module]
    ratio = _ratio(relevance, output)
    return a * (ratio @ b.mT) / 2, b * (a.mT @ ratio) / 2


def _sum(walk: Relevance, module: Sum, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Distribute in proportion, scaled so that the totals divide a sample's relevance by size."""
    inputs, output = walk.calls[module]
    ratio = _ratio(relevance, output)
    parts = [x * ratio for x in inputs]
    totals = [_total(part) for part in parts]
    sizes = [total.abs() for total in totals]
    whole = _total(relevance)
    first, second = (
        p * _ratio(_ratio(size, sizes[0] + sizes[1]) * whole, t)
        for p, t, size in zip(parts, totals, sizes, strict=True)
    )
    return first, second


def _total(x: Tensor) -> Tensor:
    """Sum over each sample."""
    return x.sum(tuple(range(1, x.ndim)), keepdim=True)


def _class_token(walk: Relevance, module: ClassToken, relevance: Tensor) -> Tensor:
    tokens = torch.zeros_like(walk.calls[module].inputs[0])
    tokens[:, 0] = relevance
    return tokens


def _chain(walk: Relevance, module: nn.Sequential, relevance: Tensor) -> Tensor:
    return walk.back_through(list(module), relevance)


def _block(walk: Relevance, module: Block, relevance: Tensor) -> Tensor:
    for add, branch in (
        (module.add2, [module.norm2, module.mlp]),
        (module.add1, [module.norm1, module.attn]),
    ):
        around, through = walk.back(add, relevance)
        relevance = around + walk.back_through(branch, through)
    return relevance


def _attention(walk: Relevance, module: Attention, relevance: Tensor) -> Tensor:
    heads = walk.back(module.proj, relevance).unflatten(-1, (module.heads, -1))
    mixed = heads.transpose(1, 2)  # (B, heads, tokens, d)
    attention, v = walk.back(module.mix, mixed)
    q, k_t = walk.back(module.compare, walk.back(module.softmax, attention))
    # (3, B, heads, tokens, d) -> (B, tokens, 3 heads d)
    qkv = torch.stack([q, k_t.mT, v]).permute(1, 3, 0, 2, 4).flatten(2)
    out: Tensor = walk.back(module.qkv, qkv)
    return out


RULES: dict[type[nn.Module], Callable[[Relevance, Any, Tensor], Any]] = {
    nn.Linear: _linear,
    Product: _product,
    Sum: _sum,
    nn.LayerNorm: _passed_on,
    nn.GELU: _passed_on,
    nn.Softmax: _passed_on,
    ClassToken: _class_token,
    nn.Sequential: _chain,
    Block: _block,
    Attention: _attention,
}
