"""What heatproof costs beyond the passes it needs, what sharing saves, and how it compares with Captum. Prints ratios."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import captum.attr
import torch

import heatproof as hp
from heatproof.bench.plan import make_plan
from heatproof.bench.runner import execute
from heatproof.bench.spec import parse_protocols
from heatproof.bench.store import Store
from heatproof.data.base import TensorData
from heatproof.methods import parse_methods
from heatproof.models.nets import resnet

SHARED = ["saliency", "ixg", "ixg|abs", "gradcam", "gradcam++", "xgradcam", "layercam"]
EVERY = [  # method of gradients and CAM that takes whole passes, with few nodes and draws
    *SHARED,
    *(
        "ig(steps=4)",
        "ig-u(steps=4)",
        "ixg-sg",
        "ig-sg(steps=2)",
        "ig-sq(steps=2)",
        "ig-var(steps=2, n=2)",
    ),
    *("smoothgrad(n=4)", "squaregrad(n=4)", "vargrad(n=4)", "sg-cam++"),
]


class Timed(NamedTuple):
    wall: float  # seconds
    cpu: float  # seconds of this process, whatever else runs beside it
    value: Any  # what the last call gave


def in_turn(*calls: Callable[[], object], repeats: int) -> list[Timed]:
    """Median times of each, taken in turn; a first round is not counted."""
    spent: list[list[tuple[float, float]]] = [[] for _ in calls]
    values: list[Any] = [None] * len(calls)
    for _ in range(repeats + 1):
        for i, call in enumerate(calls):
            begin = time.perf_counter(), time.process_time()
            values[i] = call()
            spent[i].append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    medians = (
        [statistics.median(times) for times in zip(*each[1:], strict=True)] for each in spent
    )
    return [Timed(wall, cpu, value) for (wall, cpu), value in zip(medians, values, strict=True)]


def fastest(calls: Mapping[str, Callable[[], object]], repeats: int = 1) -> str:
    """The name of the call that takes least of the CPU's time, which neighbours on the machine disturb less than the clock's."""
    return min(
        zip(in_turn(*calls.values(), repeats=repeats), calls, strict=True),
        key=lambda pair: pair[0].cpu,
    )[1]


def ratio(one: Callable[[], object], other: Callable[[], object], repeats: int) -> float:
    """Median time of one over that of the other, taken in turn."""
    first, second = in_turn(one, other, repeats=repeats)
    return first.wall / second.wall


def large() -> hp.Model:
    """As deep and wide as a ResNet-50 in cost, so that 224 px are what they are for users."""
    torch.manual_seed(0)
    net = resnet(1000, widths=(64, 128, 256, 512), blocks=(3, 4, 6, 3), strides=(2, 2, 2, 2))
    return hp.Model(net.eval(), size=224, name="large")


def every(count: int, repeats: int) -> None:
    model = hp.load_model("torchvision:resnet50", "random")
    images = torch.rand(
        count, 3, model.size, model.size, generator=torch.Generator().manual_seed(0)
    )
    x, target = model.normalize(images), torch.zeros(count, dtype=torch.long)
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
        model.passes.clear()
        with tempfile.TemporaryDirectory() as place:
            execute(plan, Store(Path(place)))
        return dict(model.passes)

    passes, h = run(), model.activation(x, "layer4")
    assert set(passes) == {"forward", "backward", "backward from layer4"}, passes

    def bare() -> None:
        with model.batches_of(count):
            for _ in range(passes["forward"] // count):
                model.logits(x)
            for _ in range(passes["backward"] // count):
                model.gradient(x, target)
            for _ in range(passes["backward from layer4"] // count):
                model.tail("layer4").gradient(h, target)

    ours, theirs = in_turn(run, bare, repeats=repeats)
    print(f"{model.name}, {count} images, sds with {len(methods)} methods: {passes}")
    print(
        f"  / its bare passes   {ours.wall / theirs.wall:.2f}, of the CPU's time {ours.cpu / theirs.cpu:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, choices=[64, 224], default=64)
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--every",
        action="store_true",
        help="only sds, with every method of gradients and CAM, on torchvision's ResNet-50",
    )
    options = parser.parse_args()
    if options.every:
        every(options.images or 8, options.repeats)
        return
    model = hp.load_model("paperbirds/resnet") if options.size == 64 else large()
    count = options.images or (64 if options.size == 64 else 8)
    images = torch.rand(
        count, 3, options.size, options.size, generator=torch.Generator().manual_seed(0)
    )
    data, x, target = (
        TensorData(images, [0] * count),
        model.normalize(images),
        torch.zeros(count, dtype=torch.long),
    )
    plan = make_plan(
        [model],
        [data],
        parse_methods(list(SHARED)),
        parse_protocols(["sds"]),
        batch_size=count,
        keep_maps=0,
    )

    def run() -> None:
        with tempfile.TemporaryDirectory() as place:
            execute(plan, Store(Path(place)))

    def bare() -> None:
        with model.batches_of(count):
            for _ in range(1 + 16 + 1):
                model.logits(x)
            model.gradient(x, target)

    def alone() -> None:
        for method in SHARED:
            hp.explain(model, x, target, method)

    def together() -> None:
        with model.sharing(x, target, ["input", "cam"]):
            for method in parse_methods(list(SHARED)):
                part = model.tail(method.layer)
                method.entry.function(part, model.activation(x, method.layer), target, rng=None)

    theirs = captum.attr.IntegratedGradients(model.module)
    size = model.batch_size = min(count, 64)
    say = f"{model.name}, {options.size} px, {count} images"
    print(say)
    print(
        f"  sds with {len(SHARED)} methods / its bare passes             {ratio(run, bare, options.repeats):.2f}"
    )
    print(
        f"  maps of {len(SHARED)} methods one by one / sharing one pass   {ratio(alone, together, options.repeats):.2f}"
    )
    once = ratio(
        lambda: hp.explain(model, x[:8], target[:8], "ig(steps=20)"),
        lambda: theirs.attribute(x[:8], target=target[:8], n_steps=20, internal_batch_size=size),
        options.repeats,
    )
    print(f"  ig(steps=20) / Captum's                            {once:.2f}")


if __name__ == "__main__":
    main()
