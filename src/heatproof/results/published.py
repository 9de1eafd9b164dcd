"""A result beside the published numbers of a paper, and what is said of its networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heatproof.analysis import published
from heatproof.analysis.published_lines import Comparison
from heatproof.analysis.published_tables import network_of, published_table
from heatproof.errors import HeatproofError, unknown
from heatproof.results.result import JSON_SCHEMA, Result
from heatproof.results.tables import records, write_json
from heatproof.runs.format import SaidNetwork, SameAs


def compare_published(
    result: Result | str | Path, table: str, *, same_as: str | Mapping[str, str] | None = None
) -> Comparison:
    """Set a result beside a published table.

    Args:
        result: A result or a run directory.
        table: The name of the table, such as ``hesse2024/table6``.
        same_as: Which network of a paper a model is, such as ``hesse2024:resnet50``, or a network
            for each of several models by name. It is recorded in the run, and taken back by an
            empty text.

    Returns:
        The numbers of both, with a verdict where they can be compared.

    Raises:
        HeatproofError: If a name is unknown, or the run has no number of the table.
    """
    opened = result if isinstance(result, Result) else Result.load(result)
    wanted = published_table(table)
    if same_as is not None:
        texts = [same_as] if isinstance(same_as, str) else [f"{m}={n}" for m, n in same_as.items()]
        record_same_as(opened, texts, "same_as")
    return published.compare_published(opened, wanted)


def record_same_as(result: Result, texts: Sequence[str], by: str) -> None:
    """Record in a run which of its models are networks of papers.

    Args:
        result: The result.
        texts: ``MODEL=PAPER:NETWORK``, or a network for the only model; ``MODEL=`` takes it back.
        by: How it is said, such as ``--as``.

    Raises:
        HeatproofError: If a model or a network is unknown, or the run cannot be written to.
    """
    if not texts:
        return
    said = {s.model: s for s in result.store.same_as().networks}
    for text in texts:
        model, _, name = text.rpartition("=")
        if not model and len(result.models) > 1:
            raise HeatproofError(
                f"{by} {text}: the run has several models; say which one: {result.models[0]}={text}"
            )
        model = model or result.models[0]
        if model not in result.models:
            raise unknown("model", model, result.models)
        said.pop(model, None)
        facts = result.facts(model)
        if facts is None:
            raise HeatproofError(f"{result.store.name} has no record of the weights of {model}")
        if name:
            said[model] = SaidNetwork(
                model=model, fingerprint=facts.fingerprint, network=network_of(name), by=by
            )
    result.store.write_same_as(SameAs(networks=list(said.values())))


def published_json(comparisons: Sequence[Comparison], path: str | Path | None = None) -> str:
    """Return comparisons with published tables as JSON, and write it to a file if one is named."""
    return write_json(
        {"schema": JSON_SCHEMA, "published": [_content(found) for found in comparisons]}, path
    )


def _content(found: Comparison) -> dict[str, Any]:
    return {
        "table": found.table.name,
        "title": found.table.title,
        "data": found.table.data,
        "same_as": [said.model_dump() for said in found.same_as],
        "lines": records(found.to_frame()),
        "correlations": [
            {
                "model": one.model,
                "of": one.of,
                "over": one.over,
                **{k: v if math.isfinite(v) else None for k, v in one.estimate._asdict().items()},
                "n": one.number,
            }
            for one in found.correlations
        ],
        "missing": found.missing,
    }
