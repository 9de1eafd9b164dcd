"""The JSON Schema of specs accepts what heatproof accepts, and refuses what it can express."""

import jsonschema
import pytest
import yaml

from heatproof.errors import HeatproofError
from heatproof.plan.schema import spec_schema
from heatproof.plan.spec import make_spec
from heatproof.plan.studies import STUDIES, study_names
from heatproof.plan.yaml_reader import parse_yaml
from heatproof.protocols import PROTOCOLS

SPEC = {
    "models": ["paperbirds/resnet"],
    "data": "paperbirds",
    "methods": ["ixg"],
    "protocols": ["sds"],
}


@pytest.fixture(scope="module")
def validator():
    schema = spec_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("name", study_names())
def test_every_study_is_valid(name, validator):
    validator.validate(parse_yaml((STUDIES / f"{name}.yaml").read_text(encoding="utf-8"), name))


@pytest.mark.parametrize(
    "changes",
    [
        {"models": "paperbirds/vgg"},
        {"models": {"name": "paperbirds/vgg"}},
        {"models": [{"train": "paperbirds/resnet", "seed": [0, 1]}]},
        {"models": [{"name": "paperbirds/resnet", "fine_tuning": {"lr": [0.1, 0.01]}}]},
        {"data": {"name": "paperbirds", "split": "test", "limit": 5}},
        {"reference": "paperbirds:train"},
        {"methods": "group:controls"},
        {"protocols": {"name": "sds", "patches": [4, 16], "baseline": "blur"}},
        {"protocols": ["deletion(baseline=blur)", {"name": "road", "order": ["most", "least"]}]},
        {"keep_maps": "all"},
    ],
    ids=str,
)
def test_what_is_accepted_is_valid(changes, validator):
    make_spec(SPEC | changes)
    validator.validate(SPEC | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "paperbirds/vgg"},
        {"models": []},
        {"models": [{"nam": "paperbirds/vgg"}]},
        {"data": {"name": "paperbirds", "limit": 0}},
        {"data": 3},
        {"methods": [3]},
        {"protocols": [{"name": "sds", "patchs": 4}]},
        {"protocols": [{"name": "sdss"}]},
        {"protocols": [{"name": "road", "order": "middle"}]},
        {"batch_size": 0},
        {"backend": "magic"},
        {"seed": -1},
    ],
    ids=str,
)
def test_what_is_refused_is_not_valid(changes, validator):
    with pytest.raises(HeatproofError):
        make_spec(SPEC | changes)
    assert not validator.is_valid(SPEC | changes)


def test_every_setting_of_every_protocol_is_described():
    definitions = spec_schema()["definitions"]
    for entry in PROTOCOLS:
        if entry.cls.source is not None:
            continue
        for name, setting in definitions[f"protocol {entry.id}"]["properties"].items():
            assert name == "name" or setting.get("description"), f"{entry.id}: {name}"


def test_every_key_of_a_spec_is_described():
    schema = spec_schema()
    parts = ("ModelSpec", "DataSpec", "FineTuningSpec")
    for part in (schema, *(schema["definitions"][name] for name in parts)):
        for name, key in part["properties"].items():
            assert key.get("description"), name


def test_a_comment_names_the_schema_without_changing_the_spec():
    line = "# yaml-language-server: $schema=heatproof.schema.json\n"
    assert make_spec(yaml.safe_load(line + yaml.safe_dump(SPEC))) == make_spec(SPEC)
