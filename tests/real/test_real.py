"""Tests on real images and networks, if `HEATPROOF_REAL_DATA` names a folder with them."""

import os
from pathlib import Path

import pytest
import torch

import heatproof as hp
from heatproof.data.catalog import load_batch
from heatproof.models.batch import ModelBatch

ROOT = Path(os.environ.get("HEATPROOF_REAL_DATA", "/nonexistent"))
NEEDED = ("imagenet-sample", "imagenet-classes.tsv", "resnet50.safetensors")
pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(
        not all((ROOT / n).exists() for n in NEEDED),
        reason=f"HEATPROOF_REAL_DATA lacks some of {', '.join(NEEDED)}",
    ),
]


@pytest.fixture(scope="module")
def model():
    return hp.load_model(f"file:{Path(__file__).parent / 'resnet50.py'}:build")


@pytest.fixture(scope="module")
def data(model):
    return hp.load_data(f"folder:{ROOT / 'imagenet-sample'}", model, limit=8)


def test_labels_and_preprocessing_fit_the_network(model, data):
    batch = load_batch(data, range(8), model)
    assert (model.logits(batch.x).argmax(1) == torch.tensor(batch.labels)).float().mean() >= 0.75


def test_the_network_in_other_units_gives_the_same_logits(model, data):
    scaled = hp.load_model(f"file:{Path(__file__).parent / 'resnet50.py'}:build_scaled")
    logits = [m.logits(load_batch(data, range(2), m).x) for m in (model, scaled)]
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-4)


def test_the_folders_of_imagenet_keep_their_class_indices():
    order = [
        line.split("\t")[1] for line in (ROOT / "imagenet-classes.tsv").read_text().splitlines()
    ]
    nameless = hp.Model(
        torch.nn.Sequential(
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 1000)
        )
    )
    data = hp.load_data(f"folder:{ROOT / 'imagenet-sample'}", nameless)
    assert [order[label] for label in data.labels] == [
        image.partition("/")[0] for image in data.ids
    ]


def test_cuts_are_exact(model, data):
    x = load_batch(data, range(2), model).x
    with torch.no_grad():
        whole = model.module(model.passes.to_layout(x))
        for layer in model.layers:
            pre, explain = model.cut(layer)
            assert torch.equal(explain(pre(x)), whole), layer
    assert [model.layer_name(a) for a in ("final", "cam")] == ["layer4", "layer4"]


def test_a_shared_backward_pass_gives_bitwise_equal_gradients(model, data):
    batch = load_batch(data, range(2), model)
    target = torch.tensor(batch.labels)
    alone = model.tail("cam").gradient(model.activation(batch.x, "cam"), target).gradient
    shared = ModelBatch(model, batch.x, target, ["input", "cam"])
    assert torch.equal(shared.at("cam").gradient(), alone)


def test_an_evaluation_succeeds(model, data):
    result = hp.evaluate(model, data, ["gradcam", "ixg", "random"], ["sds"], batch_size=8)
    assert set(result.scores["status"]) == {"ok"}
