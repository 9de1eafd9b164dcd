"""Two hosts for real: network namespaces with a cable between them, and one directory in common.

Each host has its own network, name, working directory and cache; of the other's files it sees only
the shared directory. Namespaces, cable and mounts end with their processes, also if the test is
killed. The test is skipped where a user may not make them.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import yaml
from forked import Forked

import heatproof as hp

pytest.importorskip("distributed")

TOOLS = ("ip", "unshare", "nsenter", "mount", "hostname")
SECONDS = 300  # that a command may take, and after which the namespaces end by themselves
ADDRESSES = ("10.213.77.1", "10.213.77.2")  # within the namespaces only
NET = """
import socket
import time

import torch
from torch import nn

import heatproof as hp


def build():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 50)
    )
    return hp.Model(net.eval(), size=32, name="tiny")


def slow(model, x, target):
    print("computed on", socket.gethostname(), flush=True)
    time.sleep(1)  # so that both hosts have something to do
    return x[:, 0]
"""
SPEC = {
    "models": ["file:net.py:build"],
    "data": {"name": "paperbirds", "split": "test", "limit": 250},  # four tasks
    "methods": ["ixg", "file:net.py:slow"],
    "protocols": [{"name": "sds", "patches": 4, "baseline": ["zero", "mean"]}],
    "keep_maps": 4,
}


class Hosts:
    """Two hosts, each of which hides its directory from the other."""

    def __init__(self, root: Path):
        self.shared = root / "shared"
        self.shared.mkdir()
        self.folders = [root / "host0", root / "host1"]
        self.processes: list[subprocess.Popen] = []
        self.forked: list[Forked] = []
        for folder in self.folders:
            folder.mkdir()
        self._holders = [self._hold(number) for number in (0, 1)]
        ends = [f"hp{os.getpid()}{letter}" for letter in "ab"]
        pids = [str(holder.pid) for holder in self._holders]
        _call(
            "ip",
            "link",
            "add",
            ends[0],
            "netns",
            pids[0],
            *["type", "veth", "peer", "name"],
            ends[1],
            "netns",
            pids[1],
        )
        for number, (end, address) in enumerate(zip(ends, ADDRESSES, strict=True)):
            for command in (
                ["ip", "address", "add", f"{address}/30", "dev", end],
                ["ip", "link", "set", end, "up"],
                ["ip", "link", "set", "lo", "up"],
            ):
                _call(*self.on(number, *command))

    def _hold(self, number: int) -> subprocess.Popen:
        """Start a process with namespaces of its own."""
        other = self.folders[1 - number]
        script = (
            f'hostname host{number} && mount -t tmpfs none "$0" && echo up && exec sleep {SECONDS}'
        )
        command = ["unshare", "--net", "--uts", "--mount", "sh", "-c", script, str(other)]
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.processes.append(holder)
        if holder.stdout.readline() != "up\n":
            self.stop()
            pytest.skip("this user may not make namespaces")
        return holder

    def on(self, number: int, *command: str) -> list[str]:
        """Return a command that runs on a host, in its directory."""
        pid = str(self._holders[number].pid)
        spaces = ["--net", "--uts", "--mount", f"--wd={self.folders[number]}"]
        return ["nsenter", "--target", pid, *spaces, *command]

    def start(self, number: int, name: str, *command: str) -> Forked:
        """Start a Python module on a host, in its directory."""
        folder = self.folders[number]
        environment = {
            **os.environ,
            "HEATPROOF_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        log = folder / f"{name}.log"
        pid = self._holders[number].pid
        self.forked.append(Forked(["-m", *command], log, environment, folder, host=pid))
        return self.forked[-1]

    def stop(self) -> None:
        for forked in reversed(self.forked):
            forked.kill()
            forked.wait()
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        for process in self.processes:
            if process.stdout:
                process.stdout.close()


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if sys.platform != "linux" or os.geteuid() != 0 or not all(map(shutil.which, TOOLS)):
        pytest.skip("namespaces need Linux, root and iproute2")
    hosts = Hosts(tmp_path)
    try:
        yield hosts
    finally:
        hosts.stop()


@pytest.mark.slow
def test_two_hosts_write_the_bytes_of_a_local_run(hosts, tmp_path, monkeypatch):
    """The client's code and cache are where the other host does not see them."""
    author, other = hosts.folders
    (author / "net.py").write_text(NET)
    (author / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    address = f"tcp://{ADDRESSES[0]}:8786"
    scheduler = hosts.start(
        0,
        "scheduler",
        "distributed.cli.dask_scheduler",
        "--host",
        ADDRESSES[0],
        "--no-dashboard",
    )
    scheduler.wait_for("Scheduler at", SECONDS / 2)
    flags = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0"]
    workers = []
    for number, own in enumerate(ADDRESSES):
        worker = ["distributed.cli.dask_worker", address, "--host", own, *flags]
        workers.append(hosts.start(number, "worker", *worker, "--local-directory", "scratch"))
    for worker in workers:
        worker.wait_for("Registered to", SECONDS / 2)
    out = hosts.shared / "run"
    run = [
        "run",
        "spec.yaml",
        "--engine",
        "dask",
        "--address",
        address,
        "--insecure",
        "--no-report",
    ]
    client = hosts.start(0, "client", "heatproof", *run, "-o", str(out))
    assert client.wait(SECONDS) == 0, client.text
    for number, worker in enumerate(workers):
        lines = {line for line in worker.text.splitlines() if "computed on" in line}
        assert lines == {f"computed on host{number}"}
    assert list(other.glob("scratch/**/net.py"))  # the code has travelled

    monkeypatch.chdir(author)
    assert_same(hp.run(SPEC, tmp_path / "local"), hp.Result.load(out))


def assert_same(local: hp.Result, dask: hp.Result) -> None:
    pd.testing.assert_frame_equal(local.scores, dask.scores, check_exact=True)
    for task in local.store.plan().tasks:
        stores = (local.store, dask.store)
        rows, their_rows = (store.manifest(task.name).files["rows"].sha256 for store in stores)
        assert rows == their_rows
        ours, theirs = (store.tensors(task.name).tensors for store in stores)
        assert ours.keys() == theirs.keys()
        for key, values in ours.items():
            assert values.numpy().tobytes() == theirs[key].numpy().tobytes()
