import numpy as np
import pytest
import torch

from heatproof.analysis.similarity import map_gaps, shared, softmax_gaps, stretched, top

RNG = np.random.default_rng(0)


def test_softmax_gaps_are_those_of_the_labels_probability():
    a, b, labels = RNG.normal(size=(7, 5)) * 9, RNG.normal(size=(7, 5)) * 9, RNG.integers(0, 5, 7)
    theirs = [
        abs(float(torch.softmax(torch.tensor(x), 0)[t] - torch.softmax(torch.tensor(y), 0)[t]))
        for x, y, t in zip(a, b, labels, strict=True)
    ]
    assert softmax_gaps(a, b, labels) == pytest.approx(theirs)
    assert not softmax_gaps(a, a + 3, labels).any()


def test_maps_are_rescaled_to_the_unit_interval_and_constant_maps_are_undefined():
    maps = np.stack([RNG.normal(size=(4, 6)), np.full((4, 6), 2.0), np.full((4, 6), np.nan)])
    rescaled = stretched(maps)
    assert (rescaled[0].min(), rescaled[0].max()) == (0, 1)
    assert np.allclose(rescaled[0], stretched(maps[:1] * 7 - 3)[0])
    assert np.isnan(rescaled[1:]).all()


def test_map_gaps_are_means_over_pixels():
    a, b = RNG.random((3, 4, 4)), RNG.random((3, 4, 4))
    slow = [
        sum(abs(a[i, r, c] - b[i, r, c]) for r in range(4) for c in range(4)) / 16 for i in range(3)
    ]
    assert map_gaps(a, b) == pytest.approx(slow)


def test_top_and_shared_are_sorting_and_intersection():
    a, b = RNG.normal(size=(20, 3)), RNG.normal(size=(20, 3))
    first, second = top(a, 8), top(b, 8)
    for channel in range(3):
        assert first[channel].tolist() == sorted(range(20), key=lambda i: -a[i, channel])[:8]
        assert shared(first, second)[channel] == len(set(first[channel]) & set(second[channel]))
    assert top(np.zeros((5, 1)), 3).tolist() == [[0, 1, 2]]
