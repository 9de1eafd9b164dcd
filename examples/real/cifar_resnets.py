"""ResNet-20, 32 and 56 for CIFAR-10 (He et al. 2016): three stages of basic blocks."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import heatproof as hp
from heatproof.data.cifar import CLASSES

WEIGHTS = Path("real/data/cifar10-resnets")  # from the directory that a command runs in
WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut without weights, the paper's option A."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.widens = inputs != outputs
        stride = 2 if self.widens else 1
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.new_channels = (outputs - inputs) // 2  # on either side, all zero

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.widens:
            shortcut = pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.new_channels, self.new_channels))
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(out + shortcut)


class CifarResNet(nn.Module):
    """A ResNet for images of 32×32 pixels.

    Args:
        blocks: Blocks per stage.
    """

    def __init__(self, blocks: int):
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.layer1 = _stage(WIDTHS[0], WIDTHS[0], blocks)
        self.layer2 = _stage(WIDTHS[0], WIDTHS[1], blocks)
        self.layer3 = _stage(WIDTHS[1], WIDTHS[2], blocks)
        self.linear = nn.Linear(WIDTHS[2], len(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def _stage(inputs: int, outputs: int, blocks: int) -> nn.Sequential:
    first = Block(inputs, outputs)
    return nn.Sequential(first, *(Block(outputs, outputs) for _ in range(blocks - 1)))


def _model(name: str, blocks: int) -> hp.Model:
    model = hp.Model(
        CifarResNet(blocks).eval(),
        size=32,
        resize=32,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        classes=CLASSES,
        aliases={"middle": "layer2"},
    )
    return hp.load_model(model, weights=WEIGHTS / f"{name}.safetensors")


def resnet20() -> hp.Model:
    """ResNet-20: three blocks per stage."""
    return _model("resnet20", 3)


def resnet32() -> hp.Model:
    """ResNet-32: five blocks per stage."""
    return _model("resnet32", 5)


def resnet56() -> hp.Model:
    """ResNet-56: nine blocks per stage."""
    return _model("resnet56", 9)
