"""Saliency, input × gradient and integrated gradients beside Captum's: the same maps, and how many times longer Captum takes at its best.

Both get the same network, its weights channels last. Captum gets images in either layout and several batch sizes at once; what is fastest
in a trial is what ours is compared with.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial

import captum.attr
import torch
from overhead import fastest, in_turn, large
from torch import Tensor, nn

import heatproof as hp

AGREE = 2e-3  # of the largest value; another layout or batch rounds otherwise, and an untrained network has ReLUs that are all but zero


def captums(net: nn.Module, steps: int) -> dict[str, Callable[..., Tensor]]:
    """By our name; each (x, target, at_once) -> (B, H, W)."""

    def in_parts(
        attribute: Callable[..., Tensor], x: Tensor, target: Tensor, at_once: int
    ) -> Tensor:
        return torch.cat(
            [
                attribute(a, target=t)
                for a, t in zip(x.split(at_once), target.split(at_once), strict=True)
            ]
        )

    saliency = partial(captum.attr.Saliency(net).attribute, abs=False)
    ixg, integrated = (
        captum.attr.InputXGradient(net).attribute,
        captum.attr.IntegratedGradients(net).attribute,
    )
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
    parser.add_argument("--batch-size", type=int, default=8, help="ours")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--methods", nargs="*", default=["saliency", "ixg", "ig"])
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # that Captum has asked for gradients
    model = hp.load_model("paperbirds/resnet") if options.size == 64 else large()
    model.module.to(memory_format=torch.channels_last)
    model.batch_size = options.batch_size
    images = torch.rand(
        options.images, 3, options.size, options.size, generator=torch.Generator().manual_seed(0)
    )
    x, target = model.normalize(images), torch.arange(options.images) % model.n_classes
    views = {"contiguous": x, "channels_last": x.contiguous(memory_format=torch.channels_last)}
    print(
        f"{model.name}, {options.size} px, {options.images} images; Captum's time / ours, by the clock and by CPU; largest difference"
    )
    for text, theirs in captums(model.module, options.steps).items():
        if text.partition("(")[0] not in options.methods:
            continue
        integrates = "steps" in text
        count, sizes = (
            (2, (2, 8, 20))
            if integrates
            else (options.images, (1, options.images // 2, options.images))
        )
        peers = {
            f"{view}, {n} at once": partial(theirs, views[view][:count], target[:count], n)
            for view in views
            for n in sizes
        }
        best = fastest(peers)
        ours, others = in_turn(
            partial(hp.explain, model, x[:count], target[:count], text),
            peers[best],
            repeats=options.repeats,
        )
        difference = float((ours.value - others.value).abs().max() / others.value.abs().max())
        print(
            f"  {text:16} {others.wall / ours.wall:.2f} {others.cpu / ours.cpu:.2f}   {difference:.0e}   ({best})",
            flush=True,
        )
        assert difference < AGREE, f"{text} disagrees"


if __name__ == "__main__":
    main()
