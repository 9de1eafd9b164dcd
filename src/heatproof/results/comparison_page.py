"""A page that sets runs beside each other: one file, in the style of the report."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import heatproof
from heatproof import report
from heatproof.analysis import wording
from heatproof.results.compare import RunComparison
from heatproof.text import printable

STYLE = Path(report.__file__).parent / "assets" / "style.css"
BAR_SIZE = (120.0, 16.0)  # width and height of a drawn interval, in pixels
MOST_TEXT = 200  # characters of a changed value


@dataclass(frozen=True)
class ComparedRun:
    """A run that is compared with the first one."""

    name: str
    comparison: RunComparison
    gate: pd.DataFrame | None = None  # lines of ``RunComparison.gate``

    @property
    def gate_lines(self) -> list[str]:
        """Findings of the gate, in sentences; empty if there is none."""
        return [] if self.gate is None else wording.gate_lines(self.gate)


def comparison_page(first: str, runs: Sequence[ComparedRun]) -> str:
    """Return a page with all differences and changes as HTML.

    It needs nothing else: no script, no picture, no request. Every text of a run is escaped.

    Args:
        first: The name of the run that the others are compared with.
        runs: The others.
    """
    style = STYLE.read_text(encoding="utf-8")
    source = sha256_source(style)
    policy = f"default-src 'none'; style-src {source}; base-uri 'none'; form-action 'none'"
    return (
        page_templates()
        .get_template("compare.html.j2")
        .render(
            title=f"{', '.join(run.name for run in runs)} beside {first}",
            first=first,
            pages=list(runs),
            style=Markup(style),
            policy=policy,
            version=heatproof.__version__,
        )
    )


def sha256_source(text: str) -> str:
    """Return how a content security policy allows a style or a script that stands in the page."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def page_templates() -> Environment:
    """Return the templates of pages that stand alone; every text is escaped."""
    pages = Environment(
        loader=PackageLoader("heatproof.results"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "num": _number,
        "p_value": wording.p_value,
        "signed": _signed,
        "interval": _interval,
        "bar": _bar,
        "cut": _cut,
    }
    return pages


def _number(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:.3f}"


def _signed(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:+z.3f}"


def _interval(line: Mapping[str, Any]) -> str:
    return "–" if pd.isna(line["low"]) else f"{line['low']:+z.3f} … {line['high']:+z.3f}"


def _cut(text: object) -> str:
    shown = printable(str(text))
    return shown if len(shown) <= MOST_TEXT else shown[: MOST_TEXT - 1] + "…"


def _ends(line: Mapping[str, Any]) -> np.ndarray:
    return np.array([line["low"], line["difference"], line["high"]], dtype=float)


def _bar(line: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> Markup:
    """Draw an interval on the scale of all lines of its setting, with zero in its middle."""
    ends = _ends(line)
    if not np.isfinite(ends).all():
        return Markup("")
    width, height = BAR_SIZE
    largest = float(np.nanmax(np.abs([_ends(other) for other in lines]))) or 1.0
    low, value, high = (width / 2 * (1 + 0.92 * ends / largest)).round(1)
    middle = height / 2
    return Markup(
        '<svg width="{w:.0f}" height="{h:.0f}" aria-hidden="true">'
        '<line x1="{zero}" x2="{zero}" y1="0" y2="{h:.0f}" stroke="currentColor" opacity=".35"/>'
        '<line x1="{low}" x2="{high}" y1="{mid}" y2="{mid}" stroke="currentColor" '
        'stroke-width="2" opacity=".6"/><circle cx="{value}" cy="{mid}" r="3.5" '
        'fill="currentColor"/></svg>'
    ).format(w=width, h=height, zero=width / 2, low=low, high=high, mid=middle, value=value)
