"""Published weights: where they are kept, and how they get there when that is asked for. Nothing else here goes to the network."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import torch

from heatproof.errors import HeatproofError

TIMEOUT = 20  # seconds without an answer


class Source(NamedTuple):
    """Weights that somebody publishes; without an address there are none."""

    url: str
    file: str

    @classmethod
    def at(cls, url: str) -> Source:
        return cls(url, url.rpartition("/")[2])


def home() -> Path:
    """$HEATPROOF_CACHE, by default ~/.cache/heatproof."""
    told = os.environ.get("HEATPROOF_CACHE")
    return Path(told) if told else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heatproof"


def places(file: str) -> list[Path]:
    """Where a published file is looked for: ours, then where torch keeps what it has downloaded."""
    return [home() / "weights" / file, Path(torch.hub.get_dir()) / "checkpoints" / file]


def kept(source: Source) -> Path | None:
    return next((path for path in places(source.file) if source.file and path.is_file()), None)


def fetch(source: Source) -> Path:
    """Into the cache, whole or not at all; a file whose name tells its hash is checked."""
    path = places(source.file)[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as out, urlopen(source.url, timeout=TIMEOUT) as answer:
            shutil.copyfileobj(answer, out)
        _check(source, part)
        part.replace(path)
    except OSError as error:
        raise HeatproofError(
            f"cannot download {source.url}: {getattr(error, 'reason', error)}. "
            f"Looked for {path}; put the file there, or give its place as weights"
        ) from None
    finally:
        part.unlink(missing_ok=True)
    return path


def _check(source: Source, part: Path) -> None:
    wanted = re.search(r"-([0-9a-f]{8,})\.", source.file)
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if wanted and not found.startswith(wanted[1]):
        raise HeatproofError(f"{source.url} gave another file than it should: its SHA-256 begins with {found[:10]}, not {wanted[1]}")
