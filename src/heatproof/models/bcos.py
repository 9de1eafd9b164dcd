"""B-cos networks (Böhle et al. 2022): a layer's output is a projection times its alignment.

In explanation mode the alignments are constants to the gradient: the network is then linear in its
encoded input, f(x) = W(x)·[x, 1 − x] + bias, and W(x) is its gradient.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import log
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, normalize

from heatproof.models.arithmetic import Sum


class Encode(nn.Module):
    """Encode images in [0, 1] as [x, 1 − x]: six channels, so that black is as bright as white."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, 1 - x], dim=1)


class BcosConv(nn.Conv2d):
    """|cos|^(B−1) · ŵᵀx at every position, where ŵ has length 1.

    Of every ``max_out`` filters, the one with the largest projection counts.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        b: float = 2.0,
        max_out: int = 1,
    ) -> None:
        super().__init__(inputs, outputs * max_out, kernel, stride, kernel // 2, bias=False)
        self.b = b
        self.max_out = max_out
        self.explaining = False

    def forward(self, x: Tensor) -> Tensor:
        weight = normalize(self.weight.flatten(1)).view_as(self.weight)
        out = conv2d(x, weight, stride=self.stride, padding=self.padding)
        if self.max_out > 1:
            out = out.view(len(out), -1, self.max_out, *out.shape[2:]).amax(2)
        alignment = out.abs() / self.lengths(x)
        scale = alignment if self.b == 2 else (alignment + 1e-6) ** (self.b - 1)
        return out * (scale.detach() if self.explaining else scale)

    def lengths(self, x: Tensor) -> Tensor:
        """Compute the length of the patch under the filter, ``(B, 1, h, w)``."""
        squares = avg_pool2d(
            x.square().sum(1, keepdim=True),
            self.kernel_size[0],
            self.stride[0],
            self.kernel_size[0] // 2,
            divisor_override=1,
        )
        return (squares + 1e-6).sqrt()

    def extra_repr(self) -> str:
        return (
            f"{tuple(self.weight.shape)}, stride={self.stride}, b={self.b}, max_out={self.max_out}"
        )


class Uncentred(nn.Module):
    """Batch norm that subtracts no mean, so that a linear network stays linear.

    It divides by the root mean square or, if ``centred``, by the standard deviation, as the
    published networks do.
    """

    running_var: Tensor

    def __init__(
        self, channels: int, momentum: float = 0.1, eps: float = 1e-5, *, centred: bool = False
    ) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.centred = centred
        self.weight = nn.Parameter(torch.ones(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        variance = self.running_var
        if self.training:
            variance = (
                x.var((0, 2, 3), correction=0) if self.centred else x.square().mean((0, 2, 3))
            )
            self.running_var.lerp_(variance.detach(), self.momentum)
        return x * (self.weight / (variance + self.eps).sqrt()).view(-1, 1, 1)


class BcosHead(BcosConv):
    """Logits: the mean of class maps, divided by a temperature, plus a constant.

    The classes are independent of each other, so a network with this head is trained with binary
    cross entropy. Its gradients are those of a mean over the classes, which are small: the paper
    fine-tunes with ten times the learning rate of the other networks.
    """

    loss: ClassVar[str] = "binary_cross_entropy"
    fine_tuning_lr: ClassVar[float] = 1e-2

    def __init__(
        self, inputs: int, classes: int, *, logit_bias: float, temperature: float = 1.0
    ) -> None:
        super().__init__(inputs, classes, 1)
        self.logit_bias = logit_bias
        self.temperature = temperature

    def forward(self, x: Tensor) -> Tensor:  # (B, C, h, w) -> (B, K)
        return super().forward(x).mean((2, 3)) / self.temperature + self.logit_bias

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, logit_bias={self.logit_bias}, temperature={self.temperature}"
        )


class BcosBlock(nn.Module):
    """norm(B-cos(norm(B-cos(x)))) + x; a bottleneck has three B-cos layers.

    Where the stride or the width changes, the shortcut is a B-cos layer too.
    """

    def __init__(
        self,
        inputs: int,
        planes: int,
        stride: int,
        *,
        bottleneck: bool = False,
        centred: bool = False,
    ) -> None:
        super().__init__()
        widths = (planes, planes, 4 * planes) if bottleneck else (planes, planes)
        kernels = (1, 3, 1) if bottleneck else (3, 3)
        strides = (1, stride, 1) if bottleneck else (stride, 1)
        self.depth = len(widths)
        before = inputs
        for number, (width, kernel, step) in enumerate(
            zip(widths, kernels, strides, strict=True), start=1
        ):
            self.add_module(f"conv{number}", BcosConv(before, width, kernel, stride=step))
            self.add_module(f"bn{number}", Uncentred(width, centred=centred))
            before = width
        self.sum = Sum()
        changes = inputs != before or stride > 1
        shortcut = nn.Sequential(
            BcosConv(inputs, before, 1, stride=stride), Uncentred(before, centred=centred)
        )
        self.downsample: nn.Module = shortcut if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for number in range(1, self.depth + 1):
            out = self.get_submodule(f"bn{number}")(self.get_submodule(f"conv{number}")(out))
        total: Tensor = self.sum(out, self.downsample(x))
        return total


def bcos(
    classes: int,
    *,
    widths: Sequence[int] = (24, 32, 56, 88),
    strides: Sequence[int] = (1, 2, 2, 1),
    blocks: Sequence[int] = (),
    stem: int = 2,
    kernel: int = 3,
    pool: bool = False,
    bottleneck: bool = False,
    centred: bool = False,
    temperature: float = 1.0,
) -> nn.Sequential:
    """Build an untrained B-cos network: encode, conv1, bn1, [pool,] layer1…, fc.

    Args:
        classes: The number of logits.
        widths: The width of each layer; a bottleneck's output is four times as wide.
        strides: The stride of each layer's first block.
        blocks: The number of blocks per layer; by default one each.
        stem: The stride of the first convolution.
        kernel: The kernel of the first convolution.
        pool: Whether to average-pool after the stem.
        bottleneck: Whether blocks have three layers instead of two.
        centred: Whether norms divide by the standard deviation (see ``Uncentred``).
        temperature: What the head divides by.
    """
    parts = OrderedDict[str, nn.Module](
        encode=Encode(), conv1=BcosConv(6, widths[0], kernel, stride=stem)
    )
    parts["bn1"] = Uncentred(widths[0], centred=centred)
    if pool:
        parts["pool"] = nn.AvgPool2d(3, 2, 1)
    block = partial(BcosBlock, bottleneck=bottleneck, centred=centred)
    inputs = widths[0]
    depths = blocks or [1] * len(widths)
    for number, (width, stride, depth) in enumerate(
        zip(widths, strides, depths, strict=True), start=1
    ):
        outputs = 4 * width if bottleneck else width
        parts[f"layer{number}"] = nn.Sequential(
            block(inputs, width, stride), *(block(outputs, width, 1) for _ in range(depth - 1))
        )
        inputs = outputs
    parts["fc"] = BcosHead(
        inputs, classes, logit_bias=log(1 / (classes - 1)), temperature=temperature
    )
    return nn.Sequential(parts)


def is_bcos(module: nn.Module) -> bool:
    """Return whether the network has B-cos layers."""
    return any(isinstance(m, BcosConv) for m in module.modules())


@contextmanager
def explaining(module: nn.Module) -> Iterator[None]:
    """Make alignments and lengths constants to the gradient, for the duration of the context."""
    layers = [(m, m.explaining) for m in module.modules() if isinstance(m, BcosConv)]
    for layer, _ in layers:
        layer.explaining = True
    try:
        yield
    finally:
        for layer, before in layers:
            layer.explaining = before
