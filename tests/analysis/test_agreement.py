"""The matrix of rank correlations, against scipy."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from heatproof.analysis.agreement import agreement_frame, agreement_matrix
from heatproof.analysis.ranks import Standings, standings


def standing(baselines: int = 2, methods: int = 6) -> Standings:
    rng = np.random.default_rng(0)
    rows = [
        ("net", protocol, "", f"b{b}", f"m{m}", f"s{i}", sign * (m + 2 * effect) + rng.normal())
        for protocol, sign in (("sds", 1), ("deletion", -1), ("insertion", 1))
        for b in range(baselines)
        for m, effect in enumerate(rng.normal(size=methods))
        for i in range(30)
    ]
    names = ["model", "protocol", "setting", "baseline", "method", "sample", "value"]
    (found,) = standings(pd.DataFrame(rows, columns=names), 200)
    return found


def test_protocols_are_correlated_by_their_mean_ranks():
    ranks = standing()
    found = agreement_matrix(ranks)
    assert found is not None
    assert found.labels == ("sds", "deletion", "insertion")
    means = [ranks.ranks[2 * k : 2 * k + 2].mean(0) for k in range(3)]
    for i in range(3):
        for j in range(3):
            value, low, high = found.cell(i, j)
            assert value == pytest.approx(spearmanr(means[i], means[j]).statistic)
            assert low <= value <= high
    np.testing.assert_array_equal(found.values, found.values.T)
    frame = agreement_frame([found])
    assert list(zip(frame["a"], frame["b"], strict=True)) == [
        ("sds", "deletion"),
        ("sds", "insertion"),
        ("deletion", "insertion"),
    ]
    assert set(frame["methods"]) == {6}


def test_settings_have_their_names_and_methods_may_be_left_out():
    ranks = standing()
    labels = {key: f"{key[0]}/{key[2]}" for key in ranks.settings}
    found = agreement_matrix(ranks, "setting", ["m0"], labels)
    assert found is not None
    assert found.labels[:3] == ("sds/b0", "sds/b1", "deletion/b0")
    assert found.methods == ["m1", "m2", "m3", "m4", "m5"]
    expected = spearmanr(ranks.ranks[0][1:], ranks.ranks[1][1:]).statistic
    assert found.cell(1, 0).value == pytest.approx(expected)
    assert agreement_matrix(standing(methods=2)) is None
    assert agreement_matrix(ranks.under([0, 1])) is None
    assert agreement_frame([]).empty
