"""The templates of the report: text from a run is escaped, and numbers are written in one way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import (
    BytecodeCache,
    ChoiceLoader,
    Environment,
    FunctionLoader,
    PackageLoader,
    StrictUndefined,
)
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from heatproof.figures import svg
from heatproof.figures.numbers import interval, number, shortened
from heatproof.figures.palette import colour_tables, family_class
from heatproof.report.plain import described
from heatproof.report.sections import ordered_sections
from heatproof.text import short_titles


class _Compiled(BytecodeCache):
    """Templates that this process has compiled, for all pages of all its reports.

    Jinja keys them by their source; none has a constant expression that names a model.
    """

    def __init__(self) -> None:
        self._codes: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._codes:
            bucket.bytecode_from_string(self._codes[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key] = bucket.bytecode_to_string()


_COMPILED = _Compiled()


def environment(names: Iterable[str] = ()) -> Environment:
    """Return the Jinja environment: text from a run is escaped, and unknown names are errors.

    Args:
        names: Models and methods of the run; files and long names are shorter on the page.
    """
    titles = short_titles(names)

    def displayed(value: Any) -> Any:
        if type(value) is not str:  # markup stays as it is
            return value
        for name, title in titles.items():
            value = value.replace(name, title)
        return value

    pages = Environment(
        loader=ChoiceLoader([PackageLoader("heatproof.report"), FunctionLoader(_template)]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=displayed,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_COMPILED,
    )
    pages.filters |= {
        "num": number,
        "family_class": family_class,
        "percent": percent,
        "points": points,
        "interval": _interval,
        "percent_interval": lambda e: _interval(e, 1, _hundredfold),
        "points_interval": lambda e: _interval(e, 1, points),
        "listing": listing,
        "duration": duration,
        "ticks": lambda text: ticks(displayed(text)),
        "described": described,
        "verbatim": escape,
        "brief": lambda text, longest=40: shortened(displayed(str(text)), longest),
    }
    pages.globals["symbol"] = lambda family: svg.tag(
        "svg",
        svg.symbol(family, 7.0, 7.0),
        class_=f"chart {family_class(family)}",
        viewBox="0 0 14 14",
        width=14,
        height=14,
        aria_hidden="true",
    )
    pages.globals["colours"] = colour_tables()
    return pages


def _template(name: str) -> str | None:
    """Return the template of a section, which may be a user's own."""
    for entry in ordered_sections():
        if name == f"section {entry.id}":
            return entry.template.read_text(encoding="utf-8")
    return None


def percent(fraction: float) -> str:
    """Format a fraction in whole percent; 0 and 100 only if it is exactly none or all."""
    if fraction != fraction:
        return "unknown"
    whole = round(100 * fraction)
    if whole == 100 and fraction < 1:
        return ">99 %"
    if whole == 0 and fraction > 0:
        return "<1 %"
    return f"{whole} %"


def points(change: float, digits: int = 1) -> str:
    """Format a difference of fractions in percentage points, with its sign."""
    text = _hundredfold(change, digits)
    return f"+{text}" if change > 0 and float(text) else text


def _interval(
    estimate: tuple[float, float, float],
    digits: int = 2,
    write: Callable[[float, int], str] = number,
) -> str:
    value, low, high = estimate
    return interval(value, low, high, digits, write)


def _hundredfold(fraction: float, digits: int) -> str:
    return number(100 * fraction, digits)


def duration(milliseconds: float) -> str:
    """Format a time per map: in seconds from one second on."""
    if milliseconds >= 1000:
        return f"{number(milliseconds / 1000, 1)} s"
    return f"{number(milliseconds, 2 if milliseconds < 10 else 0)} ms"


def ticks(text: str) -> Markup:
    """Set text between backticks as code."""
    parts = text.split("`")
    marked = [svg.tag("code", part) if i % 2 else escape(part) for i, part in enumerate(parts)]
    return Markup("").join(marked)


def listing(names: list[str], most: int = 6) -> str:
    """Join names as "a, b and c"; a long list is cut and ends with the number of the rest."""
    if len(names) > most + 1:
        names = [*names[:most], f"{len(names) - most} more"]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
