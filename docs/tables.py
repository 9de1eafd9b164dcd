"""Update the generated tables of a documentation page; the prose around them is edited by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

TABLE = re.compile(r"(?<=\n)(\|(?: --- \|)+\n)(?:\|.*\n)*")


def replace_rows(page: Path, rows: Iterable[str], table: int = 0) -> None:
    """Replace the body of a table of a Markdown page; its heading stays.

    Args:
        page: The page.
        rows: The new rows.
        table: The number of the table on the page, counted from 0.
    """
    body = "".join(f"{row}\n" for row in rows)
    text = page.read_text(encoding="utf-8")
    tables = list(TABLE.finditer(text))
    if len(tables) <= table:
        raise SystemExit(f"{page} has {len(tables)} tables, and table {table} is to be updated")
    found = tables[table]
    text = text[: found.start()] + found[1] + body + text[found.end() :]
    page.write_text(text, encoding="utf-8")
