"""Update the table of docs/methods.md from the registry and the tests' results: `make methods`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tables import replace_rows

from heatproof.baselines import BASELINES
from heatproof.methods import METHODS, Expression


def main(measured: Path, page: Path) -> None:
    largest: dict[str, dict[str, float]] = {}
    for method, source, deviation in json.loads(measured.read_text()):
        by_source = largest.setdefault(method, {})
        by_source[source] = max(by_source.get(source, 0.0), deviation)
    unknown = set(largest) - {entry.id for entry in (*METHODS, *BASELINES)}
    assert not unknown, f"measured, but not in the registry: {unknown}"
    names = [entry.id for entry in METHODS if entry.family != "control"]
    replace_rows(page, (row(name, largest.get(name, {})) for name in names))


def row(name: str, deviations: dict[str, float]) -> str:
    entry = METHODS[name]
    compared = [f"{source}: {deviation:.0e}" for source, deviation in deviations.items()]
    columns = (
        f"`{name}`",
        entry.family,
        entry.layer,
        "yes" if entry.signed else "no",
        passes(name),
        "; ".join(compared) or "by construction",
        entry.paper,
    )
    return f"| {' | '.join(columns)} |"


def passes(name: str) -> str:
    """State how many forward and backward passes a method takes per image."""
    forwards, backwards = Expression.parse(name).cost or (0, 0)
    counts = [f"{forwards} f"] if forwards else []
    if backwards:
        counts.append(f"{backwards} b")
    per_channel = " per channel" if "channels" in METHODS[name].needs else ""
    return (" + ".join(counts) or "–") + per_channel


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
