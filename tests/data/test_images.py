"""Files that are broken, hostile or oddly named do no harm."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import heatproof as hp
from heatproof.data.base import UnreadableImage
from heatproof.data.catalog import load_batch
from heatproof.data.folder import list_images
from heatproof.data.images import MOST_PIXELS, fit, fit_any, read_bytes, read_image
from heatproof.files import escape_name, unescape_name

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX files")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return hp.Model(
        nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        size=16,
        classes=["cat", "dog"],
    )


@pytest.fixture
def folder(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    (tmp_path / "cat").mkdir()
    Image.fromarray(pixels).save(tmp_path / "cat" / "a.png")
    return tmp_path


def statuses(model, folder):
    result = hp.evaluate(model, f"folder:{folder}", ["ixg"], ["sds(patches=4)"])
    rows = result.scores.set_index("sample")
    return dict(zip(rows.index, rows["status"], strict=True)), dict(rows["message"])


@posix
def test_no_other_program_is_started(model, folder, monkeypatch):
    """Pillow would run the program ``gs`` for EPS, whatever the suffix."""
    started = folder / "started"
    programs = folder / ".programs"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {started}\n")
    (programs / "gs").chmod(0o755)
    Image.new("RGB", (20, 20)).save(folder / "cat" / "b.png", "EPS")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    code = "import sys; from PIL import Image; Image.open(sys.argv[1]).load()"
    subprocess.run(
        [sys.executable, "-c", code, folder / "cat" / "b.png"], capture_output=True, check=False
    )
    assert started.exists()  # this is what Pillow does by itself
    started.unlink()
    found, messages = statuses(model, folder)
    assert found == {"cat/a.png": "ok", "cat/b.png": "skipped"}
    assert "cannot identify" in messages["cat/b.png"]
    assert not started.exists()


@posix
def test_pipes_and_devices_are_not_opened(model, folder):
    os.mkfifo(folder / "cat" / "pipe.png")
    (folder / "cat" / "zero.png").symlink_to("/dev/zero")
    found, messages = statuses(model, folder)
    assert found == {"cat/a.png": "ok", "cat/pipe.png": "skipped", "cat/zero.png": "skipped"}
    assert messages["cat/pipe.png"] == "pipe.png: is not a regular file"


def test_a_long_and_narrow_image_needs_no_gigabytes(folder):
    """Its shorter side of 1 pixel would be resized to 256, its longer one to 15 million."""
    Image.new("RGB", (1, 60_000)).save(folder / "cat" / "long.png")
    image = read_image(folder / "cat" / "long.png")
    with pytest.raises(UnreadableImage, match="1×60000, resized: 256×15360000 pixels are more"):
        fit(image, 224, 256)
    assert fit(image, 16, 18).shape == (3, 16, 16)
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    wide = hp.Model(pooled, size=224, classes=["cat", "dog", "eel"])
    batch = load_batch(hp.load_data(f"folder:{folder}", wide), range(2), wide)
    assert (batch.ids, list(batch.unreadable)) == (["cat/a.png"], ["cat/long.png"])


@pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")
def test_an_image_of_too_many_pixels_is_not_decoded(folder):
    path = folder / "cat" / "large.png"
    Image.new("1", (10_001, MOST_PIXELS // 10_000)).save(path)
    with pytest.raises(UnreadableImage, match="10001×10000 pixels are more than 100 million"):
        read_image(path)
    with pytest.raises(UnreadableImage, match="more than 100 million"):
        read_bytes(path.read_bytes(), "it")


@posix
def test_links_that_lead_nowhere_are_skipped_with_a_message(model, folder):
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "cat" / "self.png").symlink_to(folder / "cat" / "self.png")
    with pytest.warns(UserWarning, match="cannot follow .*: Too many levels of symbolic links"):
        found, messages = statuses(model, folder)
    assert found == {"cat/a.png": "ok", "cat/self.png": "skipped"}
    assert "Too many levels of symbolic links" in messages["cat/self.png"]


@posix
def test_a_subfolder_that_cannot_be_listed_is_skipped_with_a_message(folder):
    """A path of more than 4096 characters cannot be listed, not even by root."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        deeper = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    with pytest.warns(UserWarning, match="cannot list .*: File name too long; it is skipped"):
        assert list_images(folder) == ["cat/a.png"]


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux alone")
def test_names_that_are_not_utf8_are_escaped(model, folder):
    os.rename(folder / "cat" / "a.png", os.fsencode(folder) + b"/cat/caf\xe9.png")
    found, _ = statuses(model, folder)
    assert found == {r"cat/caf\xe9.png": "ok"}
    raw = os.fsencode(folder) + b"/cat/"
    listed = hp.load_data([os.fsdecode(raw + b"caf\xe9.png")], model)
    assert listed.ids[0].endswith(r"caf\xe9.png")
    (folder / "cat" / "broken.png").write_text("no image")
    os.rename(folder / "cat" / "broken.png", raw + b"\xff.png")
    found, messages = statuses(model, folder)
    assert found[r"cat/\xff.png"] == "skipped"
    assert messages[r"cat/\xff.png"].startswith(r"\xff.png: cannot identify")
    os.rename(folder, os.fsencode(folder) + b"\xfc")
    assert statuses(model, os.fsdecode(os.fsencode(folder) + b"\xfc"))[0][r"cat/\xff.png"]


@given(st.text(alphabet="a\\x8f\udcff\udc80é/"))
def test_escaped_names_can_be_read_back(name):
    assert unescape_name(escape_name(name)) == name
    escape_name(name).encode()


def test_common_names_are_not_escaped():
    for name in ("cat/1.png", "größe/é.jpg", r"back\slash.png", "x9f.png"):
        assert escape_name(name) == name


MODEL = (3, 16, 16)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.randn(3, 16, 16).clamp(-2, 2), "looks normalized.*remove Normalize.*normalized="),
        (torch.rand(3, 16, 16) * 255, "divide them by 255, or return uint8"),
        (torch.rand(3, 16, 16) * 1.1, r"add .clamp\(0, 1\)"),
        (torch.rand(3, 16, 16) * 1e4, r"floats are in \[0, 1\], before"),
        (torch.rand(16, 16, 3), r"channels last; .* image.permute\(2, 0, 1\)"),
        (torch.rand(3, 20, 16), r"3×20×16, but the model takes 3×16×16; add Resize and CenterCrop"),
        (torch.rand(1, 16, 16), r"image.expand\(3, -1, -1\)"),
        (torch.rand(2, 16, 16), "return 3 channels"),
        (torch.rand(1, 3, 16, 16), r"a batch of one image; return image\[0\]"),
        (torch.rand(16), r"images are \(C, H, W\) or \(H, W, C\)"),
        (torch.zeros(3, 16, 16, dtype=torch.int64), r"type int64.*divide by the largest value"),
        (torch.full((3, 16, 16), torch.nan), "not finite"),
        (None, "NoneType, which is not an image"),
        (b"nothing", "cannot identify"),
        ("/nowhere/a.png", "a.png: No such file"),
    ],
)
def test_every_mistake_has_its_own_message(image, message):
    torch.manual_seed(0)
    with pytest.raises(UnreadableImage, match=message):
        fit_any(image, "item", MODEL, 18)


def test_images_are_fitted_by_the_shape_that_a_model_takes():
    """Compare with slicing, where nothing is resized, and with the grey values of Pillow."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 40, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    wide = fit(picture, (16, 24), 16)
    np.testing.assert_array_equal(wide.permute(1, 2, 0), np.float32(pixels[:, 8:32]) / 255)
    grey = fit_any(picture, "item", (1, 16, 40), 16)
    expected = np.float32(np.asarray(picture.convert("L"))) / 255
    np.testing.assert_array_equal(grey[0], expected)
    with pytest.raises(UnreadableImage, match="takes 5 channels"):
        fit_any(picture, "item", (5, 16, 16), 16)
    bands = torch.rand(5, 16, 16)
    torch.testing.assert_close(fit_any(bands, "item", (5, 16, 16), 16), bands)
    tall = fit(picture, (32, 16), 16)
    assert tall.shape == (3, 32, 16)
