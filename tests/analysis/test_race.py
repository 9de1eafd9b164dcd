"""Races: what is dropped when, why they end, and that they are rarely wrong."""

import numpy as np
import pytest

from heatproof.analysis.pair_sequences import Table
from heatproof.analysis.race import Race, hold_race
from heatproof.plan.question import Question

KEY = ("sds", "", "zero")
OTHER = ("sds", "", "blur")


def table(values: np.ndarray, key=KEY, clusters=None, limits=(-1.0, 1.0)) -> Table:
    clusters = np.arange(len(values)) if clusters is None else clusters
    return Table(key, values, clusters, limits)


def drawn(*means: float, images: int = 256, noise: float = 0.1, seed: int = 0) -> np.ndarray:
    shape = (images, len(means))
    return np.array(means) + noise * np.random.default_rng(seed).normal(size=shape)


def race_of(values: np.ndarray, controls=(), **question) -> Race:
    names = list("abcdefghij"[: values.shape[1]])
    return hold_race(names, [table(values)], Question(**question), controls)


def test_rounds_grow_by_a_quarter_in_steps_of_the_first():
    assert Question().rounds(200) == [16, 32, 48, 64, 80, 112, 144, 192, 200]
    assert Question().rounds(10) == [10]
    assert Question(at_most=64).rounds(200)[-1] == 64
    assert Question(at_least=100).rounds(300) == [128, 192, 256, 300]  # of tasks of 64


def test_methods_are_dropped_when_they_cannot_be_the_best_and_the_race_ends_with_one():
    means = dict(zip("abcd", (0.8, 0.3, 0.7, 0.72), strict=True))
    race = race_of(drawn(*means.values()))
    (contest,) = race.contests
    assert contest.ended == "one left"
    assert contest.left[-1][1] == ["a"]
    first, *later = contest.drops
    assert (first.method, first.images) == ("b", 16)
    assert 0 < first.least < first.gap
    assert first.gap == pytest.approx(means[first.behind] - means["b"], abs=0.06)
    assert {drop.method for drop in later} == {"c", "d"}
    assert all(drop.images > 16 for drop in later)
    assert race.active(0) == []


def test_what_is_dropped_does_not_depend_on_images_that_were_not_looked_at():
    values = drawn(0.8, 0.3, 0.7, 0.79)
    whole = race_of(values).contests[0].drops
    for end in (16, 48, 112):
        part = race_of(np.vstack([values[:end], np.zeros((9, 4))])[:end]).contests[0].drops
        assert part == [drop for drop in whole if drop.images <= end]


def test_equal_methods_race_to_the_end_or_to_the_margin():
    values = drawn(0.5, 0.5, 0.1)
    without = race_of(values).contests[0]
    assert (without.ended, without.images) == ("", 256)
    with_margin = race_of(values, margin=0.08).contests[0]
    assert with_margin.ended == "margin"
    assert with_margin.images < 256
    assert with_margin.left[-1][1] == ["a", "b"]


def test_identical_methods_are_never_told_apart():
    values = np.repeat(drawn(0.5), 3, 1)
    values[:, 1] += 1e-9  # rounding
    assert race_of(values).contests[0].drops == []


def test_controls_stay_in_and_do_not_win():
    race = race_of(drawn(0.5, 0.3, 0.9), controls=["c"])
    (contest,) = race.contests
    assert [drop.method for drop in contest.drops] == ["b"]
    assert contest.left[-1][1] == ["a"]


def test_methods_that_are_kept_are_evaluated_to_the_end():
    names = ["a", "b", "c"]
    tables = [table(drawn(0.9, 0.1, 0.89))]
    race = Race(names, tables, Question(keep=("b",)))
    race.look(tables, 16)
    assert race.contests[0].left == [(16, ["a", "c"])]
    assert race.active(0) == names


def test_one_method_needs_no_race():
    (contest,) = race_of(drawn(0.5)).contests
    assert (contest.ended, contest.images) == ("one left", 16)


def test_a_ranking_places_methods_one_after_the_other():
    race = race_of(drawn(0.8, 0.2, 0.6, 0.57, images=512, noise=0.05), what="ranking")
    (contest,) = race.contests
    assert contest.ended == "decided"
    placed = {drop.method: drop.images for drop in contest.drops}
    assert {drop.reason for drop in contest.drops} == {"placed"}
    assert max(placed["a"], placed["b"]) <= 32
    assert placed["c"] == placed["d"] > 32


def test_of_a_pair_nothing_else_is_compared():
    race = race_of(drawn(0.5, 0.45, 0.9), what=("a", "b"))
    assert race.contests[0].ended == "decided"
    assert race.sequences[0].ahead[0, 1]
    assert race.sequences[0].ahead.sum() == 1


def test_over_settings_the_mean_rank_decides_or_each_protocol():
    names = ["a", "b", "c"]
    first, second = drawn(0.9, 0.5, 0.1), drawn(0.5, 0.9, 0.1, seed=1)
    keys = (KEY, ("insertion", "", "zero"))
    tables = [table(v, key) for v, key in zip((first, second), keys, strict=True)]
    (both,) = hold_race(names, tables, Question()).contests
    assert [drop.method for drop in both.drops] == ["c"]
    assert both.ended == ""
    of_protocols = hold_race(names, tables, Question(by="protocol")).contests
    assert [contest.left[-1][1] for contest in of_protocols] == [["a"], ["b"]]


def test_a_method_that_fails_never_gains_by_it():
    values = drawn(0.5, 0.5, images=64, noise=0.2)
    values[np.argsort(values[:, 1])[:5], 1] = np.nan  # its worst
    assert race_of(values).contests[0].drops == []


def test_a_method_that_fails_halfway_leaves_the_race():
    values = drawn(0.5, 0.6, 0.1)
    values[20:, 1] = np.nan
    contest = race_of(values).contests[0]
    assert [(d.method, d.reason) for d in contest.drops if d.method == "b"] == [("b", "no score")]
    assert contest.left[-1][1] == ["a"]


def test_a_method_without_any_score_takes_no_part():
    values = drawn(0.5, 0.3, 0.4)
    values[:, 1] = np.nan
    assert [drop.method for drop in race_of(values).contests[0].drops] == ["c"]


def test_images_of_a_grid_count_as_one():
    values = np.repeat(drawn(0.5, 0.45, images=16, seed=3), 8, 0)
    names = ["a", "b"]
    alone = hold_race(names, [table(values)], Question(), ends=[128])
    grids = hold_race(names, [table(values, clusters=np.repeat(np.arange(16), 8))], Question())
    assert alone.sequences[0].ahead.any()
    assert not grids.sequences[0].ahead.any()
    once = hold_race(names, [table(values[::8])], Question())
    assert grids.sequences[0].p == pytest.approx(once.sequences[0].p)


def test_rare_differences_are_not_taken_for_none():
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        values = 1.0 * (rng.random((64, 2)) < (0.98, 0.94))
        found = hold_race(["a", "b"], [table(values, limits=(0.0, 1.0))], Question(margin=0.03))
        wrong += found.contests[0].ended == "margin"
    assert wrong <= 10


def test_values_that_are_far_below_others_but_rare_are_allowed_for():
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(100):
        skewed = 0.05 * (np.exp(rng.normal(size=(128, 2))) - np.exp(0.5))
        normal = 0.025 * rng.normal(size=(128, 2))
        values = np.hstack([normal, skewed])  # all have the mean 0
        (contest,) = hold_race(list("abcd"), [table(values)], Question()).contests
        wrong += bool(contest.drops)
    assert wrong <= 5  # without bets it is 7


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("shape", ["normal", "skewed", "0/1"])
def test_a_race_rarely_drops_the_best(shape, exact):
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(100):
        noise = {
            "normal": rng.normal(0.5, 0.1, (96, 4)),
            "skewed": np.minimum(rng.gamma(2, 0.1, (96, 4)), 1),
            "0/1": 1.0 * (rng.random((96, 4)) < 0.7),
        }[shape]
        limits = (0.0, 1.0)
        names = list("abcd")
        race = hold_race(names, [table(noise, limits=limits)], Question(exact=exact))
        wrong += bool(race.contests[0].drops)  # all are equally good
    assert wrong <= 5
