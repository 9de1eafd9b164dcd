"""Files known by content: nothing is taken for what it was, and nothing is read twice."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import heatproof as hp
from heatproof.files import file_hash
from heatproof.models import download, hashes
from heatproof.models.download import Source
from heatproof.models.hashes import is_intact, known_hash, known_hashes, record_hash
from heatproof.training import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def no_reading(path: Path) -> str:
    raise AssertionError(f"{path} is read again")


def test_hashes_are_those_of_the_content_and_computed_once(tmp_path, monkeypatch):
    paths = []
    for i in range(20):
        paths.append(tmp_path / f"{i}.bin")
        paths[-1].write_bytes(os.urandom(100 + i))
    expected = [file_hash(path, 64) for path in paths]
    assert known_hashes(paths) == expected
    monkeypatch.setattr(hashes, "_read", no_reading)
    assert known_hashes(paths) == expected


def test_a_file_replaced_with_the_same_size_and_time_is_another(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    before = known_hash(path)
    status = path.stat()
    path.write_bytes(b"new")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert known_hash(path) != before


def test_what_cannot_be_read_is_said(tmp_path):
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.png")
        assert known_hash(tmp_path / "pipe.png") == "not a regular file"
    assert known_hash(tmp_path) == "not a regular file"
    assert "No such file" in known_hash(tmp_path / "none")


def test_a_damaged_cache_of_hashes_is_made_anew(tmp_path, own_cache):
    path = tmp_path / "a.bin"
    path.write_bytes(b"a")
    expected = known_hash(path)
    (own_cache / "hashes.sqlite").write_bytes(b"nonsense" * 500)
    assert known_hash(path) == known_hash(path) == expected


def test_replaced_images_are_computed_anew(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = hp.Model(net, size=16, classes=["a", "b"])
    generator = np.random.default_rng(0)
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)

    def draw() -> None:
        for i in range(4):
            pixels = generator.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            path = folder / f"{i}.bmp"  # whose size does not depend on the content
            Image.fromarray(pixels).save(path)
            os.utime(path, ns=(10**18, 10**18))

    def scores(out: str):
        data = f"folder:{tmp_path / 'images'}"
        return hp.evaluate(model, data, ["ixg"], ["deletion(steps=4)"], out=tmp_path / out).scores

    draw()
    old = scores("run")
    draw()
    new = scores("run")
    assert (old["value"] != new["value"]).all()
    assert new["value"].tolist() == scores("fresh")["value"].tolist()


def test_damaged_weights_are_set_aside(tmp_path):
    path = tmp_path / "net.safetensors"
    path.write_bytes(b"weights")
    assert is_intact(path)  # which puts its hash on record
    assert (tmp_path / "net.safetensors.sha256").read_text() == (
        f"{file_hash(path, 64)}  net.safetensors\n"
    )
    assert is_intact(path)
    path.write_bytes(b"weightz")
    with pytest.warns(UserWarning, match=r"net.safetensors was damaged"):
        assert not is_intact(path)
    assert (tmp_path / "net.safetensors.damaged").read_bytes() == b"weightz"
    assert not path.exists()
    path.write_bytes(b"made anew")
    record_hash(path)
    assert is_intact(path)


def test_damaged_weights_are_trained_anew(monkeypatch):
    made = []

    def train(net, seed, out, progress):
        made.append(net)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(b"weights of " + net.encode())

    monkeypatch.setattr(cache, "train", train)
    path = cache.trained("resnet")
    assert cache.trained("resnet") == path and made == ["resnet"]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"T")
    with pytest.warns(UserWarning, match="was damaged"):
        assert cache.trained("resnet").read_bytes() == content
    assert made == ["resnet", "resnet"]


@pytest.mark.parametrize("named", [True, False])
def test_damaged_downloads_are_fetched_anew(tmp_path, monkeypatch, named):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    published = tmp_path / "published.pth"
    published.write_bytes(b"weights" * 10)
    name = f"net-{file_hash(published, 8)}.pth" if named else "net.pth"
    source = Source(published.as_uri(), name)
    assert download.cached(source) is None
    path = download.fetch(source)
    assert download.cached(source) == path
    path.write_bytes(b"weights" * 9 + b"weightz")
    with pytest.warns(UserWarning, match=f"{name} was damaged"):
        assert download.cached(source) is None
    assert download.fetch(source) == download.cached(source) == path
    hub = tmp_path / "hub" / "checkpoints" / name
    hub.parent.mkdir(parents=True)
    path.replace(hub)
    if named:
        hub.write_bytes(b"other")
        with pytest.warns(UserWarning, match="is not used, since it is damaged"):
            assert download.cached(source) is None
        assert hub.read_bytes() == b"other"  # it is not ours
