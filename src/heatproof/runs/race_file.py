"""``race.json``: what a run was to decide, and which methods it dropped when, and why."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from heatproof.runs.format import Content, Count, Finite, Setting

Name = Annotated[str, Field(max_length=10_000)]


class RecordedDrop(Content):
    """A method that left a race, and the numbers that decided it.

    Attributes:
        method: The method.
        images: After how many images, or grids.
        reason: ``behind`` another method, ``placed`` in the order, or ``no score``.
        behind: The method that is certainly ahead of it.
        setting: The setting under which this is most certain.
        gap: How far that one is ahead there.
        least: How far at least.
    """

    method: Name
    images: Count
    reason: Literal["behind", "placed", "no score"]
    behind: Name = ""
    setting: Setting | None = None
    gap: Finite | None = None
    least: Finite | None = None


class RecordedContest(Content):
    """Methods that raced under some settings of a model.

    Attributes:
        settings: The settings.
        images: After how many images it ended, or how many there were so far.
        ended: Why it ended; empty if it did not.
        left: After each round, the number of images and the methods that were left.
        drops: The methods that left, in order.
    """

    settings: tuple[Setting, ...]
    images: Count
    ended: Name = ""
    left: tuple[tuple[Count, tuple[Name, ...]], ...] = ()
    drops: tuple[RecordedDrop, ...] = ()


class RecordedRace(Content):
    """The race of the methods of one model."""

    model: Name
    contests: tuple[RecordedContest, ...] = ()


class RaceFile(Content):
    """``race.json``; without a question, the run had a fixed number of images.

    Attributes:
        question: What was to be decided, as a spec has it.
        ends: After how many images the scores were looked at.
        most: How many images there were.
        races: One per model.
    """

    question: dict[str, Any] | None = None
    ends: tuple[Count, ...] = ()
    most: Count = 0
    races: tuple[RecordedRace, ...] = ()
