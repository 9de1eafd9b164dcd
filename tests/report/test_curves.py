"""The section on curves, compared with a slow re-computation from the run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from report_text import report_text
from scipy.stats import spearmanr

import heatproof as hp
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.analysis.tradeoff import tradeoff
from heatproof.figures.charts import CurveChart
from heatproof.report.sections import curves, stability
from heatproof.report.site import Site
from heatproof.runs.format import ProtocolFacts

BASELINES = ["zero", "uniform", "blur", "local-mean"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunStatistics:
    protocols = [
        {"name": "deletion", "baseline": BASELINES, "ood": True, "steps": 5},
        {"name": "insertion", "baseline": BASELINES, "steps": 5},
    ]
    out = tmp_path_factory.mktemp("curves") / "run"
    reference = hp.load_data("paperbirds:train", limit=32)
    methods = ["ixg", "gradcam", "saliency", "random"]
    return RunStatistics(
        hp.evaluate(
            "paperbirds/vgg",
            "paperbirds:test",
            methods,
            protocols,
            limit=12,
            out=out,
            reference=reference,
        ).store
    )


@pytest.fixture(scope="module")
def section(run: RunStatistics, tmp_path_factory: pytest.TempPathFactory) -> curves.Model:
    content = curves.content(run, Site(tmp_path_factory.mktemp("site")))
    assert content
    return content.models[0]


def deletion_with(run: RunStatistics, baseline: str) -> ProtocolFacts:
    return next(p for p in run.protocols.values() if (p.id, p.baseline) == ("deletion", baseline))


def test_distance_and_negentropy_are_those_of_the_images(run: RunStatistics, section: curves.Model):
    """Compute both from the network, for the whole image and after all pixels are removed."""
    model = hp.load_model("paperbirds/vgg")
    test, train = (
        hp.load_data(f"paperbirds:{split}", model, limit=n)
        for split, n in (("test", 12), ("train", 32))
    )
    x, reference = (
        model.normalize(torch.stack([d.load(i).image for i in range(len(d.ids))]))
        for d in (test, train)
    )
    bank = torch.nn.functional.normalize(model.forward(reference)[1].double())
    for images, step in ((x, 0), (torch.zeros_like(x), -1)):
        logits, embedding = model.forward(images)
        nearest = torch.cdist(torch.nn.functional.normalize(embedding.double()), bank).amin(1)
        deletion = deletion_with(run, "zero")
        kept = run.kept("paperbirds/vgg")
        torch.testing.assert_close(
            kept.curves(deletion, "gradcam", "ood")[:, step].double(),
            nearest,
            rtol=1e-4,
            atol=1e-5,
        )
        p = logits.double().softmax(1)
        negentropy = np.log(32) + (p * p.clamp(min=1e-300).log()).sum(1)
        torch.testing.assert_close(
            kept.curves(deletion, "gradcam", "negentropy")[:, step].double(),
            negentropy,
            rtol=1e-4,
            atol=1e-5,
        )
    row = next(r for r in section.rows if (r.protocol, r.baseline) == ("deletion", "blur"))
    kept_curve = kept.curves(deletion_with(run, "blur"), section.method, "ood")
    assert row.means["ood"].value == pytest.approx(kept_curve.double().mean().item())


def test_the_strip_begins_with_the_image_and_ends_with_the_baseline(
    run: RunStatistics, section: curves.Model
):
    assert [r.baseline for r in section.strips.rows] == BASELINES
    first = {r.images[0] for r in section.strips.rows}
    assert len(first) == 1
    assert len({r.images[-1] for r in section.strips.rows}) == len(BASELINES)
    logits = hp.load_model("paperbirds/vgg").logits(torch.zeros(1, 3, 64, 64))[0]
    zero = next(r for r in section.strips.rows if r.baseline == "zero")
    assert zero.top[0][1] == pytest.approx(logits.softmax(0).max().item(), rel=1e-3)


def test_the_shade_ends_where_the_mean_curve_has_80_percent_of_its_area(
    run: RunStatistics, section: curves.Model, tmp_path, monkeypatch
):
    drawn = []
    site = Site(tmp_path)
    monkeypatch.setattr(site, "figure", drawn.append)
    curves.content(run, site)
    kept = run.kept(section.model)
    for protocol, shown in section.reached.items():
        facts = [p for p in run.protocols.values() if p.id == protocol]
        means = [kept.curves(f, section.method, "score").double().mean(0).numpy() for f in facts]
        mean = np.mean(means, 0)
        heights = (mean - mean.min()) / (mean.max() - mean.min())
        sums = [heights[: k + 1].sum() for k in range(len(heights))]
        first = next(k for k, total in enumerate(sums) if total >= 0.8 * heights.sum())
        assert shown == pytest.approx(first / len(heights))
        of_protocol = [c for c in drawn if isinstance(c, CurveChart) and c.protocol == protocol]
        assert of_protocol and {chart.shaded for chart in of_protocol} == {shown}
    assert section.reached["deletion"] <= 0.8 <= section.reached["insertion"] + 1 / 6


def test_optimized_images_of_several_models_stand_side_by_side(tmp_path):
    baselines = ["zero", "featurevis(crops=2, steps=2)"]
    result = hp.evaluate(
        ["paperbirds/vgg", "paperbirds/resnet"],
        "paperbirds:test",
        ["random"],
        [{"name": "deletion", "baseline": baselines, "steps": 2}],
        limit=10,
        out=tmp_path / "run",
    )
    content = curves.content(RunStatistics(result.store), Site(tmp_path / "site"))
    ((name, cells),) = content.optimized.items()
    assert name == baselines[1] and len(cells) == len(content.models) == 2
    for cell, model in zip(cells, content.models, strict=True):
        (strip,) = (row for row in model.strips.rows if row.baseline == name)
        assert cell is strip
    assert cells[0].images[-1] != cells[1].images[-1]


def test_the_trade_off_is_that_of_the_means():
    generator = np.random.default_rng(0)
    distance = generator.normal(size=(50, 6)) + np.arange(6)
    negentropy = generator.normal(size=(50, 6)) - 0.5 * np.arange(6)
    result = tradeoff(distance, negentropy)
    x, y = distance.mean(0), negentropy.mean(0)
    assert result.correlation == pytest.approx(spearmanr(x, y).statistic)
    np.testing.assert_allclose(result.line(2.0), np.polyval(np.polyfit(x, y, 1), 2.0))
    assert np.isnan(result.p) and not result.off.any()  # six baselines are no sample of baselines
    assert tradeoff(distance[:, :2], negentropy[:, :2]) is None
    assert tradeoff(np.ones((5, 4)), negentropy[:5, :4]) is None


def test_a_baseline_off_the_line_through_the_others_is_named_and_no_other():
    distance = np.arange(9.0)
    left = -distance + 0.1 * np.random.default_rng(1).normal(size=9)
    left[4] += 1.5
    assert tradeoff(distance[None], left[None]).off.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_a_baseline_that_depends_on_the_model_has_no_part_in_the_line():
    distance = np.append(np.arange(9.0), 12)
    left = np.append(-np.arange(9.0) + 0.1 * np.random.default_rng(1).normal(size=9), 5)
    found = tradeoff(distance[None], left[None], [False] * 9 + [True])
    assert (found.fitted, found.correlation) == (9, pytest.approx(-1))
    assert found.slope == pytest.approx(-1, abs=0.03)
    assert found.off.tolist() == [0] * 9 + [1]


def test_baselines_are_seldom_off_the_line_by_chance():
    rng = np.random.default_rng(2)
    tables = rng.normal(size=(300, 2, 1, 10))
    named = sum(bool(tradeoff(distance, left).off.any()) for distance, left in tables)
    assert named / 300 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)


def test_few_baselines_have_a_correlation_and_no_trend(section: curves.Model):
    assert section.tradeoffs
    for drawn in (figure for group in section.tradeoffs for figure in group.figures):
        assert "over 4 baselines; 8 or more are needed to test for a trend" in drawn.trend
        assert drawn.off_the_line == ""


def test_rankings_are_compared_between_baselines(run: RunStatistics, tmp_path):
    content = stability.content(run, Site(tmp_path))
    assert [c.over for c in content.baselines] == ["deletion", "insertion"]
    assert [list(c.labels) for c in content.baselines] == [BASELINES] * 2
    table = run.summary_frame[run.summary_frame["protocol"] == "deletion"].pivot(
        index="baseline", columns="method", values="rank"
    )
    pair = spearmanr(
        table.loc["zero", ["ixg", "gradcam", "saliency"]],
        table.loc["uniform", ["ixg", "gradcam", "saliency"]],
    ).statistic
    assert content.baselines[0].agreement.pairs[0, 1].value == pytest.approx(pair)
    assert "between protocols" in content.by_model["paperbirds/vgg"][-1].title


def test_curves_without_other_measures_are_reported(tmp_path):
    protocols = [
        "deletion(steps=3)",
        "soundness(baseline=zero, first=0.8, last=0.2, step=0.3, eps=0.1)",
        "completeness(baseline=zero, steps=3)",
    ]
    page = hp.evaluate(
        "paperbirds/vgg",
        "paperbirds:test",
        ["saliency", "random"],
        protocols,
        limit=10,
        out=tmp_path,
    ).report()
    assert "Where does the area under the curve come from?" in report_text(page)
