"""Class activation maps: weighted sums of a layer's features. With features F_k(u) and gradients g_k(u) at that layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from heatproof.methods.base import method
from heatproof.models.batch import LayerBatch
from heatproof.models.model import Model
from heatproof.models.passes import Pass
from heatproof.tensor.filters import resize
from heatproof.tensor.noise import Rng
from heatproof.tensor.scores import ScoreName, score_function

cam = partial(method, family="cam", signed=False, layer="cam", needs=("gradient",))


def _weighted(features: Tensor, weights: Tensor) -> Tensor:  # (B, C, h, w), (B, C) -> (B, h, w)
    return torch.einsum("bchw,bc->bhw", features, weights).relu()


@cam("gradcam", paper="Selvaraju et al. 2017")
def gradcam(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    batch: LayerBatch,
    score: ScoreName = "logit",
) -> Tensor:
    """Features weighted by their mean gradient; positive part."""
    return _weighted(x, batch.gradient(score).mean((2, 3)))


@cam("gradcam++", paper="Chattopadhay et al. 2018")
def gradcam_plus_plus(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    batch: LayerBatch,
    score: ScoreName = "logit",
    compat: Literal["torchcam"] | None = None,
) -> Tensor:
    """Grad-CAM with second-order weights; `compat=torchcam` leaves out the division, as that library does."""
    g = batch.gradient(score)
    if compat == "torchcam":
        alpha = g**2
    else:
        denominator = 2 + g * x.sum((2, 3), keepdim=True)  # g² stands above and below
        alpha = torch.where(denominator == 0, g**2, 1 / denominator)
    return _weighted(x, (alpha * g.relu()).sum((2, 3)))


@cam("xgradcam", paper="Fu et al. 2020")
def xgradcam(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    batch: LayerBatch,
    score: ScoreName = "logit",
) -> Tensor:
    """Features weighted by their gradient averaged where they are active."""
    g = batch.gradient(score)
    return _weighted(x, (x * g).sum((2, 3)) / (x.sum((2, 3)) + 1e-8))


@cam("layercam", paper="Jiang et al. 2021")
def layercam(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    batch: LayerBatch,
    score: ScoreName = "logit",
) -> Tensor:
    """Features times the positive part of their gradient, place by place."""
    return (x * batch.gradient(score).relu()).sum(1).relu()


@cam(
    "sg-cam++",
    paper="Omeiza et al. 2019",
    needs=("gradient", "image"),
    cost=lambda arguments: (0, arguments["n"]),
)
def smooth_gradcam_plus_plus(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    image: Tensor,
    n: Annotated[int, Field(ge=1)] = 4,
    std: Annotated[float, Field(ge=0)] = 0.3,
    score: ScoreName = "logit",
    compat: Literal["torchcam"] | None = None,
) -> Tensor:
    """Grad-CAM++ from powers of the gradient averaged over noisy images; `compat=torchcam`: with the last one's features and gradient."""
    copies = ((image + std * rng.normal(f"noise {i}", image.shape[1:]).to(image)) for i in range(n))
    return smoothed(
        x, [model.root.gradient(copy, target, model.start_layer, score) for copy in copies], compat
    )


def smoothed(
    features: Tensor, passes: Sequence[Pass], compat: str | None
) -> Tensor:  # (B, C, h, w) -> (B, h, w)
    g, g2, g3 = (torch.stack([p.gradient**power for p in passes]).mean(0) for power in (1, 2, 3))
    third = (
        (g3 * features).sum((2, 3), keepdim=True)
        if compat == "torchcam"
        else g3 * features.sum((2, 3), keepdim=True)
    )
    denominator = 2 * g2 + third
    if compat == "torchcam":
        weights = (g2 / (denominator + 1e-8) * passes[-1].gradient.relu()).sum((2, 3))
        return _weighted(passes[-1].activation, weights)
    return _weighted(
        features, (g2 / torch.where(denominator == 0, 1, denominator) * g.relu()).sum((2, 3))
    )


def _channels(arguments: Mapping[str, Any]) -> tuple[int, int]:
    return arguments["channels"], 0


@cam("ablationcam", paper="Desai & Ramaswamy 2020", needs=("channels",), cost=_channels)
def ablationcam(
    model: Model, x: Tensor, target: Tensor, *, rng: Rng, score: ScoreName = "logit"
) -> Tensor:
    """Features weighted by the share of the target's score that goes when they are set to zero; a pass a channel from that layer on."""
    scored = score_function(score)
    whole = scored(model.logits(x), target)
    places, without = (
        x.permute(0, 2, 3, 1).contiguous(),
        [],
    )  # in the layout that passes are computed in
    held = torch.empty(0, dtype=torch.long)
    for sample, channel in model.passes.chunks(
        len(x), x.shape[1]
    ):  # rows of the sample before stay, with their channel put back
        if not torch.equal(sample, held):
            held, ablated, row = sample, places[sample], torch.arange(len(sample))
        ablated[row, :, :, channel] = 0
        without.append(scored(model.logits(ablated.permute(0, 3, 1, 2)), target[sample]))
        ablated[row, :, :, channel] = places[sample, :, :, channel]
    drops = whole[:, None] - torch.cat(without).reshape(len(x), -1)
    return _weighted(x, drops / whole[:, None])


@cam("scorecam", paper="Wang et al. 2020", needs=("image", "channels"), cost=_channels)
def scorecam(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    image: Tensor,
    score: ScoreName = "softmax",
    compat: Literal["rao"] | None = None,
) -> Tensor:
    """Features weighted by the target's score on the image seen through each of them alone; a whole pass a channel.

    A channel that is the same everywhere shows nothing and weighs nothing; `compat=rao` divides by its range all the same.
    """
    scored, flat = score_function(score), x.amax((2, 3)) == x.amin((2, 3))
    weights = []
    for sample, channel in model.passes.chunks(len(x), x.shape[1]):
        mask = resize(x[sample, channel], *image.shape[2:])[:, None]
        low, high = mask.amin((2, 3), keepdim=True), mask.amax((2, 3), keepdim=True)
        seen = model.root.logits(image[sample] * (mask - low) / (high - low))
        weights.append(scored(seen, target[sample]))
    weight = torch.cat(weights).reshape(len(x), -1)
    return _weighted(x, weight if compat == "rao" else torch.where(flat, 0, weight))
