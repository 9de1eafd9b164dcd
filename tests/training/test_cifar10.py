"""The reduced VGG-11: a few training steps on random images, and the weights they give."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import heatproof as hp
from heatproof.cli import main
from heatproof.errors import HeatproofError
from heatproof.models import views
from heatproof.training.cifar10 import mirror_and_shift, train_cifar10


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("cifar") / "cifar10.npz"
    x, y = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8), np.arange(40) % 10
    np.savez(path, train_x=x, train_y=y, test_x=x[:12], test_y=y[:12])
    return path


def test_a_few_steps_give_weights_that_load_and_work_on_grids(archive, tmp_path):
    losses = []
    metrics = train_cifar10(
        f"cifar10:{archive}",
        tmp_path / "a.safetensors",
        steps=2,
        progress=lambda step, steps, loss: losses.append(loss),
    )
    train_cifar10(f"cifar10:{archive}", tmp_path / "b.safetensors", steps=2)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert len(losses) == 2 and 0 <= metrics["confident"] <= metrics["accuracy"] <= 1
    model = hp.load_model("cifar10/vgg11", weights=tmp_path / "a.safetensors")
    assert model.shape("final") == (512, 4, 4) and model.layer_name("final") == "conv6"
    assert model.shape("cam") == (512, 2, 2)
    x = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    assert views.gridpg(model, 3).logits(x).shape == (2, 10)
    data = hp.load_data(f"cifar10:{archive}", model)
    correct = (
        model.logits(model.normalize(torch.stack([data.load(i).image for i in range(12)]))).argmax(
            1
        )
        == torch.tensor(data.labels)
    ).sum()
    assert metrics["accuracy"] == pytest.approx(correct.item() / 12)


def test_another_network_can_be_trained_in_the_same_way(archive, tmp_path):
    train_cifar10(f"cifar10:{archive}", tmp_path / "r.safetensors", net="resnet20", steps=1)
    model = hp.load_model("cifar10/resnet20", weights=tmp_path / "r.safetensors")
    assert (
        sum(
            isinstance(m, torch.nn.Conv2d | torch.nn.Linear) and m.weight.shape[-1] != 1
            for m in model.module.modules()
        )
        == 20
    )
    assert model.shape("cam") == (64, 8, 8)


def test_images_are_mirrored_and_shifted():
    images = torch.arange(64 * 3 * 8 * 8).reshape(64, 3, 8, 8) + 1
    changed = mirror_and_shift(images, 2, torch.Generator().manual_seed(0))
    offsets = set()
    for before, after in zip(images, changed, strict=True):
        wide = [torch.nn.functional.pad(side, (2, 2, 2, 2)) for side in (before, before.flip(-1))]
        same = [
            (m, i, j)
            for m, side in enumerate(wide)
            for i in range(5)
            for j in range(5)
            if torch.equal(side[:, i : i + 8, j : j + 8], after)
        ]
        assert len(same) == 1
        offsets.add(same[0])
    assert len(offsets) > 20


def test_missing_arguments_are_explained(archive, tmp_path):
    with pytest.raises(HeatproofError, match="heatproof train cifar10/vgg11 --data"):
        hp.load_model("cifar10/vgg11")
    with pytest.raises(HeatproofError, match="is trained on CIFAR-10"):
        train_cifar10("paperbirds:train", tmp_path / "x.safetensors")
    result = CliRunner().invoke(main, ["train", "cifar10/vgg11", "--data", f"cifar10:{archive}"])
    assert (
        result.exit_code and "specify where CIFAR-10 is and where the weights go" in result.output
    )
    result = CliRunner().invoke(
        main,
        [
            "train",
            "cifar10/vgg11",
            "--data",
            f"cifar10:{archive}",
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
