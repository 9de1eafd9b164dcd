"""Overhead of heatproof: over its bare passes, with and without sharing them, and beside Captum.

Prints ratios of times.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import captum.attr
import torch
from timing import in_turn, large, random_images, ratio

import heatproof as hp
from heatproof.data.base import TensorData
from heatproof.execute.runner import execute
from heatproof.methods import parse_methods
from heatproof.models.batch import ModelBatch
from heatproof.plan.make_plan import make_plan
from heatproof.plan.spec import parse_protocols
from heatproof.runs.store import Store

SHARED = ["saliency", "ixg", "ixg|abs", "gradcam", "gradcam++", "xgradcam", "layercam"]
EVERY = [  # gradient and CAM methods that take whole passes, with few steps and draws
    *SHARED,
    "ig(steps=4)",
    "ig-u(steps=4)",
    "ixg-sg",
    "ig-sg(steps=2)",
    "ig-sq(steps=2)",
    "ig-var(steps=2, n=2)",
    "smoothgrad(n=4)",
    "squaregrad(n=4)",
    "vargrad(n=4)",
    "sg-cam++",
]


def every(count: int, repeats: int) -> None:
    """Compare a run of all gradient and CAM methods on a ResNet-50 with its bare passes."""
    model = hp.load_model("torchvision:resnet50", "random")
    images = random_images(count, model.size)
    x = model.normalize(images)
    target = torch.zeros(count, dtype=torch.long)
    methods = parse_methods(list(EVERY))
    plan = make_plan(
        [model],
        [TensorData(images, [0] * count)],
        methods,
        parse_protocols(["sds"]),
        batch_size=count,
        keep_maps=0,
    )

    def run() -> dict[str, int]:
        model.pass_counts.clear()
        with tempfile.TemporaryDirectory() as place:
            execute(plan, Store(Path(place)))
        return dict(model.pass_counts)

    passes, h = run(), model.activation(x, "layer4")
    assert set(passes) == {"forward", "backward", "backward from layer4"}, passes

    def bare() -> None:
        with model.passes.batches_of(count):
            for _ in range(passes["forward"] // count):
                model.logits(x)
            for _ in range(passes["backward"] // count):
                model.gradient(x, target)
            for _ in range(passes["backward from layer4"] // count):
                model.tail("layer4").gradient(h, target)

    ours, theirs = in_turn(run, bare, repeats=repeats)
    print(f"{model.name}, {count} images, sds with {len(methods)} methods: {passes}")
    wall = ours.wall / theirs.wall
    cpu = ours.cpu / theirs.cpu
    print(f"  / its bare passes   {wall:.2f}, by CPU time {cpu:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, choices=[64, 224], default=64)
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--every",
        action="store_true",
        help="only sds with every gradient and CAM method on torchvision's ResNet-50",
    )
    options = parser.parse_args()
    if options.every:
        every(options.images or 8, options.repeats)
        return
    model = hp.load_model("paperbirds/resnet") if options.size == 64 else large()
    count = options.images or (64 if options.size == 64 else 8)
    images = random_images(count, options.size)
    x = model.normalize(images)
    target = torch.zeros(count, dtype=torch.long)
    plan = make_plan(
        [model],
        [TensorData(images, [0] * count)],
        parse_methods(list(SHARED)),
        parse_protocols(["sds"]),
        batch_size=count,
        keep_maps=0,
    )

    def run() -> None:
        with tempfile.TemporaryDirectory() as place:
            execute(plan, Store(Path(place)))

    def bare() -> None:
        with model.passes.batches_of(count):
            for _ in range(1 + 16 + 1):
                model.logits(x)
            model.gradient(x, target)

    def alone() -> None:
        for method in SHARED:
            hp.explain(model, x, target, method)

    def together() -> None:
        batch = ModelBatch(model, x, target, ["input", "cam"])
        for method in parse_methods(list(SHARED)):
            part, at = model.tail(method.layer), batch.at(method.layer)
            method.entry.function(part, at.x, target, rng=None, batch=at)

    theirs = captum.attr.IntegratedGradients(model.module)
    model.batch_size = min(count, 64)
    size = model.batch_size
    print(f"{model.name}, {options.size} px, {count} images")
    overhead = ratio(run, bare, options.repeats)
    print(f"  sds with {len(SHARED)} methods / its bare passes             {overhead:.2f}")
    saved = ratio(alone, together, options.repeats)
    print(f"  maps of {len(SHARED)} methods one by one / sharing one pass   {saved:.2f}")
    integrated = ratio(
        lambda: hp.explain(model, x[:8], target[:8], "ig(steps=20)"),
        lambda: theirs.attribute(x[:8], target=target[:8], n_steps=20, internal_batch_size=size),
        options.repeats,
    )
    print(f"  ig(steps=20) / Captum's                            {integrated:.2f}")


if __name__ == "__main__":
    main()
