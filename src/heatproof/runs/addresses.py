"""Addresses of runs on other file systems, such as ``s3://bucket/run``, which fsspec understands.

Such a run has a copy in the cache, which all other code reads and writes like any run directory.
`to_read` and `to_write` bring the copy up to date (`Remote`); ``RunDirectory`` passes on what it
writes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from heatproof.errors import HeatproofError
from heatproof.models.cache_dir import home
from heatproof.runs.remote import Remote, without_secrets
from heatproof.text import clip

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(:|/+|$)(.*)", re.DOTALL)  # not a drive letter


def is_address(location: str | Path) -> bool:
    """Return whether a location is an address, also one that has become a ``Path`` by mistake."""
    return _ADDRESS.fullmatch(_text(location)) is not None


def to_read(location: str | Path, fresh: bool = False) -> Path:
    """Return the directory of a run; for an address its copy, after it was brought up to date.

    Args:
        location: A directory, or an address.
        fresh: Whether every file is fetched again, whatever the copy has.

    Raises:
        HeatproofError: If there is no run at the address, or the file system does not answer.
    """
    remote = _attached(location, home())
    if isinstance(remote, Path):
        return remote
    remote.contact(write=False)
    remote.pull(fresh=fresh)
    if not remote.has_run:
        raise HeatproofError(f"there is no run of heatproof at {remote.name}")
    return remote.copy


def to_write(location: str | Path) -> Path:
    """Return the directory of a run that is begun or continued; for an address its copy.

    Raises:
        HeatproofError: If the address cannot be written to, or holds something else.
    """
    remote = _attached(location, home())
    if isinstance(remote, Path):
        return remote
    remote.contact(write=True)
    remote.pull()
    if not remote.has_run:
        remote.clear()
    if remote.foreign and not remote.has_run:
        raise HeatproofError(
            f"{remote.name} is not empty and not a run of heatproof (it holds "
            f'"{clip(remote.foreign)}"); choose another directory with -o'
        )
    return remote.copy


def attach(address: str, folder: Path) -> Path:
    """Return the directory of a run that a worker writes to.

    Args:
        address: An address, whose copy begins empty, or a directory.
        folder: Where copies are.
    """
    remote = _attached(address, folder)
    return remote if isinstance(remote, Path) else remote.copy


def remote_of(root: Path) -> Remote | None:
    """Return the file system that a directory of this process is a copy of."""
    return _remotes.get(_absolute(root))


_remotes: dict[Path, Remote] = {}  # by their copies


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _text(location: str | Path) -> str:
    return location if isinstance(location, str) else location.as_posix()


def _attached(location: str | Path, folder: Path) -> Remote | Path:
    """Return the file system at an address, or the directory that a location names."""
    found = _ADDRESS.fullmatch(_text(location))
    if not found:
        return Path(location)
    scheme, slashes, rest = found[1].lower(), found[2], found[3].rstrip("/")
    shown = without_secrets(f"{scheme}://{rest}")
    if slashes == ":":
        raise HeatproofError(f"{scheme}:: is a chain of file systems; name the last one alone")
    host = rest.partition("/")[0].rpartition("@")[2]
    if ":" in host and not re.fullmatch(r"arn:.*|[^:]*:\d+", host):
        raise HeatproofError(
            f"the host of the {scheme}:// address is not clear; in a password, write / ? # as "
            "%2F %3F %23"
        )
    if "?" in rest:
        raise HeatproofError(
            f"the address of a run has no query ({shown}?…); credentials belong in the settings "
            "of the file system (docs/buckets.md)"
        )
    if re.search(r"[*\[]", rest):
        raise HeatproofError(f"{shown} is a pattern; the address of a run has neither * nor [")
    if not rest:
        raise HeatproofError(f"{shown} does not name a directory; add one, such as {shown}run")
    if scheme in ("file", "local"):
        from fsspec.implementations.local import LocalFileSystem

        return Path(LocalFileSystem._strip_protocol(f"file:///{rest}"))
    remote = Remote(f"{scheme}://{rest}", _absolute(folder) / "remote")
    known = _remotes.setdefault(remote.copy, remote)
    if known.address != remote.address:  # other credentials
        known = _remotes[remote.copy] = remote
    return known
