"""`make bench`: all comparisons in one go; writes results.json and docs/benchmarks.md.

Every case of `cases.py` runs in a process of its own. `--check` compares with the committed
results instead and exits with 1 if a ratio is more than 15 % worse; a case that seems worse is run
once more, and the better of its two results counts.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"
PLOT = ROOT / "docs" / "img" / "speed-growth.svg"
PACKAGES = (
    "torch",
    "openvino",
    "captum",
    "quantus",
    "grad-cam",
    "torchcam",
    "scipy",
)
LOSS = 0.15  # of a committed ratio
SECONDS = 1800  # that a case may take
Result = dict[str, Any]


def run_case(name: str, quick: bool) -> Result:
    """Run a case in a new process.

    Returns:
        Its ratios, growths, peak memory and time; ``error`` if it failed.
    """
    command = [sys.executable, __file__, "--case", name, *(["--quick"] if quick else [])]
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"it took more than {SECONDS} s"}
    if done.returncode:
        return {"error": (done.stderr.strip() or "it failed").splitlines()[-1]}
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result | {"seconds": round(time.perf_counter() - begin, 1)}


def print_case(name: str, quick: bool) -> None:
    """Compute a case in this process, and print it as JSON."""
    import warnings

    from cases import CASES, Growth

    from heatproof.platform import peak_memory

    warnings.simplefilter("ignore")
    found = list(CASES[name](quick))
    ratios = [entry._asdict() for entry in found if not isinstance(entry, Growth)]
    growths = [entry._asdict() for entry in found if isinstance(entry, Growth)]
    memory = peak_memory()
    gib = None if memory is None else round(memory / 2**30, 2)
    print(json.dumps({"ratios": ratios, "growths": growths, "memory": gib}))


def machine() -> Result:
    """Return what the times depend on."""
    import torch

    from heatproof.platform import cpu_name

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "processor": cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "clock": os.environ.get("HEATPROOF_CLOCK", "wall"),
        "python": platform.python_version(),
        "versions": versions,
    }


def ratios_of(results: Result) -> dict[str, Result]:
    """Return all ratios by name."""
    cases = results.get("cases", {}).values()
    return {ratio["name"]: ratio for case in cases for ratio in case.get("ratios", [])}


def loss(before: Result, now: Result) -> float:
    """Return by which fraction a ratio is worse than before; negative if it is better."""
    if before["better"] == "higher":
        return float(1 - now["value"] / before["value"])
    return float(now["value"] / before["value"] - 1)


def losses(before: Result, now: Result) -> dict[str, str]:
    """Return the ratios that are worse than before by more than ``LOSS``, and how much."""
    found = {}
    current = ratios_of(now)
    for name, old in ratios_of(before).items():
        if name not in current:
            found[name] = f"{name}: {old['value']:.2f} before, missing now"
        elif loss(old, current[name]) > LOSS:
            new = current[name]["value"]
            found[name] = f"{name}: {old['value']:.2f} before, {new:.2f} now"
    return found


def missed(results: Result) -> list[str]:
    """Return the ratios that do not reach their goals."""
    return [
        f"{ratio['name']}: {ratio['value']:.2f}, goal {ratio['goal']:g}"
        for ratio in ratios_of(results).values()
        if ratio["goal"] is not None and not reached(ratio)
    ]


def reached(ratio: Result) -> bool:
    """Return whether a ratio reaches its goal."""
    if ratio["better"] == "higher":
        return bool(ratio["value"] >= ratio["goal"])
    return bool(ratio["value"] <= ratio["goal"])


def measure(names: Iterable[str], quick: bool) -> Result:
    """Run cases, printing each result as it comes."""
    cases = {}
    for name in names:
        cases[name] = run_case(name, quick)
        case = cases[name]
        if "error" in case:
            print(f"{name}: {case['error']}", flush=True)
            continue
        print(f"{name} ({case['seconds']:.0f} s, {case['memory']} GiB)", flush=True)
        for ratio in case["ratios"]:
            print(f"  {ratio['name']:40} {ratio['value']:6.2f}   {ratio['detail']}", flush=True)
    return {"machine": machine(), "cases": cases}


def check(names: Sequence[str], quick: bool, before: Result) -> list[str]:
    """Return what is worse than the committed results; what seems worse is measured twice."""
    committed = {name: case for name, case in before["cases"].items() if name in names}
    before = before | {"cases": committed}
    now = measure(committed, quick)
    suspects = losses(before, now)
    again = [
        name
        for name, case in committed.items()
        if any(ratio["name"] in suspects for ratio in case.get("ratios", []))
    ]
    if again:
        print("again, as it seems slower:")
        second = measure(again, quick)
        worse = losses(before | {"cases": {n: committed[n] for n in again}}, second)
        suspects = {name: text for name, text in worse.items() if name in suspects}
    for key in ("processor", "threads", "clock"):
        if before["machine"][key] != now["machine"][key]:
            print(f"note: the committed ratios are of another {key}: {before['machine'][key]}")
    return list(suspects.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a ResNet-18 and few repeats")
    parser.add_argument("--check", action="store_true", help="compare with the committed results")
    parser.add_argument("--page", action="store_true", help="only write docs/benchmarks.md anew")
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: CPU time, for a busy machine; best with OMP_NUM_THREADS=1",
    )
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", help="by default all")
    options = parser.parse_args()
    if options.case:
        print_case(options.case, options.quick)
        return 0
    os.environ["HEATPROOF_CLOCK"] = options.clock
    kind = "quick" if options.quick else "full"
    stored: Result = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    if options.page:
        write_page(stored)
        return 0
    from cases import CASES

    names = options.cases or list(CASES)
    if options.check:
        if kind not in stored:
            sys.exit(f"{RESULTS} has no {kind} results; run this without --check first")
        worse = check(names, options.quick, stored[kind])
        print("\n".join(["worse by more than 15 %:", *worse]) if worse else "nothing is worse")
        return 1 if worse else 0
    found = measure(names, options.quick)
    before = stored.get(kind, {}).get("cases", {})
    stored[kind] = found | {"cases": {**before, **found["cases"]}}
    content = json.dumps(stored, indent=1, ensure_ascii=False) + "\n"
    RESULTS.write_text(content, encoding="utf-8")
    write_page(stored)
    for text in missed(found):
        print(f"goal not reached: {text}")
    return 1 if any("error" in case for case in found["cases"].values()) else 0


def write_page(results: Result) -> None:
    """Write docs/benchmarks.md and its figure from the results."""
    from page import benchmark_page, growth_plot, growths_of

    PAGE.write_text(benchmark_page(results), encoding="utf-8")
    growths = growths_of(results)
    if growths:
        growth_plot(growths, PLOT)


if __name__ == "__main__":
    sys.exit(main())
