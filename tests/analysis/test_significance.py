"""Pairs of methods under one setting: order, letters, leads that rest on what is missing, power."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, studentized_range

from heatproof.analysis.settings import SettingScores, scored_settings
from heatproof.analysis.significance import first_fractions, pair_lines, tie_letters

NAMES = ["model", "protocol", "setting", "baseline", "method", "sample", "value"]


def setting_of(values: np.ndarray, protocol: str = "sds") -> SettingScores:
    rows = [
        ("net", protocol, "", "zero", f"m{j}", f"s{i:04}", value)
        for i, row in enumerate(values)
        for j, value in enumerate(row)
    ]
    (scores,) = scored_settings(pd.DataFrame(rows, columns=NAMES), resamples=400)
    return scores


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


@pytest.mark.parametrize("protocol", ["insertion", "deletion"])
def test_the_better_methods_come_first(protocol):
    rng = np.random.default_rng(0)
    sign = 1 if protocol == "insertion" else -1
    values = sign * np.array([0.0, 1.0, 2.0, 2.0]) + 0.1 * rng.normal(size=(40, 4))
    values[:, 3] = values[:, 2] + 0.01 * rng.normal(size=40)
    found = setting_of(values, protocol).pairs
    assert set(found.methods[:2]) == {"m2", "m3"}
    assert found.methods[2:] == ["m1", "m0"]
    assert found.letters == ["a", "a", "b", "c"]
    assert found.gaps[0, 3] > 0 > found.gaps[3, 0]
    assert found.first.sum() == pytest.approx(1)
    assert found.first[2:].sum() == 0
    assert found.best(["m1", "m0"]) == ["m1"]
    assert found.rank_ends.T.tolist() == [[1, 2], [1, 2], [3, 3], [4, 4]]


def test_letters_intervals_of_ranks_and_pairs_cannot_contradict_each_other():
    rng = np.random.default_rng(7)
    for _ in range(20):
        found = setting_of(rng.normal(size=(12, 5)) + np.linspace(0, 1.5, 5)).pairs
        low, high = found.rank_ends
        for i, j in itertools.combinations(range(5), 2):
            share = bool(set(found.letters[i]) & set(found.letters[j]))
            assert share == (not found.ahead[i, j])
            if not share:
                assert low[j] > low[i] or high[i] < high[j]


def test_a_method_that_fails_on_its_hardest_images_gains_nothing():
    """Five equal methods, of which one has no score on its hardest images."""
    rng = np.random.default_rng(1)
    first = ahead = 0
    for _ in range(100):
        values = 0.1 * rng.normal(size=(64, 5))
        values[np.argsort(values[:, 4])[:6], 4] = np.nan
        found = setting_of(values).pairs
        column = found.methods.index("m4")
        first += int(np.argmax(found.floors)) == column
        ahead += bool(found.ahead[column].any())
    assert first <= 25  # it would be 20 by chance
    assert ahead <= 5


def test_too_many_missing_scores_are_not_ranked_and_cost_no_other_method_its_images():
    rng = np.random.default_rng(2)
    values = 0.1 * rng.normal(size=(48, 3)) + np.array([0.2, 0.1, 0.9])
    values[8:, 2] = np.nan  # noise that has a score on one image of six
    scores = setting_of(values)
    assert scores.ranked.tolist() == [True, True, False]
    assert scores.pairs.methods == ["m0", "m1"]
    assert scores.counts.tolist() == [48, 48, 8]
    assert np.isnan(scores.ranks[2])
    assert scores.means[2] == pytest.approx(np.nanmean(values[:, 2]))


def test_a_method_with_more_images_than_the_others_does_not_unrank_them():
    rng = np.random.default_rng(3)
    values = 0.1 * rng.normal(size=(64, 4))
    values[16:, :3] = np.nan
    scores = setting_of(values)
    assert scores.ranked.all()
    assert scores.common.sum() == 16
    assert set(scores.counts) == {16}


def test_methods_are_ranked_on_the_images_that_all_have_a_score_for():
    values = np.tile(np.linspace(0, 1, 40)[:, None], (1, 2))
    values[:, 1] -= 0.01
    values[-4:, 0] = np.nan  # its best images
    scores = setting_of(values)
    np.testing.assert_allclose(scores.means, values[:36].mean(0))
    assert scores.ranks.tolist() == [1, 2]


def test_perfect_scores_so_far_are_no_proof():
    """Eight of eight hits are ahead of .93 for sure only if the next image could not be a miss."""
    perfect = np.column_stack([np.ones(8), 0.93 + 0.01 * np.arange(8) / 8])
    assert not setting_of(perfect, "gridpg").pairs.ahead.any()
    many = np.column_stack([np.ones(400), 0.5 + 0.1 * np.sin(np.arange(400))])
    assert setting_of(many, "gridpg").pairs.ahead.any()


def test_means_that_differ_by_rounding_are_ties():
    values = -10.837 + np.zeros((30, 3)) + 0.1 * np.arange(30)[:, None]
    values[:, 1] += 1e-8
    values[:, 2] -= 1
    scores = setting_of(values, "insertion")
    assert scores.ranks.tolist() == [1, 1, 3]
    assert scores.pairs.letters[0] == scores.pairs.letters[1]


def test_how_many_images_it_takes():
    """As many images as are needed have the power that is claimed, among all pairs."""
    rng = np.random.default_rng(0)
    scale = np.array([0.06, 0.0, 0.0, 0.0])
    pilot = setting_of(0.3 * rng.normal(size=(400, 4)) + scale).pairs
    i, j = pilot.methods.index("m0"), pilot.methods.index("m1")
    gap = pilot.gaps[i, j]
    needed = int(pilot.needed(i, j))
    hits = 0
    for _ in range(60):
        new = setting_of(0.3 * rng.normal(size=(needed, 4)) + scale * gap / 0.06).pairs
        hits += new.ahead[new.methods.index("m0"), new.methods.index("m1")]
    assert 0.6 < hits / 60 < 0.98
    quantile = studentized_range.ppf(0.95, 4, np.inf) / np.sqrt(2)  # of the largest of six pairs
    expected = (quantile + norm.ppf(0.8)) * pilot.errors[i, j]
    assert pilot.detectable(i, j) == pytest.approx(expected, rel=0.04)
    same = setting_of(np.ones((9, 2)))
    assert same.pairs.needed(0, 1) == np.inf
    few = setting_of(rng.normal(size=(5, 2))).pairs  # no test of five images can succeed
    assert np.isnan(few.needed(0, 1)) and np.isnan(few.detectable(0, 1))


def test_the_lines_of_a_run():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        [
            ("net", protocol, "", "zero", method, f"s{i}", score + 0.1 * rng.normal())
            for protocol, sign in (("insertion", 1), ("deletion", -1))
            for method, score in (("good", sign * 0.5), ("bad", 0.0), ("worse", -sign * 0.5))
            for i in range(12)
        ],
        columns=NAMES,
    )
    lines = pair_lines({s.key: s.pairs for s in scored_settings(rows, 100)})
    assert list(lines["better"]) == ["good", "good", "bad"] * 2
    assert lines["significant"].all()
    assert (lines["ahead"] > 0).all()
    assert set(lines["n"]) == {12}
    layers = {("net", "good"): "input", ("net", "bad"): "middle"}
    apart = scored_settings(rows, 100, layers=layers)
    kept = pair_lines({s.key: s.pairs for s in apart})
    assert ("good", "bad") not in set(zip(kept["better"], kept["other"], strict=True))
    assert len(kept) == 4
