"""A small run with several models, protocols and baselines."""

import pytest
import torch
from torch import nn

import heatproof as hp

SDS = {"name": "sds", "patches": 16, "baseline": ["zero", "uniform", "blur"]}
METHODS = ["ixg", "ig(steps=3)", "saliency", "random", "ixg|abs"]
PROTOCOLS = [SDS, {"name": "deletion", "steps": 4}]


def network(seed: int, name: str) -> hp.Model:
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(96, 4)
    )
    return hp.Model(module.eval(), size=16, name=name)


def photos(n: int = 12) -> hp.TensorData:
    images = torch.rand((n, 3, 16, 16), generator=torch.Generator().manual_seed(1))
    return hp.TensorData(images, [i % 4 for i in range(n)], ids=[f"photo_{i:02}" for i in range(n)])


def part_of(data: hp.TensorData, rows: slice) -> hp.TensorData:
    return hp.TensorData(data.images[rows], data.labels[rows], data.ids[rows])


@pytest.fixture(scope="session")
def models() -> list[hp.Model]:
    return [network(0, "net/first"), network(1, "net/second")]


@pytest.fixture(scope="session")
def result(models, tmp_path_factory, timing) -> hp.Result:
    out = tmp_path_factory.mktemp("results") / "run"
    with timing():
        return hp.evaluate(models, photos(), METHODS, PROTOCOLS, keep_maps=4, out=out)
