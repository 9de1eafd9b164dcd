"""Parts of large pages that are moved into files, and come back as they were."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from heatproof.report import deferred
from heatproof.report.site import Site

FIGURE = (
    '<figure><figcaption><b>{n}</b><a href="figures/figure-{n}.svg" download>SVG</a></figcaption>'
    '<div><svg xmlns="http://www.w3.org/2000/svg" class="chart ranking" viewBox="0 0 9 9">'
    "{marks}</svg></div></figure>"
)


def figure(number: int, size: int = 5000) -> str:
    return FIGURE.format(n=f"{number:02d}", marks="<g>é{x}</g>" * (size // 11))


def table(rows: int) -> str:
    lines = "".join(f"<tr><td>{i}</td></tr>\n" for i in range(rows))
    return f"<table><thead><tr><th>n</th></tr></thead><tbody>{lines}</tbody></table>"


def restored(page: str, site: Site) -> str:
    """Put all parts back, as the script of a page does."""

    def read(name: str) -> str:
        text = (site.root / f"{name}.js").read_text(encoding="utf-8")
        stored, content = json.loads(f"[{text.removeprefix('heatproofData(').rstrip()[:-2]}]")
        assert stored == name
        return content

    page = re.sub(
        r' data-deferred="([^"]+)"></svg><noscript>.*?</noscript>',
        lambda match: f">{read(match[1])}</svg>",
        page,
    )
    return re.sub(
        r'</tbody><tbody data-deferred="([^"]+)" data-rows="\d+"><tr>.*?</tr>',
        lambda match: read(match[1]),
        page,
    )


def test_a_small_page_stays_as_it_is(tmp_path: Path):
    page = figure(1) + table(200)
    assert deferred.defer(page, "ranking", Site(tmp_path)) == page
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("most", [1000, 8000, 14_000])
def test_parts_come_back_as_they_were(tmp_path: Path, monkeypatch, most: int):
    monkeypatch.setattr(deferred, "MOST_BYTES", most)
    monkeypatch.setattr(deferred, "ROWS_AT_ONCE", 100)
    page = figure(1) + table(250) + figure(2) + figure(3, 100) + table(30) + "<p>end</p>"
    site = Site(tmp_path)
    small = deferred.defer(page, "ranking", site)
    assert len(small) < len(page)
    assert small.endswith(figure(3, 100) + table(30) + "<p>end</p>")  # too small to be moved
    assert restored(small, site) == page


def test_what_is_near_the_end_is_moved_first(tmp_path: Path, monkeypatch):
    page = figure(1) + figure(2) + figure(3)
    monkeypatch.setattr(deferred, "MOST_BYTES", len(page.encode()) - 4000)
    small = deferred.defer(page, "index", Site(tmp_path))
    assert small.startswith(figure(1) + figure(2))
    assert '<noscript><img src="figures/figure-03.svg" alt=""></noscript>' in small
    assert 'viewBox="0 0 9 9" data-deferred="parts/index-000"></svg>' in small
