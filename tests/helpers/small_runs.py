"""Runs of a second, in two tasks, and what makes two of them the same."""

from pathlib import Path

import pandas as pd
import torch
from torch import nn

import heatproof as hp
from heatproof.runs.run import Run
from heatproof.runs.store import Store

METHODS = ["ixg", "random", "constant"]
PROTOCOLS = ["sds(patches=4)", "deletion(steps=4, baseline=mean)"]  # one prepares something


def small_model(name: str = "net") -> hp.Model:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return hp.Model(net, size=16, classes=["a", "b", "c", "d"], name=name)


def small_data(count: int = 70, seed: int = 0):
    images = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
    return hp.TensorData(images, [i % 4 for i in range(count)])


def evaluate(out, methods=METHODS, count: int = 70, **options) -> hp.Result:
    options = {"batch_size": 16, "keep_maps": 4, "reference": small_data(8, seed=1)} | options
    return hp.evaluate(small_model(), small_data(count), methods, PROTOCOLS, out=out, **options)


def tensors(store: Store) -> dict:
    found = {}
    for task in store.plan().tasks:
        for key, values in store.tensors(task.name).tensors.items():
            found[task.name, key] = values
    return found


def assert_same(root: Path, sound: Path) -> None:
    """Check that a run has the rows and tensors of another."""
    pd.testing.assert_frame_equal(Run(Store(root)).rows, Run(Store(sound)).rows, check_exact=True)
    names = [sorted(p.name for p in (r / "rows").iterdir()) for r in (root, sound)]
    assert names[0] == names[1]  # which are hashes of the bytes
    found, expected = tensors(Store(root)), tensors(Store(sound))
    assert found.keys() == expected.keys()
    for key in expected:
        assert torch.equal(found[key].nan_to_num(9), expected[key].nan_to_num(9))
