"""SVG elements and the text in them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup, escape

from heatproof.figures.palette import FAMILIES, family_class

STYLE = (Path(__file__).parent / "chart.css").read_text(encoding="utf-8")
CHARACTER = 6.9  # width of one character at 12 px
LONGEST = 24  # characters of a label; the rest is in the tooltip
LONG = 40  # where methods differ in their arguments and layers
PRINT_COLOURS = {
    "--ink": "#1d1c24",
    "--soft": "#5f5e69",
    "--line": "#dcdae2",
    "--card": "#ffffff",
    "--hover": "#f1eff6",
}


class Chart(Markup):
    """A figure with the numbers that it shows.

    Attributes:
        rows: The numbers, one row per mark, with the same columns; they are saved as CSV.
    """

    rows: Sequence[Mapping[str, object]] = ()


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """Return an element; everything that is not markup already is escaped.

    Args:
        name: Name of the element.
        *children: Text and elements inside it.
        **attributes: Attributes by name, where ``class_`` stands for ``class`` and ``data_tip``
            for ``data-tip``. ``None`` leaves an attribute out.
    """
    written = []
    for key, value in attributes.items():
        if value is not None:
            attribute = key.rstrip("_").replace("_", "-")
            written.append(f' {attribute}="{escape(_attribute_text(value))}"')
    inside = "".join(escape(child) for child in children)
    return Markup(f"<{name}{''.join(written)}>{inside}</{name}>")


def _attribute_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


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


def shortened(text: str, length: int = LONGEST) -> str:
    """Cut a text to at most ``length`` characters and mark the cut."""
    return text if len(text) <= length else text[: length - 1] + "…"


def label_width(labels: list[str], longest: int = LONGEST, shortest: int = 0) -> float:
    """Return the width in px of the longest label, between two numbers of characters."""
    characters = max(shortest, *(len(label) for label in labels)) if labels else shortest
    return min(longest, characters) * CHARACTER


def svg(
    width: float,
    height: float,
    title: str,
    *children: str,
    kind: str,
    rows: Sequence[Mapping[str, object]] = (),
) -> Chart:
    """Return a figure.

    Args:
        width: Its width in px.
        height: Its height in px.
        title: Read by screen readers.
        *children: What it shows.
        kind: Its CSS class.
        rows: The numbers that it shows.
    """
    drawn = tag(
        "svg",
        tag("title", title),
        *children,
        xmlns="http://www.w3.org/2000/svg",
        class_=f"chart {kind}",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        role="img",
    )
    chart = Chart(drawn)
    chart.rows = rows
    return chart


def overlay(side: int, *children: str, kind: str) -> Markup:
    """Return an SVG of ``side`` by ``side`` units that is stretched over a picture."""
    return tag(
        "svg",
        *children,
        class_=kind,
        viewBox=f"0 0 {side} {side}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def print_style() -> str:
    """Return the style of figures that stand alone, with the colours for white paper."""
    colours = {f"--{family_class(name)}": family.light for name, family in FAMILIES.items()}
    colours |= PRINT_COLOURS
    return re.sub(r"var\((--[\w-]+)\)", lambda match: colours[match[1]], STYLE)


def standalone(figure: Markup) -> str:
    """Return a figure as a file of its own, with its colours inside, for papers and slides."""
    opening, rest = str(figure).split(">", 1)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"{opening}><style>{print_style()}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/>{rest}\n'
    )
