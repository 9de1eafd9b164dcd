"""Provenance: what was run, on what, with which versions, and the line that runs it again."""

from __future__ import annotations

import textwrap
from typing import Any

import yaml

from heatproof.baselines import Baseline
from heatproof.bench.layout import ModelView
from heatproof.protocols import ViewKey
from heatproof.report.run_data import Run
from heatproof.report.sections.base import section
from heatproof.report.site import Site

TARGETS = {
    "label": "The score of the sample's true label is explained and judged; of the prediction, where a sample has no label.",
    "prediction": "The score of the class that the model predicts is explained and judged.",
}


@section(
    "provenance",
    short="How it was made",
    question="How was this made, and how do I repeat it?",
    order=120,
)
def content(run: Run, site: Site) -> dict[str, Any]:
    spec = run.provenance.spec
    text = yaml.safe_dump(
        spec, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    )
    return {
        "spec": text,
        "spec_file": None if run.made_in_python else site.write("spec.yaml", text),
        "call": _call(run, spec) if run.made_in_python else "",
        "yours": [m for m in run.methods if run.family(m) == "yours"],
        "protocols": _protocols(run),
        "baselines": _baselines(run),
        "models": [_model(run, name, view) for name in run.models for view in run.views(name)],
        "methods": run.methods,
        "facts": run.provenance,
        "cost": {view.subject.title: view.cost for view in run.plan.views},
    }


def _call(run: Run, spec: dict[str, Any]) -> str:
    """The Python that made it, as far as it can be told from outside; functions stand there by name."""
    methods = [m if run.family(m) == "yours" else repr(m) for m in spec.get("methods", [])]
    models, data = spec.get("models", []), spec.get("data", {})
    given = [
        repr(models[0] if len(models) == 1 else models),
        repr(data.get("name")),
        _list("methods", methods),
        _list("protocols", _protocol_calls(run)),
        *([f"limit={data['limit']}"] if data.get("limit") else []),
        f"seed={spec.get('seed', 0)}",
    ]
    return "hp.evaluate(\n    " + ",\n    ".join(given) + ",\n)"


def _list(name: str, items: list[str]) -> str:
    lines = textwrap.wrap(", ".join(items), 100, break_long_words=False, break_on_hyphens=False)
    return (
        f"{name}=[{lines[0]}]"
        if len(lines) == 1
        else f"{name}=[\n        " + "\n        ".join(lines) + ",\n    ]"
    )


def _protocol_calls(run: Run) -> list[str]:
    """Settings that differ in the baseline alone are one."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for (name, setting, baseline), protocol in run.protocols.items():
        given = {key: value for key, value in protocol.settings.items() if value is not None}
        same = found.setdefault(
            (name, setting), {"name": name, **given, **({"baseline": []} if baseline else {})}
        )
        if baseline:
            same["baseline"].append(baseline)
    return [repr(call) for call in found.values()]


def _protocols(run: Run) -> list[dict[str, Any]]:
    """One entry a protocol; its settings below."""
    found: dict[str, dict[str, Any]] = {}
    for protocol in run.protocols.values():
        target = TARGETS.get(protocol.target, protocol.target)
        entry = found.setdefault(
            protocol.id, {**protocol.model_dump(), "target_text": target, "all": []}
        )
        entry["all"].append(protocol.canonical)
    return list(found.values())


def _baselines(run: Run) -> list[tuple[str, str]]:
    return [
        (name, _baseline_summary(name))
        for name in dict.fromkeys(protocol.baseline for protocol in run.protocols.values())
        if name
    ]


def _baseline_summary(name: str) -> str:
    baseline = Baseline.find(name)
    return baseline.entry.summary if baseline else "not known to this version"


def _model(run: Run, name: str, view: ViewKey) -> dict[str, Any]:
    correct, labelled = run.accuracy_of(name, view)
    facts = run.facts(name, view)
    return {
        **(facts.model_dump() if facts else {}),
        "name": ModelView(name, view).title,
        "correct": correct,
        "labelled": labelled,
        "on_grid": view not in run.networks(name),
    }
