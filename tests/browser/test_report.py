"""The report in a real browser, opened from disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import heatproof as hp

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
FLAGS = [
    f"--{f}"
    for f in (
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
    )
]
FLAGS += ["--disable-component-update", "--disable-sync"]
METHODS = ["saliency", "ixg", "ixg|abs", "gradcam", "random", "constant", "edges"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path"),
]


def broken(model, x, target, *, rng):
    raise RuntimeError("<script>document.title = 'taken over'</script>")


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with playwright.sync_playwright() as engine:
        chromium = engine.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(golden_model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ids = ["<img src=x onerror=\"document.title='taken over'\">.jpg", *(f"s{i}" for i in range(11))]
    protocols = [{"name": "sds", "baseline": ["zero", "blur"]}]
    models = [golden_model("resnet"), golden_model("vgg")]
    result = hp.evaluate(
        models,
        hp.TensorData(images, [i % 10 for i in range(12)], ids),
        [*METHODS, broken],
        protocols,
        batch_size=12,
    )
    return result.report(tmp_path_factory.mktemp("report") / "site")


@pytest.fixture(scope="module")
def network_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Report on two networks and their fine-tuned copies, for birds with added noise."""
    birds = hp.load_data("paperbirds:test", limit=24)
    samples = [birds.load(i) for i in range(24)]
    images = torch.stack([s.image for s in samples])
    noisy = (
        images + 0.15 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    ).clamp(0, 1)
    protocols = [{"name": "sds", "baseline": ["zero", "blur"]}, "idsds"]
    models = ["paperbirds/vgg", "paperbirds/bcos"]
    result = hp.evaluate(
        models,
        (noisy, [s.label or 0 for s in samples]),
        ["gradcam", "ixg", "saliency", "bcos", "random"],
        protocols,
    )
    return result.report(tmp_path_factory.mktemp("networks") / "site")


@pytest.fixture
def page(browser, report: Path) -> Iterator:
    yield from open_page(browser, report)


@pytest.fixture
def network_page(browser, network_report: Path) -> Iterator:
    yield from open_page(browser, network_report)


def open_page(browser, report: Path) -> Iterator:
    """Open a report; fail the test if the page logs a problem or requests an outside file."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page, errors = context.new_page(), []
    page.on(
        "console",
        lambda message: (
            errors.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("requestfailed", lambda request: errors.append(f"failed: {request.url}"))
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith("file://") else errors.append(f"requested {request.url}")
        ),
    )
    page.goto(report.as_uri())
    yield page
    assert errors == []
    context.close()


def test_charts_are_drawn_with_a_mark_for_every_method(page):
    charts = page.locator("#ranking svg.ranking:visible")
    assert charts.count() == 2
    for i in range(2):
        assert charts.nth(i).locator("g.mark").count() == len(METHODS) + 1
        assert charts.nth(i).bounding_box()["width"] > 300
    assert (
        page.locator("#stability svg.bump:visible").count() == 2
    )  # of this model, and across models
    fill = page.locator("#ranking .f-gradient .dot").first.evaluate(
        "dot => getComputedStyle(dot).fill"
    )
    assert fill == "rgb(0, 103, 168)"


def test_text_from_the_run_is_not_executed(page):
    assert page.title() == "tensors · heatproof"
    assert page.locator("h4", has_text="<img src=x").first.is_visible()


def test_every_image_loads(page):
    page.evaluate(
        """Promise.all([...document.images].map(image => {
            image.loading = 'eager';
            return image.decode();
        }))"""
    )
    assert page.evaluate("document.images.length") > 12 * len(METHODS)
    assert page.evaluate("[...document.images].filter(image => !image.naturalWidth).length") == 0


def test_a_table_is_sorted_by_the_column_that_is_clicked(page):
    page.get_by_role("tab", name="blur").first.click()
    table = page.locator("#ranking table.setting:visible")
    values = "cells => cells.map(cell => cell.dataset.value)"

    def means() -> list[str]:
        return table.locator("td.mean").evaluate_all(values)

    before = means()
    numbers = [float(v) for v in before if v]
    assert numbers == sorted(numbers, reverse=True)
    head = table.get_by_role("button", name="mean", exact=True)
    head.click()
    assert means() == before
    head.click()
    assert [float(v) for v in means() if v] == sorted(numbers)
    assert means()[-2:] == ["", ""]  # methods without a score are last in both directions
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("mean")
    table.get_by_role("button", name="method").click()
    names = table.locator("tbody th").all_inner_texts()
    assert [n.strip() for n in names] == sorted((n.strip() for n in names), key=str.lower)


def test_choosing_a_model_changes_all_sections(page):
    assert page.locator("#gallery .sample:visible").first.is_visible()
    page.locator("#ranking").get_by_role("tab", name="vgg").click()
    for section in ("ranking", "stability", "gallery", "failures"):
        assert page.locator(f"#{section} [data-tabs=model] > [data-tab=vgg]").first.is_visible()
        assert not page.locator(
            f"#{section} [data-tabs=model] > [data-tab=resnet]"
        ).first.is_visible()


def test_choosing_a_setting_changes_scores_and_drops(page):
    tile = page.locator("#gallery .tile:visible").first
    before = tile.locator(".score:visible").inner_text()
    page.locator("[data-chooser] button", has_text="blur").click()
    assert tile.locator(".score:visible").count() == 1
    assert tile.locator(".score:visible").get_attribute("data-setting") == "1"
    assert page.locator("#gallery .drops:visible > span").first.inner_text() == "true drops, blur"
    page.locator("[data-chooser] button", has_text="zero").click()
    assert tile.locator(".score:visible").inner_text() == before


def test_hovering_shows_the_numbers_and_highlights_the_method_everywhere(page):
    mark = page.locator("#ranking svg.ranking:visible").first.locator('g.mark[data-method="ixg"]')
    mark.scroll_into_view_if_needed()
    page.wait_for_timeout(200)  # scrolling hides the tip
    mark.hover()
    assert page.locator(".tip").is_visible()
    assert page.locator(".tip").inner_text().startswith("ixg")
    assert "95 % interval" in page.locator(".tip").inner_text()
    assert page.locator("#ranking svg.ranking:visible g.mark.lit").count() == 2


def test_a_map_can_be_enlarged_and_paged_through(page):
    page.locator("#gallery .tile:visible:not([disabled])").first.click()
    viewer = page.locator("dialog")
    assert viewer.is_visible()
    assert viewer.locator("img").count() == 2
    assert viewer.locator(".scatter circle").count() == 16
    first = viewer.locator("h3").inner_text()
    page.keyboard.press("ArrowRight")
    assert viewer.locator("h3").inner_text() != first
    page.keyboard.press("ArrowLeft")
    assert viewer.locator("h3").inner_text() == first
    page.keyboard.press("Escape")
    assert not viewer.is_visible()


@pytest.mark.parametrize("which", ["page", "network_page"])
@pytest.mark.parametrize("width", [360, 390, 768, 1920])
def test_the_page_does_not_scroll_sideways(request, which: str, width: int):
    page = request.getfixturevalue(which)
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_the_tables_of_the_ranking_fit_a_screen_of_1300_px(page):
    page.set_viewport_size({"width": 1300, "height": 900})
    hidden = """() => [...document.querySelectorAll("#ranking .sheet")].filter(
        (sheet) => sheet.offsetParent && sheet.scrollWidth > sheet.clientWidth).length"""
    tabs = page.locator("#ranking [data-tabs=table] > .tabs button:visible")
    assert tabs.count() > 1
    for i in range(tabs.count()):
        tabs.nth(i).click()
        assert page.locator("#ranking .sheet:visible").count() == 1
        assert page.evaluate(hidden) == 0


@pytest.mark.parametrize("which", ["page", "network_page"])
def test_no_text_is_cut_off_by_its_figure(request, which: str):
    cut = """[...document.querySelectorAll('svg.chart')].filter(svg => svg.checkVisibility())
        .flatMap(svg => [...svg.querySelectorAll('text')].filter(text => {
            const box = text.getBBox(), view = svg.viewBox.baseVal;
            return box.x < -1 || box.y < -1
                || box.x + box.width > view.width + 1 || box.y + box.height > view.height + 2;
        }).map(text => `${svg.getAttribute('class')}: ${text.textContent}`))"""
    assert request.getfixturevalue(which).evaluate(cut) == []


def test_networks_are_compared_with_each_other_and_their_copies(network_page):
    assert network_page.locator("nav a", has_text="Models").is_visible()
    assert network_page.locator("#models table.accuracy:visible tbody tr").count() == 2 * (
        1 + 3
    )  # title; before, after, change
    assert (
        network_page.locator("#models svg.lattice:visible").count() == 3
    )  # scores by model; before and after; similarity
    assert network_page.locator("#models .channels:visible ul").count() == 3 * 2
    network_page.locator("#models").get_by_role("tab", name="sds · blur").click()
    assert (
        network_page.locator("#models svg.lattice:visible title")
        .first.text_content()
        .startswith("sds · blur")
    )


def test_parts_that_do_not_apply_are_absent(page):
    assert page.locator("#models .channels").count() == 0  # nothing was fine-tuned
    assert page.locator("#models h2").inner_text() == "Which model is easier to explain?"
    assert page.locator("#stability .twins").count() == 0


def test_a_patch_is_highlighted_in_all_pictures_of_the_worked_example(network_page):
    worked_example = network_page.locator("#example .worked")
    worked_example.locator(".patches rect").nth(5).hover()
    assert worked_example.locator(".lit").count() == 3  # its sum, its drop, its dot
    assert worked_example.locator(".frame img").evaluate_all(
        "images => images.every(image => image.naturalWidth > 0)"
    )
    assert worked_example.locator(".grid-lines").first.bounding_box()["width"] == pytest.approx(
        worked_example.locator("img").first.bounding_box()["width"]
    )


def test_a_setting_shows_the_network_that_it_evaluated(network_page):
    gallery = network_page.locator("#gallery")
    for setting, label in enumerate(["sds · zero", "sds · blur", "idsds · zero"]):
        network_page.locator("[data-chooser] button").nth(setting).click()
        assert gallery.locator("[data-settings]:visible").count() == 1
        tiles = gallery.locator(".tile:visible")
        assert tiles.count() == gallery.locator(".tile .score:visible").count()
        assert gallery.locator(".drops:visible > span").first.inner_text() == f"true drops, {label}"
        assert gallery.get_by_text("not evaluated").count() == 0
        tiles.first.click()
        assert network_page.locator("dialog .scatter circle").count() == 16
        network_page.keyboard.press("Escape")
    assert gallery.get_by_text("after it was fine-tuned").first.is_visible()
    network_page.locator("#ranking").get_by_role("tab", name="paperbirds/bcos").click()
    assert gallery.locator("[data-settings]:visible").get_attribute("data-settings") == "2"


def test_the_report_follows_a_dark_colour_scheme(page):
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 17, 23)"


def test_everything_is_visible_without_scripts(browser, report: Path):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    ranking = page.locator("#ranking")
    charts = ranking.locator("svg.ranking")
    assert charts.count() == ranking.locator("svg.ranking:visible").count() == 4
    assert ranking.locator("table.setting:visible").count() == 4
    context.close()
