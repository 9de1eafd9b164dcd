import numpy as np
import pandas as pd
import pytest

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.paired_differences import family_of_gaps, gap, table

KEY = ("sds", "patches=16", "zero")


def rows(model: str, values: dict[str, list[float]], baseline: str = "zero") -> pd.DataFrame:
    lines = [
        (model, m, "sds", "patches=16", baseline, f"s{i}", v)
        for m, scores in values.items()
        for i, v in enumerate(scores)
    ]
    return pd.DataFrame(
        lines, columns=["model", "method", "protocol", "setting", "baseline", "sample", "value"]
    )


def test_a_setting_without_rows_is_an_empty_table():
    columns = ["model", "protocol", "setting", "baseline", "method", "sample", "value"]
    rows = pd.DataFrame([("net", "sds", "", "zero", "ixg", "a", 0.5)], columns=columns)
    assert table(rows, "net", ("sds", "", "blur")).empty
    assert table(rows, "net", ("sds", "", "zero")).loc["a", "ixg"] == 0.5


def test_a_table_has_one_models_scores_under_one_setting():
    all_rows = pd.concat(
        [
            rows("a", {"y": [1, 2], "x": [3, np.nan]}),
            rows("a", {"y": [9, 9]}, "blur"),
            rows("b", {"y": [8, 8]}),
        ]
    )
    scores = table(all_rows, "a", KEY)
    assert list(scores.columns) == ["y", "x"]
    assert scores["y"].tolist() == [1, 2]
    assert scores["x"].tolist()[0] == 3
    assert np.isnan(scores.loc["s1", "x"])


def test_a_gap_is_over_the_samples_that_both_have():
    of, to = (
        pd.Series([1.0, 5.0, np.nan, 4.0], list("abcd")),
        pd.Series([2.0, 3.0, 7.0, 9.0], list("dabz")),
    )
    difference, n = gap(of, to)
    assert n == 3
    assert difference == Estimate.mean(np.array([1 - 3.0, 5 - 7.0, 4 - 2.0]))


@pytest.mark.parametrize("clustered", [False, True])
def test_gaps_of_a_table_are_those_of_its_columns(clustered):
    draw = np.random.default_rng(0)
    first, second = (
        pd.DataFrame(draw.normal(size=(40, 4)), [f"s{i:02d}" for i in range(begin, begin + 40)])
        for begin in (0, 5)
    )
    first.iloc[10, 1] = second.iloc[8, 1] = np.nan  # others have other samples
    first.iloc[:, 3] = np.nan
    clusters = {sample: sample[:2] for sample in first.index} if clustered else None
    found = family_of_gaps(first, second, clusters)
    for column in range(4):
        expected, count = gap(first[column], second[column], clusters)
        assert count == [35, 33, 35, 0][column]
        if count:
            assert found.gaps[column] == pytest.approx(expected.value)
        else:
            assert np.isnan(found.p[column])


def test_a_small_lead_on_every_sample_is_significant():
    noise = pd.Series(np.random.default_rng(0).normal(size=50))
    difference, _ = gap(noise + 0.01, noise)
    assert difference == pytest.approx((0.01, 0.01, 0.01))
    assert difference.sign == 1
    assert gap(noise, pd.Series(dtype=float)) == (pytest.approx((np.nan,) * 3, nan_ok=True), 0)
