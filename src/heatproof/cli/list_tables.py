"""Tables of what can be named in a spec: ``heatproof list``."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from heatproof.cli.terminal import console, print_plain

PAPER_WIDTH = 110  # characters that a table of methods with their papers needs
COLUMNS = {
    "methods": ("id", "family", "paper", "signed", "needs", "cost", "layers"),
    "protocols": ("id", "summary", "better", "range", "random_score", "target"),
    "baselines": ("id", "group", "summary", "needs"),
    "studies": ("id", "about"),
    "models": ("id", "size", "weights", "zero", "papers"),
}
NOTES = {
    "methods": [
        "cost: forward and backward passes per image, for the method alone at 224 px",
        "layers: where the method is defined; in brackets the default, used without @layer",
        "Descriptions and arguments: heatproof list methods --json",
        "Also: methods of other libraries, such as captum:Saliency; "
        "list them with: heatproof list methods --from captum (or grad-cam, torchcam, zennit)",
    ],
    "baselines": [
        "needs: what the baseline is prepared from before a run",
        "Arguments: heatproof list baselines --json",
    ],
    "protocols": ["Settings and their defaults: heatproof list protocols --json"],
    "models": [
        "weights: ship: with the package; train: a spec trains them on demand, "
        "{train: paperbirds/resnet18}; give: you provide them, {name: bagnet33, weights: FILE}, "
        "or weights: download",
        "zero: the colour of the zero baseline",
        "Layers, preprocessing and URLs: heatproof list models --json and docs/models.md",
        "Also: any torchvision:NAME and timm:NAME (extra vision), and file:my_model.py:build",
    ],
}


def print_library(library: str, entries: list[dict[str, Any]]) -> None:
    """Print the methods of a library with their arguments, and why the others are none."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("arguments")
    for entry in entries:
        if not entry["refused"]:
            table.add_row(entry["id"], _format(entry["arguments"]))
    console.print(table)
    for entry in entries:
        if entry["refused"]:
            print_plain(f"not by name: {entry['id']} {entry['refused']}")
    print_plain(f"{library} {entries[0]['version']}; defaults are those that a name has")


def print_listing(kind: str, entries: list[dict[str, Any]]) -> None:
    """Print everything of one kind as a table with notes."""
    columns = list(COLUMNS.get(kind, entries[0]))
    if "paper" in columns and console.width < PAPER_WIDTH:
        columns.remove("paper")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), no_wrap=column == "id")
    for entry in entries:
        table.add_row(*(_format(_value(entry, column)) for column in columns))
    console.print(table)
    needs: dict[str, str] = {}
    for entry in entries:
        needs |= entry.get("needs_explained", {})
    if needs:
        meanings = "; ".join(f"{word}: {meaning}" for word, meaning in sorted(needs.items()))
        console.print(f"needs: {meanings}", markup=False, highlight=False)
    for note in NOTES.get(kind, ()):
        console.print(note, markup=False, highlight=False)


def _value(entry: dict[str, Any], column: str) -> Any:
    value = entry.get(column)
    if column == "range":
        return "that of the score" if value is None else f"{value[0]:g} … {value[1]:g}"
    if column == "random_score":
        return "depends" if value is None else f"{value:g}"
    return f"any ({entry['layer']})" if value == "any" else value


def _format(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value).partition("\n\n")[0]
