"""Classification losses, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from heatproof.errors import HeatproofError, unknown
from heatproof.models.model import Model


class Loss(NamedTuple):
    """A loss in the two forms that training needs."""

    per_sample: Callable[[Tensor, Tensor], Tensor]  # logits (B, K), labels (B,) -> (B,)
    of_batch: Callable[[Tensor, Tensor], Tensor]  # logits and target distributions (B, K) -> ()


def _cross_entropy_per_sample(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, reduction="none")


def _binary_per_sample(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean over the classes, as torch's ``BCEWithLogitsLoss`` and the paper's code."""
    targets = one_hot(labels, logits.shape[1]).to(logits)
    return binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)


def _binary_of_batch(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the sum over the classes, averaged over the batch."""
    return binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1).mean()


LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(_cross_entropy_per_sample, cross_entropy),
    "binary_cross_entropy": Loss(_binary_per_sample, _binary_of_batch),
}


def loss_name(model: Model) -> str:
    """Return the name of the loss to fine-tune a model with.

    A network, or a module in it, can name the loss (``module.loss = "binary_cross_entropy"``), as
    B-cos networks do. For all others it is cross entropy, or binary cross entropy where the head is
    ``sigmoid`` (all labels but the sample's are negative) or ``binary`` (of the two logits (−z, z):
    their mean is torch's ``BCEWithLogitsLoss`` of z).

    Args:
        model: The model to fine-tune.

    Raises:
        HeatproofError: If the network names a loss that does not exist, or has no classes.
    """
    if model.head == "regression":
        raise HeatproofError(
            f"{model.name} has a regression head, which is not fine-tuned here: there are losses "
            "for classes alone"
        )
    named = (getattr(module, "loss", None) for module in model.module.modules())
    usual = "cross_entropy" if model.head == "softmax" else "binary_cross_entropy"
    name = next((loss for loss in named if isinstance(loss, str)), usual)
    if name not in LOSSES:
        raise unknown("loss", name, LOSSES, f"({model.name})")
    return name


def loss_function(model: Model) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss to fine-tune a model with (see `loss_name`).

    Returns:
        A function from logits ``(B, K)`` and labels ``(B,)`` to losses ``(B,)``.
    """
    return LOSSES[loss_name(model)].per_sample
