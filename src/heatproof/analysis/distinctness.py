"""Can a metric distinguish maps that differ in value but hardly in order (Li et al. 2024, Table 1)?

A metric gives three curves for a method: of its map, of the map with attribution removed, and of
the map with attribution introduced. The distance of the two nearest curves shows how well the
metric distinguishes the three. A distance is never negative, and noise only raises it, so it has no
interval around it: it is compared with how far apart the curves of one map on other samples are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from heatproof.analysis.halves import half_samples
from heatproof.analysis.hausdorff import hausdorff, least_distance
from heatproof.runs.format import MethodFacts

SPLITS = 200  # of the samples into halves
CHANGES = ("remove", "introduce")  # transforms that change the values of a map on purpose


Pair = tuple[np.ndarray, np.ndarray]  # two curves, (S, 2) each


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
    """How distinct the curves of a trio are.

    Attributes:
        value: Distance of the two nearest curves of the trio.
        chance: 95 % of random halves of the samples give two curves of the original map that are
            nearer than this; nan for fewer than two samples. Two maps that differ by less could
            do so by the choice of samples.
    """

    value: float
    chance: float


class Distinct(NamedTuple):
    """The distances of one metric: of every trio, their mean and their standard deviation."""

    each: list[Distance]
    mean: Distance
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


def distinct(
    trios: Sequence[Trio], curves: Mapping[str, np.ndarray], halves: Mapping[str, Sequence[Pair]]
) -> Distinct:
    """Measure how well a metric distinguishes the maps of each trio.

    Args:
        trios: The trios to compare.
        curves: Curve of every map, ``(S, 2)``, by name.
        halves: Pairs of curves of the original maps on halves of the samples, by name.

    Returns:
        The distances of each trio, their mean and their standard deviation.
    """
    chance = {name: _chance(halves[name]) for name in {t.original for t in trios}}
    each = [
        Distance(least_distance([curves[name] for name in t.names]), chance[t.original])
        for t in trios
    ]
    values = [d.value for d in each]
    mean = Distance(float(np.mean(values)), float(np.mean([d.chance for d in each])))
    return Distinct(each, mean, float(np.std(values, ddof=1)) if len(each) > 1 else np.nan)


def random_halves(samples: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw random halves of samples: indices of two sets without a common sample.

    Args:
        samples: Number of samples.

    Returns:
        ``SPLITS`` pairs; none for fewer than two samples.
    """
    if samples < 2:
        return []
    halves = np.concatenate(list(half_samples(samples, 2 * SPLITS)))
    pairs = zip(halves[::2], halves[1::2], strict=True)
    return [(np.flatnonzero(first), np.flatnonzero(second)) for first, second in pairs]


def _chance(pairs: Sequence[Pair]) -> float:
    if not pairs:
        return np.nan
    return float(np.quantile([hausdorff(a, b) for a, b in pairs], 0.95))
