import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from heatproof.analysis import intervals
from heatproof.analysis.intervals import (
    Estimate,
    bootstrap_means,
    bootstrap_weights,
    mean_ends,
)
from heatproof.analysis.rank_intervals import rank, rank_ends
from heatproof.analysis.settings import summarize
from heatproof.tensor.noise import generator


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


def test_draws_are_studentized_means_of_resampled_clusters():
    """Against a loop over draws: clusters of different sizes, and values that are missing."""
    rng = np.random.default_rng(0)
    values = rng.normal(0.3, 0.2, (40, 2))
    values[rng.random((40, 2)) < 0.1] = np.nan
    clusters = np.sort(rng.integers(0, 9, 40))
    draws = bootstrap_means(values, 50, 0, clusters)
    drawn_clusters = generator(0, "bootstrap", 9).integers(9, size=(50, 9), dtype=np.uint32)
    for column, drawn in zip(values.T, draws.T, strict=True):
        mean = np.nanmean(column)
        sums, sizes = _by_cluster(column, clusters)
        error = np.sqrt(((sums - mean * sizes) ** 2).sum()) / sizes.sum()
        for chosen, draw in zip(drawn_clusters, drawn, strict=True):
            again = sums[chosen].sum() / sizes[chosen].sum()
            spread = np.sqrt(((sums[chosen] - again * sizes[chosen]) ** 2).sum())
            its_error = max(spread / sizes[chosen].sum(), error / 4)
            t = (again - mean) / its_error
            assert draw == pytest.approx(mean - np.sqrt(10 / 8) * t * error, rel=1e-9)


@pytest.mark.parametrize("kind", ["complete", "missing", "clusters"])
def test_draws_depend_neither_on_other_methods_nor_on_chunks(kind, monkeypatch):
    """To the last bit: sums over clusters have no rounding errors, whatever the order."""
    rng = np.random.default_rng(1)
    values = rng.gamma(0.5, size=(70, 11)) * 10.0 ** rng.integers(-9, 9, 11)
    values[:, 5] = values[:, 2]
    if kind == "missing":
        values[rng.random(values.shape) < 0.1] = np.nan
        values[:, 5] = values[:, 2]
    clusters = np.sort(rng.integers(0, 20, 70)) if kind == "clusters" else None
    draws = bootstrap_means(values, 300, 0, clusters)
    np.testing.assert_array_equal(draws[:, 5], draws[:, 2])
    order = rng.permutation(11)
    np.testing.assert_array_equal(
        bootstrap_means(values[:, order], 300, 0, clusters), draws[:, order]
    )
    monkeypatch.setattr(intervals, "MOST_WEIGHTS_IN_MEMORY", 700)
    monkeypatch.setattr(intervals, "MOST_KEPT_WEIGHTS", 0)
    np.testing.assert_array_equal(bootstrap_means(values, 300, 0, clusters), draws)
    monkeypatch.setattr(intervals, "MOST_KEPT_COUNTS", 0)
    np.testing.assert_array_equal(bootstrap_means(values, 300, 0, clusters), draws)


def test_rounding_for_sums_keeps_twelve_digits():
    columns = np.random.default_rng(0).normal(size=(1000, 3)) * np.array([1e-30, 1.0, 1e30])
    rounded = intervals.rounded_for_sums(columns, 1000)
    assert (np.abs(rounded - columns) <= 2**-41 * np.abs(columns).max(0)).all()
    for column in rounded.T:
        assert math.fsum(column) == column.sum() == column[::-1].sum()
    assert (intervals.rounded_for_sums(np.zeros((4, 1)), 4) == 0).all()


def _by_cluster(column: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    members = [column[clusters == c] for c in np.unique(clusters)]
    return (
        np.array([np.nansum(m) for m in members]),
        np.array([np.isfinite(m).sum() for m in members]),
    )


def test_the_samples_of_a_cluster_are_drawn_together():
    """Four copies of every value say no more than one, and single clusters change nothing."""
    values = np.random.default_rng(0).normal(size=30)
    copies = Estimate.mean(np.repeat(values, 4), np.repeat(np.arange(30), 4))
    assert copies == pytest.approx(Estimate.mean(values))
    alone = Estimate.mean(np.repeat(values, 4))
    assert (alone.high - alone.low) < 0.6 * (copies.high - copies.low)
    (weights,) = bootstrap_weights(6, 10, clusters=list("abcabc"))
    assert (weights[:, :3] == weights[:, 3:]).all()
    (apart,) = bootstrap_weights(3, 10)
    assert (weights[:, :3] == apart).all()
    assert np.isnan(Estimate.mean(values, np.zeros(30))[1:]).all()


def test_the_summary_draws_clusters():
    values = np.random.default_rng(0).normal(size=30)
    rows = frame({"a": np.repeat(values, 4).tolist()})
    clustered = rows.assign(cluster=np.repeat([f"{i:02d}" for i in range(30)], 4))
    line = summarize(clustered).iloc[0]
    assert (line["mean"], line["low"], line["high"]) == pytest.approx(Estimate.mean(values))


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
    good = [0.5] * 20
    table = summarize(
        frame(
            {"a": [*good, nan], "b": [nan] * 21, "c": [*[0.1] * 20, nan], "d": [0.9, *[nan] * 20]},
            {
                "a": ["ok"] * 20 + ["undefined"],
                "b": ["failed"] * 21,
                "c": ["ok"] * 20 + ["skipped"],
                "d": ["ok"] + ["failed"] * 20,
            },
        )
    ).set_index("method")
    assert np.isnan(table.loc["b", "mean"])
    assert np.isnan(table.loc[["b", "d"], "rank"]).all()
    assert table.loc["a", ["n", "undefined", "failed", "rank"]].tolist() == [20, 1, 0, 1]
    assert table.loc["b", ["n", "failed"]].tolist() == [0, 21]
    assert table.loc["c", ["n", "skipped", "rank"]].tolist() == [20, 1, 2]
    assert table.loc["d", ["n", "mean"]].tolist() == [1, 0.9]


def test_ranks():
    assert rank(np.array([0.1, 0.5, 0.5, np.nan, 0.3]), True).tolist()[:3] == [4, 1, 1]
    assert rank(np.array([0.1, 0.5, 0.3]), False).tolist() == [1, 3, 2]


def test_one_sample_has_a_mean_but_no_interval():
    line = summarize(frame({"a": [0.5]})).iloc[0]
    assert (line["mean"], line["n"]) == (0.5, 1)
    assert np.isnan(line[["low", "high"]].to_numpy(float)).all()
    assert line[["rank", "rank_low", "rank_high"]].tolist() == [1, 1, 1]


def test_a_mean_of_fewer_than_four_independent_values_has_no_interval():
    """Of two values, draws of one alone would set the ends: ±8.3 for a score up to 1."""
    for count in (2, 3):
        estimate = Estimate.mean(np.linspace(-0.2, 0.3, count))
        assert estimate.value == pytest.approx(0.05)
        assert np.isnan(estimate.low) and np.isnan(estimate.high)
    together = Estimate.mean(np.linspace(0, 1, 12), clusters=np.arange(12) % 3)
    assert np.isnan(together.low)
    (column,) = Estimate.means(np.linspace(0, 1, 12)[:, None], np.arange(12) % 3)
    assert column.value == together.value and np.isnan(column.low)
    (bounded,) = Estimate.means(np.linspace(0, 1, 12)[:, None], np.arange(12) % 3, (0.0, 1.0))
    assert 0 <= bounded.low < 0.5 < bounded.high <= 1
    low, high = Estimate.mean(np.linspace(-0.2, 0.3, 4))[1:]
    assert -2 < low < 0.05 < high < 2


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


def test_a_rank_interval_has_those_that_are_not_significantly_different():
    """Two equal methods between one that is far better and one that is far worse."""
    ahead = np.array([[0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=bool)
    assert rank_ends(ahead).tolist() == [[1, 2, 2, 4], [1, 3, 3, 4]]


def test_values_that_differ_by_less_than_the_tolerance_share_a_rank():
    means = np.array([0.5, 0.5 + 1e-9, 0.4, np.nan])
    assert rank(means, True, tolerance=1e-6)[:3].tolist() == [1, 1, 3]
    together = np.ones((4, 4), dtype=bool)
    assert rank(means, True, together, 1e-6)[:3].tolist() == [1, 1, 3]
    assert rank(means, True)[:3].tolist() == [2, 1, 3]


@pytest.mark.parametrize("hits", [12, 11, 6, 0])
def test_scores_of_zero_and_one_have_at_least_the_interval_of_clopper_and_pearson(hits):
    values = (np.arange(12) < hits).astype(float)[:, None]
    draws = bootstrap_means(values, 500, limits=(0.0, 1.0))
    low, high = mean_ends(values, draws, limits=(0.0, 1.0))
    exact = stats.binomtest(hits, 12).proportion_ci(method="exact")
    if 2 * hits >= 12:
        assert low[0] <= exact.low + 1e-9
    if 2 * hits <= 12:
        assert high[0] >= exact.high - 1e-9
    assert 0 <= low[0] <= hits / 12 <= high[0] <= 1
    assert high[0] > low[0]


@pytest.mark.parametrize(("chance", "n"), [(0.95, 8), (0.95, 64), (0.99, 64), (0.8, 16)])
def test_the_interval_of_scores_at_a_bound_covers(chance, n):
    values = (np.random.default_rng(0).random((n, 300)) < chance).astype(float)
    draws = bootstrap_means(values, 500, limits=(0.0, 1.0))
    low, high = mean_ends(values, draws, limits=(0.0, 1.0))
    assert np.mean((low <= chance) & (chance <= high)) >= 0.93


def test_a_score_without_limits_keeps_its_percentiles():
    values = np.random.default_rng(1).normal(size=(20, 2))
    draws = bootstrap_means(values, 500)
    low, high = mean_ends(values, draws)
    np.testing.assert_allclose([low, high], np.quantile(draws, (0.025, 0.975), axis=0))


def test_an_interval_stays_within_the_range_of_the_protocol():
    values = [0.999, 0.5, 1.0, 0.98]
    line = summarize(frame({"a": values})).iloc[0]
    assert -1 <= line["low"] < line["mean"] < line["high"] <= 1
    assert Estimate.mean(np.array(values)).high > 1


def test_many_samples_drawn_in_blocks_give_the_same_intervals(monkeypatch):
    """Blocks are there for speed: mean and width are those of drawing samples one by one."""
    values = np.random.default_rng(0).gamma(1.0, size=(3000, 3))  # skewed
    clusters = np.arange(3000) // 2
    for drawn_together in (None, clusters):
        alone = bootstrap_means(values, 2000, 0, drawn_together)
        monkeypatch.setattr(intervals, "MOST_CLUSTERS", 600)
        monkeypatch.setattr(intervals, "BLOCKS", 500)
        blocks = bootstrap_means(values, 2000, 0, drawn_together)
        monkeypatch.undo()
        one, other = (
            np.diff(np.quantile(d, (0.025, 0.975), axis=0), axis=0) for d in (alone, blocks)
        )
        # 500 blocks estimate a standard error with an error of 1/sqrt(1000), of which this is four.
        np.testing.assert_allclose(other, one, rtol=0.126)
        np.testing.assert_allclose(blocks.mean(0), alone.mean(0), atol=2e-3)
