"""Several networks and their fine-tuned copies, compared with a slow re-computation."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from report_text import report_text
from scipy.stats import spearmanr
from torch import Tensor

import heatproof as hp
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.axes import Axis
from heatproof.figures.charts import LatticeChart, Panel, Row, Spot
from heatproof.figures.svg import draw, spread
from heatproof.models.zoo import load_fine_tuned
from heatproof.protocols import ViewKey
from heatproof.report.pages import write_pages
from heatproof.report.sections import example, explorer, failures, models, provenance, stability
from heatproof.report.sections.models import (
    accuracy,
    across,
    best,
    channels,
    fine_tuning,
    similarity,
)
from heatproof.report.site import Site
from heatproof.runs.format import EpochFacts, FineTuningFacts, ModelFacts

NAMES = ["paperbirds/vgg", "paperbirds/bcos"]
METHODS = ["gradcam", "ixg", "saliency", "ixg|abs", "bcos", "random", "edges"]
N = 32


@pytest.fixture(scope="module")
def data() -> hp.TensorData:
    """Return birds with added noise, so that not all predictions are correct."""
    birds = hp.load_data("paperbirds:test", limit=N)
    samples = [birds.load(i) for i in range(N)]
    images = torch.stack([s.image for s in samples])
    noisy = (
        images + 0.15 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    ).clamp(0, 1)
    return hp.TensorData(noisy, [s.label or 0 for s in samples], name="noisy")


@pytest.fixture(scope="module")
def result(data: hp.TensorData, tmp_path_factory: pytest.TempPathFactory) -> hp.Result:
    return hp.evaluate(
        NAMES,
        data,
        METHODS,
        ["sds", "idsds"],
        out=tmp_path_factory.mktemp("run") / "two",
        keep_maps=32,
    )


@pytest.fixture(scope="module")
def run(result: hp.Result) -> RunStatistics:
    return RunStatistics(result.store)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def without_each_patch(model: hp.Model, x: Tensor) -> Tensor:  # (16, K) logits
    deleted = x.repeat(16, 1, 1, 1)
    for p in range(16):
        row, column = 16 * (p // 4), 16 * (p % 4)
        deleted[p, :, row : row + 16, column : column + 16] = 0
    with torch.no_grad():
        return model.logits(deleted)


def test_accuracies_are_those_of_the_networks(run: RunStatistics, data: hp.TensorData):
    (table,) = accuracy.content(run)
    assert table.deletion == (16, "zero")
    for name, accuracies in zip(NAMES, table.models.values(), strict=True):
        plain = hp.load_model(name)
        before, after, change = accuracies
        for row, model in ((before, plain), (after, load_fine_tuned(plain, "16/zero"))):
            correct = {"intact": 0.0, "random": 0.0, "worst": 0.0, "whichever": 0.0}
            for image, label in zip(data.images, data.labels, strict=True):
                assert label is not None
                x = model.normalize(image[None])
                logits = without_each_patch(model, x)
                answers = logits.argmax(1) == label
                worst = int(logits.log_softmax(1)[:, label].argmin())
                with torch.no_grad():
                    correct["intact"] += bool(model.logits(x).argmax() == label)
                correct["random"] += float(answers.float().mean())
                correct["worst"] += bool(answers[worst])
                correct["whichever"] += bool(answers.all())
            assert row.n == N
            assert [e.value for e in row.estimates] == pytest.approx(
                [total / N for total in correct.values()]
            )
            assert all(e.low <= e.value <= e.high for e in row.estimates)
        assert [e.value for e in change.estimates] == pytest.approx(
            [a.value - b.value for a, b in zip(after.estimates, before.estimates, strict=True)]
        )


def largest_by_chance(differences: np.ndarray) -> float:
    """Return how many standard errors the largest mean has, in 95 % of flips of the signs."""
    signs = np.random.default_rng(0).choice([-1, 1], (4000, len(differences), 1))
    flipped = signs * differences
    errors = flipped.std(1, ddof=1) / len(differences) ** 0.5
    return float(np.quantile(np.abs(flipped.mean(1) / errors).max(1), 0.95))


def test_differences_between_models_are_paired(run: RunStatistics, site: Site, result: hp.Result):
    tuned, plain = across.models(run, site)
    assert (tuned.protocol.id, plain.protocol.id) == ("idsds", "sds")
    scores = result.scores[result.scores["protocol"] == "idsds"]
    tables = [
        scores[scores["model"] == name].pivot(index="sample", columns="method", values="value")
        for name in NAMES
    ]
    both = [row.method for row in tuned.rows if row.method != "bcos"]
    differences = (tables[1][both] - tables[0][both]).to_numpy()
    assert differences.shape == (N, 6) and np.isfinite(differences).all()
    critical = largest_by_chance(differences)
    errors = dict(zip(both, differences.std(0, ddof=1) / N**0.5, strict=True))
    for row, marked in zip(tuned.rows, tuned.marked, strict=True):
        (estimate,) = row.estimates
        assert (estimate is None) == (row.method == "bcos")
        if estimate:
            difference = tables[1][row.method] - tables[0][row.method]
            assert estimate.value == pytest.approx(difference.mean())
            reach = critical * errors[row.method]
            assert estimate.high - estimate.value == pytest.approx(reach, rel=0.06)
            assert estimate.value - estimate.low == pytest.approx(estimate.high - estimate.value)
            if estimate.low > 0 or estimate.high < 0:
                assert marked == [np.sign(estimate.value)]
    assert tuned.figure.svg.count(">does not apply<") == 1


def test_differences_to_the_fine_tuned_copy_are_paired(
    run: RunStatistics, site: Site, result: hp.Result
):
    for name, comparison in zip(NAMES, across.copies(run, site), strict=True):
        scores = result.scores[result.scores["model"] == name].pivot(
            index="sample", columns=["protocol", "method"], values="value"
        )
        for row in comparison.rows:
            (estimate,) = row.estimates
            difference = scores["idsds", row.method] - scores["sds", row.method]
            assert (estimate is None) == difference.isna().all()
            if estimate:
                assert estimate.value == pytest.approx(difference.mean())
        assert comparison.others == ["fine-tuned (idsds · zero)"]


def test_methods_that_a_model_does_not_have_come_last(run: RunStatistics, site: Site):
    assert across.models(run, site)[0].rows[-1].method == "bcos"


def test_the_best_method_is_not_a_control_and_has_the_best_mean(run: RunStatistics):
    key = run.preferred[0]
    for name in NAMES:
        best_method = best.best(run, name, key)
        assert best_method is not None
        part = run.summary_frame[
            (run.summary_frame["model"] == name) & (run.summary_frame["protocol"] == "idsds")
        ].set_index("method")
        assert best_method.method == part["mean"].drop(["random", "edges"]).idxmax()
        assert best_method.view == ViewKey("fine-tuned", "16/zero")
        assert best_method.score == pytest.approx(
            tuple(part.loc[best_method.method, ["mean", "low", "high"]])
        )


def test_a_scatter_needs_models_that_differ_in_accuracy(run: RunStatistics, site: Site):
    content = best.content(run, site)
    assert content is not None
    assert len(content.rows) == 4
    assert (content.figure is not None) == (len({r.accuracy.value for r in content.rows}) > 1)


def test_similarity_is_the_mean_absolute_difference(run: RunStatistics, data: hp.TensorData):
    pairs = {p.label: p for p in similarity._pairs(run)}
    assert set(pairs) == {"vgg ↔ fine-tuned", "bcos ↔ fine-tuned", "vgg ↔ bcos"}
    plain = hp.load_model(NAMES[0])
    networks = (plain, load_fine_tuned(plain, "16/zero"))
    softmax, cams = 0.0, []
    for i, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
        assert label is not None
        x = plain.normalize(image[None])
        with torch.no_grad():
            a, b = (float(m.logits(x).double().softmax(1)[0, label]) for m in networks)
        softmax += abs(a - b) / N
        if i < 32:
            maps = []
            for model in networks:
                cam = grad_cam(model, x, label)
                maps.append((cam - cam.min()) / (cam.max() - cam.min()))
            cams.append(float((enlarged(maps[0]) - enlarged(maps[1])).abs().mean()))
    pair = pairs["vgg ↔ fine-tuned"]
    assert pair.softmax is not None
    assert pair.cam is not None
    assert (pair.softmax[0].value, pair.softmax[1]) == (pytest.approx(softmax, rel=1e-4), N)
    assert pair.cam[0].value == pytest.approx(
        np.nanmean(cams), abs=1e-3
    )  # maps are kept in half precision


def grad_cam(model: hp.Model, x: Tensor, label: int) -> Tensor:
    layer = model.landmarks["cam"]
    head, tail = model.cut(layer)
    features = head(x).detach().requires_grad_()
    tail(features)[0, label].backward()
    assert features.grad is not None
    return (features * features.grad.mean((2, 3), keepdim=True)).sum(1).relu()[0].detach()


def enlarged(small: Tensor) -> Tensor:
    return torch.nn.functional.interpolate(
        small[None, None], (64, 64), mode="bilinear", align_corners=False
    )[0, 0]


def test_a_copy_is_nearer_only_if_no_interval_overlaps():
    def pair(same: bool, low: float, high: float) -> similarity.Pair:
        return similarity.Pair("", same, (Estimate((low + high) / 2, low, high), 9), None)

    assert similarity.nearer([pair(True, 0.1, 0.2), pair(False, 0.3, 0.4)], "softmax") is True
    assert similarity.nearer([pair(True, 0.1, 0.2), pair(False, 0.15, 0.4)], "softmax") is False
    assert similarity.nearer([pair(True, 0.1, 0.2)], "softmax") is None
    assert (
        similarity.nearer(
            [pair(True, float("nan"), float("nan")), pair(False, 0.3, 0.4)], "softmax"
        )
        is None
    )
    assert similarity.nearer([pair(True, 0.1, 0.2), pair(False, 0.3, 0.4)], "cam") is None


def test_channels_show_the_images_that_excite_them_most(run: RunStatistics, site: Site):
    for name, section in zip(NAMES, channels.content(run, site), strict=True):
        views = (ViewKey(), ViewKey("fine-tuned", "16/zero"))
        peaks = [run.kept(name, view).channel_peaks() for view in views]
        assert (section.n, section.shown_from) == (N, 32)
        common = []
        for c in range(6):
            everywhere, shown = (
                [sorted(range(n), key=lambda i: -float(p[i, c]))[:8] for p in peaks]
                for n in (N, 32)
            )
            common.append(len(set(everywhere[0]) & set(everywhere[1])))
            if c < 3:
                channel = section.channels[c]
                assert [image.id for image in channel.before] == [str(i) for i in shown[0]]
                assert [image.id for image in channel.after] == [str(i) for i in shown[1]]
                both = len(set(shown[0]) & set(shown[1]))
                assert sum(image.both for image in channel.after) == channel.common == both
        assert (section.mean, section.least, section.most) == (
            pytest.approx(np.mean(common)),
            min(common),
            max(common),
        )


def test_channels_have_their_number_in_the_layer(
    run: RunStatistics, site: Site, data: hp.TensorData
):
    for name, section in zip(NAMES, channels.content(run, site), strict=True):
        model = hp.load_model(name)
        assert section.layer == model.landmarks["cam"]
        activation = model.passes.activation(model.normalize(data.images), model.layer_index("cam"))
        peaks = run.kept(name, ViewKey()).channel_peaks()
        for c, channel in enumerate(section.channels):
            expected = activation[:, channel.number].flatten(1).amax(1)
            assert torch.allclose(peaks[:, c], expected, atol=1e-4)


def history(lr: float, base: str, falling: float, worst: float) -> FineTuningFacts:
    epochs = [
        EpochFacts(
            epoch=k,
            accuracy=1.0,
            worst_all=worst,
            worst_largest=worst,
            idsds=0.8 - falling * k,
            idsds_error=0.01,
            probes={"ixg": 0.5},
        )
        for k in range(7)
    ]
    return FineTuningFacts(
        fine_tuned="16/zero",
        base=base,
        data="paperbirds:train",
        lr=lr,
        epochs=6,
        batch_size=64,
        step=6,
        seed=0,
        loss="cross_entropy",
        images=6000,
        tested=512,
        kept=6,
        history=epochs,
    )


def test_networks_that_are_not_equally_fine_tuned_get_a_warning(
    run: RunStatistics, site: Site, monkeypatch: pytest.MonkeyPatch
):
    facts = {
        NAMES[0]: history(0.001, "vgg", 0.0, 0.6),
        NAMES[1]: history(0.01, "bcos", 0.05, 0.3),
    }
    original = run.facts

    def with_history(model: str, view: ViewKey | None = None) -> ModelFacts | None:
        found = original(model, view)
        return found and found.model_copy(update={"fine_tuning": facts[model]})

    monkeypatch.setattr(run, "facts", with_history)
    (section,) = fine_tuning.content(run, site)
    assert [chart.title for chart in section.charts] == ["all networks"]
    assert section.warnings.settings == {"learning rate": {"vgg": "0.001", "bcos": "0.01"}}
    assert list(section.warnings.moving) == ["bcos"]
    assert section.warnings.disjoint == ("bcos", "vgg")
    before, after = section.rows[1].idsds
    assert (before.value, after.value) == (0.8, pytest.approx(0.5))
    write_pages(run, site)
    page = report_text(site.root / "index.html")
    assert "The networks are not equally fine-tuned" in page
    assert "The learning rate differs" in page
    assert "bcos had not settled" in page


def test_one_network_at_several_rates_has_a_chart_of_its_own(site: Site):
    networks = {
        "resnet lr 0.001": history(0.001, "a", 0.0, 0.5),
        "resnet lr 0.01": history(0.01, "a", 0.05, 0.6),
        "vgg": history(0.001, "b", 0.0, 0.5),
    }
    content = fine_tuning._content(site, ViewKey("fine-tuned", "16/zero"), networks)
    assert [chart.title for chart in content.charts] == ["resnet", "vgg"]


def test_the_worked_example_gives_the_score_of_the_row(
    run: RunStatistics, site: Site, result: hp.Result
):
    content = example.content(run, site)
    assert content is not None
    assert content.fine_tuned
    assert content.protocol.id == "idsds"
    rows = result.scores[
        (result.scores["model"] == NAMES[0]) & (result.scores["protocol"] == "idsds")
    ]
    row = rows[(rows["method"] == content.method) & (rows["sample"] == content.sample)].iloc[0]
    assert row["value"] == content.value
    numbers = [
        [
            float(v.replace("−", "-"))
            for v in re.findall(r"patch \d, \d: ([−\d.]+)", str(getattr(content, grid)))
        ]
        for grid in ("sums", "drops")
    ]
    assert [len(v) for v in numbers] == [16, 16]
    assert spearmanr(*numbers)[0] == pytest.approx(
        row["value"], abs=0.02
    )  # written with three digits
    assert content.exact
    assert f"{row['value']:.2f}" in report_text(result.report())


def test_the_example_is_typical_and_never_contradicts_its_row():
    drops = torch.arange(16.0)
    scores = [
        example.Score("far", 1.0, drops, drops),
        example.Score("near", 0.5, drops, drops),
        example.Score("low", -1.0, -drops, drops),
    ]
    chosen = example.typical(scores, 0.4)
    assert chosen is not None
    assert chosen.sample == "far"  # the ρ of near would differ from its row
    only = example.typical(scores[1:2], 0.4)
    assert only is not None
    assert abs(only.rho - only.value) > example.SAME  # shown with ≈
    assert example.typical([], 0.4) is None


def test_the_explorer_offers_each_network_the_settings_that_evaluated_it(
    run: RunStatistics, site: Site
):
    assert explorer.content(run, site) is not None
    text = (site.root / "explorer" / "index.js").read_text()
    collections = json.loads(f"[{text[len('heatproofData(') : -len(');') - 1]}]")[1]
    assert len(collections) == 2 * len(run.models)
    for plain, tuned in zip(collections[::2], collections[1::2], strict=True):
        assert [entry[0] for entry in plain["samples"]] == [entry[0] for entry in tuned["samples"]]
        assert plain["settings"] != tuned["settings"]
        for collection in (plain, tuned):
            assert len(collection["settings"]) == 1
            assert all(len(scores) == 1 for scores in collection["scores"])


def test_agreement_before_and_after_fine_tuning_is_a_rank_correlation(
    run: RunStatistics, site: Site
):
    for standing, pair in zip(run.standings, stability.content(run, site).twins, strict=True):
        kept = [
            i
            for i, m in enumerate(standing.methods)
            if m not in ("random", "edges") and np.isfinite(standing.means[:, i]).all()
        ]
        assert pair.agreement.value == pytest.approx(
            spearmanr(standing.means[0, kept], standing.means[1, kept])[0]
        )
        assert pair.labels == ["sds · zero", "idsds · zero"]


def test_other_sections_distinguish_the_views(run: RunStatistics, site: Site):
    assert [m.name for m in provenance.content(run, site).models] == [
        f"{n}{v}" for n in NAMES for v in ("", ", fine-tuned 16/zero")
    ]
    worst = failures.content(run, site).worst[0].methods[0]
    scores = run.rows[
        (run.rows["model"] == NAMES[0])
        & (run.rows["protocol"] == "sds")
        & (run.rows["method"] == worst.name)
    ]
    assert worst.samples[0].value == scores["value"].min()


def test_fine_tuned_weights_alone_are_reported_too(data: hp.TensorData, tmp_path: Path, site: Site):
    result = hp.evaluate(
        NAMES[0], data, ["ixg", "saliency"], ["idsds"], out=tmp_path / "one", keep_maps=4
    )
    run = RunStatistics(result.store)
    content = models.content(run, site)
    assert content is not None
    assert (content.fine_tuned, content.pairs) == (True, False)
    assert content.question == "How good is the fine-tuned network?"
    assert (content.across, content.best, content.similarity, content.channels) == (
        [],
        None,
        None,
        [],
    )
    text = report_text(result.report())
    assert "add <code>sds</code>" in text
    assert run.accuracy[NAMES[0]][1] == N
    assert not re.search(
        r"\b(nan|None)\b", re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)
    )


def test_one_model_and_its_copy_are_compared(data: hp.TensorData, tmp_path: Path, site: Site):
    result = hp.evaluate(
        NAMES[0], data, ["ixg", "gradcam"], ["idsds", "sds"], out=tmp_path / "one", keep_maps=20
    )
    content = models.content(RunStatistics(result.store), site)
    assert content is not None
    assert content.question == "What did fine-tuning change?"
    assert (content.across, content.best) == ([], None)
    assert len(content.copies) == 1
    assert content.similarity.same and not content.similarity.other
    assert [c.name for c in content.channels] == ["vgg"]
    (rows,) = content.accuracy[0].models.values()
    assert [r.label for r in rows] == [
        "original",
        "fine-tuned",
        "change",
    ]


def test_one_model_without_copies_has_no_comparison(data: hp.TensorData, tmp_path: Path):
    result = hp.evaluate(NAMES[0], data, ["ixg"], ["sds"], out=tmp_path / "one", keep_maps=0)
    text = report_text(result.report())
    assert 'id="models"' not in text
    assert 'href="#models"' not in text
    assert 'id="example"' not in text  # no maps were kept


def test_labels_of_a_scatter_do_not_overlap():
    positions = spread([10.0, 11.0, 12.0, 300.0], 15.0, 0.0, 300.0)
    assert all(b - a >= 15 for a, b in pairwise(positions))
    assert max(positions) <= 300
    assert spread([], 15.0, 0.0, 300.0) == []


def test_a_lattice_has_a_mark_or_a_text_in_every_panel_of_a_row():
    axis = Axis.around([0.0, 1.0])
    rows = [
        Row("a", "cam", (Spot(0.5, 0.4, 0.6, "tip"), "n/a")),
        Row("b", "control", (Spot(0.2, float("nan"), float("nan"), ""), "n/a")),
    ]
    drawn = draw(LatticeChart("title", [Panel("one", axis, 0.0), Panel("two", axis)], rows))
    assert drawn.count('class="dot') == 2
    assert drawn.count("n/a") == 2
    assert "nan" not in drawn


@pytest.mark.parametrize(
    ("view", "description"),
    [
        (ViewKey(), "original"),
        (ViewKey("fine-tuned", "16/zero"), "fine-tuned (16/zero)"),
        (ViewKey("grid", "gridpg (grid=2)", 3), "gridpg (grid=2), cell 3"),
    ],
)
def test_views_have_a_readable_description(view: ViewKey, description: str):
    assert view.description == description


def test_an_unfinished_run_without_labels_is_compared_as_far_as_possible(
    data: hp.TensorData, tmp_path: Path
):
    result = hp.evaluate(
        NAMES,
        (data.images, None),
        ["ixg", "gradcam"],
        ["sds", "idsds"],
        out=tmp_path / "run",
        keep_maps=8,
    )
    text = report_text(result.report())
    assert "No image has a label" in text
    assert 'id="example"' in text
    assert "classified as" in text
    for kind in ("rows", "tensors"):
        next(p for p in sorted((tmp_path / "run" / kind).iterdir())).unlink()
    with pytest.warns(UserWarning, match="has damaged files, whose results are missing"):
        text = report_text(hp.Result.load(tmp_path / "run").report())
    assert 'id="models"' in text
    assert not re.search(
        r"\b(nan|None)\b", re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)
    )
