"""Files known by their content: hashes that are kept in the cache, and weights that are verified.

The hash of a file is computed once and kept in ``$HEATPROOF_CACHE/hashes.sqlite`` under its path,
size, times and inode, so that it costs a look-up the next time. A file that is replaced can keep
its size and its modification time, but not the time at which the system changed it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from heatproof.files import atomic_write, file_hash
from heatproof.models.cache_dir import home

if TYPE_CHECKING:
    import sqlite3

READER_THREADS = 8  # hashing leaves Python's lock alone
FILES_PER_QUERY = 500
FileName = str | os.PathLike[str]
_SHA256 = re.compile("[0-9a-f]{64}")
_TABLE = (
    "CREATE TABLE IF NOT EXISTS hashes "
    "(path BLOB PRIMARY KEY, stamp TEXT NOT NULL, sha256 TEXT NOT NULL) WITHOUT ROWID"
)


def known_hashes(paths: Sequence[FileName]) -> list[str]:
    """Return the SHA-256 of files, read in threads unless they are in the cache.

    Args:
        paths: The files.

    Returns:
        64 hexadecimal digits each; why not, for what is not a regular file or cannot be read.
    """
    stamps = [_stamp(path) for path in paths]
    keys = [_key(path) for path in paths]
    known = _look_up(keys)
    missing = [
        i
        for i, (key, stamp) in enumerate(zip(keys, stamps, strict=True))
        if stamp.startswith("file ") and known.get(key, ("", ""))[0] != stamp
    ]
    with ThreadPoolExecutor(READER_THREADS) as pool:
        read = dict(zip(missing, pool.map(_read, [paths[i] for i in missing]), strict=True))
    fresh = {keys[i]: (stamps[i], digest) for i, digest in read.items() if len(digest) == 64}
    _remember(fresh)
    known |= fresh
    read |= {i: stamp for i, stamp in enumerate(stamps) if not stamp.startswith("file ")}
    return [read[i] if i in read else known[key][1] for i, key in enumerate(keys)]


def known_hash(path: FileName) -> str:
    """Return the SHA-256 of a file; see `known_hashes`."""
    return known_hashes([path])[0]


def cached_hashes(paths: Sequence[Path]) -> dict[Path, tuple[str, str]]:
    """Return the stamps of files when they were last hashed, and their SHA-256, from the cache.

    Args:
        paths: The files; those that are not in the cache are left out.
    """
    keys = [_key(path) for path in paths]
    known = _look_up(keys)
    return {path: known[key] for path, key in zip(paths, keys, strict=True) if key in known}


def remember_hashes(hashes: Mapping[Path, tuple[str, str]]) -> None:
    """Keep stamps and SHA-256 of files in the cache, where it can be written."""
    _remember({_key(path): entry for path, entry in hashes.items()})


def file_stamp(path: FileName) -> str:
    """Return what changes whenever a file is touched.

    Raises:
        OSError: If there is no such file, or it is not a regular one.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):  # a pipe would wait for ever
        raise OSError(errno.EINVAL, "not a regular file")
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return f"file {status.st_size} {times[0]} {times[1]} {status.st_ino}"


def _stamp(path: FileName) -> str:
    """Return what changes whenever a file is touched; why not, if it cannot be read."""
    try:
        return file_stamp(path)
    except OSError as error:
        return str(error.strerror)


def _key(path: FileName) -> bytes:
    return os.fsencode(os.path.abspath(path))


def _read(path: FileName) -> str:
    try:
        return file_hash(Path(path), length=64)
    except OSError as error:
        return str(error.strerror)


def _database() -> sqlite3.Connection:
    import sqlite3

    path = home() / "hashes.sqlite"
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=10)
    connection.execute("PRAGMA synchronous=OFF")  # what is lost is computed again
    connection.execute(_TABLE)
    return connection


def _look_up(keys: Sequence[bytes]) -> dict[bytes, tuple[str, str]]:
    """Return stamp and hash of the files that are in the cache."""
    import sqlite3

    found: dict[bytes, tuple[str, str]] = {}
    try:
        with closing(_database()) as database:
            for begin in range(0, len(keys), FILES_PER_QUERY):
                some = keys[begin : begin + FILES_PER_QUERY]
                query = f"SELECT * FROM hashes WHERE path IN ({','.join('?' * len(some))})"
                for key, stamp, digest in database.execute(query, some):
                    if _SHA256.fullmatch(str(digest)):
                        found[key] = (str(stamp), str(digest))
    except (sqlite3.OperationalError, OSError):  # locked, or the cache cannot be written
        return found
    except sqlite3.DatabaseError:  # damaged
        with suppress(OSError):
            (home() / "hashes.sqlite").unlink()
        return {}
    return found


def _remember(fresh: dict[bytes, tuple[str, str]]) -> None:
    if not fresh:
        return
    import sqlite3

    rows = [(key, stamp, digest) for key, (stamp, digest) in fresh.items()]
    with suppress(sqlite3.Error, OSError), closing(_database()) as database, database:
        database.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?)", rows)


# Weights


def record_hash(path: Path) -> None:
    """Write the SHA-256 of a file beside it, in the format of ``sha256sum``."""
    with suppress(OSError):
        atomic_write(hash_file(path), f"{known_hash(path)}  {path.name}\n".encode())


def is_intact(path: Path, expected: str = "") -> bool:
    """Return whether a cached file exists and is as it was written.

    A damaged file is named in a warning and set aside as ``….damaged``; its hash stays on record.
    One that has no hash on record gets one.

    Args:
        path: The file.
        expected: How its SHA-256 begins, if that is known; else what is on record beside it.
    """
    if not path.is_file():
        return False
    recorded = expected or recorded_hash(path)
    if not recorded:
        record_hash(path)
        return True
    if known_hash(path).startswith(recorded) or file_hash(path, length=64).startswith(recorded):
        return True
    aside = path.with_name(f"{path.name}.damaged")
    path.replace(aside)
    warnings.warn(
        f"{path} was damaged: its SHA-256 does not begin with {recorded[:16]}; it was set aside as "
        f"{aside.name}",
        stacklevel=2,
    )
    return False


def hash_file(path: Path) -> Path:
    """Return the file beside a file that has its SHA-256."""
    return path.with_name(f"{path.name}.sha256")


def recorded_hash(path: Path) -> str:
    """Return the hash that is on record beside a file; empty if there is none."""
    try:
        text = hash_file(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    found = re.match(r"([0-9a-f]{64})  ", text)
    return found[1] if found else ""
