"""Descriptors of maps: closed forms, slow sums and Quantus."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy as scipy_entropy

from heatproof.models.vision import import_torchvision
from heatproof.tensor.descriptors import entropy, gini, level_entropy

import_torchvision()

import quantus  # noqa: E402


def maps() -> torch.Tensor:
    return torch.randn(5, 12, 9, generator=torch.Generator().manual_seed(0))


def by_quantus(metric, a: torch.Tensor) -> list[float]:
    """Return the scores of a metric that looks at maps alone."""
    x = np.zeros((len(a), 1, *a.shape[1:]), np.float32)
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(x[0].size, 2))
    options = {"abs": True, "normalise": False, "disable_warnings": True}
    labels = np.zeros(len(a), np.int64)
    return metric(**options)(linear, x, labels, a_batch=a.numpy()[:, None], channel_first=True)


def test_sparseness_and_complexity_are_those_of_quantus():
    a = maps()
    assert gini(a).tolist() == pytest.approx(by_quantus(quantus.Sparseness, a), abs=1e-5)
    assert entropy(a).tolist() == pytest.approx(by_quantus(quantus.Complexity, a), abs=1e-5)


def test_level_entropy_is_that_of_a_histogram_of_numpy():
    for bins in (2, 7, 100):
        slow = [scipy_entropy(np.histogram(a, bins)[0]) for a in maps().double().numpy()]
        assert level_entropy(maps(), bins).tolist() == pytest.approx(slow, abs=1e-9)
    assert level_entropy(torch.ones(1, 3, 3)).tolist() == [0]


def test_equal_pixels_and_one_pixel_are_the_two_ends():
    flat, single = torch.full((1, 4, 5), -2.0), torch.zeros(1, 4, 5)
    single[0, 1, 2] = -3
    assert gini(flat).item() == pytest.approx(0, abs=1e-12)
    assert gini(single).item() == pytest.approx(1 - 1 / 20)
    assert entropy(flat).item() == pytest.approx(math.log(20))
    assert entropy(single).item() == 0
    assert gini(torch.zeros(1, 4, 5)).isnan().all() and entropy(torch.zeros(1, 4, 5)).isnan().all()


def test_the_gini_index_equals_its_definition_by_pairs():
    a = maps()[:2]
    for values, index in zip(a.flatten(1).abs().double().numpy(), gini(a).tolist(), strict=True):
        pairs = np.abs(values[:, None] - values[None]).mean()
        assert index == pytest.approx(pairs / (2 * values.mean()), rel=1e-9)


def test_normal_numbers_have_the_scores_that_are_stated_for_random_maps():
    a = torch.randn(4, 300, 300, generator=torch.Generator().manual_seed(0))
    assert gini(a).mean().item() == pytest.approx(2**0.5 - 1, abs=2e-3)
    fraction = (entropy(a).exp() / 300**2).mean().item()
    assert fraction == pytest.approx(math.sqrt(math.exp(0.5772156649) / math.pi), abs=2e-3)
