"""Engines: the same rows on any number of workers, whichever of them ends or is wrong."""

import http.client
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml
from forked import Forked
from machines import Machine, wait_until
from PIL import Image

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.execute.engines import worker as worker_side
from heatproof.execute.engines.base import EngineOptions
from heatproof.execute.engines.clusters import choose_gpus, connected, prepare_worker
from heatproof.execute.runner import Watcher
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import make_spec
from heatproof.plan.tasks import Task
from heatproof.userfile import collect_code, moved_code

distributed = pytest.importorskip("distributed")

NET = """
import os
import time
import warnings

import torch
from torch import nn

import heatproof as hp
from widths import WIDTH


def build():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(WIDTH, 50),
    )
    return hp.Model(net.eval(), size=32, name="tiny")


def first_channel(model, x, target):
    warnings.warn("a word from the worker")
    return x[:, 0]


def slow(model, x, target):
    print("slow", flush=True)
    for _ in range(30 * ("SLOW_WORKERS" in os.environ)):
        time.sleep(0.05)
    return x[:, 0]
"""
SAMPLES = 150  # three tasks


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the user's code, which is the working directory."""
    folder = tmp_path / "author"
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    (folder / "widths.py").write_text("WIDTH = 4\n")
    monkeypatch.chdir(folder)
    return folder


def spec_of(methods: list[str], **changes: object) -> dict:
    return {
        "models": ["file:net.py:build"],
        "data": {"name": "paperbirds", "split": "test", "limit": SAMPLES},
        "methods": methods,
        "protocols": [{"name": "sds", "patches": 4, "baseline": ["zero", "mean"]}],
        "keep_maps": 4,
        **changes,
    }


SPEC = spec_of(["ixg", "gradcam", "random", "file:net.py:first_channel"])
SLOW = spec_of(["ixg", "file:net.py:slow"])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a scheduler in this process, with two workers in this process."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "machines")
    try:
        yield machine
    finally:
        machine.stop()


def assert_same(one: hp.Result, other: hp.Result) -> None:
    pd.testing.assert_frame_equal(one.scores, other.scores, check_exact=True)
    for task in one.store.plan().tasks:
        manifests = [result.store.manifest(task.name) for result in (one, other)]
        assert manifests[0].files["rows"].sha256 == manifests[1].files["rows"].sha256
        kept = [result.store.tensors(task.name) for result in (one, other)]
        assert kept[0].samples == kept[1].samples
        assert kept[0].tensors.keys() == kept[1].tensors.keys()
        for key, values in kept[0].tensors.items():
            assert values.numpy().tobytes() == kept[1].tensors[key].numpy().tobytes()


def test_workers_write_the_same_bytes_as_a_local_run(code, tmp_path, address):
    finished: list[str] = []
    with pytest.warns(UserWarning, match="a word from the worker"):
        local = hp.run(SPEC, tmp_path / "local")
    with pytest.warns(UserWarning, match="a word from the worker"):
        dask = hp.run(
            SPEC,
            tmp_path / "dask",
            engine="dask",
            address=address,
            progress=lambda task, reused: finished.append(task.name),
        )
    assert_same(local, dask)
    assert dask.store.provenance().hardware.threads == 1
    assert sorted(finished) == sorted(task.name for task in dask.store.plan().tasks)
    assert os.getcwd() == str(code)
    prepared = [
        sorted(p.name for p in (tmp_path / d / "prepared").iterdir()) for d in ("local", "dask")
    ]
    assert prepared[0] == prepared[1] != []
    again: list[bool] = []
    hp.run(
        SPEC,
        tmp_path / "dask",
        engine="dask",
        address="tcp://127.0.0.1:1",  # not needed, as everything is there
        progress=lambda task, reused: again.append(reused),
    )
    assert again == [True, True, True]


def test_workers_drop_the_same_methods_as_a_local_run(code, tmp_path, address):
    spec = spec_of(
        ["ixg", "ig(steps=4)", "saliency", "random"], decide={"at_most": 64}, keep_maps=0
    )
    local = hp.run(spec, tmp_path / "local")
    dask = hp.run(spec, tmp_path / "dask", engine="dask", address=address)
    assert_same(local, dask)
    assert local.store.paths.race.read_bytes() == dask.store.paths.race.read_bytes()
    (race,) = local.races.values()
    assert race.contests[0].drops  # so that later tasks lack records


def test_evaluate_takes_an_engine_for_names(code, tmp_path, address):
    arguments = ("file:net.py:build", "paperbirds:test", ["ixg", "random"], ["sds(patches=4)"])
    local = hp.evaluate(*arguments, limit=10, out=tmp_path / "local")
    dask = hp.evaluate(*arguments, limit=10, engine="dask", address=address, out=tmp_path / "dask")
    assert_same(local, dask)
    with pytest.raises(HeatproofError, match="models: Model is a Python object of this process"):
        hp.evaluate(hp.load_model(arguments[0]), *arguments[1:], engine="dask", workers=1)
    with pytest.raises(HeatproofError, match="workers goes with the engine dask"):
        hp.evaluate(*arguments, workers=2)
    with pytest.raises(HeatproofError, match='"cores"'):
        hp.evaluate(*arguments, engine="dask", cores=2)


def test_a_worker_that_sees_other_data_is_refused(code, tmp_path, address):
    images = tmp_path / "images"
    images.mkdir()
    for number in range(3):
        Image.new("RGB", (32, 32), (40 * number, 90, 10)).save(images / f"{number}.png")
    spec = make_spec(spec_of(["ixg"], data=f"folder:{images}", protocols=["sds(patches=4)"]))
    plan = open_spec(spec)
    Image.new("RGB", (32, 32), (1, 2, 3)).save(images / "1.png")
    with pytest.raises(HeatproofError, match="worker .* on .*: the data .* are not those that"):
        hp.run(spec, tmp_path / "run", plan=plan, engine="dask", address=address)
    (code / "widths.py").write_text("WIDTH = 5\n")
    again = open_spec(spec)
    (code / "widths.py").write_text("WIDTH = 4\n")
    hp.run(spec, tmp_path / "other", plan=again, engine="dask", address=address)  # code travels
    plan = open_spec(spec)
    images.rename(tmp_path / "away")
    with pytest.raises(HeatproofError, match=f"worker .*{images}"):
        hp.run(spec, tmp_path / "third", plan=plan, engine="dask", address=address)


def test_a_worker_with_other_versions_or_another_disk_is_refused(
    code, tmp_path, address, monkeypatch
):
    spec = spec_of(["ixg"], data={"name": "paperbirds", "limit": 4})
    with monkeypatch.context() as patch:
        patch.setattr(worker_side, "versions", lambda: {"heatproof": "0.0.1", "torch": "1.0"})
        with pytest.raises(HeatproofError, match="it has heatproof 0.0.1, torch 1.0, but the run"):
            hp.run(spec, tmp_path / "run", engine="dask", address=address)
    with monkeypatch.context() as patch:
        patch.setattr(worker_side, "file_hash", lambda path: "")
        with pytest.raises(HeatproofError, match="does not see the run directory"):
            hp.run(spec, tmp_path / "run", engine="dask", address=address)
    hp.run(spec, tmp_path / "run", engine="dask", address=address)


class Follower(Watcher):
    """Keeps what workers report."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, float]] = []

    def advance(self, task: Task, passed: float, kept: float) -> None:
        self.reports.append((passed, kept))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the system has no signals to send")
def test_an_interrupted_task_writes_what_it_has_computed(code, tmp_path, machine, interruptible):
    """Ctrl-C reaches the client; workers then stop within the task."""
    out = tmp_path / "run"
    spec = spec_of(["ixg", "file:net.py:slow"], data={"name": "paperbirds", "limit": 64})
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    machine.start(workers=1)
    command = ["-m", "heatproof", "run", tmp_path / "spec.yaml", "-o", out]
    command += ["--engine", "dask", "--address", machine.address]
    client = Forked(command, tmp_path / "log")
    machine.processes[1].wait_for("slow\n")
    client.send_signal(signal.SIGINT)
    assert client.wait(120) == 130
    assert "interrupted; what is computed is kept" in client.text
    assert not list(out.glob("rows/*"))
    assert list(out.glob("parts/*/*.safetensors"))
    follower = Follower()
    there = {"engine": "dask", "insecure": True, "address": machine.address}
    dask = hp.run(spec, out, progress=follower, **there)
    passed, kept = follower.reports[0]
    assert passed == kept > 0
    assert_same(hp.run(spec, tmp_path / "local"), dask)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_two_machines_need_only_the_disk_and_one_may_die(code, tmp_path, machine):
    """Code travels with the run: the workers have other directories, and the file is gone."""
    local = hp.run(SLOW, tmp_path / "local")
    machine.start(workers=2)
    spec = make_spec(SLOW)
    plan = open_spec(spec)
    for file in code.glob("*.py"):
        file.unlink()
    out = tmp_path / "dask"
    killed: list[int] = []

    def kill() -> None:
        wait_until(lambda: all(list((machine.root / f"host{i}").rglob("net.py")) for i in (0, 1)))
        machine.processes[1].kill()
        killed.append(1)

    thread = threading.Thread(target=kill)
    thread.start()
    dask = hp.run(spec, out, plan=plan, engine="dask", insecure=True, address=machine.address)
    thread.join()
    assert killed
    assert_same(local, dask)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_run_outlives_its_scheduler(code, tmp_path, machine):
    machine.start(workers=1)

    def kill(task, reused) -> None:
        machine.processes[0].kill()

    with pytest.raises(HeatproofError, match="the scheduler at .* is lost; what is computed is"):
        hp.run(
            SLOW,
            tmp_path / "dask",
            engine="dask",
            insecure=True,
            address=machine.address,
            progress=kill,
        )
    rows = list((tmp_path / "dask" / "rows").iterdir())
    assert 1 <= len(rows) < 3
    assert_same(hp.run(SLOW, tmp_path / "local"), hp.run(SLOW, tmp_path / "dask"))


SCRIPT = """
import sys
import heatproof as hp

if __name__ == "__main__":
    spec, out = eval(sys.argv[1]), sys.argv[2]
    hp.run(spec, out, engine="dask", workers=2)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_workers_end_with_their_client(code, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "dask"
    command = [sys.executable, tmp_path / "script.py", repr(SLOW), out]
    client = subprocess.Popen(command, env={**os.environ, "SLOW_WORKERS": "1"})
    wait_until(lambda: list(out.glob("rows/*.parquet")))
    with pytest.raises(HeatproofError, match="another run is writing"):
        hp.run(SLOW, out)
    children = psutil.Process(client.pid).children(recursive=True)
    assert len(children) >= 2
    client.kill()
    client.wait()
    _, alive = psutil.wait_procs(children, timeout=120)
    assert not alive
    assert_same(hp.run(SLOW, tmp_path / "local"), hp.run(SLOW, out))


@pytest.mark.slow
@pytest.mark.parametrize("dashboard", [None, True])
def test_only_this_process_reaches_the_workers_on_this_machine(tmp_path, dashboard):
    """Every socket is on the loopback interface, and wants the certificate of this cluster."""
    before = _listening()
    with connected(EngineOptions("dask", workers=1, dashboard=dashboard), print) as client:
        client.wait_for_workers(1)
        listening = _listening() - before
        assert len(listening) >= 3  # of the scheduler, its worker and its web server
        assert {address.ip for address in listening} == {"127.0.0.1"}
        address = client.scheduler.address
        assert address.startswith("tls://")
        plain = address.replace("tls://", "tcp://")
        stranger = distributed.Security.temporary()
        for wrong, security in [(plain, None), (address, stranger)]:
            with pytest.raises(OSError):
                distributed.Client(wrong, timeout=2, security=security, set_as_default=False)
        for port in {address.port for address in listening}:
            answer = _get(f"http://127.0.0.1:{port}/info/main/workers.html")
            assert "127.0.0.1" not in answer or dashboard
        with (
            pytest.raises(HeatproofError, match="needs certificates"),
            connected(EngineOptions("dask", address=address), print),
        ):
            pass


def _listening() -> set:
    """Return the addresses at which this process and those it has started can be reached."""
    this = psutil.Process()
    processes = [this, *this.children(recursive=True)]
    sockets = [s for p in processes for s in p.net_connections("inet")]
    return {s.laddr for s in sockets if s.status == psutil.CONN_LISTEN}


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.read().decode()
    except (OSError, http.client.HTTPException):
        return ""


def test_an_open_cluster_is_warned_of():
    cluster = distributed.LocalCluster(
        n_workers=0, processes=False, protocol="tcp://", dashboard_address="127.0.0.1:0"
    )
    with cluster:
        address = cluster.scheduler_address
        with (
            pytest.warns(UserWarning, match="are not encrypted: whoever can reach them can run"),
            connected(EngineOptions("dask", address=address), print),
        ):
            pass
        with connected(EngineOptions("dask", address=address, insecure=True), print):
            pass


@pytest.mark.soak
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="the system has no SIGSTOP")
def test_a_worker_that_hangs_is_replaced_within_a_minute(code, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "dask"
    command = [sys.executable, tmp_path / "script.py", repr(SLOW), out]
    client = subprocess.Popen(command, env={**os.environ, "SLOW_WORKERS": "1"})
    wait_until(lambda: list(out.glob("parts/*/*")) or list(out.glob("rows/*")))
    tree = psutil.Process(client.pid).children(recursive=True)
    workers = [p for p in tree if "spawn_main" in " ".join(p.cmdline())]
    workers[0].suspend()
    psutil.wait_procs(workers[:1], timeout=60)
    assert not workers[0].is_running()
    assert client.wait(120) == 0
    assert_same(hp.run(SLOW, tmp_path / "local"), hp.Result.load(out))


def test_a_cluster_is_described_in_a_file(code, tmp_path):
    spec = spec_of(["ixg"], data={"name": "paperbirds", "limit": 4})
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "class: distributed.LocalCluster\n"
        'n_workers: 0\nthreads_per_worker: 1\nprocesses: false\ndashboard_address: ":0"\n'
        "workers: 1\n"
    )
    dask = hp.run(spec, tmp_path / "dask", engine="dask", cluster=file)
    assert_same(hp.run(spec, tmp_path / "local"), dask)
    problems = {
        "queue: gpu": "names no class",
        "class: distributed.Locel": "there is no class of cluster distributed.Locel",
        "class: SLURMClustre": "pip install dask-jobqueue",
        "class: LocalCluster\nqueues: 1": "cannot be started",
    }
    for content, message in problems.items():
        file.write_text(content)
        with pytest.raises(HeatproofError, match=message):
            hp.run(spec, tmp_path / "other", engine="dask", cluster=file)
    with pytest.raises(HeatproofError, match="there is no file"):
        hp.run(spec, tmp_path / "other", engine="dask", cluster=tmp_path / "none.yaml")
    with pytest.raises(HeatproofError, match="no Dask scheduler at nowhere"):
        hp.run(spec, tmp_path / "other", engine="dask", address="nowhere")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the name of the loopback interface is Linux's")
def test_a_cluster_of_dask_jobqueue_computes_a_run(code, tmp_path):
    """Its class for this machine differs from that for Slurm in how a job is submitted only."""
    pytest.importorskip("dask_jobqueue")
    spec = spec_of(["ixg"], data={"name": "paperbirds", "limit": 70})
    file = tmp_path / "cluster.yaml"
    options = {"cores": 1, "processes": 1, "memory": "2GB", "jobs": 2}
    options |= {"class": "dask_jobqueue.local.LocalCluster", "local_directory": str(tmp_path)}
    options |= {"log_directory": str(tmp_path), "scheduler_options": {"dashboard_address": ":0"}}
    options |= {"interface": "lo", "security": True, "protocol": "tls://"}
    options |= {"shared_temp_directory": str(tmp_path)}
    file.write_text(yaml.safe_dump(options))
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    command = ["-m", "heatproof", "run", tmp_path / "spec.yaml", "--no-report"]
    command += ["--engine", "dask", "--cluster", file, "-o", tmp_path / "dask"]
    client = Forked(command, tmp_path / "log")
    assert client.wait() == 0, client.text
    assert_same(hp.run(spec, tmp_path / "local"), hp.Result.load(tmp_path / "dask"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "dask", "dashboard": True, "address": "tcp://a:1"}, "dashboard goes with"),
        ({"insecure": True}, "insecure goes with the engine dask"),
        ({"engine": "ray"}, "engine"),
        ({"workers": 2}, "workers goes with the engine dask"),
        ({"engine": "dask", "workers": 2, "address": "tcp://a:1"}, "different places"),
        ({"engine": "dask", "workers": 0}, "at least 1"),
        ({"engine": "dask", "threads": 0}, "at least 1"),
        ({"engine": "dask", "gpus": 2}, "one GPU"),
        ({"engine": "dask", "gpus": 1, "address": "tcp://a:1"}, "decides itself"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(HeatproofError, match=message):
        EngineOptions(**options).check()


def test_every_worker_has_its_own_gpu(monkeypatch):
    assert choose_gpus(None, 3, None) == ["0", "1", "2"]
    assert choose_gpus(2, 3, "5,7,GPU-1a") == ["5", "7"]
    with pytest.raises(HeatproofError, match="PyTorch sees 1"):
        choose_gpus(2, 1, None)
    with pytest.raises(HeatproofError, match="PyTorch sees 0"):
        choose_gpus(None, 0, None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = signal.getsignal(signal.SIGINT)
    try:
        prepare_worker(1, ["5", "7"])
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"
    finally:
        signal.signal(signal.SIGINT, before)


def test_moved_code_has_the_same_name_and_hash(code, tmp_path):
    expression = make_spec(SPEC).expressions()[3]
    files = collect_code(["file:net.py:build"])
    assert [(file.name, sorted(file.parts)) for file in files] == [
        ("net.py", ["net.py", "widths.py"])
    ]
    assert collect_code(["file:other.py:build"]) == []
    for file in code.glob("*.py"):
        file.unlink()
    with moved_code(files, tmp_path / "copies"):
        assert make_spec(SPEC).expressions()[3].canonical == expression.canonical
    with pytest.raises(HeatproofError, match="there is no file"):
        make_spec(SPEC)
    files[0].parts["net.py"] = b"broken"
    with (
        pytest.raises(HeatproofError, match="damaged on its way"),
        moved_code(files, tmp_path / "others"),
    ):
        pass
