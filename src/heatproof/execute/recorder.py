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
import warnings
from collections import Counter
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
from heatproof.execute.restore import restore_parts, stored_shared
from heatproof.execute.rows import RowBuilder
from heatproof.files import content_hash
from heatproof.methods.notes import MapNotes
from heatproof.methods.optimisation_state import Checkpoint
from heatproof.plan.speed import Pace, Speed
from heatproof.plan.tasks import Plan, Records, Task
from heatproof.protocols import Protocol
from heatproof.protocols.base import Shared
from heatproof.runs.format import BlockKey, PartNotes, PreparedKey, TensorKey, TimingKey, Timings
from heatproof.runs.part_files import Part, PartFiles, one_after_the_other
from heatproof.runs.provenance import origin_of
from heatproof.runs.store import Store
from heatproof.scoring.block import Block
from heatproof.scoring.evaluation import Evaluation
from heatproof.scoring.outcomes import Failure, Outcomes
from heatproof.scoring.prepared import PreparedKind, PreparedTensors
from heatproof.scoring.score_batch import CleanPass, NativeMaps, Steps, compute_steps
from heatproof.text import clip

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
        task = self._task
        restored = restore_parts(parts, task, self._missing.keys)
        self.rows = RowBuilder(task)
        for table in restored.tables:
            self.rows.restore(table)
        self.restored_tables = len(self.rows.tables)
        self.origins = restored.origins
        self.kept = kept_tensors(task.indices.start, self._plan.keep_maps)
        self.kept.blocks |= restored.kept
        self.seconds = restored.seconds
        self.speed = Speed()
        self._passes = restored.passes
        self._counts = self._model.pass_counts.copy()
        self._maps = restored.maps  # of slow methods, until all are there
        self._states: dict[BlockKey, Tensor] = {}  # of the optimisation that is going on
        self._restored = restored
        self._parts_read = [part.name for part in parts]
        self._known = [part.name for part in parts]  # parts that were read or written
        self._stored_shared = stored_shared(self._store, task, self._batch.ids, self.batch_size)
        self._prepared = StoredTensors(task, self._store)
        self._current = self._batch
        self._start = 0  # position of the current batch in the task
        self._state_part: Path | None = None
        self._remember_written()

    def restart(self, batch_size: int) -> None:
        """Forget what was computed, to repeat it with fewer images in one pass."""
        self.clear()
        self.batch_size = batch_size
        self._begin([])

    def set_parts_aside(self, error: BaseException) -> bool:
        """Begin anew without the parts that were read; return whether there were any.

        Somebody else can make up a part with what is not computed here, such as maps of another
        size.
        """
        if not self._parts_read:
            return False
        reason = clip(f"{error}".partition("\n")[0])
        warnings.warn(
            f"{self._task.subject.title}: the task begins anew, without what was computed before, "
            f"which does not go with what is computed now ({reason})",
            stacklevel=2,
        )
        self._files.set_aside(self._parts_read, reason)
        self._begin([])
        return True

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
        task = self._task
        with self._model.passes.batches_of(self.batch_size):
            for start in range(0, len(self._batch.ids), self.batch_size):
                batch = self._batch.part(slice(start, start + self.batch_size))
                missing = [
                    record.evaluation
                    for record in self._missing
                    if self.rows.missing(record, batch.ids)
                ]
                self._start = start
                self._current = batch
                if missing or not self.kept.has_clean(start):
                    compute_steps(
                        task.model, batch, missing, self, self._plan.seed, task.view, self._prepared
                    )

    # The steps of a batch

    def clean(self, compute: Callable[[], CleanPass]) -> CleanPass:
        """Compute the clean pass, which tells how fast the network is."""
        with self._measured(None):
            clean = compute()
        self._pace.forward[self._task.subject] = self.speed.of("forward")
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
            if all(key in self._restored.shared for key in restored.values()):
                parts = {name: self.kept.blocks[key].to(device) for name, key in restored.items()}
                count = len(next(iter(parts.values())))
                found[start - self._start, start - self._start + count] = parts
        return found

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

        done = self._restored_maps(key, len(block))
        covered = {row for part in done for row in range(part.start, part.stop)}
        blocks = self._map_blocks(
            evaluation, [row for row in range(len(block)) if row not in covered]
        )
        at_once = len(blocks) == 1 and not done
        for part in blocks:
            samples = f"{classes} {part.stop - part.start}"
            states = OptimisationStates(
                self._states,
                self._restored.states,
                self.write_if_due,
                self._start + part.start,
                TensorKey.state(identity, samples),
            )
            with self._measured(TimingKey("maps", evaluation.expression.map_key)):
                maps = compute(block.part(part), states)
            self._states.clear()
            if at_once or isinstance(maps, Failure):
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


@dataclass(frozen=True)
class OptimisationStates(Checkpoint):
    """The states of one method on one block of samples.

    Attributes:
        latest: The states that are written with the next part.
        restored: Those that an earlier attempt has written.
        write_if_due: Writes a part if the last one is old enough.
        start: Position of the first sample in the task.
        key: The method, the samples and the explained classes that they belong to.
    """

    latest: dict[BlockKey, Tensor]
    restored: Mapping[BlockKey, Tensor]
    write_if_due: Callable[[], None]
    start: int
    key: TensorKey

    def load(self, name: str) -> Mapping[str, Tensor] | None:
        """Return what an earlier attempt has saved under a name; None if there is nothing."""
        found = {}
        for block, values in self.restored.items():
            if block.start == self.start and block.tensor.method == self.key.method:
                samples, of, field = json.loads(block.tensor.name)
                if (samples, of) == (self.key.name, name):
                    found[field] = values
        self._put(name, found)  # until the first step is done, this is the latest state
        return found or None

    def save(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Keep a state instead of the one before, to be written with the next part."""
        self._put(name, state)
        self.write_if_due()

    def _put(self, name: str, state: Mapping[str, Tensor]) -> None:
        for field, values in state.items():
            encoded = json.dumps([self.key.name, name, field])
            key = TensorKey.state(self.key.method, encoded)
            self.latest[BlockKey(self.start, key)] = values
