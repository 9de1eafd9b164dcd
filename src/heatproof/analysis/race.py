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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from heatproof.analysis.evidence import least_gaps
from heatproof.analysis.pair_sequences import PairSequences, Table
from heatproof.analysis.sequential import mixture_scale
from heatproof.analysis.settings import MOST_MISSING
from heatproof.plan.question import Question

TUNED = 4  # times the images of the first round: where intervals are narrowest


@dataclass(frozen=True)
class Drop:
    """A method that leaves a contest.

    Attributes:
        method: The method.
        images: After how many images.
        behind: The method that is certainly ahead of it; empty if it leaves for another reason.
        setting: The index of the setting under which this is most certain.
        gap: How far that one is ahead there.
        least: How far at least.
        reason: ``behind``, ``placed`` (its place in the order is known), or ``no score``.
    """

    method: str
    images: int
    reason: Literal["behind", "placed", "no score"]
    behind: str = ""
    setting: int | None = None
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
        self.controls = set(controls) - set(question.pair)
        self.images = 0
        count = len(self.methods)
        self._real = np.array([m not in self.controls for m in self.methods], dtype=bool)
        self._kept = np.array(
            [m in self.controls or m in question.keep for m in self.methods], dtype=bool
        )
        self._in = np.ones((len(tables), count), dtype=bool)  # still evaluated
        self._until = np.zeros((len(tables), count), dtype=int)
        first_round = [t.values[t.clusters < question.first] for t in tables]
        self._scored = np.stack([np.isfinite(values).any(0) for values in first_round])
        self.sequences: list[PairSequences] = []
        for table, scored in zip(tables, self._scored, strict=True):
            compared = scored[:, None] & scored[None, :] & ~np.eye(count, dtype=bool)
            if table.together is not None:
                compared &= table.together
            if question.pair:
                pair = np.array([m in question.pair for m in self.methods])
                compared &= pair[:, None] & pair[None, :]
            pairs = max(1, int(compared.sum()) // 2)
            level = question.error / (pairs * len(tables))
            scale = mixture_scale(TUNED * question.at_least, level)
            self.sequences.append(
                PairSequences(
                    table.key,
                    self.methods,
                    compared,
                    level,
                    scale,
                    question.exact,
                    table.together,
                )
            )
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

    def evaluated(self, setting: int) -> dict[str, int]:
        """Return after how many images each method left a setting, or how many there were."""
        until = np.where(self._in[setting], self.images, self._until[setting])
        return dict(zip(self.methods, until.tolist(), strict=True))

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
        self._leave(contest, ~self._scored[used].all(0) & ~self._kept)  # it cannot be ranked
        failing = self._failing(used, tables, images) & self._in[used].any(0)
        for i in np.flatnonzero(failing).tolist():
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
            for i in np.flatnonzero(placed).tolist():
                contest.drops.append(Drop(self.methods[i], images, "placed"))
            self._leave(contest, placed & ~self._kept)
            if not open_pairs.any():
                contest.ended = "decided"
        contest.left.append((images, [self.methods[i] for i in np.flatnonzero(left)]))
        if contest.ended:
            self._leave(contest, np.ones(len(self.methods), dtype=bool))

    def _leave(self, contest: Contest, methods: np.ndarray) -> None:
        for s in contest.settings:
            self._until[s, self._in[s] & methods] = self.images
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
        if self.question.pair:
            asked = np.array([m in self.question.pair for m in self.methods], dtype=bool)
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
            ((s, j) for s in used for j in np.flatnonzero(better[:, i]).tolist()),
            key=lambda place: (self.sequences[place[0]].p[place[1], i], place),
        )
        found = self.sequences[s]
        return Drop(
            self.methods[i],
            images,
            "behind",
            self.methods[j],
            s,
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
        ends: After how many images to look; by default as the question says.
    """
    race = Race(methods, tables, question, controls)
    images = max((int(t.clusters.max(initial=-1)) + 1 for t in tables), default=0)
    for end in ends if ends is not None else question.rounds(images):
        race.look(tables, end)
        if race.ended:
            break
    return race
