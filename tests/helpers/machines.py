"""A scheduler and workers of Dask in processes of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from forked import Forked


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


class Machine:
    """A scheduler process, and worker processes that have nothing in common but the disk."""

    def __init__(self, root: Path):
        self.root = root
        self.address = ""
        self.processes: list[Forked] = []

    def start(self, workers: int) -> None:
        file = self.root / "scheduler.json"
        options = ["--port", "0", "--dashboard-address", ":0", "--scheduler-file", str(file)]
        self._start("scheduler", "dask_scheduler", options)
        wait_until(file.is_file)
        wait_until(lambda: "tcp://" in file.read_text())
        self.address = file.read_text().split('"address": "')[1].split('"')[0]
        for number in range(workers):
            own = self.root / f"host{number}"
            flags = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0"]
            flags += ["--local-directory", str(own / "scratch"), self.address]
            self._start(own.name, "dask_worker", flags)

    def _start(self, name: str, module: str, options: list[str]) -> None:
        folder = self.root / name
        folder.mkdir(parents=True)
        environment = {**os.environ, "HEATPROOF_CACHE": str(folder), "TMPDIR": str(folder)}
        environment["SLOW_WORKERS"] = "1"
        command = ["-m", f"distributed.cli.{module}", *options]
        self.processes.append(Forked(command, folder / "log", environment, folder))

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
