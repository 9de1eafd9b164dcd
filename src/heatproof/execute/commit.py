"""Write a finished task, together with the records of it that a run directory already holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from torch import Tensor

from heatproof.data.catalog import Batch
from heatproof.data.grids import Grids
from heatproof.execute.recorder import Recorder
from heatproof.execute.rows import in_order, places_of, rows_of
from heatproof.plan.tasks import Record, Records, Task
from heatproof.runs.columns import ROW_SCHEMA
from heatproof.runs.format import GridNote, SampleNotes, TaskContent, TensorKey, Timings
from heatproof.runs.store import Store
from heatproof.runs.task_files import TaskTensors


def stored_records(store: Store, task: Task) -> set[str]:
    """Return the records of a task that can be reused, planned or not, by its manifest."""
    manifest = store.manifest(task.name)
    if manifest is None:
        return set()
    stored = {record for group in manifest.groups for record in group.records} - manifest.failed
    if any(evaluation.unrecognizable for evaluation in task.records.evaluations):
        stored -= {record.key for record in task.records if record.unrecognizable}
    return stored


def commit_task(
    store: Store, task: Task, missing: Records, batch: Batch, recorder: Recorder
) -> None:
    """Write a finished task, with what is stored of it already.

    Args:
        store: The run directory.
        task: The task.
        missing: Its records that were computed.
        batch: Its samples.
        recorder: What was computed.
    """
    stored = stored_records(store, task)
    planned = task.records.keys
    tables = recorder.rows.tables
    now = pa.concat_tables([ROW_SCHEMA.empty_table(), *tables])
    rows = now
    kept = now.slice(0, 0)
    origins = {key: set(recorder.origins[key]) for key in _keys_of(now)}
    computed = tables[recorder.restored_tables :]
    if computed:
        origin = recorder.origin
        for key in _keys_of(pa.concat_tables(computed)):
            origins[key].add(origin)
    tensors = recorder.kept.finished(len(batch.ids))
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
    timings = timings.updated(
        recorder.seconds, recorder.passes, recorder.batch_size, len(batch.ids)
    )
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
