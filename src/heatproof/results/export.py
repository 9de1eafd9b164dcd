"""Figures and tables of a run as files for a paper."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from heatproof.errors import HeatproofError, unknown
from heatproof.results import tables
from heatproof.results.plots import DESCRIPTIONS, FIGURES, MAPS, chart_table
from heatproof.results.result import Result
from heatproof.text import without_formulas

DIGITS = 3  # after the point, in tables

# without the time of writing, so that the same run gives the same bytes
FORMATS: dict[str, dict[str, Any]] = {
    ".pdf": {"metadata": {"CreationDate": None}},
    ".svg": {"metadata": {"Date": None}},
    ".png": {"dpi": 200},
}


@dataclass(frozen=True)
class Table:
    """A table of a run: what it has, and its lines."""

    about: str
    lines: Callable[[Result], pd.DataFrame]


def _ranking_lines(result: Result) -> pd.DataFrame:
    """Return the summary, with what the tests of all pairs say about each method."""
    found = {
        (*scores.key, method): (letters, method in best)
        for scores in result.settings
        for best in [set(scores.pairs.best(scores.pairs.methods))]
        for method, letters in zip(scores.pairs.methods, scores.pairs.letters, strict=True)
    }
    frame = result.summary()
    keys = zip(*(frame[name] for name in (*tables.SETTING_COLUMNS, "method")), strict=True)
    marks = [found.get(key, ("", False)) for key in keys]
    letters, best = zip(*marks, strict=True) if marks else ((), ())
    return frame.assign(letters=letters, may_be_best=best)


TABLES = {
    "ranking": Table("mean scores with intervals, methods down, settings across", _ranking_lines),
    "pairs": Table("tests of all pairs of methods", Result.pairs),
    "agreement": Table("rank correlations of protocols", Result.agreement),
    "settings": Table(
        "rank correlations of all settings", lambda result: result.agreement(by="setting")
    ),
    "variance": Table("which choice moves the ranking", Result.variance),
    "seeds": Table("what the noise of methods changes", Result.over_seeds),
    "costs": Table("passes, time alone and memory of a map", Result.costs),
    "quality": Table("mean rank and what a map costs", lambda r: _figure_lines(r, "quality")),
    "layers": Table("scores of methods at several layers", lambda r: _figure_lines(r, "layers")),
    "tradeoff": Table(
        "distance and information left, for each baseline", lambda r: _figure_lines(r, "tradeoff")
    ),
    "published": Table("the run beside published numbers", lambda r: _figure_lines(r, "published")),
    "left-out": Table("why samples have no score", lambda result: result.left_out),
}
TABLE_FORMATS: dict[str, Callable[[pd.DataFrame, int], str]] = {
    ".tex": tables.frame_to_latex,
    ".md": tables.frame_to_markdown,
    ".csv": lambda frame, digits: without_formulas(frame).to_csv(index=False),
}
TABLE_GRIDS = {".tex": tables.to_latex, ".md": tables.to_markdown}
COMMENTS = {".tex": "% {}\n", ".md": "<!-- {} -->\n\n", ".csv": ""}  # CSV has a column instead


def _figure_lines(result: Result, name: str) -> pd.DataFrame:
    return chart_table(FIGURES[name].charts(result))


def write_figure(run: str | Path, name: str, out: Path, options: Mapping[str, Any]) -> list[Path]:
    """Draw a figure of a run.

    Args:
        run: A run directory.
        name: A figure of ``result.plot``.
        out: The file; its ending chooses the format.
        options: Options of the figure, such as ``protocol``.

    Returns:
        The files that were written: the figure, and its numbers as CSV where it has any.

    Raises:
        HeatproofError: If the format or an option is unknown, or the run has no such figure.
    """
    if out.suffix.lower() not in FORMATS:
        raise HeatproofError(
            f"{out} does not end in {', '.join(FORMATS)}, which choose the format of the figure"
        )
    if name not in DESCRIPTIONS:
        raise unknown("figure", name, DESCRIPTIONS)
    result = Result.load(run)
    draw = getattr(result.plot, name)
    allowed = inspect.signature(draw).parameters
    for option in options:
        if option not in allowed:
            raise HeatproofError(f"the figure {name} has no option --{option}; leave it out")
    chosen = dict(options)
    select = {key: value for key, value in options.items() if key in ("model", "protocol")}
    if "sample" in allowed and "sample" not in chosen:
        chosen["sample"] = _first_sample(result, select)
    figure = draw(**chosen)
    figure.savefig(out, **FORMATS[out.suffix.lower()])
    written = [out]
    if name != MAPS:
        table = out.with_suffix(".csv")
        without_formulas(result.plot.data(name, **select)).to_csv(table, index=False)
        written.append(table)
    return written


@dataclass(frozen=True)
class TableOptions:
    """Layout of a table.

    Attributes:
        select: ``model`` and ``protocol``, to select lines.
        columns: What is shown: of the table of means what stands behind each mean, of others the
            columns; empty for the default.
        digits: Digits after the point.
        transpose: Whether methods stand across, in the table of means.
    """

    select: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[str] = ()
    digits: int = DIGITS
    transpose: bool = False


def write_table(run: str | Path, name: str, out: Path | None, options: TableOptions) -> str:
    """Write a table of a run as LaTeX (for booktabs), Markdown or CSV.

    Args:
        run: A run directory.
        name: A table of `TABLES`.
        out: The file; its ending chooses the format. None writes nothing.
        options: What is shown, and how.

    Returns:
        The table as text; Markdown without a file.

    Raises:
        HeatproofError: If the format, the table or an option is unknown, or the table is empty.
    """
    ending = out.suffix.lower() if out else ".md"
    if ending not in TABLE_FORMATS:
        raise HeatproofError(
            f"{out} does not end in {', '.join(TABLE_FORMATS)}, which choose the format"
        )
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    result = Result.load(run)
    frame = TABLES[name].lines(result)
    for column, wanted in options.select.items():
        if column not in frame:
            raise HeatproofError(f"the table {name} has no {column}; leave out --{column}")
        if wanted not in set(frame[column]):
            raise unknown(column, wanted, list(dict.fromkeys(frame[column])))
        frame = frame[frame[column] == wanted]
    if not len(frame):
        raise HeatproofError(f"the run has nothing for the table {name}: {TABLES[name].about}")
    if name == "ranking" and ending != ".csv":
        grid = tables.grid(frame, result.setting_labels, result.settings)
        chosen = {"columns": options.columns} if options.columns else {}
        layout = result.layout(digits=options.digits, transpose=options.transpose, **chosen)
        text = TABLE_GRIDS[ending](grid, layout)
    elif options.transpose:
        raise HeatproofError("--transpose is for the table ranking as .tex or .md")
    else:
        is_whole = ending == ".csv" or options.columns
        frame = frame if is_whole else _without_constants(frame)
        for column in options.columns:
            if column not in frame:
                raise unknown("column", column, list(frame.columns))
        frame = frame[list(options.columns)] if options.columns else frame
        frame = frame.assign(source=result.source) if ending == ".csv" else frame
        source = COMMENTS[ending].format(result.source)
        text = source + TABLE_FORMATS[ending](frame, options.digits)
    if out:
        out.write_text(text, encoding="utf-8")
    return text


def _without_constants(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out empty columns, and of those that name a setting the ones that are all equal."""
    names = ("model", "layer", "protocol", "setting", "baseline", "table", "quantity", "chart")
    same = [n for n in names if n in frame and frame[n].nunique(dropna=False) == 1]
    empty = [n for n in frame if (frame[n].isna() | (frame[n] == "")).all()]
    return frame.drop(columns=[*same, *empty])


def list_figures(run: str | Path) -> list[tuple[str, str, str]]:
    """Return the name and description of every figure, and why a run does not have it.

    Args:
        run: A run directory.

    Returns:
        Name, description and reason; the reason is empty for figures that the run has.
    """
    plot = Result.load(run).plot
    listed = []
    for name, description in DESCRIPTIONS.items():
        reason = ""
        try:
            if name != MAPS:
                plot.charts(name)
        except HeatproofError as error:
            reason = str(error)
        listed.append((name, description, reason))
    return listed


def _first_sample(result: Result, options: Mapping[str, str]) -> str:
    """Return the first sample whose maps are kept."""
    for method in dict.fromkeys(result.scores["method"]):
        for sample, _ in result.maps(method, **options):
            return sample
    raise HeatproofError("the run has kept no maps; run it with keep_maps: 16")
