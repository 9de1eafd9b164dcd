"""Parts of unfinished tasks, which are written at least every minute and read when a run resumes.

A task shares passes between all its methods, so it can take hours. What it has computed is written
as it goes: rows and tensors of finished records, the maps of slow methods and what slow protocols
share block by block, and the state of optimisations. When the task is finished, its results are
written as one, and its parts are deleted. A resumed task gives the same bytes as one that was not
interrupted, since the results of a sample do not depend on which others are computed with it.

A worker whose scheduler was killed may still write a part while another one has begun with its task
again. So a part says which ones its writer knew of, and only those of one writer and of the writers
before it are read.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from heatproof.data.catalog import Batch
from heatproof.execute.rows import rows_of
from heatproof.methods.notes import MapNotes
from heatproof.plan.tasks import Task
from heatproof.runs.format import ROW_SCHEMA, BlockKey, PartNotes, TimingKey, Timings
from heatproof.runs.provenance import origin_of
from heatproof.runs.store import Store

COMMIT_SECONDS = 60.0  # a part is written when the last one is older than this
MORE_PASSES = 1.2  # that blocks of samples may take, since their passes are less full
NOTES = "notes"  # the metadata entry of a part that holds its notes
ROWS = "rows"  # the tensor of a part that holds its rows, as the bytes of an Arrow stream


@dataclass
class TaskProgress:
    """What has been computed of a task.

    Attributes:
        rows: Rows, each once, in tables.
        origins: By record, the digests of what has computed its rows.
        tensors: Tensors by block of samples.
        maps: Maps of slow methods by block of samples, as long as they are not all there.
        map_notes: What methods say about these maps.
        states: The state of the optimisation that is going on; a later one replaces it.
        shared: Which of the tensors protocols may use instead of computing them.
        seconds: Time by what it was spent on.
        passes: Images through the network by kind of pass.
    """

    rows: list[pa.Table] = field(default_factory=list)
    origins: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    tensors: dict[BlockKey, Tensor] = field(default_factory=dict)
    maps: dict[BlockKey, Tensor] = field(default_factory=dict)
    map_notes: dict[BlockKey, MapNotes] = field(default_factory=dict)
    states: dict[BlockKey, Tensor] = field(default_factory=dict)
    shared: set[BlockKey] = field(default_factory=set)
    seconds: defaultdict[TimingKey, float] = field(default_factory=lambda: defaultdict(float))
    passes: Counter[str] = field(default_factory=Counter)


class Part(NamedTuple):
    """What one part holds."""

    name: str
    notes: PartNotes
    rows: pa.Table
    tensors: dict[BlockKey, Tensor]


class Journal:
    """The parts of one task.

    Args:
        store: The run directory.
        task: The task.
        batch: Its samples.
        batch_size: Images in one pass. If parts were written with a smaller one, because memory ran
            out, it is used again.

    Attributes:
        batch_size: Images in one pass.
        restored: What the parts hold.
    """

    def __init__(self, store: Store, task: Task, batch: Batch, batch_size: int):
        self._store = store
        self._directory = store.paths.parts(task.name)
        self._task = task
        self._ids = batch.ids
        self._written = 0  # tables of rows
        self._written_tensors = set[BlockKey]()
        self._written_seconds: dict[TimingKey, float] = {}
        self._written_passes: Counter[str] = Counter()
        self._written_states: Path | None = None
        self._last = time.monotonic()
        self._known: list[str] = []  # parts that this process has read or written
        found = [part for part in map(self._read, self._files()) if part and self._fits(part.notes)]
        self.batch_size = min([batch_size, *(part.notes.batch_size for part in found)])
        self.restored = TaskProgress()
        for part in one_after_the_other(
            [part for part in found if part.notes.batch_size == self.batch_size]
        ):
            self._restore(part)
            self._known.append(part.name)
        self._remember(self.restored)

    def restart(self, batch_size: int) -> None:
        """Forget what was computed, to repeat it with fewer images in one pass."""
        self.clear()
        self.batch_size = batch_size
        self._known = []
        self.restored = TaskProgress()
        self._remember(self.restored)

    @property
    def origin(self) -> str:
        """The digest of what computes now, which is put on record."""
        return self._store.write_origin(origin_of(self._task.model, self.batch_size))

    @property
    def is_due(self) -> bool:
        """Whether the last part is old enough for another one."""
        return time.monotonic() - self._last >= COMMIT_SECONDS

    def write(self, progress: TaskProgress) -> None:
        """Write what has been computed since the last part; nothing if there is nothing new."""
        rows = progress.rows[self._written :]
        tensors = {
            key: values
            for key, values in {**progress.tensors, **progress.maps}.items()
            if key not in self._written_tensors
        }
        self._last = time.monotonic()
        if rows or tensors:
            timings = Timings().updated(
                _increase(progress.seconds, self._written_seconds),
                progress.passes - self._written_passes,
                self.batch_size,
                len(self._ids),
            )
            self._write(rows, tensors, progress.map_notes, timings)
            self._remember(progress)
        self._replace_states(progress.states)

    def _replace_states(self, states: Mapping[BlockKey, Tensor]) -> None:
        """Write the state of an optimisation to a part of its own, and delete the one before."""
        earlier = self._written_states
        self._written_states = self._write([], states, {}, Timings()) if states else None
        if earlier is not None:
            self._store.remove(earlier)

    def _write(
        self,
        rows: Sequence[pa.Table],
        tensors: Mapping[BlockKey, Tensor],
        map_notes: Mapping[BlockKey, MapNotes],
        timings: Timings,
    ) -> Path:
        """Write one part, and return its path."""
        notes = PartNotes(
            content=self._task.content,
            ids=list(self._ids),
            batch_size=self.batch_size,
            origin=self.origin,
            map_notes={
                key.encode(): (found.texts, found.missing)
                for key, found in map_notes.items()
                if key in tensors
            },
            timings=timings,
            after=self._known,
        )
        # Tensors that share memory cannot be stored.
        encoded = {
            key.encode(): values.cpu().contiguous().clone() for key, values in tensors.items()
        }
        encoded[ROWS] = _to_tensor(pa.concat_tables([ROW_SCHEMA.empty_table(), *rows]))
        number = max((int(path.name[:5]) for path in self._files()), default=-1) + 1
        content = save(encoded, {NOTES: notes.model_dump_json()})
        path = self._store.write_part(self._task.name, number, content)
        self._known.append(path.name)
        return path

    def clear(self) -> None:
        """Delete the parts."""
        self._store.remove(self._directory)

    def _files(self) -> list[Path]:
        return sorted(self._directory.glob("[0-9]*.safetensors"))

    def _read(self, path: Path) -> Part | None:
        """Read a part; one that is damaged is set aside, so that it is computed again."""
        problem = self._store.problem_of(path)
        if not problem:
            try:
                return _read(path)
            except (SafetensorError, ValidationError, ValueError, OSError, pa.ArrowException) as e:
                problem = str(e).partition("\n")[0]
        self._store.set_aside([path], problem)
        return None

    def _fits(self, notes: PartNotes) -> bool:
        return notes.content.samples == self._task.content.samples and notes.ids == self._ids

    def _restore(self, part: Part) -> None:
        """Add a part, except for what the task does not compute (any more)."""
        restored = self.restored
        notes = part.notes
        # Code that cannot be read may have been edited since.
        unreadable = [record for record in self._task.records if record.unrecognizable]
        planned = {record.key for record in self._task.records}
        planned -= {record.key for record in unreadable}
        methods = self._task.content.methods
        edited = {
            label for label, key in notes.content.methods.items() if methods.get(label) != key
        }
        edited |= {record.expression.label for record in unreadable}
        edited_maps = tuple(record.expression.map_key for record in unreadable)
        rows = rows_of(part.rows, planned)
        restored.rows.append(rows)
        for record in rows["record"].unique().to_pylist():
            restored.origins[record].add(notes.origin)
        for key, values in part.tensors.items():
            if key.tensor.method.startswith(edited_maps):
                continue
            if key.tensor.kind == "native":
                restored.maps[key] = values
            elif key.tensor.kind == "state":
                restored.states[key] = values
            elif key.tensor.kind == "shared":
                self._restore_shared(notes, key, values)
            elif key.tensor.method not in edited:
                restored.tensors[key] = values
        for name, (texts, missing) in notes.map_notes.items():
            found = MapNotes(len(texts))
            found.texts = texts
            found.missing = missing
            restored.map_notes[BlockKey.decode(name)] = found
        for timing in notes.timings.seconds:
            restored.seconds[timing.key] += timing.seconds
        for count in notes.timings.passes:
            name = f"{count.kind} from {count.start}" if count.start else count.kind
            restored.passes[name] += count.images

    def _restore_shared(self, notes: PartNotes, key: BlockKey, values: Tensor) -> None:
        """Add what a protocol computed for all methods, unless the protocol was another one."""
        now = self._task.content.protocols.get(key.tensor.protocol)
        then = notes.content.protocols.get(key.tensor.protocol, "")
        if then in ("", now):  # parts of older versions do not say
            self.restored.tensors[key] = values
        if then == now:
            self.restored.shared.add(key)

    def _remember(self, progress: TaskProgress) -> None:
        """Note what has been written."""
        self._written = len(progress.rows)
        self._written_tensors = {*progress.tensors, *progress.maps}
        self._written_seconds = dict(progress.seconds)
        self._written_passes = progress.passes.copy()


def _increase(
    now: Mapping[TimingKey, float], before: Mapping[TimingKey, float]
) -> dict[TimingKey, float]:
    return {key: value - before.get(key, 0.0) for key, value in now.items()}


def _read(path: Path) -> Part:
    with safe_open(path, "pt") as file:
        notes = PartNotes.model_validate_json((file.metadata() or {}).get(NOTES, ""))
        names = [name for name in file.keys() if name != ROWS]  # noqa: SIM118
        tensors = {BlockKey.decode(name): file.get_tensor(name) for name in names}
        rows = pa.ipc.open_stream(file.get_tensor(ROWS).numpy()).read_all()
    return Part(path.name, notes, rows.cast(ROW_SCHEMA), tensors)


def one_after_the_other(parts: Sequence[Part]) -> list[Part]:
    """Return the longest series of parts each of whose writers knew of those before.

    Nothing is in two parts of it, as long as a writer writes only what is new.

    Args:
        parts: Parts in the order of their names.
    """
    there = {part.name for part in parts}
    older = {part.name for part in parts if part.notes.after is None}

    def before(part: Part) -> set[str]:
        return older | (there & {*(part.notes.after or ()), part.name})

    chosen = max(map(before, parts), key=len, default=older)
    return [part for part in parts if part.name in chosen]


def _to_tensor(rows: pa.Table) -> Tensor:
    """Return rows as the bytes of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROW_SCHEMA) as stream:
        stream.write_table(rows.combine_chunks())
    return torch.frombuffer(bytearray(sink.getvalue()), dtype=torch.uint8)


def blocks(
    rows: Sequence[int], seconds: float | None, variants: float, batch_size: int
) -> list[slice]:
    """Divide samples into blocks that take no longer than a part may.

    Args:
        rows: Positions of the samples, ascending.
        seconds: Expected time per sample; None if it is unknown.
        variants: Images per sample in one series of passes; 0 if it is unknown. Blocks are not so
            small that there would be more than a fifth more passes, since passes have a fixed
            number of rows.
        batch_size: Images in one pass.

    Returns:
        Contiguous blocks; a single one if the samples are fast or their time is unknown.
    """
    size = len(rows)
    if seconds is not None and seconds * size > COMMIT_SECONDS and variants >= 1:
        least = _smallest_block(size, variants, batch_size)
        size = min(size, max(least, int(COMMIT_SECONDS / seconds) // least * least))
    return contiguous(rows, size)


def contiguous(rows: Sequence[int], size: int) -> list[slice]:
    """Divide ascending positions into blocks without gaps, of at most ``size``."""
    found: list[slice] = []
    for row in rows:
        if found and found[-1].stop == row and row - found[-1].start < size:
            found[-1] = slice(found[-1].start, row + 1)
        else:
            found.append(slice(row, row + 1))
    return found


def _smallest_block(samples: int, variants: float, batch_size: int) -> int:
    """Return the smallest block with which passes are filled well enough."""

    def passes(block: int) -> int:
        whole, rest = divmod(samples, block)
        return whole * math.ceil(block * variants / batch_size) + math.ceil(
            rest * variants / batch_size
        )

    most = MORE_PASSES * passes(samples)
    return next(block for block in range(1, samples + 1) if passes(block) <= most)
