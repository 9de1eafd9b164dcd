"""Descriptors of maps describe: nobody is ranked, crowned or left unranked by them."""

import math

import pytest

import heatproof as hp

METHODS = ["ixg", "gradcam", "edges", "constant"]


def evaluated(protocols):
    options = {"limit": 8, "keep_maps": 0}
    return hp.evaluate("paperbirds/resnet", "paperbirds:test", METHODS, protocols, **options)


@pytest.fixture(scope="module")
def result():
    units = [f"complexity(unit={unit})" for unit in ("fraction", "pixels", "nats")]
    return evaluated(["sds", "sparseness", *units])


def test_descriptors_have_means_and_intervals_but_no_ranks(result):
    table = result.summary().set_index(["protocol", "method"])
    for protocol in ("sparseness", "complexity"):
        assert table.loc[protocol]["rank"].isna().all()
        assert (table.loc[protocol]["low"] <= table.loc[protocol]["mean"]).all()
        assert table.loc[protocol]["n"].eq(8).all()
    assert table.loc["sparseness", "constant"]["mean"].item() == pytest.approx(0, abs=1e-12)


def test_the_verdict_is_that_without_descriptors(result):
    (alone,) = evaluated(["sds"]).evidence
    (evidence,) = result.evidence
    assert evidence.possible_winners == alone.possible_winners
    assert evidence.ranked == alone.ranked
    assert not evidence.unused
    assert {reason.key for reason in evidence.not_ranked} == {r.key for r in alone.not_ranked}


def test_descriptors_alone_have_no_winner():
    result = evaluated(["sparseness"])
    (evidence,) = result.evidence
    assert evidence.leader == evidence.winner == "" and not evidence.possible_winners
    assert "ranks first" not in str(result) and "sparseness" in str(result)


def test_the_three_units_of_complexity_are_one_number(result):
    rows = result.scores[result.scores["protocol"] == "complexity"]
    by_unit = rows.pivot_table(index=["sample", "method"], columns="setting", values="value")
    assert by_unit["unit=pixels"].tolist() == pytest.approx(
        [64**2 * value for value in by_unit["unit=fraction"]]
    )
    assert by_unit["unit=nats"].tolist() == pytest.approx(
        [math.log(value) for value in by_unit["unit=pixels"]]
    )
