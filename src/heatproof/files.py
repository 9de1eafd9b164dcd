"""Content hashes, and files that are written completely or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

TEMP_PREFIX = ".tmp-"  # a killed process leaves such files behind; they can be deleted


def content_hash(content: str | bytes | Iterable[str | bytes], length: int = 16) -> str:
    """Return the first hexadecimal digits of the SHA-256 of some content.

    Args:
        content: Text (hashed as UTF-8) or bytes, or an iterable of them, which is hashed like
            its concatenation.
        length: Number of digits to return; 64 is the whole hash.
    """
    chunks = [content] if isinstance(content, str | bytes) else content
    sha = hashlib.sha256()
    for chunk in chunks:
        sha.update(chunk.encode() if isinstance(chunk, str) else chunk)
    return sha.hexdigest()[:length]


# Backslashes before what looks like an escaped byte, or before a byte that is not UTF-8.
_ESCAPED = re.compile(r"(\\*)(x[89a-f][0-9a-f]|[\udc80-\udcff])")
_BACKSLASH = "\\"


def escape_name(name: str) -> str:
    """Write the bytes of a file name that are not UTF-8 as ``\\xff``, so that it can be stored.

    Other names are left as they are, except that a backslash before ``xff`` is doubled: different
    names stay different.

    Args:
        name: A name as ``os.listdir`` returns it, where such bytes are lone surrogates.
    """

    def escape(match: re.Match[str]) -> str:
        slashes, what = match.groups()
        byte = ord(what[0]) - 0xDC00
        return 2 * slashes + (f"{_BACKSLASH}x{byte:02x}" if byte > 0 else what)

    return _ESCAPED.sub(escape, name)


def unescape_name(text: str) -> str:
    """Return the name that `escape_name` has escaped."""

    def unescape(match: re.Match[str]) -> str:
        slashes, what = match.groups()
        half = _BACKSLASH * (len(slashes) // 2)
        return half + (chr(0xDC00 + int(what[1:], 16)) if len(slashes) % 2 else what)

    return _ESCAPED.sub(unescape, text)


def file_hash(path: Path, length: int = 16) -> str:
    """Return the first hexadecimal digits of the SHA-256 of a file, which may be large."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:length]


def atomic_write(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file so that readers see the old content or the new, never a part of it.

    The content goes to a temporary file in the same directory (which is created where it is
    missing), is flushed to disk, and then replaces ``path``; last the directory is flushed. If the
    write fails, the temporary file is removed; if the process is killed, a file that starts with
    ``TEMP_PREFIX`` is left.

    Args:
        path: The file.
        content: Its bytes, or parts of them.
    """
    _make_directory(path.parent)
    temporary = path.with_name(f"{TEMP_PREFIX}{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flush the names in a directory to disk, where the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(path: Path) -> None:
    """Create a directory and those above it, and flush their names to disk."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)
