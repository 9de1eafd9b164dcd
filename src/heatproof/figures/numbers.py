"""Numbers, intervals and names as figures and pages write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

LONGEST_LABEL = 24  # characters; the rest is in the tooltip
NO_NAMES: Mapping[str, str] = {}
_LABELS: ContextVar[Mapping[str, str]] = ContextVar("labels", default=NO_NAMES)


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


@contextmanager
def labelling(labels: Iterable[str], names: Mapping[str, str]) -> Iterator[None]:
    """Label the parts of one figure: no two labels are cut to the same text in this context.

    Args:
        labels: The labels of the figure.
        names: What is written in place of some labels, such as the names of a paper.
    """
    names = {label: names.get(label, label) for label in labels}
    if len(set(names.values())) < len(names):
        names = {label: label for label in names}
    token = _LABELS.set(names)
    try:
        yield
    finally:
        _LABELS.reset(token)


def shortened(text: str, length: int = LONGEST_LABEL) -> str:
    """Cut a label to at most ``length`` characters and mark the cut.

    What follows the arguments of a method, such as ``|abs``, stays. In a figure (`labelling`), a
    label is not cut if another label would look the same.
    """
    names = _LABELS.get()
    name = names.get(text, text)
    short = _cut(name, length)
    if short != name and any(n != name and _cut(n, length) == short for n in names.values()):
        return name
    return short


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    head, bracket, tail = text.rpartition(")")
    room = length - 1 - len(bracket + tail)
    if bracket and room > text.index("("):
        return f"{head[:room]}…{bracket}{tail}"
    return f"{text[: length - 1]}…"


def rank_text(rank: float) -> str:
    """Format a rank, with a digit where methods share it."""
    return f"{rank:.0f}" if abs(rank - round(rank)) < 1e-9 else f"{rank:.1f}"
