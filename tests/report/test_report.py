"""The report: its numbers are those of the run, and it loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr

import heatproof as hp
from heatproof.bench.layout import IMAGES
from heatproof.report import build
from heatproof.report.charts import number
from heatproof.report.run_data import Run
from heatproof.report.sections import SECTIONS, gallery, headline
from heatproof.report.site import Site

EVIL = '"><img src=x onerror=alert(1)>.jpg'


def mine(model, x, target, *, rng):
    return x.mean(1)


def broken(model, x, target, *, rng):
    raise RuntimeError("<script>alert('broken')</script>")


def sometimes_nan(model, x, target, *, rng):
    return torch.where(torch.arange(len(x))[:, None, None] % 2 == 0, torch.nan, x.mean(1))


Evaluate = Callable[..., hp.Result]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory, golden_model) -> Evaluate:
    """Return a function that evaluates methods on images of noise."""

    def run(
        methods: list,
        samples: int = 8,
        models: tuple[str, ...] = ("resnet",),
        ids: list[str] | None = None,
        **options,
    ) -> hp.Result:
        generator = torch.Generator().manual_seed(0)
        data = hp.TensorData(
            torch.rand(samples, 3, 32, 32, generator=generator),
            [i % 10 for i in range(samples)],
            ids,
        )
        out = tmp_path_factory.mktemp("run") / "tiny"
        return hp.evaluate(
            [golden_model(m) for m in models], data, methods, out=out, batch_size=8, **options
        )

    return run


@pytest.fixture(scope="module")
def full(evaluated: Evaluate) -> hp.Result:
    """Two models, two baselines, controls, a user-defined, a failing and an undefined method."""
    methods = ["saliency", "ixg", "ixg|abs", "gradcam", "random", "constant", "edges", mine, broken]
    return evaluated(
        methods, 12, ("resnet", "vgg"), protocols=[{"name": "sds", "baseline": ["zero", "blur"]}]
    )


@pytest.fixture(scope="module")
def page(full: hp.Result) -> Path:
    return full.report()


class Page(HTMLParser):
    """Elements with their attributes, and the texts of table cells."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.tables[-1][-1][-1] += data.strip()


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_the_tables_show_the_numbers_of_the_summary(full: hp.Result, page: Path):
    parsed = Page(page.read_text())
    tables = [t for t in parsed.tables if t[0][:2] == ["rank", "rank interval"]]
    summary = full.summary()
    groups = [
        g
        for _, g in sorted(
            summary.groupby(["model", "baseline"], sort=False),
            key=lambda kg: kg[1]["model"].iloc[0],
        )
    ]
    assert len(tables) == len(groups) == 4
    for table, group in zip(tables, groups, strict=True):
        expected = group.set_index("method")
        assert {row[2] for row in table[1:]} == set(expected.index)
        for (
            rank,
            ranks,
            method,
            layer,
            mean,
            interval,
            ties,
            n,
            undefined,
            failed,
            not_applicable,
            *_,
        ) in table[1:]:
            line = expected.loc[method]
            scored = line["n"] > 0
            assert (rank, mean, layer) == (
                number(line["rank"], 0),
                number(line["mean"]),
                line["layer"],
            )
            assert interval == (
                f"{number(line['low'])} to {number(line['high'])}" if scored else "–"
            )
            assert ranks == (
                f"{line['rank_low']:.0f} to {line['rank_high']:.0f}" if scored else "–"
            )
            assert re.fullmatch("[a-z]+" if scored else "–", ties)
            assert [int(v) for v in (n, undefined, failed, not_applicable)] == list(
                line[["n", "undefined", "failed", "n/a"]]
            )


def test_ties_are_those_of_all_pairs(evaluated: Evaluate):
    result = evaluated(["ixg", "saliency", "gradcam", "random"], 12, protocols=["sds"])
    run = Run(result.store)
    (standing,) = run.standings
    (found,) = run.pairs_of(standing).values()
    lines = result.pairs().set_index(["better", "other"])
    for i, j in combinations(range(4), 2):
        line = lines.loc[(found.methods[i], found.methods[j])]
        assert line["p"] == pytest.approx(found.adjusted[i, j])
        shared = set(found.letters[i]) & set(found.letters[j])
        assert bool(shared) == (not line["significant"])


def test_the_rows_of_a_table_are_sorted_by_rank_and_the_unranked_come_last(page: Path):
    for table in Page(page.read_text()).tables:
        if table[0][0] == "rank":
            ranks = [float("inf") if row[0] == "–" else float(row[0]) for row in table[1:]]
            assert ranks == sorted(ranks)


def test_scores_are_exported_as_csv(full: hp.Result, page: Path):
    scores = pd.read_csv(
        page.parent / "scores.csv",
        keep_default_na=False,
        na_values={"value": [""]},
        dtype={"sample": str},
    )
    assert len(scores) == len(full.scores)
    assert np.allclose(scores["value"], full.scores["value"], equal_nan=True)
    assert list(pd.read_csv(page.parent / "summary.csv")["method"]) == list(
        full.summary()["method"]
    )


def test_every_method_has_a_mark_under_every_setting(page: Path):
    ranking = page.read_text().partition('<section id="ranking"')[2].partition("</section>")[0]
    charts = re.findall(r'<svg[^>]*class="chart ranking".*?</svg>', ranking, re.DOTALL)
    assert [chart.count('<g class="mark') for chart in charts] == [9] * 4
    assert [chart.count('class="dot') for chart in charts] == [
        7
    ] * 4  # one failed, one has no spread
    assert all(
        "no score: 12 failed" in chart and "no score: 12 undefined" in chart for chart in charts
    )


def test_figures_are_self_contained_files(page: Path):
    figures = sorted((page.parent / "figures").glob("*.svg"))
    links = {a["href"] for tag, a in Page(page.read_text()).tags if tag == "a" and "download" in a}
    linked = {link for link in links if str(link).startswith("figures/")}
    assert linked == {f"figures/{figure.name}" for figure in figures}
    charts = re.findall(r'<svg[^>]*class="chart [^"]*"[^>]*>(?=<title>)', page.read_text())
    assert len(charts) >= len(figures) > 0
    for figure in figures:
        text = figure.read_text()
        assert "var(" not in text
        assert text.startswith("<?xml")


def test_the_winner_is_the_method_with_the_best_mean_rank_that_is_no_control(
    full: hp.Result, tmp_path: Path
):
    content = headline.content(Run(full.store), Site(tmp_path))
    summary = full.summary()
    for verdict in content.verdicts:
        part = summary[(summary["model"] == verdict.model)].pivot_table(
            index="method", columns="baseline", values="rank", dropna=False
        )
        mean_ranks = part.drop(["random", "constant", "edges"], errors="ignore").mean(
            axis=1, skipna=False
        )
        assert mean_ranks[verdict.winner] == mean_ranks.min() == pytest.approx(verdict.rank.value)
        assert verdict.rank.low <= verdict.rank.high


def test_a_control_that_beats_all_methods_is_reported(evaluated: Evaluate, tmp_path: Path):
    """The only method has the wrong sign, so the control wins."""

    def upside_down(model, x, target, *, rng):
        return -hp.explain(model, x, target, "ixg")

    result = evaluated([upside_down, "random"], 64)
    content = headline.content(Run(result.store), Site(tmp_path))
    (verdict,) = content.verdicts
    assert verdict.control is not None
    assert verdict.control.clearly == ["upside_down"]
    assert verdict.control_wins
    assert "no method beats the best control" in " ".join(result.report().read_text().split())


def test_a_winner_by_mean_rank_that_loses_under_one_setting_is_no_clear_winner(
    evaluated: Evaluate, tmp_path: Path
):
    """Two settings of three agree; the scores of the third are negated in the store."""

    def upside_down(model, x, target, *, rng):
        return -hp.explain(model, x, target, "ixg")

    result = evaluated(
        ["ixg", upside_down], 32, protocols=[{"name": "sds", "baseline": ["zero", "black", "blur"]}]
    )
    store = result.store
    (task,) = store.plan().tasks
    table = store.table(task.name)
    rows = table.to_pandas()
    rows["value"] *= np.where(rows["baseline"] == "blur", -1, 1)
    negated = pa.Table.from_pandas(rows, table.schema, preserve_index=False)
    store.commit(task.name, negated, store.tensors(task.name), store.timings(task.name))
    (verdict,) = headline.content(Run(result.store), Site(tmp_path)).verdicts
    page = " ".join(hp.Result.load(store.root).report().read_text().split())
    assert verdict.winner == "ixg" and [best for _, best in verdict.elsewhere] == ["upside_down"]
    assert "The settings do not agree." in page and ">clear win<" not in page


def test_warnings_come_first(full: hp.Result, tmp_path: Path):
    warnings = headline.content(Run(full.store), Site(tmp_path)).warnings
    assert warnings.failed and warnings.few_samples
    assert warnings.inaccurate  # noise has no class


def test_signed_maps_are_drawn_around_white(full: hp.Result, tmp_path: Path):
    (model, *_) = gallery.content(Run(full.store), Site(tmp_path)).models
    signed = {tile.method: tile.signed for tile in model.views[0].samples[0].tiles}
    assert signed["ixg"]
    assert signed["random"]
    assert not signed["ixg|abs"]
    assert not signed["saliency"]


def test_the_gallery_shows_what_was_evaluated(full: hp.Result, tmp_path: Path):
    """The rank correlation of patch sums and drops in the page is the score in the page."""
    site = Site(tmp_path)
    (model, *_) = gallery.content(Run(full.store), site).models
    compared = 0
    (view,) = model.views
    for sample in view.samples:
        assert pixels(tmp_path / sample.photo).shape == (32, 32, 3)
        for tile in sample.tiles:
            if tile.file:
                assert pixels(tmp_path / tile.file).shape == (32, 32, 3)
            for setting, score in tile.scores.items():
                drops = sample.drops[setting]
                if score.value is not None and tile.method in ("ixg", "random", "mine"):
                    sums = json.loads(tile.sums)["16"]
                    assert spearmanr(sums, drops.values)[0] == pytest.approx(score.value, abs=0.02)
                    compared += 1
    assert compared > 30


def test_samples_are_the_first_the_best_and_the_worst():
    samples = [f"s{i}" for i in range(20)]
    chosen = gallery.choose(samples, list(reversed(samples)), 12)
    assert [s for s, reason in chosen.items() if reason.startswith("best")] == ["s19", "s18", "s17"]
    assert [s for s, reason in chosen.items() if reason.startswith("worst")] == ["s0", "s1", "s2"]
    assert list(chosen)[:6] == samples[3:9]
    assert list(gallery.choose(samples[:2], samples, 12)) == samples[:2]
    assert gallery.choose(samples[:3], samples, 12) == {
        "s1": "one of the first",
        "s0": gallery.ENDS[0],
        "s2": gallery.ENDS[1],
    }
    assert gallery.choose([], [], 12) == {}


def test_text_from_a_run_is_inert(evaluated: Evaluate):
    ids = [EVIL, "../../escape.jpg", "</style><b>", "{{ 7 * 7 }}"]
    page = evaluated(["ixg", broken, sometimes_nan], 4, ids=ids).report()
    text = page.read_text()
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    assert "{{ 7 * 7 }}" in text
    parsed = Page(text)
    assert [tag for tag, _ in parsed.tags].count("script") == 1
    assert not [
        attribute
        for _, attributes in parsed.tags
        for attribute in attributes
        if attribute.startswith("on")
    ]
    names = {p.name for p in page.parent.rglob("*") if p.is_file()}
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)


def test_nothing_is_loaded_from_outside_the_report(page: Path):
    parsed = Page(page.read_text())
    links = [
        value
        for _, attributes in parsed.tags
        for key, value in attributes.items()
        if key in ("src", "href") and value
    ]
    assert links
    for link in links:
        assert re.fullmatch(
            r"#[a-z]+|(figures|pictures)/[\w-]+\.(svg|png)|[\w.]+\.(csv|csv\.gz|yaml)", link
        )
        if not link.startswith("#"):
            assert (page.parent / link).is_file()
    policy = next(
        a["content"]
        for tag, a in parsed.tags
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not any("style" in attributes for _, attributes in parsed.tags)


@pytest.mark.parametrize(
    ("methods", "samples"),
    [
        (["ixg"], 1),
        (["random"], 3),
        ([broken], 2),
        (["constant"], 2),
        (["constant", "edges"], 2),
        ([sometimes_nan], 5),
    ],
)
def test_small_and_broken_runs_have_a_report_too(
    evaluated: Evaluate, methods: list, samples: int, tmp_path: Path
):
    result = evaluated(methods, samples)
    text = result.report().read_text()
    run = Run(result.store)
    section_ids = {s.id for s in SECTIONS if s.content(run, Site(tmp_path)) is not None}
    assert section_ids >= {"headline", "ranking", "stability", "gallery", "failures", "provenance"}
    assert set(re.findall(r'<section id="(\w+)"', text)) == section_ids
    assert all(f'href="#{section_id}"' in text for section_id in section_ids)
    assert not re.search(
        r"\b(nan|None)\b", re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)
    )


def test_stability_is_not_claimed_from_one_setting(evaluated: Evaluate):
    assert "This run cannot tell" in evaluated(["ixg", "saliency"], 3).report().read_text()


def test_the_report_says_if_no_maps_were_kept(evaluated: Evaluate):
    assert "No maps were kept" in evaluated(["ixg"], 3, keep_maps=0).report().read_text()


def test_the_report_says_if_tasks_are_missing(evaluated: Evaluate):
    result = evaluated(["ixg", "saliency"], 70)
    manifests = sorted((result.store.root / "tasks").iterdir())
    folders = [result.store.root / folder for folder in ("tasks", "rows")]
    for folder in folders:  # as before a task is finished
        next(folder.glob(f"{manifests[-1].stem}.*")).unlink()
    assert "1 of 2 tasks are missing" in " ".join(
        hp.Result.load(result.store.root).report().read_text().split()
    )
    for folder in folders:
        next(folder.glob(f"{manifests[0].stem}.*")).unlink()
    assert "There are no scores yet" in hp.Result.load(result.store.root).report().read_text()


def test_building_again_replaces_the_old_report(full: hp.Result, tmp_path: Path):
    first = build(full.store, tmp_path / "site")
    before = first.read_bytes()
    (tmp_path / "site" / "index.html").write_text("old")
    assert build(full.store, tmp_path / "site").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["site"]


def test_a_directory_with_other_files_is_not_overwritten(full: hp.Result, tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(hp.HeatproofError, match="not a report"):
        build(full.store, tmp_path)
    with pytest.raises(hp.HeatproofError, match="is a file"):
        build(full.store, tmp_path / "thesis.tex")
    with pytest.raises(hp.HeatproofError, match="not a report"):
        build(full.store, full.store.root)
    site = build(full.store, tmp_path / "site").parent
    (site / "notes.txt").write_text("precious")
    with pytest.raises(hp.HeatproofError, match=r"notes\.txt"):
        build(full.store, site)
    assert (site / "notes.txt").read_text() == (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_report_is_smaller_than_two_megabytes(page: Path):
    assert sum(p.stat().st_size for p in page.parent.rglob("*") if p.is_file()) < 2_000_000


def test_numbers_have_a_real_minus_and_no_negative_zero():
    assert [number(v) for v in (-0.5, 0.25, -0.0001, float("nan"), None)] == [
        "−0.500",
        "0.250",
        "0.000",
        "–",
        "–",
    ]


def test_photos_equal_the_images_of_the_run(page: Path, full: hp.Result):
    stored = full.store.tensors(full.store.plan().tasks[0].name)
    kept = dict(zip(stored.samples.ids, stored.tensors[IMAGES], strict=False))
    photos = [
        a
        for tag, a in Page(page.read_text()).tags
        if tag == "img" and (a.get("alt") or "").startswith("sample")
    ]
    assert photos
    for photo in photos:
        image = kept[str(photo["alt"]).removeprefix("sample ")]
        assert np.array_equal(
            pixels(page.parent / str(photo["src"])), image.permute(1, 2, 0).numpy()
        )


def test_only_methods_that_share_no_passes_have_a_time_of_their_own(page):
    rows = re.findall(r'<tr data-method="([^"]+)">(.*?)</tr>', page.read_text("utf-8"), re.DOTALL)
    shared = {method for method, cells in rows if ">shared</td>" in cells}
    assert {"saliency", "ixg", "ixg|abs", "gradcam"} == shared
    assert "edges" in {method for method, _ in rows}
