"""Restore what earlier attempts at a task have computed, as far as it is still valid."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from torch import Tensor

from heatproof.execute.rows import rows_of
from heatproof.methods.notes import MapNotes
from heatproof.plan.tasks import Task
from heatproof.runs.format import BlockKey, TensorKey, TimingKey
from heatproof.runs.part_files import Part
from heatproof.runs.store import Store
from heatproof.scoring.score_batch import NativeMaps


@dataclass
class Restored:
    """The content of the parts of a task, except for what the task does not compute (any more).

    Attributes:
        tables: The rows.
        origins: By record, the digests of what has computed its rows.
        kept: The tensors that are stored with the run.
        maps: Maps of slow methods.
        states: States of optimisations.
        shared: The blocks among ``kept`` that protocols need not compute again.
        seconds: Time by what it was spent on.
        passes: Images through the network by kind of pass.
    """

    tables: list[pa.Table] = field(default_factory=list)
    origins: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    kept: dict[BlockKey, Tensor] = field(default_factory=dict)
    maps: dict[BlockKey, NativeMaps] = field(default_factory=dict)
    states: dict[BlockKey, Tensor] = field(default_factory=dict)
    shared: set[BlockKey] = field(default_factory=set)
    seconds: defaultdict[TimingKey, float] = field(default_factory=lambda: defaultdict(float))
    passes: Counter[str] = field(default_factory=Counter)


def restore_parts(parts: Iterable[Part], task: Task, records: Iterable[str]) -> Restored:
    """Return what parts hold of a task.

    Args:
        parts: The parts, in order.
        task: The task.
        records: The keys of the records that are computed.
    """
    # Code that cannot be read may have been edited since.
    unreadable = [record for record in task.records if record.unrecognizable]
    wanted = set(records) - {record.key for record in unreadable}
    edited_maps = tuple(record.expression.map_key for record in unreadable)
    found = Restored()
    for part in parts:
        notes = part.notes
        edited = {record.expression.label for record in unreadable}
        for label, key in notes.content.methods.items():
            if task.content.methods.get(label) != key:
                edited.add(label)
        rows = rows_of(part.rows, wanted)
        found.tables.append(rows)
        for record in rows["record"].unique().to_pylist():
            found.origins[record].add(notes.origin)
        for block, values in part.tensors.items():
            kind = block.tensor.kind
            if block.tensor.method.startswith(edited_maps):
                continue
            if kind == "native":
                map_notes = MapNotes(len(values))
                map_notes.texts, map_notes.missing = notes.map_notes[block.encode()]
                found.maps[block] = NativeMaps(values, map_notes)
            elif kind == "state":
                found.states[block] = values
            elif kind == "shared":
                protocol = block.tensor.protocol
                if notes.content.protocols.get(protocol) == task.content.protocols.get(protocol):
                    found.kept[block] = values
                    found.shared.add(block)
            elif block.tensor.method not in edited:
                found.kept[block] = values
        for timing in notes.timings.seconds:
            found.seconds[timing.key] += timing.seconds
        for count in notes.timings.passes:
            name = f"{count.kind} from {count.start}" if count.start else count.kind
            found.passes[name] += count.images
    return found


def stored_shared(
    store: Store, task: Task, ids: Sequence[str], batch_size: int
) -> dict[TensorKey, Tensor]:
    """Return what protocols have computed for all methods, from the file of a finished task.

    It is the same as if it were computed now: samples and network have not changed, and neither has
    the protocol, nor the number of images in a pass.
    """
    before = store.tensors(task.name, ())
    timings = store.timings(task.name)
    same = before.content.samples == task.content.samples and before.samples.ids == ids
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
    return {key: values for key, values in found.items() if len(values) == len(ids)}
