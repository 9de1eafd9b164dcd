"""Figures as SVG, written by hand: they print, scale, need no script, and each is a file of its own as well."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup, escape

from heatproof.report.palette import FAMILIES, diverging_colour, family_class

STYLE = (Path(__file__).parent / "assets" / "chart.css").read_text(encoding="utf-8")
CHARACTER = 6.9  # width of one at 12 px
LONGEST = 24  # characters of a label; the rest is in the tip
LONG = 40  # where methods differ in their arguments and layers


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """An element; everything that is not markup already is escaped."""
    spelled = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(v))}"'
        for key, v in attributes.items()
        if v is not None
    )
    inside = "".join(escape(c) for c in children)
    return Markup(f"<{name}{spelled}>{inside}</{name}>")


def _short(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def number(value: float | None, digits: int = 3) -> str:
    """With a real minus; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}"
    return ("−" + text[1:] if float(text) else text[1:]) if text.startswith("-") else text


def interval(low: float, high: float, digits: int = 3) -> str:
    """One sample has none."""
    return (
        f"{number(low, digits)} to {number(high, digits)}" if math.isfinite(low) else "no interval"
    )


def shortened(text: str, length: int = LONGEST) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def svg(width: float, height: float, title: str, *children: str, kind: str) -> Markup:
    return tag(
        "svg",
        tag("title", title),
        *children,
        xmlns="http://www.w3.org/2000/svg",
        class_=f"chart {kind}",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        role="img",
    )


def standalone(figure: Markup) -> str:
    """The same figure with its colours inside, for papers and slides."""
    light = {f"--{family_class(name)}": family.light for name, family in FAMILIES.items()}
    light |= {
        "--ink": "#1d1c24",
        "--soft": "#5f5e69",
        "--line": "#dcdae2",
        "--card": "#ffffff",
        "--hover": "#f1eff6",
    }
    style = re.sub(r"var\((--[\w-]+)\)", lambda found: light[found[1]], STYLE)
    opening, rest = str(figure).split(">", 1)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{opening}><style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{rest}\n'


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def around(cls, values: Sequence[float], most: float = 6.5) -> Axis:
        """Room for all of them, with round ticks, and not too many."""
        known = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
        low, high = min(known), max(known)
        spread = high - low or max(abs(high), 1.0)
        low, high = low - 0.04 * spread, high + 0.04 * spread
        step = next(s for s in _round_steps(spread) if (high - low) / s <= most)
        return cls(
            low,
            high,
            tuple(
                round(i * step, 10)
                for i in range(math.ceil(low / step), math.floor(high / step) + 1)
            ),
        )

    def place(self, value: float, left: float, right: float) -> float:
        return left + (value - self.low) / (self.high - self.low) * (right - left)

    @property
    def digits(self) -> int:
        return next(
            (d for d in range(4) if all(abs(t - round(t, d)) < 1e-9 for t in self.ticks)), 4
        )


def _round_steps(spread: float) -> list[float]:
    power = 10.0 ** (math.floor(math.log10(spread)) - 1)
    return [power * m for m in (1, 2, 5, 10, 20, 50, 100)]


@dataclass(frozen=True)
class Mark:
    """One method in a ranking; `note` stands where there is no score."""

    label: str
    family: str
    mean: float
    low: float
    high: float
    rank: float
    tip: str
    note: str = ""


def symbol(family: str, x: float, y: float, size: float = 4.6) -> Markup:
    """Full dots; hollow ones for controls, a diamond for your own."""
    if family == "yours":
        r = size * 1.3
        return tag(
            "path",
            class_="dot",
            d=f"M{x:.1f} {y - r:.1f}L{x + r:.1f} {y:.1f}L{x:.1f} {y + r:.1f}L{x - r:.1f} {y:.1f}Z",
        )
    return tag(
        "circle",
        class_="dot hollow" if family == "control" else "dot",
        cx=x,
        cy=y,
        r=size - 0.5 if family == "control" else size,
    )


def ranking(
    marks: Sequence[Mark], axis: Axis, random_score: float | None, title: str, room: float = 196
) -> Markup:
    """Dot and whisker, best first; the dashed line is what a map that knows nothing scores, where that is known."""
    row, top, bottom = 24.0, 26.0, 30.0
    left = 36 + min(LONGEST, max([11, *(len(m.label) for m in marks)])) * CHARACTER
    right = left + room
    width, height = right + 52, top + row * len(marks) + bottom
    floor = height - bottom
    parts = _ticks(axis, left, right, top, floor)
    if random_score is not None:
        x = axis.place(random_score, left, right)
        parts += [
            tag("line", class_="random", x1=x, x2=x, y1=top, y2=floor + 6),
            tag(
                "text",
                "random map",
                class_="tick",
                x=min(max(x, left + 20), right - 30),
                y=floor + 20,
                text_anchor="middle",
            ),
        ]
    for i, mark in enumerate(marks):
        parts.append(_ranked(mark, axis, left, right, width, top + row * (i + 0.5), row))
    return svg(width, height, title, *parts, kind="ranking")


def _ranked(
    mark: Mark, axis: Axis, left: float, right: float, width: float, y: float, row: float
) -> Markup:
    scored = math.isfinite(mark.mean)
    inside = [
        tag("rect", class_="row", x=0, y=y - row / 2, width=width, height=row, rx=4),
        tag(
            "text",
            f"{mark.rank:.0f}" if scored else "–",
            class_="place",
            x=20,
            y=y + 4,
            text_anchor="end",
        ),
        tag("text", shortened(mark.label), class_="name", x=28, y=y + 4),
    ]
    if scored:
        inside += [
            *_dot_and_whisker(mark.family, mark.mean, mark.low, mark.high, axis, left, right, y),
            tag("text", number(mark.mean), class_="value", x=width - 4, y=y + 4, text_anchor="end"),
        ]
    else:
        inside.append(tag("text", mark.note, class_="note", x=left + 4, y=y + 4))
    return tag(
        "g",
        *inside,
        class_=f"mark {family_class(mark.family)}",
        data_method=mark.label,
        data_tip=mark.tip,
    )


def _ticks(axis: Axis, left: float, right: float, top: float, floor: float) -> list[Markup]:
    parts = []
    for tick in axis.ticks:
        x = axis.place(tick, left, right)
        parts += [
            tag("line", class_="grid", x1=x, x2=x, y1=top, y2=floor),
            tag(
                "text",
                number(tick, axis.digits),
                class_="tick",
                x=x,
                y=top - 9,
                text_anchor="middle",
            ),
        ]
    return parts


def _dot_and_whisker(
    family: str,
    mean: float,
    low: float,
    high: float,
    axis: Axis,
    left: float,
    right: float,
    y: float,
    size: float = 4.6,
) -> list[Markup]:
    ends = (low, high) if math.isfinite(low) else (mean, mean)  # one sample has no interval
    from_, to = (axis.place(v, left, right) for v in ends)
    return [
        tag("line", class_="whisker", x1=from_, x2=to, y1=y, y2=y),
        symbol(family, axis.place(mean, left, right), y, size),
    ]


@dataclass(frozen=True)
class Spot:
    value: float
    low: float
    high: float
    tip: str


@dataclass(frozen=True)
class Panel:
    """A column of a lattice."""

    title: str
    axis: Axis
    line: float | None = None  # dashed, where nothing is known or nothing differs


@dataclass(frozen=True)
class Row:
    label: str
    family: str
    cells: tuple[Spot | str, ...]  # one a panel; a word where there is no number


def lattice(
    panels: Sequence[Panel],
    rows: Sequence[Row],
    title: str,
    digits: int = 2,
    longest: int = LONGEST,
) -> Markup:
    """TrainBatch that run through several panels, each with its axis: dot, whisker and number."""
    row, top, bottom, gap = 24.0, 50.0, 8.0, 22.0
    begin = 16 + min(longest, max(len(r.label) for r in rows)) * CHARACTER
    spans = len(panels) <= 4  # room for the interval in figures
    room, value = (
        max(100.0, min(240.0, 960 / len(panels) - 140)),
        40 + (4 + 5.3 * (2 * digits + 10)) * spans,
    )
    lefts = [begin + 12 + i * (room + value + gap) for i in range(len(panels))]
    width, height = lefts[-1] + room + value + 4, top + row * len(rows) + bottom
    parts = _columns(panels, lefts, room, value, top, height - bottom)
    for i, line in enumerate(rows):
        y = top + row * (i + 0.5)
        inside = [
            tag("rect", class_="row", x=0, y=y - row / 2, width=width, height=row, rx=4),
            tag("text", shortened(line.label, longest), class_="name", x=8, y=y + 4),
        ]
        for panel, left, cell in zip(panels, lefts, line.cells, strict=True):
            inside += _cell(
                line.family, cell, panel.axis, left, left + room, value, y, digits, spans
            )
        parts.append(
            tag("g", *inside, class_=f"mark {family_class(line.family)}", data_method=line.label)
        )
    return svg(width, height, title, *parts, kind="lattice")


def _columns(
    panels: Sequence[Panel],
    lefts: Sequence[float],
    room: float,
    value: float,
    top: float,
    floor: float,
) -> list[Markup]:
    """The title, the axis and the dashed line of each panel."""
    parts = []
    for panel, left in zip(panels, lefts, strict=True):
        parts.append(
            tag(
                "text",
                shortened(panel.title, int((room + value) / CHARACTER)),
                class_="column",
                x=left,
                y=18,
            )
        )
        parts += _ticks(panel.axis, left, left + room, top, floor)
        if panel.line is not None:
            x = panel.axis.place(panel.line, left, left + room)
            parts.append(tag("line", class_="random", x1=x, x2=x, y1=top, y2=floor))
    return parts


def _cell(
    family: str,
    cell: Spot | str,
    axis: Axis,
    left: float,
    right: float,
    value: float,
    y: float,
    digits: int,
    spans: bool,
) -> list[Markup]:
    if isinstance(cell, str):
        return [tag("text", cell, class_="note", x=left, y=y + 4)]
    span = tag("text", interval(cell.low, cell.high, digits), class_="span", x=right + 44, y=y + 4)
    return [
        tag(
            "g",
            tag(
                "rect",
                class_="row",
                x=left - 8,
                y=y - 12,
                width=right - left + value + 8,
                height=24,
            ),
            *_dot_and_whisker(family, cell.value, cell.low, cell.high, axis, left, right, y, 3.8),
            tag(
                "text",
                number(cell.value, digits),
                class_="value",
                x=right + 38,
                y=y + 4,
                text_anchor="end",
            ),
            *([span] if spans else []),
            data_tip=cell.tip,
        )
    ]


@dataclass(frozen=True)
class Line:
    label: str
    family: str
    ranks: tuple[float, ...]  # one a column


def bump(columns: Sequence[str], lines: Sequence[Line], title: str) -> Markup:
    """Ranks from column to column. Equal ranks are drawn one below the other; the number in the dot is the rank."""
    row, top = 25.0, 44.0
    gutter = 36 + min(LONGEST, max(len(line.label) for line in lines)) * CHARACTER
    gap = max(
        120.0 if len(columns) <= 8 else 84.0,
        min(240.0, (840 - 2 * gutter) / max(1, len(columns) - 1)),
    )
    width, height = 2 * gutter + gap * (len(columns) - 1), top + row * len(lines) + 6
    order = [
        sorted(range(len(lines)), key=lambda i: (lines[i].ranks[c], *(lines[i].ranks), i))
        for c in range(len(columns))
    ]
    y = [{line: top + row * (place + 0.5) for place, line in enumerate(column)} for column in order]
    x = [gutter + gap * c for c in range(len(columns))]
    parts = [tag("line", class_="grid", x1=at, x2=at, y1=top, y2=height - 6) for at in x]
    for c, column in enumerate(columns):
        for k, piece in enumerate(_two_lines(column, gap)):
            parts.append(
                tag("text", piece, class_="column", x=x[c], y=18 + 14 * k, text_anchor="middle")
            )
    for i, line in enumerate(lines):
        path = f"M{x[0]:.1f} {y[0][i]:.1f}" + "".join(
            f"C{x[c] + gap / 2:.1f} {y[c][i]:.1f} {x[c] + gap / 2:.1f} {y[c + 1][i]:.1f} {x[c + 1]:.1f} {y[c + 1][i]:.1f}"
            for c in range(len(columns) - 1)
        )
        ends = [(x[0] - 18, y[0][i], "end"), (x[-1] + 18, y[-1][i], "start")]
        tip = f"{line.label}\n" + "\n".join(
            f"{c}: rank {rank_text(r)}" for c, r in zip(columns, line.ranks, strict=True)
        )
        parts.append(
            tag(
                "g",
                tag("path", class_="halo", d=path),
                tag("path", class_="line dashed" if line.family == "control" else "line", d=path),
                *(
                    tag(
                        "g",
                        tag("circle", class_="bead", cx=x[c], cy=y[c][i], r=10.0),
                        tag(
                            "text",
                            rank_text(r),
                            class_="bead-text",
                            x=x[c],
                            y=y[c][i] + 3.6,
                            text_anchor="middle",
                        ),
                    )
                    for c, r in enumerate(line.ranks)
                ),
                *(
                    tag(
                        "text",
                        shortened(line.label),
                        class_="name",
                        x=at,
                        y=place + 4,
                        text_anchor=anchor,
                    )
                    for at, place, anchor in ends
                ),
                class_=f"mark {family_class(line.family)}",
                data_method=line.label,
                data_tip=tip,
            )
        )
    return svg(width, height, title, *parts, kind="bump")


def rank_text(rank: float) -> str:
    return f"{rank:.0f}" if abs(rank - round(rank)) < 1e-9 else f"{rank:.1f}"


def _two_lines(text: str, gap: float) -> list[str]:
    if len(text) * CHARACTER < gap - 10:
        return [text]
    mark = next((mark for mark in (" · ", "/", "-") if mark in text), "")
    head, _, tail = text.rpartition(mark) if mark else ("", "", text)
    return [shortened(p, 22) for p in (head, tail) if p]


def ranks(
    across: Sequence[float], up: Sequence[float], labels: tuple[str, str], title: str
) -> Markup:
    """A dot a patch by its two ranks; on the dashed line where they are the same."""
    low, high, most = 28.0, 190.0, max(2, len(across))
    place = [low + (high - low) * (rank - 1) / (most - 1) for rank in across]
    rise = [208 - low - (high - low) * (rank - 1) / (most - 1) for rank in up]
    side = math.isqrt(len(across))
    parts = [
        tag("line", class_="random", x1=low, y1=208 - low, x2=high, y2=208 - high),
        tag("text", f"{labels[0]} →", class_="tick", x=high + 10, y=202.0, text_anchor="end"),
        tag("text", f"↑ {labels[1]}", class_="tick", x=9.0, y=15.0),
    ]
    for i, (x, y) in enumerate(zip(place, rise, strict=True)):
        tip = f"patch {i // side + 1}, {i % side + 1}: rank {rank_text(across[i])} by the {labels[0]}, {rank_text(up[i])} by the {labels[1]}"
        parts.append(
            tag(
                "circle",
                class_="patch-dot",
                cx=x,
                cy=y,
                r=5.0 if most < 30 else 3.0,
                data_tip=tip,
                data_twin=f"patch {i}",
            )
        )
    return svg(208, 208, title, *parts, kind="ranks")


@dataclass(frozen=True)
class Point:
    """A mark with its interval upwards; `after` of another in the same series."""

    x: float
    spot: Spot
    family: str
    label: str  # none written where it is empty
    series: str
    large: bool


def scatter(
    points: Sequence[Point],
    across: Axis,
    up: Axis,
    titles: tuple[str, str],
    title: str,
    unit: str = "",
    fit: Callable[[float], float] | None = None,
) -> Markup:
    """Points of one series are joined, from small to large; `fit` is a straight line."""
    left, right, top, floor, width = 52.0, 470.0, 22.0, 330.0, 640.0
    place = {
        p: (across.place(p.x, left, right), up.place(p.spot.value, floor, top)) for p in points
    }
    parts = [
        tag("text", f"↑ {titles[1]}", class_="tick", x=8, y=12),
        tag("text", f"{titles[0]} →", class_="tick", x=right, y=floor + 36, text_anchor="end"),
    ]
    for tick in across.ticks:
        x = across.place(tick, left, right)
        parts.append(
            tag(
                "text",
                f"{number(tick, across.digits)}{unit}",
                class_="tick",
                x=x,
                y=floor + 18,
                text_anchor="middle",
            )
        )
        parts.append(tag("line", class_="grid", x1=x, x2=x, y1=top, y2=floor))
    if fit:
        begin, end = (_within(fit, x, across, up) for x in (across.low, across.high))
        x1, x2 = (across.place(x, left, right) for x in (begin, end))
        y1, y2 = (up.place(fit(x), floor, top) for x in (begin, end))
        parts.append(tag("line", class_="random", x1=x1, y1=y1, x2=x2, y2=y2))
    for tick in up.ticks:
        y = up.place(tick, floor, top)
        parts.append(
            tag(
                "text",
                number(tick, up.digits),
                class_="tick",
                x=left - 8,
                y=y + 4,
                text_anchor="end",
            )
        )
        parts.append(tag("line", class_="grid", x1=left, x2=right, y1=y, y2=y))
    for small in (p for p in points if not p.large):
        for large in (p for p in points if p.large and p.series == small.series):
            (x1, y1), (x2, y2) = place[small], place[large]
            parts.append(tag("line", class_="join", x1=x1, y1=y1, x2=x2, y2=y2))
    named = sorted((p for p in points if p.label), key=lambda p: place[p][1])
    heights = spread([place[p][1] for p in named], 15.0, top + 4, floor)
    for point in points:
        x, y = place[point]
        low, high = (
            up.place(v if math.isfinite(v) else point.spot.value, floor, top)
            for v in (point.spot.low, point.spot.high)
        )
        inside = [
            tag("line", class_="whisker", x1=x, x2=x, y1=low, y2=high),
            symbol(point.family, x, y, 5.4 if point.large else 3.2),
        ]
        if point.label:
            at = heights[named.index(point)]
            inside.append(
                tag("path", class_="leader", d=f"M{x + 7:.1f} {y:.1f}L{right + 6:.1f} {at:.1f}")
            )
            inside.append(
                tag("text", shortened(point.label, 24), class_="name", x=right + 10, y=at + 4)
            )
        parts.append(
            tag("g", *inside, class_=f"mark {family_class(point.family)}", data_tip=point.spot.tip)
        )
    return svg(width, floor + 44, title, *parts, kind="scatter-plot")


def _within(line: Callable[[float], float], x: float, across: Axis, up: Axis) -> float:
    """The nearest place to x at which the line is inside the figure."""
    inside = [
        at
        for at in (across.low + (across.high - across.low) * k / 200 for k in range(201))
        if up.low <= line(at) <= up.high
    ]
    return min(inside, key=lambda at: abs(at - x), default=x)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Sorted places pushed apart until they are `gap` from each other, within the ends as far as there is room."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + gap if found else low))
    limit = max(high, low + gap * (len(found) - 1))
    for i in reversed(range(len(found))):
        found[i] = min(found[i], limit)
        limit = found[i] - gap
    return found


def grid(side: int) -> Markup:
    """The patches' borders, to lie over a picture."""
    lines = [
        tag("path", d=f"M{k} 0V{side}M0 {k}H{side}", vector_effect="non-scaling-stroke")
        for k in range(1, side)
    ]
    return tag(
        "svg",
        *lines,
        class_="grid-lines",
        viewBox=f"0 0 {side} {side}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def patches(values: Sequence[float], scale: float, title: str) -> Markup:
    """A square grid of numbers in the diverging colours, row by row; written out where there is room."""
    side, cell = math.isqrt(len(values)), 160 / math.isqrt(len(values))
    parts = []
    for i, value in enumerate(values):
        x, y = cell * (i % side), cell * (i // side)
        written = f"patch {i // side + 1}, {i % side + 1}: {number(value)}"
        colour = diverging_colour(value, scale)
        parts.append(
            tag(
                "rect",
                class_="patch",
                x=x,
                y=y,
                width=cell,
                height=cell,
                fill=colour,
                data_tip=written,
                data_twin=f"patch {i}",
            )
        )
        if side <= 5:
            dark = scale > 0 and abs(value) > 0.6 * scale
            label = number(value, 1 if scale >= 1 else 2)
            parts.append(
                tag(
                    "text",
                    label,
                    class_="in-patch on-dark" if dark else "in-patch",
                    x=x + cell / 2,
                    y=y + cell / 2 + 4,
                    text_anchor="middle",
                )
            )
    return svg(160, 160, title, *parts, kind="patches")


@dataclass(frozen=True)
class Box:
    """The quartiles, and whiskers to the last values within one and a half boxes of them."""

    whiskers: tuple[float, float]
    quartiles: tuple[float, float, float]
    mean: float
    tip: str

    @classmethod
    def of(cls, values: Sequence[float], says: str) -> Box:
        known = np.asarray(values, dtype=np.float64)
        low, middle, high = (float(q) for q in np.quantile(known, [0.25, 0.5, 0.75]))
        reach = 1.5 * (high - low)
        inside = known[(known >= low - reach) & (known <= high + reach)]
        mean = float(known.mean())
        told = f"{says}\nmean {number(mean)}\nmedian {number(middle)}\nmiddle half {interval(low, high)}\n{len(known)} maps"
        return cls((float(inside.min()), float(inside.max())), (low, middle, high), mean, told)


@dataclass(frozen=True)
class BoxRow:
    group: str
    label: str
    method: str
    family: str
    cells: tuple[Box | str, ...]  # one a panel; a word where there is no number


def boxes(panels: Sequence[Panel], rows: Sequence[BoxRow], title: str) -> Markup:
    """Box plots through several panels; rows of one group stand together under its name. The number is the mean."""
    row, top, bottom, gap, value = 19.0, 50.0, 8.0, 26.0, 36.0
    names = 16 + min(LONG, max(len(r.group) for r in rows)) * CHARACTER
    begin = names + 12 + min(12, max(len(r.label) for r in rows)) * CHARACTER
    room = max(140.0, min(260.0, (1110 - begin) / len(panels) - value - gap))
    lefts = [begin + 12 + i * (room + value + gap) for i in range(len(panels))]
    first = [i == 0 or rows[i - 1].group != line.group for i, line in enumerate(rows)]
    tops = [top + row * i + 9 * sum(first[1 : i + 1]) for i in range(len(rows))]
    width, height = lefts[-1] + room + value + 4, tops[-1] + row + bottom
    parts = _columns(panels, lefts, room, value, top, height - bottom)
    for line, begins, at in zip(rows, first, tops, strict=True):
        y = at + row / 2
        inside = [
            tag("rect", class_="row", x=0, y=at, width=width, height=row, rx=4),
            *(
                [tag("text", shortened(line.group, LONG), class_="name", x=8, y=y + 4)]
                if begins
                else []
            ),
            tag("text", shortened(line.label, 12), class_="tick", x=names, y=y + 4),
        ]
        for panel, left, cell in zip(panels, lefts, line.cells, strict=True):
            inside.append(_box(cell, panel.axis, left, left + room, y))
        parts.append(
            tag("g", *inside, class_=f"mark {family_class(line.family)}", data_method=line.method)
        )
    return svg(width, height, title, *parts, kind="boxes")


def _box(cell: Box | str, axis: Axis, left: float, right: float, y: float) -> Markup:
    if isinstance(cell, str):
        return tag("text", cell, class_="note", x=left + 4, y=y + 4)
    from_, to = (axis.place(v, left, right) for v in cell.whiskers)
    low, middle, high = (axis.place(v, left, right) for v in cell.quartiles)
    return tag(
        "g",
        tag("rect", class_="row", x=left - 8, y=y - 9, width=right - left + 44, height=18),
        tag("line", class_="whisker stem", x1=from_, x2=to, y1=y, y2=y),
        tag("rect", class_="dot box", x=low, y=y - 5.5, width=high - low, height=11.0),
        tag("line", class_="whisker median", x1=middle, x2=middle, y1=y - 5.5, y2=y + 5.5),
        tag("text", number(cell.mean, 2), class_="value", x=right + 36, y=y + 4, text_anchor="end"),
        data_tip=cell.tip,
    )


@dataclass(frozen=True)
class Shares:
    """How a map is shared out between the cells of a grid, row by row; one of them is judged."""

    values: tuple[float, ...]
    judged: int


def shared_out(
    rows: Sequence[tuple[str, str]],
    groups: Sequence[str],
    table: Sequence[Sequence[Sequence[Shares]]],
    grid_side: int,
    title: str,
) -> Markup:
    """A small grid for every judged cell; rows are (name, family), groups stand side by side; what is judged has a border."""
    side, top, gap, between = 56.0, 34.0, 9.0, 20.0
    cell = side / grid_side
    begin = 16 + min(LONG, max(len(name) for name, _ in rows)) * CHARACTER
    most = [max(len(line[g]) for line in table) for g in range(len(groups))]
    lefts = [begin + sum(n * (side + gap) + between for n in most[:g]) for g in range(len(groups))]
    parts = [
        tag("text", name, class_="column", x=left, y=18)
        for name, left in zip(groups, lefts, strict=True)
    ]
    for i, ((name, family), line) in enumerate(zip(rows, table, strict=True)):
        y = top + i * (side + gap)
        inside = [tag("text", shortened(name, LONG), class_="name", x=8, y=y + side / 2 + 4)]
        for group, left, found in zip(groups, lefts, line, strict=True):
            if not found:
                inside.append(tag("text", "–", class_="note", x=left, y=y + side / 2 + 4))
            for k, shares in enumerate(found):
                inside += _grid_of(
                    shares, left + k * (side + gap), y, cell, grid_side, f"{name}, {group}"
                )
        parts.append(tag("g", *inside, class_=f"mark {family_class(family)}"))
    width = lefts[-1] + most[-1] * (side + gap) + 4
    return svg(width, top + len(rows) * (side + gap), title, *parts, kind="shared-out")


def _grid_of(
    shares: Shares, left: float, top: float, cell: float, side: int, says: str
) -> list[Markup]:
    parts = []
    for i, value in enumerate(shares.values):
        x, y = left + cell * (i % side), top + cell * (i // side)
        tip = f"{says}\ncell {i // side + 1}, {i % side + 1}{' (judged)' * (i == shares.judged)}: {number(value)}"
        parts.append(
            tag(
                "rect",
                class_="patch",
                x=x,
                y=y,
                width=cell,
                height=cell,
                fill=diverging_colour(value, 1),
                data_tip=tip,
            )
        )
        if cell >= 28:
            kind = "in-patch on-dark" if value > 0.6 else "in-patch"
            parts.append(
                tag(
                    "text",
                    number(value, 2),
                    class_=kind,
                    x=x + cell / 2,
                    y=y + cell / 2 + 4,
                    text_anchor="middle",
                )
            )
    x, y = left + cell * (shares.judged % side), top + cell * (shares.judged // side)
    return [*parts, tag("rect", class_="judged", x=x + 1, y=y + 1, width=cell - 2, height=cell - 2)]


def judged_frame(side: int, cell: int) -> Markup:
    """A border around one cell of a grid, to lie over a picture."""
    row, column = divmod(cell, side)
    border = tag("path", d=f"M{column} {row}h1v1h-1z", vector_effect="non-scaling-stroke")
    return tag(
        "svg",
        border,
        class_="judged-frame",
        viewBox=f"0 0 {side} {side}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def matrix(
    names: Sequence[tuple[str, str]], values: Sequence[Sequence[float]], title: str
) -> Markup:
    """Correlations of all pairs in the diverging colours, each once; a column has the number of its row. Names are (name, family)."""
    cell, top = 32.0, 24.0
    begin = 40 + min(LONG + 10, max(len(name) for name, _ in names)) * CHARACTER
    parts = []
    for i, ((name, family), line) in enumerate(zip(names, values, strict=True)):
        y = top + cell * i
        parts.append(
            tag(
                "text",
                str(i + 1),
                class_="tick",
                x=begin + cell * (i + 0.5),
                y=y - 6,
                text_anchor="middle",
            )
        )
        inside = [
            tag("text", str(i + 1), class_="place", x=20, y=y + cell / 2 + 4, text_anchor="end"),
            tag("text", shortened(name, LONG + 10), class_="name", x=28, y=y + cell / 2 + 4),
        ]
        for j, value in enumerate(line[: i + 1]):
            tip, x = f"{name} and {names[j][0]}: {number(value, 2)}", begin + cell * j
            inside.append(
                tag(
                    "rect",
                    class_="patch",
                    x=x,
                    y=y,
                    width=cell,
                    height=cell,
                    fill=diverging_colour(value, 1),
                    data_tip=tip,
                )
            )
            kind = "in-patch small on-dark" if abs(value) > 0.6 else "in-patch small"
            inside.append(
                tag(
                    "text",
                    number(value, 2),
                    class_=kind,
                    x=x + cell / 2,
                    y=y + cell / 2 + 4,
                    text_anchor="middle",
                )
            )
        parts.append(tag("g", *inside, class_=f"mark {family_class(family)}", data_method=name))
    return svg(
        begin + cell * len(names) + 4,
        top + cell * len(names) + 4,
        title,
        *parts,
        kind="matrix-plot",
    )
