"""Figures as hand-written SVG: they print, scale, need no script, and are saved as files."""

from heatproof.figures.svg.axes import Axis
from heatproof.figures.svg.boxes import Box, BoxRow, boxes
from heatproof.figures.svg.bump import Line, bump, rank_text
from heatproof.figures.svg.elements import (
    STYLE,
    Chart,
    interval,
    number,
    print_style,
    shortened,
    standalone,
    tag,
)
from heatproof.figures.svg.lattice import Panel, Row, Spot, lattice
from heatproof.figures.svg.lines import Trace, traces
from heatproof.figures.svg.marks import inline_interval, spread, symbol
from heatproof.figures.svg.ranking import Mark, ranking
from heatproof.figures.svg.scatter import Point, ranks, scatter
from heatproof.figures.svg.squares import (
    GridFractions,
    correlations,
    fraction_grids,
    grid_cell_frame,
    grid_lines,
    matrix,
    patch_grid,
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
