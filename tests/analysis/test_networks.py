"""Networks as a sample: means over networks, and where a new one of the same kind may be."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn

import heatproof as hp
from heatproof.analysis import wording
from heatproof.analysis.networks import evidence_of_networks, over_networks
from heatproof.analysis.settings import scored_settings

METHODS = ["ixg", "saliency", "random"]


def scores_of(effects: np.ndarray, rng: np.random.Generator, images: int = 32) -> pd.DataFrame:
    """Return the rows of K networks and M methods with the true means ``(K, M)``."""
    common = rng.normal(size=(images, 1))
    lines = [
        (f"net{k}", "sds", "", "zero", f"m{j}", f"s{i:03}", value)
        for k, of_network in enumerate(effects)
        for i, row in enumerate(
            of_network + 0.1 * (common + rng.normal(size=(images, len(of_network))))
        )
        for j, value in enumerate(row)
    ]
    names = ["model", "protocol", "setting", "baseline", "method", "sample", "value"]
    return pd.DataFrame(lines, columns=names)


def settings_of(effects: np.ndarray, rng: np.random.Generator, images: int = 32):
    return scored_settings(scores_of(effects, rng, images), 400)


def test_the_interval_for_a_new_network_is_that_of_a_prediction():
    rng = np.random.default_rng(0)
    effects = 0.3 + 0.1 * rng.normal(size=(8, 2))
    rows = scores_of(effects, rng, 4000)
    found = over_networks(scored_settings(rows, 400))
    means = rows.groupby(["method", "model"])["value"].mean().unstack()
    for line in found:
        own = means.loc[line.method].to_numpy()
        half = stats.t.ppf(0.975, 7) * own.std(ddof=1) * np.sqrt(1 + 1 / 8)
        assert line.networks == 8
        assert line.mean.value == pytest.approx(own.mean())
        assert line.new.high - line.mean.value == pytest.approx(half, rel=0.02)
        assert line.new.low < line.mean.low < line.mean.high < line.new.high


def test_the_interval_covers_a_new_network_and_the_mean_of_these():
    rng = np.random.default_rng(1)
    new = these = total = 0
    for _ in range(60):
        effects = 0.3 + 0.05 * rng.normal(size=(7, 3))  # the last is not in the run
        for line, truth in zip(
            over_networks(settings_of(effects[:6], rng)), effects.T, strict=True
        ):
            new += line.new.low <= truth[6] <= line.new.high
            these += line.mean.low <= truth[:6].mean() <= line.mean.high
            total += 1
    assert new / total >= 0.92
    assert these / total >= 0.9


def test_fewer_than_five_networks_say_nothing_about_others():
    rng = np.random.default_rng(2)
    settings = settings_of(np.full((4, 2), 0.3), rng)
    assert over_networks(settings) == []
    assert evidence_of_networks(settings, ()) is None
    assert wording.of_networks(None) == ""


def test_a_method_wins_on_networks_of_a_kind_only_if_it_leads_on_nearly_all():
    rng = np.random.default_rng(3)
    ahead = np.tile([0.5, 0.2], (8, 1)) + 0.02 * rng.normal(size=(8, 2))
    evidence = evidence_of_networks(settings_of(ahead, rng), ())
    assert evidence.winner == "m0"
    assert "drawn from: `m0` wins, by mean score" in wording.of_networks(evidence)
    # each network tells the two apart on its images, and they lead in turn
    crossed = np.array([[0.5, 0.2], [0.2, 0.5]] * 4)
    evidence = evidence_of_networks(settings_of(crossed, rng), ())
    assert evidence.winner == ""
    assert "any of `m" in wording.of_networks(evidence)


class Net(nn.Module):
    """A linear network on 16 px."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(3 * 16 * 16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))


def test_five_networks_are_a_sample_in_python_and_on_the_page(tmp_path: Path):
    images = torch.rand(12, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    models = [hp.Model(Net(seed), size=16, name=f"net{seed}") for seed in range(5)]
    data = hp.TensorData(images, [0, 1, 2, 3] * 3)
    result = hp.evaluate(models, data, METHODS, ["sds(patches=4)"], out=tmp_path / "run")
    lines = result.over_networks().set_index("method")
    summary = result.summary()
    for method in METHODS:
        own = summary.loc[summary["method"] == method, "mean"]
        assert lines.loc[method, "mean"] == pytest.approx(own.mean())
        assert lines.loc[method, "networks"] == 5
    text = wording.of_networks(result.evidence_of_networks)
    assert text and text in " ".join(repr(result).split())
    page = (result.report().parent / "models.html").read_text(encoding="utf-8")
    assert "What do these networks say about another one of their kind?" in page
    assert page.count('<tr data-method="ixg"') >= 2
    assert "on a new one" in page and "nan" not in page.partition("of-kind")[2][:3000]


def test_images_that_favour_a_method_on_every_network_show_nothing():
    """Sixteen equal networks see the same sixteen images, whose errors they share."""
    rng = np.random.default_rng(4)
    names = ["model", "protocol", "setting", "baseline", "method", "sample", "value"]
    wins = 0
    for _ in range(12):
        of_images = rng.normal(size=(16, 3))
        lines = [
            (f"net{k:02}", "sds", "", "zero", f"m{j}", f"s{i:02}", 0.1 * value)
            for k in range(16)
            for i, row in enumerate(of_images + 0.2 * rng.normal(size=(16, 3)))
            for j, value in enumerate(row)
        ]
        found = evidence_of_networks(scored_settings(pd.DataFrame(lines, columns=names), 400), ())
        wins += len(found.possible_winners) < 3
    assert wins <= 2
