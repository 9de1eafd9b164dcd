"""Runs of a linear network, and with given scores, for tests of what the scores of a run show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import nn

import heatproof as hp

LINEAR_METHODS = ["ixg", "saliency", "random"]
SDS = ("sds(patches=4)",)


class Net(nn.Module):
    """A linear network on 16 px."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3 * 16 * 16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))


def linear_run(
    out: Path, methods: list, protocols: Sequence = SDS, images: int = 6, classes: int = 4
) -> hp.Result:
    """Evaluate a linear network on noise whose labels are its predictions."""
    model = hp.Model(Net(classes), size=16, mean=[0.5] * 3, std=[0.5] * 3, name="net")
    pixels = torch.rand(images, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    predicted = model.logits(model.normalize(pixels)).argmax(1).tolist()
    data = hp.TensorData(pixels, predicted)
    return hp.evaluate(model, data, methods, list(protocols), out=out)


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
        column = table.schema.get_field_index("value")
        exact = pa.array(np.array(values, dtype=float), from_pandas=False)  # nan is no null
        changed = changed.set_column(column, table.schema.field(column), exact)
        store.commit(task.name, changed, store.tensors(task.name), store.timings(task.name))
    return hp.Result.load(store.root)
