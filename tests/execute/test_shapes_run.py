"""Whole runs of models that are not square, not in colour or not a softmax, and their reports."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from click.testing import CliRunner
from PIL import Image
from report_text import report_text
from torch import nn

import heatproof as hp
from heatproof.cli import main
from heatproof.runs.store import Store
from heatproof.training.finetune import finetune

PROTOCOLS = [
    {"name": "sds", "score": "softmax"},
    {"name": "deletion", "score": "softmax", "steps": 4},
    {"name": "soundness", "step": 0.2, "first": 0.9},
    {"name": "gridpg", "confidence": 0},
]
METHODS = ["gradcam", "ixg", "occlusion(size=6)", "random", "edges"]


def network(channels, outputs):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, outputs),
    ).eval()


def evaluated(tmp_path, channels, outputs, **options):
    """Evaluate a network whose outputs are centred, so that it predicts every class somewhere."""
    images = torch.rand(24, channels, 16, 32, generator=torch.Generator().manual_seed(0))
    net = network(channels, outputs)
    with torch.no_grad():
        net[-1].weight *= 20
        net[-1].bias -= net((images - 0.5) / 0.25).mean(0)
    model = hp.Model(
        net,
        size=(16, 32),
        mean=[0.5] * channels,
        std=[0.25] * channels,
        name="mine",
        **options,
    )
    labels = model.logits(model.normalize(images)).argmax(1)
    data = hp.TensorData(images, labels)
    out = tmp_path / "run"
    return model, images, labels, hp.evaluate(model, data, METHODS, PROTOCOLS, out=out)


@pytest.mark.filterwarnings("ignore:soundness")
@pytest.mark.parametrize("channels", [1, 5])
def test_a_wide_grey_or_deep_model_is_evaluated_and_reported(tmp_path, channels):
    model, images, labels, result = evaluated(tmp_path, channels, 6)
    scores = result.scores
    by_protocol = scores.groupby("protocol")["status"].agg(set)
    assert by_protocol["sds"] == by_protocol["deletion"] == by_protocol["gridpg"] == {"ok"}
    x = model.normalize(images)
    maps = hp.explain(model, x, labels, "ixg")
    drops = torch.empty(24, 16)
    clean = model.logits(x).softmax(1)[torch.arange(24), labels]
    for patch in range(16):
        row, column = divmod(patch, 4)
        without = x.clone()
        without[..., 4 * row : 4 * row + 4, 8 * column : 8 * column + 8] = 0
        drops[:, patch] = clean - model.logits(without).softmax(1)[torch.arange(24), labels]
    sums = maps.reshape(24, 4, 4, 4, 8).sum((2, 4)).flatten(1)
    expected = [
        pd.Series(a.numpy()).corr(pd.Series(b.numpy()), "spearman")
        for a, b in zip(sums, drops, strict=True)
    ]
    rows = scores[(scores["protocol"] == "sds") & (scores["method"] == "ixg")]
    np.testing.assert_allclose(rows["value"], expected, atol=0.02)
    page = report_text(result.report())
    text = "grey" if channels == 1 else "5 channels (pictures show the first three)"
    assert f"16×32 px, {text}" in page


@pytest.mark.filterwarnings("ignore:soundness")
@pytest.mark.parametrize(("outputs", "head"), [(1, "binary"), (5, "sigmoid")])
def test_binary_and_multi_label_models_are_evaluated_and_reported(tmp_path, outputs, head):
    model, images, labels, result = evaluated(tmp_path, 3, outputs, head=head)
    scores = result.scores
    by_protocol = scores.groupby("protocol")["status"].agg(set)
    assert by_protocol["sds"] == by_protocol["deletion"] == {"ok"}
    assert by_protocol["gridpg"] == ({"n/a"} if head == "binary" else {"ok"})
    rows = scores[(scores["protocol"] == "deletion") & (scores["method"] == "random")]
    assert rows["value"].between(0, 1).all()
    page = report_text(result.report())
    assert f"({head} head)" in page
    logits = model.logits(model.normalize(images))
    correct = int((logits[torch.arange(24), labels] > 0).sum())
    assert f"{correct} of 24" in page


MODEL = """
import torch
from torch import nn

import heatproof as hp


def build():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 2),
    )
    return hp.Model(net.eval(), size=(16, 32), mean=[0.5], std=[0.25], classes=["cat", "dog"])
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    chance = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            pixels = chance.integers(0, 256, (20 + 5 * i, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path


def test_a_spec_with_a_head_runs_on_a_folder(project):
    spec = {
        "models": [{"name": "file:net.py:build", "head": "sigmoid"}],
        "data": "folder:photos",
        "methods": ["gradcam", "ixg"],
        "protocols": [{"name": "sds"}, {"name": "deletion", "score": "softmax", "steps": 2}],
    }
    (project / "spec.yaml").write_text(yaml.safe_dump(spec))
    validated = CliRunner().invoke(main, ["validate", "spec.yaml"])
    assert "16×32 px" in validated.output and "2 classes (sigmoid head)" in validated.output
    run = CliRunner().invoke(main, ["run", "spec.yaml", "-o", "run"], catch_exceptions=False)
    assert run.exit_code == 0, run.output
    assert "(sigmoid head)" in report_text(project / "run" / "report" / "index.html")
    facts = Store(project / "run").provenance().models[0]
    assert (facts.head, facts.size, facts.image_channels) == ("sigmoid", (16, 32), 1)
    photo = "photos/cat/0.png"
    options = ["--model", "file:net.py:build", "--method", "ixg", "-o", "maps.png"]
    drawn = CliRunner().invoke(main, ["explain", photo, *options])
    assert drawn.exit_code == 0, drawn.output
    with Image.open("maps.png") as picture:
        assert picture.width > 2 * 448


def test_fine_tuning_a_binary_grey_model_lowers_its_loss(tmp_path):
    net = network(1, 1)
    model = hp.Model(net, size=(16, 32), mean=[0.5], std=[0.25])
    generator = torch.Generator().manual_seed(0)
    labels = [i % 2 for i in range(32)]
    images = 0.5 * torch.rand(32, 1, 16, 32, generator=generator)
    images += 0.5 * torch.tensor(labels)[:, None, None, None]
    tuned = finetune(
        model,
        hp.TensorData(images, labels),
        out=tmp_path,
        val=0.25,
        lr=0.1,
        epochs=4,
        batch_size=8,
    )
    losses = [epoch.loss for epoch in tuned.metrics if epoch.loss is not None]
    assert losses[-1] < 0.7 * losses[0]
    assert tuned.metrics[-1].accuracy == 1
