"""Class activation maps beside TorchCAM and pytorch-grad-cam, and CAMs without gradients.

heatproof computes all gradient CAMs of a layer from one backward pass; the others run the network
for each. CAMs without gradients are compared with their bare passes. Needs heatproof[vision] and

    pip install torchcam grad-cam

The maps are checked to be equal: TorchCAM's as they are, pytorch-grad-cam's scaled to [0, 1]
before and after resizing.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from timing import fastest, in_turn, random_images
from torch import Tensor

import heatproof as hp
from heatproof.methods import parse_methods
from heatproof.methods.explain import Explainer
from heatproof.models.batch import ModelBatch
from heatproof.models.vision import import_torchvision
from heatproof.tensor.filters import resize
from heatproof.tensor.noise import Rng

import_torchvision()  # the other libraries import it too, which may fail with a CPU torch
from pytorch_grad_cam import GradCAM, GradCAMPlusPlus, LayerCAM, XGradCAM  # noqa: E402
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget  # noqa: E402
from torchcam import methods as torchcam  # noqa: E402

LAYER = "layer4"
CAMS = {  # ours: TorchCAM's, pytorch-grad-cam's
    "gradcam": (torchcam.GradCAM, GradCAM),
    "gradcam++": (torchcam.GradCAMpp, GradCAMPlusPlus),
    "xgradcam": (torchcam.XGradCAM, XGradCAM),
    "layercam": (torchcam.LayerCAM, LayerCAM),
}
Maps = dict[str, Tensor]


def ours(model: hp.Model, x: Tensor, target: Tensor, texts: list[str]) -> Maps:
    """Compute maps at the resolution of the layer, and resize them to the image."""
    rng = Rng(0, [str(i) for i in range(len(x))], model.device)
    explainer = Explainer(ModelBatch(model, x, target, [LAYER]), rng)
    found = {}
    for expression in parse_methods(list(texts)):
        found[expression.entry.id] = explainer.native(expression)
        explainer.resized(found[expression.entry.id])
    return found


def by_torchcam(net: torch.nn.Module, x: Tensor, target: Tensor, at_once: int) -> Maps:
    found = {}
    for name, (kind, _) in CAMS.items():
        with kind(net, LAYER) as extract:
            parts = zip(x.split(at_once), target.split(at_once), strict=True)
            found[name] = torch.cat(
                [extract(goal.tolist(), net(part), normalized=False)[0] for part, goal in parts]
            )
    return found


def by_grad_cam(net: torch.nn.Module, x: Tensor, target: Tensor, at_once: int) -> Maps:
    found = {}
    for name, (_, kind) in CAMS.items():
        with kind(net, [getattr(net, LAYER)]) as extract:
            parts = zip(x.split(at_once), target.split(at_once), strict=True)
            maps = [
                extract(part, [ClassifierOutputTarget(t) for t in goal.tolist()])
                for part, goal in parts
            ]
            found[name] = torch.cat([torch.from_numpy(m) for m in maps])
    return found


def scaled(maps: Tensor) -> Tensor:
    maps = maps - maps.amin((1, 2), keepdim=True)
    return maps / (maps.amax((1, 2), keepdim=True) + 1e-7)


def assert_same(mine: Maps, theirs: Maps) -> None:
    for name, maps in theirs.items():
        difference = (mine[name] - maps).abs().max() / maps.abs().max()
        assert difference < 1e-3, f"{name} differs by {difference:.0e}"


def bare(model: hp.Model, x: Tensor, layer: str, passes: Counter[str]) -> Callable[[], None]:
    """Return a call with as many passes from the image and the layer, and nothing else."""
    parts = {
        "forward": (model, x),
        f"forward from {model.layer_name(layer)}": (model.tail(layer), model.activation(x, layer)),
    }
    assert set(passes) <= set(parts)

    def run() -> None:
        for kind, count in passes.items():
            part, seen = parts[kind]
            batch = seen.repeat_interleave(-(-part.batch_size // len(seen)), 0).contiguous(
                memory_format=torch.channels_last
            )
            for at in range(0, count, part.batch_size):
                part.logits(batch[: min(part.batch_size, count - at)])

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="torchvision:resnet18")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["gradient", "ablationcam", "scorecam"])
    options = parser.parse_args()
    model = hp.load_model(options.model, "random")
    model.batch_size = 32
    net = model.module.to(memory_format=torch.channels_last)
    classifier = list(net.modules())[-1]
    with torch.no_grad():  # make gradients large compared with pytorch-grad-cam's ε of 1e-6
        classifier.weight.mul_(1000)
    images = random_images(options.images, model.size)
    x = model.normalize(images).contiguous(memory_format=torch.channels_last)
    target = torch.arange(options.images)
    print(f"{model.name}, {model.size} px; ratios of wall time and of CPU time")
    if options.only in (None, "gradient"):
        run = partial(ours, model, x, target, list(CAMS))
        for name, peer in (("TorchCAM", by_torchcam), ("pytorch-grad-cam", by_grad_cam)):
            calls = {
                f"{n} at once": partial(peer, net, x, target, n) for n in (8, 16, options.images)
            }
            best = fastest(calls)
            mine, theirs = in_turn(run, calls[best], repeats=options.repeats)
            ratios = f"{theirs.wall / mine.wall:.2f} {theirs.cpu / mine.cpu:.2f}   ({best})"
            print(
                f"  {name}'s {len(CAMS)} CAMs of {LAYER}, {len(x)} images / ours: {ratios}",
                flush=True,
            )
            if peer is by_torchcam:
                texts = ["gradcam", "gradcam++(compat=torchcam)", "xgradcam", "layercam"]
                maps = ours(model, x, target, texts)
            else:
                maps = {
                    cam: scaled(resize(scaled(native), model.size, model.size))
                    for cam, native in mine.value.items()
                }
            assert_same(maps, theirs.value)
    for text, count in (("ablationcam@final", 8), ("scorecam@final", 1)):
        if options.only not in (None, text.partition("@")[0]):
            continue
        few, goal, before = x[:count], target[:count], model.pass_counts.copy()
        hp.explain(model, few, goal, text)
        passes = model.pass_counts - before
        mine, least = in_turn(
            partial(hp.explain, model, few, goal, text),
            bare(model, few, "final", passes),
            repeats=options.repeats,
        )
        counts = ", ".join(f"{n} {kind}" for kind, n in passes.items())
        ratios = f"{mine.wall / least.wall:.2f} {mine.cpu / least.cpu:.2f}"
        print(f"  {text} / its bare passes ({counts}): {ratios}", flush=True)


if __name__ == "__main__":
    main()
