"""The reader of a run reads what is asked for."""

import pandas as pd
from small_runs import evaluate

from heatproof.runs import store as stores
from heatproof.runs.run import Run
from heatproof.runs.store import Store


def test_columns_are_those_of_the_rows_and_nothing_else_is_read(tmp_path, monkeypatch):
    evaluate(tmp_path / "run")
    rows = Run(Store(tmp_path / "run")).rows
    read = set()
    original = stores.read_coded_rows

    def noted(path, columns):
        read.update(columns)
        return original(path, columns)

    monkeypatch.setattr(stores, "read_coded_rows", noted)
    run = Run(Store(tmp_path / "run"))
    names = ["method", "cluster", "note"]
    pd.testing.assert_frame_equal(run.columns(*names), rows[names])
    assert read == {"record", "method", "sample", "note"}
    pd.testing.assert_frame_equal(run.columns("value", "status"), rows[["value", "status"]])
    assert run.columns("sample")["sample"].equals(run.rows["sample"])
