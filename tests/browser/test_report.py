"""The report in a real browser, opened from disk and from a server."""

from __future__ import annotations

import base64
import shutil
import threading
from pathlib import Path

import pytest
import torch
from PIL import Image
from visitor import serious_findings

import heatproof as hp
from heatproof.report import build_single_file, deferred
from heatproof.report.serve import LiveReport, ReportServer

METHODS = ["saliency", "ixg", "ixg|abs", "gradcam", "random", "constant", "edges"]
EVIL = "<img src=x onerror=\"document.title='taken over'\">.jpg"
FIRST_VIEW_SECONDS = 1.5
FIRST_VIEW_BYTES = 1_000_000

pytestmark = pytest.mark.browser


def broken(model, x, target, *, rng):
    raise RuntimeError("<script>document.title = 'taken over'</script>")


@pytest.fixture(scope="module")
def result(golden_model, tmp_path_factory: pytest.TempPathFactory) -> hp.Result:
    images = torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ids = [EVIL, "x" * 10_000, "שלום 🦜", *(f"s{i}" for i in range(9))]
    protocols = [{"name": "sds", "baseline": ["zero", "blur"]}, "deletion(steps=4)"]
    return hp.evaluate(
        [golden_model("resnet"), golden_model("vgg")],
        hp.TensorData(images, [i % 10 for i in range(12)], ids),
        [*METHODS, broken],
        protocols,
        batch_size=12,
        out=tmp_path_factory.mktemp("run") / "tensors",
    )


@pytest.fixture(scope="module")
def report(result: hp.Result) -> Path:
    return result.report().parent


@pytest.fixture(scope="module")
def network_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Report on two networks and their fine-tuned copies, and on grids."""
    result = hp.evaluate(
        ["paperbirds/vgg", "paperbirds/bcos"],
        "paperbirds:test",
        ["gradcam", "ixg", "bcos", "random"],
        [{"name": "sds", "baseline": ["zero", "blur"]}, "idsds", {"name": "gridpg", "grids": 2}],
        limit=24,
    )
    return result.report(tmp_path_factory.mktemp("networks") / "site").parent


def pages(report: Path) -> list[str]:
    return sorted(path.name for path in report.glob("*.html"))


def test_every_page_is_reached_by_its_link(visit, report: Path):
    page = visit(report).open()
    titles = page.locator("nav a").all_inner_texts()
    assert titles[:4] == ["Overview", "Ranking", "Stability", "Explorer"]
    for title in titles:
        page.locator("nav").get_by_role("link", name=title, exact=True).click()
        assert page.locator("nav a[aria-current=page]").inner_text() == title
        assert page.locator("main section").first.is_visible()
        images = "[...document.images].every((i) => { i.loading = 'eager'; return true; })"
        assert page.evaluate(images)
        loaded = "() => [...document.images].every((i) => i.complete && i.naturalWidth)"
        page.wait_for_function(loaded)


def test_text_from_the_run_is_not_executed(visit, report: Path):
    page = visit(report).open("explorer.html")
    assert page.title() == "Explorer · tensors · heatproof"
    assert page.locator("#x-list .id").first.inner_text().startswith("<img src=x")
    assert page.locator("#x-title").inner_text() == EVIL
    page.locator("#x-list button").nth(1).click()
    page.wait_for_selector("#explorer-app[data-ready='1']")
    assert len(page.locator("#x-title").inner_text()) <= 120
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_table_is_sorted_by_the_column_that_is_clicked(visit, report: Path):
    page = visit(report).open("ranking.html")
    table = page.locator("table.setting")

    def means() -> list[float]:
        values = "cells => cells.filter(c => c.checkVisibility()).map(c => c.dataset.value)"
        return [float(v) for v in table.locator("td.mean").evaluate_all(values) if v]

    before = means()
    head = table.get_by_role("button", name="mean", exact=True)
    head.focus()
    page.keyboard.press("Enter")
    assert means() == sorted(before, reverse=True)
    head.click()
    assert means() == sorted(before)
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("mean")
    empty = "rows => rows.slice(-1)[0].querySelector('td.mean').dataset.value"
    assert table.locator("tbody tr").evaluate_all(empty) == ""  # no score: last either way


def test_the_ranking_is_filtered(visit, report: Path):
    page = visit(report).open("ranking.html")
    rows = page.locator("table.setting tbody tr:visible")
    figures = page.locator("#ranking figure:visible")
    assert rows.count() == 3 * 8  # of the first model
    assert figures.count() == 3
    page.locator("select[name=protocol]").select_option(label="sds")
    assert rows.count() == 2 * 8 and figures.count() == 2
    page.locator("select[name=baseline]").select_option(label="blur")
    assert rows.count() == 8 and figures.count() == 1
    page.locator("select[name=family]").select_option(label="control")
    assert rows.count() == 3
    page.locator("select[name=model]").select_option(label="all")
    assert rows.count() == 6
    page.locator("#ranking input[type=search]").fill("edg")
    assert rows.count() == 2
    assert page.locator("form output").inner_text().startswith("4 of ")  # with the means of ranks
    page.get_by_role("button", name="reset").click()
    page.wait_for_timeout(50)
    assert rows.count() == 3 * 8


def test_pointing_at_a_method_highlights_it_everywhere(visit, report: Path):
    page = visit(report).open("ranking.html")
    mark = page.locator("#ranking svg.ranking:visible").first.locator('g.mark[data-method="ixg"]')
    mark.scroll_into_view_if_needed()
    page.wait_for_timeout(200)  # scrolling hides the tip
    mark.hover()
    assert page.locator(".tip").inner_text().startswith("ixg")
    assert page.locator("#ranking svg.ranking:visible g.mark.lit").count() == 3
    pin = page.locator('#method-curves button.pin[data-method="gradcam"]:visible')
    lit = page.locator("#method-curves svg:visible g.mark.lit")
    assert page.locator("#method-curves svg:visible g.mark").count() == len(METHODS)
    pin.focus()
    assert lit.get_attribute("data-method") == "gradcam"
    page.keyboard.press("Enter")
    page.mouse.move(2, 2)
    assert pin.get_attribute("aria-pressed") == "true" and lit.count() == 1
    page.keyboard.press("Escape")
    assert pin.get_attribute("aria-pressed") == "false"


def test_the_explorer_shows_chosen_methods_of_a_sample(visit, report: Path):
    visitor = visit(report)
    page = visitor.open("explorer.html")
    maps = page.locator("#x-maps figure:has(.heat)")
    assert maps.count() == 4  # those of the overview
    page.locator(".chooser summary").click()
    page.get_by_role("button", name="none").click()
    assert maps.count() == 0
    page.get_by_role("checkbox", name="gradcam").check()
    page.get_by_role("checkbox", name="saliency").check()
    assert maps.count() == 2
    assert "methods=" in page.url
    page.locator("#x-opacity").fill("40")
    opacity = "image => getComputedStyle(image).opacity"
    assert maps.first.locator(".heat").evaluate(opacity) == "0.4"
    own = maps.locator(".end").all_inner_texts()
    page.get_by_label("one scale for all").check()
    common = maps.locator(".end").all_inner_texts()
    assert own[0] != own[1] and common[0] == common[1]
    assert page.locator("#x-drops .patches rect").count() == 16
    assert page.locator("#x-drops svg.ranks").count() == 2
    assert page.locator("#x-curves g.mark").count() == 2
    scores = page.locator("#x-maps .score b").all_inner_texts()
    page.get_by_label("Scores under").select_option(label="sds · blur")
    assert page.locator("#x-maps .score b").all_inner_texts() != scores
    copy = visit(report)
    linked = copy.open(f"explorer.html#{page.url.partition('#')[2]}")
    copy.ready()
    assert linked.locator("#x-maps figure:has(.heat)").count() == 2
    assert linked.locator("#x-setting").input_value() == "1"


def test_samples_are_searched_ordered_and_paged_through(visit, report: Path):
    page = visit(report).open("explorer.html")
    page.get_by_label("Search").fill("s7")
    assert page.locator("#x-list .id").all_inner_texts() == ["s7"]
    page.wait_for_function("() => document.getElementById('x-title').textContent === 's7'")
    page.get_by_label("Search").fill("nothing like it")
    assert page.locator("#x-count").inner_text() == "0 of 12 samples"
    page.get_by_label("Search").fill("")
    page.get_by_label("Order").select_option("best")
    number = "cells => cells.map(c => Number(c.textContent.replace('−', '-')))"
    values = page.locator("#x-list .value").evaluate_all(number)
    assert values == sorted(values, reverse=True) and len(values) == 12
    page.get_by_label("Order").select_option("worst")
    first = page.locator("#x-title").inner_text()
    page.locator("#x-title").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#x-title").inner_text() != first
    page.keyboard.press("ArrowLeft")
    assert page.locator("#x-title").inner_text() == first
    page.get_by_label("Network").select_option(label="vgg")
    page.wait_for_timeout(100)
    assert "network=1" in page.url


def test_a_setting_shows_the_network_that_it_evaluated(visit, network_report: Path):
    page = visit(network_report).open("explorer.html")
    networks = page.locator("#x-collection option").all_inner_texts()
    assert len(networks) == 6  # plain, fine-tuned and on grids, of two models
    for i in range(len(networks)):
        page.locator("#x-collection").select_option(str(i))
        page.wait_for_function("() => document.querySelectorAll('#x-maps .heat').length > 2")
        assert page.get_by_text("not evaluated").count() == 0
    assert page.locator("#example .worked").is_visible()


def test_a_map_has_the_colours_of_its_values(visit, report: Path):
    """The filter gives zero white, and the ends of the scales their colours."""
    page = visit(report).open("explorer.html")
    colours = page.evaluate("""() => ["signed", "unsigned"].map((id) =>
        [...document.querySelectorAll(`#${id} [tableValues]`)].map((f) =>
            f.getAttribute("tableValues").split(" ").map((v) => Math.round(255 * v))))""")
    signed, unsigned = colours
    assert [channel[3] for channel in signed] == [255, 255, 255]
    assert [channel[0] for channel in unsigned] == [255, 255, 255]
    assert [channel[-1] for channel in signed] == [0x72, 0x0A, 0x1E]


@pytest.mark.parametrize("which", ["report", "network_report"])
def test_every_page_is_accessible_and_fits(request, visit, which: str):
    """No serious finding of axe, in light and dark, on a phone and a desktop."""
    report = request.getfixturevalue(which)
    cut = """[...document.querySelectorAll('svg.chart')].filter(svg => svg.checkVisibility())
        .flatMap(svg => [...svg.querySelectorAll('text')].filter(text => {
            const box = text.getBBox(), view = svg.viewBox.baseVal;
            return box.x < -1 || box.y < -1
                || box.x + box.width > view.width + 1 || box.y + box.height > view.height + 2;
        }).map(text => `${svg.getAttribute('class')}: ${text.textContent}`))"""
    for scheme, width in (("light", 1300), ("dark", 400)):
        size = {"width": width, "height": 900}
        visitor = visit(report, viewport=size, color_scheme=scheme)
        for name in pages(report):
            page = visitor.open(name)
            page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
            assert page.evaluate(cut) == [], name
            assert serious_findings(page) == [], (name, scheme, width)


def test_the_colours_follow_the_scheme(visit, report: Path):
    page = visit(report, color_scheme="dark").open()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 17, 23)"


def test_the_first_view_is_small_and_fast(visit, report: Path):
    visitor = visit(report)
    sizes: list[int] = []
    visitor.page.on("response", lambda r: sizes.append(len(r.body())))
    page = visitor.open()
    assert sum(sizes) < FIRST_VIEW_BYTES
    took = "performance.getEntriesByType('navigation')[0].loadEventEnd"
    for _ in range(5):  # the machine may be busy
        if page.evaluate(took) < 1000 * FIRST_VIEW_SECONDS:
            break
        page.reload()
    assert page.evaluate(took) < 1000 * FIRST_VIEW_SECONDS


def test_networks_are_compared_with_each_other_and_their_copies(visit, network_report: Path):
    page = visit(network_report).open("models.html")
    assert page.locator("table.accuracy:visible tbody tr").count() == 2 * (1 + 3)
    page.get_by_role("tab", name="sds · blur").click()
    title = page.locator("#models svg.lattice:visible title").first
    assert title.text_content().startswith("sds · blur")


def test_a_patch_is_highlighted_in_all_pictures_of_the_worked_example(visit, network_report: Path):
    page = visit(network_report).open("explorer.html")
    example = page.locator("#example .worked")
    example.locator(".patches rect").nth(5).hover()
    assert example.locator(".lit").count() == 3  # its sum, its drop, its dot


def test_papers_can_be_copied(visit, report: Path):
    page = visit(report, permissions=["clipboard-read", "clipboard-write"]).open("provenance.html")
    page.locator("button[data-copies=bibtex]").click()
    page.wait_for_selector("button[data-copies=bibtex]:has-text('copied')")
    entries = (report / "papers.bib").read_text()
    assert page.evaluate("navigator.clipboard.readText()") == entries


@pytest.mark.parametrize("single", [False, True])
def test_every_figure_can_be_saved(visit, result: hp.Result, report: Path, tmp_path: Path, single):
    """As a picture of three times its size in the colours of paper, as a PDF, and its numbers."""
    if single:
        build_single_file(result, tmp_path / "report.html")
        page = visit(tmp_path, color_scheme="dark").open("report.html#agreement")
    else:
        page = visit(report, color_scheme="dark").open("stability.html")
    figure = page.locator("#agreement figure:visible").first
    assert figure.locator(".exports > *").all_inner_texts() == ["SVG", "PDF", "PNG", "CSV"]
    width, height = (int(figure.locator("svg").get_attribute(n)) for n in ("width", "height"))
    with page.expect_download() as download:
        figure.get_by_role("button", name="PNG").click()
    assert download.value.suggested_filename.endswith(".png")
    download.value.save_as(tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as picture:
        assert picture.size == (3 * width, 3 * height)
        colours = picture.convert("RGB").getcolors(2**20)
    assert max(colours)[1] == (255, 255, 255) and len(colours) > 50
    numbers = figure.get_by_role("link", name="CSV").get_attribute("href")
    if single:
        text = base64.b64decode(numbers.partition(",")[2]).decode()
    else:
        text = (report / numbers).read_text()
    assert text.startswith("a,b,correlation,low,high")
    page.evaluate("window.print = () => { window.asked = true; }")
    figure.get_by_role("button", name="PDF").click()
    assert page.evaluate("window.asked")
    page.emulate_media(media="print")
    assert figure.is_visible() and not page.locator("h2").first.is_visible()
    assert page.locator("figure:visible").count() == 1
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("#agreement h2").is_visible()


def test_everything_but_the_explorer_is_visible_without_scripts(visit, report: Path):
    page = visit(report, java_script_enabled=False).open("ranking.html")
    charts = page.locator("#ranking svg.ranking")
    assert charts.count() == page.locator("#ranking svg.ranking:visible").count() == 6
    assert page.locator("table.setting tbody tr:visible").count() == 2 * 3 * 8


def test_a_report_in_one_file_works_like_the_site(visit, result: hp.Result, tmp_path: Path):
    build_single_file(result, tmp_path / "report.html")
    page = visit(tmp_path).open("report.html")
    assert page.locator("main section:visible").first.get_attribute("id") == "headline"
    page.locator("nav").get_by_role("link", name="Explorer").click()
    page.wait_for_selector("#explorer-app[data-ready]")
    assert page.locator("#x-maps .heat").first.is_visible()
    assert not page.locator("#headline").is_visible()
    page.locator("#x-next").click()
    page.wait_for_selector("#explorer-app[data-ready='1']")
    page.locator("nav").get_by_role("link", name="Ranking").click()
    assert page.locator("#ranking table.setting").is_visible()


def test_a_served_report_says_when_there_is_a_newer_one(visit, result: hp.Result, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(result.store.root, run, ignore=shutil.ignore_patterns("report", ".lock"))
    report = LiveReport(run, tmp_path / "work")
    report.refresh()
    with ReportServer(report, port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            page = visit(server.url.rstrip("/")).open()
            page.wait_for_function("() => !document.querySelector('.live').hidden")
            page.wait_for_load_state("networkidle")
            page.keyboard.press("Shift")
            (run / "provenance.json").touch()
            report.refresh()
            page.get_by_role("button", name="new results").click()
            page.wait_for_function("() => !document.querySelector('.live').hidden")
            page.wait_for_load_state("networkidle")  # leaving cancels pictures that are loading
            page.locator("nav").get_by_role("link", name="Ranking").click()
            with page.expect_download() as download:
                page.get_by_role("link", name="summary.csv").click()
            assert Path(download.value.path()).read_bytes() == report.read("summary.csv")
            with page.expect_download() as download:
                page.locator("#ranking figcaption a:visible").first.click()
            assert download.value.suggested_filename.endswith(".svg")
            page.context.close()
        finally:
            server.shutdown()
            thread.join()


def test_what_is_far_down_a_large_page_is_read_when_it_is_needed(
    result, report, tmp_path: Path, visit, monkeypatch
):
    monkeypatch.setattr(deferred, "MOST_BYTES", 20_000)
    monkeypatch.setattr(deferred, "ROWS", 5)
    site = result.report(tmp_path / "site").parent
    whole = visit(report).open("ranking.html")
    page = visit(site).open("ranking.html")
    waiting = page.locator("[data-deferred]")
    assert page.locator("svg[data-deferred]").count() > 1
    assert page.locator("#ranking tbody[data-deferred]").count() > 1
    rows = "#ranking form[data-filter] output"
    assert page.inner_text(rows).split()[-2:] == whole.inner_text(rows).split()[-2:]

    before = waiting.count()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    waiting.nth(before - 1).wait_for(state="detached")
    for tab in (page, whole):
        tab.select_option("#ranking select[name=model]", "1")
    page.wait_for_selector("#ranking tbody[data-deferred]", state="detached")
    assert page.inner_text(rows) == whole.inner_text(rows)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_selector("[data-deferred]", state="detached")
    marks = "[...document.querySelectorAll('svg *, td')].map((e) => e.textContent).join('|')"
    assert page.evaluate(marks) == whole.evaluate(marks)
