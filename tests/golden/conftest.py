"""What golden cases share: the grid paper's layers, a case's images, our maps where the layer is, and how far they may be away."""

import numpy as np
import pytest
import torch

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
def native():
    def explain(model, x, target, text):
        return (
            Explainer(ModelBatch(model, x, target), Rng(0, [str(i) for i in range(len(x))]))
            .native(Expression.parse(text))
            .numpy()
        )

    return explain


@pytest.fixture(scope="session")
def inputs():
    return lambda case: (torch.from_numpy(case["images"]), torch.from_numpy(case["labels"]))


@pytest.fixture(scope="session")
def assert_maps():
    def check(ours, stored, rounding=1e-5, rtol=1e-4):
        np.testing.assert_allclose(ours, stored, rtol=rtol, atol=rounding * np.abs(stored).max())

    return check
