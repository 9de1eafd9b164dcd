"""A JSON Schema of specs, with which editors complete keys and mark mistakes as they are typed.

It is made from the code that checks specs. What a schema cannot express, such as the grammar of
expressions and which keys go together, is checked by ``heatproof validate`` alone.
"""

from __future__ import annotations

from typing import Any

from heatproof.baselines import BASELINES
from heatproof.data.catalog import DATA
from heatproof.methods import METHODS
from heatproof.methods.groups import GROUPS
from heatproof.models.nets import NETS
from heatproof.models.paper_networks import NETWORKS
from heatproof.plan.spec import EXPANDED_KEYS, Spec
from heatproof.protocols import PROTOCOLS
from heatproof.protocols.base import ProtocolEntry

Schema = dict[str, Any]
DIALECT = "http://json-schema.org/draft-07/schema#"  # which all editors know
KEYS_WITH_LISTS = ("models", "methods", "protocols")  # a single entry stands for a list of one
DESCRIPTIONS = {
    "models": "the networks under inspection, by name or with settings",
    "data": "the images that are evaluated, by name or with settings",
    "methods": "expressions: name(arguments)@layer|transform|…",
    "protocols": "what scores the maps, by name or with settings",
}


def spec_schema() -> Schema:
    """Return a JSON Schema (draft 7) of what a spec may contain."""
    schema = Spec.model_json_schema()
    _remove_titles(schema)
    definitions = schema.pop("$defs")
    model = definitions["ModelSpec"]["properties"]
    for key in EXPANDED_KEYS:
        model[key] = _or_list(model[key])
    fine_tuning = definitions["FineTuningSpec"]["properties"]
    fine_tuning.update({key: _or_list(value) for key, value in fine_tuning.items()})
    for entry in PROTOCOLS:
        definitions[f"protocol {entry.id}"] = _protocol(entry)

    models = [f"paperbirds/{name}" for name in NETS] + list(NETWORKS)
    data = [entry.id for entry in DATA]
    methods = [entry.id for entry in METHODS] + [f"group:{name}" for name in GROUPS]
    protocols = [entry.id for entry in PROTOCOLS]
    properties = schema["properties"]
    properties["models"]["items"] = {"anyOf": [_names(models), _reference("ModelSpec")]}
    properties["data"] = {"anyOf": [_names(data), _reference("DataSpec")]}
    properties["decide"]["anyOf"].insert(0, {"type": "boolean"})
    properties["reference"]["anyOf"].insert(0, _names(data))
    properties["methods"]["items"] = _names(methods)
    with_settings = [_reference(f"protocol {name}") for name in protocols]
    properties["protocols"]["items"] = {
        "anyOf": [_names(protocols), *with_settings, _foreign_protocol()]
    }
    for key, description in DESCRIPTIONS.items():
        properties[key]["description"] = description
    for key in KEYS_WITH_LISTS:
        several = properties[key]
        description = several.pop("description")
        properties[key] = {"description": description, "anyOf": [several["items"], several]}
    schema |= {"$schema": DIALECT, "title": "A spec of heatproof", "definitions": definitions}
    return schema


def _protocol(entry: ProtocolEntry) -> Schema:
    """Return the schema of a protocol with settings; a list stands for one protocol each."""
    settings = entry.cls.model_json_schema()
    _remove_titles(settings)
    properties = {"name": {"const": entry.id}}
    for name, setting in settings.get("properties", {}).items():
        if name == "baseline":
            setting["examples"] = [baseline.id for baseline in BASELINES]
        properties[name] = _or_list(setting)
    return {
        "type": "object",
        "description": entry.cls.summary,
        "properties": properties,
        "required": ["name"],
        "additionalProperties": False,
    }


def _foreign_protocol() -> Schema:
    """Return the schema of a protocol in a file of the user, whose settings are not known."""
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "pattern": "^file:"}},
        "required": ["name"],
    }


def _names(known: list[str]) -> Schema:
    """Return the schema of a name: editors offer those that are known, and take others."""
    return {"type": "string", "examples": known}


def _or_list(schema: Schema) -> Schema:
    described: Schema = {}
    for key in ("description", "default"):
        if key in schema:
            described[key] = schema.pop(key)
    return {**described, "anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


def _remove_titles(schema: Any) -> None:
    """Remove titles, which repeat the names, and use the place of definitions in draft 7."""
    if isinstance(schema, list):
        for item in schema:
            _remove_titles(item)
        return
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("title"), str):
        del schema["title"]
    if isinstance(schema.get("$ref"), str):
        schema["$ref"] = schema["$ref"].replace("#/$defs/", "#/definitions/")
    for value in schema.values():
        _remove_titles(value)
