"""Record what a task computes, and resume where an earlier attempt has stopped.

A task shares passes between all its methods, so it can take hours. The recorder computes slow steps
in blocks of samples and writes what is new at least every minute, as a part: rows and tensors of
finished records, the maps of slow methods and what slow protocols share block by block, and the
state of optimisations. When the task is finished, its results are written as one, and its parts are
deleted. A resumed task gives the same bytes as one that was not interrupted, since the results of a
sample do not depend on which others are computed with it.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import torch
from torch import Tensor

from heatproof.data.catalog import Batch
from heatproof.execute import blocks as cut
from heatproof.execute.kept_tensors import kept_tensors
from heatproof.execute.part_files import Part, PartFiles, one_after_the_other
from heatproof.execute.rows import RowBuilder, rows_of
from heatproof.files import content_hash
from heatproof.methods.notes import MapNotes
from heatproof.methods.optimisation_state import Checkpoint
from heatproof.plan.speed import Pace, Speed
from heatproof.plan.tasks import Plan, Records, Task
from heatproof.protocols import Protocol
from heatproof.protocols.base import Shared
from heatproof.runs.format import BlockKey, PartNotes, PreparedKey, TensorKey, TimingKey, Timings
from heatproof.runs.provenance import origin_of
from heatproof.runs.store import Store
from heatproof.scoring.block import Block
from heatproof.scoring.evaluation import Evaluation
from heatproof.scoring.kernel import CleanPass, NativeMaps, Steps, compute_steps
from heatproof.scoring.outcomes import Failure, Outcomes
from heatproof.scoring.prepared import PreparedKind, PreparedTensors

T = TypeVar("T")


class StoredTensors(PreparedTensors):
    """Prepared tensors that are computed once per run and stored in its directory."""

    def __init__(self, task: Task, store: Store):
        super().__init__(task.model, task.reference)
        self._store = store

    def load(
        self,
        kind: PreparedKind,
        name: str,
        version: int | str,
        compute: Callable[[], Mapping[str, Tensor]],
    ) -> Mapping[str, Tensor]:
        """Return tensors from the run directory; compute and store them if they are missing."""
        assert self.reference is not None
        weights = self.model.fingerprint()
        fingerprint = self.reference.fingerprint
        key = PreparedKey(kind, name, version, weights, self.model.backend, fingerprint)
        return self._store.prepared(key, compute)


class Recorder(Steps):
    """Computes the missing records of one task, and writes them down as it goes.

    Args:
        store: The run directory.
        task: The task.
        missing: Its records that are computed.
        batch: Its samples.
        plan: The plan that the task is part of.
        pace: How long samples take, which the task adds to.

    Attributes:
        batch_size: Images in one pass. If parts were written with fewer than the plan says, because
            memory ran out, it is their number.
        rows: The rows, in tables.
        origins: By record, the digests of what has computed rows in earlier attempts.
        kept: The tensors that are stored with the run.
        seconds: Time by what it was spent on.
        speed: Seconds per pass, as measured.
    """

    def __init__(
        self, store: Store, task: Task, missing: Records, batch: Batch, plan: Plan, pace: Pace
    ):
        self._store = store
        self._task = task
        self._model = task.model
        self._missing = missing
        self._records = {record.evaluation: record for record in missing}
        self._batch = batch
        self._plan = plan
        self._pace = pace
        self._files = PartFiles(store, task.name)
        parts = [part for part in self._files.read() if self._fits(part.notes)]
        sizes = [part.notes.batch_size for part in parts]
        self.batch_size = min([plan.rows_per_pass(task), *sizes])
        parts = [part for part in parts if part.notes.batch_size == self.batch_size]
        self._begin(one_after_the_other(parts))

    def _begin(self, parts: Sequence[Part]) -> None:
        """Begin with what some parts hold."""
        keys = self._missing.keys
        self.rows = RowBuilder(self._task)
        self.origins: defaultdict[str, set[str]] = defaultdict(set)
        self.kept = kept_tensors(self._task.indices.start, self._plan.keep_maps)
        self.seconds: defaultdict[TimingKey, float] = defaultdict(float)
        self.speed = Speed()
        self._passes: Counter[str] = Counter()
        self._counts = self._model.pass_counts.copy()
        self._maps: dict[BlockKey, NativeMaps] = {}  # of slow methods, until all are there
        self._states: dict[BlockKey, Tensor] = {}  # of the optimisation that is going on
        self._restored_states: dict[BlockKey, Tensor] = {}
        self._restored_shared: set[BlockKey] = set()  # what protocols need not compute again
        self._known = [part.name for part in parts]  # parts that were read or written
        for part in parts:
            self._restore(part, keys)
        self.restored_tables = len(self.rows.tables)
        self._stored_shared = self._read_shared()
        self._prepared = StoredTensors(self._task, self._store)
        self._current = self._batch
        self._start = 0  # position of the current batch in the task
        self._state_part: Path | None = None
        self._remember_written()

    def restart(self, batch_size: int) -> None:
        """Forget what was computed, to repeat it with fewer images in one pass."""
        self.clear()
        self.batch_size = batch_size
        self._begin([])

    def clear(self) -> None:
        """Delete the parts."""
        self._files.clear()

    @property
    def origin(self) -> str:
        """The digest of what computes now, which is put on record."""
        return self._store.write_origin(origin_of(self._model, self.batch_size))

    @property
    def passes(self) -> Counter[str]:
        """Images through the network by kind of pass, also in earlier attempts."""
        counts = self._model.pass_counts
        self._passes += counts - self._counts
        self._counts = counts.copy()
        return self._passes

    def compute(self) -> None:
        """Evaluate all samples of the task, ``batch_size`` at a time."""
        self.rows.add_skipped(self._missing, self._batch.unreadable)
        with self._model.passes.batches_of(self.batch_size):
            for start in range(0, len(self._batch.ids), self.batch_size):
                self._start = start
                self._compute_batch(self._batch.part(slice(start, start + self.batch_size)))

    def _compute_batch(self, batch: Batch) -> None:
        evaluations = [
            record.evaluation for record in self._missing if self.rows.missing(record, batch.ids)
        ]
        if evaluations or not self.kept.has_clean(self._start):
            task = self._task
            self._current = batch
            compute_steps(
                task.model, batch, evaluations, self, self._plan.seed, task.view, self._prepared
            )

    # The steps of a batch

    def clean(self, compute: Callable[[], CleanPass]) -> CleanPass:
        """Compute the clean pass, which tells how fast the network is."""
        with self._measured(None):
            clean = compute()
        self._pace.forward[self._task.subject] = self.speed.forward
        images = self._model.denormalize(self._current.x)
        self.kept.add_clean(self._start, clean.logits, images, clean.features)
        return clean

    def shared(
        self, protocol: Protocol, block: Block, compute: Callable[[Block], Shared | Failure]
    ) -> Shared | Failure:
        """Compute what methods share, if it is slow from blocks of samples."""
        name = protocol.canonical
        by_sample = self._is_by_sample(protocol)
        found = self._known_shared(protocol, block) if by_sample else {}
        covered = {row for first, stop in found for row in range(first, stop)}
        rest = [row for row in range(len(block)) if row not in covered]
        seconds = self._pace.of_shared(self._task, protocol) if by_sample else None
        variants = float(sum(protocol.shared_passes().values()))
        for rows in cut.blocks(rest, seconds, variants, self.batch_size):
            with self._measured(TimingKey("shared", protocol=name)):
                result = compute(block.part(rows))
            if isinstance(result, Failure):
                return result
            self.kept.add_shared(self._start + rows.start, name, result)
            found[rows.start, rows.stop] = result
            self.write_if_due()
        if len(found) == 1:
            return next(iter(found.values()))
        results = [found[bounds] for bounds in sorted(found)]
        return {key: torch.cat([result[key] for result in results]) for key in results[0]}

    def _is_by_sample(self, protocol: Protocol) -> bool:
        """Return whether what methods share can be computed in blocks, and read as it is stored.

        It is stored in single precision.
        """
        is_known = bool(protocol.shared_by_sample) and protocol.source is None
        return is_known and self._model.dtype != torch.float64

    def _known_shared(self, protocol: Protocol, block: Block) -> dict[tuple[int, int], Shared]:
        """Return by rows what an earlier run, or an earlier attempt, has computed."""
        device = self._model.device
        samples = slice(self._start, self._start + len(block))
        keys = {
            name: TensorKey.shared(protocol.canonical, name) for name in protocol.shared_by_sample
        }
        if all(key in self._stored_shared for key in keys.values()):
            stored = {
                name: self._stored_shared[key][samples].to(device) for name, key in keys.items()
            }
            self.kept.add_shared(self._start, protocol.canonical, stored)
            return {(0, len(block)): stored}
        found: dict[tuple[int, int], Shared] = {}
        for start in range(samples.start, samples.stop):
            restored = {name: BlockKey(start, key) for name, key in keys.items()}
            if all(key in self._restored_shared for key in restored.values()):
                parts = {name: self.kept.blocks[key].to(device) for name, key in restored.items()}
                count = len(next(iter(parts.values())))
                found[start - self._start, start - self._start + count] = parts
        return found

    def _read_shared(self) -> dict[TensorKey, Tensor]:
        """Return what protocols have computed for all methods, from the file of a finished task.

        It is the same as if it were computed now: samples and network have not changed, and neither
        has the protocol, nor the number of images in a pass.
        """
        task = self._task
        ids = self._batch.ids
        before = self._store.tensors(task.name, ())
        timings = self._store.timings(task.name)
        same = before.content.samples == task.content.samples and before.samples.ids == ids
        if not same or timings is None or timings.batch_size != self.batch_size:
            return {}
        protocols = {record.protocol.canonical: record.protocol for record in task.applicable}
        wanted = [
            TensorKey.shared(name, tensor)
            for name, protocol in protocols.items()
            for tensor in protocol.shared_by_sample
            if before.content.protocols.get(name) == task.content.protocols[name]
        ]
        found = self._store.tensors(task.name, wanted).tensors
        return {key: values for key, values in found.items() if len(values) == len(ids)}

    def maps(
        self,
        evaluation: Evaluation,
        block: Block,
        compute: Callable[[Block, Checkpoint], NativeMaps | Failure],
    ) -> NativeMaps | Failure:
        """Compute the maps of a method, those of a slow one from blocks of samples."""
        classes = content_hash(repr(tuple(block.targets)))
        identity = self._map_identity(evaluation)
        key = TensorKey.native(identity, classes)

        def compute_part(rows: slice) -> NativeMaps | Failure:
            samples = f"{classes} {rows.stop - rows.start}"
            states = OptimisationStates(
                self, self._start + rows.start, TensorKey.state(identity, samples)
            )
            with self._measured(TimingKey("maps", evaluation.expression.map_key)):
                maps = compute(block.part(rows), states)
            self._states.clear()
            return maps

        rows = range(len(block))
        done = self._restored_maps(key, len(block))
        if len(self._map_blocks(evaluation, rows)) == 1 and not done:
            return compute_part(slice(0, len(block)))
        covered = {row for part in done for row in range(part.start, part.stop)}
        rest = [row for row in rows if row not in covered]
        for part in self._map_blocks(evaluation, rest):
            maps = compute_part(part)
            if isinstance(maps, Failure):
                return maps
            self._maps[BlockKey(self._start + part.start, key)] = maps
            done.append(part)
            self.write_if_due()
        values = []
        notes = MapNotes(len(block))
        for part in sorted(done, key=lambda part: part.start):
            found = self._maps.pop(BlockKey(self._start + part.start, key))
            values.append(found.values.to(self._model.device))
            notes.set_rows(part, found.notes)
        return NativeMaps(torch.cat(values), notes)

    def _map_identity(self, evaluation: Evaluation) -> str:
        """Return what identifies a method's maps of given samples and classes."""
        expression = evaluation.expression
        reference = self._task.reference if expression.needs_reference else None
        return f"{expression.map_key} {reference.fingerprint}" if reference else expression.map_key

    def _map_blocks(self, evaluation: Evaluation, rows: Sequence[int]) -> list[slice]:
        """Divide samples whose maps are missing; a user's method by what it is given at a time."""
        expression = evaluation.expression
        if expression.images_per_call is not None:
            return cut.contiguous(rows, expression.images_per_call)
        seconds = self._pace.of_maps(self._task, expression)
        variants = self._pace.variants(self._task, expression)
        return cut.blocks(rows, seconds, variants, self.batch_size)

    def _restored_maps(self, key: TensorKey, count: int) -> list[slice]:
        """Return the rows of a batch whose maps an earlier attempt has computed."""
        found = []
        for block, maps in self._maps.items():
            first = block.start - self._start
            if block.tensor == key and 0 <= first < count:
                found.append(slice(first, first + len(maps.values)))
        return found

    def scores(
        self, evaluation: Evaluation, block: Block, compute: Callable[[Block], Outcomes]
    ) -> None:
        """Compute the scores that are missing, slow ones from blocks of samples."""
        record = self._records[evaluation]
        protocol = evaluation.protocol.canonical
        method = evaluation.expression.label
        missing = self.rows.missing(record, block.ids)
        seconds = self._pace.of_scores(self._task, evaluation)
        variants = self._pace.score_variants(self._task, evaluation)
        for rows in cut.blocks(missing, seconds, variants, self.batch_size):
            part = block.part(rows)
            with self._measured(TimingKey("scores", method, protocol)):
                outcomes = compute(part)
            self.kept.add_curves(self._start + rows.start, protocol, method, outcomes.curves)
            self.rows.add(record, part, outcomes)
            self.write_if_due()

    def add_maps(self, label: str, block: Block, maps: Tensor) -> None:
        """Keep the maps of the first samples."""
        self.kept.add_map(self._start, label, maps)

    def add_outcomes(self, evaluation: Evaluation, block: Block, outcomes: Outcomes) -> None:
        """Add rows, except for samples that have one."""
        self.rows.add(self._records[evaluation], block, outcomes)

    @contextmanager
    def _measured(self, timing: TimingKey | None) -> Iterator[None]:
        """Measure what a step takes, and the seconds per pass if its passes are of one kind."""
        before = self._model.pass_counts.copy()
        begin = time.perf_counter()
        try:
            yield
            self.speed.add(time.perf_counter() - begin, self._model.pass_counts - before)
        finally:
            if timing:
                self.seconds[timing] += time.perf_counter() - begin

    # Parts

    def write_if_due(self) -> None:
        """Write what is new if the last part is old enough."""
        if time.monotonic() - self._last_write >= cut.PART_SECONDS:
            self.write()

    def write(self) -> None:
        """Write what has been computed since the last part, and the state of an optimisation."""
        maps = {key: maps.values for key, maps in self._maps.items()}
        tensors = {
            key: values
            for key, values in {**self.kept.blocks, **maps}.items()
            if key not in self._written_tensors
        }
        rows = self.rows.tables[self._written_tables :]
        if rows or tensors:
            before = self._written_seconds
            seconds = {key: value - before.get(key, 0.0) for key, value in self.seconds.items()}
            passes = self.passes - self._written_passes
            timings = Timings().updated(seconds, passes, self.batch_size, len(self._batch.ids))
            self._write_part(rows, tensors, timings)
            self._remember_written()
        # The state is in a part of its own, and replaces the one before.
        earlier = self._state_part
        self._state_part = self._write_part([], self._states, Timings()) if self._states else None
        if earlier is not None:
            self._files.remove(earlier)
        self._last_write = time.monotonic()

    def _write_part(
        self, rows: Sequence[pa.Table], tensors: Mapping[BlockKey, Tensor], timings: Timings
    ) -> Path:
        notes = PartNotes(
            content=self._task.content,
            ids=list(self._batch.ids),
            batch_size=self.batch_size,
            origin=self.origin,
            map_notes={
                key.encode(): (maps.notes.texts, maps.notes.missing)
                for key, maps in self._maps.items()
                if key in tensors
            },
            timings=timings,
            after=self._known,
        )
        path = self._files.write(notes, rows, tensors)
        self._known.append(path.name)
        return path

    def _remember_written(self) -> None:
        """Note what the parts hold."""
        self._last_write = time.monotonic()
        self._written_tables: int = len(self.rows.tables)
        self._written_tensors: set[BlockKey] = {*self.kept.blocks, *self._maps}
        self._written_seconds: dict[TimingKey, float] = dict(self.seconds)
        self._written_passes: Counter[str] = self.passes.copy()

    def _fits(self, notes: PartNotes) -> bool:
        same = notes.content.samples == self._task.content.samples
        return same and notes.ids == self._batch.ids

    def _restore(self, part: Part, keys: Sequence[str]) -> None:
        """Add a part, except for what the task does not compute (any more)."""
        notes = part.notes
        # Code that cannot be read may have been edited since.
        unreadable = [record for record in self._task.records if record.unrecognizable]
        methods = self._task.content.methods
        edited = {
            label for label, key in notes.content.methods.items() if methods.get(label) != key
        }
        edited |= {record.expression.label for record in unreadable}
        edited_maps = tuple(record.expression.map_key for record in unreadable)
        rows = rows_of(part.rows, set(keys) - {record.key for record in unreadable})
        self.rows.restore(rows)
        for record in rows["record"].unique().to_pylist():
            self.origins[record].add(notes.origin)
        for key, values in part.tensors.items():
            kind = key.tensor.kind
            if key.tensor.method.startswith(edited_maps):
                continue
            if kind == "native":
                map_notes = MapNotes(len(values))
                map_notes.texts, map_notes.missing = notes.map_notes[key.encode()]
                self._maps[key] = NativeMaps(values, map_notes)
            elif kind == "state":
                self._restored_states[key] = values
            elif kind == "shared":
                self._restore_shared(notes, key, values)
            elif key.tensor.method not in edited:
                self.kept.blocks[key] = values
        for timing in notes.timings.seconds:
            self.seconds[timing.key] += timing.seconds
        for count in notes.timings.passes:
            name = f"{count.kind} from {count.start}" if count.start else count.kind
            self._passes[name] += count.images

    def _restore_shared(self, notes: PartNotes, key: BlockKey, values: Tensor) -> None:
        """Add what a protocol computed for all methods, unless the protocol was another one."""
        now = self._task.content.protocols.get(key.tensor.protocol)
        then = notes.content.protocols.get(key.tensor.protocol, "")
        if then in ("", now):  # parts of older versions do not say
            self.kept.blocks[key] = values
        if then == now:
            self._restored_shared.add(key)

    # States of optimisations

    def load_state(self, start: int, method: str) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors of the state that an earlier attempt has written."""
        for block, values in self._restored_states.items():
            if block.start == start and block.tensor.method == method:
                yield block.tensor.name, values

    def put_state(self, state: Mapping[BlockKey, Tensor]) -> None:
        """Take the state of the optimisation that is going on, in place of the one before."""
        self._states |= state


@dataclass(frozen=True)
class OptimisationStates(Checkpoint):
    """The states of one method on one block of samples.

    Attributes:
        recorder: Writes them with its parts.
        start: Position of the first sample in the task.
        key: The method, the samples and the explained classes that they belong to.
    """

    recorder: Recorder
    start: int
    key: TensorKey

    def load(self, name: str) -> Mapping[str, Tensor] | None:
        """Return what an earlier attempt has saved under a name; None if there is nothing."""
        found = {}
        for encoded, values in self.recorder.load_state(self.start, self.key.method):
            samples, of, field = json.loads(encoded)
            if (samples, of) == (self.key.name, name):
                found[field] = values
        if not found:
            return None
        self._put(name, found)  # until the first step is done, this is the latest state
        return found

    def save(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Keep a state instead of the one before, to be written with the next part."""
        self._put(name, state)
        self.recorder.write_if_due()

    def _put(self, name: str, state: Mapping[str, Tensor]) -> None:
        self.recorder.put_state(
            {
                BlockKey(
                    self.start,
                    TensorKey.state(self.key.method, json.dumps([self.key.name, name, field])),
                ): values
                for field, values in state.items()
            }
        )
