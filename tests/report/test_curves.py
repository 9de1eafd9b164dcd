"""The section on curves, compared with a slow re-computation from the run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import heatproof as hp
from heatproof.analysis.tradeoff import tradeoff
from heatproof.bench.layout import ProtocolFacts
from heatproof.report.run_data import Run
from heatproof.report.sections import curves, stability
from heatproof.report.site import Site

BASELINES = ["zero", "uniform", "blur", "local-mean"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    protocols = [
        {"name": "deletion", "baseline": BASELINES, "ood": True, "steps": 5},
        {"name": "insertion", "baseline": BASELINES, "steps": 5},
    ]
    out = tmp_path_factory.mktemp("curves") / "run"
    reference = hp.load_data("paperbirds:train", limit=32)
    methods = ["ixg", "gradcam", "saliency", "random"]
    return Run(
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
def shown(run: Run, tmp_path_factory: pytest.TempPathFactory) -> curves.Model:
    found = curves.content(run, Site(tmp_path_factory.mktemp("site")))
    assert found
    return found.models[0]


def deletion_with(run: Run, baseline: str) -> ProtocolFacts:
    return next(p for p in run.protocols.values() if (p.id, p.baseline) == ("deletion", baseline))


def test_distances_and_what_is_left_are_those_of_the_images(run: Run, shown: curves.Model):
    """From the network and the images themselves, for the whole image and for nothing."""
    model = hp.load_model("paperbirds/vgg")
    test, train = (
        hp.load_data(f"paperbirds:{split}", model, limit=n)
        for split, n in (("test", 12), ("train", 32))
    )
    x, known = (
        model.normalize(torch.stack([d.load(i).image for i in range(len(d.ids))]))
        for d in (test, train)
    )
    bank = torch.nn.functional.normalize(model.forward(known)[1].double())
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
        left = np.log(32) + (p * p.clamp(min=1e-300).log()).sum(1)
        torch.testing.assert_close(
            kept.curves(deletion, "gradcam", "negentropy")[:, step].double(),
            left,
            rtol=1e-4,
            atol=1e-5,
        )
    row = next(r for r in shown.rows if (r.protocol, r.baseline) == ("deletion", "blur"))
    kept_curve = kept.curves(deletion_with(run, "blur"), shown.method, "ood")
    assert row.means["ood"].value == pytest.approx(kept_curve.double().mean().item())


def test_the_strip_begins_with_the_image_and_ends_with_nothing(run: Run, shown: curves.Model):
    assert [r.baseline for r in shown.strips.rows] == BASELINES
    first = {r.images[0] for r in shown.strips.rows}
    assert len(first) == 1
    assert len({r.images[-1] for r in shown.strips.rows}) == len(BASELINES)
    logits = hp.load_model("paperbirds/vgg").logits(torch.zeros(1, 3, 64, 64))[0]
    zero = next(r for r in shown.strips.rows if r.baseline == "zero")
    assert zero.top[0][1] == pytest.approx(logits.softmax(0).max().item(), rel=1e-3)


def test_the_trade_off_is_that_of_the_means():
    generator = np.random.default_rng(0)
    distance = generator.normal(size=(50, 6)) + np.arange(6)
    left = generator.normal(size=(50, 6)) - 0.5 * np.arange(6)
    found = tradeoff(distance, left)
    x, y = distance.mean(0), left.mean(0)
    assert found.correlation.value == pytest.approx(spearmanr(x, y).statistic)
    assert found.correlation.low <= found.correlation.value <= found.correlation.high
    np.testing.assert_allclose(found.line(2.0), np.polyval(np.polyfit(x, y, 1), 2.0))
    np.testing.assert_allclose(found.residuals.sum(), 0, atol=1e-9)
    assert tradeoff(distance[:, :2], left[:, :2]) is None
    assert tradeoff(np.ones((5, 4)), left[:5, :4]) is None


def test_rankings_are_compared_baseline_by_baseline(run: Run, tmp_path):
    found = stability.content(run, Site(tmp_path))
    assert [c.over for c in found.baselines] == ["deletion", "insertion"]
    assert [list(c.labels) for c in found.baselines] == [BASELINES] * 2
    table = run.summary[run.summary["protocol"] == "deletion"].pivot(
        index="baseline", columns="method", values="rank"
    )
    pair = spearmanr(
        table.loc["zero", ["ixg", "gradcam", "saliency"]],
        table.loc["uniform", ["ixg", "gradcam", "saliency"]],
    ).statistic
    assert found.baselines[0].agreement.pairs[0, 1].value == pytest.approx(pair)
    assert "between protocols" in found.by_model["paperbirds/vgg"][-1].title


def test_curves_along_which_nothing_else_is_watched(tmp_path):
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
    assert "Where does the area under the curve come from?" in page.read_text()
