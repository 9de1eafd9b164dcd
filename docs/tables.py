"""Update the generated table of a documentation page; the prose around it is edited by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

FIRST_TABLE = re.compile(r"(?<=\n)(\|(?: --- \|)+\n)(?:\|.*\n)*")


def replace_rows(page: Path, rows: Iterable[str]) -> None:
    """Replace the body of the first table of a Markdown page; its heading stays."""
    body = "".join(f"{row}\n" for row in rows)
    text = page.read_text(encoding="utf-8")
    if not FIRST_TABLE.search(text):
        raise SystemExit(f"{page} has no table to update")
    page.write_text(FIRST_TABLE.sub(lambda table: table[1] + body, text, 1), encoding="utf-8")
