"""Figures as hand-written SVG: they print, scale, need no script, and are saved as files."""

from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from heatproof.figures.charts import (
    AgreementChart,
    BoxChart,
    BumpChart,
    ChangedMapChart,
    Chart,
    CurveChart,
    GridChart,
    LatticeChart,
    MatrixChart,
    RankingChart,
    ScatterChart,
    chart_labels,
)
from heatproof.figures.numbers import NO_NAMES, labelling
from heatproof.figures.svg.boxes import draw_boxes
from heatproof.figures.svg.bump import draw_bump
from heatproof.figures.svg.elements import STYLE, print_style, standalone, tag
from heatproof.figures.svg.lattice import draw_lattice
from heatproof.figures.svg.lines import draw_curves
from heatproof.figures.svg.marks import inline_interval, spread, symbol
from heatproof.figures.svg.ranking import draw_ranking
from heatproof.figures.svg.scatter import draw_scatter, ranks
from heatproof.figures.svg.squares import (
    draw_agreement,
    draw_grids,
    draw_matrix,
    grid_cell_frame,
    grid_lines,
    patch_grid,
)

__all__ = [
    "STYLE",
    "draw",
    "grid_cell_frame",
    "grid_lines",
    "inline_interval",
    "patch_grid",
    "print_style",
    "ranks",
    "spread",
    "standalone",
    "symbol",
    "tag",
]

RENDERERS: dict[type[Chart], Callable[[Any], Markup]] = {
    AgreementChart: draw_agreement,
    BoxChart: draw_boxes,
    BumpChart: draw_bump,
    ChangedMapChart: draw_curves,
    CurveChart: draw_curves,
    GridChart: draw_grids,
    LatticeChart: draw_lattice,
    MatrixChart: draw_matrix,
    RankingChart: draw_ranking,
    ScatterChart: draw_scatter,
}


def draw(chart: Chart, names: Mapping[str, str] = NO_NAMES) -> Markup:
    """Draw a chart as SVG.

    Args:
        chart: The chart.
        names: What is written in place of labels of methods.
    """
    with labelling(chart_labels(chart), names):
        return RENDERERS[type(chart)](chart)
