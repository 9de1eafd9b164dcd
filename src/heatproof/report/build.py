"""Build the site beside its destination and swap it in, so that an old report stays until then."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

import heatproof
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.errors import HeatproofError
from heatproof.files import atomic_write
from heatproof.platform import file_lock
from heatproof.report.pages import write_pages, write_single_page
from heatproof.report.site import SingleFile, Site
from heatproof.runs.integrity import verify_plan
from heatproof.text import printable

MARKER = "heatproof-report.json"
LOCK = ".lock"  # in a report under construction
LEFTOVER_AGE = 3600  # seconds after which a directory without a lock was left by a killed process


def build(run: RunStatistics, out: Path, live: bool = False) -> Path:
    """Write the report of a run.

    Args:
        run: The run.
        out: Directory of the report; an old report in it is replaced.
        live: Whether its pages ask a server if there is a newer version (``heatproof serve``).

    Returns:
        The path of its first page.

    Raises:
        HeatproofError: If the directory holds anything but a report.
    """
    out = Path(out).resolve()
    _check_destination(out)
    verify_plan(run.store)
    out.parent.mkdir(parents=True, exist_ok=True)
    suffix = secrets.token_hex(8)
    fresh = out.parent / f".{out.name}-new-{suffix}"
    old = out.parent / f".{out.name}-old-{suffix}"
    fresh.mkdir()
    try:
        with file_lock(fresh / LOCK, f"another process writes to {fresh}"):
            _write(run, Site(fresh), live)
        (fresh / LOCK).unlink()
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    finally:
        for directory in (fresh, old):
            shutil.rmtree(directory, ignore_errors=True)
    _remove_leftovers(out)
    return out / "index.html"


def build_single_file(run: RunStatistics, out: Path) -> Path:
    """Write the report of a run to one HTML file, with its pictures and data inside.

    Args:
        run: The run.
        out: The file; an old one is replaced.

    Returns:
        The path of the file.

    Raises:
        HeatproofError: If the report is too large for one file, or ``out`` is a directory.
    """
    out = Path(out).resolve()
    if out.is_dir():
        raise HeatproofError(f"{out} is a directory, but a report in one file is a file")
    verify_plan(run.store)
    page = write_single_page(run, SingleFile(out.parent))
    atomic_write(out, printable(page).encode())
    return out


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


def _write(run: RunStatistics, site: Site, live: bool) -> None:
    write_pages(run, site, live)
    files = sorted(p.name for p in site.root.iterdir() if p.name != LOCK)
    marker = {"heatproof": heatproof.__version__, "files": files}
    site.write(MARKER, json.dumps(marker, indent=1))
