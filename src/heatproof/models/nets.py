"""Small networks of our own for the embedded data. Each is a Sequential of named stages, so cutting is slicing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from heatproof.errors import HeatproofError


class Sum(nn.Module):
    """Addition as a module, so that it can be hooked and given a rule."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x))."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut, self.sum, self.relu = branch, shortcut, Sum(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.sum(self.branch(x), self.shortcut(x)))
        return out


def stages(**modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(modules))


def convolution(inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1, norm: bool, bias: bool, relu: bool = True) -> nn.Sequential:
    """conv [+ norm] [+ relu], as one stage; a norm brings its own bias."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=bias and not norm)
    parts = OrderedDict[str, nn.Module](conv=conv)
    if norm:
        parts["norm"] = nn.BatchNorm2d(outputs)
    if relu:
        parts["relu"] = nn.ReLU()
    return nn.Sequential(parts)


def residual(inputs: int, outputs: int, *, stride: int, norm: bool, bias: bool) -> Residual:
    branch = nn.Sequential(
        convolution(inputs, outputs, stride=stride, norm=norm, bias=bias),
        convolution(outputs, outputs, norm=norm, bias=bias, relu=False),
    )
    same = inputs == outputs and stride == 1
    shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride=stride, norm=norm, bias=bias, relu=False)
    return Residual(branch, shortcut)


def resnet(
    classes: int,
    *,
    widths: Sequence[int] = (24, 32, 56, 88),
    blocks: Sequence[int] = (1, 1, 1, 1),
    strides: Sequence[int] = (1, 2, 2, 1),
    norm: bool = True,
    bias: bool = True,
) -> nn.Sequential:
    """stem, layer1…, pool, head. At 64 px the maps are 32, 32, 16, 8, 8 wide."""
    parts = OrderedDict[str, nn.Module](stem=convolution(3, widths[0], stride=2, norm=norm, bias=bias))
    inputs = widths[0]
    for number, (width, depth, stride) in enumerate(zip(widths, blocks, strides, strict=True), start=1):
        first = residual(inputs, width, stride=stride, norm=norm, bias=bias)
        others = (residual(width, width, stride=1, norm=norm, bias=bias) for _ in range(depth - 1))
        parts[f"layer{number}"] = nn.Sequential(first, *others)
        inputs = width
    parts["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    parts["head"] = nn.Linear(inputs, classes, bias=bias)
    return nn.Sequential(parts)


def vgg(
    classes: int,
    *,
    widths: Sequence[Sequence[int]] = ((16,), (24,), (32, 32), (48, 48)),
    hidden: Sequence[int] = (128, 128),
    size: int = 64,
    norm: bool = False,
    bias: bool = True,
) -> nn.Sequential:
    """conv1… with a pool after each group of widths, flatten, fc1…; the head is fully connected to the last pool's map."""
    parts = OrderedDict[str, nn.Module]()
    inputs, side, number = 3, size, 0
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
    return nn.Sequential(parts)


@dataclass(frozen=True)
class Net:
    """A row of the table: how a net is built and what its input is."""

    build: Callable[..., nn.Sequential]
    options: Mapping[str, Any] = field(default_factory=dict)
    classes: int = 32
    size: int = 64
    mean: tuple[float, float, float] = (0.579, 0.561, 0.570)
    std: tuple[float, float, float] = (0.201, 0.200, 0.195)


NETS: dict[str, Net] = {
    "resnet": Net(resnet),
    "vgg": Net(vgg),
    "vgg-bn": Net(vgg, {"norm": True}),
}


def build(name: str) -> nn.Sequential:
    """The untrained net of that name; its parameters are drawn from torch's global generator."""
    if name not in NETS:
        raise HeatproofError(f'there is no net "{name}"; there are: {", ".join(NETS)}')
    net = NETS[name]
    return net.build(net.classes, **net.options)


ASSETS = Path(__file__).parent.parent / "assets"


def weights_path(name: str) -> Path:
    return ASSETS / f"paperbirds-{name}.safetensors"


def load_state(path: Path | str) -> dict[str, Tensor]:
    """The weights of a file as float32; whole numbers (batch counts) stay as they are."""
    return {key: value.float() if value.is_floating_point() else value for key, value in load_file(path).items()}


def stored(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights as they are written to a file: float16."""
    return {key: value.to(torch.float16) if value.is_floating_point() else value for key, value in state.items()}
