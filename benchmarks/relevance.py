"""Guided backpropagation and DeepSHAP beside Captum, LRP beside Zennit: the same maps, and the ratio of times (ours / theirs)."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import captum.attr
import torch
from overhead import in_turn
from torch import Tensor, nn

import heatproof as hp
from heatproof.methods import METHODS
from heatproof.models.nets import resnet, vgg
from heatproof.models.operations import Sum
from heatproof.models.vision import import_torchvision

CAPTUM = {
    "guided-backprop": captum.attr.GuidedBackprop,
    "deconvnet": captum.attr.Deconvolution,
    "deepshap": captum.attr.DeepLift,
}
# In double precision LRP agrees with Zennit to 1e-10 (nets of 64 px). In single precision, on the VGG of 224 px, Zennit's lrp-focus is
# up to 3e-3 of the largest value away from the map in double precision, ours 6e-7; probably max pools behind rounded weights.
AGREE = {True: 1e-5, False: 1e-2}


def settled(net: nn.Module, size: int, name: str, batch_size: int) -> hp.Model:
    """Norms that have seen a batch. Zennit's merged norms scale by 1/√(1 + ε) once more; here ε is small enough not to matter."""
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.eps = 1e-9
    with torch.no_grad():
        net.train()(torch.randn(8, 3, size, size, generator=torch.Generator().manual_seed(1)))
    return hp.Model(net.eval(), size=size, name=name, batch_size=batch_size)


def models(size: int, batch_size: int) -> list[hp.Model]:
    torch.manual_seed(0)
    if size == 64:
        nets = {"resnet": resnet(32), "vgg-bn": vgg(32, norm=True)}
    else:
        wide = vgg(
            100,
            widths=((64,), (128,), (256, 256), (512, 512), (512, 512)),
            hidden=(512, 512),
            size=size,
            norm=True,
        )
        nets = {
            "resnet18-sized": resnet(
                100, widths=(64, 128, 256, 512), blocks=(2, 2, 2, 2), strides=(2, 2, 2, 2)
            ),
            "vgg11-sized": wide,
        }
    return [settled(net, size, name, batch_size) for name, net in nets.items()]


def zennit_attribution(
    model: hp.Model, x: Tensor, target: Tensor, gamma: float | None
) -> Callable[[], Tensor]:
    """LRP by Zennit: the same rules, norms merged by its canonizer; built anew in each call, as a user's code does."""
    import_torchvision()  # Zennit imports it, which may fail beside a CPU torch
    from zennit.attribution import Gradient
    from zennit.canonizers import SequentialMergeBatchNorm
    from zennit.composites import SpecialFirstLayerMapComposite
    from zennit.layer import Sum as Stack
    from zennit.rules import Epsilon, Gamma, Norm, Pass, ZBox, ZPlus
    from zennit.types import Activation, AvgPool, BatchNorm, Linear

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sum = Stack()

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            out: Tensor = self.sum(torch.stack([a, b], dim=-1))
            return out

    for parent in list(model.module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Sum):
                setattr(parent, name, Pair())
    box = ZBox(*(v[None].expand(1, -1, *x.shape[2:]).clone() for v in model.input_range))
    rules = [(Stack, Norm()), (Activation, Pass()), (AvgPool, Norm()), (BatchNorm, Pass())]
    rules += [(nn.Conv2d, ZPlus() if gamma is None else Gamma(gamma)), (nn.Linear, Epsilon(0.25))]
    wanted = torch.eye(model.n_classes)[target]

    def attribute() -> Tensor:
        composite = SpecialFirstLayerMapComposite(
            layer_map=rules, first_map=[(Linear, box)], canonizers=[SequentialMergeBatchNorm()]
        )
        with Gradient(model.module, composite) as attributor:
            found: Tensor = attributor(x, wanted)[1]
        return found

    return attribute


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, choices=[64, 224], default=64)
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    count = options.images or (32 if options.size == 64 else 4)
    images = torch.rand(
        count, 3, options.size, options.size, generator=torch.Generator().manual_seed(0)
    )
    target = torch.arange(count) % 32
    for model, other in zip(models(options.size, count), models(options.size, count), strict=True):
        x = model.normalize(images)
        print(
            f"{model.name}, {options.size} px, {count} images          ours / theirs, by clock and CPU   largest difference"
        )

        def ours(
            name: str, model: hp.Model = model, x: Tensor = x, **arguments: object
        ) -> Callable[[], Tensor]:
            return lambda: METHODS[name].function(model, x, target, rng=None, **arguments)

        def theirs(
            kind: type, net: nn.Module = model.module, x: Tensor = x
        ) -> Callable[[], Tensor]:
            return lambda: kind(net).attribute(x.clone(), target=target)

        pairs = {
            name: (ours(name, **({"compat": "captum"} if name == "deepshap" else {})), theirs(kind))
            for name, kind in CAPTUM.items()
        }
        pairs["lrp-focus"] = (ours("lrp-focus"), zennit_attribution(other, x, target, None))
        pairs["lrp-composite"] = (ours("lrp-composite"), zennit_attribution(other, x, target, 0.25))
        for name, pair in pairs.items():
            mine, others = in_turn(*pair, repeats=options.repeats)
            difference = float(
                (mine.value - others.value).detach().abs().max() / others.value.detach().abs().max()
            )
            print(
                f"  {name:16} {mine.wall / others.wall:5.2f} {mine.cpu / others.cpu:5.2f}          {difference:.0e}",
                flush=True,
            )
            assert difference < AGREE[name in CAPTUM], f"{name} disagrees"


if __name__ == "__main__":
    main()
