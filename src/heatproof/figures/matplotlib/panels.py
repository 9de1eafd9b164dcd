"""Sizes, panels, titles, legends and colours of figures drawn with matplotlib.

Figures are made without pyplot: nothing is shown or registered, no setting of matplotlib is
changed, and no display is needed.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from heatproof.errors import HeatproofError
from heatproof.figures.palette import DIVERGING, FAMILIES, SEQUENTIAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 12
GREY = "#8a8a90"
MARKERS = "osD^vPX*"


def check_panels(count: int) -> None:
    """Refuse a figure with too many panels to be read."""
    if count > MOST_PANELS:
        raise HeatproofError(
            f"this would be {count} panels, more than {MOST_PANELS}; name a model or a protocol: "
            'result.plot.ranking(model="…", protocol="…")'
        )


def colour_of(family: str) -> str:
    """Return the colour of a family of methods on white paper."""
    return FAMILIES.get(family, FAMILIES["other"]).light


def finish(ax: Axes) -> None:
    """Give a panel its ticks, grid and frame."""
    ax.tick_params(labelsize=8)
    ax.grid(axis="both", color="#e6e6ea", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def without_ticks(ax: Axes) -> None:
    """Show a picture without axes."""
    ax.set_xticks([])
    ax.set_yticks([])


def set_title(ax: Axes, title: str, width: int = 50) -> None:
    """Write a title; a long one is broken at spaces, since a figure would cut it off."""
    lines = [""]
    for word in title.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    ax.set_title("\n".join(lines), fontsize=9, loc="left")


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Put one legend for all panels beside them, if anything has a name."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside right upper",
        fontsize=8,
        frameon=False,
    )


def family_legend(figure: Figure, families: Sequence[str]) -> None:
    """Say under the panels which family of methods has which colour."""
    from matplotlib.lines import Line2D

    dots = [Line2D([], [], color=colour_of(f), marker="o", linestyle="") for f in families]
    columns = max(1, int(figure.get_size_inches()[0] / 1.2))
    figure.legend(
        dots,
        list(families),
        loc="outside lower center",
        ncols=min(columns, len(families)),
        fontsize=8,
        frameon=False,
        handletextpad=0.1,
    )


def panel_grid(count: int, width: float, height: float, across: int) -> tuple[Figure, list[Axes]]:
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
