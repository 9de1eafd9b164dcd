"""Summaries as tables: text for a terminal, HTML, Markdown and LaTeX.

Every format shows the same ranking: one block per model and setting, or one column per setting.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup, escape

from heatproof.analysis import wording
from heatproof.analysis.ranks import Key
from heatproof.analysis.settings import SettingScores
from heatproof.protocols import PROTOCOLS
from heatproof.text import counted, short_titles

TERMINAL_WIDTH = 100  # columns of a terminal
MOST_BLOCKS = 6  # rankings in a repr
MOST_LINES = 12  # methods of a ranking in a repr
NONE = "–"
SETTING_COLUMNS = ("model", "protocol", "setting", "baseline")  # columns of a summary
LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "–": "--",
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


class Line(NamedTuple):
    """A method of a ranking, as text."""

    rank: str
    method: str
    mean: str
    interval: str
    lost: str  # how many samples have no score


class Block(NamedTuple):
    """The ranking of a model under one setting."""

    title: str
    lines: list[Line]


def blocks(summary: pd.DataFrame) -> Iterator[Block]:
    """Yield the ranking of every model and setting, best method first.

    Args:
        summary: What ``Result.summary`` returns.
    """
    titles = short_titles(summary["model"])
    groups = summary.groupby(list(SETTING_COLUMNS), sort=False)
    for (model, protocol, setting, baseline), group in groups:
        better = "higher" if PROTOCOLS[protocol].cls.higher_is_better else "lower"
        settings = ", ".join(filter(None, (setting, baseline and f"baseline={baseline}")))
        heading = f"{protocol}({settings})" if settings else protocol
        ranked = group.sort_values("rank", na_position="last", kind="stable")
        scored = ranked.loc[ranked["n"] > 0, "n"]
        is_same = scored.nunique() == 1
        lines = [_line(row, shows_n=not is_same) for row in ranked.to_dict("records")]
        n = f", n = {scored.iloc[0]}" if is_same else ""
        title = titles.get(model, model)
        yield Block(f"{title} · {heading}: {better} is better{n}", lines)


def _line(row: Mapping[str, object], shows_n: bool) -> Line:
    """Return a line of a ranking, with the number of scores unless the title has it."""
    mean, low, high, rank = (row[name] for name in ("mean", "low", "high", "rank"))
    statuses = ("undefined", "failed", "missing", "n/a", "skipped")
    return Line(
        rank=f"{rank:.0f}" if pd.notna(rank) else NONE,
        method=str(row["method"]),
        mean=f"{mean:.3f}" if pd.notna(mean) else NONE,
        interval=f"{low:.3f} … {high:.3f}" if pd.notna(low) else "",
        lost=", ".join(
            [f"n = {row['n']}"] * shows_n
            + ["not ranked"] * bool(pd.isna(rank) and pd.notna(mean))
            + [f"{row[status]} {status}" for status in statuses if row[status]]
        ),
    )


def to_text(
    heading: str,
    summary: pd.DataFrame,
    caveats: Sequence[str] = (),
    verdicts: Sequence[str] = (),
    race: Sequence[str] = (),
) -> str:
    """Return rankings as text of at most ``TERMINAL_WIDTH`` columns; long ones are cut.

    Args:
        heading: The first line.
        summary: What ``Result.summary`` returns.
        caveats: What to know before the numbers are used; never cut.
        verdicts: Which method is the best, in sentences.
        race: Which methods were dropped when, if any were.
    """
    lines = [_cut(heading)]
    for text in [*verdicts[:MOST_BLOCKS], *race, *(f"! {caveat}" for caveat in caveats)]:
        wrapped = textwrap.wrap(
            text, TERMINAL_WIDTH, break_long_words=False, break_on_hyphens=False
        )
        lines += wrapped if text.startswith("!") or text in race else map(_cut, wrapped)
    every = list(blocks(summary))
    for block in every[:MOST_BLOCKS]:
        title = textwrap.wrap(
            block.title, TERMINAL_WIDTH, subsequent_indent="  ", break_on_hyphens=False
        )
        lines += ["", *title, *_text_lines(block.lines)]
    if len(every) > MOST_BLOCKS:
        lines += [
            "",
            f"and {counted(len(every) - MOST_BLOCKS, 'more ranking')}; see result.summary()",
        ]
    return "\n".join(lines)


def _text_lines(ranking: list[Line]) -> Iterator[str]:
    shown = ranking[:MOST_LINES]
    ranks = max(len(line.rank) for line in shown)
    means = max(len(line.mean) for line in shown)
    intervals = max(len(line.interval) for line in shown)
    rest = 2 + ranks + 2 + 2 + means + 2 + intervals
    methods = min(max(len(line.method) for line in shown), TERMINAL_WIDTH - rest)
    for line in shown:
        name = _cut(line.method, methods)
        text = (
            f"  {line.rank:>{ranks}}  {name:<{methods}}  {line.mean:>{means}}"
            f"  {line.interval:<{intervals}}  {line.lost}"
        )
        yield _cut(text.rstrip())
    if len(ranking) > MOST_LINES:
        yield f"  and {counted(len(ranking) - MOST_LINES, 'more method')}"


def _cut(text: str, width: int = TERMINAL_WIDTH) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def to_html(
    heading: str,
    summary: pd.DataFrame,
    caveats: Sequence[str] = (),
    verdicts: Sequence[str] = (),
    race: Sequence[str] = (),
) -> str:
    """Return rankings as small HTML tables; every text is escaped.

    Args:
        heading: The first line.
        summary: What ``Result.summary`` returns.
        caveats: What to know before the numbers are used.
        verdicts: Which method is the best, in sentences.
        race: Which methods were dropped when, if any were.
    """
    every = list(blocks(summary))
    texts = (heading, *verdicts[:MOST_BLOCKS], *race, *caveats)
    parts = [Markup("<p>{}</p>").format(text) for text in texts]
    for block in every[:MOST_BLOCKS]:
        parts.append(_html_block(block))
    if len(every) > MOST_BLOCKS:
        parts.append(
            Markup("<p>and {}</p>").format(counted(len(every) - MOST_BLOCKS, "more ranking"))
        )
    return str(Markup("\n").join(parts))


def _html_block(block: Block) -> Markup:
    row = Markup("<tr><td>{}</td><td style='text-align:left'>{}</td><td>{}</td><td>{}</td>{}</tr>")
    lost = any(line.lost for line in block.lines)
    extra = Markup("<th>without a score</th>" if lost else "")
    head = Markup(
        "<tr><th>rank</th><th style='text-align:left'>method</th><th>mean</th>"
        "<th>95 % interval</th>{}</tr>"
    ).format(extra)
    rows = [
        row.format(
            line.rank,
            line.method,
            line.mean,
            line.interval,
            Markup("<td>{}</td>").format(line.lost) if lost else "",
        )
        for line in block.lines[:MOST_LINES]
    ]
    if len(block.lines) > MOST_LINES:
        more = len(block.lines) - MOST_LINES
        rows.append(Markup("<tr><td></td><td>and {} more</td></tr>").format(more))
    title = Markup("<caption style='text-align:left'>{}</caption>").format(block.title)
    body = Markup("").join(rows)
    return Markup("<table>{}<thead>{}</thead><tbody>{}</tbody></table>").format(title, head, body)


@dataclass(frozen=True)
class Layout:
    """Layout of a table with one column per setting.

    Attributes:
        digits: Digits after the point.
        columns: What stands behind each mean, of `COLUMNS`.
        transpose: Whether methods stand across and settings down.
        names: Names of methods in place of their labels, such as those of a paper.
        source: What the table was made from, in a comment; empty for no comment.
    """

    digits: int = 3
    columns: tuple[str, ...] = ()
    transpose: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class Cell:
    """The score of a method in a table with one column per setting."""

    mean: float
    low: float
    high: float
    rank: float
    rank_low: float
    rank_high: float
    n: int
    best: bool  # whether it may be the best
    letters: str  # methods that share one do not differ

    @property
    def ranked(self) -> bool:
        """Whether the method is ranked under the setting."""
        return bool(pd.notna(self.rank))

    def text(self, layout: Layout, usual: int) -> str:
        """Return the mean with what the layout asks for; nan is a dash.

        The mean of a method that is not ranked has a dagger, and one of fewer scores than is usual
        in the column says of how many.
        """
        if pd.isna(self.mean):
            return NONE
        parts = [f"{self.mean:.{layout.digits}f}{'' if self.ranked else '†'}"]
        parts += [COLUMNS[name](self, layout.digits) for name in layout.columns]
        if self.n != usual and "n" not in layout.columns:
            parts.append(f"(n = {self.n})")
        return " ".join(part for part in parts if part)


def _interval(cell: Cell, digits: int) -> str:
    return f"[{cell.low:.{digits}f}, {cell.high:.{digits}f}]" if pd.notna(cell.low) else ""


def _rank(cell: Cell, digits: int) -> str:
    if not cell.ranked:
        return ""
    ends = f" ({cell.rank_low:.0f}–{cell.rank_high:.0f})" if pd.notna(cell.rank_low) else ""
    return f"rank {cell.rank:.0f}{ends}"


COLUMNS: dict[str, Callable[[Cell, int], str]] = {
    "interval": _interval,
    "rank": _rank,
    "letters": lambda cell, digits: cell.letters,
    "n": lambda cell, digits: f"(n = {cell.n})",
}


class Grid(NamedTuple):
    """A table with one row per model and method, and one column per setting."""

    columns: list[tuple[str, bool]]  # label of the setting, and whether higher is better
    rows: list[tuple[str, str, list[Cell | None]]]  # model, method, cells

    @property
    def several_models(self) -> bool:
        """Whether the rows are of more than one model."""
        return len({model for model, _, _ in self.rows}) > 1

    @property
    def has_unranked(self) -> bool:
        """Whether a mean is of a method that is not ranked, which has a mark."""
        cells = [cell for _, _, of_method in self.rows for cell in of_method if cell is not None]
        return any(not cell.ranked and pd.notna(cell.mean) for cell in cells)

    @property
    def usual(self) -> list[int]:
        """Number of scores that most means of each column are over."""
        found = []
        for i in range(len(self.columns)):
            cells = [of_method[i] for _, _, of_method in self.rows]
            counts = [cell.n for cell in cells if cell is not None and pd.notna(cell.mean)]
            found.append(max(counts, key=counts.count, default=0))
        return found


def grid(
    summary: pd.DataFrame, labels: Mapping[Key, str], settings: Sequence[SettingScores]
) -> Grid:
    """Arrange a summary with methods down and settings across.

    Args:
        summary: What ``Result.summary`` returns.
        labels: A short text for every (protocol, setting, baseline).
        settings: The scores of every model and setting.
    """
    keys = list(labels)
    pairs = {scores.key: scores.pairs for scores in settings}
    best = {key: set(tests.best(tests.methods)) for key, tests in pairs.items()}
    letters = {
        key: dict(zip(tests.methods, tests.letters, strict=True)) for key, tests in pairs.items()
    }
    cells: dict[tuple[str, str], dict[Key, Cell]] = {}
    for row in summary.to_dict("records"):
        key = (row["protocol"], row["setting"], row["baseline"])
        where = (row["model"], *key)
        names = ("mean", "low", "high", "rank", "rank_low", "rank_high", "n")
        cell = Cell(
            **{name: row[name] for name in names},
            best=row["method"] in best.get(where, ()),
            letters=letters.get(where, {}).get(row["method"], ""),
        )
        cells.setdefault((row["model"], row["method"]), {})[key] = cell
    present = [key for key in keys if any(key in of_method for of_method in cells.values())]
    return Grid(
        [
            (_with_protocol(key, labels[key]), PROTOCOLS[key[0]].cls.higher_is_better)
            for key in present
        ],
        [(*name, [of_method.get(key) for key in present]) for name, of_method in cells.items()],
    )


def _with_protocol(key: Key, label: str) -> str:
    """Return a label that names the protocol, also where a run has but one."""
    return label if label.startswith(key[0]) else f"{key[0]} · {label}"


class _Matrix(NamedTuple):
    """The texts of a table, with arrows as they are and nothing escaped."""

    heads: list[str]
    rows: list[tuple[str, str, list[tuple[str, bool]]]]  # model, name, (text, whether it is bold)


def _matrix(table: Grid, layout: Layout) -> _Matrix:
    """Return the texts of a table in its layout."""
    labels = [f"{label} {'↑' if higher else '↓'}" for label, higher in table.columns]
    usual = table.usual
    rows = [
        (
            model,
            layout.names.get(method, method),
            [
                (NONE, False) if cell is None else (cell.text(layout, count), cell.best)
                for cell, count in zip(cells, usual, strict=True)
            ],
        )
        for model, method, cells in table.rows
    ]
    if not layout.transpose:
        return _Matrix(labels, rows)
    methods = list(dict.fromkeys(method for _, method, _ in rows))
    texts = {(model, method): cells for model, method, cells in rows}
    models = list(dict.fromkeys(model for model, _, _ in rows))
    absent = [(NONE, False)] * len(labels)
    return _Matrix(
        methods,
        [
            (model, label, [texts.get((model, method), absent)[i] for method in methods])
            for model in models
            for i, label in enumerate(labels)
        ],
    )


def _note(table: Grid, layout: Layout) -> str:
    """Return what a reader must know about the marks and numbers of a table."""
    return wording.table_note(table.usual, "letters" in layout.columns, table.has_unranked)


def to_markdown(table: Grid, layout: Layout) -> str:
    """Return a table as Markdown, with all that may be the best of each column in bold."""
    matrix = _matrix(table, layout)
    names = ["model"] * table.several_models + ["setting" if layout.transpose else "method"]
    lines = [
        [*names, *map(_markdown, matrix.heads)],
        [*("---" for _ in names), *("---:" for _ in matrix.heads)],
    ]
    for model, name, cells in matrix.rows:
        named = [model] * table.several_models + [name]
        marked = [f"**{_markdown(text)}**" if bold else _markdown(text) for text, bold in cells]
        lines.append([*map(_markdown, named), *marked])
    source = f"<!-- {layout.source.replace('--', '- -')} -->\n\n" if layout.source else ""
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{source}{rows}\n\n{_note(table, layout)}\n"


def _markdown(text: str) -> str:
    """Escape what a table in Markdown would read as markup."""
    for character in "\\|*_`<[":
        text = text.replace(character, f"\\{character}")
    return text


def to_latex(table: Grid, layout: Layout) -> str:
    """Return a table as LaTeX for the package booktabs, with all that may be the best in bold."""
    matrix = _matrix(table, layout)
    names = ["model"] * table.several_models + ["setting" if layout.transpose else "method"]
    lines = [f"% {line}" for line in layout.source.splitlines()]
    lines += [
        rf"\begin{{tabular}}{{{'l' * len(names)}{'r' * len(matrix.heads)}}}",
        r"\toprule",
        " & ".join([*names, *map(latex_text, matrix.heads)]) + r" \\",
        r"\midrule",
    ]
    before = None
    for model, name, cells in matrix.rows:
        if before not in (None, model):
            lines.append(r"\midrule")
        marked = [rf"\textbf{{{_number(text)}}}" if bold else _number(text) for text, bold in cells]
        first = [latex_text(model) if model != before else ""] if table.several_models else []
        lines.append(" & ".join([*first, latex_text(name), *marked]) + r" \\")
        before = model
    text = latex_text(_note(table, layout)).replace("†", r"\textdagger{}")
    # A note within the table would stretch its last column.
    note = rf"\par\smallskip\parbox{{.95\linewidth}}{{\footnotesize {text}}}"
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", note]) + "\n"


def frame_to_markdown(frame: pd.DataFrame, digits: int = 3) -> str:
    """Return a frame as a table in Markdown; numbers have some digits after the point."""
    lines = [list(map(_markdown, _heads(frame))), _alignment(frame, "---", "---:")]
    lines += [[_markdown(text) for text in row] for row in _texts(frame, digits)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def frame_to_latex(frame: pd.DataFrame, digits: int = 3) -> str:
    """Return a frame as LaTeX for the package booktabs; texts are escaped."""
    numeric = [pd.api.types.is_numeric_dtype(frame[name]) for name in frame.columns]
    rows = [
        " & ".join(
            _number(text) if is_number else latex_text(text)
            for text, is_number in zip(row, numeric, strict=True)
        )
        for row in _texts(frame, digits)
    ]
    lines = [
        rf"\begin{{tabular}}{{{''.join(_alignment(frame, 'l', 'r'))}}}",
        r"\toprule",
        " & ".join(map(latex_text, _heads(frame))) + r" \\",
        r"\midrule",
        *(rf"{row} \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _heads(frame: pd.DataFrame) -> list[str]:
    """Return the names of columns as a reader has them."""
    return [str(name).replace("_", " ") for name in frame.columns]


def _alignment(frame: pd.DataFrame, text: str, number: str) -> list[str]:
    return [number if pd.api.types.is_numeric_dtype(frame[n]) else text for n in frame.columns]


def _texts(frame: pd.DataFrame, digits: int) -> Iterator[list[str]]:
    """Yield the rows as text; a column of whole numbers has no digits after the point."""
    values = [frame[name].tolist() for name in frame.columns]
    whole = [
        all(v.is_integer() or not math.isfinite(v) for v in column if isinstance(v, float))
        for column in values
    ]
    columns = [
        [_cell(value, 0 if is_whole else digits) for value in column]
        for column, is_whole in zip(values, whole, strict=True)
    ]
    yield from map(list, zip(*columns, strict=True))


def _cell(value: object, digits: int) -> str:
    """Return a value as text: nan is a dash, a fraction has some digits, and none becomes 0."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞"
    least = 10**-digits
    return f"<{least:.{digits}f}" if 0 < value < least / 2 else f"{value:.{digits}f}"


def latex_text(text: str) -> str:
    """Escape the characters that LaTeX does not print as they are."""
    return "".join(LATEX.get(character, character) for character in text)


def _number(text: str) -> str:
    marks = {"-": "$-$", NONE: "--", "<": "$<$", "∞": r"$\infty$", "†": r"\textdagger{}"}
    return "".join(marks.get(character, character) for character in text)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the lines of a frame as objects for JSON; what is not a number is None."""
    lines = frame.astype(object)
    return lines.where(lines.notna(), None).to_dict("records")


def write_json(content: object, path: str | Path | None) -> str:
    """Return content as JSON, and write it to a file if one is named."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False, default=str)
    if path is not None:
        Path(path).write_text(text + "\n", encoding="utf-8")
    return text


def html_table(frame: pd.DataFrame) -> str:
    """Return a small frame as an HTML table; every text is escaped."""
    head = Markup("").join(Markup("<th>{}</th>").format(name) for name in frame.columns)
    rows = [
        Markup("<tr>{}</tr>").format(
            Markup("").join(Markup("<td>{}</td>").format(escape(value)) for value in row)
        )
        for row in frame.itertuples(index=False)
    ]
    body = Markup("").join(rows)
    table = Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>")
    return str(table.format(head, body))
