"""Execute a plan: the order of tasks and batches, failures, and running out of memory."""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from heatproof.bench.artifacts import PreparedTensors, kept_tensors
from heatproof.bench.layout import GridNote, SampleNotes, TimingKey, Timings
from heatproof.bench.plan import Plan, Record, Task
from heatproof.bench.rows import BatchSamples, MapChecks, Row, RowBuilder
from heatproof.bench.store import Store, TaskTensors
from heatproof.data.catalog import Batch
from heatproof.data.grids import Grids
from heatproof.errors import format_error
from heatproof.methods import Explainer
from heatproof.methods.explain import ends, finite
from heatproof.methods.notes import MapNotes
from heatproof.models.batch import ModelBatch
from heatproof.protocols import EvalBatch, Protocol
from heatproof.protocols.base import Shared
from heatproof.tensor.noise import Rng

Progress = Callable[[Task, bool], None]  # a finished task; True: it was finished before this run
T = TypeVar("T")


class _OpenTask(NamedTuple):
    task: Task
    done: list[Row]  # rows of the records that are finished
    missing: list[Record]


@dataclass(frozen=True)
class Failure:
    """An error that was caught; its message goes into the rows that it concerns."""

    message: str


def execute(plan: Plan, store: Store, progress: Progress = lambda task, reused: None) -> None:
    """Compute the records of a plan that a run directory does not have yet.

    A record that failed before is tried again. A method that fails does not stop the others.

    Args:
        plan: What to compute.
        store: Where results are read and written.
        progress: Called after every task.
    """
    open_tasks: list[_OpenTask] = []
    for task in plan.tasks:
        done = _finished_rows(store.task_rows(task.name), task)
        finished = {row["record"] for row in done}
        missing = [record for record in task.records if record.key not in finished]
        if missing:
            open_tasks.append(_OpenTask(task, done, missing))
        else:
            progress(task, True)
    with ThreadPoolExecutor(1) as loader:
        following: Future[Batch] | None = None
        for i, open_task in enumerate(open_tasks):
            batch = (following or loader.submit(open_task.task.load)).result()
            following = None
            if i + 1 < len(open_tasks):
                following = loader.submit(open_tasks[i + 1].task.load)
            _run_task(plan, store, open_task, batch)
            progress(open_task.task, False)


def _finished_rows(rows: list[Row], task: Task) -> list[Row]:
    """Return the rows of a task that need not be computed again."""
    failed = {row["record"] for row in rows if row["status"] == "failed"}
    unreadable = [record for record in task.records if record.unrecognizable]
    if unreadable and rows:
        names = ", ".join(sorted({record.expression.label for record in unreadable}))
        warnings.warn(
            f"the code of {names} cannot be read, so its results are not reused", stacklevel=2
        )
    planned = {record.key for record in task.records}
    reusable = planned - failed - {record.key for record in unreadable}
    return [row for row in rows if row["record"] in reusable]


def _run_task(plan: Plan, store: Store, open_task: _OpenTask, batch: Batch) -> None:
    """Compute the missing records of a task and store them with those that were there."""
    task, done, missing = open_task
    size = plan.rows_per_pass(task)
    counts_before = task.model.pass_counts.copy()
    while True:
        try:
            runner = TaskRunner(plan, task, missing, store)
            with task.model.passes.batches_of(size):
                runner.run(batch, size)
            break
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size = max(1, size // 2)
    order = {record.key: i for i, record in enumerate(task.records)}
    rows = sorted(done + runner.rows.rows, key=lambda row: order[row["record"]])
    tensors = runner.kept.finished()
    timings = Timings()
    if done:
        tensors = store.tensors(task.name).tensors | tensors
        timings = store.timings(task.name) or timings
    timings = timings.updated(
        runner.seconds, task.model.pass_counts - counts_before, size, len(batch.ids)
    )
    store.commit(task.name, rows, TaskTensors(tensors, _sample_notes(task, batch)), timings)


def _sample_notes(task: Task, batch: Batch) -> SampleNotes:
    grids = None
    if isinstance(task.data, Grids):
        contents = [task.data.contents[sample] for sample in batch.ids]
        grids = [GridNote(images=grid.images, cell=grid.cell) for grid in contents]
    return SampleNotes(ids=batch.ids, labels=batch.labels, grids=grids)


class TaskRunner:
    """Computes records of one task, batch by batch.

    Maps and what protocols share are computed once per batch.

    Attributes:
        rows: The rows of the records.
        kept: The tensors that are stored with the run.
        prepared: What is computed beforehand, from images that are not evaluated.
        seconds: Time by what it was spent on.
    """

    def __init__(self, plan: Plan, task: Task, records: Sequence[Record], store: Store):
        self._task = task
        self._model = task.model
        self._records = records
        self._seed = plan.seed
        self.rows = RowBuilder(task)
        self.kept = kept_tensors(task.indices.start, plan.keep_maps)
        self.prepared = PreparedTensors(task.model, task.reference, store)
        self.seconds: defaultdict[TimingKey, float] = defaultdict(float)

    def run(self, batch: Batch, size: int) -> None:
        """Evaluate all samples of the task, ``size`` at a time."""
        self.rows.add_skipped(self._records, batch.unreadable)
        for start in range(0, len(batch.ids), size):
            self._evaluate_batch(batch.part(slice(start, start + size)))

    def _evaluate_batch(self, batch: Batch) -> None:
        spatial = "cam" in self._model.landmarks
        last = self._model.layer_index("cam" if spatial else "input")
        clean, features = self._model.passes.logits_and_activation(batch.x, last)
        images = self._model.denormalize(batch.x)
        if spatial:
            features = self._model.tail("cam").channels_first(features)
        self.kept.add_clean(clean, images, features if spatial else None)
        for targets, records in self._by_target(batch, clean).items():
            self._evaluate_targets(batch, records, targets, clean)
        self.kept.end_batch(len(batch.ids))

    def _by_target(self, batch: Batch, clean: Tensor) -> dict[tuple[int, ...], list[Record]]:
        """Group records by the classes they explain, since records with the same ones share maps.

        These are the labels, where there are any, or the model's predictions.
        """
        predicted = clean.argmax(1).tolist()
        labels = [
            prediction if label is None else label
            for prediction, label in zip(predicted, batch.labels, strict=True)
        ]
        groups: dict[tuple[int, ...], list[Record]] = {}
        for record in self._records:
            explains_labels = record.protocol.target_policy == "label"
            targets = tuple(labels if explains_labels else predicted)
            groups.setdefault(targets, []).append(record)
        return groups

    def _evaluate_targets(
        self, batch: Batch, records: Sequence[Record], targets: tuple[int, ...], clean: Tensor
    ) -> None:
        """Evaluate the records that explain the same classes."""
        labelled = [label is not None for label in batch.labels]
        samples = BatchSamples(batch.ids, targets, labelled)
        self.rows.add_not_applicable([r for r in records if r.not_applicable], samples)
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
        protocols = {record.protocol.canonical: record.protocol for record in applicable}
        shared = {name: self._compute_shared(p, evaluated) for name, p in protocols.items()}
        by_map: dict[str, list[Record]] = {}
        for record in applicable:
            by_map.setdefault(record.expression.map_key, []).append(record)
        gradients = {r.expression.layer for r in applicable if r.expression.shares_gradient}
        explainer = Explainer(
            ModelBatch(self._model, batch.x, target, sorted(gradients)),
            rng,
            batch.silhouette,
            self.prepared.for_method,
            self.prepared.for_baseline,
        )
        for same_map in by_map.values():  # only one method's maps are in memory at a time
            self._evaluate_method(same_map, samples, shared, explainer)

    def _compute_shared(
        self, protocol: Protocol, batch: EvalBatch
    ) -> tuple[EvalBatch, Shared] | Failure:
        """Return the batch as the protocol sees it, and what it computes for all methods."""

        def compute() -> tuple[EvalBatch, Shared]:
            if not protocol.preparation_key:
                return batch, protocol.compute_shared(self._model, batch)
            prepared = replace(batch, prepared=self.prepared.for_protocol(protocol))
            return prepared, protocol.compute_shared(self._model, prepared)

        timing = TimingKey("shared", protocol=protocol.canonical)
        result = self._attempt(timing, compute)
        if not isinstance(result, Failure):
            self.kept.add_shared(protocol.canonical, result[1])
        return result

    def _evaluate_method(
        self,
        records: Sequence[Record],
        samples: BatchSamples,
        shared: Mapping[str, tuple[EvalBatch, Shared] | Failure],
        explainer: Explainer,
    ) -> None:
        """Evaluate records of one method, which differ in their transforms and protocols."""
        method = records[0].expression
        notes = MapNotes(len(samples.ids))
        timing = TimingKey("maps", method.map_key)
        native = self._attempt(timing, explainer.native, method, notes)
        if isinstance(native, Failure):
            self.rows.add_failed(records, samples, native.message)
            return
        missing = [row for row, reason in enumerate(notes.missing) if reason]
        native[missing] = torch.nan
        for label in dict.fromkeys(record.expression.label for record in records):
            same = [record for record in records if record.expression.label == label]
            expression = same[0].expression
            maps = self._attempt(None, explainer.transformed, expression, native)
            if isinstance(maps, Failure):
                self.rows.add_failed(same, samples, maps.message)
                continue
            self.kept.add_map(label, maps)
            low, high = ends(maps)
            is_finite = low.isfinite() & high.isfinite()
            if maps is not native:
                is_finite &= finite(native)
            varied = high > low
            checks = MapChecks(is_finite.tolist(), varied.tolist(), notes.missing, notes.texts)
            if not is_finite.all():
                maps = torch.where(is_finite[:, None, None], maps, 0)
            resized = explainer.resized(maps)
            map_cache: dict[Hashable, Any] = {}
            for record in same:
                result = shared[record.protocol.canonical]
                if isinstance(result, Failure):
                    self.rows.add_failed([record], samples, result.message)
                    continue
                protocol_batch, protocol_shared = result
                explain = partial(explainer.recompute, record.expression)
                batch = replace(protocol_batch, map_cache=map_cache, explain=explain)
                self._score(record, samples, batch, protocol_shared, resized, checks)

    def _score(
        self,
        record: Record,
        samples: BatchSamples,
        batch: EvalBatch,
        shared: Shared,
        maps: Tensor,
        checks: MapChecks,
    ) -> None:
        protocol = record.protocol.canonical
        method = record.expression.label
        timing = TimingKey("scores", method, protocol)
        scores = self._attempt(timing, record.protocol.score_maps, self._model, batch, shared, maps)
        if isinstance(scores, Failure):
            self.rows.add_failed([record], samples, scores.message)
            return
        self.kept.add_curves(protocol, method, scores.curves, checks.lost)
        self.rows.add_scores(record, samples, scores, checks)

    def _attempt(
        self, timing: TimingKey | None, call: Callable[..., T], *arguments: Any
    ) -> T | Failure:
        """Return the result of a call, or its error, so that other records can continue."""
        begin = time.perf_counter()
        try:
            return call(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return Failure(format_error(error))
        finally:
            if timing:
                self.seconds[timing] += time.perf_counter() - begin
