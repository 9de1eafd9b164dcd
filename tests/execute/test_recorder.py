"""Parts of unfinished tasks, also those of two processes that have computed the same task."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

import heatproof as hp
from heatproof.execute import blocks as cut
from heatproof.execute import recorder
from heatproof.execute.recorder import Recorder
from heatproof.execute.restore import restore_parts
from heatproof.runs.integrity import check
from heatproof.runs.store import Store

METHODS = ["ixg", "gradcam", "random"]
PROTOCOLS = ["sds(patches=4)", "deletion(steps=4)"]


def evaluate(out: Path) -> hp.Result:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = hp.Model(net, size=16, classes=["a", "b", "c", "d"], name="net")
    images = torch.rand(24, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    data = hp.TensorData(images, [i % 4 for i in range(24)])
    return hp.evaluate(model, data, METHODS, PROTOCOLS, out=out, batch_size=16, keep_maps=4)


class Killed(BaseException):
    """Takes the place of SIGKILL: nothing is written at the end."""


def interrupt(monkeypatch: pytest.MonkeyPatch, out: Path, after: int) -> list[Path]:
    """Begin a run, which ends after some parts; return these."""
    write = Recorder.write
    written = 0

    def write_some(recorder: Recorder) -> None:
        nonlocal written
        if written == after:
            raise Killed
        before = list(out.glob("parts/*/*"))
        write(recorder)
        written += len(list(out.glob("parts/*/*"))) > len(before)

    with monkeypatch.context() as patch:
        patch.setattr(cut, "PART_SECONDS", 0.0)
        patch.setattr(Recorder, "write", write_some)
        with pytest.raises(Killed):
            evaluate(out)
    return sorted(out.glob("parts/*/*.safetensors"))


def assert_same(result: hp.Result, expected: hp.Result) -> None:
    pd.testing.assert_frame_equal(result.scores, expected.scores, check_exact=True)
    for task in expected.store.plan().tasks:
        stores = (result.store, expected.store)
        rows, expected_rows = (s.manifest(task.name).files["rows"].sha256 for s in stores)
        assert rows == expected_rows
        found, wanted = (s.tensors(task.name).tensors for s in stores)
        assert found.keys() == wanted.keys()
        for key, values in wanted.items():
            assert torch.equal(found[key].nan_to_num(9), values.nan_to_num(9)), key


@pytest.mark.parametrize(("ours", "theirs"), [(6, 10), (10, 6), (14, 14)])
def test_parts_of_two_processes_are_not_mixed(tmp_path, monkeypatch, ours, theirs):
    """A worker that was thought lost may write on while another one repeats its task."""
    expected = evaluate(tmp_path / "expected")
    interrupt(monkeypatch, tmp_path / "run", ours)
    for part in interrupt(monkeypatch, tmp_path / "other", theirs):
        target = tmp_path / "run" / part.relative_to(tmp_path / "other")
        if not target.exists():  # timings are part of the content
            shutil.copy(part, target)
    assert_same(evaluate(tmp_path / "run"), expected)
    assert not list((tmp_path / "run" / "parts").glob("*/*"))


def test_a_task_that_was_interrupted_twice_reads_all_its_parts(tmp_path, monkeypatch):
    expected = evaluate(tmp_path / "expected")
    first = interrupt(monkeypatch, tmp_path / "run", 6)
    second = interrupt(monkeypatch, tmp_path / "run", 5)
    assert len(first) == 6 and len(second) == 11
    restored = []

    def restore_and_note(parts, task, records):
        restored.extend(part.name for part in parts)
        return restore_parts(parts, task, records)

    monkeypatch.setattr(recorder, "restore_parts", restore_and_note)
    assert_same(evaluate(tmp_path / "run"), expected)
    assert restored == [path.name for path in second]


def rewritten(path: Path, change: Callable[[dict[str, Tensor], dict[str, str]], None]) -> None:
    """Change what a part holds, and seal it again, as whoever makes up a run can."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata())
    change(tensors, metadata)
    content = save(tensors, metadata)
    path.unlink()
    digest = hashlib.sha256(content).hexdigest()
    path.with_name(f"{path.name[:5]}.{digest[:16]}.safetensors").write_bytes(content)


def widened(tensors, metadata):
    for name, values in tensors.items():
        if '"shared"' in name:
            tensors[name] = values.repeat(1, 2)


def of_other_samples(tensors, metadata):
    name = next(name for name in tensors if name != "rows")
    tensors[name] = tensors[name].repeat(9, *[1] * (tensors[name].ndim - 1))


def of_other_types(tensors, metadata):
    tensors["rows"] = tensors["rows"].to(torch.bfloat16)


def not_whole(tensors, metadata):
    tensors["rows"] = tensors["rows"][:-20].clone()


def by_nobody(tensors, metadata):
    metadata["notes"] = metadata["notes"].replace('"origin":"', '"origin":"no digest')


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        (widened, False),  # only what is computed with it shows that it does not go with it
        (of_other_samples, True),
        (of_other_types, True),
        (not_whole, True),
        (by_nobody, True),
    ],
)
def test_parts_that_no_run_writes_are_set_aside(tmp_path, monkeypatch, change, is_found):
    expected = evaluate(tmp_path / "expected")
    for part in interrupt(monkeypatch, tmp_path / "run", 3):  # of the first batch of two
        rewritten(part, change)
    found = check(Store(tmp_path / "run")).findings
    assert bool(found) == is_found
    if is_found:
        result = evaluate(tmp_path / "run")
    else:
        with pytest.warns(UserWarning, match="the task begins anew, without what was computed"):
            result = evaluate(tmp_path / "run")
    assert_same(result, expected)
    assert any((tmp_path / "run" / "damaged" / "parts").rglob("*.safetensors"))
