"""Guided backpropagation and DeepSHAP beside Captum, LRP beside Zennit.

Asserts equal maps, and prints ratios of times (ours / theirs).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import captum.attr
import torch
from timing import in_turn, random_images
from torch import Tensor, nn

import heatproof as hp
from heatproof.methods import METHODS
from heatproof.models.arithmetic import Sum
from heatproof.models.nets import resnet, vgg
from heatproof.models.vision import import_torchvision

# In double precision LRP agrees with Zennit to 1e-10 (networks of 64 px). In single precision, on
# the VGG of 224 px, Zennit's lrp-focus differs from the map in double precision by up to 3e-3 of
# the largest value, ours by 6e-7; probably because of max pools behind rounded weights.
CAPTUM_TOLERANCE = 1e-5
ZENNIT_TOLERANCE = 1e-2


def calibrated(net: nn.Module, size: int, name: str, batch_size: int) -> hp.Model:
    """Return a model whose batch norms have seen a batch.

    Zennit's merged norms scale by 1/√(1 + ε) once more; ε is set small enough not to matter.
    """
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
    return [calibrated(net, size, name, batch_size) for name, net in nets.items()]


def zennit_attribution(
    model: hp.Model, x: Tensor, target: Tensor, gamma: float | None
) -> Callable[[], Tensor]:
    """Return a call of Zennit's LRP with the same rules.

    Its canonizer merges the norms. The composite is built in each call, as in user code.
    """
    import_torchvision()  # Zennit imports it, which may fail with a CPU torch
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
    one_hot = torch.eye(model.n_classes)[target]

    def attribute() -> Tensor:
        composite = SpecialFirstLayerMapComposite(
            layer_map=rules, first_map=[(Linear, box)], canonizers=[SequentialMergeBatchNorm()]
        )
        with Gradient(model.module, composite) as attributor:
            relevance: Tensor = attributor(x, one_hot)[1]
        return relevance

    return attribute


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, choices=[64, 224], default=64)
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    count = options.images or (32 if options.size == 64 else 4)
    images = random_images(count, options.size)
    target = torch.arange(count) % 32
    for model, other in zip(models(options.size, count), models(options.size, count), strict=True):
        x = model.normalize(images)
        print(
            f"{model.name}, {options.size} px, {count} images          "
            "ours / theirs by wall and CPU time   largest difference"
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
            "guided-backprop": (ours("guided-backprop"), theirs(captum.attr.GuidedBackprop)),
            "deconvnet": (ours("deconvnet"), theirs(captum.attr.Deconvolution)),
            "deepshap": (ours("deepshap", compat="captum"), theirs(captum.attr.DeepLift)),
        }
        tolerances = dict.fromkeys(pairs, CAPTUM_TOLERANCE)
        pairs["lrp-focus"] = (ours("lrp-focus"), zennit_attribution(other, x, target, None))
        pairs["lrp-composite"] = (ours("lrp-composite"), zennit_attribution(other, x, target, 0.25))
        for name, pair in pairs.items():
            mine, others = in_turn(*pair, repeats=options.repeats)
            difference = float(
                (mine.value - others.value).detach().abs().max() / others.value.detach().abs().max()
            )
            ratios = f"{mine.wall / others.wall:5.2f} {mine.cpu / others.cpu:5.2f}"
            print(f"  {name:16} {ratios}          {difference:.0e}", flush=True)
            assert difference < tolerances.get(name, ZENNIT_TOLERANCE), f"{name} disagrees"


if __name__ == "__main__":
    main()
