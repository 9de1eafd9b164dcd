"""Axes and their titles, ticks and grid lines."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from heatproof.figures.axes import Axis
from heatproof.figures.numbers import number
from heatproof.figures.svg.elements import tag


def top_axis(axis: Axis, left: float, right: float, top: float, bottom: float) -> list[Markup]:
    """Draw an axis above the rows of a chart, with a grid line for each tick."""
    parts = []
    for tick in axis.ticks:
        x = axis.position(tick, left, right)
        label = number(tick, axis.digits)
        parts += [
            tag("line", class_="grid", x1=x, x2=x, y1=top, y2=bottom),
            tag("text", label, class_="tick", x=x, y=top - 9, text_anchor="middle"),
        ]
    return parts


@dataclass(frozen=True)
class Plot:
    """A rectangle with a horizontal and a vertical axis."""

    across: Axis
    up: Axis
    left: float
    right: float
    top: float
    bottom: float

    def x(self, value: float) -> float:
        """Return the horizontal position of a value."""
        return self.across.position(value, self.left, self.right)

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        return self.up.position(value, self.bottom, self.top)

    def axes(
        self, titles: tuple[str, str], unit: str = "", labels_right: bool = False
    ) -> list[Markup]:
        """Draw both axes with their titles, ticks and grid lines.

        Args:
            titles: Titles of the horizontal and the vertical axis.
            unit: Text behind the numbers of the horizontal axis.
            labels_right: Whether the numbers of the vertical axis stand on the right.
        """
        across, up = titles
        below = self.bottom + 36
        parts = [
            tag("text", f"↑ {up}", class_="tick", x=self.left - 44, y=12),
            tag("text", f"{across} →", class_="tick", x=self.right, y=below, text_anchor="end"),
        ]
        for i, tick in enumerate(self.across.ticks):
            x = self.x(tick)
            label = number(tick, self.across.digits) + unit
            if self.across.labels:
                label = self.across.labels[i]
            parts += [
                tag("text", label, class_="tick", x=x, y=self.bottom + 18, text_anchor="middle"),
                tag("line", class_="grid", x1=x, x2=x, y1=self.top, y2=self.bottom),
            ]
        label_x = self.right + 8 if labels_right else self.left - 8
        anchor = "start" if labels_right else "end"
        for tick in self.up.ticks:
            y = self.y(tick)
            label = number(tick, self.up.digits)
            parts += [
                tag("text", label, class_="tick", x=label_x, y=y + 4, text_anchor=anchor),
                tag("line", class_="grid", x1=self.left, x2=self.right, y1=y, y2=y),
            ]
        return parts

    def shade(self, end: float) -> Markup:
        """Shade the left part of the plot, up to a fraction of its width."""
        width = end * (self.right - self.left)
        height = self.bottom - self.top
        return tag("rect", class_="shade", x=self.left, y=self.top, width=width, height=height)

    def level(self, value: float) -> Markup:
        """Draw a dashed horizontal line."""
        y = self.y(value)
        return tag("line", class_="random", x1=self.left, x2=self.right, y1=y, y2=y)
