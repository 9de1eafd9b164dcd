"""Writes docs/methods.md from the registry and from what the tests measured: `make methods`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from heatproof.baselines import BASELINES
from heatproof.methods import METHODS, Expression

HEAD = """# Methods

![Two birds, explained by every method and control](img/methods.png)

Made by `make methods` from the registry and a run of the tests. The deviation is the largest absolute difference of a value of a map
from the other source's, over all networks and layers compared, as a share of that source's largest value. Where no other source has
the method, or none that is right, tests check what is true of it by construction (closed forms on linear models, conservation, order
on additive models). Passes are per image: `f` forward, `b` backward with its forward.

| method | family | explains at | signed | passes | compared with: largest deviation | paper |
| --- | --- | --- | --- | --- | --- | --- |
"""


def main(measured: Path, out: Path) -> None:
    largest: dict[str, dict[str, float]] = {}
    for method, against, share in json.loads(measured.read_text()):
        known = largest.setdefault(method, {})
        known[against] = max(known.get(against, 0.0), share)
    unknown = set(largest) - {e.id for e in (*METHODS, *BASELINES)}
    assert not unknown, f"measured, but not in the registry: {unknown}"
    out.write_text(
        HEAD + "".join(line(e.id, largest.get(e.id, {})) for e in METHODS if e.family != "control"),
        encoding="utf-8",
    )


def line(name: str, compared: dict[str, float]) -> str:
    entry, (forwards, backwards) = METHODS[name], Expression.parse(name).cost or (0, 0)
    passes = (
        " + ".join(f"{n} {kind}" for n, kind in ((forwards, "f"), (backwards, "b")) if n) or "–"
    )
    each = " a channel" if "channels" in entry.needs else ""
    told = (
        "; ".join(f"{against}: {share:.0e}" for against, share in compared.items())
        or "by construction"
    )
    signed = "yes" if entry.signed else "no"
    return f"| `{name}` | {entry.family} | {entry.layer} | {signed} | {passes}{each} | {told} | {entry.paper} |\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
