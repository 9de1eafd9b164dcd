"""What a model still says of an image of which pixels were removed, and where along a curve its area lies (Picard et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from heatproof.tensor.curves import auc


def mean_sigmoid(logits: Tensor) -> Tensor:  # (..., K) -> (...,) float64
    """The paper's measure: the mean over the classes of the sigmoid. A constant added to all logits changes it, though no prediction."""
    return logits.double().sigmoid().mean(-1)


def negentropy(logits: Tensor) -> Tensor:  # (..., K) -> (...,) float64
    """log K − H(p) in nats, the divergence of the prediction from a uniform one: 0 where all classes are alike, log K for certainty."""
    return (
        math.log(logits.shape[-1]) - torch.special.entr(logits.double().softmax(-1)).sum(-1)
    ).clamp(min=0)


def energy(logits: Tensor) -> Tensor:  # (..., K) -> (...,) float64
    """The mean square of the logits about their mean."""
    return logits.double().var(-1, correction=0)


INFORMATION: dict[str, Callable[[Tensor], Tensor]] = {
    "mean-sigmoid": mean_sigmoid,
    "negentropy": negentropy,
    "energy": energy,
}


def area_reached(curve: Tensor, share: float = 0.8) -> Tensor:  # (..., S) -> (...,) float64
    """After which part of its points a curve, stretched to [0, 1], has that share of its sum; nan where it is constant.

    To within a point this is `share` or more of any curve that rises, and less of any that falls, whatever the model does.
    """
    curve = curve.double()
    low, high = curve.aminmax(dim=-1, keepdim=True)
    sums = ((curve - low) / (high - low)).cumsum(-1)
    first = (sums >= share * sums[..., -1:]).double().argmax(-1)
    return (first / curve.shape[-1]).where((high > low)[..., 0], torch.nan)


def area_beyond(
    curve: Tensor, distance: Tensor, threshold: float | Tensor
) -> Tensor:  # (..., S), (..., S) -> (...,) float64
    """The share of a curve's area at steps whose images lie further out of domain than the threshold; nan where there is no area.

    A share as such, in [0, 1], of curves that are not negative.
    """
    area = auc(curve)
    return (auc(curve.where(distance > threshold, 0)) / area).where(area != 0, torch.nan)
