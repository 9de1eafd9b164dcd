"""The ResNet-50 that was published first (He et al. 2016), as Caffe and Keras distribute it.

It differs from torchvision's: the first block of a stage has its stride in the 1×1 convolution, and
inputs are colours from 0 to 255 without the mean colour. The weights have torchvision's names. The
first convolution is scaled, so that images are divided by ImageNet's standard deviations, the units
in which papers give their noise.
"""

from __future__ import annotations

from pathlib import Path

import torch

import heatproof as hp

WEIGHTS = Path("real/data/resnet50.safetensors")  # from the directory that a command runs in
MEAN = (123.68, 116.779, 103.939)
STD = (0.229, 0.224, 0.225)


def resnet50() -> hp.Model:
    """ResNet-50 as Caffe has it."""
    like = hp.load_model("torchvision:resnet50", weights=WEIGHTS)
    network = like.module
    for stage in (network.layer2, network.layer3, network.layer4):
        stage[0].conv1.stride = (2, 2)
        stage[0].conv2.stride = (1, 1)
    with torch.no_grad():
        network.conv1.weight *= 255 * torch.tensor(STD)[:, None, None]
    return hp.Model(
        network,
        size=224,
        resize=256,
        mean=[value / 255 for value in MEAN],
        std=STD,
        classes=like.classes,
    )
