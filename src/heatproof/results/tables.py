"""Summaries as tables: text for a terminal, HTML, Markdown and LaTeX.

Every format shows the same ranking: one block per model and setting, or one column per setting.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup, escape

from heatproof.analysis import wording
from heatproof.analysis.ranks import Key
from heatproof.analysis.settings import SettingScores
from heatproof.protocols import PROTOCOLS
from heatproof.text import counted, short_titles

WIDTH = 100  # columns of a terminal
MOST_BLOCKS = 6  # rankings in a repr
MOST_LINES = 12  # methods of a ranking in a repr
NONE = "–"
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
    groups = summary.groupby(["model", "protocol", "setting", "baseline"], sort=False)
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
) -> str:
    """Return rankings as text of at most ``WIDTH`` columns; long ones are cut.

    Args:
        heading: The first line.
        summary: What ``Result.summary`` returns.
        caveats: What to know before the numbers are used; never cut.
        verdicts: Which method is the best, in sentences.
    """
    lines = [_cut(heading)]
    for text in [*verdicts[:MOST_BLOCKS], *(f"! {caveat}" for caveat in caveats)]:
        wrapped = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
        lines += wrapped if text.startswith("!") else map(_cut, wrapped)
    every = list(blocks(summary))
    for block in every[:MOST_BLOCKS]:
        title = textwrap.wrap(block.title, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
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
    methods = min(max(len(line.method) for line in shown), WIDTH - rest)
    for line in shown:
        name = _cut(line.method, methods)
        text = (
            f"  {line.rank:>{ranks}}  {name:<{methods}}  {line.mean:>{means}}"
            f"  {line.interval:<{intervals}}  {line.lost}"
        )
        yield _cut(text.rstrip())
    if len(ranking) > MOST_LINES:
        yield f"  and {counted(len(ranking) - MOST_LINES, 'more method')}"


def _cut(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def to_html(
    heading: str,
    summary: pd.DataFrame,
    caveats: Sequence[str] = (),
    verdicts: Sequence[str] = (),
) -> str:
    """Return rankings as small HTML tables; every text is escaped.

    Args:
        heading: The first line.
        summary: What ``Result.summary`` returns.
        caveats: What to know before the numbers are used.
        verdicts: Which method is the best, in sentences.
    """
    every = list(blocks(summary))
    texts = (heading, *verdicts[:MOST_BLOCKS], *caveats)
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
class Cell:
    """The score of a method in a table with one column per setting."""

    mean: float
    low: float
    high: float
    best: bool  # whether it may be the best
    ranked: bool

    def text(self, digits: int, intervals: bool, dash: str = "–") -> str:
        """Return the mean, and the interval if it is asked for; nan is a dash.

        The mean of a method that is not ranked has a dagger.
        """
        if pd.isna(self.mean):
            return dash
        value = f"{self.mean:.{digits}f}{'' if self.ranked else '†'}"
        if intervals and pd.notna(self.low):
            value += f" [{self.low:.{digits}f}, {self.high:.{digits}f}]"
        return value


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
    best = {scores.key: set(scores.pairs.best(scores.pairs.methods)) for scores in settings}
    cells: dict[tuple[str, str], dict[Key, Cell]] = {}
    for row in summary.to_dict("records"):
        key = (row["protocol"], row["setting"], row["baseline"])
        may_be_best = row["method"] in best.get((row["model"], *key), ())
        cell = Cell(row["mean"], row["low"], row["high"], may_be_best, pd.notna(row["rank"]))
        cells.setdefault((row["model"], row["method"]), {})[key] = cell
    return Grid(
        [
            (_with_protocol(key, labels[key]), PROTOCOLS[key[0]].cls.higher_is_better)
            for key in keys
        ],
        [(*name, [of_method.get(key) for key in keys]) for name, of_method in cells.items()],
    )


def _with_protocol(key: Key, label: str) -> str:
    """Return a label that names the protocol, also where a run has but one."""
    return label if label.startswith(key[0]) else f"{key[0]} · {label}"


def to_markdown(table: Grid, digits: int, intervals: bool) -> str:
    """Return a table as Markdown, with the best of each column in bold."""
    names = ["model", "method"] if table.several_models else ["method"]
    arrows = [f"{_markdown(label)} {'↑' if higher else '↓'}" for label, higher in table.columns]
    lines = [[*names, *arrows], [*("---" for _ in names), *("---:" for _ in arrows)]]
    for model, method, cells in table.rows:
        texts = [NONE if cell is None else cell.text(digits, intervals) for cell in cells]
        marked = [
            f"**{text}**" if cell is not None and cell.best else text
            for cell, text in zip(cells, texts, strict=True)
        ]
        named = [model, method] if table.several_models else [method]
        lines.append([*map(_markdown, named), *marked])
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
    return rows + (f"\n{wording.NOT_RANKED_MARK}\n" if table.has_unranked else "")


def _markdown(text: str) -> str:
    """Escape what a table in Markdown would read as markup."""
    for character in "\\|*_`<[":
        text = text.replace(character, f"\\{character}")
    return text


def to_latex(table: Grid, digits: int, intervals: bool) -> str:
    """Return a table as LaTeX for the package booktabs, with the best of each column in bold."""
    names = ["model", "method"] if table.several_models else ["method"]
    arrow = {True: r"$\uparrow$", False: r"$\downarrow$"}
    heads = [f"{latex_text(label)} {arrow[higher]}" for label, higher in table.columns]
    lines = [
        rf"\begin{{tabular}}{{{'l' * len(names)}{'r' * len(heads)}}}",
        r"\toprule",
        " & ".join([*names, *heads]) + r" \\",
        r"\midrule",
    ]
    before = None
    for model, method, cells in table.rows:
        if before not in (None, model):
            lines.append(r"\midrule")
        texts = [NONE if cell is None else cell.text(digits, intervals) for cell in cells]
        marked = [
            rf"\textbf{{{_number(text)}}}" if cell is not None and cell.best else _number(text)
            for cell, text in zip(cells, texts, strict=True)
        ]
        first = [latex_text(model) if model != before else ""] if table.several_models else []
        lines.append(" & ".join([*first, latex_text(method), *marked]) + r" \\")
        before = model
    lines.append(r"\bottomrule")
    if table.has_unranked:
        text = _number(latex_text(wording.NOT_RANKED_MARK))
        lines.append(rf"\multicolumn{{{len(names) + len(heads)}}}{{l}}{{\footnotesize {text}}} \\")
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


def frame_to_markdown(frame: pd.DataFrame, digits: int = 3) -> str:
    """Return a frame as a table in Markdown; numbers have some digits after the point."""
    lines = [list(map(_markdown, frame.columns)), _alignment(frame, "---", "---:")]
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
        " & ".join(map(latex_text, frame.columns)) + r" \\",
        r"\midrule",
        *(rf"{row} \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _alignment(frame: pd.DataFrame, text: str, number: str) -> list[str]:
    return [number if pd.api.types.is_numeric_dtype(frame[n]) else text for n in frame.columns]


def _texts(frame: pd.DataFrame, digits: int) -> Iterator[list[str]]:
    for row in frame.itertuples(index=False):
        yield [_cell(value, digits) for value in row]


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
    if abs(value) >= 1 and value == round(value):
        return f"{value:.0f}"
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
