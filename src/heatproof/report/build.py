"""Builds the site beside its place and swaps it in whole, so that an old report stays until the new one is there."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, FunctionLoader, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import heatproof
from heatproof.bench.store import Store
from heatproof.errors import HeatproofError
from heatproof.report import charts
from heatproof.report.palette import FAMILIES, family_class
from heatproof.report.plain import told
from heatproof.report.run_data import Run
from heatproof.report.sections import ordered_sections
from heatproof.report.site import Site

MARKER = "heatproof-report.json"
ASSETS = Path(__file__).parent / "assets"


def build(store: Store, out: Path) -> Path:
    """Write the report of a run; returns its first page. A directory that holds something else is left as it is."""
    out = Path(out).resolve()
    _check_place(out)
    run = Run(store)
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (out.parent / f".{out.name}-{kind}-{os.getpid()}" for kind in ("new", "old"))
    fresh.mkdir()
    try:
        _write(run, Site(fresh))
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    finally:
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
    return out / "index.html"


def _check_place(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise HeatproofError(f"{out} is a file; a report is a directory")
    there = {p.name for p in out.iterdir()} if out.exists() else set()
    if not there:
        return
    if MARKER not in there:
        raise HeatproofError(
            f"{out} is not empty and not a report of heatproof; choose another directory"
        )
    strange = there - {
        MARKER,
        *json.loads((out / MARKER).read_text(encoding="utf-8")).get("files", []),
    }
    if strange:
        raise HeatproofError(
            f"{out} holds more than a report ({', '.join(sorted(strange)[:5])}); move that away, or choose another directory"
        )


def _write(run: Run, site: Site) -> None:
    pages = environment()
    sections = []
    for entry in ordered_sections():
        content = entry.content(run, site)
        if content is not None:
            head = {"id": entry.id, "short": entry.short, "question": entry.question}
            sections.append({**head, "template": f"section {entry.id}", **content})
    style = Markup(_style())
    script = Markup((ASSETS / "script.js").read_text(encoding="utf-8"))
    page = pages.get_template("index.html.j2").render(
        run=run,
        sections=sections,
        style=style,
        script=script,
        policy=_policy(style, script),
        version=heatproof.__version__,
    )
    site.write("index.html", page)
    site.write(
        MARKER,
        json.dumps(
            {
                "heatproof": heatproof.__version__,
                "files": sorted(p.name for p in site.root.iterdir()),
            },
            indent=1,
        ),
    )


def environment() -> Environment:
    """Everything from a run is escaped; a name that a template does not know is an error."""
    pages = Environment(
        loader=ChoiceLoader([PackageLoader("heatproof.report"), FunctionLoader(_template)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "num": charts.number,
        "family_class": family_class,
        "percent": percent,
        "points": points,
        "interval": lambda e, digits=2: charts.interval(e.low, e.high, digits),
        "listing": listing,
        "ticks": ticks,
        "told": told,
    }
    pages.globals["symbol"] = lambda family: charts.tag(
        "svg",
        charts.symbol(family, 7.0, 7.0),
        class_=f"chart {family_class(family)}",
        viewBox="0 0 14 14",
        width=14,
        height=14,
        aria_hidden="true",
    )
    return pages


def _template(name: str) -> str | None:
    """Return the template of a section, which may be a user's own."""
    for entry in ordered_sections():
        if name == f"section {entry.id}":
            return entry.template.read_text(encoding="utf-8")
    return None


def percent(share: float) -> str:
    """Whole numbers; 100 and 0 only where it is all or nothing."""
    if share != share:
        return "unknown"
    whole = round(100 * share)
    return (
        ">99 %"
        if whole == 100 and share < 1
        else "<1 %"
        if whole == 0 and share > 0
        else f"{whole} %"
    )


def points(change: float) -> str:
    """A difference of shares, with its sign."""
    text = charts.number(100 * change, 1)
    return f"+{text}" if change > 0 and float(text) else text


def ticks(text: str) -> Markup:
    """`code` in prose."""
    return Markup("").join(
        charts.tag("code", part) if i % 2 else escape(part)
        for i, part in enumerate(text.split("`"))
    )


def listing(names: list[str], most: int = 6) -> str:
    """a, b and c; a long one is cut, and says so."""
    shown = [*names[:most], f"{len(names) - most} more"] if len(names) > most + 1 else list(names)
    return (
        shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""
    )


def _style() -> str:
    def colours(which: str) -> str:
        return "".join(
            f"--{family_class(name)}:{getattr(family, which)};" for name, family in FAMILIES.items()
        )

    style = (ASSETS / "style.css").read_text(encoding="utf-8")
    return (
        style.replace("/*light families*/", colours("light")).replace(
            "/*dark families*/", colours("dark")
        )
        + charts.STYLE
    )


def _policy(style: str, script: str) -> str:
    """Only the style and script that are written in the page, and pictures beside it; nothing from anywhere else."""
    own = {
        kind: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for kind, text in (("style", style), ("script", script))
    }
    return (
        f"default-src 'none'; img-src 'self' file:; style-src 'sha256-{own['style']}'; script-src 'sha256-{own['script']}'; "
        "base-uri 'none'; form-action 'none'"
    )
