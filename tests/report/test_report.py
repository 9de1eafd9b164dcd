"""The report: its numbers are those of the run, and it loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image
from report_text import report_text
from scipy.stats import spearmanr

import heatproof as hp
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.numbers import number
from heatproof.report import build
from heatproof.report.sections import SECTIONS, explorer, headline
from heatproof.report.site import Site
from heatproof.runs.format import IMAGES
from heatproof.tensor.filters import resize

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
def full(evaluated: Evaluate, timing) -> hp.Result:
    """Two models, two baselines, controls, a user-defined, a failing and an undefined method."""
    methods = ["saliency", "ixg", "ixg|abs", "gradcam", "random", "constant", "edges", mine, broken]
    protocols = [{"name": "sds", "baseline": ["zero", "blur"]}]
    with timing():
        return evaluated(methods, 12, ("resnet", "vgg"), protocols=protocols)


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


def score_table(page: Path) -> list[list[str]]:
    """Return the table of all scores of a report, with its head."""
    tables = Page(report_text(page)).tables
    (table,) = [t for t in tables if t and t[0][:2] == ["rank", "rank interval"]]
    return table


def test_the_table_shows_the_numbers_of_the_summary(full: hp.Result, page: Path):
    table = score_table(page)
    columns = {name: i for i, name in enumerate(table[0])}
    expected = full.summary().set_index(["model", "baseline", "method"])
    assert len(table) - 1 == len(expected) == 2 * 2 * 9
    for row in table[1:]:
        cell = {name: row[i] for name, i in columns.items()}
        line = expected.loc[(cell["model"], cell["setting"], cell["method"])]
        scored = line["n"] > 0
        ranked = np.isfinite(line["rank"])
        assert cell["rank"] == number(line["rank"], 0)
        assert cell["mean"] == number(line["mean"])
        assert cell["layer"] == line["layer"]
        interval = f"{number(line['low'])} to {number(line['high'])}"
        ranks = f"{line['rank_low']:.0f} to {line['rank_high']:.0f}"
        assert cell["95 % interval"] == (interval if scored else "–")
        assert cell["rank interval"] == (ranks if ranked else "–")
        assert re.fullmatch("[a-z]+" if ranked else "–", cell["letters"])
        assert cell["n"].endswith(" own") == (scored and not ranked)
        counts = [int(cell["n"].removesuffix(" own"))]
        counts += [int(cell[name]) for name in ("undefined", "failed", "n/a")]
        assert counts == list(line[["n", "undefined", "failed", "n/a"]])


def test_letters_are_those_of_all_pairs(evaluated: Evaluate):
    result = evaluated(["ixg", "saliency", "gradcam", "random"], 12, protocols=["sds"])
    run = RunStatistics(result.store)
    (scores,) = run.settings
    found = scores.pairs
    lines = result.pairs().set_index(["better", "other"])
    assert len(found.methods) > 2
    assert len(lines) == len(found.methods) * (len(found.methods) - 1) / 2
    for i, j in combinations(range(len(found.methods)), 2):
        line = lines.loc[(found.methods[i], found.methods[j])]
        assert line["p"] == pytest.approx(found.adjusted[i, j])
        shared = set(found.letters[i]) & set(found.letters[j])
        assert bool(shared) == (not line["significant"])


def test_the_rows_of_a_setting_are_sorted_by_rank_and_the_unranked_come_last(page: Path):
    table = score_table(page)
    model, setting = table[0].index("model"), table[0].index("setting")
    by_setting: dict[tuple[str, str], list[float]] = {}
    for row in table[1:]:
        rank = float("inf") if row[0] == "–" else float(row[0])
        by_setting.setdefault((row[model], row[setting]), []).append(rank)
    assert len(by_setting) == 4
    assert all(ranks == sorted(ranks) for ranks in by_setting.values())


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
    ranking = report_text(page).partition('<section id="ranking"')[2].partition("</section>")[0]
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
    links = {a["href"] for tag, a in Page(report_text(page)).tags if tag == "a" and "download" in a}
    linked = {link for link in links if str(link).startswith("figures/")}
    numbers = {figure.with_suffix(".csv") for figure in figures}
    assert linked == {f"figures/{file.name}" for file in {*figures, *numbers}}
    assert all(len(file.read_text().splitlines()) > 1 for file in numbers)
    charts = re.findall(r'<svg[^>]*class="chart [^"]*"[^>]*>(?=<title>)', report_text(page))
    assert len(charts) >= len(figures) > 0
    for figure in figures:
        text = figure.read_text()
        assert "var(" not in text
        assert text.startswith("<?xml")


def test_the_leader_is_the_method_with_the_best_mean_rank_that_is_no_control(
    full: hp.Result, tmp_path: Path
):
    content = headline.content(RunStatistics(full.store), Site(tmp_path))
    summary = full.summary()
    for verdict in content.verdicts:
        part = summary[(summary["model"] == verdict.model)].pivot_table(
            index="method", columns="baseline", values="rank", dropna=False
        )
        mean_ranks = part.drop(["random", "constant", "edges"], errors="ignore").mean(
            axis=1, skipna=False
        )
        assert mean_ranks[verdict.leader] == mean_ranks.min() == pytest.approx(verdict.rank.value)
        assert verdict.rank.low <= verdict.rank.value <= verdict.rank.high


def test_a_control_that_beats_all_methods_is_reported(evaluated: Evaluate, tmp_path: Path):
    """The only method has the wrong sign, so the control wins."""

    def upside_down(model, x, target, *, rng):
        return -hp.explain(model, x, target, "ixg")

    result = evaluated([upside_down, "random"], 64)
    content = headline.content(RunStatistics(result.store), Site(tmp_path))
    (verdict,) = content.verdicts
    assert verdict.doubts.control == "random"
    assert verdict.control == (
        "The control `random` never looks at the model, yet ranks above 1 of 1 method that does: "
        "`upside_down` (significantly)."
    )
    page = " ".join(report_text(result.report()).split())
    assert "it is not significantly better than the control <code>random</code>" in page.lower()
    assert ">wins<" not in page


def test_a_winner_by_mean_rank_that_loses_under_one_setting_is_said_to_lose_there(
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
    (verdict,) = headline.content(RunStatistics(result.store), Site(tmp_path)).verdicts
    page = " ".join(report_text(hp.Result.load(store.root).report()).split())
    assert verdict.leader == "ixg"
    assert [(key[2], best) for key, best in verdict.evidence.elsewhere] == [("blur", "upside_down")]
    assert (
        "Under 1 of 3 settings another method is significantly better: "
        "<code>upside_down</code> under blur."
    ) in page


def test_warnings_come_first(full: hp.Result, tmp_path: Path):
    warnings = headline.content(RunStatistics(full.store), Site(tmp_path)).warnings
    assert warnings.lost and warnings.few
    assert warnings.inaccurate  # noise has no class


def data_of(file: Path) -> Any:
    """Return what a script of the explorer gives to the page."""
    text = file.read_text(encoding="ascii")
    assert text.startswith("heatproofData(") and text.endswith(");\n")
    return json.loads(f"[{text.removeprefix('heatproofData(').removesuffix(');' + chr(10))}]")[1]


def test_maps_of_the_explorer_are_the_stored_ones_to_eight_bits(full: hp.Result, page: Path):
    index = data_of(page.parent / "explorer" / "index.js")
    assert [c["title"] for c in index] == ["resnet", "vgg"]
    kept = RunStatistics(full.store).kept("resnet")
    compared = 0
    for i, (sample, *_) in enumerate(index[0]["samples"]):
        data = data_of(page.parent / "explorer" / "0" / f"{i:05d}.js")
        for method, entry in zip(index[0]["methods"], data["maps"], strict=True):
            values = kept.unscaled_map(sample, method)
            if entry is None:
                assert values is None or method == "broken"
                continue
            file, signed, end, largest = entry
            assert bool(signed) == (method in ("ixg", "random", "mine"))
            with Image.open(page.parent / file) as picture:
                grey = np.asarray(picture.convert("L")).astype(float)
            expected = resize(values[None], 32, 32)[0].numpy()
            assert largest == pytest.approx(float(values.abs().max()), rel=1e-3)
            found = (grey - 128) / 127 * end if signed else grey / 255 * end
            step = end / (127 if signed else 255)
            assert np.abs(found - expected.clip(-end, end)).max() <= 0.51 * step + 1e-3 * end
            compared += 1
    assert compared == 12 * 8


def test_the_explorer_shows_what_was_evaluated(full: hp.Result, page: Path):
    """The rank correlation of patch sums and drops in the data is the score in the data."""
    collection, _ = data_of(page.parent / "explorer" / "index.js")
    scores = full.scores.set_index(["model", "baseline", "sample", "method"])["value"]
    compared = 0
    for i, (sample, *_) in enumerate(collection["samples"]):
        data = data_of(page.parent / "explorer" / "0" / f"{i:05d}.js")
        assert pixels(page.parent / data["photo"]).shape == (32, 32, 3)
        for m, method in enumerate(collection["methods"]):
            for s, baseline in enumerate(collection["settings"]):
                value = collection["scores"][i][s][m]
                if value is None:
                    assert data["reasons"][s][m]
                    continue
                assert value == pytest.approx(
                    scores["resnet", baseline, sample, method], rel=1e-3, abs=1e-6
                )
                if method in ("ixg", "random", "mine"):
                    rho = spearmanr(data["sums"][m][0], data["drops"][s])[0]
                    assert rho == pytest.approx(value, abs=0.02)
                    compared += 1
    assert compared == 12 * 2 * 3


def test_the_explorer_shows_the_best_the_worst_and_the_first():
    samples = [f"s{i}" for i in range(20)]
    chosen = explorer.choose(samples, list(reversed(samples)), 9)
    assert chosen == ["s0", "s1", "s2", "s3", "s4", "s5", "s17", "s18", "s19"]
    assert explorer.choose(samples, samples, 20) == samples
    assert explorer.choose(samples[:2], samples, 12) == samples[:2]
    assert explorer.choose([], [], 12) == []


def test_a_small_budget_shows_fewer_samples(full: hp.Result, tmp_path: Path):
    site = Site(tmp_path)
    site.picture_bytes = 80_000
    content = explorer.content(RunStatistics(full.store), site)
    assert content is not None
    assert all(explorer.FEWEST <= c.shown < c.kept for c in content.collections)


def test_large_maps_are_reduced_before_samples_are_left_out(tmp_path: Path):
    image = torch.zeros(1, 3, 224, 224)
    result = hp.evaluate(
        hp.Model(
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 224 * 224, 2)), size=224
        ),
        hp.TensorData(torch.rand(image.shape), [0]),
        ["ixg", "random"],
        ["sds(patches=4)"],
        out=tmp_path / "run",
    )
    site = Site(tmp_path / "site")
    site.picture_bytes = 30_000
    content = explorer.content(RunStatistics(result.store), site)
    assert content is not None
    assert content.reduction == 2
    data = data_of(site.root / "explorer" / "0" / "00000.js")
    for file, *_ in data["maps"]:
        with Image.open(site.root / file) as picture:
            assert picture.size == (112, 112)


def test_text_from_a_run_is_inert(evaluated: Evaluate):
    ids = [EVIL, "../../escape.jpg", "</style><b>", "{{ 7 * 7 }}"]
    page = evaluated(["ixg", broken, sometimes_nan], 4, ids=ids).report()
    text = report_text(page)
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    samples = [entry[0] for entry in data_of(page.parent / "explorer" / "index.js")[0]["samples"]]
    assert samples == ids  # as data, which the page sets as text
    parsed = Page(text)
    scripts = [a["src"] for tag, a in parsed.tags if tag == "script"]
    assert set(scripts) == {"site.js", "explorer.js"}
    assert not [
        attribute
        for _, attributes in parsed.tags
        for attribute in attributes
        if attribute.startswith("on")
    ]
    names = {p.name for p in page.parent.rglob("*") if p.is_file()}
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)


def test_nothing_is_loaded_from_outside_the_report(page: Path):
    parsed = Page(report_text(page))
    links = [
        value
        for _, attributes in parsed.tags
        for key, value in attributes.items()
        if key in ("src", "href") and value
    ]
    assert links
    for link in links:
        assert re.fullmatch(
            r"(\w+\.html)?#[a-z-]+|(figures|pictures)/[\w-]+\.(svg|csv|webp)"
            r"|[\w.]+\.(html|css|js|svg|csv|csv\.gz|yaml|bib)",
            link,
        )
        file, _, anchor = link.partition("#")
        assert (page.parent / file).exists()
        if anchor and file:
            assert f'id="{anchor}"' in (page.parent / file).read_text()
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
    text = report_text(result.report())
    run = RunStatistics(result.store)
    sections = [s for s in SECTIONS if s.content(run, Site(tmp_path)) is not None]
    section_ids = {section.id for section in sections}
    assert section_ids >= {"headline", "ranking", "stability", "explorer", "failures", "provenance"}
    assert set(re.findall(r'<section id="([\w-]+)"', text)) == section_ids
    assert all(f">{section.page}</a>" in text for section in sections)
    assert not re.search(
        r"\b(nan|None)\b", re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)
    )


def test_stability_is_not_claimed_from_one_setting(evaluated: Evaluate):
    assert "This run cannot tell" in report_text(evaluated(["ixg", "saliency"], 3).report())


def test_the_report_says_if_no_maps_were_kept(evaluated: Evaluate):
    assert "No maps were kept" in report_text(evaluated(["ixg"], 3, keep_maps=0).report())


def test_the_report_says_if_tasks_are_missing(evaluated: Evaluate):
    result = evaluated(["ixg", "saliency"], 70)
    manifests = sorted((result.store.root / "tasks").iterdir())
    folders = [result.store.root / folder for folder in ("tasks", "rows")]
    for folder in folders:  # as before a task is finished
        next(folder.glob(f"{manifests[-1].stem}.*")).unlink()
    assert "1 of 2 tasks are missing" in " ".join(
        report_text(hp.Result.load(result.store.root).report()).split()
    )
    for folder in folders:
        next(folder.glob(f"{manifests[0].stem}.*")).unlink()
    assert "There are no scores yet" in report_text(hp.Result.load(result.store.root).report())


def test_building_again_replaces_the_old_report(full: hp.Result, tmp_path: Path):
    first = build(full, tmp_path / "site")
    before = first.read_bytes()
    (tmp_path / "site" / "index.html").write_text("old")
    assert build(full, tmp_path / "site").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["site"]


def test_a_directory_with_other_files_is_not_overwritten(full: hp.Result, tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(hp.HeatproofError, match="not a report"):
        build(full, tmp_path)
    with pytest.raises(hp.HeatproofError, match="is a file"):
        build(full, tmp_path / "thesis.tex")
    with pytest.raises(hp.HeatproofError, match="not a report"):
        build(full, full.store.root)
    site = build(full, tmp_path / "site").parent
    (site / "notes.txt").write_text("precious")
    with pytest.raises(hp.HeatproofError, match=r"notes\.txt"):
        build(full, site)
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
    collection, _ = data_of(page.parent / "explorer" / "index.js")
    for i, (sample, *_) in enumerate(collection["samples"]):
        photo = data_of(page.parent / "explorer" / "0" / f"{i:05d}.js")["photo"]
        expected = kept[sample].permute(1, 2, 0).numpy()
        assert np.array_equal(pixels(page.parent / photo), expected)
    assert len(collection["samples"]) == 12


def test_the_costs_are_those_of_the_result(page, full):
    costs = full.costs().query("model == 'resnet'").set_index("method")
    text = report_text(page)
    table = text[text.index('class="sortable costs"') :].partition("</table>")[0]
    rows = dict(re.findall(r'<tr data-method="([^"]+)"[^>]*>(.*?)</tr>', table, re.DOTALL))
    assert set(rows) == set(costs.index)
    for method, cells in rows.items():
        times = re.findall(r'data-value="([^"]*)"', cells)[3:5]
        expected = costs.loc[method, ["ms", "ms_in_batch"]]
        if costs.loc[method, "time_note"]:
            assert costs.loc[method, "time_note"] in cells
        else:
            assert [float(t) for t in times] == pytest.approx(list(expected))
