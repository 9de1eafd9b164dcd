"""Large pages that open fast: what is far down is moved into files that the script of a page loads.

A run of many layers and protocols has pages of several megabytes, most of them figures and rows of
tables that nobody sees before scrolling. From the end of such a page on, the content of figures and
the later rows of long tables are replaced by placeholders, until the rest is small enough. The
script fills a placeholder when it comes near the window (``assets/site.js``). A figure keeps its
size, and is also there without scripts, as the file that it was written to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from heatproof.report.site import Site

MOST_BYTES = 800_000  # of a page, which is not compressed on disk
LARGE = 3000  # characters of a figure that is worth a file
ROWS = 60  # of a table that stay in the page
ROWS_AT_ONCE = 400  # of a table that are loaded together

MORE = "more rows … <noscript>which need scripts; summary.csv has all scores</noscript>"

_FIGURE = re.compile(r'(<svg [^>]*class="chart [^>]*)>((?:(?!<svg).)*?)</svg>', re.DOTALL)
_BODY = re.compile(r"<tbody>(.*?)</tbody>", re.DOTALL)
_FILE = re.compile(r'href="(figures/[^"]+\.svg)"')


class _Part(NamedTuple):
    """A part of a page that can be moved: where it stands, its content, what stays around it."""

    begin: int
    end: int
    content: str
    before: str
    after: str


def defer(page: str, name: str, site: Site) -> str:
    """Return a page without the parts that its script loads later, which are written to the site.

    Args:
        page: The page as HTML.
        name: What its files are called.
        site: The site.
    """
    excess = len(page.encode()) - MOST_BYTES
    if excess <= 0:
        return page
    found = sorted([*_figures(page), *_rows(page)], reverse=True)
    pieces = []
    end = len(page)
    for number, part in enumerate(found):
        if excess <= 0:
            break
        if part.end > end:  # it contains one that was moved
            continue
        data = f"parts/{name}-{number:03d}"
        site.data(data, part.content)
        pieces += [page[part.end : end], part.before.format(name=data) + part.after]
        end = part.begin
        excess -= len(part.content.encode())
    pieces.append(page[:end])
    return "".join(reversed(pieces))


def _figures(page: str) -> Iterator[_Part]:
    """Yield large figures, of which the opening tag stays: it has their size."""
    for match in _FIGURE.finditer(page):
        opening, content = match.groups()
        if len(content) < LARGE:
            continue
        before = opening.replace("{", "{{").replace("}", "}}") + ' data-deferred="{name}"></svg>'
        files = _FILE.findall(page, max(0, match.start() - 1000), match.start())
        after = f'<noscript><img src="{files[-1]}" alt=""></noscript>' if files else ""
        yield _Part(match.start(), match.end(), content, before, after)


def _rows(page: str) -> Iterator[_Part]:
    """Yield the later rows of long tables, some hundred at a time."""
    for match in _BODY.finditer(page):
        ends = [row.end() for row in re.finditer("</tr>", page[match.start(1) : match.end(1)])]
        for begin in range(ROWS, len(ends), ROWS_AT_ONCE):
            last = min(begin + ROWS_AT_ONCE, len(ends))
            first, until = (match.start(1) + ends[i - 1] for i in (begin, last))
            before = f'</tbody><tbody data-deferred="{{name}}" data-rows="{last - begin}">'
            after = f'<tr><td class="soft" colspan="99">{MORE}</td></tr>'
            yield _Part(first, until, page[first:until], before, after)
