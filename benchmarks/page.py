"""docs/benchmarks.md: the results of `make bench` as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Result = dict[str, Any]
INTRODUCTION = """\
# Benchmarks

<!-- Written by `make bench`; do not edit. -->

heatproof beside other libraries, and beside the bare passes through the network that the same work
needs. Everything is measured in one run on one machine: calls alternate, and medians are divided.
What two libraries compute is checked to be equal first. Absolute times depend on the machine and
the moment; ratios much less. [Speed](speed.md) says what makes a run fast.

```bash
make bench          # all of it, about 20 minutes; writes this page
make bench-check    # the quick form; fails if a committed ratio is more than 15 % worse
```
"""
KINDS = {  # title and network
    "full": ("Results", "ResNet-50"),
    "quick": ("Quick results, which `make bench-check` compares with", "ResNet-18"),
}
CLOCKS = {"wall": "wall time", "cpu": "CPU time (the machine was busy)"}

LIMITS = """\
## What limits the ratios

Each was measured with a ResNet-50 at 224 px on two cores of an AMD EPYC with AVX-512. Other work
ran on the machine at times, so CPU time is given where it says so.

- **Passes.** In a quiet moment eager made 21.1 passes a second, `fused` 22.2 and `openvino` 25.7,
  which is 210 GFLOP/s; two streams or other batches changed that by 6 % at most. A library that
  runs eager PyTorch needs only 1.2 to 1.3 times as long for the same passes here. Curves that are
  several times as fast as Quantus' are for machines where eager is slow: on one it made 2.0 passes
  a second beside 10.5 of `openvino`.
- **ONNX Runtime** 1.31 took 0.72 s of CPU time for eight passes where `openvino` took 0.67 s, and
  0.44 s beside 0.50 s by the clock while other programs ran: no clear gain, so it is not among the
  backends.
- **Gradients** are eager, as Captum's. Sixteen of them on one thread took 3.25 s of CPU time in
  batches of 8, 2.99 to 3.52 s in batches of 16 to 2, 3.12 s with batch norms merged into
  convolutions, and 3.27 s with frozen parameters. On two threads torch.compile took a minute to
  compile and then 2.7 s of CPU time where eager took 2.5 s. None of this is worth other bytes than
  PyTorch's: a different rounding flips ReLUs. Channels last, which is what the table compares, is
  the faster layout for both: with a network as it is loaded, 20 steps of integrated gradients of
  two images took Captum 4.46 s, with channels last 4.15 s, and ours 4.20 s.
- **Linear imputation** (`road`, `completeness`, `soundness`) solves a linear system for every
  image, to 1e-5 of its range. Its loops are compiled by numba, for about eight seconds at the first
  use of an installation. They take 8 ms of CPU time beside 76 ms for a pass, and each thread solves
  an image of its own. A similar solver in PyTorch operations took 19 ms, and its threads waited for
  each other.
"""


def benchmark_page(results: Result) -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for kind, (title, network) in KINDS.items():
        if kind in results:
            parts += [f"## {title}\n", *_tables(results[kind], network)]
    parts.append(LIMITS)
    growths = growths_of(results)
    if growths:
        parts += ["## Growth\n", *_growth(growths)]
    return "\n".join(parts)


def growths_of(results: Result) -> list[Result]:
    """Return how times grow, by the full measurement if there is one."""
    for kind in KINDS:
        cases = results.get(kind, {}).get("cases", {}).values()
        found = [growth for case in cases for growth in case.get("growths", [])]
        if found:
            return found
    return []


def _tables(results: Result, network: str) -> Iterator[str]:
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    yield (
        f"{machine['processor']} ({machine['instructions']}), "
        f"{machine['threads']} {'thread' if machine['threads'] == 1 else 'threads'}, "
        f"{CLOCKS[machine['clock']]}, Python {machine['python']}, {versions}. {network} with "
        "random weights at 224 px, unless it says otherwise.\n"
    )
    yield "| | ratio | goal | |"
    yield "| --- | ---: | ---: | --- |"
    for case in results["cases"].values():
        for ratio in case.get("ratios", []):
            sign = "≥" if ratio["better"] == "higher" else "≤"
            goal = "" if ratio["goal"] is None else f"{sign} {ratio['goal']:g}"
            yield f"| {ratio['name']} | {ratio['value']:.2f} | {goal} | {ratio['detail']} |"
    yield ""
    peaks = [
        f"{name} {case['memory']} GiB"
        for name, case in results["cases"].items()
        if case.get("memory") is not None
    ]
    minutes = sum(case.get("seconds", 0) for case in results["cases"].values()) / 60
    yield (
        f"Peak memory of each case, other libraries included: {', '.join(peaks)}. "
        f"Measured in {minutes:.1f} minutes.\n"
    )


def _growth(growths: Sequence[Result]) -> Iterator[str]:
    yield "![The time of a run over images, methods, steps and pixels](img/speed-growth.svg)\n"
    yield "Deletion curves of the embedded ResNet (64 px), eager; seconds:\n"
    for growth in growths:
        pairs = zip(growth["sizes"], growth["seconds"], strict=True)
        times = ", ".join(f"{size:,}: {seconds:.2f}" for size, seconds in pairs)
        yield f"- {growth['name']}: {times}"
    yield ""


def growth_plot(growths: Sequence[Result], path: Path) -> None:
    """Draw how the time grows, each part relative to its smallest size, beside a straight line."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "heatproof"
    figure, axes = plt.subplots(figsize=(5.5, 3.8))
    largest = 1.0
    for growth in growths:
        sizes = [size / growth["sizes"][0] for size in growth["sizes"]]
        times = [seconds / growth["seconds"][0] for seconds in growth["seconds"]]
        axes.plot(sizes, times, "o-", label=growth["name"])
        largest = max(largest, sizes[-1])
    axes.plot([1, largest], [1, largest], "--", color="grey", label="proportional")
    axes.set(xscale="log", yscale="log", xlabel="size, × the smallest", ylabel="time, × the first")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
