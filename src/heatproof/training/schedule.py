"""Fine-tuning schedules: how long and with which learning rate."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from heatproof.errors import HeatproofError, unknown


@dataclass(frozen=True)
class Schedule:
    """SGD whose learning rate is multiplied by ``gamma`` every ``step`` epochs.

    Attributes:
        epochs: Passes over the training images.
        batch_size: Images per step, over all processes.
        lr: Initial learning rate.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        step: Epochs between two reductions of the learning rate.
        gamma: Factor of each reduction.
        limit: Number of training images; None for all.
        network_lr: Whether a network that names a learning rate of its own is trained with it.
    """

    epochs: int = 30
    batch_size: int = 256
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 1e-4
    step: int = 10
    gamma: float = 0.1
    limit: int | None = None
    network_lr: bool = False

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch; the first epoch is 1."""
        return self.lr * self.gamma ** ((epoch - 1) // self.step)


SCHEDULES = {
    "paper": Schedule(network_lr=True),
    # One for all embedded networks: those that are compared with each other differ in design alone.
    "short": Schedule(epochs=5, batch_size=64, lr=1e-2, step=4, limit=6000),
}
MINIMUM_SETTINGS = {"epochs": 1, "step": 1, "limit": 1, "batch_size": 2}  # 0 for all others


def resolve_schedule(
    schedule: str | Schedule, changes: dict[str, Any], module: nn.Module
) -> Schedule:
    """Return the schedule for a network, with single settings replaced.

    A network, or a module in it, can name the learning rate of the paper's schedule
    (``module.fine_tuning_lr = 0.01``), as B-cos networks do.

    Args:
        schedule: A schedule or the name of one.
        changes: Settings to replace, by field name.
        module: The network.

    Raises:
        HeatproofError: If the name is unknown or a setting is out of range.
    """
    if not isinstance(schedule, str):
        resolved = schedule
    elif schedule in SCHEDULES:
        resolved = SCHEDULES[schedule]
    else:
        raise unknown("schedule", schedule, SCHEDULES)
    if resolved.network_lr:
        resolved = replace(resolved, lr=_network_lr(module) or resolved.lr)
    resolved = replace(resolved, **changes, network_lr=False)
    for name, value in asdict(resolved).items():
        if value is not None:
            _check(name, value)
    return resolved


def _network_lr(module: nn.Module) -> float | None:
    named = (getattr(m, "fine_tuning_lr", None) for m in module.modules())
    return next((lr for lr in named if isinstance(lr, float)), None)


def _check(name: str, value: float) -> None:
    minimum = MINIMUM_SETTINGS.get(name, 0)
    if name == "lr":
        valid = value > 0
        rule = "above 0"
    else:
        valid = value >= minimum
        rule = f"at least {minimum}"
    if not valid or not math.isfinite(value):
        raise HeatproofError(f"{name} must be {rule}; got {value}")
