"""Published weights: where they are cached, and how they are downloaded on request.

Nothing else in the package uses the internet.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from heatproof.errors import HeatproofError
from heatproof.files import file_hash
from heatproof.models.cache_dir import home
from heatproof.models.hashes import (
    hash_file,
    is_intact,
    known_hash,
    record_hash,
    recorded_hash,
)

SECONDS_WITHOUT_ANSWER = 20


class Source(NamedTuple):
    """Published weights; where there is no address, there are none."""

    url: str
    file: str

    @classmethod
    def at(cls, url: str) -> Source:
        """Return the source at an address, named after its last part."""
        return cls(url, url.rpartition("/")[2])


def cache_paths(file: str) -> list[Path]:
    """Return where a published file is looked for: in our cache, then in that of torch.hub."""
    return [home() / "weights" / file, Path(torch.hub.get_dir()) / "checkpoints" / file]


def cached(source: Source) -> Path | None:
    """Return the file of a source in one of the caches; None if it is whole in neither.

    A file is compared with the hash in its name, or else with that of its download. A damaged one
    is named; in our cache it is set aside.
    """
    if not source.file:
        return None
    ours, hub = cache_paths(source.file)
    named = _hash_in_name(source)
    if is_intact(ours, named):
        return ours
    if not hub.is_file():
        return None
    if known_hash(hub).startswith(named):
        return hub
    warnings.warn(
        f"{hub} is not used, since it is damaged: its SHA-256 does not begin with {named}",
        stacklevel=2,
    )
    return None


def fetch(source: Source, read: Callable[[Path], object] | None = None) -> Path:
    """Download a file into the cache, whole or not at all.

    Args:
        source: The weights to download. Their SHA-256 is compared with the one in the file's name,
            or else with that of the first download, which stays on record beside the file.
        read: Reads the file before it gets into the cache; raises HeatproofError if it cannot.

    Returns:
        The path of the file in the cache.

    Raises:
        HeatproofError: If the download fails, or gave another file or one that cannot be read.
    """
    path = cache_paths(source.file)[0]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as directory,
            urlopen(source.url, timeout=SECONDS_WITHOUT_ANSWER) as answer,
        ):
            part = Path(directory) / source.file
            header = answer.headers["Content-Length"]
            size = int(header) if header is not None else None
            with part.open("wb") as out, _progress() as bar:
                shutil.copyfileobj(bar.wrap_file(answer, total=size, description=source.file), out)
            if size is not None and part.stat().st_size != size:
                raise HTTPException(f"it ended after {part.stat().st_size:,} of {size:,} bytes")
            _check_hash(source, part, path)
            if read is not None:
                _check_content(source, part, read)
            part.replace(path)
        record_hash(path)
    except (OSError, HTTPException) as error:
        raise HeatproofError(
            f"cannot download {source.url}: {getattr(error, 'reason', error)}. "
            f"Looked for {path}; put the file there, or give its path in the spec"
        ) from None
    return path


def _progress() -> Progress:
    """Return a progress bar, which is shown on terminals only."""
    console = Console(stderr=True)
    columns = (
        TextColumn("downloading {task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _hash_in_name(source: Source) -> str:
    """Return how the SHA-256 of a file begins, if its name says it."""
    found = re.search(r"-([0-9a-f]{8,})\.", source.file)
    return found[1] if found else ""


def _check_hash(source: Source, part: Path, path: Path) -> None:
    named = _hash_in_name(source)
    expected = named or recorded_hash(path)
    digest = file_hash(part, length=64)
    if not digest.startswith(expected):
        cure = "" if named else f"; delete {hash_file(path)} if the file was replaced for a reason"
        raise HeatproofError(
            f"{source.url} gave another file than it should: "
            f"its SHA-256 begins with {digest[:10]}, not {expected[:10]}{cure}"
        )


def _check_content(source: Source, part: Path, read: Callable[[Path], object]) -> None:
    try:
        read(part)
    except HeatproofError as error:
        reason = str(error).replace(str(part), part.name)
        raise HeatproofError(
            f"{source.url} gave a file that is no weights, of {part.stat().st_size:,} bytes: "
            f"{reason}. Nothing was kept; try again, or get the file by other means and give its "
            "path in the spec"
        ) from None
