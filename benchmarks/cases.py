"""The cases of `make bench`: heatproof, other libraries and the bare passes, side by side.

Each case is a function from (quick) to ratios. What others compute is asserted to be equal, as far
as they compute the same. A case runs in a process of its own (`bench.py`), for its peak memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from timing import CLOCK, Timed, in_turn, random_images
from torch import Tensor, nn

import heatproof as hp
import heatproof.functional as F
from heatproof.cli import keep_memory
from heatproof.data.base import TensorData
from heatproof.execute.runner import execute
from heatproof.methods import parse_methods
from heatproof.models import backends
from heatproof.models.vision import import_torchvision
from heatproof.plan.make_plan import make_plan
from heatproof.plan.spec import parse_protocols
from heatproof.plan.tasks import Plan
from heatproof.runs.store import Store

SIZE = 224
BATCH = 8  # images, and images in one pass
SHARING = [  # methods that share one backward pass and their activations
    "saliency",
    "saliency|smooth(9)",
    "ixg",
    "ixg|abs",
    "ixg|smooth(9)",
    "gradcam",
    "gradcam|relu",
    "gradcam++",
    "xgradcam",
    "layercam",
    "ixg@middle",
    "ixg@middle|abs",
    "ixg@final",
    "gradcam@middle",
    "layercam@middle",
    "saliency@middle",
    "random",
    "constant",
    "edges",
    "center",
]
PROTOCOLS = [
    "sds",
    "ids(steps=10)",
    "deletion",
    "insertion",
    "srg",
    "road",
    "completeness",
    "soundness(step=0.1)",
]


class Ratio(NamedTuple):
    """A result: one time divided by another, in one run.

    Attributes:
        name: What is compared; unique among all cases.
        value: The ratio of medians.
        better: Whether a higher or a lower ratio is better.
        goal: What it should reach; None if there is no goal.
        detail: Times and settings, for readers.
    """

    name: str
    value: float
    better: Literal["higher", "lower"]
    goal: float | None = None
    detail: str = ""


class Growth(NamedTuple):
    """Seconds of a run at several sizes of one of its parts."""

    name: str
    sizes: list[int]
    seconds: list[float]


Case = Callable[[bool], "Iterator[Ratio | Growth]"]


def network(quick: bool) -> hp.Model:
    """Return a ResNet-50, or a ResNet-18 for quick runs, with random weights."""
    keep_memory()  # as `heatproof run` does; all profit
    import_torchvision()
    torch.manual_seed(0)
    model = hp.load_model(f"torchvision:resnet{18 if quick else 50}", "random")
    model.batch_size = BATCH
    return model


def speeds(model: hp.Model, x: Tensor) -> dict[str, float]:
    """Return the passes per second of each backend that is installed; `compile` is left out."""
    names = [n for n in backends.NAMES if n != "compile" and not backends.missing(n)]
    timed = in_turn(*(partial(model.with_backend(n).forward, x) for n in names), repeats=3)
    return {name: len(x) / t.spent for name, t in zip(names, timed, strict=True)}


def fastest(model: hp.Model, x: Tensor) -> hp.Model:
    """Return the model with its fastest backend."""
    found = speeds(model, x)
    return model.with_backend(max(found, key=found.__getitem__))


def shown(**times: float) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.2f} s" for name, value in times.items())


# Curves


def deletion(quick: bool) -> Iterator[Ratio | Growth]:
    """Deletion curves beside Quantus' PixelFlipping."""
    from curves import quantus_curve, relative_difference, smooth_maps

    steps = 6  # Quantus counts channels, so that every third of its steps is one of ours
    model = network(quick)
    x = model.normalize(random_images(BATCH, SIZE))
    maps = smooth_maps(BATCH, SIZE)
    target = torch.arange(BATCH)
    found = speeds(model, x)
    for name, speed in found.items():
        detail = f"{speed:.1f} passes/s, eager {found['eager']:.1f}"
        if name != "eager":
            yield Ratio(f"passes by {name} / eager", speed / found["eager"], "higher", None, detail)
    best = model.with_backend(max(found, key=found.__getitem__))
    fractions = [(k + 1) / steps for k in range(steps)]

    def bare() -> None:
        for _ in range(steps):
            best.forward(x)

    theirs = quantus_curve(model, x, target, maps, steps)
    calls = (partial(F.removal_curve, best, x, target, maps, fractions), bare, theirs)
    ours, passes, other = in_turn(*calls, repeats=2 if quick else 3)
    eager = F.removal_curve(model.with_backend("eager"), x, target, maps, fractions)
    assert relative_difference(ours.value, eager) <= 1e-3
    assert relative_difference(other.value[:, 2::3], eager[:, 2::3]) <= 1e-4
    detail = shown(ours=ours.spent, bare_passes=passes.spent, Quantus=other.spent)
    detail += f"; {best.backend}, {BATCH} images, {steps} steps"
    goal = 4.0 if best.backend == "openvino" else 2.0
    yield Ratio("Quantus / deletion", other.spent / ours.spent, "higher", goal, detail)
    yield Ratio("deletion curve / bare passes", ours.spent / passes.spent, "lower", 1.10, detail)


def road(quick: bool) -> Iterator[Ratio | Growth]:
    """ROAD beside pytorch-grad-cam's, and linear imputation beside scipy."""
    import imputation
    from curves import gradcam_road, relative_difference, smooth_maps

    model = network(quick)
    tenths = [k / 10 for k in range(1, 10)]
    model.batch_size = len(tenths)  # the images of a sample, so that every pass is full
    count = 2 if quick else 4
    x = model.normalize(random_images(count, SIZE))
    best = fastest(model, model.normalize(random_images(model.batch_size, SIZE)))
    maps = smooth_maps(count, SIZE)
    target = torch.arange(count)
    call = partial(F.removal_curve, best, x, target, maps, tenths, baseline="linear")
    ours, other = in_turn(call, gradcam_road(model, x, target, maps), repeats=1 if quick else 2)
    clean = best.logits(x).gather(1, target[:, None])[:, 0]
    assert relative_difference(ours.value.mean(1) - clean, other.value) <= 0.1  # each has noise
    detail = shown(ours=ours.spent, theirs=other.spent) + f"; {best.backend}, {count} images"
    yield Ratio("pytorch-grad-cam / ROAD", other.spent / ours.spent, "higher", 8.0, detail)
    images = imputation.images(4 if quick else 16)
    removed = imputation.masks("scattered", 0.5, len(images))
    spent, difference = imputation.compared(images, removed, 2, imputation.CLOCKS[CLOCK])
    assert difference < imputation.TOLERANCE
    for name, parts in {"arrays": ("solve", "arrays"), "lil_matrix": ("solve", "lil")}.items():
        value = sum(spent[part] for part in parts) / spent["ours"]
        detail = shown(ours=spent["ours"], scipy=value * spent["ours"]) + ", half of the pixels"
        yield Ratio(f"scipy ({name}) / imputation", value, "higher", None, detail)


# Maps


def cams(quick: bool) -> Iterator[Ratio | Growth]:
    """Four CAMs beside TorchCAM and pytorch-grad-cam."""
    import cams as script

    model = network(quick=True)
    net = model.module.to(memory_format=torch.channels_last)
    with torch.no_grad():  # make gradients large compared with pytorch-grad-cam's ε of 1e-6
        net.fc.weight.mul_(1000)
    count = 16 if quick else 32
    model.batch_size = count
    x = model.normalize(random_images(count, SIZE)).contiguous(memory_format=torch.channels_last)
    target = torch.arange(count)
    calls = (
        partial(script.ours, model, x, target, list(script.CAMS)),
        partial(script.by_torchcam, net, x, target, count),
        partial(script.by_grad_cam, net, x, target, count),
    )
    ours, torchcam, gradcam = in_turn(*calls, repeats=3 if quick else 5)
    texts = ["gradcam", "gradcam++(compat=torchcam)", "xgradcam", "layercam"]
    script.assert_same(script.ours(model, x, target, texts), torchcam.value)
    resized = {
        name: script.scaled(script.resize(script.scaled(native), SIZE, SIZE))
        for name, native in ours.value.items()
    }
    script.assert_same(resized, gradcam.value)
    detail = shown(ours=ours.spent, TorchCAM=torchcam.spent, pytorch_grad_cam=gradcam.spent)
    detail += f"; ResNet-18, {count} images at once"
    yield Ratio("TorchCAM / four CAMs", torchcam.spent / ours.spent, "higher", 3.7, detail)
    yield Ratio("pytorch-grad-cam / four CAMs", gradcam.spent / ours.spent, "higher", 12.0, detail)


def gradients(quick: bool) -> Iterator[Ratio | Growth]:
    """Gradients and integrated gradients beside Captum's, each with what is fastest for it."""
    import gradients as script

    model = network(quick)
    model.module.to(memory_format=torch.channels_last)
    steps = 10 if quick else 20
    images = model.normalize(random_images(BATCH, SIZE))
    layouts = (images, images.contiguous(memory_format=torch.channels_last))
    for text, theirs in script.captums(model.module, steps).items():
        is_path = "steps" in text
        count = 2 if is_path else BATCH
        x = images[:count]
        target = torch.arange(count)
        sizes = (8, 20) if is_path else (count,)
        ours = [partial(hp.explain, model.with_batch_size(n), x, target, text) for n in sizes]
        peers = [partial(theirs, layout[:count], target, n) for layout in layouts for n in sizes]
        timed = in_turn(*ours, *peers, repeats=2 if quick else 3)
        mine = min(timed[: len(ours)], key=_spent)
        best = min(timed[len(ours) :], key=_spent)
        difference = (mine.value - best.value).abs().max() / best.value.abs().max()
        assert difference < script.TOLERANCE, f"{text} differs by {difference:.0e}"
        detail = shown(ours=mine.spent, Captum=best.spent) + f"; {text}, {count} images"
        goal = 0.8 if is_path else None
        name = text.partition("(")[0]
        yield Ratio(f"{name} / Captum", mine.spent / best.spent, "lower", goal, detail)


def _spent(timed: Timed) -> float:
    return timed.spent


# Runs


def planned(model: hp.Model, methods: list[str], protocols: list[str], images: Tensor) -> Plan:
    data = TensorData(images, list(range(len(images))))
    return make_plan(
        [model],
        [data],
        parse_methods(list(methods)),
        parse_protocols(list(protocols)),
        batch_size=BATCH,
        keep_maps=0,
    )


def run(plan: Plan) -> Counter[str]:
    """Execute a plan in a new directory; return its passes by kind."""
    model = plan.tasks[0].model
    before = model.pass_counts.copy()
    with tempfile.TemporaryDirectory() as directory:
        execute(plan, Store(Path(directory)))
    return model.pass_counts - before


def replayed(model: hp.Model, x: Tensor, counts: Counter[str]) -> Callable[[], None]:
    """Return a call with the same passes in full batches, and nothing else."""
    target = torch.zeros(len(x), dtype=torch.long)
    starts = {}
    for kind in counts:
        layer = kind.partition(" from ")[2]
        starts[kind] = (model.tail(layer), model.activation(x, layer)) if layer else (model, x)

    def passes() -> None:
        with model.passes.batches_of(len(x)):
            for kind, count in counts.items():
                part, h = starts[kind]
                for _ in range(count // len(x)):
                    if kind.startswith("forward"):
                        part.passes.forward(h)
                    else:
                        part.gradient(h, target)

    return passes


def protocols(quick: bool) -> Iterator[Ratio | Growth]:
    """Each protocol over its bare passes, by the fastest backend."""
    model = network(quick)
    images = random_images(BATCH, SIZE)
    x = model.normalize(images)
    best = fastest(model, x)
    for text in PROTOCOLS:
        plan = planned(best, ["ixg", "gradcam"], [text], images)
        counts = run(plan)  # also warms up
        calls = partial(run, plan), replayed(plan.tasks[0].model, x, counts)
        ours, bare = in_turn(*calls, repeats=3 if quick else 2, warm_up=False)
        passes = ", ".join(f"{n} {kind}" for kind, n in counts.items())
        detail = shown(ours=ours.spent, bare_passes=bare.spent) + f"; {best.backend}, {passes}"
        name = text.partition("(")[0]
        yield Ratio(f"{name} / bare passes", ours.spent / bare.spent, "lower", 1.10, detail)


def single_deletion_loop(net: nn.Module, x: Tensor, target: Tensor, maps: Tensor) -> list[float]:
    """Score one method as single deletion is usually written: one patch after the other.

    Every method computes the drops of all patches anew, as there is nothing that keeps them.
    """
    from scipy.stats import spearmanr

    side = x.shape[-1] // 4
    drops = []
    sums = []
    with torch.no_grad():
        clean = net(x).gather(1, target[:, None])[:, 0]
        for row in range(0, x.shape[-2], side):
            for column in range(0, x.shape[-1], side):
                patch = (..., slice(row, row + side), slice(column, column + side))
                without = x.clone()
                without[patch] = 0
                drops.append(clean - net(without).gather(1, target[:, None])[:, 0])
                sums.append(maps[patch].double().sum((1, 2)))
    by_sample = zip(torch.stack(drops, 1).tolist(), torch.stack(sums, 1).tolist(), strict=True)
    return [float(spearmanr(*pair).statistic) for pair in by_sample]


def sds(quick: bool) -> Iterator[Ratio | Growth]:
    """Twenty methods of SDS beside a loop over methods and patches."""
    model = network(quick)
    model.module.to(memory_format=torch.channels_last)
    images = random_images(BATCH, SIZE)
    x = model.normalize(images).contiguous(memory_format=torch.channels_last)
    target = torch.arange(BATCH)
    best = fastest(model, x)
    plan = planned(best, SHARING, ["sds"], images)

    def loop() -> list[float]:
        maps = hp.explain(model, x, target, "ixg")
        return single_deletion_loop(model.module, x, target, maps)

    ours, other = in_turn(partial(run, plan), loop, repeats=2 if quick else 3)
    expected = hp.evaluate(
        best, TensorData(images, list(range(BATCH))), "ixg", "sds", batch_size=BATCH
    )
    difference = (torch.tensor(expected.scores["value"]) - torch.tensor(other.value)).abs().max()
    assert difference <= 0.02, difference  # two patches whose drops are close may change places
    value = len(SHARING) * other.spent / ours.spent
    detail = shown(ours_for_20=ours.spent, loop_for_one=other.spent)
    detail += f"; {best.backend}, the loop eager, {BATCH} images"
    yield Ratio("20 methods of SDS: loop / ours", value, "higher", 15.0, detail)


def quickstart(quick: bool) -> Iterator[Ratio | Growth]:
    """The time of `heatproof run quickstart`, in seconds."""
    times = []
    for _ in range(1 if quick else 2):
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-m", "heatproof", "run", "quickstart", "-o", directory]
            begin = _clock()
            subprocess.run(command, check=True, capture_output=True)
            times.append(_clock() - begin)
    goal = 30.0 if CLOCK == "wall" else None
    yield Ratio("quickstart, seconds", min(times), "lower", goal, "a run with its report")


def _clock() -> float:
    """Return the time, or the CPU time of finished child processes."""
    if CLOCK == "wall":
        return time.perf_counter()
    spent = os.times()
    return spent.children_user + spent.children_system


def growth(quick: bool) -> Iterator[Ratio | Growth]:
    """How the time of a run grows with images, methods, steps and the size of images."""
    keep_memory()
    model = hp.load_model("paperbirds/resnet", backend="eager")
    most = 64 if quick else 128
    base = 16 if quick else 32

    def seconds(images: int = base, methods: int = 4, steps: int = 10) -> float:
        inputs = random_images(images, 64)
        data = TensorData(inputs, [0] * images)
        maps = [hp.named(f"noise {i}", partial(_noise_maps, i)) for i in range(methods)]
        plan = make_plan(
            [model],
            [data],
            parse_methods(maps),
            parse_protocols([f"deletion(steps={steps})"]),
            batch_size=64,
            keep_maps=0,
        )
        (timed,) = in_turn(partial(run, plan), repeats=2)
        return timed.spent

    sizes = [most // 8, most // 4, most // 2, most]
    yield Growth("images", sizes, [seconds(images=n) for n in sizes])
    yield Growth("methods", [2, 4, 8, 16], [seconds(methods=n) for n in (2, 4, 8, 16)])
    yield Growth("steps", [5, 10, 20, 40], [seconds(steps=n) for n in (5, 10, 20, 40)])
    sides = [64, 128, 256]
    spent = []
    for side in sides:
        larger = hp.Model(model.module, size=side, batch_size=16)
        x = larger.normalize(random_images(16, side))
        maps = torch.rand(16, side, side, generator=torch.Generator().manual_seed(0))
        call = partial(F.removal_curve, larger, x, torch.zeros(16).long(), maps, [0.25, 0.5, 0.75])
        spent.append(in_turn(call, repeats=2)[0].spent)
    yield Growth("pixels", [side * side for side in sides], spent)


def _noise_maps(number: int, model: hp.Model, x: Tensor, target: Tensor) -> Tensor:
    return torch.rand(x[:, 0].shape, generator=torch.Generator().manual_seed(number))


CASES: dict[str, Case] = {
    "deletion": deletion,
    "road": road,
    "cams": cams,
    "gradients": gradients,
    "protocols": protocols,
    "sds": sds,
    "quickstart": quickstart,
    "growth": growth,
}
