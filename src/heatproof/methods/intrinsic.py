"""Explanations that are part of the model: what a BagNet's patches say, what a B-cos network's linear map is for this image."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from heatproof.errors import NotApplicable
from heatproof.methods.base import method
from heatproof.models.bagnet import BagNet
from heatproof.models.bcos import Encode, explaining, is_bcos
from heatproof.models.model import Model
from heatproof.models.views import visible_cell
from heatproof.tensor.noise import Rng


def _is_bagnet(model: Model) -> str:
    if visible_cell(model) is not None:
        return "it asks the patches of the whole image, and here all but one cell is cut off; ixg works on any view"
    return (
        ""
        if isinstance(model.module, BagNet)
        else f"{model.name} is not a BagNet, such as paperbirds/bagnet; ixg works on any model"
    )


def _is_bcos(model: Model) -> str:
    return (
        ""
        if is_bcos(model.module)
        else f"{model.name} has no B-cos layers, as paperbirds/bcos has; ixg works on any model"
    )


@method(
    "bagnet",
    family="intrinsic",
    paper="Brendel & Bethge 2019",
    needs=("BagNet",),
    cost=(16, 0),
    applies=_is_bagnet,
    layers="input",
)
def bagnet(model: Model, x: Tensor, target: Tensor, *, rng: Rng) -> Tensor:
    """The target's logit of the patch around each pixel; for BagNets."""
    net = model.module
    if not isinstance(net, BagNet):
        raise NotApplicable(_is_bagnet(model))
    return stitched(model, net, x, target)


def stitched(
    model: Model, net: BagNet, x: Tensor, target: Tensor
) -> Tensor:  # (B, 3, H, W), (B,) -> (B, H, W)
    """Zeros lie around the image. The net looks at every `stride`-th place, so it runs on stride² shifted windows, whose maps are
    interleaved (shift-and-stitch)."""
    step, margin = net.stride, net.field // 2
    rows, columns = (-(-side // step) for side in x.shape[2:])
    below, right = (
        step * places - side + margin
        for places, side in zip((rows, columns), x.shape[2:], strict=True)
    )
    height, width = (net.field + step * (places - 1) for places in (rows, columns))
    windows = (
        pad(x, (margin, right, margin, below)).unfold(2, height, 1).unfold(3, width, 1)
    )  # (B, 3, step, step, height, width)
    logits = x.new_empty(len(x), rows, step, columns, step)
    for sample, shift in model.chunks(len(x), step**2):
        down, along = shift // step, shift % step
        said = patch_logits(net, features(model, windows[sample, :, down, along]), target[sample])
        logits[sample, :, down, :, along] = said
    return logits.reshape(len(x), rows * step, columns * step)[:, : x.shape[2], : x.shape[3]]


def patch_logits(
    net: BagNet, found: Tensor, target: Tensor
) -> Tensor:  # (B, C, h, w), (B,) -> (B, h, w)
    weight, bias = net.head.weight[target].detach(), net.head.bias[target].detach()
    return torch.einsum("bchw,bc->bhw", found, weight) + bias[:, None, None]


def features(model: Model, x: Tensor) -> Tensor:
    """What the head averages, (B, C, h, w), where the net looks."""
    return model.activation(x, model.landmarks["cam"])


@method(
    "bcos",
    family="intrinsic",
    paper="Böhle et al. 2022",
    needs=("gradient", "B-cos"),
    cost=(1, 1),
    applies=_is_bcos,
)
def bcos(model: Model, x: Tensor, target: Tensor, *, rng: Rng) -> Tensor:
    """Input × weight of the linear map that the network is for this image, over all six channels; for B-cos networks."""
    if reason := _is_bcos(model):
        raise NotApplicable(reason)
    encodes = model.start_layer == "input" and isinstance(model.body.module_after(0), Encode)
    layer = model.layers[1] if encodes else "input"
    h, part = (
        model.activation(x, layer).clone(),
        model.tail(layer),
    )  # a copy: what other methods share is of the network as it is
    with explaining(model.module):
        return h * part.gradient(h, target).gradient
