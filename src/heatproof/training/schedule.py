"""How long, how fast and with which loss a network is fine-tuned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from heatproof.errors import HeatproofError, unknown
from heatproof.models.model import Model
from heatproof.training.recipes import RECIPES


@dataclass(frozen=True)
class Schedule:
    """SGD whose learning rate is multiplied by `gamma` every `step` epochs."""

    epochs: int = 30
    batch_size: int = 256  # over all processes
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 1e-4
    step: int = 10
    gamma: float = 0.1
    limit: int | None = None  # training images
    lr_norm: float | None = (
        None  # instead of lr, for networks with batch norm, which bear and need larger steps
    )

    def rate(self, epoch: int) -> float:
        return self.lr * self.gamma ** ((epoch - 1) // self.step)


SCHEDULES = {
    "paper": Schedule(),
    "short": Schedule(epochs=5, batch_size=64, lr=2e-3, step=3, limit=6000, lr_norm=1e-2),
}


def checked(schedule: str | Schedule, changes: dict[str, Any], module: nn.Module) -> Schedule:
    """The schedule with its changes, for this network."""
    if isinstance(schedule, str) and schedule not in SCHEDULES:
        raise unknown("schedule", schedule, SCHEDULES)
    plan = SCHEDULES[schedule] if isinstance(schedule, str) else schedule
    if plan.lr_norm is not None and any(
        isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules()
    ):
        plan = replace(plan, lr=plan.lr_norm)
    plan = replace(plan, **changes, lr_norm=None)
    for name in (f.name for f in fields(plan)):
        value = getattr(plan, name)
        lowest = 1 if name in ("epochs", "step", "limit") else 2 if name == "batch_size" else 0
        if value is not None and (
            not math.isfinite(value) or value < lowest or (name == "lr" and value == 0)
        ):
            raise HeatproofError(
                f"{name} must be {'above 0' if name == 'lr' else f'at least {lowest}'}; got {value}"
            )
    return plan


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # logits (B, K), labels (B,) -> (B,)
    "cross_entropy": lambda logits, labels: cross_entropy(logits, labels, reduction="none"),
    "binary_cross_entropy": lambda logits, labels: binary_cross_entropy_with_logits(
        logits, one_hot(labels, logits.shape[1]).to(logits), reduction="none"
    ).mean(1),
}


def loss_function(model: Model) -> Callable[[Tensor, Tensor], Tensor]:
    """What the network says it is trained with (`module.loss = "binary_cross_entropy"`, or its recipe), else cross entropy."""
    told = getattr(model.module, "loss", None)
    if not isinstance(told, str):
        told = getattr(RECIPES.get(model.name.removeprefix("paperbirds/")), "loss", "cross_entropy")
    if told not in LOSSES:
        raise unknown("loss", told, LOSSES, f"({model.name})")
    return LOSSES[told]
