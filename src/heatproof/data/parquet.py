"""Parquet files with the bytes of images, in the layout of the Hugging Face Hub.

A row group is read once, when the first of its images is needed, and the images that are evaluated
are kept in a temporary file: Parquet cannot read single rows, and the order of samples is random.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from heatproof.data.base import UnreadableImage
from heatproof.data.catalog import source
from heatproof.data.objects import ITEM_KEYS
from heatproof.data.source import Item, Source, file_stamp, files_named
from heatproof.data.stream import Spool, Stored
from heatproof.errors import HeatproofError, join_limited

ROWS_IN_MEMORY = 16


class Group(NamedTuple):
    """A row group, and the position of its first row."""

    path: Path
    number: int
    start: int


@source(
    "parquet",
    summary="parquet:/path/file.parquet (or a folder), columns image (bytes) and label",
)
class ParquetSource(Source):
    """The images of Parquet files, which have the same columns.

    Args:
        rest: A file, a folder, or a pattern such as ``/path/test-*.parquet``.

    Raises:
        HeatproofError: If they cannot be read, or have no images.
    """

    def __init__(self, rest: str):
        super().__init__()
        self.name = f"parquet:{rest}"
        paths = files_named(rest, "**/*.parquet")
        if not paths:
            raise HeatproofError(f"there are no Parquet files in {rest}")
        self.groups: list[Group] = []
        self.columns: dict[str, str | None] = {}
        labels: list[object] = []
        ids: list[object] = []
        rows = 0
        for path in paths:
            file = _open(path)
            self.columns = self.columns or _columns(path, file.schema_arrow)
            for number in range(file.num_row_groups):
                self.groups.append(Group(path, number, rows))
                rows += file.metadata.row_group(number).num_rows
            labels += _column(file, self.columns["label"], path)
            ids += _column(file, self.columns["id"], path)
            self.class_names = self.class_names or _class_names(file, self.columns["label"])
        if self.class_names:  # Hugging Face writes -1 for labels that are not published
            labels = [None if label == -1 else label for label in labels]
        self.labels = labels or [None] * rows
        self.ids = [str(i) for i in ids or range(rows)]
        self.has_masks = self.columns.get("mask") is not None
        self._starts = np.array([group.start for group in self.groups] or [0])
        self._count = rows
        self._stamps = {path: file_stamp(path) for path in paths}
        self._wanted: set[int] = set()
        self._spool = Spool()
        self._stored: dict[int, tuple[Stored, Stored | None] | UnreadableImage] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def _group(self, position: int) -> Group:
        return self.groups[int(np.searchsorted(self._starts, position, side="right")) - 1]

    def stamp(self, position: int) -> str:
        group = self._group(position)
        return f"{self._stamps[group.path]} {position - group.start} of {group.number}"

    def use(self, positions: Sequence[int]) -> None:
        """Say which images are needed; of a row group that is read, only those are kept."""
        with self._lock:
            self._wanted.update(positions)

    def read(self, position: int) -> Item:
        with self._lock:
            if position not in self._stored:
                self._read_group(self._group(position), position)
            stored = self._stored[position]
        if isinstance(stored, UnreadableImage):
            raise stored
        image, mask = stored
        return Item(self._spool.read(image), mask=None if mask is None else self._spool.read(mask))

    def _read_group(self, group: Group, position: int) -> None:
        """Keep the images of a row group that are needed."""
        wanted = self._wanted | {position}
        image_column = self.columns["image"]
        columns = [name for name in (image_column, self.columns["mask"]) if name is not None]
        try:
            with pq.ParquetFile(group.path) as file:
                row = group.start
                for batch in file.iter_batches(
                    ROWS_IN_MEMORY, row_groups=[group.number], columns=columns, use_threads=False
                ):
                    for index in range(len(batch)):
                        if row in wanted and row not in self._stored:
                            self._stored[row] = self._store(batch, index, row)
                        row += 1
        except (OSError, pa.ArrowException) as error:
            raise UnreadableImage(f"{self.describe(position)}: {error}") from None

    def _store(
        self, batch: Any, index: int, row: int
    ) -> tuple[Stored, Stored | None] | UnreadableImage:
        name = self.describe(row)
        stored: list[Stored | None] = []
        for part in ("image", "mask"):
            column = self.columns[part]
            value = None if column is None else batch.column(column)[index].as_py()
            if isinstance(value, Mapping) and not value.get("bytes"):
                path = self._group(row).path.parent / str(value.get("path"))
                value = str(path) if value.get("path") else None
            if value is None and column is not None:
                return UnreadableImage(f"{name} has no {part}")
            stored.append(None if value is None else self._spool.write(value, name))
        image, mask = stored
        assert image is not None
        return image, mask


def _open(path: Path) -> Any:
    if not path.is_file():
        raise HeatproofError(f"there is no file {path.absolute()}")
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise HeatproofError(f"cannot read {path} as a Parquet file: {error}") from None


def _columns(path: Path, schema: Any) -> dict[str, str | None]:
    """Find the columns of image, label, id and mask by name; the image's also by type."""
    found = {
        part: next((name for name in names if name in schema.names), None)
        for part, names in ITEM_KEYS.items()
    }
    if found["image"] is None:
        binary = [field.name for field in schema if _holds_image(field.type)]
        if len(binary) != 1:
            raise HeatproofError(
                f"{path} has the columns {join_limited(schema.names)}; call that of the images "
                "image: the bytes of image files, or a struct with bytes and path"
            )
        found["image"] = binary[0]
    if not _holds_image(schema.field(found["image"]).type):
        raise HeatproofError(
            f"{path}: the column {found['image']} is of type {schema.field(found['image']).type}, "
            "not the bytes of image files or a struct with bytes and path"
        )
    return found


def _holds_image(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return "bytes" in [kind.field(i).name for i in range(kind.num_fields)]
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _column(file: Any, name: str | None, path: Path) -> list[object]:
    if name is None:
        return []
    try:
        values: list[object] = file.read([name]).column(0).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise HeatproofError(f"cannot read column {name} of {path}: {error}") from None
    return values


def _class_names(file: Any, label: str | None) -> list[str] | None:
    """Return the names of the classes that Hugging Face has stored with the file."""
    try:
        stored = json.loads((file.schema_arrow.metadata or {})[b"huggingface"])
        names = stored["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return list(names) if all(isinstance(name, str) for name in names) else None
