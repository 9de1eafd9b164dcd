"""Class activation maps: weighted sums of a layer's features F_k(u), with gradients g_k(u)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from heatproof.methods.base import method
from heatproof.methods.noise import NoiseUnit, noise_scale
from heatproof.methods.notes import MapNotes, note_sign
from heatproof.models.batch import LayerBatch
from heatproof.models.last_norm import WithLastNorm
from heatproof.models.model import Model
from heatproof.models.passes import Pass
from heatproof.models.variants import variant_scores
from heatproof.tensor.filters import resize
from heatproof.tensor.noise import Rng
from heatproof.tensor.scores import ScoreName

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
    weights = model.channels_first(batch.gradient(score)).mean((2, 3))
    return _weighted(model.channels_first(x), weights)


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
    """Grad-CAM with second-order weights.

    ``compat=torchcam`` leaves out the division, as that library does.
    """
    x = model.channels_first(x)
    g = model.channels_first(batch.gradient(score))
    if compat == "torchcam":
        alpha = g**2
    else:
        denominator = 2 + g * x.sum((2, 3), keepdim=True)  # g² cancels
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
    """Features weighted by their gradient, averaged where they are active."""
    x = model.channels_first(x)
    g = model.channels_first(batch.gradient(score))
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
    """Features times the positive part of their gradient, position by position."""
    gradient = model.channels_first(batch.gradient(score))
    return (model.channels_first(x) * gradient.relu()).sum(1).relu()


def _why_not_ablated(model: Model) -> str:
    body = model.body
    if not isinstance(body, WithLastNorm) or model.start != body.norm:
        return ""
    return (
        f"the tokens of {model.start_layer} are also added after the attention, past this layer; "
        f"name a block: ablationcam@{body.layers[body.norm - 1]}"
    )


_STD: dict[NoiseUnit, float] = {"range": 0.15, "absolute": 0.3}


@cam(
    "sg-cam++",
    paper="Omeiza et al. 2019",
    stochastic=True,
    needs=("gradient", "image"),
    cost=lambda arguments: (0, arguments["n"]),
    version=2,
)
def smooth_gradcam_plus_plus(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    image: Tensor,
    n: Annotated[int, Field(ge=1)] = 4,
    std: Annotated[float, Field(ge=0)] | None = None,
    score: ScoreName = "logit",
    compat: Literal["torchcam"] | None = None,
) -> Tensor:
    """Grad-CAM++ from powers of the gradient, averaged over noisy images.

    The features are those of the image without noise. Where a linear layer on the mean of the
    features gives the logits, as in a ResNet, their gradient does not depend on the image, and the
    maps are those of Grad-CAM++.

    Args:
        model: The network from the layer on.
        x: The features, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        rng: The samples' noise.
        image: The images.
        n: The number of noisy images.
        std: The standard deviation of the noise, by default 0.15 of the range from black to white;
            with ``compat=torchcam`` 0.3 in the units of the normalized image.
        score: What to explain of the target: ``logit``, ``softmax`` or ``logprob``.
        compat: ``torchcam`` takes the features and the gradient of the last noisy image.
    """
    unit: NoiseUnit = "absolute" if compat == "torchcam" else "range"
    std = _STD[unit] if std is None else std
    width = std * noise_scale(model.root, image, unit)
    passes = []
    for i in range(n):
        noisy = image + width * rng.normal(f"noise {i}", image.shape[1:]).to(image)
        noisy_pass = model.root.gradient(noisy, target, model.start_layer, score)
        activation, gradient = map(model.channels_first, noisy_pass[1:])
        passes.append(Pass(noisy_pass.logits, activation, gradient))
    return smoothed(model.channels_first(x), passes, compat)


def smoothed(features: Tensor, passes: Sequence[Pass], compat: str | None) -> Tensor:
    """Combine passes of noisy images into Grad-CAM++ maps.

    Args:
        features: The features of the clean images, ``(B, C, h, w)``.
        passes: One pass per noisy copy.
        compat: See ``sg-cam++``.

    Returns:
        Maps of shape ``(B, h, w)``.
    """
    g, g2, g3 = (torch.stack([p.gradient**power for p in passes]).mean(0) for power in (1, 2, 3))
    if compat == "torchcam":
        denominator = 2 * g2 + (g3 * features).sum((2, 3), keepdim=True)
        weights = (g2 / (denominator + 1e-8) * passes[-1].gradient.relu()).sum((2, 3))
        return _weighted(passes[-1].activation, weights)
    denominator = 2 * g2 + g3 * features.sum((2, 3), keepdim=True)
    alpha = g2 / torch.where(denominator == 0, 1, denominator)
    return _weighted(features, (alpha * g.relu()).sum((2, 3)))


@cam(
    "ablationcam",
    paper="Desai & Ramaswamy 2020",
    needs=("channels",),
    cost=lambda arguments: (arguments["channels"] + 1, 0),
    applies=_why_not_ablated,
    shares_passes=True,
    version=2,
)
def ablationcam(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    notes: MapNotes,
    score: ScoreName = "logit",
    compat: Literal["rao"] | None = None,
) -> Tensor:
    """Features weighted by how much of the score is lost without them; a pass per channel.

    The paper divides all weights of a map by its score, which turns the map around where the score
    is negative. A positive divisor changes nothing but the scale, so there is none; ``compat=rao``
    divides by the score all the same.
    """
    clean = variant_scores(
        model,
        target,
        1,
        lambda sample, _: x[sample],
        score=score,
        ids=rng.ids,
        name="intact",
        depends_on=[x],
    )[:, 0]
    if score == "logit":
        note_sign(notes, clean[:, None], torch.zeros_like(target), reversed_map=compat == "rao")
    features = model.channels_first(x)
    first = features is x  # not tokens, and not channels last already
    # The layout that passes are computed in.
    channels_last = (x.permute(0, 2, 3, 1) if first else x).contiguous()

    before: list[Tensor] = []  # the samples, rows, channels and points of the last call

    def ablated(sample: Tensor, channel: Tensor) -> Tensor:
        # The rows of the last call, restored, are reused if the samples are the same.
        if before and torch.equal(sample, before[0]):
            _, row, last, points = before
            points[row, ..., last] = channels_last[sample, ..., last]
        else:
            row = torch.arange(len(sample))
            points = channels_last[sample]
        points[row, ..., channel] = 0
        before[:] = sample, row, channel, points
        return points.permute(0, 3, 1, 2) if first else points

    without = variant_scores(
        model,
        target,
        features.shape[1],
        ablated,
        score=score,
        ids=rng.ids,
        name="ablation",
        depends_on=[x],
    )
    drops = clean[:, None] - without
    return _weighted(features, drops / clean[:, None] if compat == "rao" else drops)


@cam(
    "scorecam",
    paper="Wang et al. 2020",
    needs=("image", "channels"),
    cost=lambda arguments: (arguments["channels"], 0),
    shares_passes=True,
)
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
    """Features weighted by the score of the image seen through each of them; a pass per channel.

    A constant channel has no weight; ``compat=rao`` divides by its range, zero, all the same.
    """
    x = model.channels_first(x)
    flat = x.amax((2, 3)) == x.amin((2, 3))

    def seen_through(sample: Tensor, channel: Tensor) -> Tensor:
        mask = resize(x[sample, channel], *image.shape[2:])[:, None]
        low = mask.amin((2, 3), keepdim=True)
        high = mask.amax((2, 3), keepdim=True)
        return image[sample] * (mask - low) / (high - low)

    weight = variant_scores(
        model,
        target,
        x.shape[1],
        seen_through,
        score=score,
        ids=rng.ids,
        name="channels",
        depends_on=[image, x],
        from_image=True,
    )
    return _weighted(x, weight if compat == "rao" else torch.where(flat, 0, weight))
