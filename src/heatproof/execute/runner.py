"""Execute a plan: the order of tasks, what is reused, and running out of memory."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from typing import NamedTuple

from heatproof.data.catalog import Batch
from heatproof.errors import HeatproofError, StorageError
from heatproof.execute.commit import commit_task, stored_records
from heatproof.execute.recorder import Recorder
from heatproof.plan.speed import Pace, record_speed
from heatproof.plan.tasks import Plan, Records, Task
from heatproof.runs.integrity import heal
from heatproof.runs.store import Store
from heatproof.scoring.out_of_memory import is_out_of_memory

Progress = Callable[[Task, bool], None]  # a finished task; True: it was finished before this run


class OpenTask(NamedTuple):
    """A task that is not finished."""

    task: Task
    missing: Records


class Watcher:
    """Follows a run; by default in silence."""

    def begin(self, plan: Plan, open_tasks: Sequence[OpenTask]) -> None:
        """Called once, before anything is computed, with the tasks that are not finished."""

    def finish(self, task: Task, reused: bool) -> None:
        """Called after every task, with whether it was finished before this run."""

    def resume(self, task: Task, passes: Counter[str]) -> None:
        """Called before a task is computed, with the passes of an earlier attempt that are kept."""

    def advance(self, task: Task, passed: float, kept: float) -> None:
        """Called now and then with what another process has of a task, in forward passes.

        Of those that it has passed, some were kept from an earlier attempt.
        """

    def note(self, text: str) -> None:
        """Called with a line for the user, such as that a worker was lost."""


class Callback(Watcher):
    """Calls a function after every task."""

    def __init__(self, function: Progress):
        self._function = function

    def finish(self, task: Task, reused: bool) -> None:
        self._function(task, reused)


def execute(
    plan: Plan,
    store: Store,
    watcher: Watcher | None = None,
    open_tasks: Sequence[OpenTask] | None = None,
) -> None:
    """Compute the records of a plan that a run directory does not have yet.

    A record that failed before is tried again. A method that fails does not stop the others. If the
    process is interrupted, what is computed is written before the exception is raised.

    Args:
        plan: What to compute.
        store: Where results are read and written.
        watcher: Follows the run; by default in silence.
        open_tasks: What `find_open_tasks` returns, if it was called before.
    """
    watcher = watcher or Watcher()
    if open_tasks is None:
        open_tasks = find_open_tasks(plan, store)
    begin(plan, open_tasks, watcher)
    pace = Pace()
    with ThreadPoolExecutor(1) as loader:
        following: Future[Batch] | None = None
        for open_task, after in zip_longest(open_tasks, open_tasks[1:]):
            batch = (following or loader.submit(open_task.task.load)).result()
            following = loader.submit(after.task.load) if after else None
            run_task(plan, store, open_task, batch, pace, watcher)
            watcher.finish(open_task.task, False)


def begin(plan: Plan, open_tasks: Sequence[OpenTask], watcher: Watcher) -> None:
    """Tell a watcher about the tasks of a plan, and which of them are finished."""
    watcher.begin(plan, open_tasks)
    unfinished = {entry.task.name for entry in open_tasks}
    for task in plan.tasks:
        if task.name not in unfinished:
            watcher.finish(task, True)


def execute_task(plan: Plan, store: Store, task: Task, pace: Pace, watcher: Watcher) -> None:
    """Compute the records of one task that a run directory does not have yet.

    Args:
        plan: The plan that the task is part of.
        store: Where results are read and written.
        task: The task.
        pace: How long samples take, which the task adds to.
        watcher: Follows the task.
    """
    open_task = _open_task(store, task)
    if open_task.missing:
        run_task(plan, store, open_task, task.load(), pace, watcher)


def is_unexpected(error: BaseException) -> bool:
    """Return whether an error is neither an interruption nor one that is explained to users."""
    return (
        isinstance(error, Exception)
        and not isinstance(error, HeatproofError)
        and not is_out_of_memory(error)
    )


def find_open_tasks(plan: Plan, store: Store) -> list[OpenTask]:
    """Return the tasks of a plan that are not finished, as the manifests say.

    Files are verified; those of a damaged task are set aside, so that it is computed anew.
    """
    heal(store, [task.name for task in plan.tasks])
    opened = (_open_task(store, task) for task in plan.tasks)
    return [open_task for open_task in opened if open_task.missing]


def _open_task(store: Store, task: Task) -> OpenTask:
    """Return what a task lacks, by its manifest."""
    stored = stored_records(store, task)
    unreadable = [e for e in task.records.evaluations if e.unrecognizable]
    if unreadable and store.manifest(task.name) is not None:
        names = ", ".join(sorted({evaluation.expression.label for evaluation in unreadable}))
        warnings.warn(
            f"the code of {names} cannot be read, so its results are not reused", stacklevel=2
        )
    return OpenTask(task, task.records.without(stored))


def run_task(
    plan: Plan, store: Store, open_task: OpenTask, batch: Batch, pace: Pace, watcher: Watcher
) -> None:
    """Compute the missing records of a task and store them with those that were there.

    Running out of memory halves the images in one pass. Several processes may do this in the same
    directory at once, for different tasks.
    """
    task, missing = open_task
    recorder = Recorder(store, task, missing, batch, plan, pace)
    watcher.resume(task, recorder.passes)
    while True:
        try:
            recorder.compute()
            commit_task(store, task, missing, batch, recorder)
            break
        except BaseException as error:  # also an interruption
            if is_unexpected(error) and recorder.set_parts_aside(error):
                continue
            if is_out_of_memory(error) and recorder.batch_size > 1:
                recorder.restart(recorder.batch_size // 2)
                continue
            if not isinstance(error, StorageError):
                recorder.write()
            if is_out_of_memory(error):
                raise HeatproofError(
                    f"{task.subject.title}: there is not enough memory for a pass with one image"
                ) from error
            raise
    recorder.clear()
    full = len(batch.ids) >= recorder.batch_size
    record_speed(task.model, recorder.speed, recorder.seconds, len(batch.ids), full)
