"""Soundness at levels against a slow bootstrap, and the distance of curves against scipy."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import directed_hausdorff

import heatproof.functional as F
from heatproof.analysis.distinctness import Trio, distances, swap_p_value, trios
from heatproof.analysis.halves import half_samples
from heatproof.analysis.hausdorff import hausdorff, least_distance
from heatproof.analysis.metric_curves import MetricCurves
from heatproof.analysis.soundness import at_levels, points, steps_until
from heatproof.errors import HeatproofError
from heatproof.methods import Expression
from heatproof.plan.plan_file import method_facts
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
def test_levels_against_a_loop_over_draws(curves, settings):
    """The accuracy of a half decides its steps; its deviation from other halves is what counts."""
    protocol = make_protocol("soundness", {"eps": 0.05, **settings})
    score, mass = (torch.from_numpy(c).double() for c in curves)
    levels, resamples = (0.2, 0.5, 0.7, 0.99), 60

    def mean_q(rows, level):
        accuracy = score[rows].mean(0)
        step = next((k for k in range(12) if accuracy[k] >= level - 1e-9), None)
        if step is None:
            return np.nan
        decides = accuracy if protocol.score == "correct" else score[rows]
        q = F.soundness(decides, mass[rows], protocol.eps, protocol.compat, gate=protocol.gate)
        return q[:, step].mean().item()

    draw = generator(0, "halves", 40)
    halves = []
    for order in draw.random((resamples // 2, 40)).argsort(1):
        halves += [np.sort(order[:20]), np.sort(order[20:])]
    estimates = at_levels(protocol, *curves, levels, resamples)
    for level, estimate in zip(levels[:-1], estimates, strict=False):
        assert estimate.value == pytest.approx(mean_q(np.arange(40), level))
        of_halves = np.array([mean_q(rows, level) for rows in halves])
        draws = estimate.value + np.sqrt(1.5) * (of_halves - np.nanmean(of_halves))
        low, high = np.nanquantile(draws.clip(0, 1), [0.025, 0.975])
        expected = (min(low, estimate.value), max(high, estimate.value))
        np.testing.assert_allclose(estimate[1:], expected, rtol=1e-9)
    assert np.isnan(estimates[-1]).all()


def test_a_step_that_gains_just_enough_keeps_the_estimate_in_the_interval():
    """Every step gains exactly eps in 100 samples, so a resampled gain is smaller in a third of
    the draws: their percentiles lie below the estimate of 1."""
    score = (np.arange(60) >= np.arange(100)[:, None]).astype(np.float32)
    protocol = make_protocol("soundness", {})
    mass = np.ones((100, 60), np.float32)
    (estimate,) = at_levels(protocol, score, mass, (0.5,), 400)
    assert estimate.value == pytest.approx(1)
    assert 0.8 < estimate.low < estimate.value <= estimate.high
    assert steps_until(protocol, score, (0.5, 0.99)) == [(50, 50), (0, 0)]
    surely = make_protocol("soundness", {"eps": 0.001})
    assert steps_until(surely, np.ones((500, 60)), (0.5,)) == [(1, 0)]


def test_halves_are_drawn_in_pairs_by_cluster():
    (weights,) = half_samples(9, 10, clusters=list("aabbccdde"))
    assert weights.shape == (10, 9)
    np.testing.assert_array_equal(weights[::2] + weights[1::2], 1)
    np.testing.assert_array_equal(weights[:, :8:2], weights[:, 1:8:2])
    assert set(weights[::2, ::2].sum(1)) == {3}


def test_samples_without_a_curve_or_a_positive_value_are_left_out(curves):
    protocol = make_protocol("soundness", {"eps": 0.05})
    score, mass = (
        np.concatenate([c, np.zeros((1, 12), np.float32), np.full((1, 12), np.nan, np.float32)])
        for c in curves
    )
    for ours, without in zip(points(protocol, score, mass), points(protocol, *curves), strict=True):
        np.testing.assert_array_equal(ours, without)
    with_them, without = (
        at_levels(protocol, *some, (0.5,), 10)[0] for some in ((score, mass), curves)
    )
    assert with_them.value == pytest.approx(without.value)
    assert np.isfinite(with_them).all()
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
    """Two trios of parallel lines; only the first trio's curve differs between halves, by 0.1."""
    rng = np.random.default_rng(0)
    noise = 0.01 * rng.normal(size=(30, 1))
    apart = {"a": 0, "b": 0.2, "c": 0.5, "d": 0, "e": 1, "f": 2}
    curves = {name: metric_curve(np.zeros((30, 9)) + up + noise) for name, up in apart.items()}
    table = distances([Trio("", "", *"abc"), Trio("", "", *"def")], {"metric": curves})
    result = table["metric"]
    np.testing.assert_allclose([d.value for d in result.each], [0.2, 1], atol=1e-9)
    assert result.mean == pytest.approx(0.6)
    assert result.spread == pytest.approx(np.std([0.2, 1], ddof=1))
    assert [d.p for d in result.each] == [0.01, 0.01]  # 1 of 200, times 2 rows
    assert all(d.distinct for d in result.each)


def test_a_table_of_many_rows_can_distinguish_maps():
    """With 199 swaps the least p-value, times 12 rows, would be 0.06."""
    noise = 0.01 * np.random.default_rng(0).normal(size=(30, 1))
    curves = {name: metric_curve(np.full((30, 9), up) + noise) for up, name in enumerate("abc")}
    table = distances([Trio("", "", *"abc")] * 12, {"metric": curves})
    assert all(d.distinct for d in table["metric"].each)


def metric_curve(values: np.ndarray) -> MetricCurves:
    positions = np.linspace(0, 1, values.shape[1])
    return MetricCurves(positions, values, [f"s{i}" for i in range(len(values))])


def test_swaps_find_a_small_difference_of_pairs_that_halves_would_not():
    """Images differ far more from each other than the two maps of an image do."""
    rng = np.random.default_rng(1)
    levels = rng.normal(size=(40, 1)) + np.zeros((40, 9))
    moved = metric_curve(levels + 0.02 + 0.01 * rng.normal(size=(40, 1)))
    assert swap_p_value(metric_curve(levels), moved) <= 0.01
    assert np.isnan(swap_p_value(metric_curve(levels[:5]), metric_curve(levels[:5])))


def test_three_maps_are_distinct_only_if_each_pair_is():
    rng = np.random.default_rng(3)
    levels = rng.normal(size=(30, 1)) + np.zeros((30, 9))
    moved = levels + 1 + 0.01 * rng.normal(size=(30, 1))
    maps = {"original": levels, "removed": moved, "introduced": moved}
    curves = {name: metric_curve(values) for name, values in maps.items()}
    trio = Trio("ixg", "rect", *maps)
    assert not distances([trio], {"metric": curves})["metric"].each[0].distinct
    apart = curves | {"introduced": metric_curve(moved + 1 + 0.01 * rng.normal(size=(30, 1)))}
    assert distances([trio], {"metric": apart})["metric"].each[0].distinct


def test_swaps_of_equal_maps_are_seldom_significant():
    rng = np.random.default_rng(2)
    p = [
        swap_p_value(*(metric_curve(rng.normal(size=(20, 5))) for _ in range(2))) for _ in range(60)
    ]
    assert np.mean(np.array(p) <= 0.05) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 60)
