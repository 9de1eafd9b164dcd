"""What a run is to decide, so that it can stop as soon as its images have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from heatproof.errors import HeatproofError, format_invalid, unknown
from heatproof.runs.format import SHARD_SIZE

GROWTH = 1.25  # of the images from round to round, at least


class Question(BaseModel):
    """What a race of methods is to decide, and how certainly."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    what: Literal["best", "ranking"] | tuple[str, str] = Field(
        default="best",
        description="best: the best method; ranking: the order of all; [mine, gradcam]: which of "
        "two methods is better",
    )
    error: float = Field(
        default=0.05,
        gt=0,
        le=0.05,
        description="probability of a wrong drop, at most 0.05 like that of any statement",
    )
    margin: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="mean scores that differ by less need not be told apart; by default all do",
    )
    by: Literal["mean_rank", "protocol"] = Field(
        default="mean_rank",
        description="whether one method is asked for, by mean rank, or one under each protocol",
    )
    at_least: int = Field(default=16, ge=4, description="images of the first round")
    at_most: int | None = Field(
        default=None, ge=4, description="images at which it ends undecided; by default all"
    )
    keep: tuple[str, ...] = Field(
        default=(), description="methods that are evaluated to the end, whatever they score"
    )
    exact: bool = Field(
        default=False,
        description="whether scores with a range are compared by bets, which hold for scores of "
        "any distribution and take more images",
    )

    @field_validator("keep", mode="before")
    @classmethod
    def _expand_keep(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("what", mode="before")
    @classmethod
    def _check_what(cls, value: object) -> object:
        named = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
        if value not in ("best", "ranking") and not (named and len(value) == 2):  # type: ignore[arg-type]
            raise ValueError("is best, ranking, or two methods such as [mine, gradcam]")
        return value

    @field_validator("what")
    @classmethod
    def _differ(cls, value: str | tuple[str, str]) -> str | tuple[str, str]:
        if not isinstance(value, str) and value[0] == value[1]:
            raise ValueError(f"names the same method twice: {value[0]}; name two methods")
        return value

    @model_validator(mode="after")
    def _check_images(self) -> Question:
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(
                f"at_most: {self.at_most} is less than at_least: {self.at_least}, the images of "
                "the first round; raise the one, or lower the other"
            )
        return self

    @property
    def step(self) -> int:
        """Images of one task: rounds are multiples of it, so that no task is cut by one."""
        return min(self.at_least, SHARD_SIZE)

    @property
    def first(self) -> int:
        """Images of the first round."""
        return math.ceil(self.at_least / self.step) * self.step

    @property
    def pair(self) -> tuple[str, ...]:
        """The two methods that are asked about; none if all are."""
        return () if isinstance(self.what, str) else self.what

    def rounds(self, images: int) -> list[int]:
        """Return after how many images the scores are looked at."""
        most = min(images, self.at_most or images)
        ends = [min(most, self.first)]
        while ends[-1] < most:
            following = math.ceil(round(ends[-1] * GROWTH / self.step, 9)) * self.step
            ends.append(min(most, max(following, ends[-1] + self.step)))
        return ends


def as_question(given: Question | Mapping[str, Any] | bool | None) -> Question | None:
    """Return what is to be decided; None if nothing is.

    Raises:
        HeatproofError: If a setting is unknown or not valid.
    """
    if given is None or isinstance(given, Question):
        return given
    if isinstance(given, bool):
        return Question() if given else None
    if not isinstance(given, Mapping):
        raise HeatproofError(f"decide is True, or settings such as margin=0.02; got {given!r}")
    for key in given:
        if key not in Question.model_fields:
            raise unknown("key", key, Question.model_fields, "(in decide)")
    try:
        return Question.model_validate(given)
    except ValidationError as error:
        raise HeatproofError(f"decide: {format_invalid(error.errors()[0])}") from None
