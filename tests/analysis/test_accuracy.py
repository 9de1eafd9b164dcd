import numpy as np
import pytest
import scipy.stats

from heatproof.analysis.accuracy import change, newcombe, proportion, readings, wilson
from heatproof.analysis.intervals import Estimate


def answers(seed: int, n: int = 30, patches: int = 9) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (
        rng.random(n) < 0.8,
        (rng.random((n, patches)) < 0.9).astype(np.float32),
        rng.normal(size=(n, patches)),
    )


def test_readings_against_a_loop():
    correct, patch_correct, log_prob = answers(0)
    values = readings(correct, patch_correct, log_prob)
    for i in range(len(correct)):
        worst = min(range(9), key=lambda p: log_prob[i, p])
        assert values["intact"][i] == correct[i]
        assert values["random"][i] == pytest.approx(sum(patch_correct[i]) / 9)
        assert values["worst"][i] == patch_correct[i, worst]
        assert values["whichever"][i] == all(patch_correct[i])
    assert (values["whichever"] <= values["worst"]).all()


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (10, 10), (3, 17), (96, 128), (1, 1)])
def test_wilson_is_scipys(hits: int, n: int):
    theirs = scipy.stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(hits / n, n) == pytest.approx((theirs.low, theirs.high))


def test_the_interval_has_a_width_if_all_samples_are_correct():
    always = np.ones(50)
    assert proportion(always).low < 0.95
    moved = change(always, always)
    assert moved.low < moved.value == 0 < moved.high


def test_a_mean_over_patches_is_bootstrapped():
    values = np.random.default_rng(0).random(40)
    assert proportion(values) == Estimate.mean(values)
    assert change(values, values + 0.1) == pytest.approx((0.1, 0.1, 0.1))


def test_swapping_before_and_after_changes_the_sign():
    before, after = (np.random.default_rng(s).random(40) < p for s, p in ((0, 0.6), (1, 0.8)))
    forward, backward = newcombe(before, after), newcombe(after, before)
    assert forward == pytest.approx((-backward.value, -backward.high, -backward.low))


def test_correlated_pairs_have_narrower_intervals():
    before = np.arange(100) < 60
    together, apart = np.arange(100) < 70, (np.arange(100) + 50) % 100 < 70
    assert (
        newcombe(before, together).value
        == pytest.approx(newcombe(before, apart).value)
        == pytest.approx(0.1)
    )
    assert newcombe(before, together).sign == 1
    assert newcombe(before, apart).sign == 0


@pytest.mark.parametrize(("loses", "gains"), [(0.02, 0.10), (0.05, 0.05), (0.0, 0.3)])
def test_the_interval_has_its_nominal_coverage(loses: float, gains: float):
    rng, hits = np.random.default_rng(0), 0
    for _ in range(1000):
        kinds = rng.choice(
            4, size=60, p=[0.5, loses, gains, 0.5 - loses - gains]
        )  # both, before only, after only, neither
        estimate = newcombe(kinds < 2, (kinds == 0) | (kinds == 2))
        hits += estimate.low <= gains - loses <= estimate.high
    assert 0.93 <= hits / 1000 <= 0.995
