"""A run on another file system, and its copy.

A file counts as written once the file system has it: where the two differ, the copy is replaced. An
object store replaces an object at once or not at all. On other file systems a file is written under
a temporary name and renamed. There is no lock between machines. It is not needed for files with a
hash in their name, which two processes can only write with the same content.
"""

from __future__ import annotations

import datetime
import json
import os
import queue
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from heatproof.errors import HeatproofError, StorageError
from heatproof.files import TEMP_PREFIX, atomic_write, content_hash
from heatproof.models.hashes import file_stamp
from heatproof.platform import file_lock
from heatproof.runs.format import SUFFIXES, RunPaths
from heatproof.text import clip

T = TypeVar("T")
Copied = tuple[str, str]  # the stamps of a file on the file system and of its copy
CONTACT_SECONDS = 30.0  # that a file system may take for its first answer
FETCHED_AT_ONCE = 256  # files that are fetched at the same time
LISTING_ROUNDS = 5  # of listing and fetching, while another machine is writing
SINGLE = (
    "spec.json",
    "plan.json",
    "provenance.json",
    "latencies.json",
    "race.json",
    "same_as.json",
)
COPIED = {*SUFFIXES, "tasks", "provenance", "prepared", "parts", "damaged", *SINGLE}
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci", "r2", "memory"}
CONTENT_STAMPS = ("ETag", "etag", "md5Hash", "content_md5")
TIME_STAMPS = ("mtime", "created", "LastModified", "last_modified", "modified", "modify", "ino")


class Remote:
    """A run on another file system, and its copy.

    Args:
        address: Its address, which may contain credentials.
        folder: Where copies are.

    Attributes:
        address: The address; it must not be stored or printed.
        name: The address as it is shown, without credentials.
        copy: The directory of the copy.
        has_run: Whether there was a file of a run when everything was last listed.
        foreign: The name of another file that was there; empty if there was none.
    """

    def __init__(self, address: str, folder: Path):
        self.address = address
        self.name = without_secrets(address)
        self.has_run = False
        self.foreign = ""
        base = folder / content_hash(self.name)
        names = self.name.partition("://")[2].split("/")
        self.copy = base.joinpath(*(re.sub(r"^\.+$|[^\w.-]", "_", name) for name in names if name))
        self._base = base
        self._scheme = address.partition("://")[0]
        self._opened: tuple[Any, str] | None = None
        self._process = 0  # that has opened it; a forked one cannot use it

    def contact(self, write: bool) -> None:
        """Reach the file system for the first time, and find out whether it can be written to.

        Raises:
            HeatproofError: If its package is missing, or it does not answer or not as it should.
        """

        def probe() -> None:
            if not write:
                self._fs.find(self._path("plan.json"))
                return
            if self._fs.isfile(self._path()):
                raise HeatproofError(f"{self.name} is a file, not a directory")
            target = self._path(f"{TEMP_PREFIX}{secrets.token_hex(8)}")
            if self._scheme not in OBJECT_STORES:
                self._fs.makedirs(self._path(), exist_ok=True)
            self._fs.pipe_file(target, b"heatproof")
            self._fs.rm_file(target)

        try:
            _in_time(probe)
        except HeatproofError:
            raise
        except Exception as error:
            what = "write to" if write else "read"
            raise HeatproofError(f"cannot {what} {self.name}: {_reason(error)}") from None

    @property
    def _fs(self) -> Any:
        return self._open()[0]

    def _path(self, *names: str) -> str:
        return "/".join((self._open()[1], *names))

    def _open(self) -> tuple[Any, str]:
        if self._opened is None or self._process != os.getpid():
            from fsspec.core import url_to_fs
            from fsspec.registry import known_implementations

            try:
                self._opened = url_to_fs(self.address)
                self._process = os.getpid()
            except ImportError as error:
                known = known_implementations.get(self._scheme, {"class": "fsspec"})
                package = known["class"].partition(".")[0]
                cure = "" if package == "fsspec" else f"; install it with: pip install {package}"
                raise HeatproofError(
                    f"{self._scheme}:// needs a package that is missing here ({error}){cure}"
                ) from None
            except ValueError as error:
                reason = _reason(error) if self.name == self.address else "it cannot be read"
                raise HeatproofError(
                    f"cannot use {self.name}: {reason}. Addresses begin like s3://, gs://, "
                    "abfs:// or sftp://; others are in the documentation of fsspec"
                ) from None
        return self._opened

    def pull(self, *names: str, fresh: bool = False) -> None:
        """Bring the copy up to date: fetch what is new or has changed, delete what is gone.

        Args:
            *names: Files or folders of the run; by default all.
            fresh: Whether every file is fetched again.

        Raises:
            StorageError: If the file system cannot be read.
        """
        with self._locked(), self._failing("read"):
            for _ in range(LISTING_ROUNDS):
                if not self._pull_once(names, fresh):
                    return
                fresh = False

    def _pull_once(self, names: Sequence[str], fresh: bool) -> bool:
        """List and fetch once; return whether anything had changed."""
        found = self._list(names)
        copied = self._copied()
        same = {name for name, info in found.items() if self._is_same(name, info, copied)}
        changed = [name for name in found if fresh or name not in same]
        gone = [name for name in self._in_copy(names) if name not in found]
        for name in gone:
            (self.copy / name).unlink(missing_ok=True)
        # A manifest comes after the files that it names.
        changed.sort(key=lambda name: name.startswith("tasks/"))
        for begin in range(0, len(changed), FETCHED_AT_ONCE):
            try:
                self._fetch(changed[begin : begin + FETCHED_AT_ONCE], found)
            except FileNotFoundError:  # another process has replaced it
                return True
        if not names:
            self._compact(found)
        return any(_stamp(found[name]) for name in changed) or bool(gone)

    def _is_same(self, name: str, info: Mapping[str, Any], copied: Mapping[str, Copied]) -> bool:
        """Return whether neither a file nor its copy was touched since they were the same."""
        stamp = _stamp(info)
        return bool(stamp) and copied.get(name) == (stamp, self._copy_stamp(name))

    def _list(self, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Return what the file system says about the files of the run, by name."""
        self._fs.invalidate_cache()
        if not names:
            names = self._look_around()
        found: dict[str, Mapping[str, Any]] = {}
        for name in names:
            listed: dict[str, Mapping[str, Any]] = {}
            with suppress(FileNotFoundError):
                listed = self._fs.find(self._path(name), detail=True)
            for path, info in listed.items():
                own = self._own_name(path)
                parts = own.split("/")
                is_folder = info.get("type") == "directory" or path.endswith("/")
                if is_folder or parts[-1].startswith(TEMP_PREFIX):
                    continue
                if not any(part in ("", ".", "..") or "\\" in part for part in parts):
                    found[own] = info if "size" in info else self._fs.info(path)
        return found

    def _look_around(self) -> list[str]:
        """Return the files and folders of a run that are there, and note whether others are."""
        listed: list[str] = []
        with suppress(FileNotFoundError):
            listed = self._fs.ls(self._path(), detail=False)
        names = {self._own_name(path) for path in listed} - {""}
        self.foreign = min((n for n in names - COPIED if not n.startswith(TEMP_PREFIX)), default="")
        self.has_run = bool(names & COPIED)
        return sorted(names & COPIED)

    def _own_name(self, path: str) -> str:
        """Return the name of a file in the run."""
        return path.strip("/").removeprefix(self._path().strip("/")).strip("/")

    def _fetch(self, names: Sequence[str], found: Mapping[str, Mapping[str, Any]]) -> None:
        """Copy files, each of them as a whole."""
        incoming = self._base / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        targets = [str(incoming / str(number)) for number in range(len(names))]
        self._fs.get([self._path(name) for name in names], targets)
        for name, target in zip(names, targets, strict=True):
            path = self.copy / name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(target, path)
            if path.stat().st_size == found[name].get("size"):
                self._note(name, found[name])

    def put(self, path: Path) -> None:
        """Write a file of the copy to the file system.

        Raises:
            StorageError: If it cannot be written.
        """
        name = path.relative_to(self.copy).as_posix()
        with self._locked(), self._failing(f"write {name} to"):
            target = self._path(name)
            if self._scheme in OBJECT_STORES:
                self._fs.put_file(str(path), target)
            else:
                folder = target.rpartition("/")[0]
                temporary = f"{folder}/{TEMP_PREFIX}{secrets.token_hex(8)}"
                self._fs.makedirs(folder, exist_ok=True)
                self._fs.put_file(str(path), temporary)
                self._fs.mv(temporary, target)
            info = self._list([name]).get(name, {})
            if info.get("size") != path.stat().st_size:
                raise OSError(f"it has {info.get('size', 'no')} bytes there after it was written")
            self._note(name, info)

    def push(self) -> None:
        """Write all files of the copy to the file system, manifests last."""
        for name in sorted(self._in_copy(()), key=lambda name: name.startswith("tasks/")):
            self.put(self.copy / name)

    def remove(self, name: str) -> None:
        """Delete a file or folder of the run, if it is there."""
        with self._locked(), self._failing(f"delete {name} of"), suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            self._fs.rm(self._path(name), recursive=True)

    def clear(self) -> None:
        """Delete the copy of a run that is not there any more, unless a run of it is beginning."""
        lock = RunPaths(self.copy).lock
        with self._locked(), suppress(HeatproofError, FileNotFoundError), file_lock(lock, "busy"):
            shutil.rmtree(self.copy, ignore_errors=True)

    def _note(self, name: str, info: Mapping[str, Any]) -> None:
        """Keep that the copy of a file is the same as what the file system has."""
        with (self._base / "copied").open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, _stamp(info), self._copy_stamp(name)]) + "\n")

    def _copied(self) -> dict[str, Copied]:
        """Return the stamps of files when they were last the same."""
        found: dict[str, Copied] = {}
        with suppress(FileNotFoundError):
            for line in (self._base / "copied").read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # the line that a killed process has not finished
                    name, there, here = json.loads(line)
                    found[name] = (there, here)
        return found

    def _compact(self, names: Collection[str]) -> None:
        """Keep one line for each file that is there."""
        kept = [[name, *stamps] for name, stamps in self._copied().items() if name in names]
        content = "".join(json.dumps(entry) + "\n" for entry in kept)
        atomic_write(self._base / "copied", content.encode())

    def _copy_stamp(self, name: str) -> str:
        try:
            return file_stamp(self.copy / name)
        except OSError:
            return ""

    def _in_copy(self, names: Sequence[str]) -> list[str]:
        """Return the files that the copy has."""
        paths = [self.copy / name for name in names or sorted(COPIED)]
        files = [path for path in paths if path.is_file()]
        files += [file for path in paths if path.is_dir() for file in path.rglob("*")]
        return [p.relative_to(self.copy).as_posix() for p in files if p.is_file()]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes of this machine from changing the copy meanwhile."""
        self._base.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(file_lock(self._base / "lock", "busy"))
                    break
                except HeatproofError:
                    time.sleep(0.05)
            yield

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Turn the errors of any file system into one line."""
        try:
            yield
        except HeatproofError:
            raise
        except Exception as error:
            raise StorageError(
                f"cannot {what} {self.name}: {_reason(error)}. What was written before is whole; "
                "the same command continues the run"
            ) from None


def without_secrets(text: str) -> str:
    """Return a text without the user, password and query of the addresses in it."""
    return re.sub(r"\?[^\s\"')]*", "", re.sub(r"(?<=://)[^/\s\"']*@", "", text))


def _stamp(info: Mapping[str, Any]) -> str:
    """Return what changes whenever a file is replaced; empty if its file system does not say."""
    content = next((info[key] for key in CONTENT_STAMPS if info.get(key)), "")
    times = [info[key] for key in TIME_STAMPS if info.get(key)]
    seconds = [t.timestamp() if isinstance(t, datetime.datetime) else t for t in times]
    said = content or " ".join(map(str, seconds))
    return f"{info.get('size')} {said}" if said else ""


def _reason(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    if " " not in line:  # only a path, or nothing
        line = f"{type(error).__name__} {line}".strip()
    return clip(without_secrets(line))


def _in_time(call: Callable[[], T]) -> T:
    """Return what a function returns.

    Raises:
        TimeoutError: If it takes longer than `CONTACT_SECONDS`; it goes on in the background.
    """
    results: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put((call(), None))
        except Exception as error:
            results.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        value, error = results.get(timeout=CONTACT_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"there is no answer after {CONTACT_SECONDS:.0f} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]
