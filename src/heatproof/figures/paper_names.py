"""What a paper calls the methods of its group, for the figures of a run of that group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from heatproof.methods import parse_methods
from heatproof.methods.groups import PAPER_NAMES

PREFIX = "group:"
MARKS = "●■⬟◆▲▼★○□ "  # of legends, which no LaTeX font has


def paper_names(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of a paper by label, if a spec has the group of one paper alone.

    Names of a group at a layer, such as ``group:rao2024@final``, end in the layer.

    Args:
        spec: A spec as it would be written in YAML, or the arguments of ``evaluate``.
    """
    written = map(str, _methods(spec))
    groups = {name.removeprefix(PREFIX) for name in written if name.startswith(PREFIX)}
    by_paper = {group.partition("@")[0] for group in groups} & PAPER_NAMES.keys()
    if len(by_paper) != 1:
        return {}
    (paper,) = by_paper
    found = {}
    for group in sorted(group for group in groups if group.partition("@")[0] == paper):
        at = group.removeprefix(paper)
        expressions = parse_methods([f"{PREFIX}{group}"])
        for expression, name in zip(expressions, PAPER_NAMES[paper], strict=True):
            found[expression.label] = f"{name}{at}"
    return found


def names_without_marks(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of a paper without the marks of its legend, for tables."""
    return {label: name.lstrip(MARKS) for label, name in paper_names(spec).items()}


def _methods(spec: Mapping[str, Any]) -> Iterator[Any]:
    models = spec.get("models")
    entries = [spec, *(models if isinstance(models, list) else [])]
    for entry in entries:
        methods = entry.get("methods") if isinstance(entry, Mapping) else None
        yield from methods if isinstance(methods, list | tuple) else ()
