"""Peak memory of every method, each in its own process: 32 images of 224 px through a ResNet-50.

Methods run with few masks, steps and noisy copies: variants go through the network batch by batch,
so their number affects the time but hardly the memory (the grid of a mask takes 256 bytes, a score
8). Score-CAM, which needs a pass per channel, runs at a layer with 64 channels on one image, which
makes two full batches. IBA has its default number of copies, as it holds the noise of all of them.
Attention methods run on a ViT-B/16. The exit code is 1 if a method needs more than the limit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch
from timing import random_images

import heatproof as hp
from heatproof.errors import NotApplicable
from heatproof.methods import METHODS
from heatproof.platform import peak_memory

LIMIT = 4.0  # GiB
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
    """Return the peak memory of a new process in GiB, or None if the method does not apply."""
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
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return float(output) if output else None


def measure(text: str, model: hp.Model, images: int) -> None:
    """Print the peak memory of this process, or nothing if the method does not apply."""
    x = model.normalize(random_images(images, model.size))
    try:
        hp.explain(
            model,
            x,
            torch.zeros(images, dtype=torch.long),
            text,
            silhouette=torch.ones(images, model.size, model.size),
            reference=torch.rand(images, 3, model.size, model.size),
        )
    except NotApplicable:
        return
    memory = peak_memory()
    if memory is None:
        sys.exit("peak memory is unknown on this system")
    print(memory / 2**30)


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
        f"{options.model}, {options.images} images, batches of {options.batch_size}; "
        f"the limit is {LIMIT} GiB"
    )
    for name in options.methods:
        text = SHORT.get(name, name)
        attends = METHODS[name].family == "attention"
        model = "torchvision:vit_b_16" if attends else options.model
        images = 1 if name == "scorecam" else options.images
        used = peak(text, model, images, options.batch_size)
        result = "does not apply" if used is None else f"{used:.2f} GiB"
        if used is not None and used > LIMIT:
            above.append(name)
            result += ", above the limit"
        print(f"  {text:30} {result}", flush=True)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
