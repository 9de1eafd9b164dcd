"""Very large runs, in small: what is shared, read in parts or thinned gives the same results."""

import importlib.util
import json
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from forked import forking
from stored_rows import stored_rows

from heatproof.analysis import intervals
from heatproof.analysis.halves import Halves
from heatproof.analysis.intervals import GROUP
from heatproof.analysis.tables import groups
from heatproof.protocols import ViewKey, make_protocol
from heatproof.runs.columns import FRAME_COLUMNS
from heatproof.runs.format import PlanFile, TaskFacts, Timings, plan_parts, to_json
from heatproof.runs.row_frame import FrameBuilder
from heatproof.runs.sealed import seal, seal_parts
from heatproof.runs.store import Store
from heatproof.runs.task_files import TaskTensors, encode_files, read_coded_rows, read_rows

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "scale.py"


@pytest.fixture
def benchmark(monkeypatch):
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location("scale", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "scale", module)
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_finds_the_means_that_it_has_drawn(benchmark, tmp_path, monkeypatch):
    """Two protocols, one of which aggregates; the last step in a process of its own, as all are."""
    out = tmp_path / "numbers.json"
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "run" / "cache"))
    measured = benchmark.measured

    def in_this_process(step, folder):
        if step == "check":
            return measured(step, folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            more = benchmark.STEPS[step](folder)
        return {"seconds": 0.0, "processor": 0.0, "memory": 0.0, **more}

    monkeypatch.setattr(benchmark, "measured", in_this_process)
    small = ["--samples", "200", "--methods", "3", "--models", "1", "--classes", "4"]
    few = ["--protocols", "sds", "soundness", "--steps", "write", "resume", "summary", "check"]
    command = [str(BENCHMARK), *small, *few, "--json", str(out)]
    monkeypatch.setattr(sys, "argv", [*command, "--folder", str(tmp_path / "run")])
    benchmark.main()
    steps = json.loads(out.read_text())["steps"]
    assert list(steps) == ["write", "resume", "summary", "check"]
    assert steps["check"]["wrong"] == 0
    assert all(steps["check"][measure] > 0 for measure in ("seconds", "processor", "memory"))


# Rows as codes


def rows(count: int, record: str = "r") -> pa.Table:
    return stored_rows(
        record=[f"{record}{i % 3}" for i in range(count)],
        sample=[f"s{i}" for i in range(count)],
        target=[None, *range(count - 1)],
        value=[i / 7 for i in range(count)],
    )


def test_rows_as_codes_are_the_rows_as_texts(tmp_path):
    builder = FrameBuilder()
    expected = []
    for i, record in enumerate("ab"):
        path = tmp_path / f"{i}.parquet"
        path.write_bytes(encode_files(rows(9, record), TaskTensors(), Timings())["rows"])
        chosen = [f"{record}2", f"{record}0"]  # not in the order of the file, and not all
        builder.add(read_coded_rows(path), chosen)
        table = read_rows(path).to_pandas()
        expected += [table[table["record"] == name] for name in chosen]
    wanted = pd.concat(expected, ignore_index=True)[FRAME_COLUMNS]
    found = builder.frame()
    texts = found.columns[found.dtypes == "category"]
    assert (found["sample"].cat.categories == sorted(found["sample"].cat.categories)).all()
    pd.testing.assert_frame_equal(found.astype(dict.fromkeys(texts, "str")), wanted)
    assert FrameBuilder().frame().empty


def test_groups_are_those_of_pandas():
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({name: draw.choice(list("abc"), 200) for name in GROUP})
    frame["value"] = draw.normal(size=200)
    coded = frame.astype(dict.fromkeys(GROUP, "category"))
    expected = list(frame.groupby(GROUP, sort=False))
    for table in (frame, coded):
        found = list(groups(table, GROUP))
        assert [key for key, _ in found] == [key for key, _ in expected]
        for (_, ours), (_, theirs) in zip(found, expected, strict=True):
            assert ours["value"].tolist() == theirs["value"].tolist()


def test_a_plan_in_parts_has_the_same_bytes():
    tasks = [
        TaskFacts(name=f"t{i}", model="m\n", view=ViewKey(), protocols=[], records=["a" * i])
        for i in range(3)
    ]
    empty = PlanFile(tasks=[], methods={}, protocols=[], views=[])
    for some in ([], tasks[:1], tasks):
        whole = to_json(PlanFile(tasks=some, methods={}, protocols=[], views=[]))
        assert b"".join(plan_parts(empty, some)) == whole
        assert b"".join(seal_parts(lambda some=some: plan_parts(empty, some))) == seal(whole)


# Blocks of samples


@pytest.mark.parametrize("settings", [{}, {"compat": "soco"}, {"score": "softmax", "eps": 0.02}])
def test_sums_of_blocks_give_the_soundness_of_their_samples(settings):
    protocol = make_protocol("soundness", {"eps": 0.05, **settings})
    draw = np.random.default_rng(1)
    start = draw.integers(0, 14, 90)
    score = torch.from_numpy((np.arange(12) >= start[:, None]).astype(np.float32))
    mass = torch.from_numpy(draw.random((90, 12)).astype(np.float32))
    blocks = torch.from_numpy(draw.permutation(90) % 20)
    weights = torch.from_numpy(draw.integers(0, 2, (40, 20)).astype(float))
    levels = (0.2, 0.5, 0.7, 0.99)
    expected = protocol.at_levels(levels, score, mass, weights[:, blocks])
    found = protocol.at_levels(levels, score, mass, weights, blocks)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12, equal_nan=True)
    curves = {"score": score, "mass": mass}
    own = protocol.bootstrap_blocks(curves, weights, blocks)
    by_default = super(type(protocol), protocol).bootstrap_blocks(curves, weights, blocks)
    torch.testing.assert_close(own, by_default, rtol=1e-10, atol=1e-12, equal_nan=True)


def test_many_clusters_are_halved_in_blocks(monkeypatch):
    monkeypatch.setattr(intervals, "MOST_CLUSTERS", 50)
    monkeypatch.setattr(intervals, "BLOCKS", 20)
    halves = Halves.draw(100, 10)
    assert halves.blocks and halves.drawn.shape == (10, 20)
    (weights,) = halves.by_sample()
    np.testing.assert_array_equal(weights.sum(1), 50)
    whole, drawn = halves.estimates(lambda w, blocks: w @ torch.bincount(blocks).double())
    assert whole == 100 and (drawn == 50).all()
    assert not Halves.draw(50, 10).blocks


# Several processes


def commit(root: Path, worker: int) -> None:
    store = Store(root)
    for i in range(5):
        store.commit(f"{worker}-{i}", rows(30), TaskTensors(), Timings())


def test_processes_that_commit_at_once_lose_nothing(tmp_path):
    with ProcessPoolExecutor(3, mp_context=forking()) as pool:
        list(pool.map(commit, [tmp_path] * 3, range(3)))
    store = Store(tmp_path)
    for name in (f"{worker}-{i}" for worker in range(3) for i in range(5)):
        assert store.is_finished(name)
        assert store.table(name).equals(rows(30))


def test_a_leftover_directory_does_not_stop_a_run(tmp_path):
    (tmp_path / ".tmp-abc").mkdir()
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / ".tmp-def").write_bytes(b"half")
    with Store(tmp_path).locked():
        assert not (tmp_path / "rows" / ".tmp-def").exists()
