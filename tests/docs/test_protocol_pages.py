"""Every protocol has a page whose formula, example, facts and citation are right."""

import contextlib
import html as entities
import io
import re
from pathlib import Path

import pytest
from PIL import Image
from printed import same_output

from heatproof.protocols import PROTOCOLS
from heatproof.report.bibliography import entries, keys_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHIPPED = [entry.id for entry in PROTOCOLS if entry.cls.source is None]
PARTS = [
    "Formula",
    "Checked by hand",
    "Settings, cost and range",
    "What controls score",
    "Traps",
    "What it cannot tell",
    "Paper and code",
]
FAMILIES = [f"../method-families/{path.stem}" for path in (DOCS / "method-families").glob("*.md")]
OTHERS = ["../out-of-domain", "../statistics-methods", "../statistics-others"]  # with formulas
MOST_WORDS = 1500
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
FORMULA = re.compile(r"(?<![`$])(\$\$?)(?!\$)(.+?)\1", re.DOTALL)


def read(name: str) -> str:
    return (DOCS / f"protocols/{name}.md").read_text(encoding="utf-8")


def test_every_protocol_has_a_page():
    pages = {path.stem for path in (DOCS / "protocols").glob("*.md")} - {"README"}
    assert pages == set(SHIPPED)
    assert set(re.findall(r"\]\(([\w-]+)\.md\)", read("README"))) == pages


@pytest.mark.parametrize("name", SHIPPED)
def test_a_page_has_all_parts_a_picture_and_no_more_words_than_a_reader_has_time_for(name):
    text = read(name)
    assert re.findall(r"^## (.+)$", text, re.M) == PARTS
    assert re.match(rf"# .+ \(`{name}`\)\n\n\*\*The question\.\*\* .+\?\n", text)
    assert f"](../img/protocols/{name}.png)" in text
    assert len(text.split()) <= MOST_WORDS
    with Image.open(DOCS / f"img/protocols/{name}.png") as picture:
        assert picture.width > 2 * picture.height


@pytest.mark.parametrize("name", [*SHIPPED, "../out-of-domain"])
def test_the_example_prints_what_the_page_says(name):
    ((code, expected),) = EXAMPLE.findall(read(name))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, f"{name}.md", "exec"), {"__name__": "example"})
    assert same_output(printed.getvalue(), expected), printed.getvalue()


@pytest.mark.parametrize("name", SHIPPED)
def test_the_facts_are_those_of_the_registry(name, site):
    assert site.reference.protocol_facts(name) in read(name)


@pytest.mark.parametrize("name", SHIPPED)
def test_controls_have_scores_and_known_ones_are_right(name):
    """A random map scores what the registry says, a map that is the same everywhere its share."""
    heads, _, cells = re.findall(r"^\|.*\|$", read(name).split("## What controls score")[1], re.M)
    row = dict(zip(re.findall(r"`(\w+)`", heads), cells.strip("| ").split(" | "), strict=True))
    expected = PROTOCOLS[name].cls().facts()["random_score"]
    if expected is not None and name != "srg":  # whose unit is the logit
        assert abs(float(row["random"].replace("−", "-")) - expected) < 0.1
    if name in ("gridpg", "difull", "dipart"):
        assert row["constant"] == "0.25"
    if name == "attr-mass":
        assert row["object"] == "1.00"


@pytest.mark.parametrize("name", SHIPPED)
def test_a_page_links_the_papers_that_the_protocol_names(name):
    last = read(name).split("## Paper and code")[1]
    links = re.findall(r"\]\((https://(?:doi\.org|arxiv\.org/abs)/[\w./-]+)\)", last)
    assert links
    known = entries()
    for key in keys_of(PROTOCOLS[name].cls.citation):
        address = re.search(r"(?:url|doi) = \{(.+?)\}", known[key])
        assert address is not None, key
        assert any(link.endswith(address[1].removeprefix("https://arxiv.org")) for link in links)


@pytest.mark.parametrize("name", ["README", *SHIPPED, *FAMILIES, *OTHERS])
def test_formulas_become_mathml_and_are_safe_on_github(name, site):
    """GitHub takes a backslash before punctuation as an escape, within formulas too."""
    text = re.sub(r"```.*?```", "", read(name), flags=re.DOTALL)
    formulas = FORMULA.findall(text)
    assert bool(formulas) == (name != "README")
    for _, tex in formulas:
        assert not re.search(r"\\[^a-zA-Z\s]", tex), tex
        html = f'<span class="arithmatex">\\({entities.escape(tex)}\\)</span>'
        found = site.FORMULA.sub(site.mathml, html)
        assert re.match("<math.*</math>$", found), tex
        assert "\\" not in found, tex
        assert found.count("<mo>&#x02216;</mo>") == tex.count("\\setminus"), tex
