"""What the benchmarks share: timing several calls in turn, random images, and a large network."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

import heatproof as hp
from heatproof.models.nets import resnet

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
CLOCK = os.environ.get("HEATPROOF_CLOCK", "wall")  # that `bench.py` divides times of


class Timed(NamedTuple):
    """Median times of a call."""

    wall: float  # seconds
    cpu: float  # seconds of CPU time of this process, which other processes disturb less
    value: Any  # what the last call returned

    @property
    def spent(self) -> float:
        """Seconds by the clock that was asked for."""
        return self.cpu if CLOCK == "cpu" else self.wall


def in_turn(*calls: Callable[[], object], repeats: int, warm_up: bool = True) -> list[Timed]:
    """Time several calls in turn, by default after one round of warm-up."""
    times: list[list[tuple[float, float]]] = [[] for _ in calls]
    values: list[Any] = [None] * len(calls)
    rounds_of_all = repeats + 1 if warm_up else repeats
    for _ in range(rounds_of_all):
        for i, call in enumerate(calls):
            wall = time.perf_counter()
            cpu = time.process_time()
            values[i] = call()
            times[i].append((time.perf_counter() - wall, time.process_time() - cpu))
    results = []
    for rounds, value in zip(times, values, strict=True):
        wall, cpu = (statistics.median(clock) for clock in zip(*rounds[-repeats:], strict=True))
        results.append(Timed(wall, cpu, value))
    return results


def fastest(calls: Mapping[str, Callable[[], object]], repeats: int = 1) -> str:
    """Return the name of the call that takes the least CPU time."""
    timed = in_turn(*calls.values(), repeats=repeats)
    cpu = {name: result.cpu for name, result in zip(calls, timed, strict=True)}
    return min(cpu, key=cpu.__getitem__)


def ratio(one: Callable[[], object], other: Callable[[], object], repeats: int) -> float:
    """Return the median time of one call divided by that of the other, timed in turn."""
    first, second = in_turn(one, other, repeats=repeats)
    return first.wall / second.wall


def seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return how long a single call takes."""
    begin = clock()
    call()
    return clock() - begin


def random_images(count: int, size: int) -> Tensor:  # (count, 3, size, size) in [0, 1)
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def large() -> hp.Model:
    """Return a network at 224 px that costs as much as a ResNet-50."""
    torch.manual_seed(0)
    net = resnet(1000, widths=(64, 128, 256, 512), blocks=(3, 4, 6, 3), strides=(2, 2, 2, 2))
    return hp.Model(net.eval(), size=224, name="large")
