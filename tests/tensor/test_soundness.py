"""Soundness step by step, as in Algorithm 3 of Li et al. 2024 and as in the paper's code."""

import numpy as np
import pytest
import torch

import heatproof.functional as F
from heatproof.tensor.curves import removal_order
from heatproof.tensor.soundness import first_reached, included_mass, relative


def by_steps(accuracy, mass, eps, gate, soco):
    """Compute one sample and one step at a time; `accuracy` is (N, S), its mean meets the gate."""
    q = np.empty(mass.shape)
    for i in range(len(mass)):
        included = false = before = 0.0
        for k, new in enumerate(mass[i]):
            included += new
            if soco:
                q[i, k] = (included - false) / (included + 1e-6)
            gain, before = accuracy[i, k] - before, accuracy[i, k]
            if (gain <= eps if soco else gain < eps) and accuracy[:, k].mean() > gate:
                false += new
            if not soco:
                q[i, k] = (included - false) / included if included else np.nan
    return q


@pytest.mark.parametrize("compat", [None, "soco"])
@pytest.mark.parametrize("gate", [None, 0.3])
def test_step_by_step(compat, gate):
    draw = np.random.default_rng(0)
    accuracy, mass = draw.random(12), draw.random((7, 12)) * (draw.random((7, 12)) < 0.7)
    limit = gate if gate is not None else 0.04 if compat else -1
    q = F.soundness(torch.from_numpy(accuracy), torch.from_numpy(mass), 0.1, compat, gate=gate)
    np.testing.assert_allclose(
        q, by_steps(np.tile(accuracy, (7, 1)), mass, 0.1, limit, bool(compat)), atol=1e-12
    )
    scores = draw.standard_normal((7, 12))
    assert 2 < (scores.mean(0) > 0.04).sum() < 10  # the gate on the mean matters
    limit = -np.inf if limit == -1 else limit
    q = F.soundness(torch.from_numpy(scores), torch.from_numpy(mass), 0.1, compat, gate=gate)
    np.testing.assert_allclose(q, by_steps(scores, mass, 0.1, limit, bool(compat)), atol=1e-12)


def test_a_gain_of_eps_is_a_gain_and_soco_says_it_is_not():
    """One more sample of a hundred is correct at every step; rounding must not decide."""
    accuracy, mass = torch.arange(1, 101) / 100, torch.ones(1, 100)
    assert (F.soundness(accuracy, mass) == 1).all()
    q = F.soundness(accuracy, mass, compat="soco", gate=-1)
    np.testing.assert_allclose(q[0], 1 / np.arange(1, 101), atol=1e-6)


def test_fractions_of_the_included_mass():
    draw = torch.Generator().manual_seed(0)
    for _ in range(5):
        accuracy, mass = torch.rand(30, generator=draw), torch.rand(10, 30, generator=draw)
        for compat in (None, "soco"):
            q = F.soundness(accuracy, mass, 0.05, compat)
            assert (q >= -1e-9).all()
            assert (q <= 1).all()


def test_once_the_accuracy_is_as_high_as_it_gets_everything_counts_as_false():
    q = F.soundness(torch.ones(10), torch.ones(1, 10))
    np.testing.assert_allclose(q[0], 1 / np.arange(1, 11))


def test_nothing_included_has_no_soundness():
    mass = torch.tensor([[0.0, 0.0, 2.0]])
    assert F.soundness(torch.tensor([0.1, 0.2, 0.3]), mass).isnan().tolist() == [
        [True, True, False]
    ]
    assert F.soundness(torch.tensor([0.1, 0.2, 0.3]), mass, compat="soco")[0, :2].tolist() == [0, 0]


def test_the_first_step_that_reaches_a_level():
    accuracy = torch.tensor([[0.1, 0.5, 0.3, 0.6], [0.0, 0.1, 0.2, 0.3]])
    assert first_reached(accuracy, 0.5).tolist() == [1, -1]
    assert first_reached(accuracy, 0.6).tolist() == [3, -1]
    assert first_reached(accuracy, 0.0).tolist() == [0, 0]


def test_positive_part_over_maximum():
    maps = torch.tensor([[[1.0, -3.0], [4.0, 0.0]], [[-1.0, -2.0], [-3.0, 0.0]]])
    assert relative(maps).tolist() == [[[0.25, 0.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]


def test_mass_is_what_the_next_ranks_hold():
    maps = torch.rand(3, 5, 5, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    ranks, counts = removal_order(maps), [2, 3, 10, 25]
    mass = included_mass(maps, ranks, counts)
    for i in range(3):
        for k, (begin, end) in enumerate(zip([0, *counts], counts, strict=False)):
            new = (ranks[i] >= begin) & (ranks[i] < end)
            assert mass[i, k].item() == pytest.approx(maps[i][new].double().sum().item())
