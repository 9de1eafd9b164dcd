"""A bump chart: the rank of each method from one ranking to the next."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from heatproof.figures.charts import BumpChart, Ranks
from heatproof.figures.numbers import rank_text, shortened
from heatproof.figures.svg.elements import CHARACTER, label_width, svg, tag
from heatproof.figures.svg.marks import mark

ROW = 25.0
TOP = 44.0
BOTTOM = 6.0
WIDTH = 840.0  # if that leaves a reasonable gap between columns


def draw_bump(chart: BumpChart) -> Markup:
    """Draw ranks from column to column.

    Equal ranks are drawn one below the other; the number in a dot is the rank.
    """
    lines = chart.lines
    columns = chart.columns
    margin = 36 + label_width([line.label for line in lines])
    gap = _column_gap(len(columns), WIDTH - 2 * margin)
    x = [margin + gap * c for c in range(len(columns))]
    y = _heights(lines, len(columns))
    width = 2 * margin + gap * (len(columns) - 1)
    bottom = TOP + ROW * len(lines)
    parts = [tag("line", class_="grid", x1=at, x2=at, y1=TOP, y2=bottom) for at in x]
    for at, column in zip(x, columns, strict=True):
        for k, text in enumerate(_two_lines(column, gap)):
            y_text = 18 + 14 * k
            parts.append(tag("text", text, class_="column", x=at, y=y_text, text_anchor="middle"))
    for i, line in enumerate(lines):
        parts.append(_line(line, columns, x, [heights[i] for heights in y]))
    return svg(width, bottom + BOTTOM, chart.title, *parts, kind="bump")


def _column_gap(columns: int, room: float) -> float:
    least = 120.0 if columns <= 8 else 84.0
    return max(least, min(240.0, room / max(1, columns - 1)))


def _heights(lines: Sequence[Ranks], columns: int) -> list[dict[int, float]]:
    """Return, for each column, the height of each line."""
    heights = []
    for c in range(columns):
        order = sorted(range(len(lines)), key=lambda i: (lines[i].ranks[c], *lines[i].ranks, i))
        heights.append({line: TOP + ROW * (k + 0.5) for k, line in enumerate(order)})
    return heights


def _line(line: Ranks, columns: Sequence[str], x: Sequence[float], y: Sequence[float]) -> Markup:
    path = _path(x, y)
    tip = [line.label]
    beads = []
    for column, rank, at_x, at_y in zip(columns, line.ranks, x, y, strict=True):
        text = rank_text(rank)
        tip.append(f"{column}: rank {text}")
        beads.append(
            tag(
                "g",
                tag("circle", class_="bead", cx=at_x, cy=at_y, r=10.0),
                tag("text", text, class_="bead-text", x=at_x, y=at_y + 3.6, text_anchor="middle"),
            )
        )
    name = shortened(line.label)
    return mark(
        line.family,
        tag("path", class_="halo", d=path),
        tag("path", class_="line dashed" if line.family == "control" else "line", d=path),
        *beads,
        tag("text", name, class_="name", x=x[0] - 18, y=y[0] + 4, text_anchor="end"),
        tag("text", name, class_="name", x=x[-1] + 18, y=y[-1] + 4, text_anchor="start"),
        method=line.label,
        tip="\n".join(tip),
    )


def _path(x: Sequence[float], y: Sequence[float]) -> str:
    """Return a smooth curve through all points."""
    path = f"M{x[0]:.1f} {y[0]:.1f}"
    for c in range(len(x) - 1):
        middle = (x[c] + x[c + 1]) / 2
        path += (
            f"C{middle:.1f} {y[c]:.1f} {middle:.1f} {y[c + 1]:.1f} {x[c + 1]:.1f} {y[c + 1]:.1f}"
        )
    return path


def _two_lines(text: str, gap: float) -> list[str]:
    if len(text) * CHARACTER < gap - 10:
        return [text]
    separator = next((s for s in (" · ", "/", "-") if s in text), None)
    pieces = text.rsplit(separator, 1) if separator else [text]
    return [shortened(piece, 22) for piece in pieces if piece]
