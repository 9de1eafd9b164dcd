"""The console, and the style of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

console = Console()


def print_plain(text: str) -> None:
    """Print text that may contain brackets or paths, without markup, highlighting or wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def make_table(columns: Mapping[str, str], **style: Any) -> Table:
    """Return an empty table.

    Args:
        columns: Justification by column title.
        **style: Further options of rich's ``Table``.
    """
    table = Table(box=box.SIMPLE_HEAD, **style)
    for column, justify in columns.items():
        no_wrap = column == "method"  # names are identified by their ends as well
        table.add_column(column, justify=justify, no_wrap=no_wrap)  # type: ignore[arg-type]
    return table


def duration(seconds: float) -> str:
    """Format a duration as seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
