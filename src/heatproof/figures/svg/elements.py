"""SVG elements and the text in them."""

from __future__ import annotations

import re
from pathlib import Path

from markupsafe import Markup, escape

from heatproof.figures.numbers import LONGEST_LABEL, shortened
from heatproof.figures.palette import FAMILIES, family_class

STYLE = (Path(__file__).parent / "chart.css").read_text(encoding="utf-8")
CHARACTER = 6.9  # width of one character at 12 px
LONG = 40  # where methods differ in their arguments and layers
PRINT_COLOURS = {
    "--ink": "#1d1c24",
    "--soft": "#5f5e69",
    "--line": "#dcdae2",
    "--card": "#ffffff",
    "--hover": "#f1eff6",
}


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


def label_width(labels: list[str], longest: int = LONGEST_LABEL, shortest: int = 0) -> float:
    """Return the width in px of the longest label, as it is shown.

    Args:
        labels: The labels.
        longest: Characters after which they are cut.
        shortest: The least number of characters.
    """
    shown = [len(shortened(label, longest)) for label in labels]
    return max(shortest, *shown, 0) * CHARACTER


def svg(width: float, height: float, title: str, *children: str, kind: str) -> Markup:
    """Return a figure.

    Args:
        width: Its width in px.
        height: Its height in px.
        title: Read by screen readers.
        *children: What it shows.
        kind: Its CSS class.
    """
    return tag(
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
