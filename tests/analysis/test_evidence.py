"""Evidence: who may be the best under one setting and over several, and what was left out."""

import numpy as np
import pandas as pd
import pytest

from heatproof.analysis import wording
from heatproof.analysis.evidence import Evidence
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import standings

NAMES = ["model", "protocol", "setting", "baseline", "method", "sample", "value"]


def evidence_of(tables: dict[str, np.ndarray], controls=(), passes=None) -> Evidence:
    """Return the evidence of scores ``(N, M)`` by baseline; methods are a, b, c and so on."""
    rows = [
        ("net", "sds", "", baseline, "abcdefghij"[j], f"s{i:04}", value)
        for baseline, values in tables.items()
        for i, row in enumerate(values)
        for j, value in enumerate(row)
    ]
    (standing,) = standings(pd.DataFrame(rows, columns=NAMES), 400)
    return Evidence(standing, controls, passes)


def apart(*means: float, n: int = 40, noise: float = 0.02, seed: int = 0) -> np.ndarray:
    return np.array(means) + noise * np.random.default_rng(seed).normal(size=(n, len(means)))


def test_the_only_possible_winner_wins():
    found = evidence_of({"zero": apart(0.5, 0.3, 0.2)})
    assert found.winner == found.leader == "a"
    assert found.possible_winners == ["a"]
    assert wording.recommendation(found) == "Use `a` on net: it wins."
    assert found.first_fraction("a") == 1


def test_methods_that_cannot_be_told_apart_are_named():
    found = evidence_of({"zero": apart(0.31, 0.30, 0.1, noise=0.1)})
    assert found.winner == ""
    assert set(found.possible_winners) == {"a", "b"}
    assert "cannot be told apart" in wording.recommendation(found)
    shares = [found.first_fraction(m) for m in found.real]
    assert sum(shares) == pytest.approx(1)


def test_a_tie_by_one_protocol_is_no_win():
    sure = evidence_of({"zero": apart(0.5, 0.3)})
    assert wording.by_protocol(sure, "sds", None) == "sds: `a` wins."
    tied = evidence_of({"zero": apart(0.31, 0.30, 0.1, noise=0.1)})
    said = wording.by_protocol(tied, "sds", None)
    assert "ranks first; it cannot be told apart from" in said and "wins" not in said


def test_a_method_is_the_same_at_every_layer():
    names = ["lrp@middle", "lrp@final|abs", "ixg"]
    assert [wording._without_layer(name) for name in names] == ["lrp", "lrp|abs", "ixg"]


def test_a_number_has_as_many_digits_as_tell_the_ends_of_its_interval_apart():
    assert wording.estimate(Estimate(0.845, 0.802, 0.882)) == "0.84 (0.80 to 0.88)"
    assert wording.estimate(Estimate(-0.0531, -0.0544, -0.0519)) == "-0.053 (-0.054 to -0.052)"
    assert wording.estimate(Estimate(1.0, 1.0, 1.0)) == "1.00 (1.00 to 1.00)"
    assert wording.estimate(Estimate(-0.001, np.nan, np.nan)) == "0.00"


def test_equal_mean_ranks_name_the_cheaper_method_first():
    tables = {"zero": apart(0.5, 0.4, 0.1), "blur": apart(0.4, 0.5, 0.1)}
    dear = evidence_of(tables, passes={"a": 50, "b": 2, "c": 1})
    assert dear.leader == "b"
    assert dear.cheapest == ""
    assert dear.place("a") == dear.place("b") == 1
    assert dear.place("c") == 3


def test_a_win_over_settings_needs_every_order_that_the_data_allow():
    sure = evidence_of({"zero": apart(0.5, 0.3, 0.2), "blur": apart(0.5, 0.3, 0.2, seed=1)})
    assert sure.winner == "a"
    even = apart(0.3, 0.3, 0.2, noise=0.2, seed=2)
    open_ = evidence_of({"zero": apart(0.5, 0.3, 0.2), "blur": even})
    assert open_.winner == ""
    assert "b" in open_.possible_winners
    assert open_.mean_rank("a").low <= open_.mean_rank("a").value <= open_.mean_rank("a").high


def test_settings_share_the_level_of_their_tests():
    """Leads of p = .031 and .002 are wins alone, and no win over both, where each needs .025."""
    tables = {
        b: apart(0.5, 0.46, n=20, noise=0.06, seed=s) for b, s in (("zero", 23), ("blur", 123))
    }
    alone = [evidence_of({baseline: values}) for baseline, values in tables.items()]
    assert [found.winner for found in alone] == ["a", "a"]
    assert 0.025 < max(found.used[0].pairs.adjusted[0, 1] for found in alone) <= 0.05
    assert evidence_of(tables).winner == ""


def test_unequal_settings_and_decisive_methods_are_said():
    """Without c, which is between a and b under one setting, these tie, and b is cheaper."""
    zero = apart(0.50, 0.10, 0.30)
    blur = apart(0.30, 0.50, 0.10)
    found = evidence_of({"zero": zero, "blur": blur}, passes={"a": 5, "b": 1, "c": 1})
    assert found.leader == "a"
    assert "c" in found.decisive
    text = " ".join(wording.against(found, dict.fromkeys(found.standing.settings, "x"), 2))
    assert "without `c`" in text
    same = evidence_of({"zero": zero, "blur": np.zeros((40, 3)) + 0.2})
    assert len(same.undivided) == 1


def test_a_setting_that_applies_to_nothing_costs_itself_alone():
    missing = np.full((40, 3), np.nan)
    found = evidence_of({"zero": apart(0.5, 0.3, 0.2), "blur": missing})
    assert found.winner == "a"
    assert found.unused == [("sds", "", "blur")]
    label = dict.fromkeys(found.standing.settings, "blur")
    assert "blur" in wording.unused_settings(found.unused, label)


def test_a_method_that_one_setting_does_not_rank_is_named_with_the_reason():
    blur = apart(0.5, 0.3, 0.2)
    blur[5:, 2] = np.nan
    found = evidence_of({"zero": apart(0.5, 0.3, 0.9), "blur": blur})
    assert found.ranked == ["a", "b"]
    (reason,) = found.not_ranked
    assert (reason.method, reason.scored, reason.usual) == ("c", 5, 40)
    (text,) = wording.not_ranked([reason], {reason.key: "blur"})
    assert text == "`c` is not ranked: it has a score on 5 of 40 images under blur"


def test_a_control_cannot_win_and_is_named_where_it_is_above_methods():
    found = evidence_of({"zero": apart(0.5, 0.3, 0.4)}, controls=["a"])
    assert found.leader == "c"
    assert "`a` never looks at the model" in wording.control(found)
    assert found.surely_better("a", "c")
    none = evidence_of({"zero": apart(0.5, 0.3, 0.4)}, controls=["b"])
    assert wording.control(none) == ""


def test_a_lead_that_missing_scores_could_undo_is_said_and_one_that_is_not_claimed_is_not():
    scores = apart(0.9, 0.8, 0.7, noise=0.1)
    scores[:2, 0] = np.nan
    labels = {("sds", "", "zero"): "zero"}
    found = evidence_of({"zero": scores})
    assert found.fragile == ["a"]
    assert "`a` does better" in wording.against(found, labels, 1)[0]
    perfect = np.column_stack([np.ones(12), apart(0.8, n=12)[:, 0]])  # no lead: one more may fail
    found = evidence_of({"zero": perfect})
    assert not found.winner
    assert wording.against(found, labels, 1) == []


def test_many_models_are_summed_up_with_the_reasons_against_a_recommendation():
    evidences = [evidence_of({"zero": apart(0.5, 0.3, seed=seed)}) for seed in range(4)]
    assert wording.across_many(evidences, [""] * 4) == ["`a` wins on all 4 models."]
    guessing = wording.across_many(evidences, ["guessing"] * 4)
    assert guessing[0] == (
        "No method can be recommended on any of 4 models: "
        "the model is not shown to classify better than guessing."
    )
    some = wording.across_many(evidences, ["guessing", "few", "few", ""])
    assert some[-1] == (
        "On 3 of 4 models no method can be recommended: on 2 there are too few images, "
        "on 1 the model is not shown to classify better than guessing."
    )


def test_one_method_two_images_and_no_score_are_sentences():
    one = evidence_of({"zero": apart(0.5)})
    assert "only method" in wording.recommendation(one)
    two = evidence_of({"zero": apart(0.5, 0.3, n=2)})
    assert two.winner == ""
    assert "nan" not in wording.certainty(two, "2 images")
    nothing = evidence_of({"zero": np.full((4, 2), np.nan)})
    assert wording.recommendation(nothing).startswith(
        "No method can be ranked on net: too few images"
    )
    disjoint = np.full((8, 2), np.nan)
    disjoint[:4, 0], disjoint[4:, 1] = 0.5, 0.4
    assert "nan" not in wording.recommendation(evidence_of({"zero": disjoint}))


def test_equal_methods_seldom_win_over_settings():
    rng = np.random.default_rng(5)
    wins = missed = 0
    for _ in range(60):
        common = rng.normal(size=(16, 1))
        tables = {b: 0.1 * (common + rng.normal(size=(16, 6))) for b in ("zero", "blur", "mean")}
        found = evidence_of(tables)
        wins += bool(found.winner)
        missed += not found.possible_winners
    assert wins <= 3
    assert not missed


def test_of_equal_methods_one_without_missing_scores_is_named_first():
    """A method that fails on its hardest images has the best mean on the others."""
    scores = np.random.default_rng(0).permuted(np.tile([0.0, 1.0], (3, 20)), axis=1).T
    scores[np.flatnonzero(scores[:, 2] == 0)[:2], 2] = np.nan
    found = evidence_of({"zero": scores})
    assert found.ranked[0] == "c"
    assert found.leader == "a"


def test_no_p_value_is_written_as_0():
    assert [wording.p_value(p) for p in (0.0123, 0.001, 0.0005, np.nan)] == [
        "0.012",
        "0.001",
        "< 0.001",
        "–",
    ]
    assert "p < 0.001: the further" in wording.tradeoff(-0.9, 0.0001, 9, 8)
