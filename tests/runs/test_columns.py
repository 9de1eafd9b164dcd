"""Rows that were written before a column existed, or by a version that has more of them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_rows import stored_rows

from heatproof.runs.columns import COLUMNS, ROW_SCHEMA, make_rows
from heatproof.runs.task_files import read_coded_rows, read_rows

READERS = [read_rows, read_coded_rows]


@pytest.fixture
def rows() -> pa.Table:
    return stored_rows(record=["a", "b", "c"], value=[0.1, 0.2, float("nan")])


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("column", [c.name for c in COLUMNS if c.default is not None])
def test_a_column_that_was_added_later_has_its_default(tmp_path, rows, read, column):
    pq.write_table(rows.drop_columns(column), tmp_path / "rows.parquet")
    found = read(tmp_path / "rows.parquet")
    assert found.column_names == ROW_SCHEMA.names
    default = next(c.default for c in COLUMNS if c.name == column)
    assert found[column].to_pylist() == [default] * 3
    assert found["record"].to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize("read", READERS)
def test_a_column_of_a_later_version_is_left_out(tmp_path, rows, read):
    pq.write_table(rows.append_column("later", pa.array([1, 2, 3])), tmp_path / "rows.parquet")
    found = read(tmp_path / "rows.parquet")
    assert found.column_names == ROW_SCHEMA.names
    assert found["value"].to_pylist()[:2] == [0.1, 0.2]


@pytest.mark.parametrize("read", READERS)
def test_rows_without_a_column_that_was_always_there_are_damaged(tmp_path, rows, read):
    pq.write_table(rows.drop_columns("status"), tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="status"):
        read(tmp_path / "rows.parquet")


def test_rows_are_made_by_name(rows):
    names = {name: rows[name].to_pylist() for name in reversed(ROW_SCHEMA.names)}
    assert make_rows(**names).to_pydict().keys() == rows.to_pydict().keys()
    assert make_rows(**names).drop_columns("value").equals(rows.drop_columns("value"))
    with pytest.raises(KeyError, match="status"):
        make_rows(**{name: values for name, values in names.items() if name != "status"})
