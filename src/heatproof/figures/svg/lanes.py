"""A race: one lane per method, as long as it was in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from heatproof.figures.axes import Axis
from heatproof.figures.numbers import shortened
from heatproof.figures.svg.axes import top_axis
from heatproof.figures.svg.elements import CHARACTER, label_width, svg, tag
from heatproof.figures.svg.marks import mark, row_background

ROW = 24.0
TOP = 44.0
BOTTOM = 12.0
ROOM = 340.0
HEIGHT = 12.0  # of a lane


@dataclass(frozen=True)
class DrawnLane:
    """A method of a race.

    Attributes:
        label: Its name.
        family: Its family.
        images: How many images it was in for.
        note: What stands behind its lane, such as why it left.
        tip: What a reader sees who points at it.
    """

    label: str
    family: str
    images: int
    note: str
    tip: str


def draw_lanes(title: str, lanes: Sequence[DrawnLane], looks: Sequence[int], most: int) -> Markup:
    """Draw the lanes of a race.

    Args:
        title: Read by screen readers.
        lanes: The methods, best first.
        looks: After how many images the scores were looked at.
        most: How many images there were.
    """
    left = 8 + label_width([lane.label for lane in lanes], shortest=11)
    right = left + ROOM
    longest = max((len(lane.note) for lane in lanes), default=0)
    width = right + 16 + 0.93 * CHARACTER * longest
    bottom = TOP + ROW * len(lanes)
    step = next(s for k in range(12) for s in (10**k, 2 * 10**k, 5 * 10**k) if most <= 6 * s)
    ticks = tuple(float(n) for n in range(0, most + 1, step))
    axis = Axis(0.0, float(most), ticks)
    parts = [tag("text", "images →", class_="tick", x=right, y=14, text_anchor="end")]
    parts += top_axis(axis, left, right, TOP, bottom)
    for look in looks:
        x = axis.position(float(look), left, right)
        parts.append(tag("line", class_="look", x1=x, x2=x, y1=TOP - 5, y2=TOP))
    for i, drawn in enumerate(lanes):
        y = TOP + ROW * (i + 0.5)
        end = axis.position(float(drawn.images), left, right)
        band = tag(
            "rect",
            class_="dot lane",
            x=left,
            y=y - HEIGHT / 2,
            width=max(1.0, end - left),
            height=HEIGHT,
            rx=3,
        )
        parts.append(
            mark(
                drawn.family,
                row_background(0, y - ROW / 2, width, ROW),
                tag("text", shortened(drawn.label), class_="name", x=0, y=y + 4),
                band,
                tag("text", drawn.note, class_="lane-note", x=end + 8, y=y + 4),
                method=drawn.label,
                tip=drawn.tip,
            )
        )
    return svg(width, bottom + BOTTOM, title, *parts, kind="lanes")
