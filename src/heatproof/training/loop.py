"""The one loop that trains from nothing: AdamW, a rate that rises in a line and falls in half a cosine, gradients of bounded norm."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import Protocol

import torch
from torch import Tensor, nn

from heatproof.tensor.noise import seeded

Progress = Callable[[int, int, float], None]  # step, steps, loss


class Course(Protocol):
    """What every recipe says."""

    @property
    def steps(self) -> int: ...
    @property
    def rate(self) -> float: ...  # the highest learning rate
    @property
    def warmup(self) -> float: ...  # share of the steps
    @property
    def decay(self) -> float: ...
    @property
    def clip(self) -> float: ...  # largest norm of a gradient


def untrained(build: Callable[[], nn.Sequential], seed: int) -> nn.Sequential:
    """Drawn with that seed; the global generator is left as it was."""
    with seeded(seed):
        return build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def descend(
    net: nn.Sequential,
    course: Course,
    loss_of_next: Callable[[], Tensor],
    progress: Progress | None = None,
) -> nn.Sequential:
    """Every step takes the loss of the next batch."""
    optimiser = torch.optim.AdamW(net.parameters(), lr=course.rate, weight_decay=course.decay)
    net.train()
    for step in range(course.steps):
        for group in optimiser.param_groups:
            group["lr"] = course.rate * pace(step / course.steps, course.warmup)
        loss = loss_of_next()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(net.parameters(), course.clip)
        optimiser.step()
        if progress:
            progress(step + 1, course.steps, loss.item())
    return net.eval()


def pace(done: float, warmup: float) -> float:
    """The learning rate over its highest value: up in a line, down in half a cosine."""
    return min(done / warmup, 1.0) * (1 + cos(pi * max(0.0, done - warmup) / (1 - warmup))) / 2
