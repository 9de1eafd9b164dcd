"""The files of an unfinished task: parts, each with what was computed since the one before.

A worker whose scheduler was killed may still write a part while another one has begun with its task
again. So a part says which ones its writer knew of, and only those of one writer and of the writers
before it are read.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from heatproof.runs.columns import ROW_SCHEMA
from heatproof.runs.content_checks import check_part
from heatproof.runs.format import BlockKey, PartNotes
from heatproof.runs.store import Store
from heatproof.runs.task_files import encode_rows, read_rows

NOTES_ENTRY = "notes"  # of the metadata
ROWS_TENSOR = "rows"  # the bytes of a Parquet file


class Part(NamedTuple):
    """The content of one part."""

    name: str
    notes: PartNotes
    rows: pa.Table
    tensors: dict[BlockKey, Tensor]


class PartFiles:
    """Reads and writes the parts of one task.

    Args:
        store: The run directory.
        task: The task's name.
    """

    def __init__(self, store: Store, task: str):
        self._store = store
        self._task = task
        self._directory = store.paths.parts(task)

    def read(self) -> list[Part]:
        """Read the parts in order; one that is damaged is set aside, and computed again."""
        return [part for part in map(self._read, self._paths()) if part is not None]

    def _read(self, path: Path) -> Part | None:
        problem = self._store.problem_of(path)
        if not problem:
            try:
                return read_part(path)
            except ValueError as error:
                problem = str(error).partition("\n")[0]
        self._store.set_aside([path], problem)
        return None

    def write(
        self, notes: PartNotes, rows: Sequence[pa.Table], tensors: Mapping[BlockKey, Tensor]
    ) -> Path:
        """Write a part after those that are there, and return its path."""
        # Tensors that share memory cannot be stored.
        encoded = {
            key.encode(): values.cpu().contiguous().clone() for key, values in tensors.items()
        }
        content = encode_rows(pa.concat_tables([ROW_SCHEMA.empty_table(), *rows]))
        encoded[ROWS_TENSOR] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        number = max((int(path.name[:5]) for path in self._paths()), default=-1) + 1
        part = save(encoded, {NOTES_ENTRY: notes.model_dump_json()})
        return self._store.write_part(self._task, number, part)

    def set_aside(self, names: Iterable[str], reason: str) -> None:
        """Move parts into ``damaged/``."""
        self._store.set_aside([self._directory / name for name in names], reason)

    def remove(self, path: Path) -> None:
        """Delete one part."""
        self._store.remove(path)

    def clear(self) -> None:
        """Delete all parts."""
        self._store.remove(self._directory)

    def _paths(self) -> list[Path]:
        return sorted(self._directory.glob(f"{'[0-9]' * 5}.*.safetensors"))


def read_part(path: Path) -> Part:
    """Read a part whose checksum was verified; raises ValueError if no run writes such a part."""
    try:
        with safe_open(path, "pt") as file:
            notes = PartNotes.model_validate_json((file.metadata() or {}).get(NOTES_ENTRY, ""))
            names = [name for name in file.keys() if name != ROWS_TENSOR]  # noqa: SIM118
            if file.get_slice(ROWS_TENSOR).get_dtype() != "U8":
                raise ValueError("its rows are no bytes")
            rows = file.get_tensor(ROWS_TENSOR).numpy().tobytes()
            slices = {BlockKey.decode(name): file.get_slice(name) for name in names}
            check_part(
                notes,
                rows,
                {key: (tuple(s.get_shape()), str(s.get_dtype())) for key, s in slices.items()},
            )
            tensors = {BlockKey.decode(name): file.get_tensor(name) for name in names}
    except (SafetensorError, KeyError, OSError) as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    return Part(path.name, notes, read_rows(io.BytesIO(rows)), tensors)


def one_after_the_other(parts: Sequence[Part]) -> list[Part]:
    """Return the longest series of parts each of whose writers knew of those before.

    Nothing is in two parts of it, as long as a writer writes only what is new.

    Args:
        parts: Parts in the order of their names.
    """
    there = {part.name for part in parts}
    series = (there & {*part.notes.after, part.name} for part in parts)
    chosen = max(series, key=len, default=there)
    return [part for part in parts if part.name in chosen]
