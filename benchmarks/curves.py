"""Removal curves at 224 px with every backend, over their bare forward passes and beside others.

The others are Quantus' PixelFlipping and pytorch-grad-cam's ROAD. Prints ratios of times, and
asserts that all compute the same curves. Needs torchvision (`pip install 'heatproof[vision]'`) and
the libraries to compare with (`pip install quantus grad-cam`, best in a separate environment).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial

import torch
from timing import in_turn, random_images, ratio
from torch import Tensor
from torch.nn.functional import interpolate

import heatproof as hp
import heatproof.functional as F
from heatproof.models.backends import NAMES


def smooth_maps(count: int, size: int) -> Tensor:
    """Return smooth maps without equal values, so that all libraries remove in the same order."""
    noise = torch.rand(
        count, 1, 14, 14, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    flat = interpolate(noise, (size, size), mode="bicubic").flatten(1)
    return (flat.argsort(1).argsort(1) / flat.shape[1]).float().reshape(count, size, size)


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference as a fraction of the range of values."""
    return float((ours - theirs).abs().max() / (theirs.max() - theirs.min()))


def quantus_curve(
    model: hp.Model, x: Tensor, target: Tensor, maps: Tensor, steps: int
) -> Callable[[], Tensor]:
    """Return a call of Quantus' pixel flipping: the same pixels, replaced by zero, and logits.

    Quantus counts every channel separately, and a step has to divide the pixels of one channel:
    only after every third step it has replaced whole pixels.
    """
    import quantus

    options = {"abs": False, "normalise": False, "perturb_baseline": 0.0, "disable_warnings": True}
    flipping = quantus.PixelFlipping(features_in_step=x[0].numel() // steps, **options)
    arrays = {"x_batch": x.numpy(), "y_batch": target.numpy(), "a_batch": maps[:, None].numpy()}
    return lambda: torch.tensor(
        flipping(model.module, **arrays, softmax=False, batch_size=model.batch_size, device="cpu")
    )


def gradcam_road(model: hp.Model, x: Tensor, target: Tensor, maps: Tensor) -> Callable[[], Tensor]:
    """Return a call of pytorch-grad-cam's ROAD: mean change of the logit over nine fractions."""
    from pytorch_grad_cam.metrics.road import ROADMostRelevantFirstAverage
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    road = ROADMostRelevantFirstAverage()
    goals = [ClassifierOutputTarget(int(t)) for t in target]
    return lambda: torch.from_numpy(road(x, maps.numpy(), goals, model.module))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument(
        "--steps", type=int, default=12, help="three times a divisor of the 50176 pixels"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--backends", nargs="*", choices=NAMES, default=["eager", "fused", "openvino"]
    )
    parser.add_argument("--no-quantus", action="store_true")
    parser.add_argument(
        "--road", action="store_true", help="also compare with pytorch-grad-cam's ROAD"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    model = hp.load_model("torchvision:resnet50", "random")
    model.batch_size = options.images
    x = model.normalize(random_images(options.images, model.size))
    maps = smooth_maps(options.images, model.size)
    target = torch.arange(options.images)
    fractions = [(k + 1) / options.steps for k in range(options.steps)]
    passes = options.images * options.steps

    def curve(backend: str) -> Tensor:
        model.backend = backend
        return F.removal_curve(model, x, target, maps, fractions)

    def bare(backend: str) -> None:
        model.backend = backend
        for _ in range(options.steps):
            model.forward(x)

    calls: list[Callable[[], object]] = []
    for backend in options.backends:
        calls += [partial(curve, backend), partial(bare, backend)]
    theirs = None if options.no_quantus else quantus_curve(model, x, target, maps, options.steps)
    print(
        f"{model.name}, random weights, {options.images} images, {options.steps} steps, "
        f"{torch.get_num_threads()} threads",
        flush=True,
    )
    timed = in_turn(*calls, theirs or (lambda: None), repeats=options.repeats)
    *times, quantus_time = (t.wall for t in timed)
    eager = curve("eager")
    for backend, ours, bare_time in zip(options.backends, times[::2], times[1::2], strict=True):
        difference = relative_difference(curve(backend), eager)
        beside = f", Quantus / curve {quantus_time / ours:5.2f}" if theirs else ""
        print(
            f"  {backend:9} {passes / bare_time:5.1f} passes/s, "
            f"curve / bare passes {ours / bare_time:.2f}{beside}, difference {difference:.0e}"
        )
        assert difference <= 1e-3, f"{backend} computes another curve"
    if theirs:
        difference = relative_difference(theirs()[:, 2::3], eager[:, 2::3])
        print(f"  Quantus   {passes / quantus_time:5.1f} passes/s, difference {difference:.0e}")
        assert difference <= 1e-4, "Quantus computes another curve"
    if options.road:
        tenths = [k / 10 for k in range(1, 10)]
        other = gradcam_road(model, x, target, maps)
        clean = model.logits(x).gather(1, target[:, None])[:, 0]
        for backend in options.backends:
            model.backend = backend
            road = partial(F.removal_curve, model, x, target, maps, tenths, baseline="linear")
            difference = relative_difference(road().mean(1) - clean, other())
            speedup = ratio(other, road, options.repeats)
            print(
                f"  ROAD, pytorch-grad-cam / {backend:9} {speedup:5.2f}, "
                f"difference {difference:.0e} (each adds its own noise)",
                flush=True,
            )
            assert difference <= 0.1, "pytorch-grad-cam computes another ROAD"


if __name__ == "__main__":
    main()
