"""Runs with given scores, for tests of what the scores of a run show."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa

import heatproof as hp


def rescored(result: hp.Result, score: Callable[[pd.Series], float]) -> hp.Result:
    """Store other scores in a run, and load it again.

    Args:
        result: The run, which is changed.
        score: Returns the score of a row, which has the number of its sample as ``image``; nan for
            one that is undefined.
    """
    store = result.store
    image = {sample: i for i, sample in enumerate(sorted(set(result.scores["sample"])))}
    for task in store.plan().tasks:
        table = store.table(task.name)
        rows = table.to_pandas()
        values = [score(row) for _, row in rows.assign(image=rows["sample"].map(image)).iterrows()]
        rows["value"] = values
        rows["status"] = np.where(np.isnan(values), "undefined", "ok")
        rows["message"] = np.where(np.isnan(values), "the map is not finite", "")
        changed = pa.Table.from_pandas(rows, table.schema, preserve_index=False)
        store.commit(task.name, changed, store.tensors(task.name), store.timings(task.name))
    return hp.Result.load(store.root)
