"""The peak of memory of every method, each in a process of its own: 32 images of 224 px in batches of 32 through a ResNet-50.

Few masks, steps and noisy copies: variants go through the network a batch at a time, so their number changes how long it takes, and
little else (a mask's grid is 256 bytes, a score 8). Score-CAM, a pass a channel, is at a layer with 64 of them and has one image, that is,
two whole batches. IBA has as many copies as by default: it holds the noise of all of them. Attention methods have a ViT-B/16 instead.
Exits with 1 where a method needs more than the bound.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

import torch

import heatproof as hp
from heatproof.errors import NotApplicable
from heatproof.methods import METHODS

BOUND = 4.0  # GB
SHORT = {
    "ig": "ig(steps=2)",
    "ig-u": "ig-u(steps=2)",
    "ig-sg": "ig-sg(steps=1, n=2)",
    "ig-sq": "ig-sq(steps=1, n=2)",
    "ig-var": "ig-var(steps=1, n=2)",
    "ixg-sg": "ixg-sg(n=2)",
    "smoothgrad": "smoothgrad(n=2)",
    "squaregrad": "squaregrad(n=2)",
    "vargrad": "vargrad(n=2)",
    "occlusion": "occlusion(112, 112)",
    "rise": "rise(masks=4)",
    "rise-u": "rise-u(masks=4)",
    "lime": "lime(masks=4)",
    "kernelshap": "kernelshap(masks=8, cells=2)",
    "sobol": "sobol(designs=2, cells=2)",
    "hsic": "hsic(masks=4)",
    "extremal": "extremal(steps=3)",
    "iba": "iba(steps=1)",
    "sg-cam++": "sg-cam++(n=2)",
    "scorecam": "scorecam@conv1",
}


def peak(text: str, model: str, images: int, batch_size: int) -> float | None:
    """In GB, of a new process; None where the method does not apply."""
    command = [
        sys.executable,
        __file__,
        "--one",
        text,
        "--model",
        model,
        "--images",
        str(images),
        "--batch-size",
        str(batch_size),
    ]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return float(told) if told else None


def measure(text: str, model: hp.Model, images: int) -> None:
    """Prints the peak of this process, or nothing where the method does not apply."""
    x = model.normalize(
        torch.rand(images, 3, model.size, model.size, generator=torch.Generator().manual_seed(0))
    )
    target, silhouette = (
        torch.zeros(images, dtype=torch.long),
        torch.ones(images, model.size, model.size),
    )
    try:
        hp.explain(
            model,
            x,
            target,
            text,
            silhouette=silhouette,
            reference=torch.rand(images, 3, model.size, model.size),
        )
    except NotApplicable:
        return
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="torchvision:resnet50")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--methods", nargs="*", default=[e.id for e in METHODS])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        model = hp.load_model(options.model, "random")
        model.batch_size = options.batch_size
        measure(options.one, model, options.images)
        return 0
    above = []
    print(
        f"{options.model}, {options.images} images, batches of {options.batch_size}; the bound is {BOUND} GB"
    )
    for name in options.methods:
        text, attends = SHORT.get(name, name), METHODS[name].family == "attention"
        images = 1 if name == "scorecam" else options.images
        found = peak(
            text, "torchvision:vit_b_16" if attends else options.model, images, options.batch_size
        )
        above += [name] if found and found > BOUND else []
        print(
            f"  {text:30} {'does not apply' if found is None else f'{found:.2f} GB'}{' above' * (name in above)}",
            flush=True,
        )
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
