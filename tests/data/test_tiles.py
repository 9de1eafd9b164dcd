"""Large images as tiles of the size that a network takes."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import heatproof as hp
from heatproof.analysis.intervals import clusters_of
from heatproof.data.images import to_tensor
from heatproof.data.tiles import image_of
from heatproof.errors import HeatproofError


@pytest.fixture
def model():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(4, 2)).eval()
    return hp.Model(net, size=16, classes=["cat", "dog"])


def save(path, width, height, seed):
    path.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    picture = Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))
    picture.save(path)
    return picture


@pytest.fixture
def slides(tmp_path):
    save(tmp_path / "cat" / "wide.png", 53, 35, 0)  # 3 × 2 tiles
    save(tmp_path / "dog" / "exact.png", 16, 16, 1)  # 1 tile
    save(tmp_path / "dog" / "tall.png", 20, 70, 2)  # 1 × 4 tiles
    return tmp_path


def test_tiles_lie_side_by_side_around_the_middle(slides, model):
    data = hp.load_data(f"tiles:folder:{slides}", model)
    assert len(data.ids) == len(set(data.ids)) == 6 + 1 + 4
    pixels = to_tensor(Image.open(slides / "cat" / "wide.png"))
    top, left = (35 - 32) // 2, (53 - 48) // 2
    for row in range(2):
        for column in range(3):
            found = data.load(data.ids.index(f"cat/wide.png#tile={row},{column}"))
            y, x = top + 16 * row, left + 16 * column
            assert torch.equal(found.image, pixels[:, y : y + 16, x : x + 16])
            assert found.label == 0


def test_few_tiles_are_of_as_many_images_as_possible(slides, model):
    name = f"tiles:folder:{slides}"
    every = hp.load_data(name, model)
    first = hp.load_data(name, model, limit=3)
    assert first.ids == every.ids[:3]
    assert {image_of(sample) for sample in first.ids} == {image_of(s) for s in every.ids}
    assert hp.load_data(name, model, seed=1).ids != every.ids


def test_the_tile_changes_with_the_image(slides, model):
    name = f"tiles:folder:{slides}"
    before = dict(zip(*(lambda d: (d.ids, d.fingerprints))(hp.load_data(name, model)), strict=True))
    save(slides / "dog" / "tall.png", 20, 70, 3)
    after = dict(zip(*(lambda d: (d.ids, d.fingerprints))(hp.load_data(name, model)), strict=True))
    changed = {image_of(sample) for sample in before if before[sample] != after[sample]}
    assert changed == {"dog/tall.png"}


def test_tiles_of_an_image_are_one_cluster(slides, model, tmp_path):
    result = hp.evaluate(model, f"tiles:folder:{slides}", ["ixg", "random"], protocols=["sds"])
    rows = result.rows
    assert (rows["cluster"].astype(str) == rows["sample"].astype(str).map(image_of)).all()
    assert len(set(clusters_of(rows, rows["sample"]))) == 3
    assert result.clusters == {sample: image_of(sample) for sample in rows["sample"].unique()}
    assert "11 tiles of 3 images" in str(result)


def test_what_is_smaller_than_a_tile_is_left_out_and_named(slides, model):
    save(slides / "cat" / "icon.png", 40, 15, 4)
    with pytest.warns(UserWarning, match=r"smaller than a tile of 16×16 px and left out: cat/icon"):
        data = hp.load_data(f"tiles:folder:{slides}", model)
    assert len(data.ids) == 11


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiles:paperbirds", "tiles are cut from a folder of images: tiles:folder:/path"),
        ("tiles:", "tiles are cut from a folder of images"),
    ],
)
def test_only_folders_have_tiles(model, name, message):
    with pytest.raises(HeatproofError, match=message):
        hp.load_data(name, model)


def test_a_folder_of_small_images_has_none(tmp_path, model):
    save(tmp_path / "cat" / "icon.png", 15, 15, 0)
    with pytest.raises(HeatproofError, match="no image is as large as a tile of 16×16 px"):
        hp.load_data(f"tiles:folder:{tmp_path}", model)


def test_tiles_are_not_decided_in_rounds(slides, model):
    with pytest.raises(HeatproofError, match="tiles, and those of an image depend on each other"):
        hp.evaluate(model, f"tiles:folder:{slides}", ["ixg", "ig", "random"], decide=True)
    some = hp.load_data(f"tiles:folder:{slides}", model, per_class=2)
    with pytest.raises(HeatproofError, match="tiles, and those of an image depend on each other"):
        hp.evaluate(model, some, ["ixg", "ig", "random"], decide=True)
