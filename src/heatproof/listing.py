"""List everything that a spec can name, by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from heatproof.baselines import BASELINES
from heatproof.data.catalog import DATA
from heatproof.errors import unknown
from heatproof.methods import METHODS, TRANSFORMS, Expression
from heatproof.methods.base import NEEDS
from heatproof.methods.library_objects import parameters_of
from heatproof.methods.library_tables import LIBRARIES
from heatproof.models.nets import NETS, ON_DEMAND
from heatproof.models.paper_networks import NETWORKS
from heatproof.models.zoo import MODELS, load_model
from heatproof.plan.spec import read_yaml
from heatproof.plan.studies import figures, study_names
from heatproof.protocols import PROTOCOLS
from heatproof.report.sections import ordered_sections
from heatproof.training.recipes import RECIPES

Entries = Iterator[dict[str, Any]]
STUDY_KEYS = ("about", "models", "data", "methods", "protocols")


def listing(kind: str) -> list[dict[str, Any]]:
    """Return everything of one kind, each with its ``id`` and properties.

    Args:
        kind: A key of ``KINDS``, such as ``methods``.
    """
    return list(KINDS[kind]())


def library_listing(name: str) -> list[dict[str, Any]]:
    """Return the methods of a library, each with its ``id`` and arguments; see `LIBRARIES`.

    ``refused`` says why a class cannot be used by name; it is empty for those that can.

    Raises:
        HeatproofError: If there is no such library, or it is not installed.
    """
    if name not in LIBRARIES:
        raise unknown("library", name, LIBRARIES)
    library = LIBRARIES[name]
    rows = []
    for method, kind in library.classes().items():
        refused = library.refusal(method)
        parameters = {} if refused else parameters_of(library, kind)
        rows.append(
            {
                "id": f"{name}:{method}",
                "arguments": {
                    n: None if p.default is p.empty else p.default for n, p in parameters.items()
                },
                "version": library.version,
                "refused": refused,
            }
        )
    return rows


def _methods() -> Entries:
    for entry in sorted(METHODS, key=lambda entry: entry.family):
        forwards, backwards = Expression.parse(entry.id).cost or (None, None)
        cost = _cost(forwards, backwards)
        if "channels" in entry.needs:
            cost += " per channel"
        yield {
            "id": entry.id,
            "family": entry.family,
            "paper": entry.paper,
            "summary": entry.summary,
            "signed": entry.signed,
            "layer": entry.layer,
            "needs": sorted(entry.needs),
            "needs_explained": {word: NEEDS[word] for word in sorted(entry.needs)},
            "layers": entry.layers,
            "cost": cost,
            "forwards": forwards,
            "backwards": backwards,
            "arguments": {name: p.default for name, p in entry.parameters.items()},
            "version": entry.version,
        }


def _cost(forwards: int | None, backwards: int | None) -> str:
    if forwards is None:
        return "?"
    counts = ((forwards, "fwd"), (backwards, "bwd"))
    return " + ".join(f"{count} {kind}" for count, kind in counts if count) or "none"


def _transforms() -> Entries:
    for entry in TRANSFORMS:
        yield {
            "id": entry.id,
            "summary": entry.summary,
            "arguments": list(entry.parameters),
        }


def _protocols() -> Entries:
    for entry in PROTOCOLS:
        protocol = entry.cls()
        facts = protocol.facts()
        yield {
            **facts,
            "better": "higher" if facts["higher_is_better"] else "lower",
            "settings": protocol.model_dump(),
        }


def _baselines() -> Entries:
    for entry in BASELINES:
        yield {
            "id": entry.id,
            "group": entry.group,
            "summary": entry.summary,
            "needs": "reference images" if entry.prepare else "",
            "arguments": {name: p.default for name, p in entry.parameters.items()},
            "version": entry.version,
        }


def _models() -> Entries:
    for name, net in NETS.items():
        ships = name not in ON_DEMAND
        fine_tuned: list[str] = []
        if ships:
            fine_tuned = list(load_model(f"paperbirds/{name}").fine_tuned_weights)
        yield {
            "id": f"paperbirds/{name}",
            "size": net.size,
            "classes": net.classes,
            "weights": "ship" if ships else "train",
            "fine_tuned": fine_tuned,
            "training_minutes": RECIPES[name].minutes,
        }
    for name, network in NETWORKS.items():
        yield {
            "id": name,
            "size": network.size,
            "classes": network.classes,
            "weights": "give",
            "layers": dict(network.layers),
            "zero": network.zero,
            "papers": network.papers,
            "url": network.url or None,
            "resize": network.resize,
            "mean": network.mean,
            "std": network.std,
        }
    for loader in MODELS:
        if loader.source is not None:
            yield {"id": loader.id, "weights": "its own", "summary": loader.summary}


def _data() -> Entries:
    for entry in DATA:
        yield {"id": entry.id, "summary": entry.summary}


def _sections() -> Entries:
    for entry in ordered_sections():
        yield {
            "id": entry.id,
            "name": entry.short,
            "question": entry.question,
            "order": entry.order,
        }


def _studies() -> Entries:
    for name in study_names():
        study = read_yaml(name)
        made = [
            figure.name
            for figure in figures().values()
            if name in (f"{figure.paper}/{figure.study}", f"{figure.paper}/{figure.full}")
        ]
        yield {"id": name, **{key: study[key] for key in STUDY_KEYS}, "figures": made}


KINDS: dict[str, Callable[[], Entries]] = {
    "methods": _methods,
    "transforms": _transforms,
    "protocols": _protocols,
    "baselines": _baselines,
    "models": _models,
    "data": _data,
    "sections": _sections,
    "studies": _studies,
}
