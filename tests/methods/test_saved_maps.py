"""Folders of saved maps, and files that are damaged."""

import io
import json
import os
import re
import struct
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.methods import Expression
from heatproof.methods.saved_maps import _content, _picture, _read, _single, method_from_folder
from heatproof.tensor.noise import Rng

MAPS = np.random.default_rng(0).normal(size=(4, 8, 8)).astype(np.float32)
IDS = ["bird/a.jpg", "bird/b.jpg", "cat.v2/c.jpg", "d"]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 5),
    )
    return hp.Model(net.eval(), size=16)


def explained(model, method, targets=(0, 1, 2, 3)):
    notes = hp.MapNotes(4)
    maps = hp.explain(
        model, torch.zeros(4, 3, 16, 16), torch.tensor(targets), method, ids=IDS, notes=notes
    )
    return maps, notes


def save_map(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, values)
    elif path.suffix == ".npz":
        np.savez_compressed(path, saliency=values)
    else:
        path.write_bytes(save({"saliency": values}))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_a_folder_of_arrays_is_a_method(model, tmp_path, suffix):
    stems = ["bird/a", "bird/b", "cat.v2/c", "d"]
    for stem, values in zip(stems, MAPS, strict=True):
        save_map(tmp_path / "maps" / f"{stem}{suffix}", values)
    np.savez(tmp_path / "maps.npz", **dict(zip(IDS, MAPS, strict=True)))
    maps, notes = explained(model, f"file:{tmp_path}/maps")
    expected, _ = explained(model, f"file:{tmp_path}/maps.npz")
    assert maps.equal(expected)
    assert notes.texts[0] == "no class named in maps: assumed to explain class 0"


def test_a_file_may_name_the_class_that_it_explains(model, tmp_path):
    for stem, values in zip(["bird/a", "bird/b", "cat.v2/c", "d"], MAPS, strict=True):
        save_map(tmp_path / f"{stem}.class3.npy", values)
        save_map(tmp_path / f"{stem}.class12.npy", -values)
    name = f"file:{tmp_path}"
    maps, notes = explained(model, name, (3, 3, 3, 3))
    assert maps[:, 0, 0].tolist() == MAPS[:, 0, 0].tolist()
    assert not any(notes.texts)
    with pytest.raises(HeatproofError, match="explains class 12, 3, not the class 1 that is eval"):
        explained(model, name, (3, 3, 3, 1))
    save_map(tmp_path / "d.npy", np.ones((8, 8)))  # for all other classes
    maps, notes = explained(model, name, (3, 3, 3, 1))
    assert maps[3].unique().tolist() == [1.0]
    assert notes.texts[3].endswith("assumed to explain class 1")


def test_folders_that_do_not_fit_are_reported(model, tmp_path):
    folder = tmp_path / "maps"
    for name, values in zip(["bird/a", "bird/b", "cat.v2/c", "d"], MAPS, strict=True):
        save_map(folder / f"{name}.npy", values)
    name = f"file:{folder}"
    save_map(folder / "d.npz", MAPS[0])
    with pytest.raises(
        HeatproofError, match=r"two maps of one sample: d.npy and d.npz; remove one"
    ):
        Expression.parse(name)
    (folder / "d.npz").unlink()
    save_map(folder / "d.npy", np.ones((4, 4)))
    with pytest.raises(HeatproofError, match=r"different shapes, such as \(4, 4\) and \(8, 8\)"):
        explained(model, name)
    np.savez(folder / "d.npz", a=MAPS[0], b=MAPS[1])
    (folder / "d.npy").unlink()
    with pytest.raises(HeatproofError, match=r"has one map; .*d.npz has 2"):
        explained(model, name)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([["a"]]), "has no numbers but <U1"),
        (np.zeros((2, 2), np.complex64), "has no numbers but complex64"),
        (np.zeros((2, 2), [("x", "f4")]), "has no numbers but"),
        (np.zeros(4), r"has shape \(4,\); a map is"),
        (np.zeros((0, 4)), r"has shape \(0, 4\)"),
        (np.array([[None]]), "cannot read maps"),
    ],
)
def test_arrays_that_are_no_maps_are_reported_before_anything_is_computed(
    values, message, tmp_path
):
    np.savez(tmp_path / "maps.npz", a=values)
    with pytest.raises(HeatproofError, match=message):
        Expression.parse(f"file:{tmp_path}/maps.npz")


def test_arrays_of_any_type_and_byte_order_are_read(model, tmp_path):
    for kind in (">f4", "f2", "f8", "i4", ">i2", "u1", "?"):
        whole = (np.abs(MAPS) * 3).astype(kind)
        np.savez(tmp_path / "maps.npz", **dict(zip(IDS, whole, strict=True)))
        maps, _ = explained(model, f"file:{tmp_path}/maps.npz")
        assert maps[:, 0, 0].tolist() == whole[:, 0, 0].astype(np.float32).tolist()


def test_absurd_headers_are_reported(tmp_path):
    """A header can announce more numbers than there is memory."""
    header = io.BytesIO()
    shape = {"descr": "<f8", "fortran_order": False, "shape": (10**14, 10**4)}
    np.lib.format.write_array_header_1_0(header, shape)
    (tmp_path / "a.npy").write_bytes(header.getvalue() + bytes(64))
    (tmp_path / "a.txt").write_text("a")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(64))
    tensors = {"a": {"dtype": "F32", "shape": [10**12, 10**5], "data_offsets": [0, 4]}}
    text = json.dumps(tensors).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    (tmp_path / "b.safetensors").write_bytes(struct.pack("<Q", 2**63) + text)
    for name in ("a.npy", "a.npz", "a.safetensors", "b.safetensors"):
        with pytest.raises(HeatproofError, match="cannot read maps"):
            Expression.parse(f"file:{tmp_path}/{name}")


def contents() -> dict[str, bytes]:
    npy, npz, packed, png = io.BytesIO(), io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, MAPS[0])
    np.savez(npz, a=MAPS[0], b=MAPS[1])
    np.savez_compressed(packed, a=MAPS[0])
    Image.fromarray((MAPS[0] * 50 + 128).astype(np.uint8)).save(png, "PNG")
    return {
        ".npy": npy.getvalue(),
        ".npz": npz.getvalue(),
        ".packed.npz": packed.getvalue(),
        ".safetensors": save({"a": MAPS[0], "b": MAPS[1]}),
        ".png": png.getvalue(),
    }


CONTENTS = contents()
DAMAGE = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 255), st.sampled_from(["set", "cut", "add"])),
    min_size=1,
    max_size=4,
)


def damaged(content: bytes, damage) -> bytes:
    values = bytearray(content)
    for position, value, kind in damage:
        at = position % (len(values) + 1)
        if kind == "cut":
            del values[at:]
        elif kind == "add":
            values[at:at] = bytes([value])
        elif at < len(values):
            values[at] = value
    return bytes(values)


@pytest.mark.filterwarnings("ignore")  # NumPy and Pillow warn about some of them
@pytest.mark.parametrize("suffix", CONTENTS)
@settings(max_examples=250)
@given(damage=DAMAGE)
def test_damaged_files_are_read_or_reported(suffix, damage, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    path.write_bytes(damaged(CONTENTS[suffix], damage))
    with suppress(HeatproofError):
        if suffix == ".png":
            assert _picture(path, 8, 8).shape == (8, 8)
        elif suffix == ".npy":
            assert _single(path).ndim in (2, 3)
        else:
            assert all(m.ndim in (2, 3) for m in _read.__wrapped__(path, "").values())


@pytest.mark.parametrize("suffix", CONTENTS)
def test_truncated_files_are_reported(suffix, tmp_path):
    path = tmp_path / f"cut{suffix}"
    for length in range(0, len(CONTENTS[suffix]) - 20, 7):
        path.write_bytes(CONTENTS[suffix][:length])
        with pytest.raises(HeatproofError, match="cannot read"):
            _picture(path, 8, 8) if suffix == ".png" else _content(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_files_that_cannot_be_read_are_missing_maps_and_the_others_are_scored(model, tmp_path):
    """A pipe would wait for ever, and 300 bytes can be a picture or array of gigabytes."""
    folder = tmp_path / "maps"
    save_map(folder / "bird/a.npy", MAPS[0])
    os.mkfifo(folder / "bird/b.npy")
    (folder / "cat.v2").mkdir()
    Image.new("1", (12_000, 9_000)).save(folder / "cat.v2/c.png")
    with zipfile.ZipFile(folder / "d.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(900_000_000))
    method, _ = method_from_folder(folder)
    notes = hp.MapNotes(4)
    x = torch.zeros(4, 3, 16, 16)
    maps = method(model, x, torch.arange(4), rng=Rng(0, IDS), notes=notes)
    assert torch.equal(maps[0], torch.from_numpy(MAPS[0]))
    assert notes.missing[0] == ""
    assert "is not a regular file" in notes.missing[1]
    assert re.search("more than 100 million|exceeds limit", notes.missing[2])  # Pillow's own
    assert "unpacks to 900,000,000 bytes" in notes.missing[3]
    os.mkfifo(tmp_path / "maps.npz")
    with pytest.raises(HeatproofError, match="is not a regular file"):
        Expression.parse(f"file:{tmp_path}/maps.npz")
