"""The training loop of all networks that are trained from scratch.

By default AdamW with a linear warm-up, half a cosine of decay, and clipped gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import cos, pi
from typing import Literal

import torch
from torch import Tensor, nn

from heatproof.tensor.noise import seeded

Progress = Callable[[int, int, float], None]  # step, steps, loss


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
    next_loss: Callable[[], Tensor],
    progress: Progress | None = None,
    *,
    steps: int,
    rate: float,
    warmup: float,
    decay: float,
    clip: float,
    optimizer: OptimizerName = "adamw",
) -> nn.Sequential:
    """Train a network in place.

    Args:
        net: The network to train.
        next_loss: Computes the scalar loss of the next batch; called once per step.
        progress: Called after each step with step, steps and loss.
        steps: Number of training steps.
        rate: Peak learning rate.
        warmup: Fraction of the steps over which the learning rate rises; 0 for a constant rate.
        decay: Weight decay.
        clip: Maximum norm of the gradient.
        optimizer: The name of the optimizer.

    Returns:
        The same network, in eval mode.
    """
    optimiser = OPTIMIZERS[optimizer](net.parameters(), lr=rate, weight_decay=decay)
    net.train()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * lr_factor(step / steps, warmup)
        loss = next_loss()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimiser.step()
        if progress:
            progress(step + 1, steps, loss.item())
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
