"""A CSV file that lists images: a path per line, and its label, id and mask if there are any."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from heatproof.data.catalog import source
from heatproof.data.labels import LABEL_COLUMNS
from heatproof.data.source import Item, Source, image_stamps
from heatproof.errors import HeatproofError, join_limited

PATH_COLUMNS = ("path", "file", "filename", "file_name", "image", "image_path")
MASK_COLUMNS = ("mask", "mask_path")


@source(
    "csv",
    summary="csv:/path/list.csv, columns path, label (and id, mask); paths relative to the file",
)
class CsvSource(Source):
    """Images that a CSV file lists, by paths relative to its folder.

    Args:
        rest: The file. Its first line names the columns: ``path``, and optionally ``label`` (a
            class name or index; empty for none), ``id`` and ``mask``.

    Raises:
        HeatproofError: If it cannot be read, or has no such column.
    """

    def __init__(self, rest: str):
        super().__init__()
        path = Path(rest)
        self.name = f"csv:{path}"
        rows = _read(path)
        header = [column.strip().lower() for column in rows[0]]
        columns = {
            part: _column(header, names)
            for part, names in (
                ("path", PATH_COLUMNS),
                ("label", LABEL_COLUMNS),
                ("id", ("id",)),
                ("mask", MASK_COLUMNS),
            )
        }
        if columns["path"] is None:
            raise HeatproofError(
                f"{path} has the columns {join_limited(header)}; call that of the images path"
            )
        lines = [row for row in rows[1:] if any(field.strip() for field in row)]
        short = [n for n, row in enumerate(lines, start=2) if len(row) != len(header)]
        if short:
            raise HeatproofError(
                f"{path}, line {short[0]}: expected {len(header)} fields ({', '.join(header)})"
            )
        values = {
            part: None if column is None else [row[column].strip() for row in lines]
            for part, column in columns.items()
        }
        names = values["path"] or []
        self.paths = [path.parent / name for name in names]
        self.ids = values["id"] or names
        labels = values["label"]
        self.labels = [None] * len(names) if labels is None else [text or None for text in labels]
        masks = values["mask"]
        self.masks = None if masks is None else [path.parent / mask for mask in masks]
        self.has_masks = self.masks is not None

    def __len__(self) -> int:
        return len(self.paths)

    def describe(self, position: int) -> str:
        return str(self.paths[position])

    def stamps(self, positions: Sequence[int]) -> list[str | None]:
        found: list[str | None] = [*image_stamps([self.paths[i] for i in positions])]
        if self.masks is not None:
            masks = image_stamps([self.masks[i] for i in positions])
            found = [f"{image} {mask}" for image, mask in zip(found, masks, strict=True)]
        return found

    def read(self, position: int) -> Item:
        mask = None if self.masks is None else self.masks[position]
        return Item(self.paths[position], mask=mask)


def _column(header: Sequence[str], names: Sequence[str]) -> int | None:
    return next((header.index(name) for name in names if name in header), None)


def _read(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise HeatproofError(f"there is no file {path.absolute()}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise HeatproofError(f"cannot read {path}: {error}") from None
    lines = text.splitlines()
    if not lines:
        raise HeatproofError(f"{path} is empty; its first line names the columns: path,label")
    delimiter = next((mark for mark in "\t,;" if mark in lines[0]), ",")
    if "\0" in text:
        raise HeatproofError(f"cannot read {path}: it has NUL characters, as no text has")
    try:
        return list(csv.reader(lines, delimiter=delimiter))
    except csv.Error as error:
        raise HeatproofError(f"cannot read {path}: {error}") from None
