"""Checks of what the files of a task hold: a checksum says who wrote nothing else, not what it is.

A run of somebody else can have any content and valid checksums. So before a file is used, its
content is compared with what its manifest says and with what a run can hold, in memory that does
not depend on what the file claims: sizes come first. All raise ValueError with what is wrong.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from heatproof.protocols.base import stored_protocol
from heatproof.runs.columns import ROW_SCHEMA, TEXT_COLUMNS
from heatproof.runs.format import (
    SHARD_SIZE,
    BlockKey,
    PartNotes,
    PlanFile,
    ProtocolFacts,
    Provenance,
    SampleNotes,
    TaskContent,
    TaskFacts,
    TaskManifest,
    TensorKey,
    Timings,
)
from heatproof.runs.parquet_pages import check_pages
from heatproof.runs.task_files import (
    CONTENT_ENTRY,
    ORIGINS,
    ORIGINS_ENTRY,
    SAMPLES_ENTRY,
    read_coded_rows,
)

T = TypeVar("T")
MOST_ROWS = 5_000_000  # of a task: 64 samples, as of any task, and 78,125 records
MOST_TEXT = 65_536  # characters of a text in a row
MOST_VALUE = float(np.finfo(np.float32).max)  # scores are computed in single precision
SUBJECT = ("model", "method", "protocol", "setting", "baseline")  # of a record
STATUSES = {"ok", "undefined", "failed", "missing", "n/a", "skipped"}
# Number of axes of a stored tensor by its kind, and whether it is of all samples of the task.
AXES = {"logits": 2, "channel_peaks": 2, "images": 4, "map": 3, "map_scale": 1, "curve": 2}
AXES |= {"native": 3}  # of parts alone
OF_ALL_SAMPLES = {"logits", "channel_peaks", "curve"}
FLOATS = {"F16", "F32", "F64"}
ShapeAndType = tuple[tuple[int, ...], str]  # of a tensor, as safetensors has them


class Rows(NamedTuple):
    """What the rows of a task are about: samples, and for each record the texts of its columns."""

    samples: tuple[str, ...]
    records: dict[str, dict[str, str]]


def check_rows(path: Path, manifest: TaskManifest) -> Rows:
    """Check the rows of a task, and return what they are about."""
    expected = {
        (record, status): count
        for group in manifest.groups
        for record in group.records
        for status, count in group.rows.items()
    }
    _check_counts(manifest)
    with path.open("rb") as file:
        check_pages(file, sum(expected.values()), ROW_SCHEMA.names)
        columns = _check_columns(read_coded_rows(path))
    found = _count_pairs(columns["record"], columns["status"])
    if found != {pair: count for pair, count in expected.items() if count}:
        raise ValueError("its records and states are not those of its manifest")
    _, first = np.unique(columns["record"][0], return_index=True)
    of_record = {
        columns["record"][1][columns["record"][0][row]]: {
            name: columns[name][1][columns[name][0][row]] for name in SUBJECT
        }
        for row in first
    }
    return Rows(tuple(columns["sample"][1]), of_record)


def check_part(notes: PartNotes, rows: bytes, shapes: Mapping[BlockKey, ShapeAndType]) -> None:
    """Check what a part of an unfinished task holds.

    Args:
        notes: Its notes.
        rows: The content of a Parquet file with its rows.
        shapes: The shape and type of each tensor.
    """
    samples = len(notes.ids)
    if samples > SHARD_SIZE or len(set(notes.ids)) < samples:
        raise ValueError("its samples are too many, or listed twice")
    file = io.BytesIO(rows)
    check_pages(file, None, ROW_SCHEMA.names)
    columns = _check_columns(read_coded_rows(file))
    if set(columns["sample"][1]) - set(notes.ids):
        raise ValueError("it has rows of other samples")
    for (start, key), (shape, kind) in shapes.items():
        if key.kind == "state":
            continue  # only the method knows what it is
        if not shape or start < 0 or start + shape[0] > samples:
            raise ValueError(f"its {key.kind} {key.name or key.method} are of other samples")
        _check_shape(key, (samples, *shape[1:]), kind, samples)
        noted = notes.map_notes.get(BlockKey(start, key).encode(), ([], []))
        if key.kind == "native" and {len(texts) for texts in noted} != {shape[0]}:
            raise ValueError("it has maps without notes")
    check_timings(notes.timings)


def _check_columns(table: pa.Table) -> dict[str, tuple[np.ndarray, list[str]]]:
    """Check the values of rows, and return the columns of texts: codes, and each text once."""
    for name in ROW_SCHEMA.names:
        if name != "target" and table[name].null_count:
            raise ValueError(f"its column {name} has nulls")
    columns = {name: _coded(table[name]) for name in TEXT_COLUMNS}
    for name, (_, texts) in columns.items():
        if any(len(text) > MOST_TEXT for text in texts):
            raise ValueError(f"its column {name} has texts of more than {MOST_TEXT:,} characters")
    statuses = columns["status"][1]
    if set(statuses) - STATUSES:
        raise ValueError("its column status has values that there are not")
    _check_unique(columns)
    if pc.min(table["target"]).as_py() is not None and pc.min(table["target"]).as_py() < 0:
        raise ValueError("its column target has negative classes")
    values = table["value"].to_numpy()
    is_ok = np.array([status == "ok" for status in statuses], bool)[columns["status"][0]]
    if (np.abs(values[np.isfinite(values)]) > MOST_VALUE).any() or np.isinf(values).any():
        raise ValueError("its column value has infinite scores")
    if np.isfinite(values[~is_ok]).any():
        raise ValueError("its column value has scores of samples that have none")
    return columns


def check_planned(rows: Rows, task: TaskFacts, plan: PlanFile) -> None:
    """Check that the rows of a task are those of its plan."""
    keys = {protocol.key for protocol in plan.protocols if protocol.canonical in task.protocols}
    methods = [f"{name}" for name in plan.methods]
    seen = set()
    for record in task.records:
        found = rows.records.get(record)
        if found is None:
            continue
        key = (found["protocol"], found["setting"], found["baseline"])
        if found["model"] != task.model or found["method"] not in methods or key not in keys:
            raise ValueError("it has rows of other models, methods or protocols than its plan")
        if (found["method"], key) in seen:
            raise ValueError("it has two records of a method and a protocol")
        seen.add((found["method"], key))


def _check_counts(manifest: TaskManifest) -> None:
    """Check that no record has more rows than a task has samples, and none is listed twice."""
    records = [record for group in manifest.groups for record in group.records]
    if len(set(records)) < len(records):
        raise ValueError("its manifest lists a record twice")
    counts = [(sum(group.rows.values()), len(group.records)) for group in manifest.groups]
    if any(count > SHARD_SIZE for count, _ in counts):
        raise ValueError(f"its manifest has a record of more than {SHARD_SIZE} samples")
    total = sum(count * records for count, records in counts)
    if total > MOST_ROWS:
        raise ValueError(f"its manifest has {total:,} rows, which are more than {MOST_ROWS:,}")


def _coded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """Return the code of each row, and the texts; each text once."""
    coded = column.combine_chunks()
    texts = coded.dictionary.to_pylist()
    if len(set(texts)) < len(texts) or None in texts:
        raise ValueError("its texts are coded twice")
    return coded.indices.to_numpy(), texts


def _count_pairs(
    one: tuple[np.ndarray, list[str]], other: tuple[np.ndarray, list[str]]
) -> dict[tuple[str, str], int]:
    (codes, texts), (other_codes, other_texts) = one, other
    pairs, counts = np.unique(
        codes.astype(np.int64) * len(other_texts) + other_codes, return_counts=True
    )
    return {
        (texts[pair // len(other_texts)], other_texts[pair % len(other_texts)]): int(count)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
    }


def _check_unique(columns: Mapping[str, tuple[np.ndarray, list[str]]]) -> None:
    """Check that a record has each sample once, and one model, method and protocol."""
    records = columns["record"][0].astype(np.int64)
    samples, names = columns["sample"]
    if len(np.unique(records * max(1, len(names)) + samples)) < len(records):
        raise ValueError("a record has a sample twice")
    order = np.argsort(records, kind="stable")
    same = np.diff(records[order]) == 0
    for name in (*SUBJECT, "layer"):
        if (np.diff(columns[name][0][order])[same] != 0).any():
            raise ValueError(f"a record has more than one {name}")


class Header(NamedTuple):
    """What a file of tensors says about itself: samples, and by key the shape of its tensor."""

    samples: SampleNotes
    shapes: dict[TensorKey, tuple[int, ...]]


def check_tensors(path: Path) -> Header:
    """Check the shapes of the tensors of a task, without reading them; return what they are."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {n: (tuple(s.get_shape()), str(s.get_dtype())) for n, s in parts.items()}
    except SafetensorError as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    samples = _parsed(SampleNotes.model_validate_json, metadata, SAMPLES_ENTRY, "")
    _check_samples(samples)
    _parsed(TaskContent.model_validate_json, metadata, CONTENT_ENTRY, "{}")
    _parsed(ORIGINS.validate_json, metadata, ORIGINS_ENTRY, "{}")
    found = {}
    for name, (shape, kind) in shapes.items():
        key = TensorKey.decode(name)
        _check_shape(key, shape, kind, len(samples.ids))
        found[key] = shape
    images = {shape[0] for key, shape in found.items() if key.kind == "images"}
    for key, shape in found.items():
        if key.kind == "map" and not images >= {shape[0]}:
            raise ValueError("it has maps of other samples than its images")
    widths: dict[TensorKey, int] = {}
    for key, shape in found.items():
        if key.kind == "curve":
            of_all = TensorKey.curve(key.protocol, "", key.name)
            if widths.setdefault(of_all, shape[1]) != shape[1]:
                raise ValueError(f"the curves {key.name} have different lengths")
    return Header(samples, found)


def _parsed(parse: Callable[[str], T], metadata: Mapping[str, str], entry: str, default: str) -> T:
    try:
        return parse(metadata.get(entry, default))
    except ValidationError:
        raise ValueError(f"its entry {entry} is not one that a run writes") from None


def _check_samples(samples: SampleNotes) -> None:
    ids = samples.ids
    if len(ids) > SHARD_SIZE or len(set(ids)) < len(ids):
        raise ValueError("its samples are too many, or listed twice")
    if any(len(sample) > MOST_TEXT for sample in ids):
        raise ValueError(f"a sample has an id of more than {MOST_TEXT:,} characters")
    if len(samples.labels) != len(ids):
        raise ValueError("it has not as many labels as samples")
    if any(label is not None and not 0 <= label < 2**31 for label in samples.labels):
        raise ValueError("a label is not the index of a class")
    grids = samples.grids
    if grids is None:
        return
    if len(grids) != len(ids):
        raise ValueError("it has not as many grids as samples")
    for grid in grids:
        if math.isqrt(len(grid.images)) ** 2 != len(grid.images) or len(grid.images) < 4:
            raise ValueError("a grid has not the images of a square")
        if not 0 <= grid.cell < len(grid.images):
            raise ValueError("a grid has no such cell")


def _check_shape(key: TensorKey, shape: tuple[int, ...], kind: str, samples: int) -> None:
    """Check the shape and type of a tensor, whose first axis is that of the samples."""
    where = f"its {key.kind} {key.name or key.method}".rstrip()
    if not shape or shape[0] > samples or 0 in shape[1:]:
        raise ValueError(f"{where} have the shape {shape} for {samples} samples")
    if len(shape) != AXES.get(key.kind, len(shape)):
        raise ValueError(f"{where} have the shape {shape}")
    if key.kind in OF_ALL_SAMPLES and shape[0] != samples:
        raise ValueError(f"{where} are of {shape[0]} of {samples} samples")
    if key.kind in AXES and (kind != "U8" if key.kind == "images" else kind not in FLOATS):
        raise ValueError(f"{where} have the type {kind}")


def check_timings(timings: Timings) -> None:
    """Check the seconds and passes of a task."""
    seconds = [timing.seconds for timing in timings.seconds]
    if any(not 0 <= second <= MOST_VALUE for second in seconds):
        raise ValueError("a time is negative or infinite")
    counts = [count.images for count in timings.passes]
    if any(not 0 <= count < 2**53 for count in (*counts, timings.batch_size, timings.images)):
        raise ValueError("a number of images is negative or too large")


Shapes = dict[TensorKey, tuple[int, ...]]  # without the axis of the samples


def check_same_shapes(known: Shapes, header: Header) -> None:
    """Check that the tensors of a task have the shapes of those of another, and add new ones.

    Args:
        known: The shapes that were found so far.
        header: The tensors of the task.
    """
    for key, shape in header.shapes.items():
        if known.setdefault(key, shape[1:]) != shape[1:]:
            raise ValueError(f"its {key.kind} {key.name or key.method} differ in shape from others")


def check_plan(plan: PlanFile) -> None:
    """Check that the parts of a plan go together."""
    for names, what in (
        ([task.name for task in plan.tasks], "task"),
        ([protocol.canonical for protocol in plan.protocols], "protocol"),
        ([protocol.key for protocol in plan.protocols], "setting"),
        ([view.subject for view in plan.views], "view"),
        ([(task.name, name) for task in plan.tasks for name in task.protocols], "protocol"),
    ):
        if len(set(names)) < len(names):
            raise ValueError(f"it has a {what} twice")
    for task in plan.tasks:
        if len(set(task.records)) < len(task.records):
            raise ValueError(f"task {task.name} has a record twice")
    views = {view.subject for view in plan.views}
    for task in plan.tasks:
        if task.subject not in views:
            raise ValueError(f"task {task.name} is of a model or view that is missing")
    for protocol in plan.protocols:
        _check_settings(protocol)
        if protocol.range is not None and not protocol.range[0] < protocol.range[1]:
            raise ValueError(f"protocol {protocol.id} has an empty range")


def _check_settings(facts: ProtocolFacts) -> None:
    """Check the plain settings of a protocol that is known here."""
    known = stored_protocol(facts.id, {})
    fields = type(known).model_fields if known is not None else {}
    for name, value in facts.settings.items():
        field = fields.get(name)
        if field is None or not _is_plain(field.annotation):
            continue
        if value == field.default:
            continue
        try:
            kind: Any = field.annotation
            for bound in field.metadata:
                kind = Annotated[kind, bound]
            TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise ValueError(f"protocol {facts.id}: {name}: {problem}") from None


def _is_plain(annotation: Any) -> bool:
    """Return whether a type is that of numbers, or a choice of texts: nothing that reads files."""
    parts = get_args(annotation)
    if get_origin(annotation) is Literal or annotation in (int, float, bool, type(None)):
        return True
    return (
        bool(parts) and get_origin(annotation) in (Union, UnionType) and all(map(_is_plain, parts))
    )


def check_provenance(provenance: Provenance) -> None:
    """Check that the facts about the models go together."""
    subjects = [model.subject for model in provenance.models]
    if len(set(subjects)) < len(subjects):
        raise ValueError("it has a model twice")
    for model in provenance.models:
        names = model.class_names
        if names is not None and len(names) != model.classes:
            raise ValueError(
                f"it has {len(names)} names for the {model.classes} classes of a model"
            )
        if model.fine_tuning is not None and not model.fine_tuning.history:
            raise ValueError("it has a fine-tuning without epochs")
