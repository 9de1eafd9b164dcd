"""Update the tables of docs/methods.md from the registry and the tests' results: `make methods`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

from tables import replace_rows

from heatproof.baselines import BASELINES
from heatproof.methods import METHODS, Expression


class Comparison(NamedTuple):
    """What was compared, and with which source."""

    method: str
    expression: str
    source: str


def main(measured: Path, page: Path) -> None:
    largest: dict[Comparison, float] = {}
    for text, source, deviation in json.loads(measured.read_text()):
        if text in BASELINES:
            continue
        expression = Expression.parse(text)
        label = expression.at(expression.entry.layer).label
        comparison = Comparison(expression.entry.id, label, source)
        largest[comparison] = max(largest.get(comparison, 0.0), deviation)
    names = [entry.id for entry in METHODS if entry.family != "control"]
    replace_rows(page, (method_row(name, largest) for name in names))
    compared = sorted(largest, key=lambda comparison: names.index(comparison.method))
    replace_rows(page, (comparison_row(c, largest[c]) for c in compared), table=1)


def method_row(name: str, largest: dict[Comparison, float]) -> str:
    entry = METHODS[name]
    settings = {c.expression for c in largest if c.method == name}
    compared = "other settings" if settings else "by construction"
    columns = (
        f"`{name}`",
        entry.family,
        entry.layer,
        "yes" if entry.signed else "no",
        passes(name),
        "as it is" if name in settings else compared,
        entry.paper,
    )
    return f"| {' | '.join(columns)} |"


def comparison_row(comparison: Comparison, deviation: float) -> str:
    expression = comparison.expression.replace("|", "\\|")
    return f"| `{expression}` | {comparison.source} | {deviation:.0e} |"


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
