"""Draw the tables of docs/results as pictures: `python docs/result_pictures.py docs`.

A table has a panel for every column of numbers, with intervals where it has them, and a row for
every line. docs/make_results.py draws a table when it writes it.
"""

from __future__ import annotations

import io
import sys
import textwrap
from collections.abc import Container
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

BLUE, GREY = "#1565c0", "#999999"
CONTROLS = {"random", "constant", "edges", "center", "object"}
MOST_PANELS = 9
CELL = r"[−+-]?[\d.]+(?: \(.*\))?"
NUMBER = r"^([−+-]?[\d.]+)(?: \(([−+-]?[\d.]+) to ([−+-]?[\d.]+)\))?"
ESTIMATES = ("a - b",)  # without an interval, but with a p-value
BESIDE = {
    "n",
    "maps",
    "p",
    "length of its embedding",
    "distance, raw",
    "entropy of the bare baseline",
}


def panels_of(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return values with the ends of their intervals ``(3, N)``, by the name of the column."""
    found = {}
    for name in table:
        if name in BESIDE or str(name).endswith((" low", " high", " note")):
            continue
        if name in ESTIMATES or f"{name} low" in table:
            ends = [table.get(f"{name}{end}", table[name]) for end in ("", " low", " high")]
            found[name] = np.stack([pd.to_numeric(part, errors="coerce") for part in ends])
        else:
            cells = table[name].astype(str).str.replace("−", "-").str.extract(NUMBER)
            values = cells.apply(pd.to_numeric).to_numpy(float).T
            if table[name].astype(str).str.fullmatch(CELL).mean() > 0.5:
                found[name] = values
    return dict(list(found.items())[:MOST_PANELS])


def labels_of(table: pd.DataFrame, panels: Container[str]) -> list[str]:
    """Join the columns of text that say what a line is about."""
    text = [c for c in table.columns[:4] if not pd.api.types.is_numeric_dtype(table[c])]
    table = table[text].fillna("")
    changed = {c for c in text if table[c].str.contains(" → ").any()}
    names = [c for c in text if c not in changed and c not in panels]
    if {"a", "b"} <= set(names):
        others = [c for c in names if c not in ("a", "b")]
        return [
            f"{' '.join(row[c] for c in others)}: {row['a']} − {row['b']}"
            for row in table.to_dict("records")
        ]
    return [" · ".join(filter(None, (row[c] for c in names))) for row in table.to_dict("records")]


def draw_table(source: Path, out: Path) -> None:
    """Draw one table; controls are grey, and so are differences that are not significant.

    Args:
        source: A CSV file.
        out: The PNG file that is written.
    """
    table = pd.read_csv(source)
    panels = panels_of(table)
    labels = labels_of(table, panels)
    strong = ~table[table.columns[0]].isin(CONTROLS)
    for column in ("method", "here"):
        strong = ~table[column].isin(CONTROLS) if column in table else strong
    strong = table["p"] <= 0.05 if "p" in table else strong
    colors = np.where(strong, BLUE, GREY)
    plt.rcParams.update({"font.size": 8, "axes.titlesize": 8})
    alike = all(np.nanmax(np.abs(values)) <= 1 for values in panels.values())
    width = 2.4 + max(1.3, 6.6 / len(panels)) * len(panels)
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(width, 0.8 + 0.17 * len(table)),
        dpi=110,
        sharex=alike,
        sharey=True,
        squeeze=False,
    )
    y = np.arange(len(table))[::-1]
    for ax, (name, (value, low, high)) in zip(axes[0], panels.items(), strict=True):
        ax.hlines(y, low, high, color=colors, lw=1)
        ax.scatter(value, y, c=colors, s=12, zorder=3)
        if (value < 0).any():
            ax.axvline(0, color=GREY, lw=0.6)
        title = "difference (blue: p ≤ 0.05)" if name in ESTIMATES else name.removesuffix(".1")
        ax.set_title(textwrap.fill(title, 90 // len(panels)))
        ax.set_yticks(y, labels)
        ax.tick_params(labelsize=7, length=2)
        ax.grid(axis="x", lw=0.3)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.set_ylim(-0.8, len(table) - 0.2)
    figure.tight_layout(w_pad=0.5)
    save(figure, out)


def save(figure: Figure, out: Path) -> None:
    """Write a figure with few colours, so that the file stays small."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", pad_inches=0.05)
    plt.close(figure)
    out.parent.mkdir(parents=True, exist_ok=True)
    drawn = Image.open(buffer).convert("RGB")
    drawn.quantize(32, dither=Image.Dither.NONE).save(out, optimize=True)


def main(docs: Path) -> None:
    for source in sorted((docs / "results").rglob("*.csv")):
        name = source.relative_to(docs / "results").with_suffix(".png")
        draw_table(source, docs / "img/results" / name)
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
