"""A win is claimed only where model, data and controls allow it; counts name their unit."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from report_text import report_text
from rescored import rescored
from torch import nn

import heatproof as hp
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.report.sections import headline
from heatproof.report.site import Site

CLASSES = 4


def upside_down(model, x, target, *, rng):
    return -hp.explain(model, x, target, "ixg")


class Linear(nn.Module):
    """A linear network on 32 px: input × gradient is exactly the drop of each patch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3 * 32 * 32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))


def evaluate(out: Path, samples: int, correct: bool) -> hp.Result:
    """Evaluate a linear network on images whose labels are its predictions, or cycle."""
    model = hp.Model(Linear(), size=32, mean=[0.5] * 3, std=[0.5] * 3)
    images = torch.rand(samples, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    predicted = model.logits(model.normalize(images)).argmax(1)
    labels = predicted if correct else torch.arange(samples) % CLASSES
    return hp.evaluate(model, (images, labels), ["ixg", upside_down, "random"], ["sds"], out=out)


def verdict(result: hp.Result, tmp_path: Path) -> headline.Verdict:
    (only,) = headline.content(RunStatistics(result.store), Site(tmp_path / "site")).verdicts
    return only


def test_a_method_that_is_right_on_a_model_that_works_wins(tmp_path: Path):
    result = evaluate(tmp_path / "run", 16, correct=True)
    found = verdict(result, tmp_path)
    assert found.clear and found.evidence.winner == "ixg"
    page = report_text(result.report())
    assert '<span class="badge good">wins</span>' in page
    assert "Use <code>ixg</code> on Linear: it wins." in page


def test_there_is_no_win_on_a_model_at_chance(tmp_path: Path):
    result = evaluate(tmp_path / "run", 16, correct=False)
    at_chance = verdict(result, tmp_path)
    assert at_chance.evidence.winner == "ixg" and not at_chance.clear
    assert at_chance.doubts.guessing.startswith("classifies 4 of 16 images")
    page = " ".join(report_text(result.report()).split())
    assert ">wins<" not in page and ">not conclusive<" in page
    assert "not shown to be better than guessing (25 %)" in page
    assert "No method can be recommended on Linear, which is not shown to classify better" in page


def test_there_is_no_win_on_too_few_images(tmp_path: Path):
    result = evaluate(tmp_path / "run", 8, correct=True)
    few = verdict(result, tmp_path)
    assert few.leader == "ixg" and not few.clear and few.doubts.few.images == 8
    page = " ".join(report_text(result.report()).split())
    assert ">wins<" not in page
    assert "there are only 8 images, too few for reliable intervals and ranks" in page
    assert "There are too few images to recommend a method on Linear" in page


def test_there_is_no_win_over_a_random_map_that_is_as_good(tmp_path: Path):
    model = hp.Model(Linear(), size=32, mean=[0.5] * 3, std=[0.5] * 3)
    images = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    labels = model.logits(model.normalize(images)).argmax(1)
    out = tmp_path / "run"
    result = hp.evaluate(model, (images, labels), [upside_down, "random"], ["sds"], out=out)
    worse = verdict(result, tmp_path)
    assert worse.doubts.control == "random"
    assert "not significantly better than the control `random`" in worse.doubts.control_text
    assert "but is not shown to do better than the control `random`" in worse.recommendation
    assert re.search(r"than that of a random map under .* \(.*; random 0\)", worse.doubts.random)
    assert worse.badge == "only method" and not worse.clear


@pytest.mark.parametrize("tied", [True, False])
def test_the_best_method_depends_on_the_model_only_if_none_may_be_the_best_on_both(
    tied: bool, tmp_path: Path
):
    methods = ["ixg", "saliency", "random"]
    models = ["paperbirds/resnet", "paperbirds/vgg"]
    result = hp.evaluate(
        models, "paperbirds:test", methods, ["sds"], limit=12, out=tmp_path / "run"
    )
    noise = np.random.default_rng(0).normal(size=(2, 3, 12))

    def score(row: pd.Series) -> float:
        model, method = models.index(row["model"]), methods.index(row["method"])
        lead = {"random": -0.5, methods[model]: 0.0 if tied else 0.4}.get(row["method"], 0.0)
        return 0.5 + lead + 0.05 * noise[model, method, row["image"]]

    result = rescored(result, score)
    content = headline.content(RunStatistics(result.store), Site(tmp_path / "site"))
    winners = [v.evidence.winner for v in content.verdicts]
    assert winners == (["", ""] if tied else methods[:2])
    possible = [sorted(v.evidence.possible_winners) for v in content.verdicts]
    assert possible == ([methods[:2]] * 2 if tied else [["ixg"], ["saliency"]])
    page = " ".join(report_text(result.report()).split())
    assert ("The best method depends on the model." in page) != tied
    assert ("Each of <code>" in page) == tied
    for model, method in zip(models, methods, strict=False):
        assert (f"Use <code>{method}</code> on {model}: it wins." in page) != tied


@pytest.fixture(scope="module")
def grids(tmp_path_factory: pytest.TempPathFactory) -> hp.Result:
    out = tmp_path_factory.mktemp("grids") / "run"
    methods = ["ixg", "ixg@final", "gradcam@final", "random"]
    protocols = ["sds", "gridpg(grids=2, confidence=0)"]
    return hp.evaluate("paperbirds/vgg", "paperbirds:test", methods, protocols, limit=32, out=out)


def test_images_grids_and_maps_are_counted_apart(grids: hp.Result):
    assert "32 images, 2 grids of 4 images (8 maps)" in repr(grids)
    run = RunStatistics(grids.store)
    by_protocol = {key[0]: str(counts) for (_, key), counts in run.counts_of.items()}
    assert by_protocol == {"sds": "32 images", "gridpg": "2 grids of 4 images (8 maps)"}
    page = report_text(grids.report())
    assert "<b>32 images, 2 grids of 4 images (8 maps)</b>" in page
    assert "No sample has a label" not in page


def test_a_winner_is_named_at_each_layer(grids: hp.Result, tmp_path: Path):
    content = headline.content(RunStatistics(grids.store), Site(tmp_path))
    by_layer = {v.layer: v for v in content.verdicts}
    assert list(by_layer) == ["final"]  # at the input, there is nothing to compare
    assert len(by_layer["final"].evidence.real) == 2
    assert by_layer["final"].doubts.few.independent == 2  # two grids, though eight maps
    assert not by_layer["final"].clear
