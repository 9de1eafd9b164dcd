"""The numbers that papers have published, and the names of the networks they are of."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath

import yaml

from heatproof.errors import unknown
from heatproof.plan.studies import PUBLISHED, STUDIES

PREFIX = "published:"


@dataclass(frozen=True)
class Entry:
    """A published number."""

    row: str
    quantity: str
    model: str
    protocol: str
    method: str
    value: float
    digits: int
    paper: str = ""
    spread: float = math.nan  # printed beside the value as ±

    @property
    def printed(self) -> str:
        """The number as the paper prints it."""
        spread = f" ± {self.spread:.{self.digits}f}" if math.isfinite(self.spread) else ""
        return f"{self.value:.{self.digits}f}{spread}"

    @property
    def rounding(self) -> float:
        """Half of the last printed digit."""
        return 0.5 * 10**-self.digits


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper.

    Attributes:
        name: Such as ``hesse2024/table6``.
        title: What it shows.
        data: What it was measured on.
        study: The study that has its numbers.
        images: How many images or maps a number is a mean over.
        entries: Its numbers.
    """

    name: str
    title: str
    data: str
    study: str
    images: int
    entries: tuple[Entry, ...]


@cache
def published_tables() -> dict[str, PublishedTable]:
    """Return the tables whose numbers ship with the package, by name."""
    facts = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    entries: dict[str, list[Entry]] = {name: [] for name in facts}
    for path in sorted(STUDIES.glob("*/published.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                entry = Entry(
                    row=line["row"],
                    quantity=line["quantity"],
                    model=line["model"],
                    protocol=line["protocol"],
                    method=line["method"],
                    value=float(line["value"]),
                    digits=int(line["digits"]),
                    paper=path.parent.name,
                    spread=float(line.get("spread") or math.nan),
                )
                entries[f"{path.parent.name}/{line['table']}"].append(entry)
    return {
        name: PublishedTable(name, **facts[name], entries=tuple(entries[name])) for name in facts
    }


def published_table(name: str) -> PublishedTable:
    """Return a published table by name, with or without ``published:``; raises HeatproofError."""
    name = name.removeprefix(PREFIX)
    tables = published_tables()
    if name not in tables:
        raise unknown("published table", name, tables)
    return tables[name]


def network_name(paper: str, model: str) -> str:
    """Return how a network of a paper is named after it: ``hesse2024:resnet50``."""
    kind, _, name = model.partition(":")
    if kind == "file":
        name = PurePath(name.partition(":")[0]).stem
    return f"{paper}:{name or model}" if paper else model


def network_of(text: str) -> str:
    """Return the name that tables have for a network of a paper.

    Args:
        text: A paper and its network, such as ``hesse2024:resnet50``, or the name in its tables,
            such as ``torchvision:resnet50``.

    Raises:
        HeatproofError: If no paper has it.
    """
    models = {(t.name.partition("/")[0], e.model) for t in _tables() for e in t.entries}
    if text in {model for _, model in models}:
        return text
    names = {network_name(paper, model): model for paper, model in models}
    if text not in names:
        of_paper = [name for name in names if name.startswith(f"{text.partition(':')[0]}:")]
        raise unknown("network of a paper", text, of_paper or names)
    return names[text]


def _tables() -> Iterable[PublishedTable]:
    return published_tables().values()
