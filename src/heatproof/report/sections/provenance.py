"""Provenance: what was run, on what, with which versions, and how to reproduce it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import yaml

from heatproof.analysis.run_statistics import RunStatistics
from heatproof.baselines import Baseline
from heatproof.protocols import ViewKey
from heatproof.report.bibliography import bibtex
from heatproof.report.sections.base import section
from heatproof.report.site import Site
from heatproof.runs.format import (
    Cost,
    MethodFacts,
    ModelFacts,
    ModelView,
    ProtocolFacts,
    Provenance,
)
from heatproof.runs.origins import differences

TARGETS = {
    "label": (
        "The score of the sample's label is explained and evaluated; "
        "that of the prediction if a sample has no label."
    ),
    "prediction": "The score of the predicted class is explained and evaluated.",
}


@dataclass(frozen=True)
class Protocol:
    """A protocol and all its settings in this run."""

    facts: ProtocolFacts
    target_text: str
    settings: list[str]


@dataclass(frozen=True)
class Model:
    """A view of a model; its facts are None if they are not on record."""

    name: str
    facts: ModelFacts | None
    correct: int
    labelled: int
    on_grid: bool


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    spec: str
    spec_file: str | None  # None: the run was made from Python
    call: str
    yours: list[str]
    protocols: list[Protocol]
    baselines: list[tuple[str, str]]
    models: list[Model]
    methods: dict[str, MethodFacts]
    facts: Provenance
    cost: dict[str, Cost]
    differences: list[str]  # of what computed the parts of the run
    command: str  # that makes the run again; empty if it was made from Python
    bibtex: str
    bibtex_file: str
    unknown_papers: list[str]  # that have no entry in the BibTeX


@section(
    "provenance",
    short="Provenance",
    question="How was this made, and how can it be reproduced?",
    order=120,
)
def content(run: RunStatistics, site: Site) -> Content:
    """Return everything on record about a run."""
    spec = run.provenance.spec
    text = yaml.safe_dump(
        spec, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    )
    entries, unknown = bibtex(run)
    return Content(
        spec=text,
        spec_file=None if run.made_in_python else site.write("spec.yaml", text),
        call=_call(run, spec) if run.made_in_python else "",
        yours=[m for m in run.methods if run.family(m) == "yours"],
        protocols=_protocols(run),
        baselines=_baselines(run),
        models=[_model(run, name, view) for name in run.models for view in run.views(name)],
        methods=run.methods,
        facts=run.provenance,
        cost={view.subject.title: view.cost for view in run.plan.views},
        differences=differences(run.store),
        command="" if run.made_in_python else "heatproof run spec.yaml",
        bibtex=entries,
        bibtex_file=site.write("papers.bib", entries),
        unknown_papers=unknown,
    )


def _call(run: RunStatistics, spec: dict[str, Any]) -> str:
    """Return the Python call that made the run; user-defined functions appear by name."""
    if "merged" in spec:
        return f"hp.merge(runs)  # {len(spec['merged'])} runs, which are recorded below"
    models = spec.get("models", [])
    data = spec.get("data", {})
    methods = [m if run.family(m) == "yours" else repr(m) for m in spec.get("methods", [])]
    arguments = [
        repr(models[0] if len(models) == 1 else models),
        repr(data.get("name")),
        _list("methods", methods),
        _list("protocols", _protocol_calls(run)),
    ]
    if data.get("limit"):
        arguments.append(f"limit={data['limit']}")
    arguments.append(f"seed={spec.get('seed', 0)}")
    arguments += [f"{key}={spec[key]!r}" for key in ("precision", "approximate") if key in spec]
    return "hp.evaluate(\n    " + ",\n    ".join(arguments) + ",\n)"


def _list(name: str, items: list[str]) -> str:
    lines = textwrap.wrap(", ".join(items), 100, break_long_words=False, break_on_hyphens=False)
    if len(lines) == 1:
        return f"{name}=[{lines[0]}]"
    return f"{name}=[\n        " + "\n        ".join(lines) + ",\n    ]"


def _protocol_calls(run: RunStatistics) -> list[str]:
    """Return the protocols as arguments; settings that differ in the baseline alone are one."""
    calls: dict[tuple[str, str], dict[str, Any]] = {}
    for (name, setting, baseline), protocol in run.protocols.items():
        if (name, setting) not in calls:
            settings = {k: value for k, value in protocol.settings.items() if value is not None}
            calls[name, setting] = {"name": name, **settings}
            if baseline:
                calls[name, setting]["baseline"] = []
        if baseline:
            calls[name, setting]["baseline"].append(baseline)
    return [repr(call) for call in calls.values()]


def _protocols(run: RunStatistics) -> list[Protocol]:
    """Return one entry per protocol, with its settings."""
    protocols: dict[str, Protocol] = {}
    given = {m.model: m.target for m in run.provenance.models if m.target}
    of_models = [f"Of {m}, {target} is explained and evaluated." for m, target in given.items()]
    for facts in run.protocols.values():
        texts = [TARGETS.get(facts.target, facts.target)] if set(run.models) - set(given) else []
        target = " ".join([*texts, *of_models])
        protocol = protocols.setdefault(facts.id, Protocol(facts, target, []))
        protocol.settings.append(facts.canonical)
    return list(protocols.values())


def _baselines(run: RunStatistics) -> list[tuple[str, str]]:
    names = dict.fromkeys(protocol.baseline for protocol in run.protocols.values())
    return [(name, _baseline_summary(name)) for name in names if name]


def _baseline_summary(name: str) -> str:
    baseline = Baseline.find(name)
    return baseline.entry.summary if baseline else "unknown to this version of heatproof"


def _model(run: RunStatistics, name: str, view: ViewKey) -> Model:
    correct, labelled = run.accuracy_of(name, view)
    return Model(
        name=ModelView(name, view).title,
        facts=run.facts(name, view),
        correct=correct,
        labelled=labelled,
        on_grid=view not in run.networks(name),
    )
