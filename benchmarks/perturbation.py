"""Overhead of perturbation methods over their bare passes, and occlusion beside Captum's.

Prints ratios of times, and the peak memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import captum.attr
import torch
from timing import in_turn, large, ratio
from torch import Tensor

import heatproof as hp
from heatproof.methods import Expression
from heatproof.platform import peak_memory


def methods(masks: int) -> list[str]:
    """Return expressions with few masks; `extremal` has enough steps to outweigh its set-up."""
    return [
        "occlusion(32, 32, compat=xplique)",
        "occlusion(48)",
        f"rise(masks={masks})",
        f"rise-u(masks={masks})",
        f"lime(masks={masks})",
        f"kernelshap(masks={max(masks, 32)}, cells=4)",
        f"sobol(designs={max(2, masks // 17)}, cells=4)",
        f"hsic(masks={masks})",
        f"extremal(steps={1 + masks // 4})",
    ]


def bare(
    model: hp.Model, x: Tensor, target: Tensor, forwards: int, backwards: int
) -> Callable[[], None]:
    """Return a call with as many passes in batches of the same size, and nothing else."""
    batch = x.repeat_interleave(-(-model.batch_size // len(x)), 0)[: model.batch_size]

    def passes() -> None:
        for start in range(0, forwards, model.batch_size):
            model.logits(batch[: forwards - start])
        for _ in range(backwards // len(x)):
            model.gradient(x, target)

    return passes


def compare_with_captum(model: hp.Model, x: Tensor, target: Tensor, repeats: int) -> None:
    text = "occlusion(32, 32, compat=xplique)"
    theirs = captum.attr.Occlusion(model.module)

    def captums(at_once: int) -> Tensor:
        return theirs.attribute(
            x, (3, 32, 32), (3, 32, 32), target=target, perturbations_per_eval=at_once
        )[:, 0]

    ours = hp.explain(model, x, target, text)
    assert (ours - captums(8)).abs().max() <= 1e-4 * ours.abs().max()
    ratios = {
        n: ratio(lambda: hp.explain(model, x, target, text), lambda n=n: captums(n), repeats)
        for n in (1, 4, 16, 49)
    }
    worst = max(ratios.values())
    details = ", ".join(f"{n} at once {r:.2f}" for n, r in ratios.items())
    print(f"  {text} / Captum's at its best, equal maps: {worst:.2f} ({details})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, choices=[64, 224], default=224)
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--masks", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--methods", nargs="*")
    options = parser.parse_args()
    model = hp.load_model("paperbirds/resnet") if options.size == 64 else large()
    model.batch_size = options.batch_size
    x = torch.randn(
        options.images, 3, options.size, options.size, generator=torch.Generator().manual_seed(0)
    )
    target = torch.zeros(options.images, dtype=torch.long)
    print(
        f"{model.name}, {options.size} px, {options.images} images, "
        f"batches of {options.batch_size}; time / bare passes, by wall and CPU time"
    )
    for text in options.methods or methods(options.masks):
        before = model.pass_counts.copy()
        hp.explain(model, x, target, text)
        forwards, backwards = (
            model.pass_counts[kind] - before[kind] for kind in ("forward", "backward")
        )
        calls = (
            lambda text=text: hp.explain(model, x, target, text),
            bare(model, x, target, forwards, backwards),
        )
        ours, passes = in_turn(*calls, repeats=options.repeats)
        counts = {"forwards": forwards, "backwards": backwards}
        details = " + ".join(f"{n} {kind}" for kind, n in counts.items() if n)
        ratios = f"{ours.wall / passes.wall:.2f} {ours.cpu / passes.cpu:.2f}"
        print(f"  {Expression.parse(text).label:<44} {ratios}   ({details})", flush=True)
    compare_with_captum(model, x[:1], target[:1], options.repeats)
    memory = peak_memory()
    if memory is not None:
        print(f"  peak memory {memory / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
