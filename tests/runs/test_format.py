"""The format of a run directory: keys for any names, and clear errors for damaged files."""

import json
from dataclasses import replace

import pytest
import torch

import heatproof as hp
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.errors import HeatproofError
from heatproof.runs.format import (
    LOGITS,
    PreparedKey,
    TensorKey,
    TimingKey,
    Timings,
    to_json,
)
from heatproof.runs.sealed import parse_json, read_spec, seal, unseal
from heatproof.runs.store import Store

STRANGE = ["a+b#1", 'quote " and \\', "line\nbreak", "ä, cell 0", '{"kind": "map"}', " ", "…/../x"]


@pytest.mark.parametrize("name", STRANGE)
def test_a_key_may_contain_any_character(name):
    for key in (
        TensorKey.map(name),
        TensorKey.map_scale(name),
        TensorKey.shared(name, name),
        TensorKey.curve(name, f"{name} x", name),
    ):
        assert TensorKey.decode(key.encode()) == key
    assert TensorKey.curve(name, "x y", "z") != TensorKey.curve(f"{name} x", "y", "z")


def test_prepared_tensors_depend_on_every_field():
    key = PreparedKey("baseline", "blur", 1, "weights", "eager", "images")
    others = [
        replace(key, kind="method"),
        replace(key, name="mean"),
        replace(key, version=2),
        replace(key, model="other"),
        replace(key, backend="fused"),
        replace(key, reference="other"),
    ]
    assert len({k.digest for k in [key, *others]}) == 7


def test_timings_of_a_second_attempt_replace_those_of_repeated_steps(tmp_path):
    maps, shared = TimingKey("maps", "ixg@1"), TimingKey("shared", protocol="sds@1")
    first = Timings().updated({maps: 1.0, shared: 2.0}, {"forward": 3}, 8, 4)
    second = first.updated({maps: 5.0}, {"forward": 1, "backward from layer1": 2}, 4, 4)
    assert (second.seconds_of(maps), second.seconds_of(shared)) == (5.0, 2.0)
    assert second.seconds_of(TimingKey("scores", "ixg", "sds@1")) is None
    counts = {(count.kind, count.start): count.images for count in second.passes}
    assert counts == {("forward", ""): 4, ("backward", "layer1"): 2}
    assert parse_json(to_json(second), Timings) == second


@pytest.fixture(scope="module")
def result():
    images = torch.rand(len(STRANGE), 3, 64, 64, generator=torch.Generator().manual_seed(0))
    data = hp.TensorData(images, [0] * len(STRANGE), ids=STRANGE)
    return hp.evaluate("paperbirds/resnet", data, ["edges"], ["sds(patches=4)"])


def test_ids_may_contain_any_character(result):
    kept = RunStatistics(result.store).kept("paperbirds/resnet")
    assert kept.ids == STRANGE == result.scores["sample"].tolist()
    assert all(kept.map(sample, "edges") is not None for sample in STRANGE)


@pytest.fixture
def copy(result, tmp_path):
    return Store(result.save(tmp_path / "run"))


def test_a_directory_that_is_not_a_run_is_named(tmp_path):
    with pytest.raises(HeatproofError, match=r"is not a run of heatproof \(it has no plan.json\)"):
        hp.Result.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan["tasks"][0].update(name="../../secret"), "tasks.0.name: "),
        (lambda plan: plan["tasks"][0].pop("records"), "tasks.0.records: Field required"),
        (lambda plan: plan["tasks"][0].update(protocols=["x"]), "a protocol that is missing: x"),
        (lambda plan: plan["tasks"][0].update(view={"kind": "x"}), "tasks.0.view.kind: "),
        (lambda plan: plan.update(extra=1), "extra: Extra inputs are not permitted"),
    ],
)
def test_the_error_for_a_damaged_plan_names_the_damaged_field(copy, change, message):
    plan = json.loads(unseal(copy.paths.plan.read_bytes()))
    change(plan)
    copy.paths.plan.write_bytes(seal(json.dumps(plan).encode()))
    with pytest.raises(HeatproofError, match=rf"plan.json is damaged \(.*{message}"):
        hp.Result.load(copy.root)


def test_a_plan_of_another_version_is_distinguished_from_a_damaged_one(copy):
    copy.paths.plan.write_text(json.dumps({"tasks": {}, "about": {}}))
    with pytest.raises(HeatproofError, match="was written by another version of heatproof"):
        hp.Result.load(copy.root)
    copy.paths.plan.write_text("{")
    with pytest.raises(HeatproofError, match=r"plan.json is damaged \(it does not begin with"):
        hp.Result.load(copy.root)


def test_a_missing_or_damaged_provenance_is_named(copy):
    copy.paths.provenance.write_text("[]")
    with pytest.raises(HeatproofError, match="provenance.json is damaged"):
        RunStatistics(copy)
    copy.paths.provenance.unlink()
    with pytest.raises(HeatproofError, match=r"provenance.json is damaged \(it is missing\)"):
        RunStatistics(copy)


def test_a_damaged_spec_is_named_and_written_anew(copy):
    copy.paths.spec.write_text("not JSON")
    with pytest.warns(UserWarning, match="spec.json is damaged"):
        copy.claim({"models": ["a"]})
    assert read_spec(copy.paths.spec) == {"models": ["a"]}
    assert (copy.paths.damaged / "spec.json").read_text() == "not JSON"


def test_only_the_requested_keys_are_read(copy):
    task = copy.plan().tasks[0].name
    assert set(copy.tensors(task, [LOGITS, TensorKey.map("absent")]).tensors) == {LOGITS}
    assert copy.tensors("absent").tensors == {}
