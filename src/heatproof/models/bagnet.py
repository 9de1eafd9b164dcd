"""BagNets (Brendel & Bethge 2019): the logits are the mean over places of what a small patch says alone.

Nothing is padded, so that a place sees nothing but its patch, wherever it lies.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from heatproof.models.operations import Sum


class Bottleneck(nn.Module):
    """1×1, k×k and 1×1 convolutions; what the shortcut has more at the bottom and on the right is cut off."""

    def __init__(
        self, inputs: int, planes: int, kernel: int, stride: int, expansion: int = 4
    ) -> None:
        super().__init__()
        outputs = planes * expansion
        self.conv1, self.bn1 = nn.Conv2d(inputs, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = (
            nn.Conv2d(planes, planes, kernel, stride, bias=False),
            nn.BatchNorm2d(planes),
        )
        self.conv3, self.bn3 = nn.Conv2d(planes, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu1, self.relu2, self.sum, self.relu3 = nn.ReLU(), nn.ReLU(), Sum(), nn.ReLU()
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
    """Its head averages over places. field: the side of the patch that a place sees, odd; stride: from one patch to the next."""

    @property
    def field(self) -> int:
        return self._geometry()[0]

    @property
    def stride(self) -> int:
        return self._geometry()[1]

    @property
    def head(self) -> nn.Linear:
        *_, last = (module for module in self.modules() if isinstance(module, nn.Linear))
        return last

    def _geometry(self) -> tuple[int, int]:
        field, stride = 1, 1
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d) and "downsample" not in name:
                field, stride = (
                    field + (module.kernel_size[0] - 1) * stride,
                    stride * module.stride[0],
                )
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
    """conv1, conv2, bn1, relu, layer1…, pool, fc. Kernel and stride are those of a layer's first block; its others see single places."""
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
