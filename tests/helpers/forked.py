"""Python processes that start at once, since they are forked from one that has imported heatproof.

A new interpreter spends three seconds on importing heatproof, torch and pandas. Tests that need a
process to stop, kill or change, but not a new interpreter, take this one; ``forkserver`` does not
fork the process of the tests, which has threads.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path

import fsspec

SYSTEM_CAN_FORK = hasattr(os, "fork")
IMPORTED = [
    "heatproof.api",
    "heatproof.execute.engines.client",
    "heatproof.execute.engines.worker",
    "distributed.cli.dask_scheduler",
    "distributed.cli.dask_worker",
    "pyarrow.dataset",
    "torch.fx.experimental.symbolic_shapes",
]


def forking() -> BaseContext:
    """Return how processes are started: forked from one that has imported everything."""
    if not SYSTEM_CAN_FORK:
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


class Forked:
    """A process that runs what ``python`` with these arguments would run.

    Args:
        arguments: ``["-m", module, …]`` or ``[script, …]``.
        log: The file that its output and errors are written to.
        environment: Its environment, if not that of the tests.
        folder: Its working directory, if not that of the tests.
        host: A process whose network, host name and mounts it sees, if not those of the tests.
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        host: int | None = None,
    ):
        log.touch()
        self.log = log
        self._process = forking().Process(
            target=_run,
            args=(
                [str(argument) for argument in arguments],
                log,
                dict(os.environ if environment is None else environment),
                folder or Path.cwd(),
                host,
            ),
        )
        self._process.start()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def text(self) -> str:
        """What it has written so far."""
        return self.log.read_text(encoding="utf-8")

    def wait(self, seconds: float = 300) -> int:
        """Wait for its end, and return the exit code; that of a signal is negative."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"it did not end in time:\n{self.text}"
        return self._process.exitcode

    def wait_for(self, text: str, seconds: float = 300) -> None:
        """Wait until it has written a text."""
        end = time.monotonic() + seconds
        while text not in self.text:
            assert self._process.is_alive() and time.monotonic() < end, self.text
            time.sleep(0.05)

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def _run(
    arguments: list[str],
    log: Path,
    environment: dict[str, str],
    folder: Path,
    host: int | None,
) -> None:
    if host is not None:
        _move_to(host)
    os.environ.clear()
    os.environ.update(environment)
    fsspec.config.set_conf_env(fsspec.config.conf)  # which are read when it is imported
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # scripts in the background ignore it
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


def _move_to(host: int) -> None:
    """Let this process, which has one thread, see the network, name and mounts of another."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("net", "uts", "mnt"):
        descriptor = os.open(f"/proc/{host}/ns/{kind}", os.O_RDONLY)
        if libc.setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), f"cannot join the {kind} namespace of {host}")
        os.close(descriptor)
