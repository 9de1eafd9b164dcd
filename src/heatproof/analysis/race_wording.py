"""What a race dropped, why it ended and what it saved, in words.

Which method wins is said by `wording` alone. That one is *certainly* behind another means that the
bounds of its race say so, with an error rate for all rounds, methods and settings together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.race import Contest, Drop, Race
from heatproof.analysis.race_lanes import Lane, Lanes
from heatproof.analysis.wording import estimate, names, percent
from heatproof.plan.question import Question
from heatproof.text import counted

if TYPE_CHECKING:
    from heatproof.analysis.race_forecast import RaceForecast


def dropped(drop: Drop) -> str:
    """Say why a method left a race: "certainly behind `ig`"."""
    if drop.reason == "behind":
        return f"certainly behind `{drop.behind}`"
    if drop.reason == "placed":
        return "its place in the order is decided"
    return "no score on more than a tenth of the images"


def drops(contest: Contest) -> list[str]:
    """Say which methods left a race after each round, one sentence each."""
    rounds: dict[int, list[Drop]] = {}
    for drop in contest.drops:
        rounds.setdefault(drop.images, []).append(drop)
    return [
        f"Dropped after {counted(images, 'image')}: "
        + ", ".join(f"`{drop.method}` ({dropped(drop)})" for drop in of_round)
        + "."
        for images, of_round in rounds.items()
    ]


def ending(race: Race, contest: Contest, most: int) -> str:
    """Say why a race ended, or that it did not.

    Args:
        race: The race.
        contest: The methods that raced.
        most: How many images there were.
    """
    left = contest.left[-1][1] if contest.left else []
    margin = race.question.margin
    reasons = {
        "no score": "no method has a score",
        "one left": "one method remains" if left else "no method remains",
        "margin": f"{names(left)} remain, which differ by less than {margin:g}" if margin else "",
        "decided": f"the order of {names(race.question.pair) or 'all methods'} is decided",
    }
    if margin:
        reasons["decided"] += f", or they differ by less than {margin:g}"
    if contest.ended:
        return (
            f"Stopped after {contest.images} of {counted(most, 'image')}: {reasons[contest.ended]}."
        )
    return (
        f"Not decided after {counted(contest.images, 'image')}: {names(left)} remain. More "
        "images may decide it, or a margin within which methods need not be told apart."
    )


def saved(maps: int, of: int) -> str:
    """Say how many maps were computed, of those that all images would have taken."""
    return f"{maps:,} of {of:,} maps were computed ({percent(maps / of)})." if of else ""


def more(lanes: Sequence[Lane]) -> str:
    """Say what more images would buy those that are left; empty if nothing is known."""
    found = [
        f"about {counted(int(lane.needed), 'image')} would tell `{lane.rival}` from `{lane.method}`"
        for lane in lanes[1:]
        if math.isfinite(lane.needed)
    ]
    return f"If differences stay as they are, {', '.join(found[:3])}." if found else ""


def story(
    contests: Sequence[Lanes],
    most: int,
    title: Callable[[str], str] = str,
) -> list[str]:
    """Tell each race: who was dropped when, and why it ended.

    Args:
        contests: The races.
        most: How many images there were.
        title: Returns the name of a model as it is shown.
    """
    found: list[str] = []
    for of_contest in contests:
        race, contest = of_contest.race, of_contest.contest
        under = f" under {of_contest.keys[0][0]}" if len(race.contests) > 1 else ""
        sentences = [*drops(contest), ending(race, contest, most)]
        if not contest.ended and len(of_contest.keys) == 1:
            sentences.append(more([lane for lane in of_contest.lanes if lane.drop is None]))
        found.append(f"{title(of_contest.model)}{under}: {' '.join(filter(None, sentences))}")
    return found


def asked(question: Question) -> str:
    """Say what a race was to decide, and with which error."""
    what = {"best": "Which method is the best", "ranking": "The order of all methods"}
    pair = f"Which of {names(question.pair)} is better"
    asked_for = pair if question.pair else what[str(question.what)]
    by = " under each protocol" if question.by == "protocol" else ""
    margin = question.margin
    alike = f", or whether those that remain differ by less than {margin:g}" if margin else ""
    return (
        f"{asked_for}{by}{alike}: images were evaluated until this was decided. The probability "
        f"that any method is dropped wrongly, in any round, is at most {percent(question.error)}."
    )


def lane(found: Lane) -> str:
    """Say how far the method of a lane is behind, or that it is in front."""
    if found.drop is not None and found.drop.reason != "behind":
        return dropped(found.drop)
    if found.gap is None:
        return "still in"
    gap = found.gap
    if found.drop is None and gap.value <= 0:
        turned = Estimate(-gap.value, -gap.high, -gap.low)
        return f"still in, {estimate(turned, 3)} ahead of {found.rival}"
    return f"{'still in, ' if found.drop is None else ''}{estimate(gap, 3)} behind {found.rival}"


def forecast(found: RaceForecast) -> list[str]:
    """Say what a race will take, by a pilot."""
    images, maps, passes = (
        f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"
        for low, middle, high in (found.images, found.maps, found.passes)
    )
    return [
        f"By {counted(found.pilot, 'image')} of a pilot, a race takes about, and in 8 of 10 cases "
        "(in brackets):",
        f"images: {images} of {found.of_images:,}",
        f"maps: {maps} of {found.of_maps:,}",
        f"passes: {passes} of {found.of_passes:,}",
        f"It is decided before the images end in {percent(found.decided)} of the cases.",
    ]
