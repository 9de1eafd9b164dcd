"""A page of a leaderboard: one file, in the style of the report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup

import heatproof
from heatproof.analysis import wording
from heatproof.results.comparison_page import STYLE, page_templates, sha256_source
from heatproof.results.leaderboard import Leaderboard, RunNote

SCRIPT = STYLE.parent / "site.js"
ENTRY = ["method", "model", "run"]


def leaderboard_page(board: Leaderboard, out: Path) -> str:
    """Return a leaderboard as HTML; tables can be sorted and filtered.

    It needs nothing else. Every text of a run is escaped.

    Args:
        board: The tables.
        out: Where the page is written; links to reports of runs on this machine are relative to it.
    """
    style, script = (path.read_text(encoding="utf-8") for path in (STYLE, SCRIPT))
    policy = (
        f"default-src 'none'; style-src {sha256_source(style)}; "
        f"script-src {sha256_source(script)}; base-uri 'none'; form-action 'none'"
    )
    return (
        page_templates()
        .get_template("leaderboard.html.j2")
        .render(
            board=board,
            explained=wording.LEADERBOARD_EXPLAINED,
            overall=_overall(board),
            links={name: _link(note, out) for name, note in board.runs.items()},
            style=Markup(style),
            script=Markup(script),
            policy=policy,
            version=heatproof.__version__,
        )
    )


def _overall(board: Leaderboard) -> list[dict[str, Any]]:
    """Return in how many tables each entry is and may be the best, and its mean place."""
    lines = pd.concat([table.lines for table in board.boards], ignore_index=True)
    groups = lines.groupby(ENTRY, sort=False)
    frame = groups.agg(
        best=("may_be_best", "sum"),
        tables=("method", "size"),
        place=("place", "mean"),
        control=("control", "all"),
    ).reset_index()
    order = frame.sort_values(["best", "place"], ascending=[False, True], kind="stable")
    return order.to_dict("records")


def _link(note: RunNote, out: Path) -> str:
    """Return the address of a report: of the web, or of a file that there is; empty for none."""
    if note.root is None:
        return note.report
    page = note.root / "report" / "index.html"
    if not page.is_file():
        return ""
    try:
        relative = os.path.relpath(page.resolve(), out.absolute().parent)
    except ValueError:  # on another drive
        return page.resolve().as_uri()
    return quote(Path(relative).as_posix())
