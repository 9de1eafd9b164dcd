"""Figures as hand-written SVG: they print, scale, need no script, and are saved as files."""

from heatproof.report.charts.axes import Axis
from heatproof.report.charts.boxes import Box, BoxRow, boxes
from heatproof.report.charts.bump import Line, bump, rank_text
from heatproof.report.charts.lattice import Panel, Row, Spot, lattice
from heatproof.report.charts.lines import Trace, traces
from heatproof.report.charts.marks import inline_interval, spread, symbol
from heatproof.report.charts.ranking import Mark, ranking
from heatproof.report.charts.scatter import Point, ranks, scatter
from heatproof.report.charts.squares import (
    GridFractions,
    correlations,
    fraction_grids,
    grid_cell_frame,
    grid_lines,
    matrix,
    patch_grid,
)
from heatproof.report.charts.svg import (
    STYLE,
    Chart,
    interval,
    number,
    print_style,
    shortened,
    standalone,
    tag,
)

__all__ = [
    "STYLE",
    "Axis",
    "Box",
    "BoxRow",
    "Chart",
    "GridFractions",
    "Line",
    "Mark",
    "Panel",
    "Point",
    "Row",
    "Spot",
    "Trace",
    "boxes",
    "bump",
    "correlations",
    "fraction_grids",
    "grid_cell_frame",
    "grid_lines",
    "inline_interval",
    "interval",
    "lattice",
    "matrix",
    "number",
    "patch_grid",
    "print_style",
    "rank_text",
    "ranking",
    "ranks",
    "scatter",
    "shortened",
    "spread",
    "standalone",
    "symbol",
    "tag",
    "traces",
]
