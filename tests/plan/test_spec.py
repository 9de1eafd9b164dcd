"""Specs: their grammar, their errors, and the studies that ship."""

import re

import pytest
import yaml

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.plan.cost import plan_cost
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import load_spec, make_spec, parse_protocols
from heatproof.plan.studies import study_names

GOOD = {
    "models": ["paperbirds/resnet"],
    "data": "paperbirds:test",
    "methods": ["ixg"],
    "protocols": ["sds"],
}


def test_a_spec_can_use_the_whole_grammar():
    spec = make_spec(
        yaml.safe_load("""
version: 1
seed: 3
models: [paperbirds/resnet, {name: "file:net.py:build", weights: net.safetensors}]
data: {name: paperbirds, split: test, limit: 256}
reference: {name: paperbirds, split: train, limit: 2000}
methods: [ixg, ig, "ig|abs", "gradcam@middle", "group:all"]
protocols:
  - sds
  - sds(patches=4)
  - {name: sds, patches: 64, baseline: [zero, uniform, blur]}
batch_size: 32
backend: eager
""")
    )
    assert spec.models[1].weights == "net.safetensors"
    assert [p.canonical for p in spec.parsed_protocols()] == [
        "sds@1(baseline=zero, patches=16, score=logit)",
        "sds@1(baseline=zero, patches=4, score=logit)",
        "sds@1(baseline=zero, patches=64, score=logit)",
        "sds@1(baseline=uniform, patches=64, score=logit)",
        "sds@1(baseline=blur, patches=64, score=logit)",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metods": ["ixg"]}, 'unknown key "metods"; did you mean methods'),
        ({"data": {"name": "paperbirds", "limt": 3}}, 'unknown key "limt"; did you mean limit'),
        (
            {"data": {"name": "paperbirds", "limit": 0}},
            "data.limit: found 0; input should be greater than or equal to 1",
        ),
        ({"models": []}, "models is empty; name at least one"),
        ({"seed": "x"}, "seed: found 'x'"),
        ({"version": 2}, "version: found 2; input should be 1"),
        (
            {"backend": "turbo"},
            "backend: found 'turbo'; input should be 'auto', 'eager', 'fused', 'compile' or "
            "'openvino'",
        ),
        ({"methods": ["ixg", "gradcm"]}, 'methods: unknown method "gradcm"; did you mean gradcam'),
        (
            {"protocols": ["sdss"]},
            'protocols: unknown protocol "sdss"; there are: sds|did you mean sds',
        ),
        ({"protocols": [{"patches": 4}]}, "has no name; write"),
        (
            {"protocols": [{"name": "sds", "patches": [4, 5]}]},
            "protocols: protocol sds, patches: found 5",
        ),
        ({"protocols": ["sds(4)"]}, "settings are given by name"),
        ({"protocols": [{"name": "sds", "baseline": "zeros"}]}, "did you mean zero"),
    ],
)
def test_an_error_names_the_key_what_was_found_and_what_is_allowed(change, message):
    with pytest.raises(HeatproofError, match=message):
        make_spec({**GOOD, **change}, "my.yaml")


def test_all_mistakes_are_told_at_once():
    content = {
        "models": ["paperbirds/vgg"],
        "data": "paperbirds",
        "methods": ["ixg", "gradcm", "ig(step=3)"],
        "protocols": ["sds", "sdss", "sds(patches=5)"],
    }
    with pytest.raises(HeatproofError) as told:
        make_spec(content)
    lines = str(told.value).splitlines()
    assert len(lines) == 4
    for line, words in zip(lines, ("gradcm", "step", "sdss", "patches"), strict=True):
        assert words in line
    with pytest.raises(HeatproofError) as told:
        make_spec({**content, "sead": 1})
    assert 'unknown key "sead"' in str(told.value)
    assert len(str(told.value).splitlines()) == 5


def test_a_missing_key_is_named():
    with pytest.raises(HeatproofError, match="my.yaml: models is missing"):
        make_spec({k: v for k, v in GOOD.items() if k != "models"}, "my.yaml")


def test_arguments_override_the_spec():
    spec = make_spec(GOOD, limit=7, seed=4, batch_size=None)
    assert (spec.data.limit, spec.seed, spec.batch_size) == (7, 4, 64)


def test_files_that_are_not_specs_are_refused(tmp_path):
    for name, content, message in [
        ("a.yaml", "models: [", "not readable as YAML"),
        ("b.yaml", "- 1", "a spec is a mapping"),
        ("b2.yaml", "models: [a]\ndata: x\nmodels: [b]", "models is given twice"),
        ("b3.yaml", "models: [a]\ndata: {name: x, limit: 3, limit: 4}", "limit is given twice"),
        ("c.yaml", "!!python/object/apply:os.system ['true']", "not readable as YAML"),
    ]:
        (tmp_path / name).write_text(content)
        with pytest.raises(HeatproofError, match=message):
            load_spec(tmp_path / name)
    with pytest.raises(HeatproofError, match="did you mean quickstart"):
        load_spec("quikstart")
    with pytest.raises(HeatproofError, match="there is no spec|unknown study"):
        load_spec("../../pyproject")


@pytest.mark.parametrize("name", study_names())
def test_every_study_is_a_valid_spec(name):
    spec = load_spec(name)
    assert spec.expressions()
    assert parse_protocols(spec.protocols)


@pytest.mark.parametrize("name", [n for n in study_names() if n.count("/") < 2])
def test_every_study_on_embedded_data_states_its_cost_in_passes(name):
    spec = load_spec(name).model_copy(update={"backend": "eager"})  # nothing to choose
    stated = re.search(r"([\d,]+) forward and ([\d,]+) backward passes", spec.about)
    assert stated, "say what it costs"
    cost = plan_cost(open_spec(spec, "cpu", train=False)).values()
    planned = [sum(c.forwards for c in cost), sum(c.backwards for c in cost)]
    assert [int(n.replace(",", "")) for n in stated.groups()] == pytest.approx(planned, rel=0.1)


def test_a_mapping_and_a_file_give_the_same_run_and_list_methods_without_scores(tmp_path):
    spec = {
        **GOOD,
        "data": {"name": "paperbirds", "limit": 4},
        "methods": ["ixg", "constant", "vit-gradcam"],
    }
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec))
    from_mapping, from_file = hp.run(spec, tmp_path / "one"), hp.run(file, tmp_path / "other")
    assert from_mapping.scores.equals(from_file.scores)
    left_out = from_mapping.left_out.set_index("method")
    assert (
        dict(left_out["status"]) == {"constant": "undefined", "vit-gradcam": "n/a"}
        and (left_out["samples"] == 4).all()
    )
    assert "vision transformer" in left_out.loc["vit-gradcam", "message"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere.yaml", "there is no file .*nowhere.yaml"), ("rao2024/grids", "unknown study")],
)
def test_a_missing_spec_is_refused(name, message):
    with pytest.raises(HeatproofError, match=message):
        load_spec(name)


def test_all_mistakes_of_protocols_are_told_at_once():
    with pytest.raises(HeatproofError) as error:
        parse_protocols(["sdz", "deletion", "sds(patch=4)", {"patches": 4}])
    lines = str(error.value).splitlines()
    assert len(lines) == 3
    for line, part in zip(lines, ["sdz", "patch", "has no name"], strict=True):
        assert part in line
