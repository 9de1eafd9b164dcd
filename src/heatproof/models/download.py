"""Published weights: where they are kept, and how they get there when that is asked for. Nothing else here goes to the network."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from heatproof.errors import HeatproofError
from heatproof.files import file_hash

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
    return (
        Path(told)
        if told
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heatproof"
    )


def places(file: str) -> list[Path]:
    """Where a published file is looked for: ours, then where torch keeps what it has downloaded."""
    return [home() / "weights" / file, Path(torch.hub.get_dir()) / "checkpoints" / file]


def kept(source: Source) -> Path | None:
    return next((path for path in places(source.file) if source.file and path.is_file()), None)


def fetch(source: Source) -> Path:
    """Into the cache, whole or not at all; a file whose name tells its hash is checked."""
    path = places(source.file)[0]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as place,
            urlopen(source.url, timeout=TIMEOUT) as answer,
        ):
            part, told = Path(place) / source.file, answer.headers["Content-Length"]
            wanted = int(told) if told is not None else None
            with part.open("wb") as out, _shown() as bar:
                shutil.copyfileobj(
                    bar.wrap_file(answer, total=wanted, description=source.file), out
                )
            if wanted is not None and part.stat().st_size != wanted:
                raise HTTPException(f"it ended after {part.stat().st_size:,} of {wanted:,} bytes")
            _check(source, part)
            part.replace(path)
    except (OSError, HTTPException) as error:
        raise HeatproofError(
            f"cannot download {source.url}: {getattr(error, 'reason', error)}. "
            f"Looked for {path}; put the file there, or give its place as weights"
        ) from None
    return path


def _shown() -> Progress:
    """Where somebody looks on, how far it is."""
    console = Console(stderr=True)
    columns = (
        TextColumn("downloading {task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _check(source: Source, part: Path) -> None:
    wanted = re.search(r"-([0-9a-f]{8,})\.", source.file)
    found = file_hash(part, length=64)
    if wanted and not found.startswith(wanted[1]):
        raise HeatproofError(
            f"{source.url} gave another file than it should: its SHA-256 begins with {found[:10]}, not {wanted[1]}"
        )
