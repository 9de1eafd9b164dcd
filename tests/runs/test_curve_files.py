"""Curves of all samples, read in blocks and in threads."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from heatproof.runs.columns import ROW_SCHEMA
from heatproof.runs.curve_files import CurveBuffers, CurveReader, map_ahead, stack_curves
from heatproof.runs.format import SampleNotes, TensorKey, Timings
from heatproof.runs.task_files import TaskTensors, encode_files, read_tensors

METHODS = ["ig", "ixg|abs", "rise"]


def keys_of(method: str) -> list[TensorKey]:
    return [TensorKey.curve("soundness", method, name) for name in ("score", "mass")]


KEYS = {method: keys_of(method) for method in METHODS}
ALL = [key for keys in KEYS.values() for key in keys]


def write_task(path: Path, seed: int, samples: int = 4, methods: list[str] = METHODS) -> list[str]:
    draw = torch.Generator().manual_seed(seed)
    names = [f"{seed}-é{i}" for i in range(samples)]
    tensors = {key: torch.rand(samples, 5, generator=draw) for m in methods for key in keys_of(m)}
    tensors[TensorKey.curve("deletion", "ig", "score")] = torch.rand(samples, 3, generator=draw)
    empty = ROW_SCHEMA.empty_table()
    notes = SampleNotes(ids=names, labels=[0] * samples)
    path.write_bytes(encode_files(empty, TaskTensors(tensors, notes), Timings())["tensors"])
    return names


def test_curves_are_those_of_the_library(tmp_path: Path):
    path = tmp_path / "task.safetensors"
    names = write_task(path, 0)
    found = CurveReader(ALL).read(path)
    expected = read_tensors(path, ALL)
    assert found.samples == names == expected.samples.ids
    assert found.curves.keys() == expected.tensors.keys() == set(ALL)
    for key, values in found.curves.items():
        assert np.array_equal(values, expected.tensors[key].numpy())


@pytest.mark.parametrize("cut", [3, 60, -200])
def test_a_file_that_was_cut_is_named(tmp_path: Path, cut: int):
    path = tmp_path / "task.safetensors"
    write_task(path, 0)
    reader = CurveReader(ALL)
    reader.release(reader.read(path))  # whose memory has the whole file
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError):
        reader.read(path)


def test_a_file_without_samples_is_named(tmp_path: Path):
    path = tmp_path / "task.safetensors"
    path.write_bytes(b"\x02" + bytes(7) + b"{}")
    with pytest.raises(ValueError, match="header"):
        CurveReader(ALL).read(path)


def test_methods_have_the_samples_of_the_tasks_that_have_them(tmp_path: Path):
    paths = [tmp_path / f"{i}.safetensors" for i in range(3)]
    ids = [write_task(paths[0], 0), write_task(paths[1], 1, 2, ["ig"]), write_task(paths[2], 2)]
    reader = CurveReader(ALL)  # whose memory is used again
    tasks = (reader.read(path) for path in paths)
    stacked = stack_curves(tasks, KEYS, 10, CurveBuffers(), reader.release)
    assert stacked["ig"][0] == ids[0] + ids[1] + ids[2]
    assert stacked["rise"][0] == ids[0] + ids[2]
    expected = [CurveReader(ALL).read(paths[i]).curves[keys_of("rise")[1]] for i in (0, 2)]
    assert np.array_equal(stacked["rise"][1][1], np.concatenate(expected))


def test_memory_that_was_given_back_is_used_again():
    buffers = CurveBuffers()
    first = buffers.take((6, 5))
    buffers.give_back([first[:4]])
    again = buffers.take((2, 10))
    assert np.shares_memory(first, again) and again.shape == (2, 10)
    assert not np.shares_memory(first, buffers.take((2, 10)))


def test_what_is_read_ahead_comes_in_order():
    assert list(map_ahead(lambda i: i * i, range(50))) == [i * i for i in range(50)]


def test_a_reader_that_stops_early_reads_little_more():
    read = []
    for i in map_ahead(lambda i: read.append(i) or i, range(1000)):
        if i == 3:
            break
    assert max(read) < 20
    assert threading.active_count() < 20


def test_an_error_ahead_is_raised():
    def fail(i: int) -> int:
        if i == 5:
            raise ValueError("five")
        return i

    with pytest.raises(ValueError, match="five"):
        list(map_ahead(fail, range(9)))
