"""CIFAR-10 ResNets (He et al. 2016, shortcuts of option A), as a user would define them.

The file has a plain module, its weights and the class names.
"""

import os
from pathlib import Path

import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import heatproof as hp

ROOT = Path(os.environ["HEATPROOF_REAL_DATA"])
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


class Block(nn.Module):
    def __init__(self, in_channels, width, stride):
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(in_channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.stride, self.pad = stride, (width - in_channels) // 2

    def forward(self, x):
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(
            h + F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        )


class ResNet(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        for i, (in_channels, width) in enumerate([(16, 16), (16, 32), (32, 64)], 1):
            first = Block(in_channels, width, 1 if in_channels == width else 2)
            setattr(
                self,
                f"layer{i}",
                nn.Sequential(first, *(Block(width, width, 1) for _ in range(blocks - 1))),
            )
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        h = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(h.mean((2, 3)))


def build(depth=20):
    net = ResNet((depth - 2) // 6)
    net.load_state_dict(load_file(ROOT / "cifar10-resnets" / f"resnet{depth}.safetensors"))
    return hp.Model(net.eval(), size=32, resize=32, classes=CLASSES, name=f"resnet{depth}")


def build32():
    return build(32)


def build56():
    return build(56)
