"""What all figures have in common: size, panels, titles, legends and colours.

Figures are made without pyplot: nothing is shown or registered, no setting of matplotlib is
changed, and no display is needed.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from heatproof.errors import HeatproofError
from heatproof.figures.palette import DIVERGING, SEQUENTIAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3  # panels side by side
MOST_PANELS = 12
MOST_NAME = 28  # characters of a method's name
GREY = "#8a8a90"
MARKERS = "osD^vPX*"


def short(text: str, most: int = MOST_NAME) -> str:
    """Cut a long name."""
    return text if len(text) <= most else text[: most - 1] + "…"


def check_panels(count: int) -> None:
    """Refuse a figure with too many panels to be read."""
    if count > MOST_PANELS:
        raise HeatproofError(
            f"this would be {count} panels, more than {MOST_PANELS}; name a model or a protocol: "
            'result.plot.ranking(model="…", protocol="…")'
        )


def finish(ax: Axes, title: str) -> None:
    """Give a panel its title, ticks, grid and frame."""
    ax.set_title(_wrapped(title), fontsize=9, loc="left")
    ax.tick_params(labelsize=8)
    ax.grid(axis="both", color="#e6e6ea", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _wrapped(title: str, width: int = 50) -> str:
    """Break a long title at spaces, since a figure would cut it off."""
    lines = [""]
    for word in title.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Put one legend for all panels beside them."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside right upper",
        fontsize=8,
        frameon=False,
    )


def panel_grid(
    count: int, width: float, height: float, across: int = ACROSS
) -> tuple[Figure, list[Axes]]:
    """Make a figure with a number of panels, each of a size in inches."""
    columns = min(count, across)
    rows = -(-count // columns)
    figure = figure_class()(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]


def heat_colours(signed: bool) -> Any:
    """Return the colour map of heat maps; white is zero."""
    from matplotlib.colors import LinearSegmentedColormap

    anchors = DIVERGING if signed else SEQUENTIAL
    return LinearSegmentedColormap.from_list("heatproof", list(anchors))


@cache
def figure_class() -> type[Figure]:
    """Return a figure that notebooks show even if pyplot was never imported."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise HeatproofError(
            f'matplotlib cannot be imported ({error}). Install it: pip install "heatproof[plot]"'
        ) from None

    class ShownFigure(Figure):
        """A figure with its own picture for notebooks."""

        def _repr_png_(self) -> bytes:
            sink = io.BytesIO()
            self.savefig(sink, format="png", dpi=110)
            return sink.getvalue()

    return ShownFigure
