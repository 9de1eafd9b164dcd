"""Build the site beside its destination and swap it in, so that an old report stays until then."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FunctionLoader, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import heatproof
from heatproof.bench.integrity import verify_plan
from heatproof.bench.store import Store
from heatproof.errors import HeatproofError
from heatproof.platform import file_lock
from heatproof.report import charts
from heatproof.report.palette import FAMILIES, family_class
from heatproof.report.plain import described
from heatproof.report.run_data import Run
from heatproof.report.sections import ordered_sections
from heatproof.report.site import Site
from heatproof.text import short_titles

MARKER = "heatproof-report.json"
LOCK = ".lock"  # in a report under construction
LEFTOVER_AGE = 3600  # seconds after which a directory without a lock was left by a killed process
ASSETS = Path(__file__).parent / "assets"


def build(store: Store, out: Path, run: Run | None = None) -> Path:
    """Write the report of a run.

    Args:
        store: The run.
        out: Directory of the report; an old report in it is replaced.
        run: The run as the report sees it, if it has been read.

    Returns:
        The path of its page.

    Raises:
        HeatproofError: If the directory holds anything but a report.
    """
    out = Path(out).resolve()
    _check_destination(out)
    run = run or Run(store)
    verify_plan(store)
    out.parent.mkdir(parents=True, exist_ok=True)
    suffix = secrets.token_hex(8)
    fresh = out.parent / f".{out.name}-new-{suffix}"
    old = out.parent / f".{out.name}-old-{suffix}"
    fresh.mkdir()
    try:
        with file_lock(fresh / LOCK, f"another process writes to {fresh}"):
            _write(run, Site(fresh))
        (fresh / LOCK).unlink()
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    finally:
        for directory in (fresh, old):
            shutil.rmtree(directory, ignore_errors=True)
    _remove_leftovers(out)
    return out / "index.html"


def _remove_leftovers(out: Path) -> None:
    """Remove what killed processes have left beside a report.

    A directory whose lock is held is being written by another process. One without a lock may have
    been made a moment ago, so that it has to be old.
    """
    pattern = re.compile(rf"\.{re.escape(out.name)}-(new|old)-[0-9a-f]+")
    for path in out.parent.iterdir():
        if not pattern.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        with suppress(HeatproofError, OSError):  # it is in use, or already removed
            lock = path / LOCK
            if lock.is_file() and not lock.is_symlink():
                with file_lock(lock, "in use"):
                    pass
            elif time.time() - path.stat().st_mtime < LEFTOVER_AGE:
                continue
            shutil.rmtree(path)


def _check_destination(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise HeatproofError(f"{out} is a file, but a report is a directory")
    present = {p.name for p in out.iterdir()} if out.exists() else set()
    if not present:
        return
    if MARKER not in present:
        raise HeatproofError(
            f"{out} is not empty and not a report of heatproof; choose another directory"
        )
    unknown = sorted(present - {MARKER, *_listed_files(out / MARKER)})
    if unknown:
        raise HeatproofError(
            f"{out} contains files that are not part of a report ({', '.join(unknown[:5])}); "
            "move them away, or choose another directory"
        )


def _listed_files(marker: Path) -> list[str]:
    """Return the files of a report as its marker lists them."""
    try:
        files = json.loads(marker.read_text(encoding="utf-8"))["files"]
        return [str(name) for name in files]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise HeatproofError(
            f"{marker} is damaged, so that it does not say which files are those of a report; "
            "remove the directory, or choose another"
        ) from None


def _write(run: Run, site: Site) -> None:
    pages = environment(run.models)
    lead = run.provenance.spec.get("lead")
    ordered = sorted(ordered_sections(), key=lambda section: section.id != lead)
    contents = ((section, section.content(run, site)) for section in ordered)
    sections = [(section, content) for section, content in contents if content is not None]
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
    files = sorted(p.name for p in site.root.iterdir() if p.name != LOCK)
    marker = {"heatproof": heatproof.__version__, "files": files}
    site.write(MARKER, json.dumps(marker, indent=1))


def environment(models: Sequence[str] = ()) -> Environment:
    """Return the Jinja environment: text from a run is escaped, and unknown names are errors.

    Args:
        models: The models of the run; those in files have shorter names on the page.
    """
    titles = short_titles(models)

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
    )
    pages.filters |= {
        "num": charts.number,
        "family_class": family_class,
        "percent": percent,
        "points": points,
        "interval": _interval,
        "percent_interval": lambda e: _interval(e, 1, _hundredfold),
        "points_interval": lambda e: _interval(e, 1, points),
        "listing": listing,
        "ticks": ticks,
        "described": described,
        "verbatim": escape,
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
    write: Callable[[float, int], str] = charts.number,
) -> str:
    value, low, high = estimate
    return charts.interval(value, low, high, digits, write)


def _hundredfold(fraction: float, digits: int) -> str:
    return charts.number(100 * fraction, digits)


def ticks(text: str) -> Markup:
    """Set text between backticks as code."""
    parts = text.split("`")
    marked = [charts.tag("code", part) if i % 2 else escape(part) for i, part in enumerate(parts)]
    return Markup("").join(marked)


def listing(names: list[str], most: int = 6) -> str:
    """Join names as "a, b and c"; a long list is cut and ends with the number of the rest."""
    if len(names) > most + 1:
        names = [*names[:most], f"{len(names) - most} more"]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _style() -> str:
    style = (ASSETS / "style.css").read_text(encoding="utf-8")
    light = {name: family.light for name, family in FAMILIES.items()}
    dark = {name: family.dark for name, family in FAMILIES.items()}
    style = style.replace("/*light families*/", _variables(light))
    style = style.replace("/*dark families*/", _variables(dark))
    return style + charts.STYLE


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{family_class(name)}:{colour};" for name, colour in colours.items())


def _policy(style: str, script: str) -> str:
    """Allow only the style and the script of the page itself, and pictures beside it."""
    return (
        f"default-src 'none'; img-src 'self' file:; style-src 'sha256-{_digest(style)}'; "
        f"script-src 'sha256-{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
