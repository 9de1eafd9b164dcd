"""The console, the style of tables, and what may reach a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from heatproof.text import printable


class SafeConsole(Console):
    """A console on which text cannot act as a command, whatever names and messages contain."""

    def __init__(self, **options: Any):
        super().__init__(emoji=False, **options)  # net.py:two: has no emoji

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


console = SafeConsole()


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
