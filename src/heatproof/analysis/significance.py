"""Tests of all pairs of methods under one setting, letters for ties, and power.

All pairs of ranked methods are one family (`families`), tested on the images that all of them have
a score for. A lead that rests on missing scores, or on scores that were perfect so far, is not
claimed: it must also stand if the missing scores of the method were the worst that any method has,
and if one more image were its worst. A lead that stands then, but not if the missing scores were
the worst possible, is called fragile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from heatproof.analysis.families import LEVEL, Family, draw_family, pair_family
from heatproof.analysis.intervals import GROUP, numbered
from heatproof.analysis.rank_intervals import rank_ends

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class PairedTests:
    """All pairs of M ranked methods under one setting.

    Attributes:
        methods: The ranked methods, best first.
        gaps: How far the method of the row is ahead of that of the column, ``(M, M)``: the mean of
            paired differences of scores, positive if the row is better.
        errors: Standard errors of the gaps, ``(M, M)``.
        count: Number of independent observations: images, or grids.
        adjusted: P-values of the row being ahead of the column, or behind it, adjusted for all
            pairs, ``(M, M)``; nan where there is no test.
        fragile: Which methods have a lead that is claimed, but would not stand if their missing
            scores were the worst possible, ``(M,)``.
        floors: The mean of each method if its missing scores were the worst that any method has,
            ``(M,)``.
        first: Fraction of bootstrap draws in which each method has the best mean, ``(M,)``.
        family: The family that the tests are.
        together: Which methods are ranked against each other, ``(M, M)``; None for all.
    """

    methods: list[str]
    gaps: np.ndarray
    errors: np.ndarray
    count: int
    adjusted: np.ndarray
    fragile: np.ndarray
    floors: np.ndarray
    first: np.ndarray
    family: Family
    together: np.ndarray | None = None

    def ahead_at(self, level: float) -> np.ndarray:  # (M, M)
        """Return which methods are ahead of which at a level."""
        return (np.nan_to_num(self.adjusted, nan=1.0) <= level) & (self.gaps > 0)

    @cached_property
    def ahead(self) -> np.ndarray:  # (M, M)
        """Whether the method of the row is significantly ahead of that of the column."""
        return self.ahead_at(LEVEL)

    @property
    def different(self) -> np.ndarray:  # (M, M)
        """The pairs that differ significantly, as a mask."""
        return self.ahead | self.ahead.T

    @cached_property
    def letters(self) -> list[str]:  # (M,)
        """Letters of each method; methods that share one do not differ significantly."""
        return tie_letters(self.different)

    @cached_property
    def rank_ends(self) -> np.ndarray:  # (2, M)
        """Lower and upper ends of the intervals of ranks, which hold together."""
        return rank_ends(self.ahead, self.together)

    def best(self, among: Sequence[str]) -> list[str]:
        """Return the methods that may be the best of some: none of these is ahead of them."""
        chosen = [i for i, method in enumerate(self.methods) if method in set(among)]
        return [self.methods[i] for i in chosen if not self.ahead[chosen, i].any()]

    def detectable(self, i: int, j: int) -> float:
        """Return the true difference that would be found, among all pairs, in four of five sets."""
        return float(self.family.detectable(self.errors[i, j]))

    def needed(self, i: int, j: int) -> float:
        """Return how many images or grids would show the difference, in four of five data sets.

        The observed difference is taken for the true one; infinity if there is none, and nan if
        the images are too few for any test, whose error is not known.
        """
        gap = abs(self.gaps[i, j])
        detectable = self.detectable(i, j)
        if not math.isfinite(detectable):
            return math.nan
        if not gap > 0:
            return math.inf
        return math.ceil(self.count * (detectable / gap) ** 2)

    def of(self, methods: Sequence[str]) -> PairedTests:
        """Return the tests of some of the methods, which stay those of the whole family."""
        chosen = [i for i, method in enumerate(self.methods) if method in set(methods)]
        block = np.ix_(chosen, chosen)
        first = self.first[chosen]
        return replace(
            self,
            methods=[self.methods[i] for i in chosen],
            gaps=self.gaps[block],
            errors=self.errors[block],
            adjusted=self.adjusted[block],
            fragile=self.fragile[chosen],
            floors=self.floors[chosen],
            first=first / first.sum() if first.sum() > 0 else first,
            together=None,
        )


def paired_tests(
    methods: list[str],
    values: np.ndarray,
    clusters: np.ndarray,
    common: np.ndarray,
    usual: np.ndarray,
    means: np.ndarray,
    draws: np.ndarray,
    aggregated: bool = False,
    limits: tuple[float, float] | None = None,
    together: np.ndarray | None = None,
    tolerance: float = 0.0,
) -> PairedTests:
    """Test all pairs of methods under one setting.

    Args:
        methods: The M ranked methods, best first.
        values: Scores ``(N, M)``, higher being better.
        clusters: The cluster of each sample, ``(N,)``.
        common: Samples that all methods have a score for, ``(N,)``.
        usual: Samples that most methods have a score for, ``(N,)``.
        means: Mean scores, ``(M,)``.
        draws: Draws of the means, ``(R, M)``.
        aggregated: Whether scores are not means over samples, so that their errors come from draws.
        limits: Lowest and highest possible score.
        together: Which methods are compared, ``(M, M)``; all by default.
        tolerance: Means that differ by no more are ties.
    """
    count = len(methods)
    first, second = np.triu_indices(count, 1)
    if together is not None:
        compared = together[first, second]
        first, second = first[compared], second[compared]
    number, members, _ = numbered(int(common.sum()), clusters[common])
    if not len(first):
        family = Family(*(np.empty(0) for _ in range(5)))
    elif aggregated:
        moved = draws[:, first] - draws[:, second]
        family = draw_family(means[first] - means[second], moved, number, tolerance)
    else:
        shared = values[common]
        totals = np.zeros((number, count))
        for column, scores in enumerate(shared.T):
            totals[:, column] = np.bincount(members, scores, number)
        family = pair_family(totals, len(shared), (first, second), tolerance)

    def square(of_pairs: np.ndarray, sign: int = 1) -> np.ndarray:  # (K,) -> (M, M)
        matrix = np.full((count, count), np.nan)
        matrix[first, second] = of_pairs
        matrix[second, first] = sign * of_pairs
        return matrix

    found = PairedTests(
        methods,
        square(family.gaps, -1),
        square(family.errors),
        number,
        square(family.p),
        np.zeros(count, dtype=bool),
        means.copy(),
        first_fractions(draws),
        family,
        together,
    )
    _doubt(found, values, clusters, common, usual, limits, aggregated)
    return found


def _doubt(
    found: PairedTests,
    values: np.ndarray,
    clusters: np.ndarray,
    common: np.ndarray,
    usual: np.ndarray,
    limits: tuple[float, float] | None,
    aggregated: bool,
) -> None:
    """Withdraw leads that would not stand if what is not known of a method were its worst."""
    finite = np.isfinite(values)
    if not finite.any():
        return
    worst_seen = float(values[finite].min())
    worst = limits[0] if limits is not None else worst_seen
    for i in range(len(found.methods)):
        unknown = usual & ~finite[:, i]
        piled = limits is not None and _is_piled(values[common, i], limits)
        if not unknown.any() and not piled:
            continue
        lost = unknown.sum() / usual.sum()
        found.floors[i] = (1 - lost) * found.floors[i] + lost * worst_seen
        for j in np.flatnonzero(found.ahead_at(LEVEL)[i]):
            if aggregated:  # there is no telling what a missing sample would change
                p_seen = p_worst = 1.0 if unknown.any() else found.adjusted[i, j]
            else:
                rows = common | (unknown & finite[:, j])
                more = [worst - float(values[common, j].mean())] if piled else []
                p_seen, p_worst = (
                    _p_if_missing_were(
                        value, found.family, values[rows][:, [i, j]], clusters[rows], more
                    )
                    for value in (worst_seen, worst)
                )
            found.fragile[i] |= p_seen <= LEVEL < p_worst
            found.adjusted[i, j] = max(found.adjusted[i, j], p_seen)


def _p_if_missing_were(
    value: float, family: Family, pair: np.ndarray, clusters: np.ndarray, more: Sequence[float]
) -> float:
    """Return the p-value of the lead of a first column whose missing scores had some value."""
    differences = np.where(np.isfinite(pair[:, 0]), pair[:, 0], value) - pair[:, 1]
    statistic = max(_clustered_t(differences, clusters, more), 0.0)
    return float(family.p_of(np.array(statistic)))


def _is_piled(values: np.ndarray, limits: tuple[float, float]) -> bool:
    """Return whether at least half of the values are as good as they can be."""
    return bool(len(values)) and bool(
        np.mean(values >= limits[1] - 1e-6 * (limits[1] - limits[0])) >= 0.5
    )


def _clustered_t(differences: np.ndarray, clusters: np.ndarray, more: Sequence[float]) -> float:
    """Return the t statistic of differences, and of some more that are clusters of their own."""
    codes, names = pd.factorize(clusters)
    size = len(differences) / max(1, len(names))
    totals = np.append(np.bincount(codes, differences, len(names)) / size, more)
    error = totals.std(ddof=1) / math.sqrt(len(totals)) if len(totals) > 1 else math.inf
    return float(totals.mean() / error) if error > 0 else math.inf


def first_fractions(draws: np.ndarray) -> np.ndarray:
    """Return the fraction of draws in which each column is the highest; ties are shared.

    Args:
        draws: Draws ``(R, M)``; columns without draws are never first.

    Returns:
        Fractions ``(M,)``.
    """
    filled = np.where(np.isfinite(draws), draws, -np.inf)
    if not np.isfinite(filled).any():
        return np.full(draws.shape[1], np.nan)
    filled = filled[np.isfinite(filled).any(1)]
    best = filled == filled.max(1, keepdims=True)
    fractions: np.ndarray = (best / best.sum(1, keepdims=True)).mean(0)
    return fractions


def tie_letters(different: np.ndarray) -> list[str]:
    """Give letters to methods so that two share a letter if and only if they do not differ.

    The letters are found by insertion and absorption (Piepho 2004): one group of all methods is
    split by every pair that differs, and groups within another are dropped.

    Args:
        different: Which pairs differ, symmetric ``(M, M)``; the methods are ordered best first.

    Returns:
        Letters of each method; "a" is the group of the best one.
    """
    count = len(different)
    groups = [(1 << count) - 1] if count else []  # one bit per method
    for i in range(count):
        for j in range(i + 1, count):
            if different[i, j]:
                groups = _without_pair(groups, 1 << i, 1 << j)
    members = [[i for i in range(count) if group >> i & 1] for group in groups]
    members.sort()
    return [
        "".join(_letter(k) for k, group in enumerate(members) if i in group) for i in range(count)
    ]


def _without_pair(groups: list[int], i: int, j: int) -> list[int]:
    """Split every group that has both members, and drop the parts that are within a group."""
    both = i | j
    whole = [group for group in groups if group & both != both]
    parts = {part for g in groups if g & both == both for part in (g & ~i, g & ~j)}
    largest_first = sorted(parts, key=int.bit_count, reverse=True)
    for part in largest_first:
        if not any(part & group == part for group in whole):
            whole.append(part)
    return whole


def _letter(number: int) -> str:
    turns, place = divmod(number, len(LETTERS))
    return LETTERS[place] + ("" if turns == 0 else str(turns + 1))


def pair_lines(tests: Mapping[tuple[str, ...], PairedTests]) -> pd.DataFrame:
    """Return one line per pair of ranked methods, the better one first.

    Args:
        tests: The tests by model, protocol, setting and baseline.

    Returns:
        Model, protocol, setting, baseline, ``better``, ``other``, ``ahead`` (the mean paired
        difference in the direction of better), ``p`` adjusted for all pairs of the setting,
        ``significant``, ``n`` (images or grids), ``needed`` (how many would show the difference in
        four of five data sets) and ``detectable`` (the difference that as many as there are would
        show).
    """
    lines = [
        (
            *key,
            found.methods[i],
            found.methods[j],
            found.gaps[i, j],
            found.adjusted[i, j],
            bool(found.ahead[i, j]),
            found.count,
            found.needed(i, j),
            found.detectable(i, j),
        )
        for key, found in tests.items()
        for i in range(len(found.methods))
        for j in range(i + 1, len(found.methods))
        if np.isfinite(found.gaps[i, j])
    ]
    names = ["better", "other", "ahead", "p", "significant", "n", "needed", "detectable"]
    return pd.DataFrame(lines, columns=[*GROUP, *names])
