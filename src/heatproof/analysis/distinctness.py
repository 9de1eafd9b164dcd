"""Can a metric distinguish maps that differ in value but hardly in order (Li et al. 2024, Table 1)?

A metric gives three curves for a method: of its map, of the map with attribution removed, and of
the map with attribution introduced. The distance of the two nearest curves shows how well the
metric distinguishes the three. A distance is never negative, and noise only raises it, so it has no
interval around it. Instead, the two maps of an image are swapped at random: if the metric does not
distinguish them, it is a matter of chance which curve an image contributes to, and swaps give
distances as large as the one that was found. The metric distinguishes three maps if it does so for
each pair of them: the largest p-value of the three counts, adjusted for all rows of a table by
Holm's procedure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, Protocol

import numpy as np

from heatproof.analysis.families import LEVEL, holm
from heatproof.analysis.hausdorff import hausdorff, least_distance
from heatproof.runs.format import MethodFacts
from heatproof.tensor.noise import generator

SWAPS = 199  # at least
SWAPS_PER_ROW = 40  # of a table, so that the least p-value can be significant among all rows
FEWEST_SWAPPED = 6  # images, below which no swap test can be significant
CHANGES = ("remove", "introduce")  # transforms that change the values of a map on purpose


class Curve(Protocol):
    """A metric's measurements on the maps of one method."""

    @property
    def samples(self) -> Sequence[str]:
        """The N samples."""

    @property
    def measured(self) -> tuple[np.ndarray, ...]:
        """Measurements on each sample, ``(N, …)`` each."""

    def curve_of(self, measured: Sequence[np.ndarray]) -> np.ndarray:  # (S, 2)
        """Compute the curve of some samples."""


class Trio(NamedTuple):
    """The names of a map and of the two maps derived from it."""

    base: str
    scheme: str
    original: str
    removed: str
    introduced: str

    @property
    def names(self) -> tuple[str, str, str]:
        """Names of the original, the removed and the introduced map."""
        return self[2:]


class Distance(NamedTuple):
    """Distance of the curves of a trio, and its test.

    Attributes:
        value: Distance of the two nearest curves of the trio.
        p: P-value of the pair that is distinguished worst, adjusted for the whole table; nan for
            too few samples.
    """

    value: float
    p: float

    @property
    def distinct(self) -> bool:
        """Whether all three curves differ significantly."""
        return self.p <= LEVEL


class Distances(NamedTuple):
    """The distances of one metric: of every trio, their mean and their standard deviation."""

    each: list[Distance]
    mean: float
    spread: float


def is_changed(facts: MethodFacts) -> bool:
    """Whether a method's maps were changed on purpose, as the last step."""
    return bool(facts.transforms) and facts.transforms[-1].name in CHANGES


def trios(methods: Mapping[str, MethodFacts]) -> list[Trio]:
    """Find the maps of a run that exist unchanged, with attribution removed and introduced.

    Args:
        methods: The methods of a run, by label.

    Returns:
        One trio per method and scheme.
    """
    changed: dict[tuple[str, str], dict[str, str]] = {}
    originals = {(label, ""): label for label in methods}
    for label, facts in methods.items():
        if is_changed(facts):
            change = facts.transforms[-1]
            scheme = str(change.arguments[0])
            changed.setdefault((facts.before_last, scheme), {})[change.name] = label
        elif facts.transforms:
            originals[facts.before_last, facts.transforms[-1].name] = label
    complete = []
    for (base, scheme), both in changed.items():
        found = [
            originals[base, last] for last in ("unit", "relu", "") if (base, last) in originals
        ]
        if found and len(both) == len(CHANGES):
            complete.append(Trio(base, scheme, found[0], both["remove"], both["introduce"]))
    return complete


def distances(
    trios: Sequence[Trio], metrics: Mapping[str, Mapping[str, Curve]]
) -> dict[str, Distances]:
    """Measure how well metrics distinguish the maps of each trio.

    Args:
        trios: The trios to compare.
        metrics: The curve of every map by name, for each metric.

    Returns:
        The distances by metric.
    """
    swaps = max(SWAPS, SWAPS_PER_ROW * len(metrics) * len(trios) - 1)
    worst = [
        max(swap_p_value(metric[a], metric[b], swaps) for a, b in combinations(trio.names, 2))
        for metric in metrics.values()
        for trio in trios
    ]
    adjusted = holm(np.array(worst)).reshape(len(metrics), len(trios))
    found = {}
    for (label, metric), p in zip(metrics.items(), adjusted, strict=True):
        values = [least(trio, metric) for trio in trios]
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
        each = [Distance(v, float(q)) for v, q in zip(values, p, strict=True)]
        found[label] = Distances(each, float(np.mean(values)), spread)
    return found


def least(trio: Trio, metric: Mapping[str, Curve]) -> float:
    """Return the distance of the two nearest curves of a trio."""
    return least_distance([metric[m].curve_of(metric[m].measured) for m in trio.names])


def swap_p_value(first: Curve, second: Curve, swaps: int = SWAPS) -> float:
    """Test whether two curves differ, by swapping the maps of single samples so many times.

    Returns:
        The p-value; nan if they have fewer than `FEWEST_SWAPPED` samples in common.
    """
    position = {sample: i for i, sample in enumerate(second.samples)}
    both = [(i, position[s]) for i, s in enumerate(first.samples) if s in position]
    if len(both) < FEWEST_SWAPPED:
        return np.nan
    rows = np.array(both)
    a = [values[rows[:, 0]] for values in first.measured]
    b = [values[rows[:, 1]] for values in second.measured]
    observed = hausdorff(first.curve_of(a), first.curve_of(b))
    drawn = generator(0, "swaps", len(both)).random((swaps, len(both))) < 0.5
    as_far = sum(_swapped_distance(first, a, b, swap) >= observed - 1e-12 for swap in drawn)
    return (1 + as_far) / (1 + swaps)


def _swapped_distance(
    curve: Curve, a: Sequence[np.ndarray], b: Sequence[np.ndarray], swap: np.ndarray
) -> float:
    chosen = [swap.reshape(-1, *[1] * (values.ndim - 1)) for values in a]
    swapped = [np.where(c, y, x) for c, x, y in zip(chosen, a, b, strict=True)]
    other = [np.where(c, x, y) for c, x, y in zip(chosen, a, b, strict=True)]
    return hausdorff(curve.curve_of(swapped), curve.curve_of(other))
