"""Numbers, intervals and names as figures and pages write them."""

from __future__ import annotations

import math
from collections.abc import Callable

LONGEST_LABEL = 24  # characters; the rest is in the tooltip


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with a real minus sign; a dash stands for None, nan and infinity."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}"
    if not text.startswith("-"):
        return text
    sign = "−" if float(text) else ""  # no negative zero
    return sign + text[1:]


def interval(
    value: float,
    low: float,
    high: float,
    digits: int = 3,
    write: Callable[[float, int], str] = number,
) -> str:
    """Format the interval of an estimate; a single sample has none.

    Every interval of a report is written by this function, together with its estimate, so that a
    test can check that it contains it.

    Args:
        value: The estimate.
        low: Lower bound of its interval.
        high: Upper bound of its interval.
        digits: Digits after the decimal point.
        write: Formats a number with that many digits.
    """
    if not math.isfinite(low):
        return "no interval"
    return f"{write(low, digits)} to {write(high, digits)}"


def shortened(text: str, length: int = LONGEST_LABEL) -> str:
    """Cut a text to at most ``length`` characters and mark the cut."""
    return text if len(text) <= length else text[: length - 1] + "…"


def rank_text(rank: float) -> str:
    """Format a rank, with a digit where methods share it."""
    return f"{rank:.0f}" if abs(rank - round(rank)) < 1e-9 else f"{rank:.1f}"
