"""The documentation site builds without a warning, and needs nothing from elsewhere."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import heatproof.api
from heatproof.cli import main

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(r'<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)="([^"]+)"')
pytestmark = pytest.mark.slow


def pages_of(site):
    """Return the pages of the site without reports, which have tests of their own."""
    return [p for p in sorted(site.rglob("*.html")) if p.relative_to(site).parts[0] != "gallery"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return folder


def test_nothing_is_fetched_from_elsewhere(site):
    pages = pages_of(site)
    assert len(pages) > 50
    for page in pages:
        for target in FETCHED.findall(page.read_text(encoding="utf-8")):
            assert not target.startswith(("http:", "https:", "//")), f"{page.name}: {target}"
            path = (page.parent / target.partition("#")[0].partition("?")[0]).resolve()
            assert path.exists(), f"{page.name}: {target}"


LINK = re.compile(r'<a\b[^>]*?\bhref="(?!\w+:|//)([^"]*)"')


def test_no_link_is_dead(site):
    pages = {page: page.read_text(encoding="utf-8") for page in pages_of(site)}
    marks = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    count = 0
    for page, text in pages.items():
        for target in set(LINK.findall(text)):
            file, _, mark = html.unescape(unquote(target)).partition("#")
            path = (page.parent / file).resolve() if file else page
            assert path.exists(), f"{page.name}: {target}"
            assert not mark or path not in marks or mark in marks[path], f"{page.name}: {target}"
            count += 1
    assert count > 5000


NAMES = """
import json
from heatproof.baselines import BASELINES
from heatproof.methods import METHODS
from heatproof.protocols import PROTOCOLS

registries = {"methods": METHODS, "protocols": PROTOCOLS, "baselines": BASELINES}
print(json.dumps({kind: [entry.id for entry in entries] for kind, entries in registries.items()}))
"""


def shipped_names():
    """Return what the registries hold in a new process; other tests add their own in this one."""
    process = subprocess.run([sys.executable, "-c", NAMES], capture_output=True, check=True)
    return json.loads(process.stdout)


def test_the_reference_has_everything_that_can_be_named(site):
    def read(name):
        return (site / f"reference/{name}.html").read_text(encoding="utf-8")

    for page, names in {"cli": main.commands, **shipped_names()}.items():
        text = read(page)
        for name in names:
            anchor = name.replace("++", "-plus-plus")
            assert f'id="{anchor}"' in text, f"{page}: {name}"
    text = read("api")
    for name in heatproof.api.__all__:
        assert re.search(rf'id="heatproof\.[\w.]*\b{name}"', text), name


def test_pages_show_no_markup_and_no_objects(site):
    """Backslashes before bars, boxes of lists, placeholders, and the repr of something."""
    leftovers = re.compile(r"\\\||\[ \] |<!-- report|inspect\._empty|&lt;class |object at 0x")
    for page in pages_of(site):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not leftovers.search(text.partition("<article")[2]), page.name


def test_long_pages_have_a_table_of_contents(site):
    """Material shows what is below the first heading of level 1, and nothing below a second."""
    for page in pages_of(site):
        text = page.read_text(encoding="utf-8")
        assert len(re.findall(r"<h1\b", text)) == 1, page.name
        if len(re.findall(r"<h2\b", text)) > 1:
            assert "Table of contents" in text, page.name


def test_notebooks_are_shown_with_their_outputs(site):
    pages = sorted((site / "notebooks").glob("*.html"))
    assert len(pages) == 5
    for page in pages:
        assert 'class="output"' in page.read_text(encoding="utf-8"), page.name
    assert len(list((site / "notebooks").glob("*.png"))) >= 3


@pytest.mark.browser
def test_search_works_from_disk_without_a_request(site, browser):
    page = browser.new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("soundness")
    page.wait_for_selector(".md-search-result__item", timeout=20_000)
    page.close()
    assert all(url.startswith(("file:", "data:", "about:")) for url in requested), requested
