"""The files of a report under construction; their names never come from ids or labels of a run."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup

from heatproof.errors import HeatproofError
from heatproof.figures import svg
from heatproof.figures.charts import Chart
from heatproof.figures.numbers import NO_NAMES
from heatproof.text import printable, without_formulas

PICTURE_BYTES = 20_000_000  # of the explorer, so that a report stays below 30 MB
SINGLE_PICTURE_BYTES = 10_000_000
SINGLE_BYTES = 25_000_000  # of a report in one file, which a browser reads as a whole
MIME_TYPES = {
    ".css": "text/css",
    ".csv": "text/csv",
    ".gz": "application/gzip",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
    ".bib": "text/plain",
    ".yaml": "text/plain",
}


class Figure(NamedTuple):
    """A figure in the page, and the files that hold it as well and its numbers, if it has any."""

    svg: Markup
    file: str
    data: str = ""


class Site:
    """A directory that files are written to.

    Args:
        root: The directory.
    """

    picture_bytes = PICTURE_BYTES  # for the maps of the explorer

    def __init__(self, root: Path):
        self.root = root
        self.names = NO_NAMES  # what figures write in place of labels of methods
        self._figures = 0
        self._pictures: dict[bytes, str] = {}

    def write(self, name: str, content: bytes | str) -> str:
        r"""Write a file and return the link to it.

        Characters that are not allowed in XML, or cannot be encoded, become escapes such as \x1b.
        """
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_encoded(content))
        return name

    def picture(self, image: bytes) -> str:
        """Write a picture, if there is no equal one yet, and return the link to it.

        Args:
            image: A PNG or WebP file.
        """
        if image not in self._pictures:
            number = len(self._pictures) + 1
            suffix = "png" if image.startswith(b"\x89PNG") else "webp"
            self._pictures[image] = self.write(f"pictures/{number:05d}.{suffix}", image)
        return self._pictures[image]

    def figure(self, chart: Chart | Markup) -> Figure:
        """Write a figure to a file of its own, and its numbers beside it.

        Args:
            chart: A chart, or SVG, whose numbers are not known.
        """
        self._figures += 1
        name = f"figures/figure-{self._figures:02d}"
        data = ""
        drawn = chart if isinstance(chart, Markup) else svg.draw(chart, self.names)
        if isinstance(chart, Chart) and chart.table:
            numbers = without_formulas(pd.DataFrame(chart.table))
            data = self.write(f"{name}.csv", numbers.to_csv(index=False))
        return Figure(drawn, self.write(f"{name}.svg", svg.standalone(drawn)), data)

    def pictures(self, chart: Chart) -> None:
        """Note a chart that the page shows as pictures of its own."""

    def data(self, name: str, value: object) -> None:
        """Write data that a script of the report reads when it needs them.

        A page that is opened from disk may not read other files, but may run scripts beside it.
        So the file calls a function with the data.

        Args:
            name: Under which a script asks for them; a path of the site.
            value: What JSON can represent. Texts of a run must not be keys.
        """
        self.write(f"{name}.js", f"heatproofData({json.dumps(name)}, {_json(value)});\n")


class Charts(Site):
    """The charts of sections, without any file.

    Attributes:
        charts: The charts, in the order of the page.
    """

    picture_bytes = 0

    def __init__(self) -> None:
        super().__init__(Path())
        self.charts: list[Chart] = []

    def write(self, name: str, content: bytes | str) -> str:
        """Write nothing."""
        return name

    def figure(self, chart: Chart | Markup) -> Figure:
        """Collect a chart."""
        if isinstance(chart, Chart):
            self.charts.append(chart)
        return Figure(Markup(""), "")

    def pictures(self, chart: Chart) -> None:
        """Collect a chart."""
        self.charts.append(chart)


class SingleFile(Site):
    """A report in one file: everything else is part of its page.

    Args:
        root: The directory that the page is written to.
    """

    picture_bytes = SINGLE_PICTURE_BYTES

    def __init__(self, root: Path):
        super().__init__(root)
        self.blocks: dict[str, Markup] = {}  # data by name, as JSON that is safe within HTML
        self._bytes = 0

    def write(self, name: str, content: bytes | str) -> str:
        """Return a file as a link that contains it."""
        kind = MIME_TYPES[Path(name).suffix]
        text = base64.b64encode(_encoded(content)).decode()
        self._count(len(text))
        return f"data:{kind};base64,{text}"

    def data(self, name: str, value: object) -> None:
        """Add data to the page."""
        text = _json(value).replace("<", "\\u003c").replace("&", "\\u0026")
        self._count(len(text))
        self.blocks[name] = Markup(text)

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > SINGLE_BYTES:
            raise HeatproofError(
                f"in one file, this report would have more than {SINGLE_BYTES // 1_000_000} MB, "
                "which browsers open slowly; build the site, a directory of small files: "
                "heatproof report RUN"
            )


def _encoded(content: bytes | str) -> bytes:
    return printable(content).encode() if isinstance(content, str) else content


def _json(value: object) -> str:
    """Return JSON in ASCII, with escapes in place of unsafe characters; nan is not allowed."""
    return json.dumps(_printable(value), separators=(",", ":"), allow_nan=False)


def _printable(value: object) -> object:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list | tuple):
        return [_printable(part) for part in value]
    if isinstance(value, dict):
        return {key: _printable(part) for key, part in value.items()}
    return value
