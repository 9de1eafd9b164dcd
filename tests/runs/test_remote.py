"""Runs on other file systems: the same bytes as in a directory, and nothing lost on the way."""

import json
import re
import shutil
import signal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner
from forked import Forked
from fsspec.implementations.memory import MemoryFileSystem
from machines import Machine
from small_runs import assert_same, evaluate

import heatproof as hp
from heatproof.cli import main
from heatproof.errors import HeatproofError, StorageError
from heatproof.execute.engines.job import Job
from heatproof.report import serve
from heatproof.runs import integrity, remote
from heatproof.runs.addresses import is_address, remote_of, to_read, to_write
from heatproof.runs.remote import without_secrets
from heatproof.runs.store import Store


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "run"
    evaluate(root)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that dir:// leads to, in this process and in those that it starts."""
    path = tmp_path_factory.mktemp("files")
    settings = {"path": str(path), "target_protocol": "file"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fsspec.config.conf, "dir", settings)
        patch.setenv("FSSPEC_DIR", json.dumps(settings))
        yield path


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of a server on this machine that speaks S3."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3").mkdir("bucket")
        yield "s3://bucket"
    server.stop()


@pytest.fixture(params=["memory", "dir", "s3"])
def address(request: pytest.FixtureRequest) -> str:
    """An address where nothing is yet."""
    name = f"runs/{uuid.uuid4().hex}"
    if request.param == "dir":
        request.getfixturevalue("folder")
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/{name}"
    return f"{request.param}://{name}"


@pytest.fixture
def in_memory() -> str:
    return f"memory://runs/{uuid.uuid4().hex}"


def objects(address: str) -> dict[str, bytes]:
    """Return what a file system has at an address."""
    system, root = fsspec.url_to_fs(address)
    system.invalidate_cache()
    return {path.partition(root)[2][1:]: system.cat_file(path) for path in system.find(root)}


def replace(address: str, name: str, content: bytes) -> None:
    system, root = fsspec.url_to_fs(address)
    system.pipe_file(f"{root}/{name}", content)


def forget_copy(address: str) -> None:
    """Delete the copy, as if the run were continued on another machine."""
    shutil.rmtree(to_read(address))


def assert_whole(address: str, sound: Path) -> None:
    """Check that a run has the bytes of another, and every file its own."""
    assert_same(to_read(address, fresh=True), sound)
    assert integrity.check(Store(to_read(address))).findings == []


# Running and continuing


def test_a_run_has_the_same_bytes_and_continues_on_another_machine(address, sound):
    evaluate(address, count=64)
    forget_copy(address)
    reused = []
    result = evaluate(address, progress=lambda task, was_there: reused.append(was_there))
    assert reused == [True, False]
    assert_whole(address, sound)
    there = objects(address)
    copy = to_read(address)
    assert there == {name: (copy / name).read_bytes() for name in there}
    assert {name.partition("/")[0] for name in there} >= {"plan.json", "rows", "tasks", "prepared"}
    assert not any(".tmp-" in name or "parts" in name for name in there)
    assert result.store.name == address


KILLED = """
import os, signal, sys
from pathlib import Path
from fsspec.implementations.dirfs import DirFileSystem
from small_runs import evaluate
put = DirFileSystem.put_file
count = [int(sys.argv[2])]
def put_file(self, source, target):
    count[0] -= 1
    if count[0] == 0:
        self.pipe_file(target, Path(source).read_bytes()[:50])
        os.kill(os.getpid(), signal.SIGKILL)
    put(self, source, target)
DirFileSystem.put_file = put_file
evaluate(sys.argv[1])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_run_that_is_killed_while_it_writes_resumes(folder, tmp_path, sound):
    script = tmp_path / "script.py"
    script.write_text(KILLED)
    command = [script, "dir://killed", "10"]  # in the second task
    assert Forked(command, tmp_path / "log").wait() == -signal.SIGKILL
    evaluate("dir://killed")
    assert_whole("dir://killed", sound)


def test_an_error_of_the_file_system_stops_a_run_which_goes_on_later(in_memory, sound, monkeypatch):
    put = MemoryFileSystem.put_file
    count = 8

    def full(self, *args, **kwargs):
        nonlocal count
        count -= 1
        if count < 0:
            raise OSError("no room left at https://user:secret@host/x?token=secret")
        return put(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "put_file", full)
        with pytest.raises(StorageError, match=r"cannot write .* no room .*the same command") as e:
            evaluate(in_memory)
    assert "secret" not in str(e.value)
    evaluate(in_memory)
    assert_whole(in_memory, sound)


@pytest.mark.parametrize("other", [["ixg", "random", "constant"], ["ixg", "saliency"]])
def test_two_machines_that_write_at_once_do_not_harm_each_other(
    in_memory, sound, tmp_path, monkeypatch, other
):
    seen = []

    def meanwhile(task, reused):
        if not seen:
            seen.append(task)
            with monkeypatch.context() as patch:
                patch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))
                evaluate(in_memory, methods=other)

    evaluate(in_memory, progress=meanwhile)
    assert integrity.check(Store(to_read(in_memory, fresh=True))).findings == []
    result = evaluate(in_memory)
    assert result.scores.equals(hp.Result.load(sound).scores)


def test_a_run_that_was_deleted_is_begun_again(in_memory, sound):
    evaluate(in_memory).report()
    system, root = fsspec.url_to_fs(in_memory)
    system.rm(root, recursive=True)
    evaluate(in_memory)
    assert_whole(in_memory, sound)


def test_a_run_of_this_machine_keeps_others_from_writing(in_memory):
    store = Store(to_write(in_memory))
    with store.locked(), pytest.raises(HeatproofError, match=f"is writing to {in_memory}"):
        evaluate(in_memory)


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_addresses_of_this_machine_are_directories(tmp_path, scheme):
    assert to_write(f"{scheme}://{tmp_path}/run") == tmp_path / "run"
    assert remote_of(tmp_path / "run") is None


def test_workers_write_to_one_address(folder, tmp_path):
    pytest.importorskip("distributed")
    spec = {
        "models": ["paperbirds/resnet"],
        "data": {"name": "paperbirds", "split": "test", "limit": 130},
        "methods": ["ixg", "random"],
        "protocols": [{"name": "sds", "patches": 4, "baseline": ["zero", "mean"]}],
        "batch_size": 16,
        "keep_maps": 4,
    }
    local = hp.run(spec, tmp_path / "run")
    machine = Machine(tmp_path / "machines")
    try:
        machine.start(2)
        result = hp.run(
            spec, "dir://on-workers", engine="dask", insecure=True, address=machine.address
        )
    finally:
        machine.stop()
    assert result.store.name == "dir://on-workers"
    rows = [sorted(p.name for p in r.store.paths.folder("rows").iterdir()) for r in (local, result)]
    assert rows[0] == rows[1] and len(rows[0]) == 3
    assert sorted(p.name for p in (folder / "on-workers" / "rows").iterdir()) == rows[0]
    assert integrity.check(result.store).findings == []
    assert len(list((folder / "on-workers" / "prepared").iterdir())) == 1


# Integrity


def test_a_damaged_object_is_found_and_made_anew(address, sound):
    evaluate(address)
    name = next(name for name in objects(address) if name.startswith("rows/"))
    content = objects(address)[name]
    replace(address, name, content[:-1] + bytes([content[-1] ^ 1]))
    found = CliRunner().invoke(main, ["check", address])
    assert found.exit_code == 3
    assert "rows/" in found.output and f"heatproof check --repair {address}" in found.output
    with pytest.warns(UserWarning, match=f"damaged files of {address} were set aside"):
        evaluate(address)
    assert_whole(address, sound)
    assert f"damaged/{name}" in objects(address) and "damaged/notes.txt" in objects(address)


def test_check_repairs_an_address(in_memory, sound):
    evaluate(in_memory)
    name = next(name for name in objects(in_memory) if name.startswith("tensors/"))
    replace(in_memory, name, b"")
    assert CliRunner().invoke(main, ["check", "--repair", in_memory]).exit_code == 3
    assert f"damaged/{name}" in objects(in_memory) and name not in objects(in_memory)
    assert CliRunner().invoke(main, ["check", in_memory]).exit_code == 0
    evaluate(in_memory)
    assert_whole(in_memory, sound)


def test_only_what_has_changed_is_fetched(address):
    evaluate(address)
    copy = to_read(address)
    inodes = {path: path.stat().st_ino for path in copy.rglob("*") if path.is_file()}
    to_read(address)
    assert {path: path.stat().st_ino for path in inodes} == inodes
    timings = next(copy.glob("timings/*"))
    replace(address, timings.relative_to(copy).as_posix(), timings.read_bytes() + b" ")
    tensors = next(copy.glob("tensors/*"))
    tensors.write_bytes(b"a copy that is damaged")
    system, root = fsspec.url_to_fs(address)
    system.rm_file(f"{root}/spec.json")
    to_read(address)
    changed = {path for path, inode in inodes.items() if not _is(path, inode)}
    assert changed == {timings, tensors, copy / "spec.json"}
    assert timings.read_bytes().endswith(b" ")
    assert tensors.read_bytes() == objects(address)[tensors.relative_to(copy).as_posix()]
    assert not (copy / "spec.json").exists()


def _is(path: Path, inode: int) -> bool:
    return path.exists() and path.stat().st_ino == inode


def test_names_do_not_lead_out_of_the_copy(in_memory):
    evaluate(in_memory)
    system, root = fsspec.url_to_fs(in_memory)
    system.store[f"{root}/rows/../../../evil"] = system.store[f"{root}/plan.json"]
    system.store[f"{root}/rows/"] = system.store[f"{root}/plan.json"]  # as consoles make folders
    system.store[f"{root}/tasks/a\\b"] = system.store[f"{root}/plan.json"]
    copy = to_read(in_memory)
    assert not [p for p in copy.parents[2].rglob("*") if p.name in ("evil", "a\\b", "b")]


# Reading


def test_results_are_read_from_addresses(in_memory, sound, tmp_path):
    other = f"{in_memory}-other"
    evaluate(in_memory, methods=["ixg"])
    evaluate(other, methods=["random", "constant"])
    merged = hp.merge([in_memory, other], out=f"{in_memory}-merged")
    assert set(merged.scores["method"]) == {"ixg", "random", "constant"}
    saved = f"{in_memory}-saved"
    merged.save(saved)
    forget_copy(saved)
    loaded = hp.Result.load(saved)
    assert loaded.scores.equals(merged.scores)
    with pytest.raises(HeatproofError, match=f"{saved} is not empty"):
        merged.save(saved)
    assert len(hp.leaderboard([in_memory, other]).boards) == 2
    assert len(hp.compare(str(sound), saved).differences) == 6
    printed = CliRunner().invoke(main, ["compare", in_memory, saved])
    assert printed.exit_code == 0, printed.output
    printed = CliRunner().invoke(main, ["report", saved, "-o", str(tmp_path / "report")])
    assert printed.exit_code == 0 and (tmp_path / "report" / "index.html").is_file()


def test_a_report_is_not_written_to_an_address(in_memory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = evaluate(in_memory, methods=["ixg"])
    with pytest.raises(HeatproofError, match="name a directory"):
        result.report("memory://elsewhere/report")
    assert not list(tmp_path.iterdir())


def test_a_report_that_is_served_follows_the_file_system(in_memory, tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "FETCH_SECONDS", 0.0)
    evaluate(in_memory, methods=["ixg"])
    live = serve.LiveReport(to_read(in_memory), tmp_path / "work")
    assert live.refresh() and not live.refresh()
    with monkeypatch.context() as patch:
        patch.setenv("HEATPROOF_CACHE", str(tmp_path / "another-machine"))
        evaluate(in_memory, methods=["ixg", "random"])
    assert live.refresh()


# Addresses


def test_addresses_are_told_from_directories(tmp_path):
    for location in ("s3://bucket/run", "s3:/bucket/run", "gs://b", "s3://", "zip::s3://b", "s3:"):
        assert is_address(location) and is_address(Path(location))
    for location in ("runs/mine", tmp_path, "C:/runs/mine", "C:\\runs", "a:b/c", "published:x/y"):
        assert not is_address(location)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nosuch://bucket/run", "Protocol not known: nosuch"),
        ("oss://bucket/run", "pip install ossfs"),
        ("s3://bucket/run?token=secret", "has no query"),
        ("s3://key:secret@bucket/runs/*", "is a pattern"),
        ("simplecache::s3://bucket/run", "is a chain"),
        ("memory://", "does not name a directory"),
        ("sftp://me:secret/x@host/run", "write / \\? # as %2F"),
        ("sftp://me:sec#ret@host/run", "cannot use sftp://host/run: it cannot be read|paramiko"),
    ],
)
def test_an_address_that_cannot_be_is_refused_at_once(address, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeatproofError, match=message):
        evaluate(address)
    for command in (["run", "quickstart", "-o", address], ["check", address]):
        refused = CliRunner().invoke(main, command)
        assert refused.exit_code == 2 and not re.search("sec(#?r|/)", refused.output)
        assert len(refused.output.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_an_address_that_holds_something_else_is_refused(in_memory):
    replace(in_memory, "photos/a.jpg", b"a photo")
    with pytest.raises(HeatproofError, match='is not empty .* "photos"'):
        evaluate(in_memory)
    with pytest.raises(HeatproofError, match="there is no run of heatproof at"):
        to_read(in_memory)
    with pytest.raises(HeatproofError, match="is a file"):
        evaluate(f"{in_memory}/photos/a.jpg")
    assert list(objects(in_memory)) == ["photos/a.jpg"]


def test_a_server_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(remote, "CONTACT_SECONDS", 0.5)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        address = f"ftp://user:secret@127.0.0.1:{port}/run"
        with pytest.raises(HeatproofError, match=r"write to ftp://127.*: .*refused") as refused:
            evaluate(address)
        server.listen()
        with pytest.raises(HeatproofError, match="there is no answer after") as silent:
            evaluate(address)
    assert "secret" not in f"{refused.value}{silent.value}"


def test_a_bucket_that_is_missing_is_named(bucket):
    with pytest.raises(HeatproofError, match=r"write to s3://other/run: .*bucket does not exist"):
        evaluate("s3://other/run")
    with pytest.raises(HeatproofError, match=r"cannot read s3://other/run: .*does not exist"):
        hp.Result.load("s3://other/run")


def test_credentials_are_kept_nowhere(capsys):
    shown = f"memory://host/{uuid.uuid4().hex}"
    address = shown.replace("host", "user:secret@host")
    result = evaluate(address, progress=True)
    assert result.store.name == shown
    result.report()
    base = result.store.root.parents[1]
    files = [path for path in base.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if b"secret" in path.read_bytes() or "secret" in str(path)]
    assert "secret" not in "".join(capsys.readouterr())
    job = Job({}, "cpu", 1, (), "", "", address, "", {})
    assert "secret" not in repr(job)


def test_credentials_are_cut_out_of_texts():
    assert without_secrets("sftp://me:a@b@host:22/run@2/x") == "sftp://host:22/run@2/x"
    assert without_secrets('no "https://h/x?sig=1%2F&b=2" found') == 'no "https://h/x" found'
