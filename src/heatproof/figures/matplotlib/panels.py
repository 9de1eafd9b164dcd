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
from heatproof.figures.matplotlib.layout import Layout
from heatproof.figures.palette import DIVERGING, FAMILIES, SEQUENTIAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 12
GREY = "#8a8a90"
MARKERS = "osD^vPX*"
# Fonts are embedded as TrueType, which journals ask for, text of SVG stays text, and the ids of
# SVG are the same every time.
EMBEDDED: dict[Any, Any] = {
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "hp",
}


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


def legend(figure: Figure, axes: Sequence[Axes], scale: float = 1, *, below: bool = False) -> None:
    """Put one legend for all panels beside or below them, if anything has a name.

    Names stand by family, which is by colour, in the order of the families.
    """
    from matplotlib.colors import same_color

    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    colours = [family.light for family in FAMILIES.values()]

    def place(label: str) -> int:
        handle = handles[label]
        line = handle[0] if isinstance(handle, tuple) else handle  # of a point with its interval
        return next((i for i, c in enumerate(colours) if same_color(line.get_color(), c)), 99)

    order = sorted(handles, key=place)
    letters = max(map(len, order)) + 8
    room = int(14 * figure.get_size_inches()[0] / scale / letters)  # 14 letters of 8 pt an inch
    columns = max(1, min(len(order), room))
    if below:
        lines = -(-len(order) // columns)
        _add_height(figure, (0.17 * lines + 0.1) * scale)
    figure.legend(
        [handles[label] for label in order],
        order,
        loc="outside lower center" if below else "outside right upper",
        ncols=columns if below else 1,
        fontsize=8,
        frameon=False,
    )


def _add_height(figure: Figure, inches: float) -> None:
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + inches)


def family_legend(figure: Figure, families: Sequence[str], scale: float = 1) -> None:
    """Say under the panels which family of methods has which colour."""
    from matplotlib.lines import Line2D

    names = [name for name in FAMILIES if name in families]
    dots = [Line2D([], [], color=colour_of(f), marker="o", linestyle="") for f in names]
    columns = max(1, int(figure.get_size_inches()[0] / (1.2 * scale)))
    figure.legend(
        dots,
        names,
        loc="outside lower center",
        ncols=min(columns, len(names)),
        fontsize=8,
        frameon=False,
        handletextpad=0.1,
    )


def panel_grid(
    count: int, size: tuple[float, float], across: int, layout: Layout, *, whole: bool = False
) -> tuple[Figure, list[Axes]]:
    """Make a figure with a number of panels; see `Layout.arrange`."""
    columns, (width, height) = layout.arrange(count, size, across, whole=whole)
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
        """A figure with its own picture for notebooks, whose text stays text in files."""

        def savefig(self, fname: Any, **options: Any) -> None:
            import matplotlib as mpl

            with mpl.rc_context(EMBEDDED):
                super().savefig(fname, **options)

        def _repr_png_(self) -> bytes:
            sink = io.BytesIO()
            self.savefig(sink, format="png", dpi=110)
            return sink.getvalue()

    return ShownFigure
