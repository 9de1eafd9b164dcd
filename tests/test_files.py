"""Content hashes and atomic writes."""

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path

import pytest

from heatproof.files import TEMP_PREFIX, atomic_write, content_hash, file_hash

pytestmark = pytest.mark.usefixtures("flushed")


@pytest.mark.parametrize(
    "content", ["größe", "größe".encode(), ["grö", "ße"], iter([b"gr", "öße"])]
)
def test_text_bytes_and_chunks_have_the_sha256_of_their_content(content):
    assert content_hash(content, length=64) == hashlib.sha256("größe".encode()).hexdigest()


def test_hashes_have_sixteen_digits_by_default(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    assert file_hash(tmp_path / "file") == content_hash(b"content")
    assert len(content_hash(b"content")) == 16


def test_writing_a_file_creates_its_directories(tmp_path):
    path = tmp_path / "new" / "directory" / "file"
    atomic_write(path, b"old")
    atomic_write(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    atomic_write(path, b"old")

    def disk_full(descriptor):
        (temporary,) = tmp_path.glob(f"{TEMP_PREFIX}*")
        assert temporary.read_bytes() == b"new"
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="no space"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def failing(call, left: list[int], code: int, seen: list[str]):
    """Return a call that fails once ``left`` others were made."""

    def maybe(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            seen.append(call.__name__)
            raise OSError(code, os.strerror(code))
        return call(*args, **kwargs)

    return maybe


@pytest.mark.skipif(os.name == "nt", reason="directories are not flushed on Windows")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_any_call_that_fails_leaves_the_old_content_or_the_new(tmp_path, monkeypatch, code):
    calls = [(os, "open"), (os, "fsync"), (Path, "open"), (Path, "replace"), (Path, "mkdir")]
    seen = []
    for number in range(1, 20):
        root = tmp_path / str(number)
        root.mkdir()
        path = root / "file" if number % 2 else root / "new" / "folder" / "file"
        if number % 2:
            path.write_bytes(b"old")
        left = [(number + 1) // 2]
        with monkeypatch.context() as patch:
            for owner, name in calls:
                call = failing(getattr(owner, name), left, code, seen)
                patch.setattr(owner, name, call)
            with suppress(OSError):
                atomic_write(path, b"new")
        assert not list(root.rglob(f"{TEMP_PREFIX}*"))
        assert not path.exists() or path.read_bytes() in (b"old", b"new")
        assert path.exists() or not number % 2
        atomic_write(path, b"new")
        assert path.read_bytes() == b"new"
    assert set(seen) == {"open", "fsync", "replace", "mkdir"}
