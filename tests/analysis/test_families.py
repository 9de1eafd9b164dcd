"""Families of tests: against slow re-implementations, scipy, and on data with a known truth."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from heatproof.analysis.families import LEVEL, draw_family, flip_family, holm, pair_family
from heatproof.analysis.paired_differences import family_of_columns


def slow_p_values(differences: np.ndarray) -> np.ndarray:  # (G, K)
    """Adjust by enumerating all signs, the definition of the step-down procedure word by word."""
    count, width = differences.shape
    tables = []
    for signs in itertools.product([1, -1], repeat=count):
        flipped = differences * np.array(signs)[:, None]
        error = flipped.std(0, ddof=1) / np.sqrt(count)
        tables.append(np.abs(flipped.mean(0)) / error)
    null = np.array(tables)
    observed = null[0]
    order = np.argsort(-observed)
    p = np.empty(width)
    largest = 0.0
    for k, column in enumerate(order):
        left = null[:, order[k:]].max(1)
        at_least = np.mean(left >= observed[column] * (1 - 1e-9))
        more = np.mean(left > observed[column] * (1 + 1e-9))
        value = (at_least + more) / 2 if count >= 7 else at_least
        largest = max(largest, value)
        p[column] = largest
    return p


@pytest.mark.parametrize("count", [6, 9])
def test_p_values_are_those_of_all_signs(count):
    rng = np.random.default_rng(count)
    values = rng.normal(size=(count, 3)) + np.array([0.9, 0.3, 0.0])
    pairs = np.triu_indices(3, 1)
    found = pair_family(values, count, pairs, 0.0)
    differences = values[:, pairs[0]] - values[:, pairs[1]]
    np.testing.assert_allclose(found.p, slow_p_values(differences))
    by_columns = family_of_columns(differences, np.arange(count))
    np.testing.assert_allclose(by_columns.p, found.p)
    np.testing.assert_allclose(found.gaps, differences.mean(0))
    np.testing.assert_allclose(found.errors, differences.std(0, ddof=1) / np.sqrt(count))


def test_one_difference_agrees_with_the_t_test_of_scipy():
    rng = np.random.default_rng(0)
    for shift in (0.0, 0.2, 0.4):
        values = rng.normal(size=60) + shift
        (p,) = family_of_columns(values[:, None], np.arange(60)).p
        assert p == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.03)


def test_binary_scores_get_the_mid_p_value_of_mcnemar():
    differences = np.array([1.0] * 6 + [-1.0] + [0.0] * 4)
    (p,) = family_of_columns(differences[:, None], np.arange(11)).p
    exact = stats.binomtest(6, 7).pvalue
    assert p == pytest.approx(exact - stats.binom.pmf(6, 7, 0.5))


def test_samples_of_a_cluster_are_one_observation():
    rng = np.random.default_rng(1)
    of_clusters = rng.normal(size=10) + 0.5
    alone = family_of_columns(of_clusters[:, None], np.arange(10))
    repeated = family_of_columns(np.repeat(of_clusters, 4)[:, None], np.repeat(np.arange(10), 4))
    np.testing.assert_allclose(repeated.p, alone.p)
    np.testing.assert_allclose(repeated.errors, alone.errors)


def test_few_images_prove_nothing_and_equal_scores_are_no_difference():
    assert family_of_columns(np.ones((4, 1)), np.arange(4)).p[0] > LEVEL
    assert family_of_columns(np.zeros((30, 1)), np.arange(30)).p[0] == 1
    assert np.isnan(family_of_columns(np.ones((1, 1)), np.arange(1)).p[0])
    missing = np.full((5, 1), np.nan)
    assert np.isnan(family_of_columns(missing, np.arange(5)).p[0])


def test_a_true_difference_is_tested_for_by_shifting():
    rng = np.random.default_rng(2)
    values = rng.normal(size=(40, 1)) * 0.1 + 0.5
    assert family_of_columns(values, np.arange(40), 0.5).p[0] > 0.05
    shifted = family_of_columns(values, np.arange(40), 0.3)
    assert shifted.p[0] < 0.01
    assert shifted.gaps[0] == pytest.approx(values.mean())


@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_a_family_of_equal_methods_is_rarely_false(shared):
    rng = np.random.default_rng(3)
    pairs = np.triu_indices(8, 1)
    false = 0
    for _ in range(200):
        common = rng.normal(size=(16, 1)) * np.sqrt(shared)
        values = common + rng.normal(size=(16, 8)) * np.sqrt(1 - shared)
        false += pair_family(values, 16, pairs, 0.0).significant.any()
    assert false / 200 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 200)


def test_intervals_hold_together():
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(200):
        values = rng.normal(size=(24, 6)) + np.arange(6)
        low, high = family_of_columns(values, np.arange(24)).intervals
        covered += bool(((low <= np.arange(6)) & (np.arange(6) <= high)).all())
    assert covered / 200 >= 0.95 - 2 * np.sqrt(0.05 * 0.95 / 200)


def test_draws_stand_for_what_is_no_mean():
    rng = np.random.default_rng(5)
    draws = rng.normal(size=(4000, 2)) * 0.1 + np.array([0.5, 0.05])
    found = draw_family(np.array([0.5, 0.05]), draws, 30, 0.0)
    assert found.significant.tolist() == [True, False]
    assert found.errors == pytest.approx([0.1, 0.1], rel=0.05)
    assert np.isnan(draw_family(np.ones(1), np.full((9, 1), np.nan), 30, 0.0).p).all()


def test_totals_are_weighted_by_the_samples_of_a_cluster():
    found = flip_family(np.array([[2.0], [3.0], [4.0]]), np.array([6]), np.array([3]))
    assert found.gaps[0] == pytest.approx(1.5)


@given(st.lists(st.floats(0, 1), max_size=9))
def test_holm_is_the_step_down_procedure(values):
    p = np.array(values)
    adjusted = holm(p)
    for level in (0.01, 0.05, 0.5):
        rejected = set()
        for k, i in enumerate(np.argsort(p, kind="stable")):
            if not p[i] * (len(p) - k) < level:
                break
            rejected.add(int(i))
        assert rejected == set(np.flatnonzero(adjusted < level))


def test_holm_leaves_out_what_was_not_tested():
    np.testing.assert_allclose(holm(np.array([0.01, np.nan, 0.04])), [0.02, np.nan, 0.04])
