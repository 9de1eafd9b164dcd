"""Networks of the papers that no library has: without norms, without biases, and without both.

Their parameters have the names of the published weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from heatproof.models.arithmetic import Sum
from heatproof.models.nets import Scale, Shift, he_initialised


class FixupBottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions with single biases around each, and one scale.

    Without ``scalars`` there are convolutions alone. Where the shortcut has a convolution, the
    first bias is added before it, too.
    """

    def __init__(self, inputs: int, planes: int, stride: int, *, scalars: bool) -> None:
        super().__init__()
        outputs = 4 * planes
        shift = Shift if scalars else nn.Identity
        scale = Scale if scalars else nn.Identity
        self.bias1a = shift()
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bias1b = shift()
        self.relu1 = nn.ReLU()
        self.bias2a = shift()
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bias2b = shift()
        self.relu2 = nn.ReLU()
        self.bias3a = shift()
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.scale = scale()
        self.bias3b = shift()
        self.sum = Sum()
        self.relu3 = nn.ReLU()
        changes = inputs != outputs or stride > 1
        self.downsample = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        shifted = self.bias1a(x)
        out = self.relu1(self.bias1b(self.conv1(shifted)))
        out = self.relu2(self.bias2b(self.conv2(self.bias2a(out))))
        out = self.bias3b(self.scale(self.conv3(self.bias3a(out))))
        shortcut = x if self.downsample is None else self.downsample(shifted)
        result: Tensor = self.relu3(self.sum(out, shortcut))
        return result


def fixup_resnet(
    classes: int, *, blocks: Sequence[int] = (3, 4, 6, 3), scalars: bool = True
) -> nn.Sequential:
    """Build an untrained ResNet without norms.

    Args:
        classes: The number of logits.
        blocks: The number of blocks per layer.
        scalars: Whether to have biases and scales, as Zhang et al. 2019; without them it is an
            X-DNN of Hesse et al. 2021.
    """
    parts = OrderedDict[str, nn.Module](conv1=nn.Conv2d(3, 64, 7, 2, 3, bias=False))
    if scalars:
        parts["bias1"] = Shift()
    parts |= {"relu": nn.ReLU(), "maxpool": nn.MaxPool2d(3, 2, 1)}
    inputs = 64
    for number, depth in enumerate(blocks, start=1):
        planes = 64 * 2 ** (number - 1)
        stride = 1 if number == 1 else 2
        first = FixupBottleneck(inputs, planes, stride, scalars=scalars)
        others = (FixupBottleneck(4 * planes, planes, 1, scalars=scalars) for _ in range(depth - 1))
        parts[f"layer{number}"] = nn.Sequential(first, *others)
        inputs = 4 * planes
    parts["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if scalars:
        parts["bias2"] = Shift()
    parts["fc"] = nn.Linear(inputs, classes, bias=scalars)
    return he_initialised(nn.Sequential(parts))


def x_vgg(
    classes: int,
    *,
    widths: Sequence[Sequence[int]] = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
) -> nn.Sequential:
    """Build an untrained VGG-16 without biases (Hesse et al. 2021)."""
    features: list[nn.Module] = []
    inputs = 3
    for group in widths:
        for width in group:
            features += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.ReLU()]
            inputs = width
        features.append(nn.MaxPool2d(2))
    sizes = (inputs * 7 * 7, 4096, 4096)
    head: list[nn.Module] = []
    for before, after in pairwise(sizes):
        head += [nn.Linear(before, after, bias=False), nn.ReLU(), nn.Dropout()]
    parts = OrderedDict[str, nn.Module](
        features=nn.Sequential(*features), avgpool=nn.AdaptiveAvgPool2d(7), flatten=nn.Flatten()
    )
    parts["classifier"] = nn.Sequential(*head, nn.Linear(sizes[-1], classes, bias=False))
    return he_initialised(nn.Sequential(parts))
