"""Overhead of soundness, with imputation, over its bare forward passes and beside a sparse LU.

Prints ratios of times. Run it as `OMP_NUM_THREADS=2 python benchmarks/soundness.py --size 224`; on
a busy machine, use one thread and `--clock cpu`. `--memory N` measures what aggregating N samples
takes.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from functools import partial

import torch
from imputation import Assembly, by_arrays, by_lil_matrix
from scipy.sparse.linalg import spsolve
from timing import CLOCKS, seconds
from torch import Tensor

import heatproof as hp
from heatproof.analysis.soundness import at_levels
from heatproof.baselines.linear import linear_impute
from heatproof.platform import peak_memory
from heatproof.protocols import EvalBatch
from heatproof.protocols.soundness import Soundness
from heatproof.tensor.curves import removal_order
from heatproof.tensor.filters import gaussian, separable
from heatproof.tensor.noise import Rng, sample_ids


def pictures(count: int, channels: int, size: int, seed: int) -> Tensor:
    """Return noise at two scales."""
    noise = torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(seed))
    width = size // 8 * 2 + 1
    coarse = separable(noise, gaussian(width, width / 5), "reflect")
    return noise / 4 + coarse / coarse.std()


def compared(options: argparse.Namespace) -> None:
    clock = CLOCKS[options.clock]
    if options.size == 64:
        model = hp.load_model("paperbirds/resnet")
    else:
        model = hp.load_model("torchvision:resnet50", "random")
    model.batch_size = options.batch
    protocol = Soundness(step=options.step)
    x = pictures(options.images, 3, options.size, 0)
    coarse = pictures(options.images, 1, options.size, 1)[:, 0]
    kinds = {
        "contiguous": separable(coarse[:, None], gaussian(31, 8), "reflect")[:, 0],
        "scattered": torch.randn_like(coarse),
    }
    target = torch.zeros(len(x), dtype=torch.long)
    ids = sample_ids(None, len(x))
    clean = model.logits(x)
    steps = len(protocol.missing)
    rows = x.repeat_interleave(steps, 0)

    def bare_passes() -> None:
        for part in rows.split(model.batch_size):
            model.logits(part)

    print(
        f"{model.name}, {options.size} px, {len(x)} images, {steps} fractions, "
        f"{torch.get_num_threads()} threads, {options.clock} time"
    )
    for kind, maps in kinds.items():
        maps = maps - maps.flatten(1).amin(1)[:, None, None]
        whole_times = []
        bare_times = []
        for _ in range(options.repeats):
            batch = EvalBatch(ids, x, target, clean, Rng(0, ids))
            score = partial(protocol.score_maps, model, batch, {}, maps)
            whole_times.append(seconds(score, clock))
            bare_times.append(seconds(bare_passes, clock))
        whole = statistics.median(whole_times)
        bare = statistics.median(bare_times)
        ours, arrays, lil = imputed(x, maps, protocol, clock)
        print(
            f"  {kind:10}  soundness / bare forwards {whole / bare:5.2f}   "
            f"({bare / len(rows) * 1000:.1f} ms per forward)   "
            f"arrays + LU / ours {arrays / ours:4.1f}, lil_matrix + LU / ours {lil / ours:4.1f}",
            flush=True,
        )


def imputed(
    x: Tensor, maps: Tensor, protocol: Soundness, clock: Callable[[], float]
) -> tuple[float, float, float]:
    """Time imputation alone, at five of the fractions.

    Returns:
        Seconds of ours, and of solving image by image with matrices assembled in two ways.
    """
    ranks = removal_order(maps)
    pixels = maps[0].numel()
    fractions = protocol.missing[:: max(1, len(protocol.missing) // 5)]
    removed = torch.cat([ranks >= pixels - int(fraction * pixels) for fraction in fractions])
    images = x.repeat(len(fractions), 1, 1, 1)
    rng = Rng(0, sample_ids(None, len(x)) * len(fractions))

    def solved(assemble: Assembly) -> None:
        for image, mask in zip(images, removed, strict=True):
            spsolve(*assemble(image.numpy(), mask.numpy()))

    ours = seconds(lambda: linear_impute(images, removed, rng=rng), clock)
    return (
        ours,
        seconds(lambda: solved(by_arrays), clock),
        seconds(lambda: solved(by_lil_matrix), clock),
    )


def memory(options: argparse.Namespace) -> None:
    """Print how the peak memory grows with all samples, and with 2000 draws at 19 levels."""
    protocol = Soundness()
    clock = CLOCKS[options.clock]
    steps = len(protocol.missing)
    before = peak_megabytes()
    draw = torch.Generator().manual_seed(0)
    start = torch.randint(0, steps + 20, (options.memory, 1), generator=draw)
    score = (torch.arange(steps) >= start).float()
    mass = torch.rand(options.memory, steps, generator=draw)
    kept = (score.nbytes + mass.nbytes) / options.memory
    spent = seconds(lambda: protocol.aggregate({"score": score, "mass": mass}), clock)
    middle = peak_megabytes()
    drawn = seconds(lambda: at_levels(protocol, score.numpy(), mass.numpy()), clock)
    after = peak_megabytes()
    print(
        f"{options.memory} samples: {kept:.0f} bytes each; aggregated in {spent:.2f} s, "
        f"{middle - before:.0f} MB more; levels with intervals in {drawn:.0f} s, "
        f"{after - before:.0f} MB more"
    )


def peak_megabytes() -> float:
    """Return the peak memory of this process in MiB; NaN if the system does not report it."""
    memory = peak_memory()
    return math.nan if memory is None else memory / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, choices=[64, 224], default=64)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--step", type=float, default=0.01)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument(
        "--memory", type=int, default=0, help="only measure memory, for this number of samples"
    )
    options = parser.parse_args()
    if options.memory:
        memory(options)
    else:
        compared(options)


if __name__ == "__main__":
    main()
