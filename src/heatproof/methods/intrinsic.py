"""Explanations that are part of the model: a BagNet's patches, a B-cos network's linear map."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from heatproof.methods.base import method
from heatproof.models.bagnet import BagNet
from heatproof.models.batch import LayerBatch
from heatproof.models.bcos import Encode, explaining, is_bcos
from heatproof.models.heads import as_logits
from heatproof.models.model import Model
from heatproof.models.views import visible_cell
from heatproof.tensor.noise import Rng


def _why_not_bagnet(model: Model) -> str:
    if visible_cell(model) is not None:
        return (
            "it needs the patches of the whole image, and in this view all but one grid cell is "
            "cut off; ixg works on any view"
        )
    if model.derived is not None and not model.derived.is_linear:
        return "log-sum-exp is not linear in the logits of patches; explain the mean of classes"
    if isinstance(model.module, BagNet):
        return ""
    return f"{model.name} is not a BagNet, such as paperbirds/bagnet; ixg works on any model"


def _why_not_bcos(model: Model) -> str:
    if is_bcos(model.module):
        return ""
    return f"{model.name} has no B-cos layers, as paperbirds/bcos has; ixg works on any model"


@method(
    "bagnet",
    family="intrinsic",
    paper="Brendel & Bethge 2019",
    needs=("BagNet",),
    cost=(16, 0),
    applies=_why_not_bagnet,
    layers="input",
)
def bagnet(model: Model, x: Tensor, target: Tensor, *, rng: Rng) -> Tensor:
    """The target's logit of the patch around each pixel; for BagNets."""
    return stitched(model, cast(BagNet, model.module), x, target)


def stitched(model: Model, net: BagNet, x: Tensor, target: Tensor) -> Tensor:
    """Compute the target's logit of the patch around every pixel (shift-and-stitch).

    The network evaluates every ``stride``-th position, so it runs on stride² shifted windows, whose
    maps are interleaved. Zeros surround the image.

    Args:
        model: The model of the BagNet.
        net: The BagNet.
        x: Images of shape ``(B, 3, H, W)``.
        target: Class indices of shape ``(B,)``.

    Returns:
        Logits of shape ``(B, H, W)``.
    """
    step = net.stride
    margin = net.field // 2
    rows, columns = (-(-side // step) for side in x.shape[2:])
    below = step * rows - x.shape[2] + margin
    right = step * columns - x.shape[3] + margin
    height = net.field + step * (rows - 1)
    width = net.field + step * (columns - 1)
    padded = pad(x, (margin, right, margin, below))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B, 3, step, step, height, width)
    logits = x.new_empty(len(x), rows, step, columns, step)
    for sample, shift in model.passes.chunks(len(x), step**2):
        down = shift // step
        along = shift % step
        seen = features(model, windows[sample, :, down, along])
        logits[sample, :, down, :, along] = patch_logits(model, net, seen, target[sample])
    return logits.reshape(len(x), rows * step, columns * step)[:, : x.shape[2], : x.shape[3]]


def patch_logits(model: Model, net: BagNet, features: Tensor, target: Tensor) -> Tensor:
    """Apply the head to every position: ``(B, C, h, w)`` features to ``(B, h, w)`` logits."""
    both = torch.cat([net.head.weight.mT, net.head.bias[None]]).detach()  # (C + 1, outputs)
    both = as_logits(both, model.head)
    if model.derived is not None:
        both = model.derived(both)
    weight, bias = both[:-1, target].mT, both[-1, target]
    return torch.einsum("bchw,bc->bhw", features, weight) + bias[:, None, None]


def features(model: Model, x: Tensor) -> Tensor:
    """Compute the features ``(B, C, h, w)`` that the head averages."""
    return model.activation(x, model.landmarks["cam"])


@method(
    "bcos",
    family="intrinsic",
    paper="Böhle et al. 2022",
    needs=("gradient", "B-cos"),
    cost=(1, 1),
    applies=_why_not_bcos,
)
def bcos(model: Model, x: Tensor, target: Tensor, *, rng: Rng, batch: LayerBatch) -> Tensor:
    """Input × weight of the linear map that a B-cos network is for an image, over six channels."""
    encodes = model.start_layer == "input" and isinstance(model.body.module_after(0), Encode)
    layer = model.layers[1] if encodes else "input"
    h = batch.activation(layer) if encodes else x
    with explaining(model.module):
        return h * model.tail(layer).gradient(h, target).gradient
