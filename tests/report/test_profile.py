"""The page Profile: methods by kinds, descriptions, contradictions and what does not count."""

import re
from itertools import combinations

import pytest
import torch

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.plan.spec import load_spec
from heatproof.protocols.base import KINDS, make_protocol
from heatproof.report.sections.profile import TELLS

METHODS = ["ixg", "gradcam", "guided-backprop", "edges"]
PROTOCOLS = ["sds", "randomization(mode=all)", "sensitivity(copies=2, radius=0.3)", "sparseness"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile")
    result = hp.evaluate(
        "paperbirds/resnet", "paperbirds:test", METHODS, PROTOCOLS, limit=16, out=path / "run"
    )
    result.report(path / "report")
    return result, (path / "report" / "profile.html").read_text(encoding="utf-8")


def test_methods_have_a_rank_for_each_kind_and_no_total(pages):
    result, page = pages
    (head,) = re.findall(r"<thead>(.*?)</thead>", page, re.S)
    heads = re.findall(r"<th[^>]*>(.*?)</th>", head)
    assert heads == ["method", "faithfulness", "sanity", "robustness", "sparseness"]
    for kind in ("faithfulness", "sanity", "robustness"):
        assert KINDS[kind].partition(";")[0] in page
    rows = re.findall(r'<tr data-method="(.*?)">(.*?)</tr>', page)
    assert [method for method, _ in rows] == METHODS
    ranks = {
        (s.key[1], m): r for s in result.settings for m, r in zip(s.methods, s.ranks, strict=True)
    }
    for method, row in rows:
        cells = re.findall(r'<td data-value="(.*?)">', row)
        for protocol, cell in zip(("sds", "randomization", "sensitivity"), cells, strict=False):
            assert float(cell) == ranks[protocol, method]


def test_noise_that_changes_the_prediction_is_counted(pages):
    result, page = pages
    changed = result.scores.query("protocol == 'sensitivity' and status == 'undefined'")
    assert len(changed) == 0 or "changes the prediction" in changed["message"].iloc[0]
    found = re.search(r"noise of ±0.3 changes the prediction of (\d+) of 32 noisy copies", page)
    assert found and int(found[1]) > 0


def test_every_pair_of_kinds_that_can_contradict_each_other_has_a_sentence():
    ranking = [kind for kind in KINDS if kind not in ("description", "other")]
    assert list(TELLS) == [*combinations(ranking, 2)]


def test_runs_of_fewer_kinds_have_no_profile(tmp_path):
    result = hp.evaluate(
        "paperbirds/resnet", "paperbirds:test", METHODS[:2], PROTOCOLS[:2], limit=2
    )
    result.report(tmp_path / "report")
    assert not (tmp_path / "report" / "profile.html").exists()


def test_the_audit_has_every_kind_and_takes_networks_without_fine_tuned_weights():
    protocols = load_spec("audit").parsed_protocols()
    kinds = {protocol.kind for protocol in protocols}
    assert kinds == set(KINDS) - {"other"}
    data = hp.load_data("paperbirds:test", limit=2)
    model = hp.load_model("paperbirds/resnet")
    model.fine_tuned_weights = {}
    scores = hp.evaluate(model, data, ["ixg"], ["sds", "idsds(missing=skip)"]).scores
    skipped = scores[scores["protocol"] == "idsds"]
    assert skipped["status"].eq("n/a").all()
    assert skipped["message"].str.contains("has no weights fine-tuned for 16/zero").all()
    with pytest.raises(HeatproofError, match="has no weights fine-tuned for 16/zero"):
        hp.evaluate(model, data, ["ixg"], ["idsds"])


def test_grids_that_cannot_be_made_are_left_out_with_the_reason():
    data = hp.TensorData(torch.rand(6, 3, 64, 64), ids=[str(i) for i in range(6)])
    protocols = ["sds", "gridpg(missing=skip)"]
    scores = hp.evaluate("paperbirds/resnet", data, ["ixg"], protocols).scores
    skipped = scores[scores["protocol"] == "gridpg"]
    assert len(skipped) == 6 and skipped["status"].eq("n/a").all()
    assert skipped["message"].str.contains("gridpg: .* has images without a label").all()
    with pytest.raises(HeatproofError, match="has images without a label"):
        hp.evaluate("paperbirds/resnet", data, ["ixg"], ["sds", "gridpg"])


def test_the_setting_does_not_change_the_records_of_runs_without_it():
    assert "missing" not in make_protocol("idsds", {}).canonical
    assert "missing=skip" in make_protocol("idsds", {"missing": "skip"}).canonical
