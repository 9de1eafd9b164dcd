"""Fixtures for tests of methods: raw maps, and networks whose ReLUs are written in many ways."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heatproof as hp
from heatproof.methods import METHODS
from heatproof.methods.notes import MapNotes
from heatproof.models import nets
from heatproof.models.batch import ModelBatch
from heatproof.tensor.noise import Rng


@pytest.fixture(scope="session")
def spread():
    """Return normal random numbers of the given shape."""
    return lambda shape, seed=0: torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="session")
def raw():
    """Return all channels of a map, at the resolution of the layer."""

    def explain(model, x, target, name, layer="input", **arguments):
        entry, batch = METHODS[name], ModelBatch(model, x, target).at(layer)
        available = {"batch": batch, "notes": MapNotes(len(x))}
        passed = {key: value for key, value in available.items() if entry.takes(key)}
        return entry.function(
            model.tail(layer),
            batch.x,
            target,
            rng=Rng(0, [str(i) for i in range(len(target))]),
            **passed,
            **arguments,
        )

    return explain


@pytest.fixture(scope="session")
def shipped(spread):
    """Build an embedded network, untrained, with calibrated norms and no weights at zero."""

    def build(name):
        torch.manual_seed(0)
        net = nets.NETS[name].module()
        with torch.no_grad():
            for p in (p for p in net.parameters() if not p.any()):
                p.normal_(0, 0.1)
            net.train()(spread((8, 3, 64, 64)))
        return hp.Model(net.eval(), size=64, name=name)

    return build


class Written(nn.Module):
    """Two convolutions and a head with the ReLU of your choice."""

    def __init__(self, relu):
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2, self.fc, self.relu = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.Conv2d(6, 6, 3),
            nn.Linear(6, 4),
            relu,
        )

    def forward(self, x):
        return self.fc(self.relu(self.conv2(self.relu(self.conv1(x)))).mean((2, 3)))


class Statement(nn.Module):
    """Applies the ReLU in place and ignores the result of the call."""

    def forward(self, x):
        x.relu_()
        return x


WRITTEN = {
    "module": nn.ReLU(),
    "in place": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "F.relu in place by position": lambda x: F.relu(x, True),
    "torch.relu": torch.relu,
    "method": lambda x: x.relu(),
    "method in place": lambda x: x.relu_(),
    "statement": Statement(),
    "clamp": lambda x: x.clamp(min=0),
    "clamp_min": lambda x: torch.clamp_min(x, 0),
    "threshold": lambda x: F.threshold(x, 0, 0),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "relu6": lambda x: 6 * F.relu6(x / 6),
}


@pytest.fixture(params=WRITTEN)
def written(request):
    """Return the name of a notation and a network whose ReLUs are written that way."""
    return request.param, Written(WRITTEN[request.param])


@pytest.fixture(scope="session")
def with_relu():
    return Written
