"""The list of methods from a file: to import what it is made of takes seconds, to read it none."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from heatproof.files import atomic_write, content_hash
from heatproof.models.cache_dir import home


def listing_of(kind: str) -> list[dict[str, Any]]:
    """Return everything of one kind, as `heatproof.listing.listing` does.

    Methods are kept in the cache directory until a file of the package changes. They are not if
    other packages add some, whose code may change as well.
    """
    if kind != "methods" or entry_points(group="heatproof.methods"):
        return _listed(kind)
    path = home() / "listings" / f"{kind}.json"
    key = _key()
    with suppress(OSError, ValueError, TypeError, KeyError):  # none, or damaged: it is made anew
        kept = json.loads(path.read_bytes())
        if kept["key"] == key:
            return list(kept["entries"])
    entries = _listed(kind)
    with suppress(OSError):  # the cache cannot be written to: the next time takes as long
        atomic_write(path, json.dumps({"key": key, "entries": entries}).encode())
    return entries


def _listed(kind: str) -> list[dict[str, Any]]:
    from heatproof.listing import listing

    return listing(kind)


def _key() -> str:
    """Hash the sizes and times of all files of the package."""
    package = Path(__file__).parents[1]
    files = sorted(package.rglob("*.py"))
    stats = [(file.relative_to(package).as_posix(), file.stat()) for file in files]
    return content_hash(repr([sys.version, [(n, s.st_size, s.st_mtime_ns) for n, s in stats]]))
