"""Axes with round ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MARGIN = 0.04  # of the spread of the values, at both ends


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``, linear or logarithmic."""

    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...] = ()  # of the ticks; their numbers if there are none
    log: bool = False

    @classmethod
    def around(cls, values: Sequence[float], most: float = 6.5) -> Axis:
        """Return an axis that holds all finite values, with at most ``most`` round ticks."""
        finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
        spread = max(finite) - min(finite) or max(abs(max(finite)), 1.0)
        low = min(finite) - MARGIN * spread
        high = max(finite) + MARGIN * spread
        step = next(s for s in _round_steps(spread) if (high - low) / s <= most)
        multiples = range(math.ceil(low / step), math.floor(high / step) + 1)
        return cls(low, high, tuple(round(i * step, 10) for i in multiples))

    @classmethod
    def powers(cls, values: Sequence[float]) -> Axis:
        """Return a logarithmic axis that holds all values (> 0), with powers of ten as ticks."""
        first = math.floor(math.log10(min(values)))
        last = max(math.ceil(math.log10(max(values))), first + 1)
        ticks = tuple(10.0**k for k in range(first, last + 1))
        return cls(ticks[0], ticks[-1], ticks, tuple(f"{tick:g}" for tick in ticks), log=True)

    @classmethod
    def over(cls, axes: Sequence[Axis]) -> Axis:
        """Return an axis that covers several; the first one if they cannot be joined."""
        first = axes[0]
        if all(axis == first for axis in axes) or len({axis.log for axis in axes}) > 1:
            return first
        low, high = min(axis.low for axis in axes), max(axis.high for axis in axes)
        if first.log:
            return cls.powers([low, high])
        if any(axis.labels for axis in axes):
            return first
        margin = MARGIN / (1 + 2 * MARGIN) * (high - low)
        return cls.around([low + margin, high - margin])

    def position(self, value: float, start: float, end: float) -> float:
        """Return where a value lies on an axis drawn from ``start`` to ``end``."""
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return start + part * (end - start)

    @property
    def digits(self) -> int:
        """Return how many digits the ticks need."""
        for digits in range(4):
            if all(abs(tick - round(tick, digits)) < 1e-9 for tick in self.ticks):
                return digits
        return 4


def _round_steps(spread: float) -> list[float]:
    power = 10.0 ** (math.floor(math.log10(spread)) - 1)
    return [power * m for m in (1, 2, 5, 10, 20, 50, 100)]


PERCENT = Axis(0.0, 100.0, (0.0, 25.0, 50.0, 75.0, 100.0))
