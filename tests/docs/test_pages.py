"""Code, commands and specs on the pages of the documentation are run or checked."""

import contextlib
import io
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import yaml
from click import Option
from printed import same_output

from heatproof.baselines import BASELINES
from heatproof.cli import main
from heatproof.data.images import MOST_PIXELS
from heatproof.methods import METHODS
from heatproof.models.vision import import_torchvision
from heatproof.plan.spec import MAX_ENTRIES, make_spec
from heatproof.protocols import PROTOCOLS
from heatproof.runs.run import MOST_SAMPLES_READ

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
OTHERS = [*sorted(ROOT.glob("[CS]*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
LONGEST = 40  # lines of a page that says how to do something, without what is printed


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(
        rf"^( *)```{language}\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.DOTALL | re.M
    )
    return [text for _, text in found]


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    """Forget what the pages register."""
    for registry in (METHODS, BASELINES):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
        monkeypatch.setattr(registry, "_objects", dict(registry._objects))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [DOCS / "tutorial.md", *HOW_TO], ids=name_of)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_python_code_of_a_page_runs(page, tmp_path, monkeypatch):
    code = "\n".join(blocks(page, "python"))
    if not code:
        pytest.skip("no code")
    if "transformers" in code:
        import_torchvision()  # it mends a build of torchvision that does not fit torch
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(code)
    names = {"__name__": page.stem.replace("-", "_")}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(tmp_path / "mine.py"), "exec"), names)
    if page in HOW_TO:  # the tutorial has a test of its own
        for text in re.findall(r"```python\n.*?```\n\n```text\n(.*?)```", read(page), re.DOTALL):
            for line in filter(None, text.splitlines()):
                found = printed.getvalue().splitlines()
                assert any(same_output(other, line, 0.02) for other in found), line
    if "build" in names:
        assert list(names["build"]().classes) == ["ant", "bee", "cat"]
    result = names.get("result")
    if result is not None:
        assert set(result.scores["status"]) == {"ok"}, result.left_out


@pytest.mark.parametrize("page", HOW_TO, ids=name_of)
def test_pages_on_how_to_do_something_are_short(page):
    typed = re.sub(r"```text\n.*?```\n", "", read(page), flags=re.DOTALL)
    assert len(typed.splitlines()) <= LONGEST


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_exist(page):
    code = "\n".join(blocks(page, r"(?:bash|sh|text)"))
    for line in re.findall(r"^ *(?:\$ )?heatproof (.+)$", code, re.M):
        words = line.partition(" #")[0].split()
        assert words[0] in {*main.commands, "COMMAND", "--version"}, line
        if words[0] not in main.commands:
            continue
        command = main.commands[words[0]]
        known = {
            name
            for p in command.params
            if isinstance(p, Option)
            for name in (*p.opts, *p.secondary_opts)
        }
        given = {word for word in words[1:] if re.fullmatch(r"--?[a-z][a-z-]*", word)}
        assert given <= known, line


@pytest.mark.parametrize("page", [DOCS / "tutorial.md", *HOW_TO], ids=name_of)
def test_specs_are_valid(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("\n".join(blocks(page, "python")))
    for text in blocks(page, "yaml"):
        assert make_spec(yaml.safe_load(text)).expressions()


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_links_to_files_of_the_repository_exist(page):
    """Links to headings as well, whose addresses are those of GitHub and of the site."""
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", without_code(page)):
        file, _, heading = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        if heading and path.suffix == ".md":
            assert heading in headings(path), target


def without_code(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@cache
def headings(page: Path) -> set[str]:
    """Return the addresses within a page: its headings in lower case with hyphens, and marks."""
    text = without_code(page)
    titles = [
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", t) for t in re.findall(r"^#+ (.+)$", text, re.M)
    ]
    slugs = [re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles]
    return {slug.replace(" ", "-") for slug in slugs} | set(re.findall(r'<a id="([^"]+)"', text))


def test_the_reference_in_the_repository_is_that_of_the_code(tmp_path):
    """In a new process: other tests add methods and protocols of their own in this one."""
    script = DOCS / "make_reference.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    written = sorted((DOCS / "reference").glob("*.md"))
    assert [p.name for p in written] == sorted(p.name for p in (tmp_path / "reference").iterdir())
    for page in written:
        new = (tmp_path / "reference" / page.name).read_text(encoding="utf-8")
        assert page.read_text(encoding="utf-8") == new, f"{page.name}: make reference"


def test_the_page_on_protocols_asks_a_question_and_states_the_facts_for_each(reference):
    text = (DOCS / "which-protocol.md").read_text(encoding="utf-8")
    questions, facts = text.split("\n## What each costs\n")
    shipped = {entry.id for entry in PROTOCOLS if entry.cls.source is None}
    assert set(re.findall(r"\]\(protocols/([\w-]+)\.md\)", questions)) == shipped
    for row in reference.protocol_table("protocols/{}.md").splitlines()[2:]:
        assert f"\n{row}\n" in facts, "make protocols"


def test_the_table_of_protocols_in_the_readme_states_the_facts_of_the_registry():
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Protocols\n")[1]
    rows = re.findall(r"^\| (`.*?) \| .* \| (\w+) \| (.*?) \| (.*?) \|$", text, re.M)
    listed = []
    for names, better, limits, random in rows:
        for name in re.findall(r"`([\w-]+)`", names):
            listed.append(name)
            facts = PROTOCOLS[name].cls().facts()
            assert better == ("higher" if facts["higher_is_better"] else "lower")
            if facts["range"] is None:
                assert limits == "the score's"
            else:
                assert [float(n.replace("−", "-")) for n in limits.split(" … ")] == list(
                    facts["range"]
                )
            expected = facts["random_score"]
            assert random == ("depends" if expected is None else f"{expected:.2g}"), name
    assert sorted(listed) == sorted(entry.id for entry in PROTOCOLS if entry.cls.source is None)


@pytest.mark.parametrize("spec", sorted((ROOT / "examples/gallery").glob("*.yaml")), ids=name_of)
def test_the_gallery_shows_every_report(spec):
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert make_spec(yaml.safe_load(spec.read_text(encoding="utf-8"))).expressions()
    assert f"heatproof run {name_of(spec)} " in text
    assert f"<!-- report: {spec.stem} -->" in text
    assert f"](img/gallery/{spec.stem}.png)" in text


FOR_REFERENCE = {"architecture", *(path.stem for path in (DOCS / "reference").glob("*.md"))}
MOST_WORDS = 1500  # outside tables and code, which are looked up and not read


@pytest.mark.parametrize(
    "page", [path for path in PAGES if path.stem not in FOR_REFERENCE], ids=name_of
)
def test_no_page_is_longer_than_a_reader_has_time_for(page):
    skipped = r"^\|[^\n]*$|<!--.*?-->|!\[[^\]]*\]|^\$\$.*?^\$\$|\]\([^)]*\)"
    prose = re.sub(skipped, "", without_code(page), flags=re.M | re.S)
    assert len(prose.split()) <= MOST_WORDS


QUOTED = re.compile(r'`[^`]*`|"[^"]*"|\]\([^)]*\)|\$[^$]*\$|<[^>]*>')
SPELLED = {
    "with z: normalize, optimize": r"\w*(?:al|im|ys|gn|ar|om|at)is(?:e[ds]?|ing|ation)\b",
    "a zero before the point": r"(?<![\w.\d/])\.\d",
    "commas between thousands": r"\b\d{1,3} \d{3}\b(?! px)",
    "words of the project": r"(?i)\b(?:on the birds|the print|landmarks?)\b",
}
IN_A_TITLE = {"Randomisation"}  # of a paper


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_spelling_and_digits_are_the_same_on_all_pages(page):
    text = QUOTED.sub("", without_code(page))
    for rule, pattern in SPELLED.items():
        found = [match[0] for match in re.finditer(pattern, text)]
        assert not set(found) - IN_A_TITLE, rule


WORDS = {15: "fifteen", 20: "twenty", 21: "twenty-one", 25: "twenty-five"}


def test_counts_and_versions_on_the_pages_are_those_of_the_code():
    """The numbers of what ships; the versions that the comparison was made with are pinned."""

    def read(name):
        return (ROOT / name).read_text(encoding="utf-8")

    protocols = sum(entry.cls.source is None for entry in PROTOCOLS)
    baselines = sum(entry.source is None for entry in BASELINES)
    comparison = read("docs/comparison.md")
    assert f"| {protocols} protocols |" in comparison
    assert f"| {baselines}, and out-of-domain distances |" in comparison
    assert f"`sds` is one of {WORDS[protocols]}," in read("docs/tutorial.md")
    limits = read("docs/limits.md")
    assert f"| {MAX_ENTRIES:,} each |" in limits
    assert f"| {MOST_PIXELS // 10**6} million |" in limits
    assert f"| {MOST_SAMPLES_READ:,}; tables use all |" in limits
    constraints = read("constraints.txt")
    for title, package in {
        "Quantus": "quantus",
        "Captum": "captum",
        "grad-cam": "grad-cam",
    }.items():
        assert f"{package}=={re.search(rf'{title} ([0-9.]+[0-9])', comparison)[1]}\n" in constraints
    quickstart = make_spec(yaml.safe_load(read("src/heatproof/studies/quickstart.yaml")))
    methods = {entry.label for entry in quickstart.expressions()}  # as reports count
    assert f"run {WORDS[len(methods)]} methods" in read("README.md")
    assert f"{WORDS[len(methods)]} methods" in quickstart.about


@pytest.mark.parametrize("paper", ["hesse2024", "rao2024", "picard2024", "li2024"])
def test_a_page_of_a_paper_has_claims_what_is_implemented_differences_and_limitations(paper):
    text = (DOCS / f"{paper}.md").read_text(encoding="utf-8")
    head, claims, provided, differences, limitations = text.split("\n## ")
    assert re.search(r"https://(doi|arxiv)\.org/", head) and "](img/" in head
    assert claims.startswith("What it claims, and what is found here\n")
    assert "| the paper says | where" in claims and re.search(r"\bn = \d", claims)
    assert f"]({paper}-results.md" in claims and "`heatproof " in provided
    assert provided.startswith("What heatproof provides\n")
    assert differences.startswith("Where text and code differ\n")
    assert f"]({paper}-deviations.md)" in differences
    assert limitations.startswith("Limitations\n")
    assert len(text.split()) <= 1500
    all_differences = (DOCS / f"{paper}-deviations.md").read_text(encoding="utf-8")
    assert re.search(r"\*\*Where [^*]*differ[^*]*\*\*", all_differences)
    assert "`heatproof run " in (DOCS / f"{paper}-results.md").read_text(encoding="utf-8")


def test_the_page_on_two_yardsticks_has_claims_what_is_implemented_differences_and_results():
    text = (DOCS / "li2024-falsification.md").read_text(encoding="utf-8")
    for heading in ("**What the paper claims.**", "**What heatproof provides.**", "\n## Results"):
        assert heading in text
    assert re.search(r"\*\*Where [^*]*(differ|silent)[^*]*\*\*", text)


def test_the_evidence_for_what_was_found_in_the_papers_exists():
    text = (DOCS / "found-in-the-papers.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 15
    for file, name in named:
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), name
    for item in text.split("\n### ")[1:]:
        assert re.search(r"`tests/|`heatproof |published\.csv|Supplement C", item), item


@pytest.mark.parametrize("path", sorted((DOCS / "results").rglob("*.csv")), ids=name_of)
def test_a_table_of_results_is_linked_and_whole(path):
    """Every line has a cell for each column, and an estimate lies within its interval."""
    name = path.relative_to(DOCS).as_posix()
    paper = path.parent.name
    pages = [page.read_text(encoding="utf-8") for page in DOCS.glob(f"{paper}-*.md")]
    assert sum(f"]({name})" in page for page in pages) == 1
    picture = f"img/results/{path.relative_to(DOCS / 'results').with_suffix('.png').as_posix()}"
    assert (DOCS / picture).exists() and sum(f"]({picture})" in page for page in pages) == 1
    table = pd.read_csv(path)
    assert len(table) and not table.isna().all().any()
    for column in table:
        if f"{column} low" in table:
            known = table[pd.to_numeric(table[column], errors="coerce").notna()]
            ends = [f"{column}{end}" for end in ("", " low", " high")]
            value, low, high = (known[end].astype(float) for end in ends)
            assert ((low <= value) & (value <= high) | low.isna()).all(), column
