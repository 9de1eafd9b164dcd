"""Run directories: nothing is lost, and nothing is silently wrong."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from forked import Forked
from report_text import report_text
from small_runs import METHODS, assert_same, evaluate, small_data, small_model, tensors
from stored_rows import stored_rows

import heatproof as hp
from heatproof.cli import main
from heatproof.errors import HeatproofError, StorageError
from heatproof.execute.runner import find_open_tasks
from heatproof.files import file_hash
from heatproof.methods import Expression
from heatproof.models.hashes import file_stamp, remember_hashes
from heatproof.plan.tasks import Records
from heatproof.protocols import make_protocol
from heatproof.runs import directory, integrity, provenance
from heatproof.runs.format import SUFFIXES, Timings
from heatproof.runs.run import Run
from heatproof.runs.sealed import seal, unseal
from heatproof.runs.store import Store
from heatproof.runs.task_files import TaskTensors
from heatproof.scoring.evaluation import Evaluation


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "run"
    evaluate(root)
    return root


@pytest.fixture
def run(sound, tmp_path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "run"))


def files(root: Path) -> list[Path]:
    found = (p for p in sorted(root.rglob("*")) if p.is_file() and p.name != ".lock")
    return [p for p in found if p.relative_to(root).parts[0] not in ("damaged", "report")]


def is_noticed_or_harmless(root: Path, sound: Path) -> bool:
    """Read everything of a run; return whether damage was named, and check what is not."""
    store = Store(root)
    try:
        rows, origin_facts = Run(store).rows, store.provenance()
        integrity.verify_plan(store)
    except HeatproofError as error:
        return "damaged" in str(error) and "run the spec again" in str(error)
    expected = Run(Store(sound)).rows
    keys = ["method", "protocol", "sample"]
    both = rows.merge(expected, on=keys, suffixes=("", "_expected"))
    assert len(both) == len(rows)
    ok = both["status"] == "ok"
    assert (both.loc[ok, "value"] == both.loc[ok, "value_expected"]).all()
    assert origin_facts.models == Store(sound).provenance().models
    for key, values in tensors(store).items():
        assert torch.equal(values.nan_to_num(9), tensors(Store(sound))[key].nan_to_num(9))
    return bool(store.damage)


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(content)


def test_the_run_has_every_kind_of_file(sound):
    folders = {p.relative_to(sound).parts[0] for p in files(sound)}
    single = {"plan.json", "spec.json", "provenance.json"}
    assert folders == {*SUFFIXES, *single, "tasks", "provenance", "prepared"}
    assert integrity.check(Store(sound)).findings == []


def test_no_flipped_bit_goes_unnoticed(run, sound):
    chooser = random.Random(0)
    chosen = files(run)
    for i in range(400):
        path = chosen[i % len(chosen)]
        original = path.read_bytes()
        flip(path, chooser.randrange(8 * len(original)))
        findings = integrity.check(Store(run)).findings
        assert [f.path for f in findings] == [path], path
        is_read_later = path.parent.name in ("prepared", "provenance") or path.name == "spec.json"
        if i % 8 == 0:
            assert is_noticed_or_harmless(run, sound) or is_read_later, path
        path.write_bytes(original)


DAMAGE = {
    "flipped": lambda path: flip(path, 8 * (path.stat().st_size // 2)),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
    "of something else": lambda path: path.write_bytes(os.urandom(200)),
}


@pytest.mark.filterwarnings("ignore:.*(damaged|set aside)")
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_run_heals(run, sound, damage):
    for i, path in enumerate(files(run)):
        if path.is_file():  # it may have another name since another one was healed
            DAMAGE[damage](path)
        is_noticed_or_harmless(run, sound)
        if i % 3 == 0:  # others are healed together
            evaluate(run)
            assert_same(run, sound)
    evaluate(run)
    assert_same(run, sound)
    assert integrity.check(Store(run)).findings == []
    if damage not in ("deleted",):
        notes = (run / "damaged" / "notes.txt").read_text()
        assert "rows" in notes and "tensors" in notes
        assert len(files(run / "damaged")) > 5


@pytest.mark.filterwarnings("ignore:.*(damaged|set aside)")
def test_files_of_another_task_or_run_are_not_taken_for_their_own(run, sound, tmp_path):
    other = evaluate(tmp_path / "other", ["ixg"]).store.root
    for folder in ("rows", "tensors", "timings", "tasks"):
        mine, theirs = (sorted((root / folder).iterdir()) for root in (run, other))
        shutil.copy(theirs[0], mine[1])  # under another name
        shutil.copy(theirs[1], run / folder / theirs[1].name)  # under its own name
    (run / "rows" / "notes.txt").write_text("mine")
    assert len(integrity.check(Store(run)).findings) > 3
    evaluate(run)
    assert_same_rows(Store(run), Store(sound))


def assert_same_rows(a: Store, b: Store) -> None:
    pd.testing.assert_frame_equal(Run(a).rows, Run(b).rows, check_exact=True)


def test_a_lost_manifest_is_rebuilt_and_says_so(run, sound):
    first, second = sorted((run / "tasks").iterdir())
    first.unlink()
    flip(second, 2000)
    before = {p: p.stat().st_mtime_ns for p in (run / "rows").iterdir()}
    with pytest.warns(UserWarning, match=rf"{second.name} \(its checksum does not match\)"):
        evaluate(run)
    assert {p: p.stat().st_mtime_ns for p in (run / "rows").iterdir()} == before
    store = Store(run)
    assert [store.manifest(p.stem).rebuilt for p in (first, second)] == [True, True]
    origins = [store.manifest(p.stem).origins for p in (first, second)]
    assert origins == [Store(sound).manifest(p.stem).origins for p in (first, second)]
    assert_same(run, sound)


@pytest.mark.parametrize("kind", SUFFIXES)
def test_results_and_reports_go_on_with_what_is_there(run, kind):
    path = sorted((run / kind).iterdir())[0]
    flip(path, 1000)
    before = path.read_bytes()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = hp.Result.load(run)
        page = result.report()
    assert any(path.name in str(w.message) for w in caught)
    assert path.name in repr(result)
    assert any("Run the spec again" in caveat for caveat in result.caveats)
    assert path.name in result._repr_html_()
    assert path.name in report_text(page)
    assert path.read_bytes() == before  # reading changes nothing
    expected = 6 * 6 if kind == "rows" else 6 * 70
    assert len(result.scores) == expected


@pytest.mark.filterwarnings("ignore:soundness")
def test_lost_curves_are_not_blamed_on_failures(tmp_path):
    model, data = small_model(), small_data(12)
    out = tmp_path / "run"
    hp.evaluate(model, data, ["ixg", "random"], ["soundness"], out=out, batch_size=8)
    flip(next((out / "tensors").iterdir()), 4000)
    rows = Run(Store(out)).rows
    assert set(rows["message"]) == {
        "its curves are damaged; run the spec again to compute them anew"
    }


def test_plan_and_spec_are_mended_by_the_next_run(run, sound):
    for name in ("plan.json", "spec.json", "provenance.json"):
        for damage in ("deleted", "truncated"):
            DAMAGE[damage](run / name)
            if name != "spec.json":
                with pytest.raises(HeatproofError, match="run the spec again into the same"):
                    hp.Result.load(run).report()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                evaluate(run)
            assert_same(run, sound)
    assert {p.name for p in (run / "damaged").iterdir()} >= {"plan.json", "spec.json"}


def test_check_lists_and_repairs(run):
    path = sorted((run / "rows").iterdir())[0]
    flip(path, 500)
    (run / "prepared" / "stray.txt").write_text("mine")
    runner = CliRunner()
    found = runner.invoke(main, ["check", str(run)])
    assert found.exit_code == 3
    assert path.name[:20] in found.output and "stray.txt" in found.output
    assert path.is_file()
    repaired = runner.invoke(main, ["check", str(run), "--repair"])
    assert repaired.exit_code == 3 and not path.exists()
    assert (run / "damaged" / "rows" / path.name).is_file()
    assert (run / "damaged" / "prepared" / "stray.txt").read_text() == "mine"
    again = runner.invoke(main, ["check", str(run)])
    assert again.exit_code == 0 and "every file is as it was written" in again.output
    evaluate(run)
    assert runner.invoke(main, ["check", str(run)]).exit_code == 0
    (run.parent / "empty").mkdir()
    refused = runner.invoke(main, ["check", str(run.parent / "empty")])
    assert refused.exit_code == 2 and "is not a run" in refused.output


# Where results come from


def test_provenance_is_that_of_the_run_that_computed(run, monkeypatch):
    before = (run / "provenance.json").read_bytes()
    evaluate(run)
    assert (run / "provenance.json").read_bytes() == before
    assert not any("computed" in caveat for caveat in evaluate(run).caveats)
    monkeypatch.setattr(provenance, "_packages", lambda: {"torch": "1.0", "numpy": "2"})
    result = evaluate(run, [*METHODS, "ig(steps=2)"], batch_size=8)
    assert (run / "provenance.json").read_bytes() != before
    (text,) = (caveat for caveat in result.caveats if "computed" in caveat)
    assert "torch" in text and "1.0" in text and "batch size 8, 16" in text
    assert "were computed in different ways" in " ".join(repr(result).split())
    page = report_text(result.report())
    assert "batch size 8, 16" in page
    assert len(list((run / "provenance").iterdir())) == 2
    store = result.store
    manifest = store.manifest(store.plan().tasks[0].name)
    assert {len(facts.origins) for facts in manifest.records.values()} == {1}


def test_a_merged_run_keeps_the_origins_of_its_parts(tmp_path):
    parts = [evaluate(tmp_path / m, [m], batch_size=b) for m, b in (("ixg", 16), ("random", 8))]
    merged = hp.merge(parts, tmp_path / "merged")
    assert any("batch size 8, 16" in caveat for caveat in merged.caveats)
    assert integrity.check(merged.store).findings == []


# Resuming


def test_thousands_of_finished_tasks_are_recognized_in_seconds(tmp_path, monkeypatch):
    """Checked with 200 tasks of 150 records; the docs state the figure of 2,346."""
    store = Store(tmp_path)
    count = 200
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # the disk is not what is measured
    fabricate(store, count, 150)

    evaluation = Evaluation(make_protocol("sds", {}), Expression.parse("ixg"))

    def planned(i):
        return SimpleNamespace(
            name=f"task-{i:05d}", records=Records((evaluation,) * 150, record_keys(i, 150))
        )

    plan = SimpleNamespace(tasks=[planned(i) for i in range(count)])
    begin = time.process_time()
    assert find_open_tasks(plan, Store(tmp_path)) == []
    assert time.process_time() - begin < 10 * count / 2346 * 5  # five times as slow is accepted


def count_reads(monkeypatch) -> list[Path]:
    """Return a list of the task files that are read to be verified, from now on."""
    read: list[Path] = []
    original = directory.file_hash
    monkeypatch.setattr(
        directory, "file_hash", lambda path, length: read.append(path) or original(path, length)
    )
    return read


def test_a_finished_run_is_resumed_without_reading_its_files(run, monkeypatch):
    task_files = [p for p in files(run) if p.relative_to(run).parts[0] in SUFFIXES]
    read = count_reads(monkeypatch)
    find_open_tasks(fabricated_plan(run), Store(run))  # a copy, which no process has read
    assert sorted(read) == task_files
    read.clear()
    find_open_tasks(fabricated_plan(run), Store(run))
    assert read == []
    task_files[0].touch()
    find_open_tasks(fabricated_plan(run), Store(run))
    assert read == task_files[:1]
    read.clear()
    integrity.check(Store(run))
    assert set(read) >= set(task_files)


def test_what_a_run_has_written_is_not_read_to_be_resumed(tmp_path, monkeypatch):
    evaluate(tmp_path / "run", count=8)
    read = count_reads(monkeypatch)
    find_open_tasks(fabricated_plan(tmp_path / "run"), Store(tmp_path / "run"))
    assert read == []


def fabricated_plan(root: Path) -> SimpleNamespace:
    """Return a plan of the tasks in a run, of which no record is missing."""
    tasks = [
        SimpleNamespace(name=task.name, records=Records((), []))
        for task in Store(root).plan().tasks
    ]
    return SimpleNamespace(tasks=tasks)


def flip_with_old_times(path: Path) -> None:
    status = path.stat()
    flip(path, 4 * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no time of the last change")
@pytest.mark.parametrize("kind", SUFFIXES)
def test_a_bit_flipped_with_old_times_is_found_by_the_next_run(run, sound, kind):
    evaluate(run)
    path = sorted((run / kind).iterdir())[0]
    flip_with_old_times(path)
    with pytest.warns(UserWarning, match=rf"set aside.*{path.name}"):
        evaluate(run)
    assert_same(run, sound)


@pytest.mark.filterwarnings("ignore:.*damaged files")
@pytest.mark.parametrize("kind", SUFFIXES)
def test_a_bit_that_the_disk_has_flipped_is_found_when_it_is_read(run, sound, kind):
    """A disk changes no times: resuming trusts the file, but none of its numbers is used."""
    evaluate(run)
    path = sorted((run / kind).iterdir())[0]
    digest = file_hash(path, 64)
    flip(path, 4 * path.stat().st_size)
    remember_hashes({path: (file_stamp(path), digest)})  # as if the times were the old ones
    find_open_tasks(fabricated_plan(run), Store(run))
    assert path.is_file()
    assert is_noticed_or_harmless(run, sound)
    with pytest.warns(UserWarning, match=rf"set aside.*{path.name}"):  # now it is known
        evaluate(run)
    assert_same(run, sound)


def test_a_wrong_entry_in_the_cache_does_no_harm(run, sound):
    evaluate(run)
    entries = {p: (file_stamp(p), "0" * 64) for p in files(run)}
    remember_hashes(entries)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert integrity.heal(Store(run), [task.name for task in Store(run).plan().tasks]) == []
    assert not (run / "damaged").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes")
def test_a_pipe_in_a_run_does_not_hang(run):
    path = sorted((run / "rows").iterdir())[0]
    path.unlink()
    os.mkfifo(path)
    findings = integrity.check(Store(run)).findings
    assert [f.problem for f in findings if f.path == path] == [
        "it cannot be read: not a regular file"
    ]


def record_keys(task: int, records: int) -> list[str]:
    return [f"{task:012x}{i:012x}" for i in range(records)]


def fabricate(store: Store, tasks: int, records: int) -> None:
    for i in range(tasks):
        name = f"task-{i:05d}"
        keys = record_keys(i, records)
        rows = stored_rows(record=keys)
        origins = {key: ["0123456789abcdef"] for key in keys}
        store.commit(name, rows, TaskTensors(origins=origins), Timings())


def test_an_older_directory_is_taken_over(run, sound):
    """Format 2 had neither hashes in names nor manifests."""
    for folder in (*SUFFIXES, "prepared"):
        for path in (run / folder).iterdir():
            stem, _, suffix = path.name.split(".")
            path.rename(path.with_name(f"{stem}.{suffix}"))
    shutil.rmtree(run / "tasks")
    shutil.rmtree(run / "provenance")
    for name in ("plan.json", "spec.json", "provenance.json"):
        content = unseal((run / name).read_bytes())
        (run / name).write_bytes(content.replace(b'"format": 3', b'"format": 2'))
    with pytest.raises(HeatproofError, match="run its spec again into the same directory"):
        hp.Result.load(run)
    before = {p.stat().st_mtime_ns for p in (run / "rows").iterdir()}
    evaluate(run)
    assert {p.stat().st_mtime_ns for p in (run / "rows").iterdir()} == before
    assert_same(run, sound)
    assert integrity.check(Store(run)).findings == []


# Writing


class Broken:
    """Lets calls of the operating system fail, one by one."""

    def __init__(self, monkeypatch, number: int, code: int):
        self.left = number
        self.code = code
        for owner, name in (
            (os, "fsync"),
            (os, "open"),
            (os, "mkdir"),
            (os, "replace"),
            (Path, "open"),
            (Path, "replace"),
            (Path, "mkdir"),
        ):
            monkeypatch.setattr(owner, name, self.wrapped(getattr(owner, name)))

    def wrapped(self, call):
        def maybe(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                raise OSError(self.code, os.strerror(self.code), str(args[0]))
            return call(*args, **kwargs)

        return maybe


def state(store: Store) -> tuple:
    rows = store.table("task").to_pylist()
    return repr(rows), store.tensors("task").origins


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_write_that_fails_leaves_the_old_state_or_the_new(tmp_path, monkeypatch, code):
    old, new = tmp_path / "old", tmp_path / "new"
    fabricate_one(Store(old), 3)
    fabricate_one(Store(new), 5)
    states = [state(Store(root)) for root in (old, new)]
    failures = 0
    for number in range(1, 100):
        root = tmp_path / f"run-{number}"
        shutil.copytree(old, root)
        store = Store(root)
        store.manifest("task")
        with monkeypatch.context() as patch:
            broken = Broken(patch, number, code)
            message = ""
            try:
                fabricate_one(store, 5)
            except StorageError as error:
                message = str(error)
        failures += bool(message)
        assert not message or (os.strerror(code) in message and "continues the run" in message)
        if broken.left > 0:
            break
        assert state(Store(root)) in states, number
        assert not list(root.rglob(".tmp-*")), number
        fabricate_one(Store(root), 5)
        assert state(Store(root)) == states[1]
    assert failures > 15


def fabricate_one(store: Store, records: int) -> None:
    rows = stored_rows(record=[f"{r}" for r in range(records)])
    kept = TaskTensors(origins={f"{r}": [f"{records:016d}"] for r in range(records)})
    store.commit("task", rows, kept, Timings())


def test_a_full_disk_stops_the_run_which_goes_on_later(tmp_path, sound, monkeypatch):
    """Not as failed methods, even where a method writes what it has prepared."""
    for number in (1, 4, 9, 14, 19, 24, 29, 34):
        root = tmp_path / f"run-{number}"
        left = [number]
        fsync = os.fsync

        def full(descriptor, left=left, fsync=fsync):
            left[0] -= 1
            if left[0] <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(StorageError, match="No space left on device"):
                evaluate(root)
        assert not list(root.rglob(".tmp-*"))
        evaluate(root)
        assert_same(root, sound)


@pytest.fixture
def small_disk(tmp_path, flushed) -> Iterator[Path]:
    """A disk of 64 kB, which only root can make."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=False)
    if mounted.returncode:
        pytest.skip("this system does not let root mount a disk")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def test_a_disk_that_is_full_or_read_only_stops_a_run_which_goes_on_later(small_disk, sound):
    with pytest.raises(StorageError, match=r"No space left on device.*the same command continues"):
        evaluate(small_disk / "run")
    assert not list(small_disk.rglob(".tmp-*"))
    remount(small_disk, "size=20m,ro")
    with pytest.raises(HeatproofError, match="Read-only file system"):
        evaluate(small_disk / "run")
    remount(small_disk, "rw")
    evaluate(small_disk / "run")
    assert_same(small_disk / "run", sound)
    assert integrity.check(Store(small_disk / "run")).findings == []


def test_a_directory_that_vanishes_is_named(tmp_path):
    def vanish(task, reused):
        shutil.rmtree(tmp_path / "run")

    with pytest.raises(StorageError, match="has vanished"):
        evaluate(tmp_path / "run", progress=vanish)


KILLED = """
import os, signal, sys
sys.path.append(sys.argv[3])
import test_integrity
from heatproof import files
write = files.os.fsync
count = [int(sys.argv[2])]
def fsync(descriptor):
    write(descriptor)
    count[0] -= 1
    if count[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
files.os.fsync = fsync
test_integrity.evaluate(sys.argv[1])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_run_that_is_killed_while_it_writes_resumes(tmp_path, sound):
    script = tmp_path / "script.py"
    script.write_text(KILLED)
    killed = []
    for number in (7, 18):  # while files are written
        root = tmp_path / f"run-{number}"
        arguments = [script, root, str(number), Path(__file__).parent]
        killed.append(Forked(arguments, tmp_path / "log").wait())
        evaluate(root)
        assert_same(root, sound)
        assert not list(root.rglob(".tmp-*"))
        assert integrity.check(Store(root)).findings == []
    assert killed == [-signal.SIGKILL] * 2


# Memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no memory"),
        MemoryError("Unable to allocate 9 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 9 bytes. Error code 12 (Cannot allocate memory)"
        ),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("fits", [8, 4, 2, 1, 0])
def test_the_batch_is_halved_whatever_memory_runs_out(error, fits):
    def hungry(model, x, target, *, rng):
        if len(x) > fits:
            raise error
        return x[:, 0]

    model, data = small_model(), small_data(16)
    result = hp.evaluate(model, data, [hungry, "random"], ["sds(patches=4)"], batch_size=16)
    statuses = result.scores.groupby("method")["status"].unique()
    assert list(statuses["random"]) == ["ok"]
    assert list(statuses["hungry"]) == (["ok"] if fits else ["failed"])
    store = result.store
    assert store.timings(store.plan().tasks[0].name).batch_size == max(fits, 1)


def test_no_memory_for_one_image_is_said():
    model = small_model()
    run = model.body.run

    def small_machine(h, start=0, *args, **kwargs):
        if h.device.type != "meta" and start == 0 and h.abs().sum() > 0:  # plans pass zeros
            raise MemoryError
        return run(h, start, *args, **kwargs)

    model.body.run = small_machine
    with pytest.raises(HeatproofError, match="not enough memory for a pass with one image"):
        hp.evaluate(model, small_data(4), ["random"], ["sds(patches=4)"], batch_size=4)


def test_sealed_files_are_ordinary_json(sound):
    content = (sound / "plan.json").read_bytes()
    assert seal(unseal(content)) == content
    assert json.loads(content)["format"] == 3
