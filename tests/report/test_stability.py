"""Rankings are compared with all settings but one held equal; copies of a baseline are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_text import report_text
from scipy.stats import spearmanr

import heatproof as hp
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.report.sections import stability
from heatproof.report.sections.stability import same_baselines
from heatproof.report.site import Site

METHODS = ["ixg", "ig(steps=3)", "saliency", "gradcam"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunStatistics:
    protocols = [
        {"name": "sds", "patches": 4},
        {"name": "sds", "patches": 16, "baseline": ["zero", "blur", "uniform"]},
        {"name": "sds", "patches": 64},
        {"name": "deletion", "steps": 4, "baseline": ["zero", "black"]},
    ]
    out = tmp_path_factory.mktemp("stability") / "run"
    result = hp.evaluate("paperbirds/vgg", "paperbirds:test", METHODS, protocols, limit=6, out=out)
    return RunStatistics(result.store)


@pytest.fixture(scope="module")
def comparisons(
    run: RunStatistics, tmp_path_factory: pytest.TempPathFactory
) -> list[stability.Comparison]:
    return stability.content(run, Site(tmp_path_factory.mktemp("site"))).comparisons


def ranks(run: RunStatistics, patches: int, baseline: str) -> np.ndarray:
    lines = run.summary_frame[run.summary_frame["protocol"] == "sds"]
    lines = lines[lines["setting"].str.startswith(f"patches={patches},")]
    return lines[lines["baseline"] == baseline].set_index("method").loc[METHODS, "rank"].to_numpy()


def test_patches_are_compared_under_the_same_baseline(
    run: RunStatistics, comparisons: list[stability.Comparison]
):
    (compared,) = [c for c in comparisons if c.factor == "patches"]
    assert compared.labels == ("patches=4", "patches=16", "patches=64")
    assert compared.over == "sds · zero"
    for (a, b), estimate in compared.agreement.pairs.items():
        numbers = [4, 16, 64]
        expected = spearmanr(ranks(run, numbers[a], "zero"), ranks(run, numbers[b], "zero"))
        assert estimate.value == pytest.approx(expected.statistic)


def test_a_method_that_is_best_in_all_rankings_is_named_even_if_it_is_tied(run: RunStatistics):
    tied = [{"ixg": 1.0, "gradcam": 1.0, "saliency": 3.0}, {"gradcam": 1.0, "ixg": 2.0}]
    assert stability._leaders(run, tied) == ("gradcam",)
    assert stability._leaders(run, [{"ixg": 1.0}, {"saliency": 1.0, "ixg": 2.0}]) == (
        "ixg",
        "saliency",
    )


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.75, 1.0, "Another baseline hardly changes the ranking."),
        (0.1, 0.6, "Another baseline changes the ranking."),
        (0.1, 0.9, "Another baseline may change the ranking or not, as far as these images"),
        (np.nan, np.nan, "Another baseline: these images cannot tell how far it changes"),
    ],
)
def test_a_choice_changes_the_ranking_only_if_the_interval_says_so(
    comparisons: list[stability.Comparison], low: float, high: float, text: str
):
    some = next(c for c in comparisons if c.factor == "baseline")
    least, most = (
        replace(some, agreement=replace(some.agreement, mean=mean))
        for mean in (Estimate(0.5, low, high), Estimate(0.95, 0.9, 1.0))
    )
    (answer,) = stability._answers([most, least])
    assert answer.text.startswith(text)
    assert (answer.least, answer.most, answer.count) == (least, most, 2)


def test_baselines_are_compared_with_the_same_patches(comparisons: list[stability.Comparison]):
    by_baseline = {c.over: c.labels for c in comparisons if c.factor == "baseline"}
    assert by_baseline == {
        "sds · patches=16": ("zero", "blur", "uniform"),
        "deletion": ("zero", "black"),
    }


def test_protocols_are_compared_under_the_baselines_that_they_share(
    comparisons: list[stability.Comparison],
):
    (compared,) = [c for c in comparisons if "between protocols" in c.title]
    assert "under zero" in compared.title
    assert compared.labels == ("sds", "deletion · zero")


def test_baselines_with_nearly_the_same_scores_are_one():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(80, 3))
    frame = pd.DataFrame(scores, columns=["zero", "blur", "uniform"])
    frame["mean"] = frame["zero"] + 0.05 * rng.normal(size=80)
    assert same_baselines(frame) == [["zero", "mean"], ["blur"], ["uniform"]]


def test_agreement_is_given_over_distinct_baselines_too(tmp_path: Path):
    """The background of these images is grey: their mean is nearly zero, black is not."""
    protocol = {"name": "deletion", "steps": 4, "baseline": ["zero", "mean", "black", "uniform"]}
    out = tmp_path / "run"
    result = hp.evaluate("paperbirds/vgg", "paperbirds:test", METHODS, protocol, limit=8, out=out)
    (compared,) = stability.content(
        RunStatistics(result.store), Site(tmp_path / "site")
    ).comparisons
    assert compared.alike == (("zero", "mean"),)
    (distinct,) = compared.subsets
    assert distinct.baselines == ("zero", "black", "uniform")
    assert distinct.agreement.mean.value < compared.agreement.mean.value
    assert "distinct baselines" in report_text(result.report(tmp_path / "page"))


def test_each_model_has_its_own_comparisons(tmp_path: Path):
    protocols = [{"name": "sds", "patches": [4, 16], "baseline": ["zero", "uniform"]}]
    models = ["paperbirds/vgg", "paperbirds/resnet"]
    out = tmp_path / "run"
    result = hp.evaluate(models, "paperbirds:test", METHODS, protocols, limit=4, out=out)
    content = stability.content(RunStatistics(result.store), Site(tmp_path / "site"))
    assert list(content.by_model) == models
    for model, compared in content.by_model.items():
        assert {c.model for c in compared} == {model}
        assert {c.factor for c in compared} >= {"patches", "baseline"}
    together = sum(map(len, content.by_model.values()))
    assert together == sum(c.model in models for c in content.comparisons)
