"""The training loop of all networks that are trained from scratch.

By default AdamW with a linear warm-up, half a cosine of decay, and clipped gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import cos, pi
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from heatproof.tensor.noise import seeded

Progress = Callable[[int, int, float], None]  # step, steps, loss


class TrainingSettings(Protocol):
    """The settings that every recipe has."""

    @property
    def steps(self) -> int: ...
    @property
    def rate(self) -> float: ...  # peak learning rate
    @property
    def warmup(self) -> float: ...  # fraction of the steps
    @property
    def decay(self) -> float: ...  # weight decay
    @property
    def clip(self) -> float: ...  # maximum norm of the gradient


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": partial(torch.optim.SGD, momentum=0.9),
}
OptimizerName = Literal["adamw", "adam", "sgd"]


def init_network(build: Callable[[], nn.Sequential], seed: int) -> nn.Sequential:
    """Build a network with weights drawn with ``seed``, without touching the global generator."""
    with seeded(seed):
        return build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def train_loop(
    net: nn.Sequential,
    settings: TrainingSettings,
    next_loss: Callable[[], Tensor],
    progress: Progress | None = None,
    optimizer: OptimizerName = "adamw",
) -> nn.Sequential:
    """Train a network in place.

    Args:
        net: The network to train.
        settings: Number of steps, learning rate, weight decay and gradient clipping. Without
            warm-up the learning rate is constant.
        next_loss: Computes the scalar loss of the next batch; called once per step.
        progress: Called after each step with step, steps and loss.
        optimizer: The name of the optimizer.

    Returns:
        The same network, in eval mode.
    """
    optimiser = OPTIMIZERS[optimizer](
        net.parameters(), lr=settings.rate, weight_decay=settings.decay
    )
    net.train()
    for step in range(settings.steps):
        for group in optimiser.param_groups:
            group["lr"] = settings.rate * lr_factor(step / settings.steps, settings.warmup)
        loss = next_loss()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(net.parameters(), settings.clip)
        optimiser.step()
        if progress:
            progress(step + 1, settings.steps, loss.item())
    return net.eval()


def lr_factor(done: float, warmup: float) -> float:
    """Return the learning rate as a fraction of its peak: linear warm-up, then half a cosine.

    Args:
        done: Fraction of the steps that are done.
        warmup: Fraction of the steps that the warm-up takes; 0 for a constant rate.
    """
    if not warmup:
        return 1.0
    return min(done / warmup, 1.0) * (1 + cos(pi * max(0.0, done - warmup) / (1 - warmup))) / 2
