"""Removal curves at 224 px by every backend: over their bare forward passes, beside Quantus' PixelFlipping and pytorch-grad-cam's ROAD.

Prints ratios, and asserts that all give the same curves. Needs torchvision (`pip install 'heatproof[vision]'`) and the peers that are asked
for: `pip install quantus grad-cam`, best in an environment of their own.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import torch
from overhead import in_turn, ratio
from torch import Tensor
from torch.nn.functional import interpolate

import heatproof as hp
import heatproof.functional as F
from heatproof.models.backends import NAMES


def smooth_maps(count: int, size: int) -> Tensor:
    """Blots whose pixels all differ, so that every library removes them in the same order."""
    noise = torch.rand(
        count, 1, 14, 14, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    flat = interpolate(noise, (size, size), mode="bicubic").flatten(1)
    return (flat.argsort(1).argsort(1) / flat.shape[1]).float().reshape(count, size, size)


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, as a share of their range."""
    return float((ours - theirs).abs().max() / (theirs.max() - theirs.min()))


def quantus_curve(
    model: hp.Model, x: Tensor, target: Tensor, maps: Tensor, steps: int
) -> Callable[[], Tensor]:
    """Pixel flipping by Quantus: the same pixels replaced by zero, logits. It counts every channel for itself, and a step has to divide the
    pixels of one channel: after every third step it has replaced whole pixels."""
    import quantus

    options = {"abs": False, "normalise": False, "perturb_baseline": 0.0, "disable_warnings": True}
    flipping = quantus.PixelFlipping(features_in_step=x[0].numel() // steps, **options)
    arrays = {"x_batch": x.numpy(), "y_batch": target.numpy(), "a_batch": maps[:, None].numpy()}
    return lambda: torch.tensor(
        flipping(model.module, **arrays, softmax=False, batch_size=model.batch_size, device="cpu")
    )


def gradcam_road(model: hp.Model, x: Tensor, target: Tensor, maps: Tensor) -> Callable[[], Tensor]:
    """ROAD by pytorch-grad-cam: the mean change of the logit over nine shares of removed pixels."""
    from pytorch_grad_cam.metrics.road import ROADMostRelevantFirstAverage
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    road, goals = ROADMostRelevantFirstAverage(), [ClassifierOutputTarget(int(t)) for t in target]
    return lambda: torch.from_numpy(road(x, maps.numpy(), goals, model.module))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument(
        "--steps", type=int, default=12, help="3 · a divisor of the 50176 pixels of an image"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--backends", nargs="*", choices=NAMES, default=["eager", "fused", "openvino"]
    )
    parser.add_argument("--no-quantus", action="store_true")
    parser.add_argument("--road", action="store_true", help="beside pytorch-grad-cam as well")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    model = hp.load_model("torchvision:resnet50", "random")
    model.batch_size = options.images
    pixels = torch.rand(
        options.images, 3, model.size, model.size, generator=torch.Generator().manual_seed(0)
    )
    x, maps, target = (
        model.normalize(pixels),
        smooth_maps(options.images, model.size),
        torch.arange(options.images),
    )
    shares = [(k + 1) / options.steps for k in range(options.steps)]
    passes = options.images * options.steps

    def curve(backend: str) -> Tensor:
        model.backend = backend
        return F.removal_curve(model, x, target, maps, shares)

    def bare(backend: str) -> None:
        model.backend = backend
        for _ in range(options.steps):
            model.forward(x)

    calls: list[Callable[[], object]] = [
        call for b in options.backends for call in (lambda b=b: curve(b), lambda b=b: bare(b))
    ]
    theirs = None if options.no_quantus else quantus_curve(model, x, target, maps, options.steps)
    print(
        f"{model.name}, random weights, {options.images} images, {options.steps} steps, {torch.get_num_threads()} threads",
        flush=True,
    )
    *spent, peer = (
        t.wall for t in in_turn(*calls, theirs or (lambda: None), repeats=options.repeats)
    )
    known = curve("eager")
    for backend, mine, passing in zip(options.backends, spent[::2], spent[1::2], strict=True):
        difference = apart(curve(backend), known)
        beside = f", Quantus / curve {peer / mine:5.2f}" if theirs else ""
        print(
            f"  {backend:9} {passes / passing:5.1f} passes/s, curve / bare passes {mine / passing:.2f}{beside}, difference {difference:.0e}"
        )
        assert difference <= 1e-3, f"{backend} is another curve"
    if theirs:
        difference = apart(theirs()[:, 2::3], known[:, 2::3])
        print(f"  Quantus   {passes / peer:5.1f} passes/s, difference {difference:.0e}")
        assert difference <= 1e-4, "Quantus has another curve"
    if options.road:
        fractions = [k / 10 for k in range(1, 10)]
        other = gradcam_road(model, x, target, maps)
        clean = model.logits(x).gather(1, target[:, None])[:, 0]
        for backend in options.backends:
            model.backend = backend
            ours = F.removal_curve(model, x, target, maps, fractions, baseline="linear")
            difference = apart(ours.mean(1) - clean, other())
            faster = ratio(
                other,
                lambda: F.removal_curve(model, x, target, maps, fractions, baseline="linear"),
                options.repeats,
            )
            print(
                f"  ROAD, pytorch-grad-cam / {backend:9} {faster:5.2f}, difference {difference:.0e} (both add noise of their own)",
                flush=True,
            )
            assert difference <= 0.1, "pytorch-grad-cam has another ROAD"


if __name__ == "__main__":
    main()
