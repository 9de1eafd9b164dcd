"""Curves over a share, with their bands, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from heatproof.report.charts import Axis, interval, number, shortened, spread, svg, tag
from heatproof.report.palette import family_class

TOLD = 12  # places of a curve in its tip
DASHES = 4  # ways to draw a line


@dataclass(frozen=True)
class Trace:
    """A curve with a name; what is not finite is left out."""

    label: str
    family: str
    values: tuple[float, ...]
    places: tuple[float, ...] = ()  # from 0 to 1; evenly spaced where none are given
    low: tuple[float, ...] = ()  # of a band about it
    high: tuple[float, ...] = ()
    dash: int = 0  # of lines that have the same colour

    @property
    def known(self) -> list[int]:
        return [k for k, value in enumerate(self.values) if math.isfinite(value)]

    def place(self, k: int) -> float:
        return self.places[k] if self.places else k / (len(self.values) - 1)

    def tip(self) -> str:
        told = self.known[:: math.ceil(len(self.known) / TOLD)]
        spans = [f" ({interval(self.low[k], self.high[k], 2)})" if self.low else "" for k in told]
        lines = [
            f"{100 * self.place(k):.0f} %: {number(self.values[k], 2)}{span}"
            for k, span in zip(told, spans, strict=True)
        ]
        return "\n".join([self.label, *lines])


def traces(
    lines: Sequence[Trace],
    up: Axis,
    titles: tuple[str, str],
    title: str,
    level: float | None = None,
) -> Markup:
    """Curves over a share, each named at the end where they are furthest apart; `level` is a dashed line across."""
    lines = [line for line in lines if line.known]
    ends = [[line.values[line.known[end]] for line in lines] for end in (0, -1)]
    early = max(ends[0]) - min(ends[0]) > max(ends[1]) - min(ends[1])  # names on the left
    left, top, floor, width = 172.0 if early else 52.0, 22.0, 250.0, 452.0
    right = left + 248
    parts = [
        tag("text", f"↑ {titles[1]}", class_="tick", x=left - 44, y=12),
        tag("text", f"{titles[0]} →", class_="tick", x=right, y=floor + 36, text_anchor="end"),
    ]
    for share in (0, 25, 50, 75, 100):
        x = left + (right - left) * share / 100
        parts.append(
            tag("text", f"{share} %", class_="tick", x=x, y=floor + 18, text_anchor="middle")
        )
        parts.append(tag("line", class_="grid", x1=x, x2=x, y1=top, y2=floor))
    for tick in up.ticks:
        y = up.place(tick, floor, top)
        at = (right + 8, "start") if early else (left - 8, "end")
        parts.append(
            tag("text", number(tick, up.digits), class_="tick", x=at[0], y=y + 4, text_anchor=at[1])
        )
        parts.append(tag("line", class_="grid", x1=left, x2=right, y1=y, y2=y))
    if level is not None:
        y = up.place(level, floor, top)
        parts.append(tag("line", class_="random", x1=left, x2=right, y1=y, y2=y))
    end, edge, away = (0, left, -1) if early else (-1, right, 1)
    named = sorted(lines, key=lambda line: -line.values[line.known[end]])
    heights = spread(
        [up.place(line.values[line.known[end]], floor, top) for line in named], 12.5, top, floor + 4
    )
    for line, height in zip(named, heights, strict=True):
        across = [left + (right - left) * line.place(k) for k in line.known]
        path = _path(across, [up.place(line.values[k], floor, top) for k in line.known])
        begin = across[end], up.place(line.values[line.known[end]], floor, top)
        anchor = "end" if early else "start"
        inside = [
            *(
                [tag("path", class_="band", d=_band(line, up, left, right, top, floor))]
                if line.low
                else []
            ),
            tag("path", class_="halo", d=path),
            tag("path", class_=f"line thin dash-{line.dash % DASHES}", d=path),
            tag(
                "path",
                class_="leader",
                d=f"M{begin[0]:.1f} {begin[1]:.1f}L{edge + 10 * away:.1f} {height:.1f}",
            ),
            tag(
                "text",
                shortened(line.label, 22),
                class_="name small",
                x=edge + 13 * away,
                y=height + 4,
                text_anchor=anchor,
            ),
        ]
        parts.append(
            tag(
                "g",
                *inside,
                class_=f"mark {family_class(line.family)}",
                data_tip=line.tip(),
                data_method=line.label,
            )
        )
    return svg(width, floor + 44, title, *parts, kind="traces")


def _path(across: Sequence[float], up: Sequence[float]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(across, up, strict=True))


def _band(line: Trace, up: Axis, left: float, right: float, top: float, floor: float) -> str:
    """There along its low edge, and back along the high one."""
    known = [k for k in line.known if math.isfinite(line.low[k]) and math.isfinite(line.high[k])]
    across = [left + (right - left) * line.place(k) for k in known]
    low, high = ([up.place(edge[k], floor, top) for k in known] for edge in (line.low, line.high))
    return _path([*across, *reversed(across)], [*low, *reversed(high)]) + "Z" if known else ""
