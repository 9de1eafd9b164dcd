"""A number of a run beside a published one, and whether it reproduces it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import pandas as pd

from heatproof.analysis import wording
from heatproof.analysis.families import LEVEL
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.published_tables import Entry, PublishedTable
from heatproof.runs.format import SaidNetwork

NO_ESTIMATE = Estimate(math.nan, math.nan, math.nan)
MARGIN = 0.05  # of the range of a score, or of the published value if there is no range


@dataclass(frozen=True)
class Line:
    """A published number beside that of a run.

    Attributes:
        entry: The published number.
        model: The model of the run.
        found: The run's number; nan if it has none.
        images: How many images or maps it is a mean over; 0 if it is none.
        range: Lowest and highest possible value; None if there are none.
        reason: Why it is not comparable; empty if it is.
        difference: The run's number minus the published one, with an interval that holds for all
            comparable numbers of the table together.
        verdict: ``reproduced``, ``differs``, ``undecided`` or ``not comparable``.
        needed: How many images would decide it, if it is undecided; infinity if that is not known.
        said_by: How the run's user has said that the model is the paper's network; empty if that is
            not how it is known.
    """

    entry: Entry
    model: str
    found: Estimate
    images: int
    range: tuple[float, float] | None
    reason: str
    difference: Estimate = NO_ESTIMATE
    verdict: str = wording.NOT_COMPARABLE
    needed: float = math.inf
    said_by: str = ""

    @property
    def margin(self) -> float:
        """The largest difference of a reproduced number."""
        if self.range is None:
            return MARGIN * abs(self.entry.value)
        return MARGIN * (self.range[1] - self.range[0])

    @property
    def shown_verdict(self) -> str:
        """The verdict, and by whom the network is known to be the paper's."""
        return wording.said_by(self.verdict, self.said_by)

    def judged(self, numbers: int, images: int) -> Line:
        """Decide whether the number is reproduced.

        Args:
            numbers: How many comparable numbers the table has.
            images: How many images the paper had.
        """
        value, low, high = self.found
        gap = value - self.entry.value
        difference = Estimate(gap, math.nan, math.nan)
        if self.reason:
            return replace(self, difference=difference)
        if not math.isfinite(low):
            return replace(self, difference=difference, verdict=wording.UNDECIDED)
        # for all numbers together, and with the error of the paper's own sample
        wider = _joint_quantile(numbers) * math.sqrt(1 + (self.images or images) / images)
        below = wider * (value - low) + self.entry.rounding
        above = wider * (high - value) + self.entry.rounding
        difference = Estimate(gap, gap - below, gap + above)
        inside = max(abs(difference.low), abs(difference.high)) <= self.margin
        outside = difference.low > 0 or difference.high < 0
        verdict = wording.UNDECIDED
        if inside or outside:
            verdict = wording.REPRODUCED if inside else wording.DIFFERS
        room = abs(self.margin - abs(gap)) - self.entry.rounding
        half = wider * max(value - low, high - value)
        needed = math.ceil(self.images * (half / room) ** 2) if room > 0 else math.inf
        return replace(self, difference=difference, verdict=verdict, needed=needed or math.inf)


@cache
def _joint_quantile(numbers: int) -> float:
    """Return by how much intervals are widened to hold together for several numbers."""
    from scipy.special import ndtri  # slow to import

    return float(ndtri(1 - LEVEL / (2 * max(1, numbers))) / ndtri(1 - LEVEL / 2))


class Correlation(NamedTuple):
    """The rank correlation of a run with print.

    Attributes:
        model: The model of the run.
        of: The protocol, or the quantity whose ranks are compared.
        over: What is ranked: ``method`` or ``baseline``.
        estimate: Spearman's correlation; it has an interval over methods.
        number: How many are ranked.
    """

    model: str
    of: str
    over: str
    estimate: Estimate
    number: int


@dataclass(frozen=True)
class Comparison:
    """A run beside a published table.

    Attributes:
        table: The published table.
        lines: The numbers that the run has too.
        correlations: The rank correlations of the run's methods, or baselines, with the published
            ones.
        missing: Why the run lacks the other numbers, and how many for each reason.
        same_as: What the user says of the models that are compared.
    """

    table: PublishedTable
    lines: list[Line]
    correlations: list[Correlation]
    missing: dict[str, int]
    same_as: list[SaidNetwork] = field(default_factory=list)

    def to_frame(self) -> pd.DataFrame:
        """Return one line per number: the published one, the run's, and the verdict."""
        return pd.DataFrame(
            [
                {
                    "row": line.entry.row,
                    "quantity": line.entry.quantity,
                    "model": line.model,
                    "protocol": line.entry.protocol,
                    "method": line.entry.method,
                    "published": line.entry.value,
                    "published_spread": line.entry.spread,
                    "run": line.found.value,
                    "low": line.found.low,
                    "high": line.found.high,
                    "difference": line.difference.value,
                    "difference_low": line.difference.low,
                    "difference_high": line.difference.high,
                    "margin": line.margin,
                    "n": line.images,
                    "verdict": line.verdict,
                    "said_by": line.said_by,
                    "reason": line.reason,
                    "needed": line.needed if math.isfinite(line.needed) else math.nan,
                }
                for line in self.lines
            ]
        )
