import numpy as np
import pandas as pd
import pytest
import scipy.stats

from heatproof.analysis.intervals import Estimate, bootstrap_means, rank, summarize


def frame(
    values: dict[str, list[float]], status: dict[str, list[str]] | None = None
) -> pd.DataFrame:
    rows = []
    for method, scores in values.items():
        for i, value in enumerate(scores):
            row_status = status[method][i] if status and method in status else "ok"
            rows.append(
                {
                    "model": "m",
                    "method": method,
                    "layer": "input",
                    "protocol": "sds",
                    "setting": "s",
                    "baseline": "zero",
                    "sample": f"{i}",
                    "target": 0,
                    "value": value,
                    "status": row_status,
                    "message": "",
                }
            )
    return pd.DataFrame(rows)


def test_the_interval_is_the_percentile_bootstrap():
    values = np.random.default_rng(0).normal(0.3, 0.2, 200)
    line = summarize(frame({"a": values.tolist()}), resamples=4000).iloc[0]
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert line["mean"] == pytest.approx(values.mean())
    assert line["low"] == pytest.approx(theirs.low, abs=0.004)
    assert line["high"] == pytest.approx(theirs.high, abs=0.004)


def test_the_interval_has_its_nominal_coverage():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(300):
        draws = bootstrap_means(rng.normal(1.0, 1.0, (60, 1)), 400, seed=trial)
        low, high = np.quantile(draws, [0.025, 0.975])
        hits += low <= 1.0 <= high
    assert 0.90 <= hits / 300 <= 0.98


def test_comparisons_are_paired():
    """A constant lead over noise that both share is certain, however wide the intervals."""
    noise = np.random.default_rng(0).normal(0, 1, 100)
    table = summarize(frame({"a": (noise + 0.01).tolist(), "b": noise.tolist()})).set_index(
        "method"
    )
    assert table.loc["a", ["rank", "rank_low", "rank_high"]].tolist() == [1, 1, 1]
    assert table.loc["b", ["rank", "rank_low", "rank_high"]].tolist() == [2, 2, 2]
    assert table.loc["a", "low"] < table.loc["b", "mean"]


def test_methods_without_a_value_have_no_rank_and_are_counted():
    nan = float("nan")
    table = summarize(
        frame(
            {"a": [0.5, nan, 0.7], "b": [nan] * 3, "c": [0.1, 0.2, nan]},
            {"a": ["ok", "undefined", "ok"], "b": ["failed"] * 3, "c": ["ok", "ok", "skipped"]},
        )
    ).set_index("method")
    assert table["rank"].tolist()[:1] == [1]
    assert np.isnan(table.loc["b", "mean"])
    assert np.isnan(table.loc["b", "rank"])
    assert table.loc["a", ["n", "undefined", "failed"]].tolist() == [2, 1, 0]
    assert table.loc["b", ["n", "failed"]].tolist() == [0, 3]
    assert table.loc["c", ["n", "skipped", "rank"]].tolist() == [2, 1, 2]


def test_ranks():
    assert rank(np.array([0.1, 0.5, 0.5, np.nan, 0.3]), True).tolist()[:3] == [4, 1, 1]
    assert rank(np.array([0.1, 0.5, 0.3]), False).tolist() == [1, 3, 2]


def test_one_sample_has_a_mean_but_no_interval():
    line = summarize(frame({"a": [0.5]})).iloc[0]
    assert (line["mean"], line["n"]) == (0.5, 1)
    assert np.isnan(line[["low", "high", "rank_low", "rank_high"]].to_numpy(float)).all()


def test_the_summary_is_reproducible():
    rows = frame(
        {
            "a": np.random.default_rng(0).normal(size=50).tolist(),
            "b": np.random.default_rng(1).normal(size=50).tolist(),
        }
    )
    pd.testing.assert_frame_equal(summarize(rows), summarize(rows))


def test_an_estimate_of_a_mean_is_that_of_the_summary():
    values = np.random.default_rng(0).normal(size=10)
    line = summarize(frame({"a": values.tolist()})).iloc[0]
    assert Estimate.mean(values) == pytest.approx((line["mean"], line["low"], line["high"]))
    assert Estimate.mean(np.append(values, np.nan))[0] == pytest.approx(line["mean"])
    assert np.isnan(Estimate.mean(np.array([0.5]))[1:]).all()
    assert np.isnan(Estimate.mean(np.array([]))).all()


@pytest.mark.parametrize(
    ("low", "high", "sign"),
    [(0.1, 0.3, 1), (-0.3, -0.1, -1), (-0.1, 0.3, 0), (0.0, 0.3, 0), (np.nan, np.nan, 0)],
)
def test_the_sign_is_zero_if_the_interval_contains_zero(low: float, high: float, sign: int):
    assert Estimate(0.0, low, high).sign == sign
