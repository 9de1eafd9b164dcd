"""What someone who reproduces a paper gets wrong: one line with the cure, before any pass."""

from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from PIL import Image

from heatproof.cli import main
from heatproof.models import paper_networks
from heatproof.models.passes import Passes
from heatproof.plan import open_models

BAGNET = "bagnet33_imagenet1000_lr0.001_epochs30_step10_checkpoint_best.pth.tar"


@pytest.fixture
def refuse(tmp_path, monkeypatch):
    """Return a function that validates and runs a spec, and returns the one line printed."""
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Passes, "_count", lambda *_: pytest.fail("a pass was made"))

    def run(*options: object, **changes: object) -> str:
        content = {
            "models": ["paperbirds/vgg"],
            "data": {"name": f"folder:{tmp_path / 'images'}"},
            "methods": ["random"],
            "protocols": ["sds"],
        }
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump({**content, **changes}))
        lines: set[str] = set()
        for command in (["validate", path], ["run", path, "-o", tmp_path / "run"]):
            found = CliRunner().invoke(main, [str(part) for part in (*command, *options)])
            assert found.exit_code == 2, found.output
            lines |= {line for line in found.output.splitlines() if " elapsed" not in line}
        assert not (tmp_path / "run").exists()
        (line,) = lines
        assert line.startswith("error: ")
        return line

    return run


@pytest.fixture
def images(tmp_path) -> Path:
    for i in range(6):
        folder = tmp_path / "images" / str(i % 3)
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (80, 80), (40 * i, 90, 30)).save(folder / f"{i}.png")
    return tmp_path / "images"


def checkpoint(path: Path, module: torch.nn.Module) -> Path:
    path.parent.mkdir(exist_ok=True)
    torch.save({"state_dict": module.state_dict()}, path)
    return path


def test_a_checkpoint_of_another_network(refuse, images, tmp_path):
    file = checkpoint(tmp_path / "weights" / BAGNET, torch.nn.Linear(3, 3))
    line = refuse("--weights-dir", file.parent, models=["bagnet33"], protocols=["idsds"])
    assert f"{BAGNET} does not fit bagnet33" in line
    assert f"are at {paper_networks.FINE_TUNED_ADDRESS}{BAGNET}" in line


def test_weights_of_another_network_are_named_with_the_address_of_the_right_ones(
    refuse, images, tmp_path
):
    file = checkpoint(tmp_path / "weights" / "mine.pth", torch.nn.Linear(3, 3))
    line = refuse(models=[{"name": "bagnet9", "weights": str(file)}])
    assert "mine.pth does not fit bagnet9" in line
    assert line.endswith(f"Those published are at {paper_networks.NETWORKS['bagnet9'].url}")


def test_a_truncated_download(refuse, images, tmp_path):
    file = checkpoint(tmp_path / "weights" / BAGNET, torch.nn.Linear(300, 300))
    file.write_bytes(file.read_bytes()[:100_000])
    line = refuse("--weights-dir", file.parent, models=["bagnet33"], protocols=["idsds"])
    assert BAGNET in line and "the file is cut off or damaged" in line and "get it again" in line


def test_fine_tuned_weights_that_a_network_lacks(refuse, images, monkeypatch):
    monkeypatch.setattr(open_models, "load_model", lambda *_, **__: pytest.fail("it was opened"))
    other = {"name": "torchvision:vgg19", "fine_tuned_weights": {"16/zero": "vgg19.pth"}}
    line = refuse(models=[other, "bagnet33"], protocols=["sds", "idsds"])
    assert "bagnet33 has no weights fine-tuned for 16/zero" in line
    assert "--weights-dir" in line and "--download" in line and BAGNET in line


def test_images_that_are_missing_are_noticed_at_the_first_network(refuse, images, monkeypatch):
    opened = []
    load = open_models.load_model
    monkeypatch.setattr(
        open_models, "load_model", lambda name, *a, **k: opened.append(name) or load(name, *a, **k)
    )
    data = {"name": f"folder:{images / 'nowhere'}"}
    line = refuse(models=["paperbirds/vgg", "paperbirds/resnet"], data=data)
    assert f"there is no folder {images / 'nowhere'}" in line
    assert set(opened) == {"paperbirds/vgg"}


def test_an_address_that_cannot_be_reached(refuse, images, monkeypatch):
    address = "http://127.0.0.1:9/"  # where nothing answers
    monkeypatch.setattr(paper_networks, "FINE_TUNED_ADDRESS", address)
    line = refuse("--download", models=["bagnet33"], protocols=["idsds"])
    assert f"cannot download {address}{BAGNET}" in line
    assert "put the file there, or give its path in the spec" in line


def test_a_folder_without_enough_classes_for_a_grid(refuse, images):
    line = refuse(protocols=["gridpg"])
    assert "6 images in 3 classes: not enough for a grid of 2×2" in line
    assert "a grid takes images of 4 classes" in line


@pytest.mark.parametrize("shared", [1, 6])
def test_a_bank_that_overlaps_with_what_is_evaluated(refuse, images, tmp_path, shared):
    bank = {"name": f"folder:{images}"}
    protocols = ["deletion(ood=true)"]
    evaluated = {"name": f"folder:{images}", "limit": shared}
    line = refuse(data=evaluated, reference=bank, protocols=protocols)
    assert f"{shared} of the 6 reference images of folder:{images} are evaluated" in line
    assert "name images that are not, or leave the reference out" in line
