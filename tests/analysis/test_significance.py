"""Significant differences: against scipy, by properties, and on data with a known truth."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from heatproof.analysis import significance
from heatproof.analysis.significance import (
    clustered_t_test,
    first_fractions,
    holm,
    pair_lines,
    paired_tests,
    pairs_of_methods,
    tie_letters,
)
from heatproof.analysis.tables import ScoreTable


def table_of(values: np.ndarray, clusters: np.ndarray | None = None) -> ScoreTable:
    samples = np.array([f"s{i:04}" for i in range(len(values))], dtype=object)
    methods = [f"m{i}" for i in range(values.shape[1])]
    return ScoreTable(samples, methods, values, samples if clusters is None else clusters)


def draws_of(values: np.ndarray, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack(
        [values[rng.integers(len(values), size=len(values))].mean(0) for _ in range(99)]
    )


def test_single_samples_give_scipys_paired_test():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(20, 2)) + np.array([0.4, 0])
    mean, error, p, count = clustered_t_test(values[:, 0] - values[:, 1], np.arange(20))
    theirs = stats.ttest_rel(*values.T)
    assert p == pytest.approx(theirs.pvalue)
    assert mean / error == pytest.approx(theirs.statistic)
    assert count == 20


def test_equal_clusters_are_tested_by_their_means():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(8, 5)) + rng.normal(size=(8, 1)) + 0.5
    _, _, p, count = clustered_t_test(values.ravel(), np.repeat(np.arange(8), 5))
    assert count == 8
    assert p == pytest.approx(stats.ttest_1samp(values.mean(1), 0).pvalue)


def test_missing_scores_are_left_out_and_few_equal_differences_prove_nothing():
    values = np.array([1.0, np.nan, 2.0, 1.5])
    assert clustered_t_test(values, list("abcd"))[3] == 3
    assert clustered_t_test(np.ones(3), list("abc"))[2] == 0.25
    assert clustered_t_test(np.zeros(30), np.arange(30))[2] == 1
    assert np.isnan(clustered_t_test(np.ones(1), ["a"])[2])
    assert clustered_t_test(np.array([np.nan]), ["a"])[3] == 0


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


@st.composite
def symmetric(draw):
    count = draw(st.integers(0, 7))
    different = np.zeros((count, count), dtype=bool)
    for i, j in itertools.combinations(range(count), 2):
        different[i, j] = different[j, i] = draw(st.booleans())
    return different


@given(symmetric())
def test_methods_share_a_letter_if_and_only_if_they_do_not_differ(different):
    letters = tie_letters(different)
    for i, j in itertools.combinations(range(len(different)), 2):
        assert bool(set(letters[i]) & set(letters[j])) == (not different[i, j])
    assert all(letters)
    assert not letters or "a" in letters[0]


def test_the_share_of_first_places():
    draws = np.array([[3.0, 2.0, np.nan], [1.0, 1.0, np.nan], [0.0, 2.0, np.nan]])
    np.testing.assert_allclose(first_fractions(draws), [0.5, 0.5, 0])
    assert np.isnan(first_fractions(np.full((2, 2), np.nan))).all()


@pytest.mark.parametrize("higher", [True, False])
def test_the_better_methods_come_first(higher):
    rng = np.random.default_rng(0)
    sign = 1 if higher else -1
    values = sign * np.array([0.0, 1.0, 2.0, 2.0]) + 0.1 * rng.normal(size=(40, 4))
    values[:, 3] = values[:, 2] + 0.01 * rng.normal(size=40)
    found = paired_tests(table_of(values), higher, draws_of(values))
    assert set(found.methods[:2]) == {"m2", "m3"}
    assert found.methods[2:] == ["m1", "m0"]
    assert found.letters == ["a", "a", "b", "c"]
    assert found.gaps[0, 3] > 0 > found.gaps[3, 0]
    assert found.first.sum() == pytest.approx(1)
    assert found.first[2:].sum() == 0


def test_how_many_images_it_takes():
    """As many images as are needed have the power that is claimed."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(4000, 2)) + np.array([0.1, 0])
    found = paired_tests(table_of(first), True, draws_of(first))
    needed = int(found.needed(0, 1))
    assert needed == pytest.approx(((1.96 + 0.8416) * np.sqrt(2) / 0.1) ** 2, rel=0.5)
    hits = [
        stats.ttest_1samp(rng.normal(found.gaps[0, 1], np.sqrt(2), needed), 0).pvalue < 0.05
        for _ in range(400)
    ]
    assert 0.72 < np.mean(hits) < 0.88
    assert found.detectable(0, 1) == pytest.approx(2.8016 * np.sqrt(2 / 4000), rel=0.1)
    same = np.ones((5, 2))
    assert paired_tests(table_of(same), True, draws_of(same)).needed(0, 1) == np.inf


def test_tables_of_many_samples_give_the_same_tests(monkeypatch):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(300, 1)) + rng.normal(size=(300, 5)) + np.array([0, 0, 0.1, 0.2, 0.3])
    values[7, 4] = np.nan
    table = table_of(values, np.array([f"c{i // 3}" for i in range(300)], dtype=object))
    draws = draws_of(np.nan_to_num(values))
    slow = paired_tests(table, False, draws)
    monkeypatch.setattr(significance, "MANY", 0)
    fast = paired_tests(table, False, draws)
    assert fast.methods == slow.methods
    for name in ("gaps", "errors", "p", "adjusted", "counts"):
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=1e-9)


def test_the_lines_of_a_run():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        [
            ("net", protocol, "", "zero", method, f"s{i}", score + 0.1 * rng.normal())
            for protocol, sign in (("insertion", 1), ("deletion", -1))
            for method, score in (("good", sign * 0.5), ("bad", 0.0), ("worse", -sign * 0.5))
            for i in range(12)
        ],
        columns=["model", "protocol", "setting", "baseline", "method", "sample", "value"],
    )
    lines = pair_lines(pairs_of_methods(rows))
    assert list(lines["better"]) == ["good", "good", "bad"] * 2
    assert lines["significant"].all()
    assert (lines["ahead"] > 0).all()
    assert set(lines["n"]) == {12}
    apart = pairs_of_methods(rows, layers={("net", "good"): "input", ("net", "bad"): "middle"})
    kept = pair_lines(apart)
    assert ("good", "bad") not in set(zip(kept["better"], kept["other"], strict=True))
    assert len(kept) == 4
