"""Execute a plan: the order of tasks, what is reused, and running out of memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from heatproof.bench.calibration import Pace, record_speed
from heatproof.bench.layout import GridNote, SampleNotes, TaskContent, TensorKey, Timings
from heatproof.bench.parts import Journal
from heatproof.bench.plan import Plan, Record, Task
from heatproof.bench.rows import Row
from heatproof.bench.store import Store, TaskTensors
from heatproof.bench.task_runner import TaskRunner
from heatproof.data.catalog import Batch
from heatproof.data.grids import Grids

Progress = Callable[[Task, bool], None]  # a finished task; True: it was finished before this run


class OpenTask(NamedTuple):
    """A task that is not finished."""

    task: Task
    stored: list[Row]  # rows of the records that are finished
    missing: list[Record]


class Watcher:
    """Follows a run; by default in silence."""

    def begin(self, plan: Plan, open_tasks: Sequence[OpenTask]) -> None:
        """Called once, before anything is computed, with the tasks that are not finished."""

    def finish(self, task: Task, reused: bool) -> None:
        """Called after every task, with whether it was finished before this run."""

    def advance(self, task: Task, passed: float) -> None:
        """Called now and then with what another process has made of a task, in forward passes."""

    def note(self, text: str) -> None:
        """Called with a line for the user, such as that a worker was lost."""


class Callback(Watcher):
    """Calls a function after every task."""

    def __init__(self, function: Progress):
        self._function = function

    def finish(self, task: Task, reused: bool) -> None:
        self._function(task, reused)


def execute(plan: Plan, store: Store, progress: Watcher | Progress | None = None) -> None:
    """Compute the records of a plan that a run directory does not have yet.

    A record that failed before is tried again. A method that fails does not stop the others. If the
    process is interrupted, what is computed is written before the exception is raised.

    Args:
        plan: What to compute.
        store: Where results are read and written.
        progress: Follows the run, or is called after every task.
    """
    watcher = progress if isinstance(progress, Watcher) else Callback(progress or _silent)
    open_tasks = begin(plan, store, watcher)
    pace = Pace()
    with ThreadPoolExecutor(1) as loader:
        following: Future[Batch] | None = None
        for i, open_task in enumerate(open_tasks):
            batch = (following or loader.submit(open_task.task.load)).result()
            following = None
            if i + 1 < len(open_tasks):
                following = loader.submit(open_tasks[i + 1].task.load)
            _run_task(plan, store, open_task, batch, pace)
            watcher.finish(open_task.task, False)


def begin(plan: Plan, store: Store, watcher: Watcher) -> list[OpenTask]:
    """Return the tasks that are not finished, and tell a watcher about all of them."""
    open_tasks: list[OpenTask] = []
    finished: list[Task] = []
    for task in plan.tasks:
        open_task = _open_task(store, task)
        if open_task.missing:
            open_tasks.append(open_task)
        else:
            finished.append(task)
    watcher.begin(plan, open_tasks)
    for task in finished:
        watcher.finish(task, True)
    return open_tasks


def execute_task(plan: Plan, store: Store, task: Task, pace: Pace) -> None:
    """Compute the records of one task that a run directory does not have yet.

    Args:
        plan: The plan that the task is part of.
        store: Where results are read and written.
        task: The task.
        pace: How long samples take, which the task adds to.
    """
    open_task = _open_task(store, task)
    if open_task.missing:
        _run_task(plan, store, open_task, task.load(), pace)


def _open_task(store: Store, task: Task) -> OpenTask:
    stored = _stored_rows(store.task_rows(task.name), task)
    there = {row["record"] for row in stored}
    return OpenTask(task, stored, [record for record in task.records if record.key not in there])


def _silent(task: Task, reused: bool) -> None:
    pass


def _stored_rows(rows: list[Row], task: Task) -> list[Row]:
    """Return the rows of a task that need not be computed again, planned or not."""
    failed = {row["record"] for row in rows if row["status"] == "failed"}
    unreadable = [record for record in task.records if record.unrecognizable]
    if unreadable and rows:
        names = ", ".join(sorted({record.expression.label for record in unreadable}))
        warnings.warn(
            f"the code of {names} cannot be read, so its results are not reused", stacklevel=2
        )
    repeated = failed | {record.key for record in unreadable}
    return [row for row in rows if row["record"] not in repeated]


def _run_task(plan: Plan, store: Store, open_task: OpenTask, batch: Batch, pace: Pace) -> None:
    """Compute the missing records of a task and store them with those that were there."""
    task, _, missing = open_task
    journal = Journal(store, task, batch, plan.rows_per_pass(task))
    while True:
        runner = TaskRunner(plan, task, missing, store, journal, pace)
        try:
            with task.model.passes.batches_of(journal.batch_size):
                runner.run(batch, journal.batch_size)
            _commit(store, open_task, batch, runner, journal)
            break
        except torch.OutOfMemoryError:
            if journal.batch_size == 1:
                raise
            journal.restart(max(1, journal.batch_size // 2))
        except BaseException:  # also an interruption
            journal.write(runner.progress)
            raise
    journal.clear()
    full = len(batch.ids) >= journal.batch_size
    record_speed(task.model, runner.speed, runner.progress.seconds, len(batch.ids), full)


def _commit(
    store: Store, open_task: OpenTask, batch: Batch, runner: TaskRunner, journal: Journal
) -> None:
    """Write a finished task, with what is stored of it already."""
    task, stored, missing = open_task
    order = {record.key: i for i, record in enumerate(task.records)}
    planned = [row for row in [*stored, *runner.progress.rows] if row["record"] in order]
    rows = sorted(planned, key=lambda row: order[row["record"]])
    tensors = runner.kept.finished(len(batch.ids))
    timings = Timings()
    content = task.content.model_copy(update={"maps": _explained(missing)})
    before = store.tensors(task.name) if stored else TaskTensors()
    kept = _unplanned(stored, rows, task, before.content)
    if kept or any(row["record"] in order for row in stored):
        rows += kept
        content = _merged(before.content, content, task)
        tensors = {
            key: values
            for key, values in tensors.items()
            if key.kind not in ("map", "map_scale")
            or content.maps[key.method] == _explained(missing)[key.method]
        }
        tensors = _longest(before.tensors, tensors)
        timings = store.timings(task.name) or timings
    progress = runner.progress
    timings = timings.updated(progress.seconds, progress.passes, journal.batch_size, len(batch.ids))
    kept_tensors = TaskTensors(tensors, _sample_notes(task, batch), content)
    store.commit(task.name, rows, kept_tensors, timings)


def _explained(records: Iterable[Record]) -> dict[str, str]:
    """Return by label what the maps explain that are kept: those of the first record."""
    explained: dict[str, str] = {}
    for record in records:
        if not record.not_applicable:
            explained.setdefault(record.expression.label, record.protocol.target_policy)
    return explained


def _merged(before: TaskContent, now: TaskContent, task: Task) -> TaskContent:
    """Return the content of a file with what was there and what is new.

    Of two maps of a method, the one is kept that a run with all records would have kept.
    """
    wanted = _explained(task.records)
    there = {label for label, key in before.methods.items() if now.methods.get(label, key) == key}
    maps = {label: kind for label, kind in before.maps.items() if label in there}
    for label, kind in now.maps.items():
        if label not in maps or kind == wanted[label]:
            maps[label] = kind
    return TaskContent(samples=now.samples, methods=before.methods | now.methods, maps=maps)


def _unplanned(
    stored: Sequence[Row], planned: Sequence[Row], task: Task, before: TaskContent
) -> list[Row]:
    """Return the rows of records that are not asked for, but may be again.

    They are dropped where their tensors are replaced: by another model or seed under the same name,
    by a method under the same label, or by a record in the same place.
    """
    if before.samples != task.content.samples:
        return []
    methods = task.content.methods
    replaced = {label for label, key in before.methods.items() if methods.get(label, key) != key}
    keys = {record.key for record in task.records}
    taken = {_place(row) for row in planned}
    return [
        row
        for row in stored
        if row["record"] not in keys
        and row["method"] in before.methods
        and row["method"] not in replaced
        and _place(row) not in taken
    ]


def _place(row: Row) -> tuple[str, ...]:
    return tuple(row[column] for column in ("protocol", "setting", "baseline", "method"))


def _longest(
    before: Mapping[TensorKey, Tensor], now: Mapping[TensorKey, Tensor]
) -> dict[TensorKey, Tensor]:
    """Merge tensors; of those that exist twice, the later, unless it has fewer samples."""
    merged = dict(before)
    for key, values in now.items():
        if key not in merged or len(values) >= len(merged[key]):
            merged[key] = values
    return merged


def _sample_notes(task: Task, batch: Batch) -> SampleNotes:
    grids = None
    if isinstance(task.data, Grids):
        contents = [task.data.contents[sample] for sample in batch.ids]
        grids = [GridNote(images=grid.images, cell=grid.cell) for grid in contents]
    return SampleNotes(ids=batch.ids, labels=batch.labels, grids=grids)
