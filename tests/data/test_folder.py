"""Image folders as users have them."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import heatproof as hp
from heatproof.data.base import UnreadableImage
from heatproof.data.catalog import load_batch
from heatproof.data.images import fit, read_image
from heatproof.errors import HeatproofError


@pytest.fixture
def model():
    return hp.Model(
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)),
        size=16,
        classes=["cat", "dog"],
    )


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat/1.png", "cat/2.jpg", "dog/3.png", "dog/4.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(tmp_path / name)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    return tmp_path


def test_subfolders_are_classes(folder, model):
    data = hp.load_data(f"folder:{folder}", model)
    assert sorted(zip(data.ids, data.labels, strict=True)) == [
        ("cat/1.png", 0),
        ("cat/2.jpg", 0),
        ("dog/3.png", 1),
        ("dog/4.webp", 1),
    ]
    sample = data.load(0)
    assert sample.image.shape == (3, 16, 16)
    assert 0 <= sample.image.min() <= sample.image.max() <= 1


def test_a_smaller_limit_gives_a_prefix_of_a_larger_one(folder, model):
    every = hp.load_data(f"folder:{folder}", model, seed=1).ids
    assert hp.load_data(f"folder:{folder}", model, limit=2, seed=1).ids == every[:2]
    assert any(hp.load_data(f"folder:{folder}", model, seed=s).ids != every for s in range(2, 6))


def test_a_flat_folder_has_no_labels(tmp_path, model):
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    assert hp.load_data(f"folder:{tmp_path}", model).labels == [None]


def test_images_are_resized_and_cropped_as_in_the_libraries(tmp_path):
    """The shorter side is resized and the centre cropped.

    Of an image that needs no resizing, exactly the centre is left.
    """
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    image = fit(Image.fromarray(pixels), 16, 20)
    np.testing.assert_allclose(image.permute(1, 2, 0), pixels[2:18, 7:23] / 255, atol=1e-6)


def test_an_image_of_the_right_size_is_unchanged():
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    np.testing.assert_allclose(
        fit(Image.fromarray(pixels), 16, 18).permute(1, 2, 0), pixels / 255, atol=1e-6
    )


COLOR = (200, 100, 50)


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("grey.png", Image.new("L", (8, 8), 100), (100, 100, 100)),
        ("grey_alpha.png", Image.new("LA", (8, 8), (100, 255)), (100, 100, 100)),
        ("deep.png", Image.fromarray(np.full((8, 8), 25700, np.uint16)), (100, 100, 100)),
        ("bits.png", Image.new("1", (8, 8), 1), (255, 255, 255)),
        (
            "palette.gif",
            Image.new("RGB", (8, 8), COLOR).convert("P", palette=Image.Palette.ADAPTIVE),
            COLOR,
        ),
        ("print.tif", Image.new("CMYK", (8, 8), (55, 155, 205, 0)), COLOR),
        ("alpha.png", Image.new("RGBA", (8, 8), (*COLOR, 255)), COLOR),
        ("glass.png", Image.new("RGBA", (8, 8), (*COLOR, 0)), (255, 255, 255)),
        ("tiny.png", Image.new("RGB", (1, 1), COLOR), COLOR),
    ],
)
def test_all_unambiguous_image_modes_are_read(tmp_path, name, image, expected):
    image.save(tmp_path / name)
    pixels = fit(read_image(tmp_path / name), 16, 18)
    torch.testing.assert_close(
        pixels,
        torch.tensor(expected).reshape(3, 1, 1).expand(3, 16, 16) / 255,
        atol=1.5 / 255,
        rtol=0,
    )


def unreadable(folder):
    Image.new("RGB", (64, 64), COLOR).save(folder / "cat" / "whole.jpg")
    whole = (folder / "cat" / "whole.jpg").read_bytes()
    (folder / "cat" / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "cat" / "empty.png").write_bytes(b"")
    (folder / "dog" / "text.png").write_text("hello")
    frames = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in (0, 100, 200)]
    frames[0].save(folder / "dog" / "film.gif", save_all=True, append_images=frames[1:])
    Image.new("F", (8, 8)).save(folder / "dog" / "float.tif")


def test_of_a_multi_picture_photo_the_first_is_read(tmp_path):
    Image.new("RGB", (8, 8), COLOR).save(
        tmp_path / "a.jpg", "MPO", save_all=True, append_images=[Image.new("RGB", (4, 4))]
    )
    with Image.open(tmp_path / "a.jpg") as photo:
        assert photo.n_frames == 2
    assert read_image(tmp_path / "a.jpg").size == (8, 8)


def test_unreadable_images_are_reported(folder, model):
    unreadable(folder)
    data = hp.load_data(f"folder:{folder}", model)
    batch = load_batch(data, range(len(data.ids)), model)
    assert set(batch.unreadable) == {
        "cat/truncated.jpg",
        "cat/empty.png",
        "dog/text.png",
        "dog/film.gif",
        "dog/float.tif",
    }
    assert "truncated" in batch.unreadable["cat/truncated.jpg"]
    assert "3 frames" in batch.unreadable["dog/film.gif"]
    assert len(batch.ids) == 5
    with pytest.raises(UnreadableImage):
        data.load(data.ids.index("dog/text.png"))


def test_unreadable_images_are_skipped_and_the_rest_is_evaluated(folder, model):
    unreadable(folder)
    result = hp.evaluate(model, f"folder:{folder}", ["ixg"], ["sds(patches=4)"])
    scores = result.scores.set_index("sample")
    assert (scores["status"] == "skipped").sum() == 5
    assert "frames" in scores.loc["dog/film.gif", "message"]
    rest = scores["status"][scores["status"] != "skipped"].to_dict()
    # The image has one colour, so no patch matters more than another.
    assert rest.pop("cat/whole.jpg") == "undefined"
    assert set(rest.values()) == {"ok"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: f"folder:{f / 'nowhere'}", "there is no folder"),
        (lambda f: f"folder:{(f / 'hollow')}", "there are no images"),
        (lambda f: "paperbird", "did you mean paperbirds"),
        (lambda f: "paperbirds:tset", "test"),
    ],
)
def test_an_unknown_name_is_reported_with_suggestions(folder, model, make, message):
    (folder / "hollow").mkdir()
    with pytest.raises(ValueError, match=message):
        hp.load_data(make(folder), model)


def test_classes_that_do_not_match_are_reported(folder, model):
    (folder / "dog").rename(folder / "dgo")
    with pytest.raises(
        HeatproofError, match="1 of 2 subfolders .* are not classes of the model: dgo"
    ):
        hp.load_data(f"folder:{folder}", model)
    nameless = hp.Model(
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5)), size=16
    )
    with pytest.raises(HeatproofError, match="2 subfolders and the model 5 classes without names"):
        hp.load_data(f"folder:{folder}", nameless)
    with pytest.raises(HeatproofError, match="call load_data"):
        hp.load_data(f"folder:{folder}")


def test_tensors_must_be_images():
    with pytest.raises(HeatproofError, match=r"in \[0, 1\]"):
        hp.TensorData(torch.randn(2, 3, 8, 8))
    with pytest.raises(HeatproofError, match="2 images, but 3 labels"):
        hp.TensorData(torch.rand(2, 3, 8, 8), [0, 1, 2])
    with pytest.raises(HeatproofError, match="2 images, but 1 id$"):
        hp.TensorData(torch.rand(2, 3, 8, 8), ids=["a"])
    with pytest.raises(HeatproofError, match="at least one image"):
        hp.TensorData(torch.rand(0, 3, 8, 8))
