"""The section on grids, compared with a slow re-computation from the run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from report_text import report_text
from scipy.stats import spearmanr

import heatproof as hp
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures import mean_maps, pictures, svg
from heatproof.figures.charts import Box
from heatproof.figures.numbers import number
from heatproof.figures.palette import SEQUENTIAL, colour_map
from heatproof.report.sections import grid_aggregates, grids
from heatproof.report.sections.grid_facts import LayerMethod, smoothed
from heatproof.report.site import Site
from heatproof.runs.format import TransformFacts
from heatproof.tensor.filters import resize
from heatproof.tensor.localization import BIN_EDGE_PERCENTILES, aggregate_maps, bin_slices

METHODS = ["ixg@final", "ixg", "gradcam@final", "iba", "random"]
COUNT = 12


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> hp.Result:
    settings = [f"gridpg(grids={COUNT})", f"difull(grids={COUNT})"]
    out = tmp_path_factory.mktemp("grids") / "run"
    return hp.evaluate(
        "paperbirds/vgg", "paperbirds:test", METHODS, settings, limit=128, out=out, keep_maps=11
    )


@pytest.fixture(scope="module")
def run(result: hp.Result) -> RunStatistics:
    return RunStatistics(result.store)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def section(run: RunStatistics, site: Site) -> grids.Model:
    content = grids.content(run, site)
    assert content
    return content.models[0]


@pytest.fixture(scope="module")
def page(result: hp.Result) -> str:
    return report_text(result.report())


def test_layers_of_a_method_are_adjacent_and_sorted_by_depth(section: grids.Model):
    chart = str(section.boxes.svg)
    assert re.findall(r'<g class="mark[^>]*data-method="([^"]*)"', chart) == [
        "ixg",
        "ixg@final",
        "gradcam@final",
        "iba",
        "random",
    ]
    names = re.findall(r'class="name"[^>]*>([^<]*)<', chart)
    assert names == ["ixg", "gradcam", "iba", "random"]
    assert chart.count("no score") == 2  # the method that does not apply, under both settings


def test_means_in_the_figure_are_those_of_the_scores(result: hp.Result, section: grids.Model):
    written = re.findall(r'class="value"[^>]*>([^<]*)<', str(section.boxes.svg))
    means = result.scores.groupby(["method", "protocol"])["value"].mean()
    order = ["ixg", "ixg@final", "gradcam@final", "random"]
    assert written == [
        number(means[method, protocol], 2) for method in order for protocol in ("gridpg", "difull")
    ]


def test_a_box_shows_quartiles_whiskers_and_mean():
    values = [
        0.1,
        0.4,
        0.45,
        0.5,
        0.5,
        0.55,
        0.6,
        0.62,
        1.0,
    ]  # quartiles 0.45, 0.5, 0.6; reach 0.225
    box = Box.of(values, "some")
    assert box.quartiles == pytest.approx((0.45, 0.5, 0.6))
    assert box.whiskers == pytest.approx((0.4, 0.62))
    assert box.mean == pytest.approx(sum(values) / 9)
    alone = Box.of([0.3], "one")
    assert alone.whiskers == (0.3, 0.3) and alone.quartiles == (0.3, 0.3, 0.3)


def test_the_dashed_line_is_the_score_of_a_constant_map(section: grids.Model):
    chart = str(section.boxes.svg)
    lines = [float(x) for x in re.findall(r'class="random" x1="([\d.]+)"', chart)]
    ticks = [float(x) for x in re.findall(r'class="tick" x="([\d.]+)"[^>]*>0\.25<', chart)]
    assert len(lines) == 2
    assert lines == pytest.approx(ticks, abs=0.01)


def test_fractions_add_up_and_that_of_the_target_cell_is_the_mean_score(
    result: hp.Result, run: RunStatistics, section: grids.Model
):
    cells = {
        sample: grid.cell
        for view in run.views("paperbirds/vgg")
        for sample, grid in run.kept("paperbirds/vgg", view).grids.items()
    }
    for setting, targets in zip(section.settings, ([0, 1, 2, 3], [0, 3]), strict=True):
        rows = result.scores[
            (result.scores["protocol"] == setting.label) & (result.scores["status"] == "ok")
        ]
        rows = rows.assign(cell=rows["sample"].map(cells))
        assert set(setting.fractions) == {"ixg", "ixg@final", "gradcam@final", "random"}
        for method, by_target in setting.fractions.items():
            assert [fractions.target for fractions in by_target] == targets
            for fractions in by_target:
                scores = rows[(rows["method"] == method) & (rows["cell"] == fractions.target)][
                    "value"
                ]
                assert sum(fractions.values) == pytest.approx(1)
                assert fractions.values[fractions.target] == pytest.approx(
                    scores[scores > 0].mean(), rel=1e-5
                )


def test_bins_are_sorted_from_the_best_to_the_worst(result: hp.Result, section: grids.Model):
    """Eleven maps were kept: too few for the paper's bins, enough for halves of 5 and 6."""
    for setting in section.settings:
        aggregated = setting.aggregated
        assert (aggregated.maps, aggregated.of, aggregated.titles) == (
            11,
            COUNT,
            ["0–50 %", "50–100 %"],
        )
        rows = result.scores[(result.scores["protocol"] == setting.label)]
        for row in aggregated.tables[0].rows:
            scores = rows[(rows["method"] == row.label) & rows["sample"].str.endswith("#0")][
                :11
            ].set_index("sample")["value"]
            best = scores.sort_values(ascending=False)
            parts = [best[:5], best[5:]]
            assert [b.count for b in row.bins] == [5, 6]
            assert [b.score for b in row.bins] == pytest.approx([p.mean() for p in parts], rel=1e-5)
            assert [b.example_score for b in row.bins] == pytest.approx(
                [p.iloc[(len(p) - 1) // 2] for p in parts], rel=1e-5
            )
            assert all(
                scores[b.sample] == pytest.approx(b.example_score, rel=1e-5) for b in row.bins
            )


def test_the_same_grids_are_shown_by_all_methods(section: grids.Model, result: hp.Result):
    """They are those in the middle of the bins of Grad-CAM at the last layer."""
    for setting in section.settings:
        same = setting.aggregated.same
        rows = {row.label: row for row in setting.aggregated.tables[0].rows}
        samples = [b.sample for b in rows["gradcam@final"].bins]
        assert same.of == "gradcam@final" and same.photos == [
            b.photo for b in rows["gradcam@final"].bins
        ]
        assert set(same.rows) == set(rows) == {"ixg", "ixg@final", "gradcam@final"}
        of_setting = result.scores[result.scores["protocol"] == setting.label]
        for label, shown in same.rows.items():
            scores = of_setting[of_setting["method"] == label].set_index("sample")["value"]
            assert [s.score for s in shown] == pytest.approx(scores[samples].tolist(), rel=1e-5)


def test_an_aggregated_map_is_the_mean_on_the_scale_of_its_row(
    run: RunStatistics, site: Site, section: grids.Model
):
    """Compute the mean again from the kept maps, one by one."""
    view = next(
        v for v in run.views("paperbirds/vgg") if v.name.startswith("gridpg") and v.cell == 0
    )
    kept = run.kept("paperbirds/vgg", view)
    row = next(r for r in section.settings[0].aggregated.tables[0].rows if r.label == "ixg@final")
    scored = {}
    for sample in list(kept.with_images):
        large = pictures.resized(kept.unscaled_map(sample, "ixg@final"), (128, 128)).numpy()
        positive = np.maximum(large, 0)
        scored[sample] = (positive[:64, :64].sum() / positive.sum(), positive)
    order = sorted(scored.values(), key=lambda scored_map: -scored_map[0])
    means = [np.mean([m for _, m in order[a:b]], 0) for a, b in ((0, 5), (5, 11))]
    pixels = np.sort(np.concatenate([m.ravel() for m in means]))
    scale = pixels[int(0.995 * len(pixels))]
    for mean, bin_ in zip(means, row.bins, strict=True):
        with Image.open(site.root / bin_.map) as picture:
            colours = np.asarray(picture.convert("RGB")).astype(int)
        shades = colour_map(SEQUENTIAL).astype(int)
        indices = np.abs(colours[:, :, None] - shades).sum(3).argmin(2)
        assert (
            np.abs(indices - 255 * np.clip(mean / scale, 0, 1)).max()
            <= 255 / pictures.SHADES / 2 + 0.51
        )


def test_signs_are_shown_for_maps_with_negative_values(section: grids.Model):
    signed = {
        row.label: {bool(b.signed) for b in row.bins}
        for row in section.settings[0].aggregated.tables[0].rows
    }
    assert signed == {
        "ixg": {True},
        "ixg@final": {True},
        "gradcam@final": {False},
    }  # and no control


def test_correlations_are_spearman_rank_correlations(result: hp.Result, section: grids.Model):
    correlation = section.settings[0].correlation
    scores = result.scores[result.scores["protocol"] == "gridpg"].pivot(
        index="sample", columns="method", values="value"
    )
    labels = correlation.labels
    assert labels == ["ixg", "ixg@final", "gradcam@final", "random"]
    for i, first in enumerate(labels):
        for j, second in enumerate(labels):
            assert correlation.values[i, j] == pytest.approx(
                spearmanr(scores[first], scores[second]).statistic
            )
    constant = section.settings[
        1
    ].correlation  # disconnected grid cells have no gradient, so all scores are 1
    assert np.isnan(constant.values[constant.labels.index("ixg")]).all()


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> hp.Result:
    """Evaluate methods at all layers, on single images and grids, and with smoothing."""
    methods = ["ixg@all", "gradcam@all", "ixg|smooth(3)", "ixg|smooth(9)", "gradcam@final"]
    out = tmp_path_factory.mktemp("layers") / "run"
    return hp.evaluate(
        "paperbirds/vgg",
        "paperbirds:test",
        methods,
        ["sds(patches=4)", "gridpg(grids=5)", "difull(grids=5)"],
        limit=64,
        out=out,
    )


@pytest.fixture(scope="module")
def deep(layered: hp.Result, site: Site) -> grids.Model:
    return grids.content(RunStatistics(layered.store), site).models[0]


def test_scores_of_all_layers_are_drawn_by_depth_with_intervals(
    layered: hp.Result, deep: grids.Model
):
    layers = ["input", "conv1", "conv2", "conv3", "conv4", "conv5", "conv6"]
    rows = layered.scores[layered.scores["protocol"] == "gridpg"]
    chart = str(deep.settings[0].depth.svg)
    assert chart.count('class="band"') == 2
    for method in ("ixg", "gradcam"):
        labels = {"input": "ixg" if method == "ixg" else "gradcam@input"}
        means = [
            rows[rows["method"] == labels.get(layer, f"{method}@{layer}")]["value"].mean()
            for layer in layers
        ]
        lines = "\n".join(
            rf"{100 * k / 6:.0f} %: {number(v, 2)} \([\d.]+ to [\d.]+\)"
            for k, v in enumerate(means)
        )
        assert re.search(f"{method}\n{lines}", chart)


def test_smoothed_maps_are_compared_with_gradcam(layered: hp.Result, deep: grids.Model):
    smoothed = deep.settings[0].smoothed
    scores = layered.scores[layered.scores["protocol"] == "gridpg"].pivot(
        index="sample", columns="method", values="value"
    )
    assert (smoothed.widths, smoothed.reference) == ([0, 3, 9], "gradcam@final")
    (row,) = smoothed.rows
    for label, (mean, rho) in zip(
        ["ixg", "ixg|smooth(3)", "ixg|smooth(9)"], row.scores, strict=True
    ):
        assert mean.value == pytest.approx(scores[label].mean())
        assert rho == pytest.approx(spearmanr(scores[label], scores["gradcam@final"]).statistic)


def test_smoothed_maps_without_scores_are_gaps_and_the_reference_has_no_row():
    """One width was not scored, and the reference was smoothed, too."""

    def method(base: str, layer: str, *width: int) -> LayerMethod:
        smooth = "".join(f"|smooth({w})" for w in width)
        transforms = tuple(TransformFacts(name="smooth", arguments=(w,)) for w in width)
        label, name = f"{base}@{layer}{smooth}", f"{base}{smooth}"
        return LayerMethod(label, name, layer, "gradient", 0, base, transforms)

    methods = [method("gradcam", "final"), method("gradcam", "final", 3), method("ixg", "input")]
    methods += [method("ixg", "input", 3), method("ixg", "input", 9)]
    scored = [m.label for m in methods[:-1]]
    scores = pd.DataFrame(np.random.default_rng(0).random((6, 4)), columns=scored)
    means = {label: Estimate(scores[label].mean(), 0.0, 1.0) for label in scored}
    found = smoothed(methods, scores, means)
    assert (found.widths, found.reference) == ([0, 3], "gradcam@final")
    (row,) = found.rows  # of Grad-CAM one width is left, and nothing to compare
    assert row.method == "ixg"
    expected = [spearmanr(scores[label], scores["gradcam@final"])[0] for label in scored[2:]]
    assert [score.rho for score in row.scores] == pytest.approx(expected)


def test_an_image_is_shown_alone_and_in_grids(layered: hp.Result, deep: grids.Model):
    (image,) = deep.images
    assert image.titles == ["alone", "gridpg", "difull"] and all(image.photos)
    assert all(all(row.maps) for row in image.rows)
    text = report_text(layered.report())
    assert "An empty cell was not run; a dash in the place of ρ means that one of the two" in text


def test_costs_are_the_counted_passes(layered: hp.Result, deep: grids.Model):
    """Count the clean pass and one backward per map, shared by all methods."""
    assert [(row.label, row.maps, row.whole) for row in deep.costs] == [
        ("gridpg", 20, {"forward": 20, "backward": 20}),
        ("difull", 10, {"forward": 10, "backward": 10}),
    ]
    (pool,) = deep.pools
    assert pool.images == sum(pool.classes.values()) <= 64
    assert pool.reused == {}  # five grids of four images: each image is used once


def test_the_page_contains_the_whole_section(page: str):
    start = page.index('<section id="grids"')
    section = page[start : page.index("</section>", start)]
    assert section.count('class="chart boxes"') == 1
    assert (
        section.count('class="chart fraction-grids"')
        == section.count('class="chart matrix-plot"')
        == 2
    )
    assert "11 grids (of 12; the others were not kept)" in section
    assert not re.search(r"\b(nan|None)\b", section)


def test_too_many_rows_are_split_into_a_table_for_each_layer(
    run: RunStatistics, section: grids.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(grid_aggregates, "MOST_ROWS", 2)
    (model,) = grids.content(run, Site(tmp_path)).models
    aggregated = model.settings[0].aggregated
    labels = {t.layer: [row.label for row in t.rows] for t in aggregated.tables}
    assert labels == {"input": ["ixg"], "final": ["ixg@final", "gradcam@final"]}
    assert aggregated.every_layer
    (everything,) = section.settings[0].aggregated.tables
    assert len(everything.rows) == 3


def test_means_of_bins_do_not_need_all_maps_at_once(monkeypatch: pytest.MonkeyPatch):
    maps = torch.randn(23, 4, 4, generator=torch.Generator().manual_seed(0))
    scores = torch.linspace(0, 1, 23)
    edges = (0, 50, 100)
    monkeypatch.setattr(mean_maps, "MAPS_RESIZED_AT_ONCE", 5)
    for signed in (False, True):
        bins, order, _ = aggregate_maps(resize(maps, 8, 8), scores, scores, edges, signed=signed)
        means = [
            mean_maps.mean_maps(maps[order[part]], (8, 8), signed) for part in bin_slices(23, edges)
        ]
        torch.testing.assert_close(torch.stack(means), bins)


def test_a_run_with_nine_grid_cells_and_few_maps_is_reported(tmp_path: Path):
    result = hp.evaluate(
        "paperbirds/vgg",
        "paperbirds:test",
        ["ixg@final"],
        ["difull(grid=3, grids=10)"],
        limit=128,
        out=tmp_path / "run",
    )
    (model,) = grids.content(RunStatistics(result.store), Site(tmp_path / "site")).models
    (setting,) = model.settings
    assert setting.aggregated.titles == ["0–50 %", "50–100 %"]
    assert [len(fractions.values) for fractions in setting.fractions["ixg@final"]] == [9, 9]
    assert setting.correlation is None
    assert result.report(tmp_path / "page").is_file()


def test_a_run_without_grids_has_no_section_on_grids(golden_model, tmp_path: Path):
    images = hp.TensorData(torch.zeros(2, 3, 32, 32), [0, 1])
    result = hp.evaluate(golden_model("vgg"), images, ["ixg"], ["sds"], out=tmp_path / "run")
    assert grids.content(RunStatistics(result.store), Site(tmp_path / "site")) is None


def test_few_maps_have_wide_bins_with_at_least_five_in_each():
    chosen = {
        n: next(
            (edges for edges in mean_maps.COARSER if mean_maps.fills_bins(n, edges)),
            None,
        )
        for n in range(1, 501)
    }
    assert {chosen[n] for n in range(1, 5)} == {None}
    assert {chosen[n] for n in range(5, 10)} == {(0, 100)}
    assert {chosen[n] for n in range(10, 50)} == {(0, 50, 100)}
    assert {chosen[n] for n in range(50, 250)} == {(0, 10, 50, 90, 100)}
    assert {chosen[n] for n in range(250, 501)} == {BIN_EDGE_PERCENTILES}


def test_a_frame_surrounds_its_grid_cell():
    assert "M2 1h1v1h-1z" in svg.grid_cell_frame(3, 5)


def test_the_maps_of_a_grid_are_a_cluster(result: hp.Result):
    """Four cells of a grid are evaluated in gridpg, two in the others; images are on their own."""
    scores = result.scores
    counts = scores.groupby(["protocol", "cluster"])["sample"].nunique()
    assert set(counts["gridpg"]) == {4}
    assert set(counts["difull"]) == {2}
    for sample, cluster in zip(scores["sample"], scores["cluster"], strict=True):
        assert sample == cluster or sample.startswith(f"{cluster}#")
