"""The columns of the rows of a run: one row per record and sample.

Rows are built by name (`make_rows`). A run that was written before a column was added is read with
the default of the column, and a column that is not in the table is ignored (`with_all_columns`).
So a new column needs a default and an entry here, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Column:
    """A column of the rows.

    Attributes:
        name: Its name.
        type: Its type in Arrow.
        meaning: Its meaning, for people.
        default: Its value in rows that were written before it was added; None if it was always
            there, so that rows without it are damaged.
    """

    name: str
    type: pa.DataType
    meaning: str
    default: Any = None


COLUMNS = (
    Column("record", pa.string(), "key of the record: what was computed, without the sample"),
    Column("model", pa.string(), "name of the model"),
    Column("method", pa.string(), "method as it was given"),
    Column("layer", pa.string(), "layer that it explains"),
    Column("protocol", pa.string(), "name of the protocol"),
    Column("setting", pa.string(), "settings of the protocol except the baseline"),
    Column("baseline", pa.string(), "baseline; empty if it has none"),
    Column("sample", pa.string(), "id of the sample"),
    Column("target", pa.int32(), "index of the explained class, or the first; null if skipped"),
    Column("target_is", pa.string(), "label, prediction, or the target that the model was given"),
    Column("value", pa.float64(), "score; nan unless the status is ok"),
    Column("status", pa.string(), "ok, undefined, failed, missing, n/a or skipped"),
    Column("message", pa.string(), "reason for any status other than ok"),
    Column("note", pa.string(), "remark of the method about the map", default=""),
)
ROW_SCHEMA = pa.schema([(column.name, column.type) for column in COLUMNS])
TEXT_COLUMNS = [column.name for column in COLUMNS if pa.types.is_string(column.type)]
FRAME_COLUMNS = [column.name for column in COLUMNS if column.name != "record"]
CODED_TEXT = pa.dictionary(pa.int32(), pa.string())  # each text once, and a code per row


def make_rows(**columns: Any) -> pa.Table:
    """Return rows of columns by name (``ROW_SCHEMA``).

    Args:
        **columns: The values of each column; a single one is that of all rows. A column with a
            default may be absent.

    Raises:
        KeyError: If a column without a default is absent.
    """
    several = (v for v in columns.values() if not isinstance(v, str | int | float))
    count = len(next(several))
    arrays = []
    for column in COLUMNS:
        absent = column.name not in columns and column.default is not None
        values = column.default if absent else columns[column.name]
        if isinstance(values, str | int | float):
            values = pa.repeat(pa.scalar(values, column.type), count)
        arrays.append(pa.array(values, column.type))
    return pa.Table.from_arrays(arrays, schema=ROW_SCHEMA)


def with_all_columns(
    table: pa.Table, coded: bool = False, names: Collection[str] = ROW_SCHEMA.names
) -> pa.Table:
    """Return rows with the columns of today, however old they are.

    Args:
        table: The rows; columns that are unknown here are left out.
        coded: Whether texts are dictionaries.
        names: The columns to return; by default all.

    Raises:
        KeyError: If a column without a default is missing.
        pa.ArrowException: If a column has another type.
    """
    wanted = [column for column in COLUMNS if column.name in names]
    arrays = []
    for column in wanted:
        kind = CODED_TEXT if coded and column.name in TEXT_COLUMNS else column.type
        if column.name in table.column_names or column.default is None:
            values = table[column.name]
            if column.default is not None and values.null_count:
                values = pc.fill_null(values.cast(column.type), column.default)
        else:
            values = pa.chunked_array([pa.repeat(pa.scalar(column.default), len(table))])
        arrays.append(values.cast(kind))
    return pa.table(arrays, names=[column.name for column in wanted])
