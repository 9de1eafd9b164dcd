"""The sizes that a Parquet file claims, read before anything is decoded.

A few kilobytes can claim gigabytes: rows that repeat, or pages that unpack to any size. Arrow
allocates what the header of a page says. So the footer and the headers of all pages are read first,
by the format's own rules (Thrift's compact protocol), and compared with the rows that there are.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from contextlib import suppress
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

MOST_FOOTER = 2**24  # bytes
MOST_PAGE = 2**27  # bytes of a page when it is unpacked
MOST_COLUMN = 2**29  # bytes of a column of a task when it is unpacked
MOST_GROUPS = 1000  # of rows
PAGE_HEADER = (2**10, 2**20)  # bytes that a header usually has, and may have
UNCOMPRESSED_SIZE, COMPRESSED_SIZE = 2, 3  # fields of a page header
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = (
    *(0, 1, 2, 3, 7, 8, 9, 10, 11, 12),
)


def check_pages(file: BinaryIO, rows: int | None, columns: Collection[str]) -> None:
    """Check that a file has some rows, and that its columns unpack to a bounded size.

    Args:
        file: The file.
        rows: The number of rows that it must have; None if nothing says it.
        columns: The columns that will be read.

    Raises:
        ValueError: If it claims anything else.
    """
    try:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - 8))
        footer = int.from_bytes(file.read(4), "little")
        if footer > min(MOST_FOOTER, size):
            raise ValueError("its footer is too large")
        _check_footer(pq.read_metadata(file), file, size, rows, columns)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error).partition("\n")[0]) from None


def _check_footer(
    metadata: pq.FileMetaData,
    file: BinaryIO,
    size: int,
    rows: int | None,
    columns: Collection[str],
) -> None:
    if rows is not None and metadata.num_rows != rows:
        raise ValueError(f"it has {metadata.num_rows:,} rows, but its manifest {rows:,}")
    if metadata.num_row_groups > MOST_GROUPS:
        raise ValueError("it has too many groups of rows")
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    if len(set(names)) < len(names):
        raise ValueError("it has a column twice")
    sizes = dict.fromkeys(names, 0)
    for group in range(metadata.num_row_groups):
        for i, name in enumerate(names):
            if name not in columns:
                continue
            if metadata.schema.column(i).max_repetition_level:
                raise ValueError(f"its column {name} has lists")
            chunk = metadata.row_group(group).column(i)
            offsets = (chunk.dictionary_page_offset, chunk.data_page_offset)
            begin = min(offset for offset in offsets if offset)  # none or 0: no such page
            end = begin + chunk.total_compressed_size
            if not 0 < begin <= end <= size:
                raise ValueError("its footer is damaged")
            sizes[name] += _unpacked_size(file, begin, end)
            if sizes[name] > MOST_COLUMN:
                raise ValueError(f"its column {name} unpacks to more than {MOST_COLUMN:,} bytes")


def _unpacked_size(file: BinaryIO, begin: int, end: int) -> int:
    """Return what the pages between two positions of a file unpack to."""
    total = 0
    while begin < end:
        header = _read_header(file, begin, end)
        unpacked = header.fields.get(UNCOMPRESSED_SIZE, -1)
        packed = header.fields.get(COMPRESSED_SIZE, -1)
        if packed < 0 or not 0 <= unpacked <= MOST_PAGE:
            raise ValueError(f"it has a page that unpacks to {unpacked:,} bytes")
        total += unpacked
        begin += header.length + packed
    return total


def _read_header(file: BinaryIO, begin: int, end: int) -> _PageHeader:
    """Read a page header, which is long if it has long texts as the least and largest."""
    for most in PAGE_HEADER:
        file.seek(begin)
        with suppress(IndexError):
            return _PageHeader(file.read(min(most, end - begin)))
    raise ValueError("it has a page without a header")


class _PageHeader:
    """The integers of a page header, by their numbers, and its length in bytes.

    Args:
        content: The bytes that it begins.

    Raises:
        IndexError: If it goes on beyond them.
    """

    def __init__(self, content: bytes):
        self._content = content
        self.length = 0
        self.fields: dict[int, int] = {}
        self._struct(self.fields, 0)

    def _byte(self) -> int:
        byte = self._content[self.length]
        self.length += 1
        return byte

    def _number(self) -> int:
        """Return a number of variable length, before its sign is decoded."""
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _struct(self, fields: dict[int, int], depth: int) -> None:
        if depth > 8:
            raise ValueError("it has a page without a header")
        number = 0
        while True:
            byte = self._byte()
            kind = byte & 15
            if kind == _STOP:
                return
            number = number + (byte >> 4) if byte >> 4 else _signed(self._number())
            value = self._value(kind, depth)
            if value is not None:
                fields[number] = value

    def _value(self, kind: int, depth: int) -> int | None:
        """Read a value, and return it if it is a number."""
        if kind in (_TRUE, _FALSE):
            return None
        if kind == _BYTE:
            self.length += 1
        elif kind < _DOUBLE:
            return _signed(self._number())
        elif kind == _DOUBLE:
            self.length += 8
        elif kind == _BINARY:
            size = self._number()
            self.length += size
        elif kind in (_LIST, _SET):
            byte = self._byte()
            count = byte >> 4 if byte >> 4 < 15 else self._number()
            for _ in range(min(count, len(self._content))):
                self._value(byte & 15, depth)
        elif kind == _STRUCT:
            self._struct({}, depth + 1)
        else:  # maps are not in page headers
            raise ValueError("it has a page without a header")
        return None


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)
