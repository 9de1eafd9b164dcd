"""What the noise of a method changes: its scores with several seeds.

A score varies over images, and for a method that draws random numbers also between two seeds on
the same image. If the second part is large, the first map that is drawn says little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import GROUP
from heatproof.analysis.tables import groups
from heatproof.runs.format import MethodFacts

Key = tuple[str, str, str]  # protocol, setting, baseline


@dataclass(frozen=True)
class SeedSpread:
    """The scores of a method with several seeds under one setting.

    Attributes:
        key: Model, protocol, setting and baseline.
        method: The method.
        n: Samples that all seeds have a score for.
        means: The mean score with each seed.
        between: The variance of a sample's score between seeds, averaged over samples.
        total: The variance of scores over samples, averaged over seeds.
    """

    key: tuple[str, ...]
    method: str
    n: int
    means: tuple[float, ...]
    between: float
    total: float

    @property
    def setting(self) -> Key:
        """Protocol, setting and baseline."""
        return self.key[1], self.key[2], self.key[3]

    @property
    def share(self) -> float:
        """How much of the variance over samples is noise; nan if there is no variance."""
        return self.between / self.total if self.total > 0 else float("nan")


def with_other_seeds(methods: Mapping[str, MethodFacts]) -> dict[str, list[str]]:
    """Return the methods of a run that it has with several seeds, and their labels by seed."""
    found: dict[str, list[str]] = {}
    for method, facts in methods.items():
        if facts.first_seed in methods:
            found.setdefault(facts.first_seed, [facts.first_seed]).append(method)
    return found


def seed_spreads(rows: pd.DataFrame, methods: Mapping[str, MethodFacts]) -> list[SeedSpread]:
    """Return how scores vary between the seeds of each method that a run has several of.

    A setting with fewer than two samples that all seeds have a score for is left out.
    """
    labels = with_other_seeds(methods)
    if not labels:
        return []
    spreads = []
    of_these = rows[rows["method"].isin([m for group in labels.values() for m in group])]
    for key, part in groups(of_these, GROUP):
        scores = part.pivot(index="sample", columns="method", values="value")
        for method, group in labels.items():
            if not set(group) <= set(scores.columns):
                continue
            values = scores[group].dropna().to_numpy(float)
            total = float(values.var(axis=0, ddof=1).mean()) if len(values) > 1 else 0.0
            if len(values) < 2 or not np.isfinite(total):
                continue
            between = float(values.var(axis=1, ddof=1).mean())
            means = tuple(values.mean(0).tolist())
            spreads.append(SeedSpread(tuple(key), method, len(values), means, between, total))
    return spreads
