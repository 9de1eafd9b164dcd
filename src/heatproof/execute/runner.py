"""Execute a plan: the order of tasks, what is reused, and running out of memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa
from torch import Tensor

from heatproof.data.catalog import Batch
from heatproof.data.grids import Grids
from heatproof.errors import HeatproofError, StorageError
from heatproof.execute.parts import Journal
from heatproof.execute.rows import in_order, places_of, rows_of
from heatproof.execute.task_runner import TaskRunner, is_out_of_memory
from heatproof.plan.speed import Pace, record_speed
from heatproof.plan.tasks import Plan, Record, Records, Task
from heatproof.runs.format import (
    ROW_SCHEMA,
    GridNote,
    SampleNotes,
    TaskContent,
    TensorKey,
    Timings,
)
from heatproof.runs.integrity import heal
from heatproof.runs.store import Store
from heatproof.runs.task_files import TaskTensors

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


def execute(
    plan: Plan,
    store: Store,
    progress: Watcher | Progress | None = None,
    open_tasks: Sequence[OpenTask] | None = None,
) -> None:
    """Compute the records of a plan that a run directory does not have yet.

    A record that failed before is tried again. A method that fails does not stop the others. If the
    process is interrupted, what is computed is written before the exception is raised.

    Args:
        plan: What to compute.
        store: Where results are read and written.
        progress: Follows the run, or is called after every task.
        open_tasks: What ``find_open_tasks`` returns, if it was called before.
    """
    watcher = progress if isinstance(progress, Watcher) else Callback(progress or _silent)
    if open_tasks is None:
        open_tasks = find_open_tasks(plan, store)
    begin(plan, open_tasks, watcher)
    pace = Pace()
    with ThreadPoolExecutor(1) as loader:
        following: Future[Batch] | None = None
        for i, open_task in enumerate(open_tasks):
            batch = (following or loader.submit(open_task.task.load)).result()
            following = None
            if i + 1 < len(open_tasks):
                following = loader.submit(open_tasks[i + 1].task.load)
            run_task(plan, store, open_task, batch, pace)
            watcher.finish(open_task.task, False)


def begin(plan: Plan, open_tasks: Sequence[OpenTask], watcher: Watcher) -> None:
    """Tell a watcher about the tasks of a plan, and which of them are finished."""
    watcher.begin(plan, open_tasks)
    unfinished = {entry.task.name for entry in open_tasks}
    for task in plan.tasks:
        if task.name not in unfinished:
            watcher.finish(task, True)


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
        run_task(plan, store, open_task, task.load(), pace)


def _silent(task: Task, reused: bool) -> None:
    pass


def find_open_tasks(plan: Plan, store: Store) -> list[OpenTask]:
    """Return the tasks of a plan that are not finished, as the manifests say.

    Files are verified; those of a damaged task are set aside, so that it is computed anew.
    """
    heal(store, [task.name for task in plan.tasks])
    opened = (_open_task(store, task) for task in plan.tasks)
    return [open_task for open_task in opened if open_task.missing]


def _open_task(store: Store, task: Task) -> OpenTask:
    """Return what a task lacks, by its manifest."""
    stored = _stored_records(store, task)
    unreadable = [e for e in task.records.evaluations if e.unrecognizable]
    if unreadable and store.manifest(task.name) is not None:
        names = ", ".join(sorted({evaluation.expression.label for evaluation in unreadable}))
        warnings.warn(
            f"the code of {names} cannot be read, so its results are not reused", stacklevel=2
        )
    return OpenTask(task, task.records.without(stored))


def _stored_records(store: Store, task: Task) -> set[str]:
    """Return the records of a task that can be reused, planned or not, by its manifest."""
    manifest = store.manifest(task.name)
    if manifest is None:
        return set()
    stored = {record for group in manifest.groups for record in group.records} - manifest.failed
    if any(evaluation.unrecognizable for evaluation in task.records.evaluations):
        stored -= {record.key for record in task.records if record.unrecognizable}
    return stored


def run_task(plan: Plan, store: Store, open_task: OpenTask, batch: Batch, pace: Pace) -> None:
    """Compute the missing records of a task and store them with those that were there.

    Several processes may do this in the same directory at once, for different tasks.
    """
    task, missing = open_task
    journal = Journal(store, task, batch, plan.rows_per_pass(task))
    while True:
        runner = TaskRunner(plan, task, missing, store, journal, pace)
        runner.reuse_shared(stored_shared(store, task, batch, journal.batch_size))
        try:
            with task.model.passes.batches_of(journal.batch_size):
                runner.run(batch, journal.batch_size)
            commit_task(store, open_task, batch, runner, journal)
            break
        except BaseException as error:  # also an interruption
            if is_out_of_memory(error) and journal.batch_size > 1:
                journal.restart(max(1, journal.batch_size // 2))
                continue
            if not isinstance(error, StorageError):
                journal.write(runner.progress)
            if is_out_of_memory(error):
                raise HeatproofError(
                    f"{task.subject.title}: there is not enough memory for a pass with one image"
                ) from error
            raise
    journal.clear()
    full = len(batch.ids) >= journal.batch_size
    record_speed(task.model, runner.speed, runner.progress.seconds, len(batch.ids), full)


def stored_shared(
    store: Store, task: Task, batch: Batch, batch_size: int
) -> dict[TensorKey, Tensor]:
    """Return what protocols have computed for all methods, from the file of a finished task.

    It is the same as if it were computed now: samples and network have not changed, and neither
    has the protocol, nor the number of images in a pass.
    """
    before = store.tensors(task.name, ())
    timings = store.timings(task.name)
    same = before.content.samples == task.content.samples and before.samples.ids == batch.ids
    if not same or timings is None or timings.batch_size != batch_size:
        return {}
    protocols = {record.protocol.canonical: record.protocol for record in task.applicable}
    wanted = [
        TensorKey.shared(name, tensor)
        for name, protocol in protocols.items()
        for tensor in protocol.shared_by_sample
        if before.content.protocols.get(name) == task.content.protocols[name]
    ]
    found = store.tensors(task.name, wanted).tensors
    return {key: values for key, values in found.items() if len(values) == len(batch.ids)}


def commit_task(
    store: Store, open_task: OpenTask, batch: Batch, runner: TaskRunner, journal: Journal
) -> None:
    """Write a finished task, with what is stored of it already."""
    task, missing = open_task
    stored = _stored_records(store, task)
    progress = runner.progress
    planned = task.records.keys
    now = pa.concat_tables([ROW_SCHEMA.empty_table(), *progress.rows])
    rows = now
    kept = now.slice(0, 0)
    origins = {key: set(progress.origins[key]) for key in _keys_of(now)}
    computed = progress.rows[len(journal.restored.rows) :]
    if computed:
        origin = journal.origin
        for key in _keys_of(pa.concat_tables(computed)):
            origins[key].add(origin)
    tensors = runner.kept.finished(len(batch.ids))
    timings = Timings()
    explained = _explained(missing)
    content = task.content.model_copy(update={"maps": explained})
    if stored:
        before = store.tensors(task.name)
        earlier = rows_of(store.table(task.name), stored)
        reused = rows_of(earlier, planned)
        rows = pa.concat_tables([reused, now])
        kept = _unplanned(earlier, rows, task, before.content)
        if reused.num_rows or kept.num_rows:
            content = _merged(before.content, content, task)
            tensors = {
                key: values
                for key, values in tensors.items()
                if key.kind not in ("map", "map_scale")
                or content.maps[key.method] == explained[key.method]
            }
            tensors = _longest(before.tensors, tensors)
            timings = store.timings(task.name) or timings
            own = store.origins(task.name)
            known = _keys_of(pa.concat_tables([reused, kept]))
            origins = {key: set(own.get(key, ())) for key in known} | origins
    rows = pa.concat_tables([in_order(rows, planned), kept])
    timings = timings.updated(progress.seconds, progress.passes, journal.batch_size, len(batch.ids))
    by_record = {key: sorted(digests) for key, digests in origins.items()}
    kept_tensors = TaskTensors(tensors, _sample_notes(task, batch), content, by_record)
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
    return TaskContent(
        samples=now.samples,
        methods=before.methods | now.methods,
        maps=maps,
        protocols=before.protocols | now.protocols,
    )


def _keys_of(rows: pa.Table) -> list[str]:
    return rows["record"].unique().to_pylist()


def _unplanned(stored: pa.Table, planned: pa.Table, task: Task, before: TaskContent) -> pa.Table:
    """Return the rows of records that are not asked for, but may be again.

    They are dropped where their tensors are replaced: by another model or seed under the same name,
    by a method under the same label, or by a record in the same place.
    """
    if before.samples != task.content.samples:
        return stored.slice(0, 0)
    methods = task.content.methods
    replaced = {label for label, key in before.methods.items() if methods.get(label, key) != key}
    keys = {record.key for record in task.records}
    taken = set(places_of(planned).values())
    kept = [
        record
        for record, place in places_of(stored).items()
        if record not in keys
        and place[-1] in before.methods
        and place[-1] not in replaced
        and place not in taken
    ]
    return rows_of(stored, kept)


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
