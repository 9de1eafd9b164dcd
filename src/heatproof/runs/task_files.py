"""The three files of a finished task, as bytes and back, and the manifest that lists them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from heatproof.runs.columns import ROW_SCHEMA, TEXT_COLUMNS, with_all_columns
from heatproof.runs.format import (
    Digest,
    FileKind,
    RecordGroup,
    SampleNotes,
    StoredFile,
    TaskContent,
    TaskManifest,
    TensorKey,
    Timings,
    to_json,
)
from heatproof.runs.sealed import parse_json

METADATA = "__metadata__"  # the entry of a header of safetensors that is no tensor
SAMPLES_ENTRY = "samples"  # the metadata entries of a tensor file: its notes,
CONTENT_ENTRY = "content"  # what it belongs to,
ORIGINS_ENTRY = "origins"  # and what computed which record
ORIGINS = TypeAdapter(dict[str, list[Digest]])
Rows = Path | BinaryIO  # a Parquet file, or its content


@dataclass(frozen=True)
class TaskTensors:
    """The stored tensors of a task, which samples they belong to, and what computed them."""

    tensors: dict[TensorKey, Tensor] = field(default_factory=dict)
    samples: SampleNotes = SampleNotes()  # noqa: RUF009 (frozen)
    content: TaskContent = TaskContent()  # noqa: RUF009 (frozen)
    origins: dict[str, list[str]] = field(default_factory=dict)  # by record: digests of `Origin`


def encode_files(rows: pa.Table, kept: TaskTensors, timings: Timings) -> dict[FileKind, bytes]:
    """Return the content of the files of a task, in the order in which they are written."""
    encoded = {key.encode(): tensor.contiguous() for key, tensor in kept.tensors.items()}
    notes = {
        SAMPLES_ENTRY: kept.samples.model_dump_json(),
        CONTENT_ENTRY: kept.content.model_dump_json(),
        ORIGINS_ENTRY: json.dumps(kept.origins),
    }
    return {
        "tensors": save_ordered(encoded, notes),
        "timings": to_json(timings),
        "rows": encode_rows(rows),
    }


def encode_rows(rows: pa.Table) -> bytes:
    """Return rows as the content of a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows.combine_chunks(), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def save_ordered(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Return tensors in the format of safetensors, which orders metadata by chance, in one order.

    So the same content is the same bytes.
    """
    content = save(tensors, metadata)
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header[METADATA] = dict(sorted(header[METADATA].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def read_rows(source: Rows) -> pa.Table:
    """Read the rows of a task (``ROW_SCHEMA``); raises ValueError if they are damaged."""
    return _read_columns(source, ROW_SCHEMA.names, coded=False)


def read_coded_rows(source: Rows, columns: Collection[str] = ROW_SCHEMA.names) -> pa.Table:
    """Read columns of a task's rows with texts as they are stored: each once, and a code per row.

    Raises:
        ValueError: If the rows are damaged.
    """
    return _read_columns(source, columns, coded=True)


def _read_columns(source: Rows, columns: Collection[str], coded: bool) -> pa.Table:
    try:
        metadata = pq.read_metadata(source)
        known = [name for name in metadata.schema.names if name in columns]
        texts = [name for name in known if name in TEXT_COLUMNS] if coded else []
        with pq.ParquetFile(source, metadata=metadata, read_dictionary=texts) as file:
            return with_all_columns(file.read(known, use_threads=False), coded, columns)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError(_first_line(error)) from None


def read_tensors(path: Path, only: Iterable[TensorKey] | None = None) -> TaskTensors:
    """Read all or some tensors of a task.

    Args:
        path: The file.
        only: The keys to read; all by default. With some keys, neither the content nor the origins
            are read; with none, everything but tensors.

    Raises:
        ValueError: If they are damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            names = set(file.keys())
            if only is None:
                keys = {name: TensorKey.decode(name) for name in names}
            else:
                keys = {key.encode(): key for key in only}
            tensors = {keys[name]: file.get_tensor(name) for name in names & set(keys)}
            metadata = file.metadata() or {}
        samples = SampleNotes.model_validate_json(metadata.get(SAMPLES_ENTRY, ""))
        if only is not None and keys:
            return TaskTensors(tensors, samples)
        return TaskTensors(
            tensors,
            samples,
            TaskContent.model_validate_json(metadata.get(CONTENT_ENTRY, "{}")),
            ORIGINS.validate_json(metadata.get(ORIGINS_ENTRY, "{}")),
        )
    except (SafetensorError, ValidationError) as error:
        raise ValueError(_first_line(error)) from None


def read_timings(path: Path) -> Timings:
    """Read what a task took; raises ValueError if the file is damaged."""
    return parse_json(path.read_bytes(), Timings)


def decode_prepared(content: bytes) -> dict[str, Tensor]:
    """Return what was computed once per run; raises ValueError if it is damaged."""
    try:
        return load(content)
    except SafetensorError as error:
        raise ValueError(_first_line(error)) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def make_manifest(
    task: str,
    files: Mapping[FileKind, StoredFile],
    kept: TaskTensors,
    rows: pa.Table,
    rebuilt: bool = False,
) -> TaskManifest:
    """Return the manifest of a task with these files and rows."""
    origins = sorted({digest for digests in kept.origins.values() for digest in digests})
    number = {digest: i for i, digest in enumerate(origins)}
    counts = rows.group_by(["record", "status"], use_threads=False).aggregate([([], "count_all")])
    statuses: dict[str, dict[str, int]] = {}
    columns = (counts[name].to_pylist() for name in ("record", "status", "count_all"))
    for record, status, count in zip(*columns, strict=True):
        statuses.setdefault(record, {})[status] = count
    groups: dict[str, RecordGroup] = {}
    for record, found in statuses.items():
        own = sorted(number[digest] for digest in kept.origins.get(record, ()))
        group = RecordGroup(rows=dict(sorted(found.items())), origins=own, records=[])
        groups.setdefault(group.model_dump_json(), group).records.append(record)
    return TaskManifest(
        task=task,
        files=dict(files),
        content=kept.content,
        groups=list(groups.values()),
        origins=origins,
        rebuilt=rebuilt,
    )
