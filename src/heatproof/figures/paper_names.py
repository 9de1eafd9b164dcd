"""What a paper calls the methods of its group, for the figures of a run of that group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from heatproof.methods import GROUPS, parse_methods
from heatproof.methods.groups import PAPER_NAMES

PREFIX = "group:"
MARKS = "●■◆▲▼★○□ "  # of legends, which no LaTeX font has


def paper_names(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of a paper by label, if a spec has the group of one paper alone.

    Args:
        spec: A spec as it would be written in YAML, or the arguments of ``evaluate``.
    """
    named = {name for name in map(str, _methods(spec)) if name.startswith(PREFIX)}
    papers = [paper for paper in PAPER_NAMES if f"{PREFIX}{paper}" in named]
    if len(papers) != 1:
        return {}
    expressions = parse_methods(list(GROUPS[papers[0]]))
    labels = [expression.label for expression in expressions]
    return dict(zip(labels, PAPER_NAMES[papers[0]], strict=True))


def names_without_marks(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of a paper without the marks of its legend, for tables."""
    return {label: name.lstrip(MARKS) for label, name in paper_names(spec).items()}


def _methods(spec: Mapping[str, Any]) -> Iterator[Any]:
    models = spec.get("models")
    entries = [spec, *(models if isinstance(models, list) else [])]
    for entry in entries:
        methods = entry.get("methods") if isinstance(entry, Mapping) else None
        yield from methods if isinstance(methods, list | tuple) else ()
