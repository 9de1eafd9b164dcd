"""Kill runs at random moments, continue them, and compare the bytes with a run in one go.

    make soak
    python benchmarks/kills.py --kills 50

Half of the runs are local, half have two Dask workers; the victim is the command, or one of its
workers. Prints how many kills hit what, and fails if a finished run differs in any byte of its
rows or tensors, or has a row less or twice.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
import yaml
from engines import differences

from heatproof.bench.store import Store

SPEC = {
    "models": ["paperbirds/resnet"],
    "data": {"name": "paperbirds", "split": "test", "limit": 48},
    "methods": ["ixg", "ig(steps=16)", "gradcam", "lime(masks=128)", "random"],
    "protocols": [{"name": "sds", "patches": 16, "baseline": ["zero", "blur"]}, "deletion"],
    "batch_size": 8,
    "keep_maps": 8,
}
ENGINES: dict[str, list[str]] = {"local": [], "dask": ["--engine", "dask", "--workers", "2"]}
LONGEST = 600.0  # seconds that a command may take before it counts as hung


def start(spec: Path, out: Path, engine: str) -> psutil.Popen:
    """Start the command that begins or continues a run."""
    command = [sys.executable, "-m", "heatproof", "run", str(spec), "-o", str(out), "--no-report"]
    with (out.parent / f"{out.name}.log").open("ab") as log:
        return psutil.Popen([*command, *ENGINES[engine]], stdout=log, stderr=log)


def choose_victim(rng: random.Random, process: psutil.Popen) -> tuple[str, psutil.Process]:
    """Return the command itself, or one of its workers."""
    children = process.children(recursive=True)
    if children and rng.random() < 0.5:
        return "worker", rng.choice(children)
    return "command", process


def wait(process: psutil.Popen, seconds: float) -> bool:
    """Return whether a process has ended within some seconds."""
    try:
        process.wait(seconds)
    except psutil.TimeoutExpired:
        return False
    return True


def kill_once(rng: random.Random, process: psutil.Popen, seconds: float) -> str:
    """Kill a part of a command after some seconds, and return what it was; "" if it has ended."""
    if wait(process, rng.uniform(0, seconds)):
        return ""
    try:
        name, victim = choose_victim(rng, process)
        victim.kill()
    except psutil.NoSuchProcess:
        return ""
    if name == "command":
        process.wait()
    return name


def check(reference: Store, out: Path) -> list[str]:
    """Return what is different between a finished run and one that was never killed."""
    store = Store(out)
    columns = ["model", "method", "protocol", "sample", "metric"]
    ours, theirs = (s.rows() for s in (store, reference))
    problems = differences(reference, store)
    if len(ours) != len(theirs):
        problems.append(f"{len(ours)} rows instead of {len(theirs)}")
    keys = [name for name in ours.columns if name in columns or name.startswith("setting")]
    if ours.duplicated(keys).sum() != theirs.duplicated(keys).sum():
        problems.append("rows that are there twice")
    return problems


def kill_runs(folder: Path, kills: int, rng: random.Random) -> Counter[str]:
    """Kill and continue runs until there were enough kills; every run is finished and compared."""
    spec = folder / "spec.yaml"
    spec.write_text(yaml.safe_dump(SPEC))
    started = time.perf_counter()
    if start(spec, folder / "reference", "local").wait(LONGEST):
        sys.exit((folder / "reference.log").read_text())
    seconds = time.perf_counter() - started
    reference = Store(folder / "reference")
    count: Counter[str] = Counter()
    number = 0
    while count["kills"] < kills:
        engine = list(ENGINES)[number % len(ENGINES)]
        out = folder / f"{engine}-{number}"
        for _ in range(rng.randint(2, 6)):
            process = start(spec, out, engine)
            if victim := kill_once(rng, process, seconds * (1.0 if engine == "local" else 1.5)):
                count["kills"] += 1
                count[f"{engine}: {victim}"] += 1
            if not wait(process, LONGEST):
                process.kill()
                sys.exit(f"a command hung; see {out}.log")
        process = start(spec, out, engine)
        if not wait(process, LONGEST) or process.returncode:
            sys.exit((folder / f"{out.name}.log").read_text())
        if problems := check(reference, out):
            sys.exit(f"{out}: {', '.join(problems)}")
        number += 1
        count["runs"] += 1
        print(f"{count['kills']} kills, {count['runs']} runs finished and compared", flush=True)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heatproof-kills-") as folder:
        count = kill_runs(Path(folder), args.kills, random.Random(args.seed))
    for name, value in sorted(count.items()):
        print(f"{name:>20}  {value}")
    print("every finished run has the bytes of a run that was never killed")


if __name__ == "__main__":
    main()
