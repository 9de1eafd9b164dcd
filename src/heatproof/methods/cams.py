"""Class activation maps: weighted sums of a layer's features. With features F_k(u) and gradients g_k(u) at that layer."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from heatproof.methods.base import method
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng
from heatproof.tensor.scores import ScoreName

cam = partial(method, family="cam", signed=False, layer="cam", needs=("gradient",))


def _weighted(features: Tensor, weights: Tensor) -> Tensor:  # (B, C, h, w), (B, C) -> (B, h, w)
    return torch.einsum("bchw,bc->bhw", features, weights).relu()


@cam("gradcam", paper="Selvaraju et al. 2017")
def gradcam(model: Model, x: Tensor, target: Tensor, *, rng: Rng, score: ScoreName = "logit") -> Tensor:
    """Features weighted by their mean gradient; positive part."""
    return _weighted(x, model.gradient(x, target, score=score).gradient.mean((2, 3)))


@cam("gradcam++", paper="Chattopadhay et al. 2018")
def gradcam_plus_plus(
    model: Model, x: Tensor, target: Tensor, *, rng: Rng, score: ScoreName = "logit", compat: Literal["torchcam"] | None = None
) -> Tensor:
    """Grad-CAM with second-order weights; `compat=torchcam` leaves out the division, as that library does."""
    g = model.gradient(x, target, score=score).gradient
    if compat == "torchcam":
        alpha = g**2
    else:
        denominator = 2 * g**2 + g**3 * x.sum((2, 3), keepdim=True)
        alpha = g**2 / torch.where(denominator == 0, 1, denominator)
    return _weighted(x, (alpha * g.relu()).sum((2, 3)))


@cam("xgradcam", paper="Fu et al. 2020")
def xgradcam(model: Model, x: Tensor, target: Tensor, *, rng: Rng, score: ScoreName = "logit") -> Tensor:
    """Features weighted by their gradient averaged where they are active."""
    g = model.gradient(x, target, score=score).gradient
    return _weighted(x, (x * g).sum((2, 3)) / (x.sum((2, 3)) + 1e-8))


@cam("layercam", paper="Jiang et al. 2021")
def layercam(model: Model, x: Tensor, target: Tensor, *, rng: Rng, score: ScoreName = "logit") -> Tensor:
    """Features times the positive part of their gradient, place by place."""
    return (x * model.gradient(x, target, score=score).gradient.relu()).sum(1).relu()
