"""Kill runs at random moments, continue them, and compare the bytes with a run in one go.

    make soak
    python benchmarks/kills.py --kills 50
    python benchmarks/kills.py --kills 12 --at s3://bucket/kills

A victim dies by SIGKILL: the command of a local run; the command, a worker or the scheduler of a
run on Dask; and, now and then, the command ``--engine dask --workers 2`` or one of the processes
that it has started. Half of the kills come at any moment, the others in the middle of writing a
file. What a killed command leaves behind (workers that are still computing, temporary files) stays,
and the same command continues at once.

All processes but those of ``--workers`` are forked from this one, which has imported everything: a
run takes seconds, and parts of unfinished tasks are written several times per second.

Prints how many kills hit what. Fails if a command hangs, or if a finished run differs from one that
was never killed in any byte of its rows or tensors, or has a row less or twice.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import distributed
import psutil
import torch
import yaml
from engines import differences

import heatproof as hp
from heatproof.cli import main as command_line
from heatproof.execute import blocks as cut
from heatproof.runs.addresses import to_read
from heatproof.runs.run import Run
from heatproof.runs.store import Store

SPEC = {
    "models": ["paperbirds/resnet"],
    "data": {"name": "paperbirds", "split": "test", "limit": 136},  # three tasks
    "methods": ["ixg", "ig(steps=2)", "gradcam", "random"],
    "protocols": [{"name": "sds", "patches": 4, "baseline": ["zero", "mean"]}, "deletion(steps=2)"],
    "batch_size": 8,
    "keep_maps": 8,
}
PART_SECONDS = 0.2  # between two parts of a task, instead of a minute
LONGEST = 180.0  # seconds that a command may take before it counts as hung
KINDS = ("local", "dask", "local", "dask", "local", "dask", "dask", "--workers 2")


@dataclass(frozen=True)
class Death:
    """Which process is killed, and when: after some seconds, or at some write."""

    victim: str
    seconds: float = 0.0
    write: int = 0

    @property
    def moment(self) -> str:
        return "while it writes" if self.write else "at any moment"


@dataclass
class Reference:
    """A run that was never killed, what it took, and how often a file or directory was flushed."""

    store: Store
    seconds: float
    writes: int


@dataclass
class Attempt:
    """The processes of one attempt to finish a run: the command, and what serves it."""

    processes: dict[str, BaseProcess | psutil.Popen] = field(default_factory=dict)

    @property
    def command(self) -> BaseProcess | psutil.Popen:
        return self.processes["command"]


class Killer:
    """Starts, kills and continues runs."""

    def __init__(self, folder: Path, rng: random.Random, at: str):
        self._folder = folder
        self._at = at
        self._rng = rng
        self._fork = multiprocessing.get_context("fork")
        self._attempts: list[Attempt] = []
        self._spec = folder / "spec.yaml"
        self._spec.write_text(yaml.safe_dump(SPEC))

    def reference(self) -> Reference:
        """Run the spec in one go, and count what a kill can hit."""
        writes = self._fork.Value("i", 0)
        root = self._folder / "reference"
        begin = time.perf_counter()
        process = self._fork_process("reference", _run_counted, writes, self._arguments(str(root)))
        if not ended(process, LONGEST) or process.exitcode:
            sys.exit((self._folder / "reference.log").read_text())
        return Reference(Store(root), time.perf_counter() - begin, writes.value)

    def attempt(self, kind: str, out: Path, death: Death | None) -> bool:
        """Start or continue a run, and kill a part of it; return whether something was killed."""
        attempt = Attempt()
        self._attempts.append(attempt)
        name = out.name
        arguments = self._arguments(self.location(name))
        if kind == "--workers 2":
            arguments += ["--engine", "dask", "--workers", "2"]
            with (self._folder / f"{name}.log").open("ab") as log:
                command = [sys.executable, "-m", "heatproof", *arguments]
                attempt.processes["command"] = psutil.Popen(command, stdout=log, stderr=log)
            return death is not None and self._kill_later(attempt, death)
        dies_at = {death.victim: death.write} if death else {}
        if kind == "dask":
            address = self._start_cluster(attempt, out, dies_at)
            arguments += ["--engine", "dask", "--address", address, "--insecure"]
        attempt.processes["command"] = self._fork_process(
            name, _run, arguments, dies_at=dies_at.get("command", 0)
        )
        if death is None:
            return False
        if not death.write:
            return self._kill_later(attempt, death)
        victim = attempt.processes[death.victim]
        end = time.monotonic() + LONGEST
        while attempt.command.is_alive() and victim.is_alive() and time.monotonic() < end:
            time.sleep(0.02)
        victim.join(0.5)
        return victim.exitcode == -signal.SIGKILL

    def finish(self, out: Path) -> bool:
        """Wait for the command of the last attempt; return whether it has finished the run."""
        command = self._attempts[-1].command
        if not ended(command, LONGEST):
            self.stop()
            sys.exit(f"a command hung: {(self._folder / f'{out.name}.log').read_text()[-4000:]}")
        code = command.returncode if isinstance(command, psutil.Popen) else command.exitcode
        return code == 0

    def stop(self) -> None:
        """End what is left of all attempts."""
        for attempt in self._attempts:
            for process in attempt.processes.values():
                if isinstance(process, psutil.Popen):
                    with_children = [process]
                    if process.is_running():
                        with_children += process.children(recursive=True)
                    for each in with_children:
                        _kill(each)
                    process.wait()
                else:
                    process.kill()
                    process.join()
        self._attempts.clear()

    def location(self, name: str) -> str:
        """Return where a run is written to."""
        return f"{self._at or self._folder}/{name}"

    def _arguments(self, out: str) -> list[str]:
        return ["run", str(self._spec), "-o", out, "--no-report"]

    def _start_cluster(self, attempt: Attempt, out: Path, dies_at: dict[str, int]) -> str:
        """Start a scheduler and two workers, and return the address."""
        number = len(self._attempts)
        file = self._folder / f"{out.name}-{number}.address"
        attempt.processes["scheduler"] = self._fork_process(out.name, _schedule, file)
        end = time.monotonic() + LONGEST
        while not (file.is_file() and file.read_text().endswith("\n")):
            if time.monotonic() > end:
                sys.exit("the scheduler did not start")
            time.sleep(0.02)
        address = file.read_text().strip()
        for name in ("worker", "other worker"):
            scratch = self._folder / f"{out.name}-{number}-{name.replace(' ', '-')}"
            attempt.processes[name] = self._fork_process(
                out.name, _work, address, scratch, dies_at=dies_at.get(name, 0)
            )
        return address

    def _fork_process(
        self, name: str, target: Callable[..., None], *arguments: object, dies_at: int = 0
    ) -> BaseProcess:
        log = self._folder / f"{name}.log"
        process = self._fork.Process(target=_child, args=(log, dies_at, target, arguments))
        process.start()
        return process

    def _kill_later(self, attempt: Attempt, death: Death) -> bool:
        """Kill a victim after some seconds, unless the command has ended before."""
        if ended(attempt.command, death.seconds):
            return False
        victim = attempt.processes.get(death.victim)
        if victim is None:  # one of the processes that the command has started
            try:
                children = attempt.command.children(recursive=True)
            except psutil.NoSuchProcess:
                return False
            if not children:
                return False
            victim = self._rng.choice(children)
        return _kill(victim)


def _kill(process: BaseProcess | psutil.Process) -> bool:
    """Kill a process; return whether it was alive."""
    if isinstance(process, BaseProcess):
        alive = process.is_alive()
        process.kill()
        process.join()
        return alive
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def ended(process: BaseProcess | psutil.Popen, seconds: float) -> bool:
    """Return whether a process has ended within some seconds."""
    if isinstance(process, BaseProcess):
        process.join(seconds)
        return not process.is_alive()
    try:
        process.wait(seconds)
    except psutil.TimeoutExpired:
        return False
    return True


# In forked processes


def _child(log: Path, dies_at: int, target: Callable[..., None], arguments: tuple) -> None:
    """Call a function in a process of its own, which is killed at one of its writes."""
    os.setpgid(0, 0)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    cut.PART_SECONDS = PART_SECONDS
    if dies_at:
        _on_write(lambda number: number == dies_at and os.kill(os.getpid(), signal.SIGKILL))
    target(*arguments)


def _on_write(call: Callable[[int], object]) -> None:
    """Call a function with 1, 2, … before files and directories are flushed to disk."""
    flush = os.fsync
    count = 0

    def fsync(descriptor: int) -> None:
        nonlocal count
        count += 1
        call(count)
        flush(descriptor)

    os.fsync = fsync


def _run(arguments: list[str]) -> None:
    command_line(arguments, prog_name="heatproof")


def _run_counted(writes: object, arguments: list[str]) -> None:
    _on_write(lambda number: setattr(writes, "value", number))
    _run(arguments)


def _schedule(file: Path) -> None:
    async def serve() -> None:
        async with distributed.Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
            file.write_text(f"{scheduler.address}\n")
            await scheduler.finished()

    asyncio.run(serve())


def _work(address: str, scratch: Path) -> None:
    async def serve() -> None:
        options = {"nthreads": 1, "memory_limit": 0, "death_timeout": 20, "dashboard": False}
        async with distributed.Worker(address, local_directory=str(scratch), **options) as worker:
            await worker.finished()

    asyncio.run(serve())


# What is killed, and what must be the same


def choose_death(rng: random.Random, kind: str, reference: Reference) -> Death:
    """Choose a process of a run and a moment."""
    victims = {
        "local": ["command"],
        "dask": ["command", "worker", "scheduler"],
        "--workers 2": ["command", "child"],
    }
    victim = rng.choice(victims[kind])
    can_count = kind != "--workers 2" and victim != "scheduler"
    if can_count and rng.random() < 0.5:
        writes = reference.writes if victim == "command" and kind == "local" else 12
        return Death(victim, write=rng.randint(1, writes))
    longest = reference.seconds
    if kind != "local":
        longest *= 1.5
    if kind == "--workers 2":
        longest += 8.0  # to import everything
    return Death(victim, seconds=rng.uniform(0, longest))


def check(reference: Store, out: str) -> list[str]:
    """Return what is different between a finished run and one that was never killed."""
    store = Store(to_read(out, fresh=True))
    ours, theirs = (Run(s).rows for s in (store, reference))
    problems = differences(reference, store)
    if len(ours) != len(theirs):
        problems.append(f"{len(ours)} rows instead of {len(theirs)}")
    columns = ["model", "protocol", "setting", "baseline", "method", "sample"]
    if ours.duplicated(columns).any():
        problems.append("rows that are there twice")
    if store.damage:
        problems.append(f"damaged files: {store.damage}")
    return problems


def kill_runs(
    folder: Path, kills: int, rng: random.Random, kinds: tuple[str, ...], at: str = ""
) -> Counter[str]:
    """Kill and continue runs until there were enough kills; every run is finished and compared."""
    killer = Killer(folder, rng, at)
    reference = killer.reference()
    print(f"a run takes {reference.seconds:.1f} s and {reference.writes} flushes", flush=True)
    count: Counter[str] = Counter()
    while count["kills"] < kills:
        kind = kinds[count["runs"] % len(kinds)]
        out = folder / f"{kind.strip('-').replace(' ', '')}-{count['runs']}"
        try:
            finished = False
            for _ in range(rng.randint(2, 5)):
                death = choose_death(rng, kind, reference)
                if killer.attempt(kind, out, death):
                    count["kills"] += 1
                    count[f"{kind}: {death.victim}, {death.moment}"] += 1
                finished = killer.finish(out)
                if finished:
                    break
            if not finished:
                killer.attempt(kind, out, None)
                finished = killer.finish(out)
        finally:
            killer.stop()
        if not finished:
            sys.exit((folder / f"{out.name}.log").read_text())
        if problems := check(reference.store, killer.location(out.name)):
            sys.exit(f"{out}: {', '.join(problems)}")
        count["runs"] += 1
        print(f"{count['kills']} kills, {count['runs']} runs finished and compared", flush=True)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=sorted(set(KINDS)))
    parser.add_argument("--at", default="", help="an empty address, such as s3://bucket/kills")
    args = parser.parse_args()
    if not hasattr(os, "fork"):
        sys.exit("this system cannot fork processes")
    torch.set_num_threads(1)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="heatproof-kills-") as folder:
        hp.load_model("paperbirds/resnet")  # imports what models need
        kinds = tuple(args.kinds)
        count = kill_runs(Path(folder), args.kills, random.Random(args.seed), kinds, args.at)
    for name, value in sorted(count.items()):
        print(f"{name:>40}  {value}")
    seconds = time.perf_counter() - begin
    print(
        f"0 rows lost, 0 double: every finished run has the bytes of one that was never killed "
        f"({seconds:.0f} s)"
    )


if __name__ == "__main__":
    main()
