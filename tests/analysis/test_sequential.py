"""Confidence sequences: against slow versions of their definitions, and how often they err."""

import math

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from heatproof.analysis.sequential import (
    SIZES,
    bet_evidence,
    bet_low,
    mixture_scale,
    t_evidence,
    t_reach,
)


def slow_t_evidence(values: np.ndarray, scale: float) -> float:
    """The mixture over effect sizes of the likelihood ratio of the t statistic, integrated."""
    n = len(values)
    t = math.sqrt(n) * values.mean() / values.std(ddof=1)

    def ratio(effect: float) -> float:
        density = stats.nct.pdf(t, n - 1, effect * math.sqrt(n)) / stats.t.pdf(t, n - 1)
        return density * stats.norm.pdf(effect, 0, 1 / math.sqrt(scale))

    reach = 6 / math.sqrt(scale)
    found, _ = integrate.quad(ratio, -reach, reach, points=[0, t / math.sqrt(n)], limit=200)
    return math.log(found)


@pytest.mark.parametrize("shift", [0.0, 0.3, -0.8])
def test_t_evidence_is_the_mixture_of_likelihood_ratios(shift):
    values = np.random.default_rng(1).normal(shift, 0.7, 24)
    fast = t_evidence(np.array(24), values.mean(), values.var(), 5.0)
    assert float(fast) == pytest.approx(slow_t_evidence(values, 5.0), abs=1e-4)


def test_the_reach_is_where_the_evidence_arrives_at_the_error():
    variance = np.array([0.5, 2.0])
    reach = t_reach(np.array(40), variance, 6.0, 0.01)
    assert t_evidence(np.array(40), reach, variance, 6.0) == pytest.approx([math.log(100)] * 2)
    assert np.isinf(t_reach(np.array(3), np.array([1.0]), 4.0, 1e-4))  # too few values


def test_the_scale_makes_intervals_narrowest_at_its_number_of_images():
    for images, error in ((64, 0.05), (200, 0.001)):

        def width(logarithm: float, images=images, error=error) -> float:
            scale = math.exp(logarithm)  # of the sequence with a known variance (Robbins 1970)
            return (images + scale) / images**2 * math.log((images + scale) / scale / error**2)

        best = optimize.minimize_scalar(width, bounds=(-5, 8), method="bounded").x
        assert width(math.log(mixture_scale(images, error))) < 1.003 * width(best)


def test_equal_values_are_no_infinite_evidence():
    few, many = (float(t_evidence(np.array(n), 0.1, 0.0, 4.0)) for n in (2, 40))
    assert 0 < few < 3
    assert math.isfinite(many)
    assert float(t_evidence(np.array(9), 0.0, 0.0, 4.0)) < 0


def slow_capital(values: np.ndarray, lowest: float) -> float:
    """The mean capital of gamblers who stake the same fraction on every value, one by one."""
    capitals = []
    for size in SIZES:
        capital = 1.0
        for value in values:
            capital *= 1 + size * value / -lowest
        capitals.append(capital)
    return sum(capitals) / len(capitals)


@pytest.mark.parametrize("mean", [-0.1, 0.0, 0.3])
def test_capital_is_that_of_bets_one_after_the_other(mean):
    values = mean + np.random.default_rng(2).uniform(-0.5, 0.5, (60, 2))
    found = bet_evidence(values, np.array([-1.0, -0.7]))
    for column, lowest in enumerate((-1.0, -0.7)):
        capital = slow_capital(values[:, column], lowest)
        assert np.exp(found[column]) == pytest.approx(capital)
    assert bet_evidence(values[::-1], np.array([-1.0, -0.7])) == pytest.approx(found)


def test_the_lower_end_is_the_mean_that_is_just_refuted():
    values = np.random.default_rng(3).beta(2, 3, (80, 3))
    low = bet_low(values, np.zeros(3), 0.01)
    step = values.mean(0) / 2**8
    assert (low < values.mean(0)).all()
    assert (bet_evidence(values - low, -low) >= math.log(100)).all()
    assert (bet_evidence(values - low - step, -low - step) < math.log(100)).all()


def test_who_stakes_everything_may_lose_it():
    values = np.array([[0.5], [-1.0], [0.5]])
    assert math.isfinite(float(bet_evidence(values, np.array([-1.0]))[0]))


def test_capital_and_lower_ends_are_those_of_another_implementation():
    # diversified_betting_mart(x, m, [s / m for s in SIZES], theta=1, trunc_scale=1) of confseq, and
    # the lowest of 2,000 means for which it stays below 20
    values = np.array([0.31, 0.62, 0.05, 0.48, 0.77, 0.54, 0.29, 0.41, 0.66, 0.58, 0.37, 0.45])

    def capital(count: int) -> float:
        return math.exp(bet_evidence(values[:count, None] - 0.25, np.array([-0.25]))[0])

    expected = [1.0480675252796952, 2.5451719729760724, 25.99572362847716]
    assert [capital(count) for count in (1, 6, 12)] == pytest.approx(expected, rel=1e-9)
    low = [float(bet_low(values[:n, None], np.zeros(1), 0.05)[0]) for n in (6, 12)]
    assert low == pytest.approx([0.15042, 0.25687], abs=2e-3)


def worst_error(draw, evidence) -> float:
    """How often the evidence against the true mean is ever as large as for an error of 5 %."""
    rng = np.random.default_rng(3)
    values = draw(rng, (400, 1000))
    return float((evidence(values).max(0) >= math.log(20)).mean())


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, size: rng.normal(0, 2, size),
        lambda rng, size: rng.uniform(-1, 1, size),
        lambda rng, size: rng.gamma(2, 1, size) - rng.gamma(2, 1, size),
        lambda rng, size: (rng.random(size) < 0.5) * 1.0 - (rng.random(size) < 0.5),
    ],
)
def test_looking_after_every_image_is_rarely_wrong(draw):
    def evidence(values: np.ndarray) -> np.ndarray:
        n = np.arange(1, len(values) + 1)[:, None]
        mean = np.cumsum(values, 0) / n
        variance = np.cumsum(values**2, 0) / n - mean**2
        return t_evidence(n, mean, np.maximum(variance, 0), mixture_scale(64, 0.05))[15:]

    assert worst_error(draw, evidence) < 0.05


def test_bets_are_rarely_wrong_about_rare_values():
    def evidence(values: np.ndarray) -> np.ndarray:
        lowest = np.full(values.shape[1], -0.98)
        return np.stack([bet_evidence(values[:n], lowest) for n in range(20, 401, 20)])

    assert worst_error(lambda rng, size: 0.02 - (rng.random(size) < 0.02), evidence) < 0.05
