"""BagNets (Brendel & Bethge 2019): the logits are the mean of the logits of small patches.

Nothing is padded, so that a position sees nothing but its patch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from heatproof.models.arithmetic import Sum


class Bottleneck(nn.Module):
    """1×1, k×k and 1×1 convolutions with a shortcut, which is cropped at the bottom and right."""

    def __init__(
        self, inputs: int, planes: int, kernel: int, stride: int, expansion: int = 4
    ) -> None:
        super().__init__()
        outputs = planes * expansion
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel, stride, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.relu2 = nn.ReLU()
        self.sum = Sum()
        self.relu3 = nn.ReLU()
        changes = inputs != outputs or stride > 1
        shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )
        self.downsample: nn.Module = shortcut if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu2(self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x))))))
        out = self.bn3(self.conv3(out))
        kept: Tensor = self.downsample(x)[..., : out.shape[-2], : out.shape[-1]]
        result: Tensor = self.relu3(self.sum(out, kept))
        return result


class BagNet(nn.Sequential):
    """A network whose head averages over positions."""

    @property
    def field(self) -> int:
        """The side of the patch that a position sees, in pixels; it is odd."""
        return self._geometry()[0]

    @property
    def stride(self) -> int:
        """The distance from one patch to the next, in pixels."""
        return self._geometry()[1]

    @property
    def head(self) -> nn.Linear:
        """The linear layer that maps features to logits."""
        *_, last = (module for module in self.modules() if isinstance(module, nn.Linear))
        return last

    def _geometry(self) -> tuple[int, int]:
        field = 1
        stride = 1
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d) and "downsample" not in name:
                field += (module.kernel_size[0] - 1) * stride
                stride *= module.stride[0]
        return field, stride


def bagnet(
    classes: int,
    *,
    stem: int = 16,
    planes: Sequence[int] = (16, 24, 40, 48),
    kernels: Sequence[int] = (3, 3, 3, 1),
    strides: Sequence[int] = (2, 2, 1, 1),
    blocks: Sequence[int] = (),
    momentum: float = 0.1,
) -> BagNet:
    """Build an untrained BagNet: conv1, conv2, bn1, relu, layer1…, pool, fc.

    Args:
        classes: The number of logits.
        stem: The width of the first convolutions.
        planes: The inner width of each layer's blocks.
        kernels: The kernel of each layer's first block; its other blocks see single positions.
        strides: The stride of each layer's first block.
        blocks: The number of blocks per layer; by default one each.
        momentum: That of the stem's batch norm.
    """
    parts = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(3, stem, 1, bias=False), conv2=nn.Conv2d(stem, stem, 3, bias=False)
    )
    parts |= {"bn1": nn.BatchNorm2d(stem, momentum=momentum), "relu": nn.ReLU()}
    inputs = stem
    for number, (width, kernel, stride, depth) in enumerate(
        zip(planes, kernels, strides, blocks or [1] * len(planes), strict=True), start=1
    ):
        others = (Bottleneck(4 * width, width, 1, 1) for _ in range(depth - 1))
        parts[f"layer{number}"] = nn.Sequential(Bottleneck(inputs, width, kernel, stride), *others)
        inputs = 4 * width
    parts["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    parts["fc"] = nn.Linear(inputs, classes)
    return BagNet(parts)
