"""The files of a site under construction; their names never come from ids or labels of a run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from heatproof.report.charts import standalone
from heatproof.text import printable


class Figure(NamedTuple):
    """A figure in the page, and the file that holds it as well."""

    svg: Markup
    file: str


class Site:
    """A directory that files are written to.

    Args:
        root: The directory.
    """

    def __init__(self, root: Path):
        self.root = root
        self._figures = 0
        self._pictures: dict[bytes, str] = {}

    def write(self, name: str, content: bytes | str) -> str:
        r"""Write a file and return its name.

        Characters that are not allowed in XML, or cannot be encoded, become escapes such as \x1b.
        """
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(printable(content).encode() if isinstance(content, str) else content)
        return name

    def picture(self, png: bytes) -> str:
        """Write a picture, if there is no equal one yet, and return the name of the file."""
        if png not in self._pictures:
            number = len(self._pictures) + 1
            self._pictures[png] = self.write(f"pictures/{number:05d}.png", png)
        return self._pictures[png]

    def figure(self, svg: Markup) -> Figure:
        """Write a figure to a file of its own."""
        self._figures += 1
        return Figure(svg, self.write(f"figures/figure-{self._figures:02d}.svg", standalone(svg)))
