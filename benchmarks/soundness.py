"""What soundness costs beyond its bare forward passes, imputation included, and beside a sparse LU for each image and ratio. Prints ratios.

`OMP_NUM_THREADS=2 python benchmarks/soundness.py --size 224`; where other work keeps the cores busy, take one thread and `--clock cpu`.
`--memory` adds up what a run of so many samples keeps to conclude from.
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Callable

import torch
from imputation import CLOCKS, Assembly, by_arrays, by_lil_matrix
from scipy.sparse.linalg import spsolve
from torch import Tensor

import heatproof as hp
from heatproof.analysis.soundness import at_levels
from heatproof.baselines.linear import linear_impute
from heatproof.protocols import EvalBatch
from heatproof.protocols.soundness import Soundness
from heatproof.tensor.curves import removal_order
from heatproof.tensor.filters import gaussian, separable
from heatproof.tensor.noise import Rng


def pictures(count: int, channels: int, size: int, seed: int) -> Tensor:
    """Noise at two scales."""
    noise = torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(seed))
    width = size // 8 * 2 + 1
    coarse = separable(noise, gaussian(width, width / 5), "reflect")
    return noise / 4 + coarse / coarse.std()


def seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    call()
    return clock() - begin


def compared(options: argparse.Namespace) -> None:
    clock = CLOCKS[options.clock]
    model = (
        hp.load_model("paperbirds/resnet")
        if options.size == 64
        else hp.load_model("torchvision:resnet50", "random")
    )
    model.batch_size = options.batch
    protocol = Soundness(step=options.step)
    x = pictures(options.images, 3, options.size, 0)
    coarse = pictures(options.images, 1, options.size, 1)[:, 0]
    kinds = {
        "contiguous": separable(coarse[:, None], gaussian(31, 8), "reflect")[:, 0],
        "scattered": torch.randn_like(coarse),
    }
    target, ids = torch.zeros(len(x), dtype=torch.long), [str(i) for i in range(len(x))]
    clean, rows, steps = (
        model.logits(x),
        x.repeat_interleave(len(protocol.missing), 0),
        len(protocol.missing),
    )
    say = f"{model.name}, {options.size} px, {len(x)} images, {steps} ratios, {torch.get_num_threads()} threads, {options.clock} time"
    print(say)
    for kind, maps in kinds.items():
        maps = maps - maps.flatten(1).amin(1)[:, None, None]
        spent: dict[str, list[float]] = {"whole": [], "bare": []}
        for _ in range(options.repeats):
            batch = EvalBatch(ids, x, target, clean, Rng(0, ids))
            spent["whole"].append(
                seconds(
                    lambda batch=batch, maps=maps: protocol.score_maps(model, batch, {}, maps),
                    clock,
                )
            )
            spent["bare"].append(
                seconds(
                    lambda: [model.logits(part) for part in rows.split(model.batch_size)], clock
                )
            )
        whole, bare = (statistics.median(times) for times in spent.values())
        print(
            f"  {kind:10}  soundness / bare forwards {whole / bare:5.2f}   ({bare / len(rows) * 1000:.1f} ms a forward)",
            end="",
            flush=True,
        )
        ours, arrays, lil = imputed(x, maps, protocol, clock)
        print(
            f"   arrays + LU / ours {arrays / ours:4.1f}, lil_matrix + LU / ours {lil / ours:4.1f}",
            flush=True,
        )


def imputed(
    x: Tensor, maps: Tensor, protocol: Soundness, clock: Callable[[], float]
) -> tuple[float, float, float]:
    """Seconds for imputation alone, at some of the ratios: ours, and solved image by image, put together in two ways."""
    ranks, pixels = removal_order(maps), maps[0].numel()
    some = protocol.missing[:: max(1, len(protocol.missing) // 5)]
    removed = torch.cat([ranks >= pixels - int(share * pixels) for share in some])
    images = x.repeat(len(some), 1, 1, 1)
    rng = Rng(0, [str(i) for i in range(len(x))] * len(some))

    def solved(put_together: Assembly) -> None:
        for image, mask in zip(images, removed, strict=True):
            spsolve(*put_together(image.numpy(), mask.numpy()))

    ours = seconds(lambda: linear_impute(images, removed, rng=rng), clock)
    return (
        ours,
        seconds(lambda: solved(by_arrays), clock),
        seconds(lambda: solved(by_lil_matrix), clock),
    )


def memory(options: argparse.Namespace) -> None:
    """The largest the process was, before and after, with all samples and 2000 draws at 19 levels."""
    protocol, clock = Soundness(), CLOCKS[options.clock]
    steps = len(protocol.missing)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    draw = torch.Generator().manual_seed(0)
    start = torch.randint(0, steps + 20, (options.memory, 1), generator=draw)
    score = (torch.arange(steps) >= start).float()
    mass = torch.rand(options.memory, steps, generator=draw)
    kept = (score.nbytes + mass.nbytes) / options.memory
    spent = seconds(lambda: protocol.aggregate({"score": score, "mass": mass}), clock)
    middle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    drawn = seconds(lambda: at_levels(protocol, score.numpy(), mass.numpy()), clock)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{options.memory} samples: {kept:.0f} bytes each; concluded in {spent:.2f} s, {middle - before:.0f} MB more;",
        end=" ",
    )
    print(f"levels with intervals in {drawn:.0f} s, {after - before:.0f} MB more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, choices=[64, 224], default=64)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--step", type=float, default=0.01)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--memory", type=int, default=0, help="only this, for so many samples")
    options = parser.parse_args()
    memory(options) if options.memory else compared(options)


if __name__ == "__main__":
    main()
