"""The rows of many tasks as one frame, whose texts are categories.

A run can have tens of millions of rows. Texts are never built: the codes of a task's file are
translated into those of the frame, and every column is released as soon as it is converted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from heatproof.runs.columns import FRAME_COLUMNS, ROW_SCHEMA, TEXT_COLUMNS

MOST_SHORT_CODES = np.iinfo(np.int16).max  # texts of a column whose codes have 16 bits


class FrameBuilder:
    """Collects tables of rows, whose texts are codes.

    Args:
        columns: The columns of the frame.
    """

    def __init__(self, columns: Sequence[str] = FRAME_COLUMNS) -> None:
        texts = [name for name in TEXT_COLUMNS if name in columns]
        self._texts: dict[str, dict[str | None, int]] = {name: {} for name in texts}
        self._parts: dict[str, list[np.ndarray]] = {name: [] for name in columns}

    def add(self, table: pa.Table, records: Sequence[str]) -> None:
        """Add the rows of some records, in the order of the records.

        Args:
            table: Rows of one task, with the column ``record``.
            records: The records to take, in order.
        """
        rows = _rows_of(table, records)
        for name, parts in self._parts.items():
            column = table[name]
            values = self._codes(name, column) if name in self._texts else column.to_numpy()
            parts.append(values if rows is None else values[rows])

    def _codes(self, name: str, column: pa.ChunkedArray) -> np.ndarray:
        """Translate the codes of a table into those of the frame; -1 for no text."""
        coded = column.combine_chunks()
        known = self._texts[name]
        codes = [known.setdefault(text, len(known)) for text in coded.dictionary.to_pylist()]
        kind = np.int16 if len(known) <= MOST_SHORT_CODES else np.int32
        translated = np.array([*codes, -1], kind)  # the last is that of no text
        indices = coded.indices
        if indices.null_count:
            indices = indices.fill_null(-1)
        return translated[indices.to_numpy()]

    def frame(self) -> pd.DataFrame:
        """Return all rows in the order in which they were added."""
        columns = {}
        for name in list(self._parts):
            parts = self._parts.pop(name)
            empty = np.empty(0, np.int16 if name in self._texts else _numpy_type(name))
            values = np.concatenate(parts) if parts else empty
            del parts
            columns[name] = self._categories(name, values) if name in self._texts else values
        return pd.DataFrame(columns, copy=False)

    def _categories(self, name: str, codes: np.ndarray) -> pd.Categorical:
        """Return a column of texts, which sort as texts."""
        texts = [str(text) for text in self._texts[name]]
        order = sorted(range(len(texts)), key=lambda i: texts[i])
        ranks = np.empty(len(texts) + 1, codes.dtype)
        ranks[order] = np.arange(len(order))
        ranks[-1] = -1
        categories = pd.Index([texts[i] for i in order], dtype="str" if texts else "object")
        return pd.Categorical.from_codes(ranks[codes], categories)


def _numpy_type(name: str) -> np.dtype:
    return np.dtype(ROW_SCHEMA.field(name).type.to_pandas_dtype())


def _rows_of(table: pa.Table, records: Sequence[str]) -> np.ndarray | None:
    """Return the rows of some records in their order; None if they are all rows as they are."""
    coded = table["record"].combine_chunks()
    order = {record: i for i, record in enumerate(records)}
    positions = np.array([order.get(r, -1) for r in coded.dictionary.to_pylist()], int)
    of_row = positions[coded.indices.to_numpy()]
    if (of_row >= 0).all() and (np.diff(of_row) >= 0).all():
        return None
    chosen = np.flatnonzero(of_row >= 0)
    return chosen[np.argsort(of_row[chosen], kind="stable")]
