"""The reduced VGG-11: a few steps on made-up pictures, and what becomes of the weights."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import heatproof as hp
from heatproof.cli import main
from heatproof.errors import HeatproofError
from heatproof.models import views
from heatproof.training.cifar10 import train_cifar10, varied


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("cifar") / "cifar10.npz"
    x, y = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8), np.arange(40) % 10
    np.savez(path, train_x=x, train_y=y, test_x=x[:12], test_y=y[:12])
    return path


def test_a_few_steps_give_weights_that_load_and_can_be_judged_on_grids(place, tmp_path):
    losses = []
    found = train_cifar10(
        f"cifar10:{place}",
        tmp_path / "a.safetensors",
        steps=2,
        progress=lambda step, steps, loss: losses.append(loss),
    )
    train_cifar10(f"cifar10:{place}", tmp_path / "b.safetensors", steps=2)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert len(losses) == 2 and 0 <= found["confident"] <= found["accuracy"] <= 1
    model = hp.load_model("cifar10/vgg11", weights=tmp_path / "a.safetensors")
    assert model.shape("final") == (512, 4, 4) and model.layer_name("final") == "conv6"
    assert model.shape("cam") == (512, 2, 2)
    x = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    assert views.gridpg(model, 3).logits(x).shape == (2, 10)
    data = hp.load_data(f"cifar10:{place}", model)
    right = (
        model.logits(model.normalize(torch.stack([data.load(i).image for i in range(12)]))).argmax(
            1
        )
        == torch.tensor(data.labels)
    ).sum()
    assert found["accuracy"] == pytest.approx(right.item() / 12)


def test_another_network_can_be_trained_in_the_same_way(place, tmp_path):
    train_cifar10(f"cifar10:{place}", tmp_path / "r.safetensors", net="resnet20", steps=1)
    model = hp.load_model("cifar10/resnet20", weights=tmp_path / "r.safetensors")
    assert (
        sum(
            isinstance(m, torch.nn.Conv2d | torch.nn.Linear) and m.weight.shape[-1] != 1
            for m in model.module.modules()
        )
        == 20
    )
    assert model.shape("cam") == (64, 8, 8)


def test_pictures_are_mirrored_and_shifted():
    images = torch.arange(64 * 3 * 8 * 8).reshape(64, 3, 8, 8) + 1
    found = varied(images, 2, torch.Generator().manual_seed(0))
    places = set()
    for before, after in zip(images, found, strict=True):
        wide = [torch.nn.functional.pad(side, (2, 2, 2, 2)) for side in (before, before.flip(-1))]
        same = [
            (m, i, j)
            for m, side in enumerate(wide)
            for i in range(5)
            for j in range(5)
            if torch.equal(side[:, i : i + 8, j : j + 8], after)
        ]
        assert len(same) == 1
        places.add(same[0])
    assert len(places) > 20


def test_what_is_missing_is_told(place, tmp_path):
    with pytest.raises(HeatproofError, match="heatproof train cifar10/vgg11 --data"):
        hp.load_model("cifar10/vgg11")
    with pytest.raises(HeatproofError, match="is trained on CIFAR-10"):
        train_cifar10("paperbirds:train", tmp_path / "x.safetensors")
    result = CliRunner().invoke(main, ["train", "cifar10/vgg11", "--data", f"cifar10:{place}"])
    assert result.exit_code and "say where CIFAR-10 is and where the weights go" in result.output
    result = CliRunner().invoke(
        main,
        [
            "train",
            "cifar10/vgg11",
            "--data",
            f"cifar10:{place}",
            "-o",
            str(tmp_path / "c.safetensors"),
            "--steps",
            "1",
        ],
    )
    assert (
        result.exit_code == 0
        and "accuracy" in result.output
        and (tmp_path / "c.safetensors").is_file()
    )
