"""Weights from strangers: never code, and never anything but a message if they do not fit."""

import struct
import zipfile

import pytest
import torch
from safetensors.torch import save
from torch import nn

from heatproof.errors import HeatproofError
from heatproof.models.weights_file import _differences, load_weights, metadata, read_state


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (3, torch.ones(2), "its name is of type int"),
        (None, torch.ones(2), "its name is of type NoneType"),
        ("0.bias", torch.ones(2).to_sparse(), "0.bias .not a dense tensor"),
        ("0.bias", torch.ones(2, dtype=torch.complex64), "complex numbers"),
        ("0.bias", torch.ones(2, device="meta"), "without values"),
        ("x" * 10_000, None, "but x{200}… .221 characters"),
    ],
)
def test_entries_that_are_not_weights_are_refused(tmp_path, key, value, message):
    path = tmp_path / "w.pth"
    torch.save({**net().state_dict(), key: value}, path)
    with pytest.raises(HeatproofError, match=message) as caught:
        load_weights(net(), path)
    assert len(str(caught.value)) < 2000


def test_a_tensor_of_one_number_that_claims_a_huge_shape_costs_nothing(tmp_path):
    path = tmp_path / "w.pth"
    torch.save({"0.bias": torch.ones(1).expand(10**6, 10**6)}, path)
    differences = _differences(read_state(path), {"0.bias": torch.ones(2)})
    assert differences == ["0.bias is (1000000, 1000000), not (2,)"]


class Payload:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return print, ("code of a weights file ran",)


def test_a_pickle_with_code_is_refused_without_advice_to_run_it(tmp_path, capsys):
    path = tmp_path / "w.pth"
    torch.save({"w": Payload()}, path)
    with pytest.raises(HeatproofError, match="cannot read weights") as caught:
        read_state(path)
    assert "weights_only" not in str(caught.value).replace("Weights only load failed", "")
    assert capsys.readouterr().out == ""


def test_broken_files_are_refused(tmp_path):
    state = net().state_dict()
    torch.save(state, tmp_path / "w.pth")
    files = {"w.pth": (tmp_path / "w.pth").read_bytes(), "w.safetensors": save(dict(state))}
    for name, content in files.items():
        path = tmp_path / name
        for cut in (0, 1, 7, 8, 50, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:cut])
            with pytest.raises(HeatproofError, match="cannot read weights") as caught:
                read_state(path)
            assert "\n" not in str(caught.value)
            if cut != 1:  # a byte that could as well begin a pickle
                assert "the file is cut off or damaged" in str(caught.value)
                assert str(caught.value).endswith("; get it again")
    content = files["w.safetensors"]
    for length in (2**63, 2**64 - 1, 10**9, 3):  # of the header
        path = tmp_path / "w.safetensors"
        path.write_bytes(struct.pack("<Q", length) + content[8:])
        for read in (read_state, metadata):
            with pytest.raises(HeatproofError, match="cannot read weights"):
                read(path)


def test_an_archive_that_is_larger_inside_is_refused(tmp_path):
    torch.save({"w": torch.zeros(4 * 2**20)}, tmp_path / "w.pth")
    packed = tmp_path / "packed.pth"
    with (
        zipfile.ZipFile(tmp_path / "w.pth") as before,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as after,
    ):
        for part in before.infolist():
            after.writestr(part.filename, before.read(part))
    assert read_state(tmp_path / "w.pth")["w"].numel() == 4 * 2**20
    with pytest.raises(HeatproofError, match="far larger inside"):
        read_state(packed)
