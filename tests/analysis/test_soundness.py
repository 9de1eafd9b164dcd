"""Soundness at levels against a slow bootstrap, and the distance of curves against scipy."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import directed_hausdorff

import heatproof.functional as F
from heatproof.analysis.distance import hausdorff, least_distance
from heatproof.analysis.distinctness import Trio, distinct, trios
from heatproof.analysis.soundness import at_levels, points
from heatproof.bench.orchestrate import method_facts
from heatproof.errors import HeatproofError
from heatproof.methods import Expression
from heatproof.protocols import make_protocol
from heatproof.tensor.noise import generator


@pytest.fixture(scope="module")
def curves():
    """Forty samples that are mostly correct from one step on."""
    draw = np.random.default_rng(0)
    start = draw.integers(0, 14, 40)
    score = ((np.arange(12) >= start[:, None]) ^ (draw.random((40, 12)) < 0.05)).astype(np.float32)
    return score, draw.random((40, 12)).astype(np.float32)


SETTINGS = [{}, {"compat": "soco"}, {"gate": 0.3}, {"score": "softmax", "eps": 0.02}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_decisions_are_repeated_in_every_bootstrap_draw(curves, settings):
    protocol = make_protocol("soundness", {"eps": 0.05, **settings})
    score, mass = curves
    levels, resamples = (0.2, 0.5, 0.7, 0.99), 60

    def slow_soundness(rows):
        s, m = torch.from_numpy(score[rows]).double(), torch.from_numpy(mass[rows]).double()
        q = F.soundness(
            s.mean(0) if protocol.score == "correct" else s,
            m,
            protocol.eps,
            protocol.compat,
            gate=protocol.gate,
        )
        reached = [next((k for k in range(12) if s.mean(0)[k] >= v - 1e-9), None) for v in levels]
        return [np.nan if k is None else q[:, k].mean().item() for k in reached]

    counts = generator(0, "bootstrap", 40).multinomial(40, np.full(40, 1 / 40), size=resamples)
    draws = np.array([slow_soundness(np.repeat(np.arange(40), c)) for c in counts])
    estimates = at_levels(protocol, score, mass, levels, resamples)
    np.testing.assert_allclose(
        [e.value for e in estimates], slow_soundness(np.arange(40)), rtol=1e-9
    )
    assert np.isnan(estimates[-1]).all()
    for i, estimate in enumerate(estimates[:-1]):
        finite = draws[:, i][np.isfinite(draws[:, i])]
        np.testing.assert_allclose(estimate[1:], np.quantile(finite, [0.025, 0.975]), rtol=1e-9)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_points_of_bootstrap_draws(curves, settings):
    protocol = make_protocol("soundness", {"eps": 0.05, **settings})
    score, mass = curves
    counts = np.random.default_rng(1).multinomial(40, np.full(40, 1 / 40), size=5)
    points_drawn = protocol.bootstrap_points(
        torch.from_numpy(score), torch.from_numpy(mass), torch.from_numpy(counts)
    )
    for draw, weights in zip(points_drawn.numpy(), counts, strict=True):
        rows = np.repeat(np.arange(40), weights)
        np.testing.assert_allclose(draw, points(protocol, score[rows], mass[rows]).xy, rtol=1e-9)


def test_samples_without_a_curve_or_a_positive_value_are_left_out(curves):
    protocol = make_protocol("soundness", {"eps": 0.05})
    score, mass = (
        np.concatenate([c, np.zeros((1, 12), np.float32), np.full((1, 12), np.nan, np.float32)])
        for c in curves
    )
    for ours, without in zip(points(protocol, score, mass), points(protocol, *curves), strict=True):
        np.testing.assert_array_equal(ours, without)
    assert at_levels(protocol, score, mass, (0.5,), 10) == at_levels(protocol, *curves, (0.5,), 10)
    one = at_levels(protocol, curves[0][:1], curves[1][:1], (0.5,), 10)[0]
    assert np.isnan(one[1:]).all()


def test_aggregate_and_points_agree(curves):
    protocol = make_protocol("soundness", {"eps": 0.05, "level": 0.5})
    mean = (
        protocol.aggregate(
            {k: torch.from_numpy(v) for k, v in zip(("score", "mass"), curves, strict=True)}
        )
        .value.mean()
        .item()
    )
    assert mean == pytest.approx(at_levels(protocol, *curves, (0.5,), 10)[0].value)
    accuracy, q = points(protocol, *curves)
    assert mean == pytest.approx(q[np.argmax(accuracy >= 0.5)])


def test_the_hausdorff_distance_equals_scipys():
    draw = np.random.default_rng(0)
    for n, m in [(1, 1), (9, 9), (98, 40)]:
        a, b = draw.random((n, 2)), draw.random((m, 2))
        assert hausdorff(a, b) == pytest.approx(
            max(directed_hausdorff(a, b)[0], directed_hausdorff(b, a)[0])
        )
        assert hausdorff(a, b) == hausdorff(b, a)
        assert hausdorff(a, a) == 0


def test_the_least_distance_is_that_of_the_two_nearest_curves():
    line = np.stack([np.linspace(0, 1, 9), np.zeros(9)], 1)
    assert least_distance(
        [line, line + np.array([0, 0.5]), line + np.array([0, 2])]
    ) == pytest.approx(0.5)
    gap = np.concatenate([line, [[0.5, np.nan]]])
    assert hausdorff(gap, line) == 0
    with pytest.raises(HeatproofError, match="finite point"):
        hausdorff(line * np.nan, line)
    with pytest.raises(HeatproofError, match="got 1"):
        least_distance([line])


def test_trios_of_a_run():
    labels = [
        "ixg|unit",
        "ixg|remove(partial)",
        "ixg|introduce(partial)",
        "ixg|remove(random)",
        "ig|abs|relu",
        "ig|abs|introduce(constant)",
        "ig|abs|remove(constant)",
        "saliency|remove(constant)",
    ]
    methods = {label: method_facts(Expression.parse(label)) for label in labels}
    assert trios(methods) == [
        Trio("ixg", "partial", "ixg|unit", "ixg|remove(partial)", "ixg|introduce(partial)"),
        Trio(
            "ig|abs",
            "constant",
            "ig|abs|relu",
            "ig|abs|remove(constant)",
            "ig|abs|introduce(constant)",
        ),
    ]


def test_distances_of_several_maps():
    """Two trios of parallel lines; in the draws only the first trio's curve moves, by 0.1."""
    line = np.stack([np.linspace(0, 1, 9), np.zeros(9)], 1)
    apart = {"a": 0, "b": 0.2, "c": 0.5, "d": 0, "e": 1, "f": 2}
    curves = {name: line + np.array([0, up]) for name, up in apart.items()}
    result = distinct(
        [Trio("", "", *"abc"), Trio("", "", *"def")],
        curves,
        {"a": curves["a"] + np.array([[[0, 0.1]]]), "d": curves["d"][None]},
    )
    np.testing.assert_allclose(result.each, [(0.2, 0.1), (1, 0)], atol=1e-12)
    np.testing.assert_allclose(result.mean, (0.6, 0.05))
    assert result.spread == pytest.approx(np.std([0.2, 1], ddof=1))
