"""Can a metric tell maps apart that differ in their values, and hardly in their order (Li et al. 2024, Table 1)?

Of a method's map, the map with attribution taken out and the one with attribution put in, a metric has three curves; the distance between
the two that are nearest to each other says how well it tells the three apart. Other images would move a curve too: that is the yardstick.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from heatproof.analysis.distance import hausdorff, least_distance

RESAMPLES = 200
CHANGED = re.compile(r"(?P<base>.+)\|(?P<what>remove|introduce)\((?P<scheme>\w+)\)")


class Trio(NamedTuple):
    """The names of a map and of the two that were made of it."""

    base: str
    scheme: str
    original: str
    removed: str
    introduced: str

    @property
    def names(self) -> tuple[str, str, str]:
        return self[2:]


class Distance(NamedTuple):
    value: float  # between the two of a trio's curves that are nearest to each other
    chance: float  # between the curve of the map as it is and the same of samples drawn again, on average


class Distinct(NamedTuple):
    """Of one metric: every trio, and their mean and standard deviation."""

    each: list[Distance]
    mean: Distance
    spread: float


def trios(labels: Sequence[str]) -> list[Trio]:
    """The maps of a run that are there as they are, with attribution removed and with attribution introduced in the same scheme."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for label in labels:
        if changed := CHANGED.fullmatch(label):
            found.setdefault((changed["base"], changed["scheme"]), {})[changed["what"]] = label
    originals = {
        base: next((name for name in (f"{base}|unit", f"{base}|relu", base) if name in labels), "")
        for base, _ in found
    }
    return [
        Trio(base, scheme, originals[base], both["remove"], both["introduce"])
        for (base, scheme), both in found.items()
        if originals[base] and len(both) == 2
    ]


def distinct(
    trios: Sequence[Trio], curves: Mapping[str, np.ndarray], drawn: Mapping[str, np.ndarray]
) -> Distinct:
    """curves: (S, 2) of every map; drawn: (R, S, 2) of the maps as they are, of samples drawn again."""
    chance = {
        name: float(np.mean([hausdorff(curves[name], draw) for draw in drawn[name]]))
        for name in {t.original for t in trios}
    }
    each = [
        Distance(least_distance([curves[name] for name in t.names]), chance[t.original])
        for t in trios
    ]
    values = [d.value for d in each]
    mean = Distance(float(np.mean(values)), float(np.mean([d.chance for d in each])))
    return Distinct(each, mean, float(np.std(values, ddof=1)) if len(each) > 1 else np.nan)
