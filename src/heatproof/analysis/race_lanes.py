"""The lanes of a race: which method was in for how many images, and how far it was behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.race import Contest, Drop, Race
from heatproof.analysis.settings import Key

ENOUGH = 10_000_000  # images that nobody evaluates


@dataclass(frozen=True)
class Lane:
    """A method of a race.

    Attributes:
        method: The method.
        images: How many images it could still be what is asked for.
        evaluated: How many it was evaluated on.
        drop: Why it left; None if it was left at the end.
        rival: The method that it is compared with: the one that is ahead, or the first of those
            left.
        gap: How far it is behind that one, with the interval that all looks together allow; None if
            it is not compared.
        setting: The setting under which this is.
        needed: About how many images would tell it from that one, if the difference stays as it is;
            infinity if none would.
    """

    method: str
    images: int
    evaluated: int
    drop: Drop | None = None
    rival: str = ""
    gap: Estimate | None = None
    setting: Key | None = None
    needed: float = math.nan


def lanes_of(race: Race, contest: Contest) -> list[Lane]:
    """Return the lanes of a contest: those left, then the others, the last to leave first."""
    evaluated = race.evaluated(contest.settings[0])
    left = contest.left[-1][1] if contest.left else []
    found = []
    leader = _leader(race, contest, left)
    for method in sorted(left, key=lambda m: (m != leader, left.index(m))):
        rival = next((m for m in left if m != method), "") if method == leader else leader
        setting = _widest(race, contest, rival, method) if rival else None
        found.append(
            Lane(
                method,
                contest.images,
                evaluated[method],
                None,
                rival,
                None if setting is None else _gap(race, setting, rival, method),
                None if setting is None else race.sequences[setting].key,
                math.nan if setting is None else _needed(race, setting, rival, method),
            )
        )
    for drop in reversed(contest.drops):
        behind = drop.reason == "behind" and drop.setting is not None
        found.append(
            Lane(
                drop.method,
                drop.images,
                evaluated[drop.method],
                drop,
                drop.behind,
                _gap(race, drop.setting or 0, drop.behind, drop.method) if behind else None,
                race.sequences[drop.setting or 0].key if behind else None,
            )
        )
    return found


@dataclass(frozen=True)
class Lanes:
    """A contest of a run, lane by lane.

    Attributes:
        model: The model.
        race: Its race.
        contest: The methods that raced.
        lanes: Their lanes; those of controls and methods without a score are missing.
    """

    model: str
    race: Race
    contest: Contest
    lanes: list[Lane]

    @property
    def keys(self) -> list[Key]:
        """The settings under which they raced."""
        return [self.race.sequences[s].key for s in self.contest.settings]


def all_lanes(races: Mapping[str, Race]) -> list[Lanes]:
    """Return the lanes of all contests of the race of each model."""
    return [
        Lanes(model, race, contest, lanes_of(race, contest))
        for model, race in races.items()
        for contest in race.contests
    ]


def maps_of(race: Race) -> int:
    """Return how many maps a race took: of each method, those of the setting that took most."""
    under = [race.evaluated(s) for s in range(len(race.sequences))]
    return sum(max(of_setting[method] for of_setting in under) for method in race.methods)


def _leader(race: Race, contest: Contest, left: list[str]) -> str:
    """Return the method of those left whose mean differences from the others are best."""
    if not left:
        return ""
    columns = [race.methods.index(method) for method in left]
    sums = [
        sum(
            float(race.sequences[s].gaps[i, j])
            for s in contest.settings
            for j in columns
            if j != i and math.isfinite(race.sequences[s].gaps[i, j])
        )
        for i in columns
    ]
    return left[max(range(len(left)), key=lambda k: sums[k])]


def _widest(race: Race, contest: Contest, ahead: str, behind: str) -> int | None:
    """Return the setting under which one method is most standard errors ahead of another."""
    i, j = race.methods.index(ahead), race.methods.index(behind)
    known = [s for s in contest.settings if race.sequences[s].errors[i, j] > 0]

    def statistic(s: int) -> float:
        return abs(float(race.sequences[s].gaps[i, j] / race.sequences[s].errors[i, j]))

    return max(known, key=statistic, default=None)


def _gap(race: Race, setting: int, ahead: str, behind: str) -> Estimate:
    sequences = race.sequences[setting]
    i, j = race.methods.index(ahead), race.methods.index(behind)
    low, high = float(sequences.low[i, j]), -float(sequences.low[j, i])
    value = float(sequences.gaps[i, j])
    return Estimate(value, min(low, value), max(high, value))


def _needed(race: Race, setting: int, ahead: str, behind: str) -> float:
    sequences = race.sequences[setting]
    i, j = race.methods.index(ahead), race.methods.index(behind)
    return sequences.images_for(i, j, ENOUGH)
