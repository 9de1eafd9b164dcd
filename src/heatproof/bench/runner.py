"""Execute a plan: the order of tasks and batches, failures, and running out of memory."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from heatproof.bench.artifacts import PreparedTensors, kept_tensors
from heatproof.bench.calibration import Pace, Speed, record_speed
from heatproof.bench.layout import (
    BlockKey,
    GridNote,
    SampleNotes,
    TaskContent,
    TensorKey,
    TimingKey,
    Timings,
)
from heatproof.bench.parts import Journal, TaskProgress, blocks
from heatproof.bench.plan import Plan, Record, Task
from heatproof.bench.rows import BatchSamples, MapChecks, Row, RowBuilder
from heatproof.bench.store import Store, TaskTensors
from heatproof.data.base import PartViews
from heatproof.data.catalog import Batch
from heatproof.data.grids import Grids
from heatproof.errors import format_error
from heatproof.files import content_hash
from heatproof.methods import Explainer
from heatproof.methods.explain import ends, finite
from heatproof.methods.notes import MapNotes
from heatproof.models.batch import ModelBatch
from heatproof.protocols import EvalBatch, Protocol
from heatproof.protocols.base import Shared
from heatproof.tensor.noise import Rng

Progress = Callable[[Task, bool], None]  # a finished task; True: it was finished before this run
T = TypeVar("T")


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


class Callback(Watcher):
    """Calls a function after every task."""

    def __init__(self, function: Progress):
        self.finish = function  # type: ignore[method-assign]


@dataclass(frozen=True)
class Failure:
    """An error that was caught; its message goes into the rows that it concerns."""

    message: str


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
    open_tasks: list[OpenTask] = []
    finished: list[Task] = []
    for task in plan.tasks:
        stored = _stored_rows(store.task_rows(task.name), task)
        there = {row["record"] for row in stored}
        missing = [record for record in task.records if record.key not in there]
        if missing:
            open_tasks.append(OpenTask(task, stored, missing))
        else:
            finished.append(task)
    watcher.begin(plan, open_tasks)
    for task in finished:
        watcher.finish(task, True)
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
    task, stored, missing = open_task
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
    record_speed(task.model, runner.speed, runner.progress.seconds, len(batch.ids))


def _commit(
    store: Store, open_task: OpenTask, batch: Batch, runner: TaskRunner, journal: Journal
) -> None:
    """Write a finished task, with what is stored of it already."""
    task, stored, _ = open_task
    order = {record.key: i for i, record in enumerate(task.records)}
    planned = [row for row in [*stored, *runner.progress.rows] if row["record"] in order]
    rows = sorted(planned, key=lambda row: order[row["record"]])
    tensors = runner.kept.finished(len(batch.ids))
    timings = Timings()
    content = task.content
    if stored:
        before = store.tensors(task.name)
        kept = _unplanned(stored, rows, task, before.content)
        if kept or any(row["record"] in order for row in stored):
            rows += kept
            tensors = _longest(before.tensors, tensors)
            timings = store.timings(task.name) or timings
        if kept:
            content = before.content.merged(content)
    progress = runner.progress
    timings = timings.updated(
        progress.seconds, progress.passes, journal.batch_size, len(batch.ids)
    )
    kept_tensors = TaskTensors(tensors, _sample_notes(task, batch), content)
    store.commit(task.name, rows, kept_tensors, timings)


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


class Slices:
    """A batch whose samples explain the same classes, and blocks of its samples.

    What methods and protocols share is kept for each block: the gradients of its explainer, and the
    results that protocols share. The block of all samples is the batch itself.

    Args:
        start: Position of the batch in its task.
        samples: The samples, and what is explained.
        batch: The samples as protocols see them.
        explainer: Computes maps of the batch.
    """

    def __init__(self, start: int, samples: BatchSamples, batch: EvalBatch, explainer: Explainer):
        self.start = start
        self.samples = samples
        self.explainer = explainer
        self.all = slice(0, len(samples.ids))
        self._batches = {_bounds(self.all): batch}
        self._explainers = {_bounds(self.all): explainer}

    @property
    def targets(self) -> str:
        """A name for the explained classes."""
        return content_hash(repr(tuple(self.samples.targets)))

    def samples_of(self, rows: slice) -> BatchSamples:
        """Return the samples of a block."""
        samples = self.samples
        return BatchSamples(samples.ids[rows], samples.targets[rows], samples.labelled[rows])

    def batch_of(self, rows: slice) -> EvalBatch:
        """Return a block as protocols see it."""
        if _bounds(rows) not in self._batches:
            whole = self._batches[_bounds(self.all)]
            parts = whole.parts and PartViews(whole.parts.without[rows], whole.parts.masks[rows])
            silhouette = None if whole.silhouette is None else whole.silhouette[rows]
            self._batches[_bounds(rows)] = replace(
                whole,
                ids=whole.ids[rows],
                x=whole.x[rows],
                target=whole.target[rows],
                clean=whole.clean[rows],
                rng=Rng(whole.rng.seed, whole.ids[rows], whole.rng.device),
                parts=parts,
                silhouette=silhouette,
                batch_cache={},
                map_cache={},
            )
        return self._batches[_bounds(rows)]

    def explainer_of(self, rows: slice) -> Explainer:
        """Return what computes the maps of a block."""
        if _bounds(rows) not in self._explainers:
            block = self.batch_of(rows)
            whole = self.explainer
            self._explainers[_bounds(rows)] = Explainer(
                ModelBatch(whole.model, block.x, block.target),
                block.rng,
                block.silhouette,
                whole.prepared,
                whole.prepared_baseline,
            )
        return self._explainers[_bounds(rows)]


def _bounds(rows: slice) -> tuple[int, int]:
    return rows.start, rows.stop


class TaskRunner:
    """Computes records of one task, batch by batch.

    Maps and what protocols share are computed once per batch. Slow maps and scores are computed in
    blocks of samples, and what is computed is written to the journal once in a while.

    Attributes:
        progress: What has been computed, also by earlier attempts.
        kept: The tensors that are stored with the run.
        prepared: What is computed beforehand, from images that are not evaluated.
        speed: Seconds per pass, as measured.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        records: Sequence[Record],
        store: Store,
        journal: Journal,
        pace: Pace,
    ):
        self._task = task
        self._model = task.model
        self._records = records
        self._seed = plan.seed
        self._journal = journal
        self._pace = pace
        self._counts = task.model.pass_counts.copy()
        done = journal.restored
        keys = {record.key for record in records}
        self._rows = RowBuilder(task, [row for row in done.rows if row["record"] in keys])
        self.kept = kept_tensors(task.indices.start, plan.keep_maps, done.tensors)
        self.prepared = PreparedTensors(task.model, task.reference, store)
        self.speed = Speed()
        self._progress = TaskProgress(
            self._rows.rows,
            self.kept.blocks,
            dict(done.maps),
            dict(done.map_notes),
            done.seconds.copy(),
            done.passes.copy(),
        )

    @property
    def progress(self) -> TaskProgress:
        """What has been computed so far."""
        counts = self._model.pass_counts
        self._progress.passes += counts - self._counts
        self._counts = counts.copy()
        return self._progress

    def run(self, batch: Batch, size: int) -> None:
        """Evaluate all samples of the task, ``size`` at a time."""
        self._rows.add_skipped(self._records, batch.unreadable)
        for start in range(0, len(batch.ids), size):
            self._evaluate_batch(batch.part(slice(start, start + size)), start)

    def _evaluate_batch(self, batch: Batch, start: int) -> None:
        records = [record for record in self._records if self._rows.missing(record, batch.ids)]
        if not records and self.kept.has_clean(start):
            return
        spatial = "cam" in self._model.landmarks
        last = self._model.layer_index("cam" if spatial else "input")
        with self._measured():
            clean, features = self._model.passes.logits_and_activation(batch.x, last)
        self._pace.forward[self._task.subject] = self.speed.forward
        images = self._model.denormalize(batch.x)
        self.kept.add_clean(start, clean, images, features if spatial else None)
        for targets, same in self._by_target(records, batch, clean).items():
            self._evaluate_targets(batch, start, same, targets, clean)

    def _by_target(
        self, records: Sequence[Record], batch: Batch, clean: Tensor
    ) -> dict[tuple[int, ...], list[Record]]:
        """Group records by the classes they explain, since records with the same ones share maps.

        These are the labels, where there are any, or the model's predictions.
        """
        predicted = clean.argmax(1).tolist()
        labels = [
            prediction if label is None else label
            for prediction, label in zip(predicted, batch.labels, strict=True)
        ]
        groups: dict[tuple[int, ...], list[Record]] = {}
        for record in records:
            explains_labels = record.protocol.target_policy == "label"
            targets = tuple(labels if explains_labels else predicted)
            groups.setdefault(targets, []).append(record)
        return groups

    def _evaluate_targets(
        self,
        batch: Batch,
        start: int,
        records: Sequence[Record],
        targets: tuple[int, ...],
        clean: Tensor,
    ) -> None:
        """Evaluate the records that explain the same classes."""
        labelled = [label is not None for label in batch.labels]
        samples = BatchSamples(batch.ids, targets, labelled)
        self._rows.add_not_applicable([r for r in records if r.not_applicable], samples)
        applicable = [record for record in records if not record.not_applicable]
        target = torch.tensor(targets, device=clean.device)
        rng = Rng(self._seed, batch.ids, self._model.device)
        evaluated = EvalBatch(
            batch.ids,
            batch.x,
            target,
            clean,
            rng,
            batch.parts,
            batch.silhouette,
            view=self._task.view,
            prepared_baseline=self.prepared.for_baseline,
        )
        gradients = {r.expression.layer for r in applicable if r.expression.shares_gradient}
        explainer = Explainer(
            ModelBatch(self._model, batch.x, target, sorted(gradients)),
            rng,
            batch.silhouette,
            self.prepared.for_method,
            self.prepared.for_baseline,
        )
        slices = Slices(start, samples, evaluated, explainer)
        protocols = {record.protocol.canonical: record.protocol for record in applicable}
        shared = {name: self._compute_shared(p, slices) for name, p in protocols.items()}
        by_map: dict[str, list[Record]] = {}
        for record in applicable:
            by_map.setdefault(record.expression.map_key, []).append(record)
        for same_map in by_map.values():  # only one method's maps are in memory at a time
            self._evaluate_method(same_map, slices, shared)

    def _compute_shared(self, protocol: Protocol, slices: Slices) -> Shared | Failure:
        """Return what a protocol computes for all methods."""
        batch = slices.batch_of(slices.all)

        def compute() -> Shared:
            return protocol.compute_shared(self._model, self._prepared_for(protocol, batch))

        result = self._attempt(TimingKey("shared", protocol=protocol.canonical), compute)
        if not isinstance(result, Failure):
            self.kept.add_shared(slices.start, protocol.canonical, result)
        return result

    def _prepared_for(self, protocol: Protocol, batch: EvalBatch) -> EvalBatch:
        """Return a batch with what a protocol has computed beforehand."""
        if not protocol.preparation_key:
            return batch
        return replace(batch, prepared=self.prepared.for_protocol(protocol))

    def _evaluate_method(
        self,
        records: Sequence[Record],
        slices: Slices,
        shared: Mapping[str, Shared | Failure],
    ) -> None:
        """Evaluate records of one method, which differ in their transforms and protocols."""
        samples = slices.samples
        explainer = slices.explainer
        notes = MapNotes(len(samples.ids))
        native = self._native(records[0], slices, notes)
        if isinstance(native, Failure):
            self._rows.add_failed(records, samples, native.message)
            return
        missing = [row for row, reason in enumerate(notes.missing) if reason]
        native[missing] = torch.nan
        for label in dict.fromkeys(record.expression.label for record in records):
            same = [record for record in records if record.expression.label == label]
            expression = same[0].expression
            maps = self._attempt(None, explainer.transformed, expression, native)
            if isinstance(maps, Failure):
                self._rows.add_failed(same, samples, maps.message)
                continue
            self.kept.add_map(slices.start, label, maps)
            low, high = ends(maps)
            is_finite = low.isfinite() & high.isfinite()
            if maps is not native:
                is_finite &= finite(native)
            varied = high > low
            checks = MapChecks(is_finite.tolist(), varied.tolist(), notes.missing, notes.texts)
            if not is_finite.all():
                maps = torch.where(is_finite[:, None, None], maps, 0)
            resized = explainer.resized(maps)
            map_caches: dict[tuple[int, int], dict[Hashable, Any]] = {}
            for record in same:
                result = shared[record.protocol.canonical]
                if isinstance(result, Failure):
                    self._rows.add_failed([record], samples, result.message)
                    continue
                for rows in self._blocks(record, slices):
                    cache = map_caches.setdefault(_bounds(rows), {})
                    self._score(record, slices, rows, result, resized, checks, cache)
                    self._write_if_due()

    def _native(self, record: Record, slices: Slices, notes: MapNotes) -> Tensor | Failure:
        """Return the maps of a batch, those of a slow method from blocks of its samples."""
        expression = record.expression
        timing = TimingKey("maps", expression.map_key)
        key = TensorKey.native(expression.map_key, slices.targets)
        seconds = self._pace.of_maps(self._task, expression)
        variants = self._pace.variants(self._task, expression)
        rows = range(slices.all.stop)
        divided = blocks(rows, seconds, variants, self._journal.batch_size)
        parts = self._restored_maps(key, slices)
        if len(divided) == 1 and not parts:
            return self._attempt(timing, slices.explainer.native, expression, notes)
        covered = {row for part in parts for row in range(part.start, part.stop)}
        rest = [row for row in rows if row not in covered]
        for part in blocks(rest, seconds, variants, self._journal.batch_size):
            own_notes = MapNotes(part.stop - part.start)
            explainer = slices.explainer_of(part)
            maps = self._attempt(timing, explainer.native, expression, own_notes)
            if isinstance(maps, Failure):
                return maps
            block = BlockKey(slices.start + part.start, key)
            self._progress.map_notes[block] = own_notes
            self._progress.maps[block] = maps
            parts.append(part)
            self._write_if_due()
        found = []
        for part in sorted(parts, key=_bounds):
            block = BlockKey(slices.start + part.start, key)
            found.append(self._progress.maps.pop(block).to(self._model.device))
            part_notes = self._progress.map_notes.pop(block)
            notes.texts[part] = part_notes.texts
            notes.missing[part] = part_notes.missing
        return torch.cat(found)

    def _restored_maps(self, key: TensorKey, slices: Slices) -> list[slice]:
        """Return the blocks of a batch whose maps an earlier attempt has computed."""
        found = []
        for block, maps in self._progress.maps.items():
            first = block.start - slices.start
            if block.tensor == key and 0 <= first < slices.all.stop:
                found.append(slice(first, first + len(maps)))
        return found

    def _blocks(self, record: Record, slices: Slices) -> list[slice]:
        """Divide the samples of a batch that a record has no scores of."""
        missing = self._rows.missing(record, slices.samples.ids)
        seconds = self._pace.of_scores(self._task, record)
        variants = self._pace.score_variants(self._task, record)
        return blocks(missing, seconds, variants, self._journal.batch_size)

    def _score(
        self,
        record: Record,
        slices: Slices,
        rows: slice,
        shared: Shared,
        maps: Tensor,
        checks: MapChecks,
        cache: dict[Hashable, Any],
    ) -> None:
        """Score a block of maps."""
        protocol = record.protocol.canonical
        method = record.expression.label
        samples = slices.samples_of(rows)
        explain = partial(slices.explainer_of(rows).recompute, record.expression)
        prepared = self._prepared_for(record.protocol, slices.batch_of(rows))
        batch = replace(prepared, map_cache=cache, explain=explain)
        if rows != slices.all:
            shared = {name: values[rows] for name, values in shared.items()}
        own_checks = checks.of(rows)
        timing = TimingKey("scores", method, protocol)
        scores = self._attempt(
            timing, record.protocol.score_maps, self._model, batch, shared, maps[rows]
        )
        if isinstance(scores, Failure):
            self._rows.add_failed([record], samples, scores.message)
            return
        start = slices.start + rows.start
        self.kept.add_curves(start, protocol, method, scores.curves, own_checks.lost)
        self._rows.add_scores(record, samples, scores, own_checks)

    def _write_if_due(self) -> None:
        if self._journal.is_due:
            self._journal.write(self.progress)

    def _attempt(
        self, timing: TimingKey | None, call: Callable[..., T], *arguments: Any
    ) -> T | Failure:
        """Return the result of a call, or its error, so that other records can continue."""
        begin = time.perf_counter()
        try:
            with self._measured():
                return call(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return Failure(format_error(error))
        finally:
            if timing:
                self._progress.seconds[timing] += time.perf_counter() - begin

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Measure the seconds per pass of a block of code that makes passes of one kind."""
        before = self._model.pass_counts.copy()
        begin = time.perf_counter()
        yield
        self.speed.add(time.perf_counter() - begin, self._model.pass_counts - before)
