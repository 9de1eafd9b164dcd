"""The pages of a report, the report in one file, and what they cite."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from report_text import report_text

import heatproof as hp
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.methods import METHODS
from heatproof.protocols import PROTOCOLS
from heatproof.report import build_single_file
from heatproof.report import site as site_module
from heatproof.report.bibliography import entries, keys_of
from heatproof.report.pages import file_name
from heatproof.report.sections import SECTIONS
from heatproof.report.stored_curves import curves_of, mean_curves

PROTOCOL_NAMES = ["deletion(steps=4)", "insertion(steps=4)", "srg(steps=4)", "road(steps=4)"]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, golden_model) -> hp.Result:
    images = torch.rand(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    data = hp.TensorData(images, [i % 10 for i in range(10)])
    return hp.evaluate(
        golden_model("resnet"),
        data,
        ["ixg", "gradcam", "random"],
        PROTOCOL_NAMES,
        batch_size=10,
        out=tmp_path_factory.mktemp("run") / "tiny",
    )


@pytest.fixture(scope="module")
def page(result: hp.Result) -> Path:
    return result.report()


def test_every_section_is_on_its_page(page: Path):
    for path in page.parent.glob("*.html"):
        found = re.findall(r'<section id="([\w-]+)"', path.read_text())
        assert found
        assert {file_name(SECTIONS[section].page) for section in found} == {path.name}


def test_pages_without_content_are_left_out(page: Path):
    names = {path.name for path in page.parent.glob("*.html")}
    assert "layers.html" not in names and "values.html" not in names
    assert ">Layers</a>" not in report_text(page)
    assert {"index.html", "ranking.html", "explorer.html", "provenance.html"} <= names


def test_the_section_that_a_spec_leads_with_is_on_the_first_page(tmp_path: Path):
    spec = {
        "version": 1,
        "lead": "costs",
        "models": ["paperbirds/resnet"],
        "data": {"name": "paperbirds", "limit": 2},
        "methods": ["ixg", "random"],
        "protocols": ["sds"],
    }
    first = hp.run(spec, tmp_path / "run").report()
    sections = re.findall(r'<section id="([\w-]+)"', first.read_text())
    assert sections == ["costs", "headline"]
    assert 'id="costs"' not in (first.parent / "ranking.html").read_text()


@pytest.mark.parametrize(
    ("title", "file"),
    [("Overview", "index.html"), ("My notes!", "my-notes.html"), ("Ü/../x", "x.html")],
)
def test_the_file_of_a_page_is_safe(title: str, file: str):
    assert file_name(title) == file


def test_a_style_and_scripts_are_shared_by_all_pages(page: Path):
    for path in page.parent.glob("*.html"):
        text = path.read_text()
        assert "<style" not in text and "<script>" not in text
        assert '<link rel="stylesheet" href="style.css">' in text


def test_mean_curves_are_means_of_the_stored_curves(result: hp.Result):
    run = RunStatistics(result.store)
    (standing,) = run.standings
    curves = curves_of(run, standing.settings)
    assert [curve.part for _, curve in curves] == ["", "", "deletion", "insertion", ""]
    means = mean_curves(run, "resnet", curves, standing.methods)
    kept = run.kept("resnet")
    for (key, curve), by_method in means.items():
        assert set(by_method) == {"ixg", "gradcam", "random"}
        for method, mean in by_method.items():
            stored = kept.curves(run.protocols[key], method, curve.name)
            assert mean.samples == 10
            assert mean.values == pytest.approx(stored.double().mean(0).numpy())
            positions = curve.positions(run.protocols[key], len(mean.values))
            expected = [0.25, 0.5, 0.75] if key[0] == "road" else [0, 0.25, 0.5, 0.75, 1]
            assert positions == expected


class Links(HTMLParser):
    """Everything that a page refers to."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for key, value in attrs if key in ("src", "href")]


def test_a_report_in_one_file_needs_nothing_else(result: hp.Result, page: Path, tmp_path: Path):
    file = build_single_file(result, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == [file]
    text = file.read_text()
    links = Links(text).links
    assert len(links) > 20
    assert all(link.startswith(("#", "data:")) for link in links)
    anchors = {link[1:] for link in links if link.startswith("#")}
    assert anchors <= set(re.findall(r' id="([\w-]+)"', text))
    sections = re.findall(r'<section id="([\w-]+)"', text)
    assert sorted(sections) == sorted(re.findall(r'<section id="([\w-]+)"', report_text(page)))
    assert text.count('<script type="application/json"') == 1 + 10


def test_a_report_that_is_too_large_for_one_file_is_refused(
    result: hp.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(site_module, "SINGLE_BYTES", 10_000)
    with pytest.raises(hp.HeatproofError, match="build the site"):
        build_single_file(result, tmp_path / "report.html")
    with pytest.raises(hp.HeatproofError, match="is a directory"):
        build_single_file(result, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_paper_that_heatproof_names_has_an_entry():
    cited = [entry.paper for entry in METHODS if entry.paper]
    cited += [entry.cls.citation for entry in PROTOCOLS]
    for citation in cited:
        keys = keys_of(citation)
        assert keys, citation
        assert set(keys) <= set(entries()), citation
    for key, entry in entries().items():
        author = re.search(r"author = \{([^,]+),", entry)
        assert author is not None
        plain = re.sub(r"[{}\\\"`']", "", author[1]).lower()
        year = re.search(r"year = \{(\d{4})\}", entry)
        assert year is not None and re.fullmatch(f"{plain}{year[1]}[b-z]?", key)
        assert entry.count("{") == entry.count("}")
        assert re.search(r"  (?:doi = \{10\.\d{4,}/\S+|url = \{https://\S+)\}\n", entry), key


def test_the_report_cites_what_the_run_has_used(page: Path):
    text = (page.parent / "papers.bib").read_text()
    keys = re.findall(r"@\w+\{(\w+),", text)
    assert keys[0] == "heatproof"
    assert set(keys[1:]) == {
        "shrikumar2016",  # ixg
        "selvaraju2017",  # gradcam
        "petsiuk2018",  # deletion and insertion
        "picard2024",
        "blucher2024",  # srg
        "rong2022",  # road
    }
    assert "selvaraju2017" in (page.parent / "provenance.html").read_text()


@pytest.mark.parametrize(
    ("citation", "keys"),
    [
        ("Böhle et al. 2022", ["bohle2022"]),
        (
            "Samek et al.: What. TNNLS 2017; as in Hesse et al., NeurIPS 2024",
            ["samek2017", "hesse2024"],
        ),
        ("me", []),
        ("", []),
    ],
)
def test_keys_are_the_first_author_and_the_year(citation: str, keys: list[str]):
    assert keys_of(citation) == keys


def test_the_variance_has_bars_and_a_constant_map_is_no_surprise(tmp_path: Path):
    methods = ["ixg", "ig(steps=5)", "saliency", "gradcam", "constant"]
    protocol = {"name": "sds", "patches": 16, "baseline": ["zero", "blur"]}
    found = hp.evaluate(
        "paperbirds/vgg", "paperbirds:test", methods, [protocol], limit=5, out=tmp_path / "run"
    )
    page = found.report()
    shares = found.variance()["share"]
    bars = re.findall(
        r'<rect width="([\d.]+)" height="12"', page.with_name("stability.html").read_text()
    )
    assert [float(bar) for bar in bars] == pytest.approx((160 * shares.clip(0)).tolist(), abs=0.06)
    assert not any("constant" in caveat for caveat in found.caveats)
