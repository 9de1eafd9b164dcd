"""The section on modified images, compared with a slow re-computation from the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from report_text import report_text

import heatproof as hp
from heatproof.analysis.accuracy import wilson
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.data.altered import disc, disc_and_notch
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import make_spec
from heatproof.report.sections import retraining
from heatproof.report.site import Site

NET = {"train": "paperbirds/resnet-narrow", "images": 64, "epochs": 1}
SPEC = make_spec(
    {
        "models": [
            {**NET, "trained_on": ["stripes", "disc"]},
            {**NET, "trained_on": "disc", "evaluated_on": "notch"},
            "paperbirds/resnet",
        ],
        "data": {"name": "paperbirds", "limit": 40},
        "methods": ["ixg", "constant", "object"],
        "protocols": ["attr-mass"],
        "keep_maps": 4,
    }
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> hp.Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEATPROOF_CACHE", str(tmp_path_factory.mktemp("cache")))
        return hp.run(
            SPEC, tmp_path_factory.mktemp("trained_on") / "run", "cpu", plan=open_spec(SPEC, "cpu")
        )


@pytest.fixture(scope="module")
def section(result: hp.Result, tmp_path_factory: pytest.TempPathFactory) -> retraining.Content:
    content = retraining.content(RunStatistics(result.store), Site(tmp_path_factory.mktemp("site")))
    assert content
    return content


def test_accuracy_is_listed_with_training_and_evaluation_images(
    result: hp.Result, section: retraining.Content
) -> None:
    changes = [(row.trained_on, row.evaluated_on) for row in section.rows]
    assert changes == [("stripes", "stripes"), ("disc", "disc"), ("disc", "notch")]
    for row, change in zip(section.rows, ("stripes", "disc", "notch"), strict=True):
        labels = hp.load_data(f"{change}:paperbirds:test", limit=40).labels
        logits = torch.stack(RunStatistics(result.store).kept(row.model).logits)
        correct = (
            sum(int(p) == label for p, label in zip(logits.argmax(1), labels, strict=True)) / 40
        )
        assert row.accuracy.value == pytest.approx(correct) and row.n == 40
        assert (row.accuracy.low, row.accuracy.high) == pytest.approx(wilson(correct, 40))


def test_the_accuracies_answer_whether_they_measure_what_was_removed() -> None:
    def row(change: str, low: float, high: float) -> retraining.AccuracyRow:
        accuracy = Estimate((low + high) / 2, low, high)
        return retraining.AccuracyRow(change, change, change, 100, accuracy)

    plain_disc = row("disc", 0.4, 0.6)
    for low, differ in ((0.7, True), (0.5, False)):
        notch = row("disc-notch", low, 0.9)
        found = retraining._contrast([row("plain", 0.9, 1.0), plain_disc, notch])
        assert (found.shape, found.revealing) == (plain_disc, notch)
        assert ("is significantly more accurate" in found.text) == differ
        assert ("is not significantly higher" in found.text) != differ
        assert "50.0 % (40.0 to 60.0)" in found.text
    assert retraining._contrast([plain_disc]) is None


def test_a_disc_and_a_disc_with_a_notch_remove_as_many_pixels() -> None:
    chance = np.random.default_rng(0)
    painted = [paint(3, 10, 64, chance).where.sum() for paint in (disc, disc_and_notch)]
    assert painted[0] == painted[1]


def test_masses_are_the_means_of_the_rows(result: hp.Result, section: retraining.Content) -> None:
    mass = section.mass
    assert mass.models == [
        "resnet-narrow trained on stripes",
        "resnet-narrow trained on disc evaluated on notch",
    ]  # a disc does not say which pixels matter
    rows = (
        result.scores[result.scores["status"] == "ok"].groupby(["model", "method"])["value"].mean()
    )
    for line in mass.rows:
        for model, estimate in zip(mass.models, line.estimates, strict=True):
            assert estimate.value == pytest.approx(rows[f"paperbirds/{model}", line.method])
    (oracle,) = (line for line in mass.rows if line.method == "object")
    assert [estimate.value for estimate in oracle.estimates] == [1, 1]


def test_every_model_has_a_picture_with_its_maps(
    result: hp.Result, section: retraining.Content
) -> None:
    first, second, third = section.pictures
    assert [tile.method for tile in first.tiles] == ["ixg", "constant", "object"]
    assert all(tile.file for row in (first, third) for tile in row.tiles)
    assert [tile.score for tile in second.tiles] == ["", "", ""]
    page = report_text(result.report())
    assert "What does a network learn from modified images" in page and "trained on" in page


def test_a_run_without_retrained_models_has_no_section_on_them(tmp_path: Path) -> None:
    result = hp.evaluate("paperbirds/resnet", "paperbirds:test", ["random"], ["attr-mass"], limit=2)
    assert retraining.content(RunStatistics(result.store), Site(tmp_path)) is None
