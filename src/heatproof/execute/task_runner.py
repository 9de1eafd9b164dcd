"""Compute the records of one task: maps, scores, failures, and what is written meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from heatproof.data.catalog import Batch
from heatproof.errors import StorageError, format_error
from heatproof.execute.artifacts import PreparedTensors, kept_tensors
from heatproof.execute.parts import Journal, TaskProgress, blocks, contiguous
from heatproof.execute.rows import BatchSamples, MapChecks, RowBuilder, rows_of
from heatproof.execute.slices import Slices, bounds
from heatproof.execute.states import OptimisationStates
from heatproof.methods import Explainer, Expression
from heatproof.methods.map_checks import ends, finite
from heatproof.methods.notes import MapNotes
from heatproof.models.batch import ModelBatch
from heatproof.plan.speed import Pace, Speed
from heatproof.plan.tasks import Plan, Record, Task
from heatproof.protocols import EvalBatch, Protocol
from heatproof.protocols.base import Shared
from heatproof.runs.format import BlockKey, TensorKey, TimingKey
from heatproof.runs.store import Store
from heatproof.tensor.noise import Rng

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """An error that was caught; its message goes into the rows that it concerns."""

    message: str


NO_MEMORY = ("can't allocate memory", "not enough memory")  # as PyTorch's CPU allocator says it


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a graphics card or in the main memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY)


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
        self._rows = RowBuilder(task, [rows_of(table, keys) for table in done.rows])
        self.kept = kept_tensors(task.indices.start, plan.keep_maps, done.tensors)
        self.prepared = PreparedTensors(task.model, task.reference, store)
        self.speed = Speed()
        self._progress = TaskProgress(
            rows=self._rows.tables,
            origins=done.origins.copy(),
            tensors=self.kept.blocks,
            maps=dict(done.maps),
            map_notes=dict(done.map_notes),
            shared=set(done.shared),
            seconds=done.seconds.copy(),
            passes=done.passes.copy(),
        )
        self._stored_shared: Mapping[TensorKey, Tensor] = {}

    @property
    def progress(self) -> TaskProgress:
        """What has been computed so far."""
        counts = self._model.pass_counts
        self._progress.passes += counts - self._counts
        self._counts = counts.copy()
        return self._progress

    def reuse_shared(self, tensors: Mapping[TensorKey, Tensor]) -> None:
        """Use what protocols have computed for all methods in an earlier run.

        Args:
            tensors: Tensors of all readable samples of the task.
        """
        self._stored_shared = tensors

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
        peaks_of = self._model.tail("cam").channels_first(features) if spatial else None
        self.kept.add_clean(start, clean, images, peaks_of)
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
        """Return what a protocol computes for all methods, if it is slow from blocks of samples."""
        name = protocol.canonical
        by_sample = self._is_by_sample(protocol)
        found = self._known_shared(protocol, slices) if by_sample else {}
        covered = {row for first, stop in found for row in range(first, stop)}
        rest = [row for row in range(slices.all.stop) if row not in covered]
        seconds = self._pace.of_shared(self._task, protocol) if by_sample else None
        variants = float(sum(protocol.shared_passes().values()))
        for rows in blocks(rest, seconds, variants, self._journal.batch_size):
            batch = self._prepared_for(protocol, slices.batch_of(rows))
            timing = TimingKey("shared", protocol=name)
            result = self._attempt(timing, protocol.compute_shared, self._model, batch)
            if isinstance(result, Failure):
                return result
            self.kept.add_shared(slices.start + rows.start, name, result)
            found[bounds(rows)] = result
            self._write_if_due()
        if len(found) == 1:
            return next(iter(found.values()))
        parts = [found[key] for key in sorted(found)]
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

    def _is_by_sample(self, protocol: Protocol) -> bool:
        """Return whether what methods share can be computed in blocks, and read as it is stored.

        It is stored in single precision.
        """
        is_known = bool(protocol.shared_by_sample) and protocol.source is None
        return is_known and self._model.dtype != torch.float64

    def _known_shared(self, protocol: Protocol, slices: Slices) -> dict[tuple[int, int], Shared]:
        """Return by block what an earlier run, or an earlier attempt, has computed."""
        device = self._model.device
        samples = slice(slices.start, slices.start + slices.all.stop)
        keys = {
            name: TensorKey.shared(protocol.canonical, name) for name in protocol.shared_by_sample
        }
        if all(key in self._stored_shared for key in keys.values()):
            stored = {
                name: self._stored_shared[key][samples].to(device) for name, key in keys.items()
            }
            self.kept.add_shared(slices.start, protocol.canonical, stored)
            return {bounds(slices.all): stored}
        found: dict[tuple[int, int], Shared] = {}
        for start in range(samples.start, samples.stop):
            restored = {name: BlockKey(start, key) for name, key in keys.items()}
            if all(block in self._progress.shared for block in restored.values()):
                parts = {name: self.kept.blocks[key].to(device) for name, key in restored.items()}
                count = len(next(iter(parts.values())))
                found[start - slices.start, start - slices.start + count] = parts
        return found

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
        if missing:
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
                    cache = map_caches.setdefault(bounds(rows), {})
                    self._score(record, slices, rows, result, resized, checks, cache)
                    self._write_if_due()

    def _native(self, record: Record, slices: Slices, notes: MapNotes) -> Tensor | Failure:
        """Return the maps of a batch, those of a slow method from blocks of its samples."""
        expression = record.expression
        key = TensorKey.native(self._map_identity(record), slices.targets)
        rows = range(slices.all.stop)
        parts = self._restored_maps(key, slices)
        if len(self._map_blocks(expression, rows)) == 1 and not parts:
            return self._explain(record, slices, slices.all, notes)
        covered = {row for part in parts for row in range(part.start, part.stop)}
        rest = [row for row in rows if row not in covered]
        for part in self._map_blocks(expression, rest):
            own_notes = MapNotes(part.stop - part.start)
            maps = self._explain(record, slices, part, own_notes)
            if isinstance(maps, Failure):
                return maps
            block = BlockKey(slices.start + part.start, key)
            self._progress.map_notes[block] = own_notes
            self._progress.maps[block] = maps
            parts.append(part)
            self._write_if_due()
        found = []
        for part in sorted(parts, key=bounds):
            block = BlockKey(slices.start + part.start, key)
            found.append(self._progress.maps.pop(block).to(self._model.device))
            part_notes = self._progress.map_notes.pop(block)
            notes.set_rows(part, part_notes)
        return torch.cat(found)

    def _map_blocks(self, expression: Expression, rows: Sequence[int]) -> list[slice]:
        """Divide samples whose maps are missing; a user's method by what it is given at a time."""
        if expression.images_per_call is not None:
            return contiguous(rows, expression.images_per_call)
        seconds = self._pace.of_maps(self._task, expression)
        variants = self._pace.variants(self._task, expression)
        return blocks(rows, seconds, variants, self._journal.batch_size)

    def _map_identity(self, record: Record) -> str:
        """Return what identifies a method's maps of given samples and classes."""
        expression = record.expression
        reference = self._task.reference if expression.needs_reference else None
        return f"{expression.map_key} {reference.fingerprint}" if reference else expression.map_key

    def _explain(
        self, record: Record, slices: Slices, rows: slice, notes: MapNotes
    ) -> Tensor | Failure:
        """Compute the maps of a block of samples."""
        expression = record.expression
        explainer = slices.explainer_of(rows)
        begin = slices.start + rows.start
        samples = f"{slices.targets} {rows.stop - rows.start}"
        states = OptimisationStates(
            TensorKey.state(self._map_identity(record), samples),
            begin,
            self._journal.restored.states,
            self._progress.states,
            self._write_if_due,
        )
        explainer = replace(explainer, checkpoint=states)
        timing = TimingKey("maps", expression.map_key)
        maps = self._attempt(timing, explainer.native, expression, notes)
        self._progress.states.clear()
        return maps

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
        except StorageError:  # of prepared tensors: no fault of the method
            raise
        except Exception as error:
            if is_out_of_memory(error) and self._journal.batch_size > 1:
                raise
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
