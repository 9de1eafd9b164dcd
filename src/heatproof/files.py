"""Content hashes, and files that are written completely or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
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


def file_hash(path: Path, length: int = 16) -> str:
    """Return the first hexadecimal digits of the SHA-256 of a file, which may be large."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:length]


def atomic_write(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part of it.

    The content goes to a temporary file in the same directory (which is created where it is
    missing), is flushed to disk, and then replaces ``path``. If the write fails, the temporary
    file is removed; if the process is killed, a file that starts with ``TEMP_PREFIX`` is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMP_PREFIX}{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
