"""Engines: the bytes and the speed of Dask workers, and what the local engine costs.

``--check`` (``make engines``) compares a small run of two workers with a local one, byte for byte.
Otherwise prints ratios, in about three minutes on two quiet cores: the local engine over what its
tasks compute, one worker over two, and what two processes without any engine reach, which share
caches, memory and clock rate: no engine can do better.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import distributed
import torch
from timing import in_turn

import heatproof as hp
from heatproof.execute.engines.base import EngineOptions, make_engine
from heatproof.execute.run_plan import run_plan
from heatproof.execute.runner import Watcher, execute
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import Spec, load_spec, make_spec
from heatproof.runs.store import Store

SPEC = {
    "models": ["paperbirds/resnet"],
    "data": {"name": "paperbirds", "split": "test", "limit": 512},
    "methods": ["saliency", "ixg", "gradcam", "random"],
    "protocols": [{"name": "sds", "patches": 16, "baseline": "zero"}],
    "keep_maps": 0,
}
# As many methods as people compare. The first pass of a batch counts as part of the engine.
COMPARED = SPEC | {
    "methods": ["saliency", "ixg", "ig", "ig-u", "gradcam", "layercam", "edges", "random"],
    "protocols": [{"name": "sds", "patches": 16, "baseline": ["zero", "blur"]}],
}


def differences(one: Store, other: Store) -> list[str]:
    """Return the tasks whose rows or tensors are not the same bytes in two run directories."""
    found = []
    for task in one.plan().tasks:
        rows = [store.manifest(task.name).files["rows"].sha256 for store in (one, other)]
        ours, theirs = (store.tensors(task.name).tensors for store in (one, other))
        same = ours.keys() == theirs.keys() and all(
            ours[key].numpy().tobytes() == theirs[key].numpy().tobytes() for key in ours
        )
        if rows[0] != rows[1] or not same:
            found.append(task.name)
    return found


def check(limit: int) -> None:
    """Exit with 1 if two workers do not write the bytes of a local run."""
    spec = load_spec("quickstart", limit=limit)
    with tempfile.TemporaryDirectory() as folder:
        local = hp.run(spec, Path(folder) / "local")
        dask = hp.run(spec, Path(folder) / "dask", engine="dask", workers=2, progress=True)
        different = differences(local.store, dask.store)
        rows = len(local.scores)
    if different:
        sys.exit(f"two workers differ from a local run in {', '.join(different)}")
    print(f"two workers wrote the same {rows:,} rows as a local run, bit for bit")


def run_on(spec: Spec, address: str) -> None:
    plan = open_spec(spec)
    engine = make_engine(EngineOptions("dask", address=address, insecure=True), spec)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        run_plan(plan, store, spec.identity(), spec.as_dict(), engine=engine)


def cluster_of(workers: int) -> distributed.LocalCluster:
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=":0"
    )


def speed(spec: Spec, repeats: int) -> None:
    """Compare one single-threaded worker with two; both have opened the spec before."""
    with cluster_of(1) as one, cluster_of(2) as two:
        slow, fast = in_turn(
            lambda: run_on(spec, one.scheduler_address),
            lambda: run_on(spec, two.scheduler_address),
            repeats=repeats,
        )
    print(f"  one worker / two workers, {os.cpu_count()} cores         {slow.wall / fast.wall:.2f}")
    print(f"    ({slow.wall:.1f} s / {fast.wall:.1f} s, of which this process {fast.cpu:.1f} s)")


def limit_of_speed(limit: int) -> None:
    """Compare processes that compute alone with two at the same time, without an engine."""
    gain = 2 * _computed_at_once(limit, 1) / _computed_at_once(limit, 2)
    print(f"  two processes without an engine             {gain:.2f}", flush=True)


def _computed_at_once(limit: int, count: int) -> float:
    """Return the seconds that some processes take for a task each."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(count)
    seconds = context.SimpleQueue()
    processes = [
        context.Process(target=_compute, args=(limit, ready.wait, seconds.put))
        for _ in range(count)
    ]
    for process in processes:
        process.start()
    longest = max(seconds.get() for _ in processes)
    for process in processes:
        process.join()
    return longest


def _compute(limit: int, wait: Callable[[], object], put: Callable[[float], object]) -> None:
    torch.set_num_threads(1)
    plan = open_spec(make_spec(SPEC, limit=limit))
    with tempfile.TemporaryDirectory() as folder:
        wait()
        begin = time.perf_counter()
        execute(plan, Store(Path(folder)), Watcher())
        put(time.perf_counter() - begin)


def overhead(spec: Spec, repeats: int) -> None:
    """Compare the wall time of local runs with the time that their tasks spend on maps and scores.

    The rest is the engine: images are loaded, rows collected and files written. The first pass of
    each batch, which no method causes, counts as part of the engine.
    """
    plan = open_spec(spec)
    ratios = []
    for _ in range(repeats + 1):
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder))
            begin = time.perf_counter()
            execute(plan, store, Watcher())
            wall = time.perf_counter() - begin
            timings = [store.timings(task.name) for task in plan.tasks]
        computed = sum(entry.seconds for timing in timings if timing for entry in timing.seconds)
        ratios.append(wall / computed)
    middle = statistics.median(ratios[1:])
    print(f"  local run / its maps and scores             {middle:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare bytes")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    if options.check:
        check(options.limit or 16)
        return
    torch.set_num_threads(1)
    spec = make_spec(SPEC, limit=options.limit)
    load = os.getloadavg()[0]
    print(
        f"paperbirds/resnet, {spec.data.limit} images; load before the start: {load:.1f}",
        flush=True,
    )
    overhead(make_spec(COMPARED, limit=64), options.repeats)
    limit_of_speed(128)
    speed(spec, options.repeats)


if __name__ == "__main__":
    main()
