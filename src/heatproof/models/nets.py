"""Small networks for the embedded data, each a Sequential of named stages: cutting is slicing."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from heatproof.errors import unknown
from heatproof.models.arithmetic import Sum
from heatproof.models.bagnet import bagnet
from heatproof.models.bcos import bcos
from heatproof.models.vit import vit


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x))."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.sum = Sum()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.sum(self.branch(x), self.shortcut(x)))
        return out


def stages(**modules: nn.Module) -> nn.Sequential:
    """Return a Sequential of named modules."""
    return nn.Sequential(OrderedDict(modules))


def convolution(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    norm: bool,
    bias: bool,
    relu: bool = True,
) -> nn.Sequential:
    """Return conv [+ norm] [+ relu] as one stage; with a norm the convolution has no bias."""
    conv = nn.Conv2d(
        inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=bias and not norm
    )
    parts = OrderedDict[str, nn.Module](conv=conv)
    if norm:
        parts["norm"] = nn.BatchNorm2d(outputs)
    if relu:
        parts["relu"] = nn.ReLU()
    return nn.Sequential(parts)


class Shift(nn.Module):
    """x + b, one number for the whole map."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Scale(nn.Module):
    """x · a, one number for the whole map."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def residual(inputs: int, outputs: int, *, stride: int, norm: bool, bias: bool) -> Residual:
    """Return a residual block, with a convolution as its shortcut where the shape changes."""
    branch = scalar_branch if bias and not norm else conv_branch
    shortcut: nn.Module = nn.Identity()
    if inputs != outputs or stride > 1:
        shortcut = convolution(inputs, outputs, 1, stride=stride, norm=norm, bias=False, relu=False)
    return Residual(branch(inputs, outputs, stride, norm), shortcut)


def conv_branch(inputs: int, outputs: int, stride: int, norm: bool) -> nn.Sequential:
    """Return two convolutions with batch norms, or without norms and biases."""
    return nn.Sequential(
        convolution(inputs, outputs, stride=stride, norm=norm, bias=False),
        convolution(outputs, outputs, norm=norm, bias=False, relu=False),
    )


def scalar_branch(inputs: int, outputs: int, stride: int, norm: bool = False) -> nn.Sequential:
    """Return two convolutions without norms, with single biases around them and one scale.

    From Zhang et al. 2019 (Fixup).
    """
    first = convolution(inputs, outputs, stride=stride, norm=norm, bias=False, relu=False)
    second = convolution(outputs, outputs, norm=norm, bias=False, relu=False)
    return nn.Sequential(Shift(), first, Shift(), nn.ReLU(), Shift(), second, Scale(), Shift())


def he_initialised(net: nn.Sequential) -> nn.Sequential:
    """Initialize so that ReLUs keep the size of activations where no norm does; biases are zero."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net


def fixup_initialised(net: nn.Sequential) -> nn.Sequential:
    """Initialize as Fixup (Zhang et al. 2019) does.

    The last of a branch's m = 2 convolutions starts at zero, its first at L^(−1/(2m−2)) of He's
    size, the head at zero.
    """
    branches = [
        module.branch for module in he_initialised(net).modules() if isinstance(module, Residual)
    ]
    *_, head = (module for module in net.modules() if isinstance(module, nn.Linear))
    for branch in branches:
        first, last = (module for module in branch.modules() if isinstance(module, nn.Conv2d))
        nn.init.zeros_(last.weight)
        first.weight.data *= len(branches) ** -0.5
    nn.init.zeros_(head.weight)
    return net


def resnet(
    classes: int,
    *,
    widths: Sequence[int] = (24, 32, 56, 88),
    blocks: Sequence[int] = (1, 1, 1, 1),
    strides: Sequence[int] = (1, 2, 2, 1),
    stem: int = 2,
    norm: bool = True,
    bias: bool = True,
) -> nn.Sequential:
    """Build an untrained ResNet: stem, layer1…, pool, head.

    With the defaults and images of 64 px, the maps are 32, 32, 16, 8 and 8 wide.

    Args:
        classes: The number of logits.
        widths: The number of channels of each layer.
        blocks: The number of blocks of each layer.
        strides: The stride of each layer's first block.
        stem: The stride of the first convolution.
        norm: Whether to have batch norms; without them, the initialization is Fixup's.
        bias: Whether to have biases.
    """
    parts = OrderedDict[str, nn.Module](
        stem=convolution(3, widths[0], stride=stem, norm=norm, bias=bias)
    )
    inputs = widths[0]
    for number, (width, depth, stride) in enumerate(
        zip(widths, blocks, strides, strict=True), start=1
    ):
        first = residual(inputs, width, stride=stride, norm=norm, bias=bias)
        others = (residual(width, width, stride=1, norm=norm, bias=bias) for _ in range(depth - 1))
        parts[f"layer{number}"] = nn.Sequential(first, *others)
        inputs = width
    parts["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    parts["head"] = nn.Linear(inputs, classes, bias=bias)
    return nn.Sequential(parts) if norm else fixup_initialised(nn.Sequential(parts))


def vgg(
    classes: int,
    *,
    widths: Sequence[Sequence[int]] = ((16,), (24,), (32, 32), (48, 48)),
    hidden: Sequence[int] = (128, 128),
    size: int = 64,
    norm: bool = False,
    bias: bool = True,
) -> nn.Sequential:
    """Build an untrained VGG: conv1… with a pool after each group, flatten, fc1….

    Args:
        classes: The number of logits.
        widths: The number of channels of each convolution, group by group.
        hidden: The widths of the hidden layers of the head.
        size: The side of the images, in pixels.
        norm: Whether to have batch norms.
        bias: Whether to have biases.
    """
    parts = OrderedDict[str, nn.Module]()
    inputs = 3
    side = size
    number = 0
    for group, channels in enumerate(widths, start=1):
        for width in channels:
            number += 1
            parts[f"conv{number}"] = convolution(inputs, width, norm=norm, bias=bias)
            inputs = width
        parts[f"pool{group}"] = nn.MaxPool2d(2)
        side //= 2
    parts["flatten"] = nn.Flatten()
    features = inputs * side * side
    for layer, width in enumerate(hidden, start=1):
        parts[f"fc{layer}"] = stages(linear=nn.Linear(features, width, bias=bias), relu=nn.ReLU())
        features = width
    parts[f"fc{len(hidden) + 1}"] = nn.Linear(features, classes, bias=bias)
    return nn.Sequential(parts) if norm or bias else he_initialised(nn.Sequential(parts))


@dataclass(frozen=True)
class Net:
    """Builder of a network, and its preprocessing."""

    build: Callable[..., nn.Sequential]
    options: Mapping[str, Any] = field(default_factory=dict)
    classes: int = 32
    size: int = 64
    mean: tuple[float, float, float] = (0.579, 0.561, 0.570)
    std: tuple[float, float, float] = (0.201, 0.200, 0.195)

    def module(self) -> nn.Sequential:
        """Build the network, untrained; parameters are drawn by torch's global generator."""
        return self.build(self.classes, **self.options)


NETS: dict[str, Net] = {
    "resnet": Net(resnet),
    "vgg": Net(vgg),
    "vgg-bn": Net(vgg, {"norm": True}),
    "resnet-nobn": Net(resnet, {"norm": False}),
    "vgg-nobias": Net(vgg, {"bias": False}),
    "resnet-nobias": Net(resnet, {"norm": False, "bias": False}),
    "bagnet": Net(bagnet),
    "bcos": Net(bcos, {"temperature": 0.25}, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    "vit": Net(vit),
    "resnet18": Net(resnet, {"blocks": (2, 2, 2, 2)}),
    "resnet26": Net(resnet, {"blocks": (3, 3, 3, 3)}),
    "resnet-narrow": Net(resnet, {"widths": (12, 16, 28, 44)}),
    "vgg7": Net(vgg, {"widths": ((16,), (24,), (32,), (48,))}),
    "vgg11": Net(vgg, {"widths": ((16, 16), (24, 24), (32, 32), (48, 48))}),
}
# No weights of these ship: they are trained on demand.
ON_DEMAND = frozenset({"resnet18", "resnet26", "resnet-narrow", "vgg7", "vgg11"})
SHIPPED = tuple(name for name in NETS if name not in ON_DEMAND)


CIFAR10 = Net(
    vgg,
    {"widths": ((64,), (128,), (256, 256), (512, 512)), "hidden": (512, 512), "size": 32},
    classes=10,
    size=32,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
CIFAR10_NETS = {  # on request: no weights ship
    "vgg11": CIFAR10,  # of the grid paper
    "resnet20": replace(
        CIFAR10,
        build=resnet,
        options={"widths": (16, 32, 64), "blocks": (3, 3, 3), "strides": (1, 2, 2), "stem": 1},
    ),
    "resnet18": replace(  # eight residual blocks, as Li et al. train on CIFAR-10
        CIFAR10,
        build=resnet,
        options={
            "widths": (16, 32, 64, 128),
            "blocks": (2, 2, 2, 2),
            "strides": (1, 2, 2, 2),
            "stem": 1,
        },
    ),
}
CIFAR100_NETS = {
    "vgg16": Net(  # of the semi-natural data of Li et al., whose images are enlarged
        vgg,
        {
            "widths": ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
            "hidden": (4096, 4096),
            "size": 224,
        },
        classes=100,
        size=224,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
}


def net_named(name: str) -> Net:
    """Look a network up by its name, such as ``paperbirds/resnet`` or ``cifar10/resnet20``.

    Raises:
        HeatproofError: If there is no such network.
    """
    nets = {f"paperbirds/{key}": net for key, net in NETS.items()}
    nets |= {f"cifar10/{key}": net for key, net in CIFAR10_NETS.items()}
    nets |= {f"cifar100/{key}": net for key, net in CIFAR100_NETS.items()}
    if name not in nets:
        raise unknown("network", name, nets)
    return nets[name]


ASSETS = Path(__file__).parent.parent / "assets"


def weights_path(name: str) -> Path:
    """Return the path of the weights that ship for a network of ``NETS``."""
    return ASSETS / f"paperbirds-{name}.safetensors"


# Patches, or parts of the pixels, and baselines that the shipped networks are fine-tuned for, as
# protocols write them.
FINE_TUNED: dict[str, tuple[str, ...]] = dict.fromkeys(SHIPPED, ("16/zero",))
FINE_TUNED["resnet"] += ("4/zero", "64/zero", "16/blur", "16/uniform(low=-1, high=1)", "10%/zero")


def fine_tuned_path(name: str, fine_tuned: str) -> Path:
    """Return the path of the fine-tuned weights that ship for a network of ``FINE_TUNED``.

    Args:
        name: Name of the network without prefix, such as ``resnet``.
        fine_tuned: Number of patches and baseline, such as ``16/zero``.
    """
    return ASSETS / f"paperbirds-{name}-{slug(fine_tuned)}.safetensors"


def slug(fine_tuned: str) -> str:
    """Return what weights are fine-tuned for as part of a file name: ``16/zero`` is 16-zero."""
    return re.sub(r"[^a-z0-9]+", "-", fine_tuned.replace("%", " percent")).strip("-")


def load_state(path: Path | str) -> dict[str, Tensor]:
    """Read the weights of a file as float32; integers, such as batch counts, stay as they are."""
    return {
        key: value.float() if value.is_floating_point() else value
        for key, value in load_file(path).items()
    }


def stored(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights as they are written to a file: as float16."""
    return {
        key: value.to(torch.float16) if value.is_floating_point() else value
        for key, value in state.items()
    }
