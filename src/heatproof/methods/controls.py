"""Maps that do not depend on the model: what a method has to beat."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from heatproof.methods.base import method
from heatproof.models.model import Model
from heatproof.tensor.filters import gaussian
from heatproof.tensor.noise import Rng

control = partial(method, family="control")


@control("random", stochastic=True)
def random(model: Model, x: Tensor, target: Tensor, *, rng: Rng) -> Tensor:
    """N(0, 1) per pixel."""
    return rng.normal("random map", x.shape[2:]).to(x)


@control("constant", signed=False)
def constant(model: Model, x: Tensor, target: Tensor, *, rng: Rng) -> Tensor:
    """One everywhere."""
    return torch.ones_like(x[:, 0])


@control("edges", signed=False, layers="input")
def edges(model: Model, x: Tensor, target: Tensor, *, rng: Rng) -> Tensor:
    """Sobel magnitude of the image's luminance; of the channels' mean where they are not three."""
    channels = x.shape[1]
    shares = [0.299, 0.587, 0.114] if channels == 3 else [1 / channels] * channels
    weights = x.new_tensor(shares).reshape(-1, 1, 1)
    luminance = (model.denormalize(x) * weights).sum(1, keepdim=True)
    sobel = x.new_tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    padded = F.pad(luminance, (1, 1, 1, 1), "replicate")
    return F.conv2d(padded, torch.stack([sobel, sobel.T])[:, None]).norm(dim=1)


@control("center", signed=False)
def center(model: Model, x: Tensor, target: Tensor, *, rng: Rng) -> Tensor:
    """A Gaussian in the middle, σ a quarter of the height."""
    height, width = x.shape[2:]
    bump = torch.outer(gaussian(height, height / 4), gaussian(width, height / 4))
    return bump.to(x).expand(len(x), -1, -1)


@control("object", signed=False, needs=("silhouette",), layers="input")
def silhouette_of_the_object(
    model: Model, x: Tensor, target: Tensor, *, rng: Rng, silhouette: Tensor
) -> Tensor:
    """The object's silhouette, for data that has one."""
    return silhouette.to(x)
