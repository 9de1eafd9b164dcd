"""Saliency, input × gradient and integrated gradients beside Captum's: equal maps, and times.

Both get the same network, with its weights in channels-last layout. Captum is tried with images in
either layout and with several batch sizes; the fastest combination is compared with ours.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial

import captum.attr
import torch
from timing import fastest, in_turn, large, random_images
from torch import Tensor, nn

import heatproof as hp

# As a fraction of the largest value: rounding depends on the layout and the batch, and many ReLUs
# of an untrained network are close to zero.
TOLERANCE = 2e-3


def captums(net: nn.Module, steps: int) -> dict[str, Callable[..., Tensor]]:
    """Return Captum's methods by our names; each maps (x, target, at_once) to (B, H, W)."""

    def in_parts(
        attribute: Callable[..., Tensor], x: Tensor, target: Tensor, at_once: int
    ) -> Tensor:
        parts = zip(x.split(at_once), target.split(at_once), strict=True)
        return torch.cat([attribute(images, target=goal) for images, goal in parts])

    saliency = partial(captum.attr.Saliency(net).attribute, abs=False)
    ixg = captum.attr.InputXGradient(net).attribute
    integrated = captum.attr.IntegratedGradients(net).attribute
    return {
        "saliency": lambda x, target, n: in_parts(saliency, x, target, n).sum(1).abs(),
        "ixg": lambda x, target, n: in_parts(ixg, x, target, n).sum(1),
        f"ig(steps={steps})": lambda x, target, n: integrated(
            x, target=target, n_steps=steps, internal_batch_size=n
        ).sum(1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, choices=[64, 224], default=224)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8, help="batch size of ours")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--methods", nargs="*", default=["saliency", "ixg", "ig"])
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # Captum warns that it asks for gradients
    model = hp.load_model("paperbirds/resnet") if options.size == 64 else large()
    model.module.to(memory_format=torch.channels_last)
    model.batch_size = options.batch_size
    x = model.normalize(random_images(options.images, options.size))
    target = torch.arange(options.images) % model.n_classes
    layouts = {"contiguous": x, "channels_last": x.contiguous(memory_format=torch.channels_last)}
    print(
        f"{model.name}, {options.size} px, {options.images} images; "
        "Captum's time / ours by wall and CPU time; largest difference"
    )
    for text, theirs in captums(model.module, options.steps).items():
        if text.partition("(")[0] not in options.methods:
            continue
        count = options.images
        sizes = [1, count // 2, count]
        if "steps" in text:
            count = 2
            sizes = [2, 8, 20]
        candidates = {
            f"{layout}, {n} at once": partial(theirs, images[:count], target[:count], n)
            for layout, images in layouts.items()
            for n in sizes
        }
        best = fastest(candidates)
        ours, others = in_turn(
            partial(hp.explain, model, x[:count], target[:count], text),
            candidates[best],
            repeats=options.repeats,
        )
        difference = float((ours.value - others.value).abs().max() / others.value.abs().max())
        ratios = f"{others.wall / ours.wall:.2f} {others.cpu / ours.cpu:.2f}"
        print(f"  {text:16} {ratios}   {difference:.0e}   ({best})", flush=True)
        assert difference < TOLERANCE, f"{text} disagrees"


if __name__ == "__main__":
    main()
