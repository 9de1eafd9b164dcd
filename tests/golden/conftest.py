"""Shared fixtures of the golden tests: models, images, maps at a layer, and tolerances.

Stored arrays were computed in single precision. Where a method is ill-conditioned (a denominator
near zero, a ReLU at its kink, an optimisation), ours are computed in double precision: what is
left is the rounding of the stored ones, the same on every machine.
"""

import copy

import numpy as np
import pytest
import torch

import heatproof as hp
from heatproof.methods import Explainer, Expression
from heatproof.models.batch import ModelBatch
from heatproof.tensor.noise import Rng


@pytest.fixture(scope="session")
def layers():
    """The grid paper's names for layers, by network."""
    return {
        "vgg": {"Input": "input", "Middle": "features.6", "Final": "features.8"},
        "resnet": {"Input": "input", "Middle": "layer2", "Final": "layer4"},
    }


@pytest.fixture(scope="session")
def double_model(golden_model):
    """Return a golden model by name, in double precision."""

    def load(name):
        return hp.Model(copy.deepcopy(golden_model(name).module).double(), size=32, name=name)

    return load


@pytest.fixture(scope="session")
def native():
    """Explain images in the model's precision and return the maps at the layer's resolution."""

    def explain(model, x, target, text):
        x = x.to(next(model.module.parameters()).dtype)
        rng = Rng(0, [str(i) for i in range(len(x))])
        return Explainer(ModelBatch(model, x, target), rng).native(Expression.parse(text)).numpy()

    return explain


@pytest.fixture(scope="session")
def inputs():
    return lambda case: (torch.from_numpy(case["images"]), torch.from_numpy(case["labels"]))


@pytest.fixture(scope="session")
def assert_maps():
    def check(ours, stored, rounding=1e-5, rtol=1e-4):
        np.testing.assert_allclose(ours, stored, rtol=rtol, atol=rounding * np.abs(stored).max())

    return check
