"""Mean ranks and agreement, against closed forms and scipy."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from heatproof.analysis.evidence import Evidence
from heatproof.analysis.ranks import (
    Rankings,
    agreement,
    ranked_layers,
    standings,
)
from heatproof.analysis.settings import summarize
from heatproof.methods import Expression
from heatproof.plan.plan_file import method_facts


def scores(values: dict[str, np.ndarray], model: str = "net") -> pd.DataFrame:
    """Make rows from values (samples, methods) by baseline; methods are called a, b, c, …"""
    lines = [
        (
            model,
            "abcdefgh"[m],
            "input",
            "sds",
            "patches=16",
            baseline,
            f"s{n:03d}",
            0,
            table[n, m],
            "ok" if table[n, m] == table[n, m] else "undefined",
            "",
        )
        for baseline, table in values.items()
        for m in range(table.shape[1])
        for n in range(len(table))
    ]
    columns = [
        "model",
        "method",
        "layer",
        "protocol",
        "setting",
        "baseline",
        "sample",
        "target",
        "value",
        "status",
        "message",
    ]
    return pd.DataFrame(lines, columns=columns)


def apart(*means: float, samples: int = 40) -> np.ndarray:
    """Samples that share their difficulty: far spread, yet the methods never swap ranks."""
    return np.linspace(-0.3, 0.3, samples)[:, None] + np.array(means)


def test_ranks_are_those_of_the_summary():
    rows = scores(
        {"zero": apart(0.1, 0.3, 0.2), "blur": np.random.default_rng(0).normal(size=(40, 3))}
    )
    (ranking,) = standings(rows)
    summary = summarize(rows)
    for s, (_, _, baseline) in enumerate(ranking.settings):
        table = summary[summary["baseline"] == baseline].set_index("method").loc[ranking.methods]
        assert np.array_equal(ranking.ranks[s], table["rank"])
        assert np.allclose(ranking.means[s], table["mean"])


def test_mean_rank_over_settings():
    (ranking,) = standings(scores({"zero": apart(0.1, 0.3, 0.2), "blur": apart(0.3, 0.2, 0.1)}))
    assert dict(zip(ranking.methods, ranking.mean_ranks, strict=True)) == {
        "a": 2.0,
        "b": 1.5,
        "c": 2.5,
    }
    assert ranking.order == ["b", "a", "c"]


def test_protocols_have_equal_weights_however_many_settings_they_have():
    baselines = {name: apart(0.3, 0.2, 0.1) for name in ("zero", "blur", "uniform")}
    deletion = scores({"zero": apart(0.3, 0.2, 0.1)})  # lower is better: the other way around
    deletion["protocol"] = "deletion"
    (ranking,) = standings(pd.concat([scores(baselines), deletion]))
    assert ranking.weights.tolist() == [1, 1, 1, 3]
    assert ranking.mean_ranks.tolist() == [2, 2, 2]
    assert Evidence(ranking).mean_rank("a") == (2, 2, 2)


def test_methods_are_ranked_within_a_layer():
    methods = ["ixg", "ixg@final", "gradcam@final", "random"]
    facts = {name: method_facts(Expression.parse(name)) for name in methods}
    rows = scores({"zero": apart(0.2, 0.5, 0.3, 0.4)})
    rows["method"] = rows["method"].map(dict(zip("abcd", methods, strict=True)))
    rows["layer"] = rows["method"].map(
        dict(zip(methods, ["input", "f.8", "f.8", "input"], strict=True))
    )
    layers = ranked_layers(rows, facts)
    assert layers == {
        ("net", "ixg"): "input",
        ("net", "ixg@final"): "final",
        ("net", "gradcam@final"): "final",
    }
    (ranking,) = standings(rows, layers=layers)
    # The control is ranked at every layer: against ixg it is first, at the last layer second.
    assert ranking.ranks.tolist() == [[2, 1, 3, 2]]
    at_input, at_final = ranking.by_layer
    assert dict(zip(at_input.methods, at_input.ranks[0], strict=True)) == {"ixg": 2, "random": 1}
    assert at_final.order == ["ixg@final", "random", "gradcam@final"]
    assert at_final.layer == "final"
    summary = summarize(rows, layers=layers)
    assert summary["rank"].tolist() == [2, 1, 3, 2]
    alone = ranked_layers(rows[rows["method"] != "ixg@final"], facts)
    assert alone == {}  # every method at one layer: all are ranked together


def test_differences_are_paired():
    """Every method's mean is uncertain, but not which one is better."""
    (ranking,) = standings(scores({"zero": apart(0.10, 0.11, 0.12)}))
    evidence = Evidence(ranking)
    assert evidence.mean_rank("c") == (1, 1, 1)
    assert evidence.winner == "c"
    assert evidence.first_fraction("c") == 1
    pairs = ranking.scores[0].pairs
    gap = pairs.gaps[pairs.methods.index("c"), pairs.methods.index("a")]
    assert gap == pytest.approx(0.02)


def test_similar_methods_are_not_significantly_different():
    noise = np.random.default_rng(1).normal(size=(60, 2))
    (ranking,) = standings(scores({"zero": noise - noise.mean(0)}))
    assert not ranking.scores[0].pairs.ahead.any()


def test_a_method_without_a_score_somewhere_is_not_ranked():
    table = apart(0.1, 0.3, 0.2)
    missing = table.copy()
    missing[:, 1] = np.nan
    (ranking,) = standings(scores({"zero": table, "blur": missing}))
    assert ranking.order == ["c", "a"]
    assert np.isnan(Evidence(ranking).mean_rank("b").value)


def test_methods_that_are_better_under_one_setting_though_not_by_mean_rank():
    one, two, other = apart(0.3, 0.2, 0.1), apart(0.3, 0.2, 0.1), apart(0.1, 0.2, 0.3)
    (ranking,) = standings(scores({"zero": one, "blur": two, "black": other}))
    assert ranking.order[0] == "a"
    assert Evidence(ranking).elsewhere == [(("sds", "patches=16", "black"), "c")]


def test_agreement_is_the_mean_and_least_spearman_of_all_pairs():
    tables = {
        name: np.random.default_rng(i).normal(size=(30, 6))
        for i, name in enumerate(("zero", "blur", "uniform"))
    }
    (ranking,) = standings(scores(tables))
    rankings = [(ranking.methods, ranking.ranks[s], ranking.drawn_ranks[s]) for s in range(3)]
    agreed = agreement(rankings)
    assert agreed is not None
    expected = {
        (a, b): spearmanr(ranking.means[a], ranking.means[b])[0]
        for a in range(3)
        for b in range(a + 1, 3)
    }
    assert {pair: e.value for pair, e in agreed.pairs.items()} == pytest.approx(expected)
    assert agreed.mean.value == pytest.approx(np.mean(list(expected.values())))
    assert agreed.least.value == pytest.approx(min(expected.values()))
    assert expected[agreed.least_pair] == min(expected.values())


def test_rankings_that_never_change_agree_in_every_draw():
    (ranking,) = standings(
        scores({"zero": apart(0.1, 0.3, 0.2, 0.5), "blur": apart(0.2, 0.6, 0.4, 0.7)})
    )
    agreed = agreement(
        [(ranking.methods, ranking.ranks[s], ranking.drawn_ranks[s]) for s in range(2)]
    )
    assert agreed is not None
    assert agreed.mean == pytest.approx((1, 1, 1))


def test_agreement_can_leave_out_methods_and_needs_three():
    (ranking,) = standings(
        scores({"zero": apart(0.1, 0.2, 0.3, 0.9), "blur": apart(0.3, 0.2, 0.1, 0.9)})
    )
    rankings = [(ranking.methods, ranking.ranks[s], ranking.drawn_ranks[s]) for s in range(2)]
    agreed = agreement(rankings, leave_out=["d"])
    assert agreed is not None
    assert (agreed.methods, agreed.mean.value) == (["a", "b", "c"], pytest.approx(-1))
    assert agreement(rankings, leave_out=["c", "d"]) is None
    assert agreement(rankings[:1]) is None


def test_scores_are_the_means_and_those_of_two_protocols_are_not_mixed():
    rows = scores({"zero": apart(0.1, 0.3), "blur": apart(0.3, 0.5)})
    (ranking,) = standings(rows)
    summary = summarize(rows).set_index(["baseline", "method"])
    for i, (_, _, baseline) in enumerate(ranking.settings):
        assert ranking.score(i, "b") == pytest.approx(
            tuple(summary.loc[(baseline, "b"), ["mean", "low", "high"]])
        )
    overall = ranking.mean_score("b")
    assert overall is not None
    assert overall.value == pytest.approx(0.4)
    rows.loc[rows["baseline"] == "blur", "protocol"] = "idsds"
    assert standings(rows)[0].mean_score("b") is None


def test_stability_of_rankings_counted_by_hand():
    """Kendall's W from the correlations of all pairs, flips pair by pair; ties do not count."""
    ranks = np.array(
        [[1, 2, 3, 4, 5], [2, 1, 3, 5, 4], [1, 2, 2, 5, 4], [5, 4, 3, 2, 1]], dtype=float
    )
    pairs = [spearmanr(a, b).statistic for a, b in itertools.combinations(ranks, 2)]
    assert Rankings(ranks[[0, 1, 3]]).concordance() == pytest.approx(
        (1 + 2 * np.mean([pairs[0], pairs[2], pairs[4]])) / 3
    )
    flips = [
        (a[i] - a[j]) * (b[i] - b[j]) < 0
        for a, b in itertools.combinations(ranks, 2)
        for i, j in itertools.combinations(range(5), 2)
    ]
    assert Rankings(ranks).flipped() == pytest.approx(np.mean(flips))
    assert Rankings(ranks[[0, 1, 3]]).spread() == pytest.approx(
        np.mean([np.std(column) for column in ranks[[0, 1, 3]].T])
    )
    assert Rankings(ranks).correlation() == pytest.approx(np.mean(pairs))
    assert Rankings(ranks).least_correlation() == pytest.approx(np.min(pairs))
    same = Rankings(np.stack([ranks[2]] * 3))
    assert (same.concordance(), same.flipped(), same.spread()) == (pytest.approx(1), 0, 0)
    assert np.isnan(Rankings(np.ones((3, 4))).concordance())
    stacked = np.stack([ranks, ranks[::-1], ranks])
    for name in ("concordance", "flipped", "spread", "correlation", "least_correlation"):
        one_by_one = [getattr(Rankings(r), name)() for r in stacked]
        np.testing.assert_allclose(getattr(Rankings(stacked), name)(), one_by_one)


def test_rankings_that_images_do_not_determine_have_no_interval():
    """Eight equal methods on twelve images: draws order them anew."""
    rng = np.random.default_rng(2)
    tables = {b: 0.01 * rng.normal(size=(12, 8)) for b in ("zero", "blur", "clear")}
    tables["clear"] += 0.1 * np.arange(8)
    (standing,) = standings(scores(tables), 200)
    rankings = [(standing.methods, standing.ranks[k], standing.drawn_ranks[k]) for k in range(3)]
    of_noise, of_both = agreement(rankings[:2]).mean, agreement(rankings[1:]).mean
    assert np.isfinite(of_noise.value) and np.isnan([of_noise.low, of_noise.high]).all()
    assert np.isnan(of_both.low)
    assert np.isfinite(agreement([rankings[2], rankings[2]]).mean.low)


def test_unrelated_rankings_on_the_same_images_seldom_seem_to_agree():
    """Two settings with unrelated true means share .8 of the variance of their errors."""
    rng = np.random.default_rng(6)
    missed = 0
    for _ in range(200):
        truth = 0.5 * rng.normal(size=(2, 1, 8))
        shared = rng.normal(size=(16, 8))
        tables = truth + np.sqrt(0.8) * shared + np.sqrt(0.2) * rng.normal(size=(2, 16, 8))
        (standing,) = standings(scores(dict(zip(("zero", "blur"), tables, strict=True))), 200)
        rankings = [
            (standing.methods, standing.ranks[k], standing.drawn_ranks[k]) for k in range(2)
        ]
        found = agreement(rankings).mean
        true = spearmanr(*truth[:, 0]).statistic
        missed += np.isfinite(found.low) and not found.low - 1e-9 <= true <= found.high + 1e-9
    assert missed / 200 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 200)
