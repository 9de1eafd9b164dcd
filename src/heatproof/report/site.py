"""The files of a site under construction. Names are made here, never from ids or labels of a run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from heatproof.report.charts import standalone


class Figure(NamedTuple):
    svg: Markup
    file: str


class Site:
    def __init__(self, root: Path):
        self.root = root
        self._figures = self._pictures = 0
        self._known: dict[bytes, str] = {}

    def write(self, name: str, content: bytes | str) -> str:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return name

    def picture(self, png: bytes) -> str:
        """Equal pictures are one file."""
        if png not in self._known:
            self._pictures += 1
            self._known[png] = self.write(f"pictures/{self._pictures:05d}.png", png)
        return self._known[png]

    def figure(self, svg: Markup) -> Figure:
        self._figures += 1
        return Figure(svg, self.write(f"figures/figure-{self._figures:02d}.svg", standalone(svg)))
