"""A worker: open the spec once, check each task, compute it and write it to the run.

A worker process computes one task at a time, with as many threads as the client asks for.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.execute.engines.job import Job, Outcome, TaskRequest, request, versions
from heatproof.execute.progress import passes_made
from heatproof.execute.runner import Watcher, execute_task
from heatproof.files import file_hash
from heatproof.models.model import Model
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import make_spec
from heatproof.plan.speed import Pace
from heatproof.plan.tasks import Plan, Task
from heatproof.runs.addresses import attach
from heatproof.runs.format import PreparedKey
from heatproof.runs.store import Store
from heatproof.userfile import moved_code

TOPIC = "heatproof-progress"
WATCH_SECONDS = 0.5  # between two looks at whether the task is still wanted
REPORT_SECONDS = 2.0  # between two reports of progress
LOCK_PREFIX = "heatproof-prepared-"  # how the names of cluster-wide locks begin
MOST_OPEN_SPECS = 2  # opened specs that a worker keeps


class Stopped(BaseException):
    """The task is not wanted any more: the client has stopped, or the worker is closing."""


@dataclass
class Session:
    """A spec that this process has opened, with its models."""

    plan: Plan
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self.tasks = {task.name: task for task in self.plan.tasks}

    def task(self, wanted: TaskRequest) -> Task | None:
        """Return the task of this name with the records that are wanted, as far as it has them."""
        task = self.tasks.get(wanted.name)
        if task is None or self.plan.question is None:
            return task
        keys = set(wanted.records)
        return replace(task, records=task.records.where(lambda record: record.key in keys))


class SharedStore(Store):
    """A run directory in which one worker at a time prepares tensors, while others wait."""

    def prepared(
        self, key: PreparedKey, compute: Callable[[], Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        if self.paths.prepared(key):
            return super().prepared(key, compute)
        from distributed import Lock

        with Lock(f"{LOCK_PREFIX}{self.name}/{key.digest}"):
            if self.remote:
                self.remote.pull("prepared")
            return super().prepared(key, compute)


_computing = threading.Lock()
_sessions: dict[str, Session] = {}


def compute_task(job: Job, wanted: TaskRequest) -> Outcome:
    """Compute a task in a worker process, and write it to the run directory.

    Args:
        job: The spec and what it needs.
        wanted: The task as the client has planned it.

    Returns:
        What the client is told; an error of the user's is part of it, so that it is not retried.
    """
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    with _computing, _caught_warnings() as notes:
        try:
            with Watch(worker, key, wanted.name) as watch, _as_client(job, worker):
                store = _store(job, Path(worker.local_directory))
                session, task = _open(job, wanted, store.root)
                store.fetch(task.name)
                execute_task(session.plan, store, task, session.pace, watch)
        except HeatproofError as error:
            where = f"worker {worker.address} on {socket.gethostname()}"
            return Outcome(error=f"{where}: {error}")
        except Stopped:
            return Outcome(stopped=True)
    return Outcome(notes=tuple(notes))


def is_computing() -> bool:
    """Return whether this process is in the middle of a task."""
    return _computing.locked()


@contextmanager
def _caught_warnings() -> Iterator[dict[str, None]]:
    """Collect the texts of this thread's warnings, each once, instead of printing them."""
    texts: dict[str, None] = {}
    thread = threading.get_ident()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def collect(message: Warning | str, *args: Any, **kwargs: Any) -> None:
            if threading.get_ident() == thread:
                texts[str(message)] = None
            else:
                show(message, *args, **kwargs)

        warnings.simplefilter("always")
        warnings.showwarning = collect
        yield texts


class Watch(Watcher):
    """Watches the task of a worker from another thread: reports progress, and stops it.

    A task that Dask has cancelled goes on by default. Here it is interrupted, as a local run is,
    and writes what it has computed.
    """

    def __init__(self, worker: Any, key: object, name: str):
        self._model: Model | None = None  # of the task, once it is computed
        self._before = 0.0  # passes of the model before
        self._kept = 0.0  # passes of an earlier attempt
        self._worker = worker
        self._key = key
        self._name = name
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._interrupted = False
        self._follower = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Watch:
        self._follower.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._ended.set()
        if self._interrupted and kind is not Stopped:
            time.sleep(1.0)  # the interruption arrives here, not in Dask's own code

    def resume(self, task: Task, passes: Counter[str]) -> None:
        self._before = passes_made(task.model)
        self._kept = passes_made(task.model, passes)
        self._model = task.model
        self._report()

    def _follow(self) -> None:
        reported = time.monotonic()
        while not self._ended.wait(WATCH_SECONDS):
            if not self._is_wanted():
                self._interrupt()
                return
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                self._report()

    def _report(self) -> None:
        if self._model is None:
            return
        passed = self._kept + passes_made(self._model) - self._before
        message = {"task": self._name, "passed": passed, "kept": self._kept}
        with suppress(Exception):  # the connection is closing
            self._worker.log_event(TOPIC, message)

    def _is_wanted(self) -> bool:
        state = self._worker.state.tasks.get(self._key)
        cancelled = state is None or state.state in ("cancelled", "resumed")
        return not cancelled and self._worker.status.name == "running"

    def _interrupt(self) -> None:
        """Raise ``Stopped`` in the thread of the task, at its next step."""
        with self._lock:
            if self._ended.is_set():
                return
            self._interrupted = True
            thread = ctypes.c_ulong(self._thread)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(Stopped))


@contextmanager
def _as_client(job: Job, worker: Any) -> Iterator[None]:
    """Resolve paths as the client does, with its code, cache and number of threads."""
    directory = Path.cwd()
    cache = os.environ.get("HEATPROOF_CACHE")
    threads = torch.get_num_threads()
    if os.path.isdir(job.directory):
        os.chdir(job.directory)
    if os.path.isdir(job.cache):
        os.environ["HEATPROOF_CACHE"] = job.cache
    torch.set_num_threads(job.threads)
    try:
        with moved_code(job.code, Path(worker.local_directory) / "heatproof-code"):
            yield
    finally:
        torch.set_num_threads(threads)
        os.chdir(directory)
        if cache is None:
            os.environ.pop("HEATPROOF_CACHE", None)
        else:
            os.environ["HEATPROOF_CACHE"] = cache


def _store(job: Job, folder: Path) -> SharedStore:
    """Return the run, after a check that this worker has the same software and sees it.

    Args:
        job: The job.
        folder: A directory of the worker, for the copy of a run on another file system.
    """
    here = versions()
    differing = [name for name, version in job.versions.items() if here[name] != version]
    if differing:
        found = ", ".join(f"{name} {here[name]}" for name in differing)
        expected = ", ".join(f"{name} {job.versions[name]}" for name in differing)
        raise HeatproofError(
            f"it has {found}, but the run was started with {expected}; install the same versions, "
            "since results may differ"
        )
    store = SharedStore(attach(job.root, folder))
    if store.remote:
        store.remote.pull("plan.json", "provenance.json")
    plan = store.paths.plan
    if not plan.is_file() or file_hash(plan) != job.plan:
        raise HeatproofError(
            f"it does not see the run directory {store.name}; the directory must be on a disk that "
            "all workers share, under the same path (choose it with -o)"
        )
    return store


def _open(job: Job, wanted: TaskRequest, root: Path) -> tuple[Session, Task]:
    """Return the opened spec and the task, which must be the one that the client has planned."""
    if job.key in _sessions:
        session = _sessions[job.key]
        task = session.task(wanted)
        if task is not None and request(task) == wanted:
            return session, task
        del _sessions[job.key]  # data or weights have changed since
    session = Session(open_spec(make_spec(job.spec), job.device, train=False, out=root))
    task = session.task(wanted)
    if task is None or request(task) != wanted:
        raise HeatproofError(_difference(wanted, session, task))
    while len(_sessions) >= MOST_OPEN_SPECS:
        del _sessions[next(iter(_sessions))]
    _sessions[job.key] = session
    return session, task


def _difference(wanted: TaskRequest, session: Session, task: Task | None) -> str:
    """Say what is not the same as on the client."""
    if task is None or request(task).samples != wanted.samples:
        return (
            f"the data {wanted.data} are not those that the run was started with; workers must "
            "see the same files under the same path"
        )
    if request(task).weights != wanted.weights:
        return (
            f"the weights or the code of {wanted.model} are not those that the run was started "
            "with; workers must see the same files under the same path. Weights that heatproof "
            f"has trained are in its cache: set HEATPROOF_CACHE to a directory on a shared disk"
        )
    ours = {record.key: record for record in task.records}
    other = [record for key, record in ours.items() if key not in wanted.records]
    names = dict.fromkeys(f"{r.expression.label} under {r.protocol.canonical}" for r in other)
    return (
        f"the code of methods or protocols is not that which the run was started with: "
        f"{', '.join(list(names)[:3]) or 'some are missing'}"
    )
