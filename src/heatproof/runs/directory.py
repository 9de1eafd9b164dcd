"""The files of a run directory: written as a whole, verified, and set aside when damaged."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from heatproof.errors import StorageError
from heatproof.files import TEMP_PREFIX, atomic_write, file_hash
from heatproof.models.hashes import cached_hashes, file_stamp, remember_hashes
from heatproof.platform import file_lock
from heatproof.runs.addresses import remote_of
from heatproof.runs.format import RunPaths, StoredFile, hashed_name, name_hash


class RunDirectory:
    """The directory of a run.

    Args:
        root: The directory; it is created by the first write.

    Attributes:
        remote: The file system that the directory is a copy of; None if it is the run itself.
        damage: What is wrong with files that were read and left out, by path.
    """

    def __init__(self, root: Path):
        self.root = root
        self.remote = remote_of(root)
        self.paths = RunPaths(root)
        self.damage: dict[Path, str] = {}
        self._was_there = False
        self._hashes: dict[Path, tuple[str, str]] = {}  # what this process has read or written
        self._fresh: dict[Path, tuple[str, str]] = {}  # those of them that are to be remembered
        self._cached: dict[Path, tuple[str, str]] = {}  # what any process has read or written

    @property
    def name(self) -> str:
        """The directory or address, as it is shown."""
        return self.remote.name if self.remote else str(self.root)

    def refresh(self, fresh: bool = False) -> None:
        """Bring the copy of a run on another file system up to date.

        Args:
            fresh: Whether every file is fetched again.
        """
        if self.remote:
            self.remote.pull(fresh=fresh)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing; on another file system, only those of this machine.

        Raises:
            HeatproofError: If another process is writing.
            StorageError: If the directory cannot be written to.
        """
        busy = (
            f"another run is writing to {self.name}; wait for it, or choose another directory "
            "with -o"
        )
        with ExitStack() as stack:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                stack.enter_context(file_lock(self.paths.lock, busy))
                for leftover in self.root.rglob(f"{TEMP_PREFIX}*"):  # of a run that was killed
                    if not leftover.is_dir() or leftover.is_symlink():  # heatproof leaves none
                        leftover.unlink()
            except OSError as error:
                raise _cannot_write(self.root, error) from error
            yield

    def write(self, path: Path, content: bytes | Iterable[bytes]) -> None:
        """Write a file of the run, completely or not at all.

        Raises:
            StorageError: If it cannot be written.
        """
        is_there = self.root.is_dir()
        if self._was_there and not is_there:
            raise StorageError(
                f"{self.root} has vanished while the run was writing to it; the same command "
                "starts the run again"
            )
        try:
            atomic_write(path, content)
        except OSError as error:
            raise _cannot_write(path, error) from error
        self._was_there = True
        if self.remote:
            self.remote.put(path)

    def remove(self, path: Path) -> None:
        """Delete a file or folder of the run, if it is there."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        if self.remote:
            self.remote.remove(path.relative_to(self.root).as_posix())

    def write_part(self, task: str, number: int, content: bytes) -> Path:
        """Write a part of an unfinished task, and return its path."""
        folder = self.paths.parts(task)
        return folder / self.write_hashed(folder, f"{number:05d}", ".safetensors", content).name

    def write_hashed(self, folder: Path, stem: str, suffix: str, content: bytes) -> StoredFile:
        """Write a file whose name says what its SHA-256 is."""
        digest = hashlib.sha256(content).hexdigest()
        name = hashed_name(stem, digest, suffix)
        path = folder / name
        self.write(path, content)
        self._know(path, file_stamp(path), digest)
        return StoredFile(name=name, sha256=digest, size=len(content))

    def problem_of(self, path: Path, expected: StoredFile | None = None, read: bool = True) -> str:
        """Return what is wrong with a file that has a hash in its name; empty if nothing is.

        Args:
            path: The file.
            expected: What it should be; by default only what its name says.
            read: Whether the file is read, once by this process, and again if it was touched since.
                If not, a file is trusted that was as expected when it was last read by a process
                that has `remember`\\ ed it, and that has not been touched since.
        """
        try:
            stamp = file_stamp(path)
            if not read and _is_sound(path, expected, stamp, self._cached.get(path)):
                return ""
            known = self._hashes.get(path)
            if known is None or known[0] != stamp:
                known = self._know(path, stamp, file_hash(path, length=64))
        except FileNotFoundError:
            return "it is missing"
        except OSError as error:
            return f"it cannot be read: {error.strerror or error}"
        if _is_sound(path, expected, stamp, known):
            return ""
        remember_hashes({path: known})  # so that no process trusts it
        size = path.stat().st_size
        if expected is not None and size != expected.size:
            return f"it has {size:,} bytes instead of {expected.size:,}"
        return "its content does not match its checksum"

    def is_trusted(self, path: Path) -> bool:
        """Return whether a file was not read, since another process has verified it."""
        return path not in self._hashes

    def recall(self, paths: Sequence[Path]) -> None:
        """Look up what other processes have found files to be, for `problem_of`."""
        self._cached |= cached_hashes(paths)

    def remember(self) -> None:
        """Keep what files were found to be in the cache, for other processes."""
        fresh, self._fresh = self._fresh, {}
        remember_hashes(fresh)

    def distrust(self, path: Path) -> None:
        """Let no process take a file for verified that has its checksum, but a wrong content."""
        for known in (self._fresh, self._cached):
            known.pop(path, None)
        remember_hashes({path: ("", "")})

    def _know(self, path: Path, stamp: str, digest: str) -> tuple[str, str]:
        known = (stamp, digest)
        self._hashes[path] = known
        self._fresh[path] = known
        return known

    def set_aside(self, paths: Iterable[Path], reason: str) -> None:
        """Move files into ``damaged/``, and note why; nothing is deleted.

        Raises:
            StorageError: If they cannot be moved.
        """
        moved = []
        for path in paths:
            name = path.relative_to(self.root).as_posix()
            target = self.paths.damaged / name
            number = 1
            while target.exists():
                number += 1
                target = self.paths.damaged / f"{name}-{number}"
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
            except FileNotFoundError:  # it is missing, or another process was faster
                continue
            except OSError as error:
                raise StorageError(f"cannot move {path}: {error.strerror or error}") from error
            self.damage.pop(path, None)
            moved.append(target.relative_to(self.root).as_posix())
            if self.remote:
                self.remote.put(target)
                self.remote.remove(name)
            self._hashes.pop(path, None)
            self._fresh.pop(path, None)
            self._cached.pop(path, None)
        if moved:
            with (self.paths.damaged / "notes.txt").open("a", encoding="utf-8") as notes:
                notes.write(f"{', '.join(moved)}: {reason}\n")
            if self.remote:
                self.remote.put(self.paths.damaged / "notes.txt")


def _cannot_write(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"cannot write {path}: {error.strerror or error}. What was written before is whole; once "
        "there is room and the directory can be written to, the same command continues the run"
    )


def _is_sound(
    path: Path, expected: StoredFile | None, stamp: str, known: tuple[str, str] | None
) -> bool:
    """Return whether a file with this stamp is known to have the content that it should have."""
    if known is None or known[0] != stamp:
        return False
    named = name_hash(path.name)
    is_named = named is not None and known[1].startswith(named)
    return is_named and (expected is None or known[1] == expected.sha256)
