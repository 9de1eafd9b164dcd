"""The size of a figure on paper or on a slide, and how its panels share the room."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heatproof.errors import HeatproofError, unknown
from heatproof.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEXT = 8.0  # points, of most text on screen
NARROWEST = 0.7  # of the width that a panel has on screen, at the same size of text
LOWEST = 0.35  # of the height that a panel has on screen: far below, names hide each other
LARGEST = 100.0  # inches


@dataclass(frozen=True)
class Style:
    """A place that figures are made for.

    Attributes:
        width: Width of a figure, in inches.
        text: Size of most text, in points.
        about: What it is, in a few words.
    """

    width: float
    text: float
    about: str


STYLES = {
    "column": Style(3.35, 7.0, "one column of a paper with two"),
    "page": Style(7.0, 7.0, "the width of a page"),
    "slide": Style(12.5, 14.0, "a slide of 13.3 by 7.5 inches"),
}


@dataclass(frozen=True)
class Layout:
    """How large a figure is.

    Attributes:
        width: In inches; by default that of the style, or as wide as the panels are on screen.
        height: In inches; by default as high as the panels need.
        style: A name of `STYLES`; by default text is 8 points.
    """

    width: float | None = None
    height: float | None = None
    style: str | None = None

    def __post_init__(self) -> None:
        if self.style is not None and self.style not in STYLES:
            raise unknown("style", self.style, STYLES)
        for name, value in (("width", self.width), ("height", self.height)):
            if value is not None and not 0.5 <= value <= LARGEST:
                raise HeatproofError(f"{name} is {value:g} inches; 0.5 to {LARGEST:g} are possible")

    @property
    def full_width(self) -> float | None:
        """Width of the figure in inches; None for as wide as the panels are on screen."""
        if self.width is None and self.style is not None:
            return STYLES[self.style].width
        return self.width

    @property
    def scale(self) -> float:
        """Size of text and lines, relative to that on screen."""
        return STYLES[self.style].text / TEXT if self.style is not None else 1.0

    def arrange(
        self, count: int, size: tuple[float, float], across: int, *, whole: bool = False
    ) -> tuple[int, tuple[float, float]]:
        """Return how many panels stand side by side, and the size of each in inches.

        Args:
            count: The number of panels.
            size: Width and height of a panel on screen.
            across: How many stand side by side at most.
            whole: Whether just as many have to stand side by side, as pictures in a table.

        Raises:
            HeatproofError: If the height is too little for the panels to be read.
        """
        natural, high = (self.scale * side for side in size)
        columns = min(count, across)
        full = self.full_width
        if full is not None and not whole:
            columns = max(1, min(columns, int(full / (NARROWEST * natural))))
        wide = natural if full is None else full / columns
        rows = math.ceil(count / columns)
        if self.height is None:
            return columns, (wide, high)
        least = math.ceil(10 * LOWEST * high * rows) / 10
        if self.height < least:
            raise HeatproofError(
                f"a height of {self.height:g} inches is too little for {counted(count, 'panel')} "
                f"in {counted(rows, 'row')}, which {'needs' if count == 1 else 'need'} {least:g}; "
                "leave out the height, or choose a model or a protocol"
            )
        return columns, (wide, self.height / rows)


def scale_marks(parts: Sequence[Axes | Figure], scale: float) -> None:
    """Scale all text, lines and markers of axes, or of the legends of a figure."""
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    if scale == 1:
        return
    for part in parts:
        artists = [part] if isinstance(part, Axes) else part.legends
        for artist in artists:
            for text in artist.findobj(Text):
                assert isinstance(text, Text)
                text.set_fontsize(float(text.get_fontsize()) * scale)
            if not isinstance(part, Axes):  # whose lines are copies of those in the panels
                continue
            for line in artist.findobj(Line2D):
                assert isinstance(line, Line2D)
                line.set_linewidth(line.get_linewidth() * scale)
                line.set_markersize(line.get_markersize() * scale)
        if isinstance(part, Axes):
            part.tick_params(labelsize=TEXT * scale)


def wrap_labels(ax: Axes, letters: int) -> None:
    """Break the titles of both axes so that no line has more than a number of letters."""
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_label_text(textwrap.fill(axis.get_label_text(), letters))
