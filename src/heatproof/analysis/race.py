"""A race: which methods are still worth evaluating after so many images, and when to stop.

Images are evaluated in growing rounds. After each, confidence sequences of all pairs of methods
(`sequential`) say which are ahead of which, with one error rate for all pairs, settings and rounds
of a model. A method that can no longer be the best is dropped, and the race ends when the question
is answered: one method is left, or those left differ by less than a margin. What is dropped when is
a function of the rows and the question alone, so a run that is resumed, or computed elsewhere,
drops the same; and as the sequences hold whenever one looks, what they say stays true of a run that
was stopped because of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

from heatproof.analysis.evidence import least_gaps
from heatproof.analysis.intervals import GROUP, RankedLayers, range_of
from heatproof.analysis.rank_intervals import TIE, ranked_together, tie_tolerance
from heatproof.analysis.sequential import (
    bets,
    betting_evidence,
    betting_low,
    mixture_scale,
    t_evidence,
    t_reach,
)
from heatproof.analysis.settings import MOST_MISSING, Key, Limits, signed
from heatproof.analysis.tables import groups, positions
from heatproof.protocols import PROTOCOLS

GROWTH = 1.25  # of the images from round to round, at least
TUNED = 4  # times the images of the first round: where intervals are narrowest
TINY = 1e-300
By = Literal["mean_rank", "protocol"]


@dataclass(frozen=True)
class Question:
    """What a race is to decide.

    Attributes:
        what: ``best``, the best method; ``ranking``, the order of all; or the names of two methods,
            which of them is better.
        error: Probability that anything that is said of a model is false.
        margin: Scores that differ by less need not be told apart; None for no margin.
        by: Whether one method is best in mean rank, or one under each protocol.
        at_least: Images of the first round.
        keep: Methods that are evaluated to the end.
        exact: Whether scores with bounds are compared by bets, which holds for any distribution.
    """

    what: Literal["best", "ranking"] | tuple[str, str] = "best"
    error: float = 0.05
    margin: float | None = None
    by: By = "mean_rank"
    at_least: int = 16
    keep: tuple[str, ...] = ()
    exact: bool = False


def round_ends(images: int, at_least: int) -> list[int]:
    """Return after how many images a race looks at the scores: multiples of the first number."""
    ends = [min(at_least, images)]
    while ends[-1] < images:
        following = math.ceil(round(ends[-1] * GROWTH / at_least, 9)) * at_least
        ends.append(min(images, max(following, ends[-1] + at_least)))
    return ends


@dataclass
class Table:
    """The scores of one setting in the order in which they are evaluated.

    Attributes:
        key: Protocol, setting and baseline.
        values: Scores ``(N, M)``, higher being better; nan where there is none.
        clusters: The number of the cluster of each sample, in the order of rounds, ``(N,)``.
        limits: Lowest and highest possible score; None if there are none.
        together: Which methods are compared, ``(M, M)``; None for all.
    """

    key: Key
    values: np.ndarray
    clusters: np.ndarray
    limits: Limits = None
    together: np.ndarray | None = None


@dataclass
class PairSequences:
    """Confidence sequences of all pairs of M methods under one setting.

    Attributes:
        key: Protocol, setting and baseline.
        compared: Which pairs are compared, ``(M, M)``.
        level: The error of one pair.
        scale: The scale of the mixture.
        p: P-values of the row being ahead of the column, for all rounds so far and not adjusted.
        low: How far the row is ahead of the column at least; negative if it may be behind.
        gaps: Mean differences at the last round of a pair.
        errors: Their standard errors.
        counts: Number of clusters of a pair.
    """

    key: Key
    compared: np.ndarray
    level: float
    scale: float
    exact: bool = False
    p: np.ndarray = field(init=False)
    low: np.ndarray = field(init=False)
    gaps: np.ndarray = field(init=False)
    errors: np.ndarray = field(init=False)
    counts: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        shape = self.compared.shape
        self.p = np.ones(shape)
        self.low = np.full(shape, -np.inf)
        self.gaps = np.full(shape, np.nan)
        self.errors = np.full(shape, np.nan)
        self.counts = np.zeros(shape, dtype=int)

    @property
    def ahead(self) -> np.ndarray:  # (M, M)
        """Which methods are ahead of which."""
        return (self.p <= self.level) & self.compared

    def within(self, margin: float) -> np.ndarray:  # (M, M)
        """Return which pairs differ by less than a margin."""
        return (self.low > -margin) & (-margin < self.low.T)

    def update(self, table: Table, images: int, active: np.ndarray) -> None:
        """Look at the scores of the first images.

        Args:
            table: The scores.
            images: Number of images, or of grids.
            active: The methods that are evaluated on all of them, ``(M,)``.
        """
        chosen = np.flatnonzero(active)
        inside = table.clusters < images
        values = table.values[inside][:, chosen]
        clusters = table.clusters[inside]
        finite = np.isfinite(values)
        if not finite.any():
            return
        worst = float(values[finite].min())
        tolerance = tie_tolerance(np.nanmean(np.where(finite.any(0), values, 0.0), axis=0))
        filled = np.where(finite, values, worst)
        sizes = np.bincount(clusters, minlength=images).astype(float)
        whole = bool(finite.all())
        for row, i in enumerate(chosen.tolist()):
            others = self.compared[i, chosen]
            if not others.any():
                continue
            columns = chosen[others]
            differences = filled[:, [row]] - values[:, others]
            totals, counts = _totals(differences, clusters, sizes, whole)
            self._compare(i, columns, totals, counts, tolerance, table.limits)
            if not whole:  # what is shown is of the samples that both have a score for
                totals, counts = _totals(values[:, [row]] - values[:, others], clusters, sizes)
            self._describe(i, columns, totals, counts)

    def _compare(
        self,
        i: int,
        columns: np.ndarray,
        totals: np.ndarray,
        counts: np.ndarray,
        tolerance: float,
        limits: Limits,
    ) -> None:
        """Test whether a method is ahead of others, given sums and numbers in each cluster."""
        number, mean, variance = _moments(totals, counts)
        known = number > 1
        number = np.maximum(number, 1)
        if self.exact and limits is not None and _same_sizes(counts):
            p, low = self._bet(totals, counts, limits)
        else:
            evidence = t_evidence(number, mean, variance, self.scale)
            reach = t_reach(number, variance, self.scale, self.level)
            unseen = _unseen(totals, counts, limits)
            evidence = np.minimum(evidence, number * mean / np.maximum(unseen, TINY))
            reach = np.maximum(reach, -math.log(self.level) * unseen / number)
            p = np.where(mean > 0, np.exp(-np.maximum(evidence, 0)), 1.0)
            low = mean - reach
        p = np.where(known & (mean > tolerance), p, 1.0)
        low = np.where(known, low, -np.inf)
        self.p[i, columns] = np.minimum(self.p[i, columns], p)
        self.low[i, columns] = np.maximum(self.low[i, columns], low)

    def _bet(
        self, totals: np.ndarray, counts: np.ndarray, limits: tuple[float, float]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return p-values and lower ends by bets on the clusters' means, one after the other."""
        width = limits[1] - limits[0]
        used = counts.max(1) > 0
        means = totals[used] / np.maximum(counts[used], 1)
        scaled = np.clip((means / width + 1) / 2, 0, 1)
        one_sided = self.level / 2
        evidence = betting_evidence(scaled, bets(scaled, one_sided), 0.5).max(0, initial=0.0)
        low = betting_low(scaled, one_sided, np.array([len(scaled)]))[0]
        return 2 * np.exp(-evidence), width * (2 * low - 1)

    def _describe(
        self, i: int, columns: np.ndarray, totals: np.ndarray, counts: np.ndarray
    ) -> None:
        number, mean, variance = _moments(totals, counts)
        self.gaps[i, columns] = np.where(number > 0, mean, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.sqrt(variance / (number - 1))
        self.errors[i, columns] = np.where(number > 1, error, np.nan)
        self.counts[i, columns] = number


def _totals(
    differences: np.ndarray, clusters: np.ndarray, sizes: np.ndarray, whole: bool = False
) -> tuple[np.ndarray, np.ndarray]:  # (G, K) each
    """Return the sum and the number of finite differences ``(N, K)`` in each cluster."""
    number = len(sizes)
    if whole and number == len(differences):  # a cluster is a sample
        totals = np.empty_like(differences)
        totals[clusters] = differences
        return totals, np.broadcast_to(sizes[:, None], totals.shape)
    finite = np.isfinite(differences)
    filled = np.where(finite, differences, 0.0)
    totals = np.stack([np.bincount(clusters, column, number) for column in filled.T], 1)
    counts = np.stack([np.bincount(clusters, column, number) for column in finite.T], 1)
    return totals, counts


def _moments(
    totals: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # (K,) each
    """Return the number of clusters, the mean of all samples, and the variance of a cluster."""
    number = (counts > 0).sum(0)
    samples = np.maximum(counts.sum(0), 1)
    mean = totals.sum(0) / samples
    per_cluster = samples / np.maximum(number, 1)
    deviations = (totals - mean * counts) / per_cluster
    return number, mean, (deviations**2).sum(0) / np.maximum(number, 1)


def _unseen(totals: np.ndarray, counts: np.ndarray, limits: Limits) -> np.ndarray:  # (K,)
    """Return how large a difference can be that was not seen yet, where this matters; else 0.

    Where most differences are one and the same number, such as 0 between scores of 0 and 1, their
    spread says little: others may be too rare to have been seen in so many images. Of N images, a
    difference that none has occurs with a probability of more than log(1 / error) / N with at most
    this error.
    """
    with np.errstate(invalid="ignore"):
        means = np.where(counts > 0, totals / counts, np.nan)
    largest = np.nanmax(np.abs(means), axis=0, initial=0.0)
    if limits is not None:
        largest = np.full(len(largest), limits[1] - limits[0])
    usual = np.nanmedian(means, axis=0)
    equal = np.abs(means - usual) <= TIE * np.maximum(largest, TINY)
    piled = 2 * equal.sum(0) >= (counts > 0).sum(0)
    return np.where(piled, largest, 0.0)


def _same_sizes(counts: np.ndarray) -> bool:
    found = counts[counts > 0]
    return bool(len(found)) and bool((found == found[0]).all())


@dataclass(frozen=True)
class Drop:
    """A method that leaves a contest.

    Attributes:
        method: The method.
        images: After how many images.
        behind: The method that is certainly ahead of it; empty if it leaves for another reason.
        gap: How far that one is ahead, under the setting where this is most certain.
        least: How far at least.
        reason: ``behind``, ``placed`` (its place in the order is known), or ``no score``.
    """

    method: str
    images: int
    reason: Literal["behind", "placed", "no score"]
    behind: str = ""
    gap: float = math.nan
    least: float = math.nan


@dataclass
class Contest:
    """Methods that race under some settings of a model.

    Attributes:
        settings: Indices of the settings.
        left: Methods that may still be what is asked for, after each round.
        drops: Methods that were dropped, in order.
        ended: Why it ended: ``one left``, ``margin``, ``decided``; empty as long as it goes on.
        images: After how many images it ended, or as many as there were.
    """

    settings: list[int]
    left: list[tuple[int, list[str]]] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    ended: str = ""
    images: int = 0


class Race:
    """The race of one model's methods.

    Args:
        methods: The names of the M methods.
        tables: One per setting; with the scores of the first round or of more.
        question: What is to be decided.
        controls: Methods that never look at the model; they stay in and cannot win.

    Attributes:
        sequences: What each setting shows.
        contests: One for the mean rank, or one per protocol.
        images: Images that were looked at.
    """

    def __init__(
        self,
        methods: Sequence[str],
        tables: Sequence[Table],
        question: Question,
        controls: Collection[str] = (),
    ):
        self.methods = list(methods)
        self.question = question
        self.controls = {m for m in controls if m not in question.what}
        self.images = 0
        count = len(self.methods)
        self._real = np.array([m not in self.controls for m in self.methods], dtype=bool)
        self._kept = np.array(
            [m in self.controls or m in question.keep for m in self.methods], dtype=bool
        )
        self._in = np.ones((len(tables), count), dtype=bool)  # still evaluated
        self._scored = np.stack([np.isfinite(t.values).any(0) for t in tables])
        self.sequences: list[PairSequences] = []
        for table, scored in zip(tables, self._scored, strict=True):
            compared = scored[:, None] & scored[None, :] & ~np.eye(count, dtype=bool)
            if table.together is not None:
                compared &= table.together
            if not isinstance(question.what, str):
                pair = np.array([m in question.what for m in self.methods])
                compared &= pair[:, None] & pair[None, :]
            pairs = max(1, int(compared.sum()) // 2)
            level = question.error / (pairs * len(tables))
            scale = mixture_scale(TUNED * question.at_least, level)
            self.sequences.append(PairSequences(table.key, compared, level, scale, question.exact))
        grouped: dict[str, list[int]] = {}
        for s, table in enumerate(tables):
            name = table.key[0] if question.by == "protocol" else ""
            grouped.setdefault(name, []).append(s)
        self.contests = [Contest(settings) for settings in grouped.values()]

    @property
    def ended(self) -> bool:
        """Whether every contest is decided."""
        return all(contest.ended for contest in self.contests)

    def active(self, setting: int) -> list[str]:
        """Return the methods that are evaluated further under a setting."""
        return [m for m, is_in in zip(self.methods, self._in[setting], strict=True) if is_in]

    def look(self, tables: Sequence[Table], images: int) -> None:
        """Take a round into account: the scores of the first so many images.

        Args:
            tables: One per setting, in the same order; rows of later images are not looked at.
            images: Number of images, or of grids.
        """
        self.images = images
        for s, (sequences, table) in enumerate(zip(self.sequences, tables, strict=True)):
            if self._in[s].any():
                sequences.update(table, images, self._in[s])
        for contest in self.contests:
            if not contest.ended:
                self._decide(contest, tables, images)

    def _decide(self, contest: Contest, tables: Sequence[Table], images: int) -> None:
        contest.images = images
        used = self._applicable(contest)
        if not used:
            contest.ended = "no score"
            self._leave(contest, np.ones(len(self.methods), dtype=bool))
            return
        failing = self._failing(used, tables, images) & self._in[used].any(0)
        for i in np.flatnonzero(failing):
            if self._competes(contest, used)[i]:
                contest.drops.append(Drop(self.methods[i], images, "no score"))
        self._leave(contest, failing & ~self._kept)
        competes = self._competes(contest, used)
        gaps = self._gaps(contest, used)
        within = self._within(used)
        better = gaps > 0
        compared = np.logical_and.reduce([self.sequences[s].compared for s in used])
        if self.question.what == "best":
            behind = competes & (better & competes[:, None]).any(0)
            left = competes & ~behind
            open_pairs = compared & left[:, None] & left[None, :]
            for i in np.flatnonzero(behind).tolist():
                contest.drops.append(self._drop(i, better & competes[:, None], used, images))
            self._leave(contest, behind & ~self._kept)
            if not open_pairs.any():
                contest.ended = "one left"
            elif within[open_pairs].all():
                contest.ended = "margin"
        else:
            everyone = self._scored[used].all(0) & self._real & ~self._failed(contest)
            decided = better | better.T | within
            open_pairs = compared & everyone[:, None] & everyone[None, :] & ~decided
            placed = competes & ~open_pairs.any(1)
            left = competes & ~placed
            for i in np.flatnonzero(placed):
                contest.drops.append(Drop(self.methods[i], images, "placed"))
            self._leave(contest, placed & ~self._kept)
            if not open_pairs.any():
                contest.ended = "decided"
        contest.left.append((images, [self.methods[i] for i in np.flatnonzero(left)]))
        if contest.ended:
            self._leave(contest, np.ones(len(self.methods), dtype=bool))

    def _leave(self, contest: Contest, methods: np.ndarray) -> None:
        for s in contest.settings:
            self._in[s] &= ~methods

    def _applicable(self, contest: Contest) -> list[int]:
        """Return the settings that at least half of the methods with a score have one under."""
        counts = self._scored[contest.settings].sum(1)
        least = max(1, self._scored[contest.settings].any(0).sum() / 2)
        return [s for s, n in zip(contest.settings, counts, strict=True) if n >= least]

    def _failed(self, contest: Contest) -> np.ndarray:
        gone = {drop.method for drop in contest.drops if drop.reason == "no score"}
        return np.array([m in gone for m in self.methods], dtype=bool)

    def _competes(self, contest: Contest, used: Sequence[int]) -> np.ndarray:
        """Return which methods have scores and were not dropped."""
        gone = {drop.method for drop in contest.drops}
        there = np.array([m not in gone for m in self.methods], dtype=bool)
        asked = np.ones(len(self.methods), dtype=bool)
        if not isinstance(self.question.what, str):
            asked = np.array([m in self.question.what for m in self.methods], dtype=bool)
        return there & asked & self._real & self._scored[list(used)].all(0)

    def _failing(self, used: Sequence[int], tables: Sequence[Table], images: int) -> np.ndarray:
        """Return which methods lack a score on more than a tenth of the usual samples."""
        failing = np.zeros(len(self.methods), dtype=bool)
        for s in used:
            active = self._in[s] & self._scored[s]
            finite = np.isfinite(tables[s].values[tables[s].clusters < images])
            usual = 2 * finite[:, active].sum(1) >= max(1, active.sum())
            failing |= active & ((~finite[usual]).sum(0) > MOST_MISSING * usual.sum())
        return failing

    def _gaps(self, contest: Contest, used: Sequence[int]) -> np.ndarray:  # (M, M)
        """Return by how many mean ranks the row is ahead of the column at least."""
        protocols = [self.sequences[s].key[0] for s in used]
        names = list(dict.fromkeys(protocols))
        weights = [1 / (len(names) * protocols.count(p)) for p in protocols]
        everyone = self._scored[list(used)].all(0) & ~self._failed(contest)
        chosen = np.flatnonzero(everyone)
        block = np.ix_(chosen, chosen)
        fewer = [int((self._scored[s] & ~self._failed(contest)).sum()) - len(chosen) for s in used]
        relations = [self.sequences[s].ahead[block] for s in used]
        found = least_gaps(weights, relations, fewer, len(chosen))
        gaps = np.full((len(self.methods),) * 2, -np.inf)
        gaps[block] = found
        return gaps

    def _within(self, used: Sequence[int]) -> np.ndarray:  # (M, M)
        """Return which pairs differ by less than the margin under all settings."""
        if self.question.margin is None:
            return np.zeros((len(self.methods),) * 2, dtype=bool)
        return np.logical_and.reduce([self.sequences[s].within(self.question.margin) for s in used])

    def _drop(self, i: int, better: np.ndarray, used: Sequence[int], images: int) -> Drop:
        """Say which method is most certainly ahead of one that is dropped."""
        s, j = min(
            ((s, j) for s in used for j in np.flatnonzero(better[:, i])),
            key=lambda place: (self.sequences[place[0]].p[place[1], i], place),
        )
        found = self.sequences[s]
        return Drop(
            self.methods[i],
            images,
            "behind",
            self.methods[j],
            float(found.gaps[j, i]),
            float(found.low[j, i]),
        )


def hold_race(
    methods: Sequence[str],
    tables: Sequence[Table],
    question: Question,
    controls: Collection[str] = (),
    ends: Sequence[int] | None = None,
) -> Race:
    """Hold a race over scores that are there, as it would have gone.

    Args:
        methods: The names of the methods.
        tables: One per setting, with as many rows as there are.
        question: What is to be decided.
        controls: Methods that cannot win.
        ends: After how many images to look; by default as `round_ends` says.
    """
    race = Race(methods, tables, question, controls)
    images = max((int(t.clusters.max(initial=-1)) + 1 for t in tables), default=0)
    for end in ends if ends is not None else round_ends(images, question.at_least):
        race.look(tables, end)
        if race.ended:
            break
    return race


def tables_of(
    rows: pd.DataFrame,
    limits: Mapping[Key, Limits] | None = None,
    layers: RankedLayers | None = None,
) -> dict[str, tuple[list[str], list[Table]]]:
    """Arrange the rows of a run for races: the methods of each model, and a table per setting.

    Args:
        rows: The scores of a run, in the order in which they were evaluated.
        limits: Lowest and highest possible scores of settings; by default those of the protocol.
        layers: The layer within which each method is ranked (see `ranks.ranked_layers`).
    """
    found: dict[str, tuple[list[str], list[Table]]] = {}
    for (model,), of_model in groups(rows, ["model"]):
        methods = [str(method) for method in of_model["method"].unique()]
        together = ranked_together([(layers or {}).get((model, m), "") for m in methods])
        tables = []
        for (protocol, setting, baseline), part in groups(of_model, GROUP[1:]):
            entry = PROTOCOLS[protocol].cls
            if not entry.ranked:
                continue
            key = (protocol, setting, baseline)
            bounds = (limits or {}).get(key, range_of(protocol))
            sign = 1 if entry.higher_is_better else -1
            samples, names = pd.factorize(part["sample"])
            values = np.full((len(names), len(methods)), np.nan)
            values[samples, positions(part["method"], methods)] = sign * part["value"].to_numpy()
            clusters = samples
            if "cluster" in part:
                clusters = pd.factorize(part["cluster"])[0]
            of_sample = np.zeros(len(names), dtype=np.intp)
            of_sample[samples] = clusters
            tables.append(Table(key, values, of_sample, signed(bounds, sign), together))
        found[model] = (methods, tables)
    return found
