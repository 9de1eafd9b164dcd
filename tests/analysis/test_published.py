"""Runs beside published numbers."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

import heatproof as hp
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.published import _other_protocol, all_comparisons, compare_published
from heatproof.analysis.published_lines import Line
from heatproof.analysis.published_quantities import QUANTITIES
from heatproof.analysis.published_tables import (
    Entry,
    PublishedTable,
    network_of,
    published_table,
    published_tables,
)
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.errors import HeatproofError
from heatproof.methods import Expression, parse_methods
from heatproof.plan.spec import load_spec, parse_protocols
from heatproof.results.published import record_same_as
from heatproof.runs.format import SameAs

METHODS = [
    "ixg",
    "saliency",
    "gradcam",
    "layercam",
    "ixg|abs",
    "gradcam++(compat=torchcam)",
    "random",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    spec = {
        "models": ["paperbirds/resnet"],
        "data": {"name": "paperbirds", "split": "test", "limit": 24},
        "methods": METHODS,
        "protocols": ["sds", {"name": "gridpg", "grids": 3}],
    }
    return hp.run(spec, tmp_path_factory.mktemp("published") / "run")


def entry(value, method="gradcam", model="paperbirds/resnet", protocol="sds", quantity="score"):
    return Entry(method, quantity, model, protocol, method, value, 3)


def compared(run, *entries):
    return compare_published(run, PublishedTable("a/table1", "", "", "a/b", 1000, entries))


@pytest.mark.parametrize("table", published_tables().values(), ids=lambda table: table.name)
def test_published_methods_are_those_of_the_group_of_the_paper(table):
    paper = table.name.partition("/")[0]
    group = {e.canonical for e in parse_methods([f"group:{paper}", f"group:{paper}@final"])}
    assert table.entries
    for line in table.entries:
        if line.method and "smooth" not in line.method:
            assert Expression.parse(line.method).canonical in group, line.method


def test_the_print_has_the_correlation_that_it_is_known_for():
    """Spearman's correlation of Tables 4 and 6 of Hesse et al. is .90."""
    values = {}
    for name in ("table4", "table6"):
        entries = published_table(f"published:hesse2024/{name}").entries
        values[name] = {e.row: e.value for e in entries}
    rows = list(values["table6"])
    pair = [[values[name][row] for row in rows] for name in values]
    assert scipy.stats.spearmanr(*pair).statistic == pytest.approx(0.90, abs=0.01)


def judged(value, low, high, published=0.3, images=100, of_paper=10**9, numbers=1, digits=3):
    line = Line(
        replace(entry(published), digits=digits),
        "paperbirds/resnet",
        Estimate(value, low, high),
        images,
        (0.0, 1.0),
        "",
    )
    return line.judged(numbers, of_paper)


def test_a_number_is_reproduced_if_the_whole_interval_is_within_the_margin():
    assert judged(0.31, 0.29, 0.33).verdict == "reproduced"
    assert judged(0.31, 0.20, 0.42).verdict == "undecided"
    assert judged(0.50, 0.45, 0.55).verdict == "differs"
    small = judged(0.33, 0.32, 0.34)  # off for sure, but by less than matters
    assert small.verdict == "reproduced"
    assert judged(0.36, 0.34, 0.38).verdict == "differs"


def test_absence_of_evidence_is_no_reproduction():
    """Eight images whose interval spans half of the scale say nothing."""
    line = judged(0.642, 0.262, 0.919, published=0.342, images=8)
    assert line.verdict == "undecided"
    assert line.needed > 8
    assert judged(0.3, np.nan, np.nan).verdict == "undecided"


def test_the_error_of_the_paper_and_the_number_of_lines_count():
    alone = judged(0.31, 0.29, 0.33)
    as_few = judged(0.31, 0.29, 0.33, of_paper=100)
    many = judged(0.31, 0.29, 0.33, numbers=30)
    width = [line.difference.high - line.difference.low for line in (alone, as_few, many)]
    assert width[1] - 0.001 == pytest.approx((width[0] - 0.001) * np.sqrt(2))
    ratio = scipy.stats.norm.ppf(1 - 0.05 / 60) / scipy.stats.norm.ppf(0.975)
    assert width[2] - 0.001 == pytest.approx((width[0] - 0.001) * ratio)


def test_the_same_truth_on_other_images_seldom_differs():
    rng = np.random.default_rng(0)
    differs = 0
    for _ in range(300):
        ours, paper = rng.normal(0.4, 0.2, 50), rng.normal(0.4, 0.2, 50)
        half = 1.96 * ours.std(ddof=1) / np.sqrt(50)
        mean = ours.mean()
        line = judged(mean, mean - half, mean + half, paper.mean(), 50, 50, digits=6)
        differs += line.verdict == "differs"
    assert differs / 300 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)


def test_a_run_of_the_paper_has_verdicts(run):
    summary = run.summary().query("protocol == 'sds'").set_index("method")
    mean = summary.loc["gradcam", "mean"]
    inside, outside = compared(run, entry(mean), entry(mean - 1)).lines
    assert inside.verdict in ("reproduced", "undecided")
    assert outside.verdict == "differs"
    assert inside.found.value == pytest.approx(mean)
    assert outside.difference.value == pytest.approx(1)
    assert outside.difference.low < 1 < outside.difference.high


def test_a_network_by_name_alone_is_not_the_papers(run):
    """Objects of Python may have any name, and embedded images are no ImageNet."""
    model = hp.load_model("paperbirds/resnet")
    model.name = "torchvision:resnet50"
    images = hp.load_data("paperbirds:test", limit=8)
    result = hp.evaluate(model, images, ["gradcam"], ["sds"])
    wanted = entry(0.342, model="torchvision:resnet50")
    (line,) = compared(result, wanted).lines
    assert line.verdict == "not comparable"
    assert "--as torchvision:resnet50 says so" in line.reason
    record_same_as(result, ["hesse2024:resnet50"], "same_as")
    (still,) = compared(result, wanted).lines
    assert still.verdict == "not comparable"
    assert still.reason == "the images are of paperbirds"


def test_a_network_with_random_weights_is_not_the_papers(tmp_path):
    spec = {
        "models": [{"name": "paperbirds/resnet", "weights": "random"}],
        "data": {"name": "paperbirds", "split": "test", "limit": 8},
        "methods": ["gradcam"],
        "protocols": ["sds"],
    }
    (line,) = compared(hp.run(spec, tmp_path / "run"), entry(0.3)).lines
    assert line.verdict == "not comparable"
    assert "whether paperbirds/resnet has the paper's weights is not known" in line.reason


def test_the_intervals_of_all_comparable_numbers_hold_together(run):
    wanted = entry(0.3), entry(0.3, "ixg"), entry(0.3, "saliency")
    alone, together = (compared(run, *wanted[:count]).lines[0].difference for count in (1, 3))
    wider = scipy.stats.norm.ppf(1 - 0.025 / 3) / scipy.stats.norm.ppf(0.975)
    rounding = 0.0005
    assert together.high - together.value - rounding == pytest.approx(
        wider * (alone.high - alone.value - rounding)
    )


def test_a_user_may_say_whose_network_it_is(tmp_path):
    """Images in memory may be the paper's; who says so stands beside the verdict, and stays."""
    size = hp.load_model("paperbirds/resnet").size
    images = torch.rand(12, 3, size, size, generator=torch.Generator().manual_seed(0))
    data = hp.TensorData(images, list(range(8)) + [0] * 4)
    model = hp.load_model("paperbirds/resnet")
    model.name = "mine/resnet"
    result = hp.evaluate(model, data, ["gradcam"], ["sds"], out=tmp_path / "run")
    wanted = entry(0.3, model="torchvision:resnet50")
    top = replace(entry(1.0, model="torchvision:resnet50", quantity="accuracy"), method="")
    (before,) = compared(result, wanted, top).lines
    assert (before.verdict, before.said_by) == ("not comparable", "")

    found = hp.compare_published(result, "hesse2024/table6", same_as="hesse2024:resnet50")
    shown = found.to_frame().set_index("row")
    assert set(shown.loc[["Grad-CAM"], "said_by"]) == {"same_as"}
    again = hp.Result.load(tmp_path / "run")  # it is on record
    score, accuracy = compared(again, wanted, top).lines
    assert not score.reason
    assert score.shown_verdict == f"{score.verdict} (by same_as)"
    assert accuracy.said_by == "same_as"
    (line,) = hp.compare_published(again, "hesse2024/table6").same_as
    assert (line.model, line.network) == ("mine/resnet", "torchvision:resnet50")

    other = line.model_copy(update={"fingerprint": "of other weights"})
    again.store.write_same_as(SameAs(networks=[other]))
    assert compared(again, wanted).lines[0].verdict == "not comparable"
    record_same_as(again, ["mine/resnet="], "--as")  # taken back
    assert not again.store.same_as().networks


def test_a_wrong_name_of_a_network_is_refused_with_the_nearest(run):
    assert network_of("hesse2024:resnet50") == network_of("torchvision:resnet50")
    assert network_of("hesse2024:funnybirds_resnet50") == "file:funnybirds_resnet50.py:build"
    assert network_of("li2024:vgg16") == "torchvision:vgg16"
    with pytest.raises(HeatproofError, match="did you mean hesse2024:resnet50"):
        network_of("hesse2024:resnet5O")
    with pytest.raises(HeatproofError, match="did you mean picard2024:resnetv2_50"):
        network_of("picard2024:resnet50")
    with pytest.raises(HeatproofError, match='unknown model "other"'):
        record_same_as(run, ["other=hesse2024:resnet50"], "--as")
    assert not run.store.same_as().networks


def test_other_models_and_settings_are_not_comparable(run):
    other_model, other_setting = compared(
        run, entry(0.3, model="torchvision:resnet50"), entry(0.3, protocol="sds(patches=64)")
    ).lines
    assert {other_model.verdict, other_setting.verdict} == {"not comparable"}
    assert "the model is paperbirds/resnet, not torchvision:resnet50" in other_model.reason
    assert other_setting.reason == "sds has patches=16, not 64"


def test_the_rank_correlation_is_that_of_the_means(run):
    entries = [entry(i / 10, method) for i, method in enumerate(METHODS[:-1])]
    comparison = compared(run, *entries)
    ((_, _, _, correlation, methods),) = comparison.correlations
    found = [line.found.value for line in comparison.lines]
    expected = scipy.stats.spearmanr(found, np.arange(6)).statistic
    assert (correlation.value, methods) == (pytest.approx(expected), 6)
    assert correlation.low <= correlation.value <= correlation.high


def test_the_correlation_over_samples_agrees_with_scipy(run):
    quantity = "correlation with gradcam"
    lines = compared(run, entry(0.5, "ixg", protocol="gridpg(grids=3)", quantity=quantity)).lines
    scores = run.scores.query("protocol == 'gridpg'").pivot(
        index="sample", columns="method", values="value"
    )
    expected = scipy.stats.spearmanr(scores["ixg"], scores["gradcam"]).statistic
    found = lines[0].found
    assert found.value == pytest.approx(expected)
    assert found.low <= found.value <= found.high


def test_accuracies_are_those_of_the_run(run):
    quantities = ("accuracy", "worst-patch accuracy")
    entries = [replace(entry(1.0, quantity=q), method="") for q in quantities]
    intact, worst = compared(run, *entries).lines
    assert intact.found.value == 1.0
    assert 0 < worst.found.value < 1
    assert worst.found.low < worst.found.value < worst.found.high


def test_the_half_scale_of_funnybirds(run):
    plain, half = compared(run, entry(0), entry(0, quantity="half-scale score")).lines
    assert half.found.value == pytest.approx((plain.found.value + 1) / 2)


def test_a_run_without_any_published_number_is_refused(run):
    with pytest.raises(HeatproofError, match="has no number of li2024/fig1: it has no attr-mass"):
        compare_published(run, published_table("li2024/fig1"))
    with pytest.raises(HeatproofError, match=r"no idsds; .*heatproof run hesse2024/imagenet/idsds"):
        compare_published(run, published_table("hesse2024/table4"))
    with pytest.raises(HeatproofError, match="accuracy is compared on the paper's own networks"):
        compared(
            run, replace(entry(0.5, model="torchvision:resnet50", quantity="accuracy"), method="")
        )
    with pytest.raises(HeatproofError, match="did you mean hesse2024/table"):
        published_table("hesse2024/tabel4")


def test_a_report_shows_tables_with_enough_methods(run):
    read = RunStatistics(run.store)
    found = all_comparisons(read)
    assert [c.table.name for c in found] == ["hesse2024/table6"]
    alone = compare_published(run, published_table("hesse2024/table6"))
    assert found == [alone], "standings that were computed before give the same numbers"


CHANGED = [f"ixg|{last}" for last in ("unit", "remove(constant)", "introduce(constant)")]


def test_li_et_al_table_1_is_compared_in_the_terminal(tmp_path):
    """The distances are those that the report shows, and of nearest curves by definition."""
    from click.testing import CliRunner
    from scipy.spatial.distance import directed_hausdorff

    from heatproof.analysis.metric_curves import metric_curves
    from heatproof.cli import main

    protocols = [
        {"name": "completeness", "absolute": True},
        {"name": "deletion", "score": "correct", "of": "label"},
    ]
    spec = {
        "models": ["paperbirds/vgg"],
        "data": {"name": "paperbirds", "split": "test", "limit": 6},
        "methods": CHANGED,
        "protocols": protocols,
    }
    run = hp.run(spec, tmp_path / "run")
    comparison = compare_published(run, published_table("published:li2024/table1"))
    found = {line.entry.row: line for line in comparison.lines}
    assert set(found) == {"Completeness", "Deletion"}
    facts = {p.id: p for p in run.store.plan().protocols}
    for row, line in found.items():
        curves = metric_curves(run, "paperbirds/vgg", facts[row.lower()])
        a, b, c = (curves[name].xy for name in CHANGED)
        distances = [
            max(directed_hausdorff(x, y)[0], directed_hausdorff(y, x)[0])
            for x, y in ((a, b), (a, c), (b, c))
        ]
        assert line.found.value == pytest.approx(min(distances), abs=1e-9)
        assert line.verdict == "not comparable"
        assert "the model is paperbirds/vgg, not torchvision:vgg16" in line.reason
        assert "the changed maps are not those of the paper" in line.reason
    command = ["compare", str(run.store.root), "published:li2024/table1"]
    shown = CliRunner().invoke(main, command, catch_exceptions=False)
    assert shown.exit_code == 0
    numbers = "0.503", "0.112", f"{found['Completeness'].found.value:.3f}"
    assert all(number in shown.output for number in numbers)


def test_a_number_without_an_interval_is_undecided(run):
    mean = run.summary().query("protocol == 'sds'").set_index("method").loc["gradcam", "mean"]

    def distance(run, model, protocol, method, entry):
        return Estimate(mean, np.nan, np.nan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(QUANTITIES, "length", distance)
        same, other = compared(
            run, entry(round(mean, 3), quantity="length"), entry(mean + 1, quantity="length")
        ).lines
    assert {same.verdict, other.verdict} == {"undecided"}
    assert other.difference.value == pytest.approx(-1)


def test_coordinates_of_baselines_are_compared_by_rank(tmp_path):
    """Their means are those of the curves; print has other images in its bank, so no verdict."""
    baselines = ["zero", "uniform", "normal", "mean"]
    spec = {
        "models": ["paperbirds/resnet"],
        "data": {"name": "paperbirds", "split": "test", "limit": 6},
        "reference": {"name": "paperbirds", "split": "train", "limit": 24},
        "methods": ["gradcam"],
        "protocols": [{"name": "deletion", "baseline": baselines, "steps": 5, "ood": True}],
    }
    result = hp.run(spec, tmp_path / "run")
    table = published_table("picard2024/tradeoff")
    assert len(table.entries) == 24
    found = compare_published(result, table)
    kept = result.kept("paperbirds/resnet")
    curves = {"distance": ("ood-raw", 1), "half of the mean sigmoid": ("mean-sigmoid", 0.5)}
    for quantity, (curve, scale) in curves.items():
        lines = {
            line.entry.row.split(",")[0]: line
            for line in found.lines
            if line.entry.quantity == quantity
        }
        assert set(lines) == set(baselines)
        for facts in result.plan.protocols:
            values = kept.curves(facts, "gradcam", curve)
            mean = scale * values.double().mean().item()
            assert lines[facts.baseline].found.value == pytest.approx(mean)
            assert lines[facts.baseline].verdict == "not comparable"
            assert "compared by their ranks" in lines[facts.baseline].reason
        (correlation,) = [c for c in found.correlations if c.of == quantity]
        pair = [[line.found.value, line.entry.value] for line in lines.values()]
        expected = scipy.stats.spearmanr(pair).statistic
        assert correlation.estimate.value == pytest.approx(expected)
        assert (correlation.over, correlation.number) == ("baseline", 4)
    assert found.missing == {"it has deletion with other baselines": 16}


BASELINES = ["zero", "uniform", "blur", "black"]


@pytest.fixture(scope="module")
def stability(tmp_path_factory):
    curves = {"score": "sigmoid", "steps": 5, "baseline": BASELINES}
    spec = {
        "models": ["paperbirds/resnet"],
        "data": {"name": "paperbirds", "split": "test", "limit": 8},
        "methods": ["ixg|abs", "saliency(reduce=max_abs)", "gradcam", "gradcam++", "random"],
        "protocols": [{"name": "deletion", **curves}, {"name": "insertion", **curves}],
    }
    return hp.run(spec, tmp_path_factory.mktemp("stability") / "run")


def test_agreement_over_baselines_is_the_mean_correlation_of_the_rankings(stability):
    """On another network of the same kind it is shown without a verdict; controls do not count."""
    table = published_table("published:picard2024/stability")
    comparison = compare_published(stability, table)
    found = {line.entry.row: line for line in comparison.lines}
    assert list(found) == ["ResNet50V2, deletion", "ResNet50V2, insertion"]
    for row, line in found.items():
        means = stability.summary().query(f"protocol == '{row.split()[1]}' and method != 'random'")
        scores = means.pivot(index="method", columns="baseline", values="rank")
        pairs = scipy.stats.spearmanr(scores).statistic[np.triu_indices(len(BASELINES), 1)]
        assert line.found.value == pytest.approx(pairs.mean())
        assert line.verdict == "not comparable"
        assert "the model is paperbirds/resnet, not timm:resnetv2_50" in line.reason
        assert "there are 4 baselines, not the 11 of the paper" in line.reason
        assert "the methods are not those of the paper" in line.reason
    vit = "timm:vit_base_patch16_224", "picard2024:vit_base_patch16_224"
    reasons = {
        "it has no srg": 2,
        f"it has no model like {vit[0]} (--as MODEL={vit[1]} says if it has)": 2,
    }
    assert comparison.missing == reasons
    shown = [c.table.name for c in all_comparisons(stability)]
    assert "picard2024/stability" in shown


def test_agreement_needs_enough_methods_and_baselines(run):
    two = entry(0.9, protocol="sds", quantity="agreement over baselines")
    with pytest.raises(HeatproofError, match="4 methods with scores under 4 baselines"):
        compared(run, replace(two, method=""))


def test_kernels_for_maps_of_another_size_are_found_by_their_pixels(tmp_path):
    """Grids of four images of 64 px: K = 33 of 448 px is K = 9 of 128 px."""
    spec = {
        "models": ["paperbirds/vgg"],
        "data": {"name": "paperbirds", "split": "test", "limit": 24},
        "methods": ["ixg|smooth(9)", "gradcam@final"],
        "protocols": [{"name": "gridpg", "grids": 2}],
    }
    run = hp.run(spec, tmp_path / "run")
    (line,) = compare_published(run, published_table("rao2024/table2")).lines
    assert line.entry.row == "VGG19, K = 33"
    scores = run.scores.pivot(index="sample", columns="method", values="value")
    expected = scipy.stats.spearmanr(scores["ixg|smooth(9)"], scores["gradcam@final"]).statistic
    assert line.found.value == pytest.approx(expected)


@pytest.mark.parametrize("table", published_tables().values(), ids=lambda table: table.name)
def test_the_study_of_a_table_has_its_protocols_and_methods(table):
    """What `heatproof compare` recommends has every number: protocols, methods and models."""
    spec = load_spec(table.study)
    protocols = {p.canonical for p in spec.parsed_protocols()}
    methods = {e.canonical for e in spec.expressions()}
    for line in table.entries:
        (wanted,) = parse_protocols([line.protocol])
        assert wanted.canonical in protocols, line
        if line.method:
            text = line.method.replace(", of=448", "")
            assert Expression.parse(text).canonical in methods, line


def test_a_protocol_with_other_settings_names_only_these():
    found = "sds@1(baseline=uniform(-1, 1), patches=64, score=logit)"
    wanted = "sds@1(baseline=zero, patches=64, score=logit)"
    assert _other_protocol(found, wanted) == "sds has baseline=uniform(-1, 1), not zero"
    later = "sds@2(baseline=zero, patches=64, score=logit)"
    assert _other_protocol(later, wanted) == f"the protocol is {later}, not {wanted}"
