"""Information left in a model's output after pixels were removed (Picard et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from heatproof.tensor.curves import auc
from heatproof.tensor.scores import HeadName


def mean_logit(logits: Tensor) -> Tensor:
    """Compute the mean of the logits over the classes.

    The text of Picard et al. (2024) names it as the measure of Fig. 4: "mean logit values across
    the dataset". A constant added to all logits is added to it, although no prediction changes.

    Args:
        logits: ``(..., K)``.

    Returns:
        Values ``(...)`` of float64.
    """
    return logits.double().mean(-1)


def energy(logits: Tensor) -> Tensor:
    """Compute the energy of the logits, the mean of their squares over the classes.

    The text of Picard et al. (2024) measures how "the energy of the logits" decreases (Sec. 3.3)
    and does not define it; a mean of squares is the usual meaning for a signal. The negative
    log-sum-exp that Liu et al. (2020) call energy increases as information is removed. A constant
    added to all logits changes the energy, although no prediction changes.

    Args:
        logits: ``(..., K)``.

    Returns:
        Values ``(...)`` of float64.
    """
    return logits.double().square().mean(-1)


def mean_sigmoid(logits: Tensor) -> Tensor:
    """Compute the mean sigmoid of the logits over the classes.

    This is what the code of Picard et al. (2024) computes in place of the two measures of the text.
    A constant added to all logits changes it, although no prediction changes.

    Args:
        logits: ``(..., K)``.

    Returns:
        Values ``(...)`` of float64 in [0, 1].
    """
    return logits.double().sigmoid().mean(-1)


def negentropy(logits: Tensor) -> Tensor:
    """Compute log K − H(p) in nats, the divergence of the softmax from a uniform prediction.

    Args:
        logits: ``(..., K)``.

    Returns:
        Values ``(...)`` of float64, from 0 for a uniform prediction to log K for a certain one.
    """
    entropy = torch.special.entr(logits.double().softmax(-1)).sum(-1)
    return (math.log(logits.shape[-1]) - entropy).clamp(min=0)


def logit_variance(logits: Tensor) -> Tensor:
    """Compute the variance of the logits over the classes.

    It is the energy that is left if a constant may be added to all logits.

    Args:
        logits: ``(..., K)``.

    Returns:
        Values ``(...)`` of float64.
    """
    return logits.double().var(-1, correction=0)


def label_negentropy(logits: Tensor) -> Tensor:
    """Compute the mean over the labels of log 2 − H(p) in nats, for labels with a sigmoid each.

    For the logits (−z, z) of a binary head it is the `negentropy` of the two probabilities.

    Args:
        logits: ``(..., K)``.

    Returns:
        Values ``(...)`` of float64, from 0 where all probabilities are one half to log 2.
    """
    p = logits.double().sigmoid()
    entropy = torch.special.entr(p) + torch.special.entr(1 - p)
    return (math.log(2) - entropy).clamp(min=0).mean(-1)


def prediction_entropy(logits: Tensor, head: HeadName = "softmax") -> Tensor:
    """Compute the entropy of a prediction in nats.

    Args:
        logits: ``(..., K)``.
        head: The head of the model; for ``sigmoid``, the entropies of all labels are added.

    Returns:
        Values ``(...)`` of the type of the logits.
    """
    if head == "softmax":
        log_probs = logits.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)
    p = logits.sigmoid()
    entropy = torch.special.entr(p) + torch.special.entr(1 - p)
    return entropy[..., 0] if head == "binary" else entropy.sum(-1)


INFORMATION: dict[str, Callable[[Tensor], Tensor]] = {
    "negentropy": negentropy,
    "logit-variance": logit_variance,
    "mean-logit": mean_logit,
    "energy": energy,
    "mean-sigmoid": mean_sigmoid,
}


def information_measures(head: HeadName) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the measures of information for the logits of a head."""
    if head == "softmax":
        return INFORMATION
    return INFORMATION | {"negentropy": label_negentropy}


def area_reached(curve: Tensor, fraction: float = 0.8) -> Tensor:
    """Compute after which fraction of its points a curve has reached a fraction of its sum.

    The curve is first rescaled to [0, 1]. Up to one point, the result is at least ``fraction`` for
    every rising curve and at most ``fraction`` for every falling one, for any model.

    Args:
        curve: Values ``(..., S)``.
        fraction: Fraction of the sum.

    Returns:
        Fractions of the points ``(...)`` of float64; nan for constant curves.
    """
    curve = curve.double()
    low, high = curve.aminmax(dim=-1, keepdim=True)
    sums = ((curve - low) / (high - low)).cumsum(-1)
    first = (sums >= fraction * sums[..., -1:]).double().argmax(-1)
    return (first / curve.shape[-1]).where((high > low)[..., 0], torch.nan)


def area_beyond(curve: Tensor, distance: Tensor, threshold: float | Tensor) -> Tensor:
    """Compute the fraction of a curve's area at steps whose images are out of domain.

    The area is that between the curve and its own lowest value. The fraction is therefore the same
    if a constant is added to the curve or the curve is multiplied by a positive number.

    Args:
        curve: Values ``(..., S)``.
        distance: Distance of each step's image to the domain, ``(..., S)``.
        threshold: An image is out of domain if its distance is larger.

    Returns:
        Fractions ``(...)`` of float64 in [0, 1]; nan for constant curves.
    """
    curve = curve.double()
    low, high = curve.aminmax(dim=-1, keepdim=True)
    above = (curve - low) / (high - low)
    fraction = auc(above.where(distance > threshold, 0)) / auc(above)
    return fraction.where((high > low)[..., 0], torch.nan)
