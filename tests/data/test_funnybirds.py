"""The published FunnyBirds folder, as its authors' own reader expects it."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import heatproof as hp
from heatproof.errors import HeatproofError

PARTS = ("beak", "eye", "foot", "tail", "wing")


@pytest.fixture
def folder(tmp_path):
    """Write two images with an alpha channel of zero, which the authors' reader cuts off."""
    (tmp_path / "parts.json").write_text(json.dumps({part: [{}] for part in PARTS}))
    (tmp_path / "classes.json").write_text("[]")
    scenes = [{"class_idx": 3}, {"class_idx": 0}]
    (tmp_path / "dataset_test.json").write_text(json.dumps(scenes))
    rng = np.random.default_rng(0)
    for number, scene in enumerate(scenes):
        name = f"{scene['class_idx']}/{number:06d}"
        pixels = rng.integers(0, 256, (16, 16, 4), dtype=np.uint8)
        pixels[..., 3] = 0
        part_map = np.zeros((16, 16, 4), dtype=np.uint8)
        part_map[2:4, 2:4] = (255, 255, 0, 255)  # beak
        part_map[6, 6] = (255, 0, 2, 0)  # the second foot
        for kind, content in (("test", pixels), ("test_part_map", part_map)):
            path = tmp_path / kind / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(content).save(path)
        inside = tmp_path / "test_interventions" / name
        inside.mkdir(parents=True)
        for i, part in enumerate(PARTS):
            kept = sorted(p for p in PARTS if p != part)
            image = np.full((16, 16, 4), 10 * i, dtype=np.uint8)
            Image.fromarray(image).save(inside / f"body_{'_'.join(kept)}.png")
    return tmp_path


def test_images_parts_and_labels(folder):
    data = hp.load_data(f"funnybirds:{folder}", hp.load_model("paperbirds/resnet"))
    assert data.labels == [3, 0]
    assert data.ids == ["3/000000", "0/000001"]
    parts = data.parts(1)
    assert [int(image[0, 0, 0]) for image in parts.without] == [0, 10, 20, 30, 40]
    assert bool(parts.masks[PARTS.index("foot"), 1].any())
    assert not parts.masks[PARTS.index("foot"), 0].any()


def test_a_fourth_channel_is_ignored(folder):
    raw = np.asarray(Image.open(folder / "test/3/000000.png"))
    model = hp.Model(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 5)), size=16)
    sample = hp.load_data(f"funnybirds:{folder}", model).load(0)
    assert torch.equal(sample.image, torch.from_numpy(raw[..., :3].copy()).permute(2, 0, 1) / 255)
    assert int(sample.silhouette.sum()) == 5


def test_a_folder_that_lacks_files_is_explained(folder):
    (folder / "test/3/000000.png").unlink()
    with pytest.raises(HeatproofError, match="lacks 1 of 2 test images"):
        hp.load_data(f"funnybirds:{folder}")
    (folder / "parts.json").unlink()
    with pytest.raises(HeatproofError, match=r"there is no .*parts\.json"):
        hp.load_data(f"funnybirds:{folder}")
