"""The split of the variance of ranks, against closed forms and slow computations."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from heatproof.analysis.ranks import Standings
from heatproof.analysis.variance import _explained, split_variance

METHODS = ["a", "b", "c", "d", "e"]


def standing(model: str, keys: list[tuple[str, str, str]], ranks: np.ndarray, **changes):
    ranks = np.asarray(ranks, dtype=float)
    drawn = np.repeat(ranks[:, None], 4, 1)
    layers = changes.get("layers", ("",) * ranks.shape[1])
    methods = changes.get("methods", METHODS[: ranks.shape[1]])
    return Standings(model, methods, keys, -ranks, ranks, -drawn, drawn, layers, ())


def facts(methods=METHODS, bases=METHODS):
    return {m: SimpleNamespace(layerless_base=b) for m, b in zip(methods, bases, strict=True)}


KEYS = [("deletion", "", "zero"), ("deletion", "", "blur"), ("insertion", "", "zero")]
KEYS.append(("insertion", "", "blur"))
ORDER = np.arange(1, 6)


def test_equal_rankings_differ_in_methods_alone():
    found = split_variance([standing("net", KEYS, np.tile(ORDER, (4, 1)))], facts())
    assert found.shares["method"] == pytest.approx(1)
    assert found.shares["protocol"] == found.shares["baseline"] == 0
    assert found.settings == 4


def test_a_baseline_that_turns_the_ranking_round_has_all_of_the_variance():
    ranks = [ORDER, 6 - ORDER, ORDER, 6 - ORDER]
    found = split_variance([standing("net", KEYS, ranks)], facts())
    assert found.shares["baseline"] == pytest.approx(1)
    assert found.shares["method"] == pytest.approx(0)
    assert found.shares["rest"] == pytest.approx(0)


def test_an_interaction_is_the_rest():
    ranks = [ORDER, 6 - ORDER, 6 - ORDER, ORDER]
    found = split_variance([standing("net", KEYS, ranks)], facts())
    assert found.shares["rest"] == pytest.approx(1)


def test_where_every_combination_was_run_it_is_the_analysis_of_variance():
    rng = np.random.default_rng(0)
    ranks = np.stack([rng.permutation(5) + 1 for _ in range(8)])
    all_standings = [standing(m, KEYS, ranks[4 * i : 4 * i + 4]) for i, m in enumerate("xy")]
    found = split_variance(all_standings, facts())
    cells = [(m, *key) for m in "xy" for key in KEYS]
    total = ((ranks - 3) ** 2).sum()
    profile = ranks.mean(0)
    assert found.shares["method"] == pytest.approx(8 * ((profile - 3) ** 2).sum() / total)
    for name, i in (("model", 0), ("protocol", 1), ("baseline", 3)):
        expected = 0.0
        for level in {cell[i] for cell in cells}:
            chosen = [k for k, cell in enumerate(cells) if cell[i] == level]
            expected += len(chosen) * ((ranks[chosen].mean(0) - profile) ** 2).sum()
        assert found.shares[name] == pytest.approx(expected / total)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_transforms_are_apart_from_methods():
    ranks = np.tile([1, 4, 2, 5, 3], (4, 1))
    found = split_variance([standing("net", KEYS, ranks)], facts(bases=["m", "m", "n", "n", "o"]))
    assert found.shares["method"] == pytest.approx((2 * 0.25 + 2 * 0.25) / 10)
    assert found.shares["transform"] == pytest.approx(4 * 1.5**2 / 10)


def test_choices_that_were_not_combined_are_averaged_over_orders():
    """Against least squares in every order of three factors, on a design with gaps."""
    rng = np.random.default_rng(1)
    levels = {"x": list("aabbbab"), "y": list("cdccdde"), "z": list("fghfghf")}
    values = rng.normal(size=(2, 7, 3))
    values -= values.mean(1, keepdims=True)

    def squares(names) -> np.ndarray:
        columns = [np.ones(7)]
        for name in names:
            columns += [[float(v == level) for v in levels[name]] for level in set(levels[name])]
        design = np.stack(columns, 1)
        out = []
        for table in values:
            fitted = design @ np.linalg.lstsq(design, table, rcond=None)[0]
            out.append((fitted**2).sum())
        return np.array(out)

    found = _explained(values, levels)
    orders = list(itertools.permutations(levels))
    for name in levels:
        gains = [
            squares(order[: order.index(name) + 1]) - squares(order[: order.index(name)])
            for order in orders
        ]
        np.testing.assert_allclose(found[name], np.mean(gains, axis=0), atol=1e-9)


def test_too_little_has_no_split():
    one = standing("net", KEYS[:1], [ORDER])
    assert split_variance([one], facts()) is None
    assert split_variance([], facts()) is None
    two = standing("net", KEYS, np.tile([1, 2], (4, 1)))
    assert split_variance([two], facts()) is None
    layered = standing("net", KEYS, np.tile(ORDER, (4, 1)), layers=("input",) * 5)
    assert split_variance([layered], facts()) is None
    tied = standing("net", KEYS, np.ones((4, 5)))
    assert split_variance([tied], facts()) is None
    missing = np.tile(ORDER.astype(float), (4, 1))
    missing[1, 0] = np.nan
    assert split_variance([standing("net", KEYS, missing)], facts()).methods == METHODS[1:]


def test_a_setting_that_comes_with_its_protocol_is_not_told_from_it():
    keys = [("sds", "patches=16", "zero"), ("road", "steps=9", "linear"), ("ids", "", "blur")]
    ranks = [ORDER, 6 - ORDER, ORDER]
    found = split_variance([standing("net", keys, ranks)], facts())
    assert list(found.shares) == ["method", "protocol", "rest"]
    assert found.shares["rest"] == pytest.approx(0)
    assert sum(e for e in found.shares.values()) == pytest.approx(1)


def test_a_method_without_a_rank_under_one_setting_is_left_out():
    ranks = np.tile(ORDER.astype(float), (4, 1))
    ranks[1, 2] = np.nan
    gaps = [standing("x", KEYS, ranks), standing("y", KEYS, np.tile(ORDER, (4, 1)))]
    found = split_variance(gaps, facts())
    assert found.methods == ["a", "b", "d", "e"] and found.settings == 8
    assert found.shares["method"] == pytest.approx(1)
    ranks[2, 3] = ranks[3, 4] = np.nan
    assert split_variance(gaps, facts()) is None  # two are ranked by all
