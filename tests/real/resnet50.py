"""The ImageNet ResNet-50 (the Caffe/Keras original), as a user would define it.

The file has a plain module, its weights and the class names.
"""

import os
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

import heatproof as hp

ROOT = Path(os.environ["HEATPROOF_REAL_DATA"])


class Bottleneck(nn.Module):
    def __init__(self, in_channels, width, stride):
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = (
            nn.Conv2d(in_channels, width, 1, stride, bias=False),
            nn.BatchNorm2d(width),
        )
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = (
            nn.Sequential(nn.Conv2d(in_channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if in_channels != out
            else None
        )

    def forward(self, x):
        h = self.relu(self.bn1(self.conv1(x)))
        h = self.relu(self.bn2(self.conv2(h)))
        h = self.bn3(self.conv3(h))
        return self.relu(h + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.relu, self.maxpool = (
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        in_channels = 64
        for i, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)], 1):
            layers = []
            for b in range(blocks):
                layers.append(Bottleneck(in_channels, width, 2 if b == 0 and i > 1 else 1))
                in_channels = 4 * width
            setattr(self, f"layer{i}", nn.Sequential(*layers))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(2048, 1000)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def build():
    net = ResNet50()
    net.load_state_dict(load_file(ROOT / "resnet50.safetensors"))
    wnids = [
        line.split("\t")[1]
        for line in (ROOT / "imagenet-classes.tsv").read_text().splitlines()
        if line[0].isdigit()
    ]
    return hp.Model(
        net.eval(),
        classes=wnids,
        mean=[m / 255 for m in (123.68, 116.779, 103.939)],
        std=[1 / 255] * 3,
    )


class Scaled(ResNet50):
    """The same network for images divided by ImageNet's standard deviations.

    The noise levels of papers are in these units.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer(
            "scale", 255 * torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False
        )

    def forward(self, x):
        return super().forward(x * self.scale)


def build_scaled():
    original, net = build(), Scaled()
    net.load_state_dict(original.module.state_dict())
    return hp.Model(
        net.eval(),
        classes=original.classes,
        mean=original.mean.flatten().tolist(),
        std=[0.229, 0.224, 0.225],
    )
