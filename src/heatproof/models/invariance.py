"""Two networks that are the same function (Rao et al. 2024, Appendix H): do a method's maps differ?

A layer looks at the top left quarter of the features alone. In the second network that layer also
sums all other features, once with each sign, and the next layer adds the two sums: always zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heatproof.errors import unknown
from heatproof.models.model import Model

PAIR = ("invariance-a", "invariance-b")
CHANNELS = 16
CLASSES = 32  # as paperbirds
SIZE = 64
KERNEL_SIDE = 15  # over features of 16×16
NONZERO_SIDE = 7  # in a corner of the kernel


def invariance(name: str) -> Model:
    """Build ``rao2024/invariance-a``, or the same function in other layers, ``…-b``.

    Raises:
        HeatproofError: If the name is neither of the two.
    """
    if name.removeprefix("rao2024/") not in PAIR:
        raise unknown("model", name, [f"rao2024/{net}" for net in PAIR])
    rng = torch.Generator().manual_seed(0)
    stages: list[nn.Module] = []
    for inside in (3, CHANNELS):
        stages += [
            _convolution(
                torch.randn(CHANNELS, inside, 3, 3, generator=rng) / (9 * inside) ** 0.5,
                stride=2,
                padding=1,
            ),
            nn.ReLU(),
        ]
    weight = torch.zeros(CLASSES, CHANNELS, KERNEL_SIDE, KERNEL_SIDE)
    weight[..., :NONZERO_SIDE, :NONZERO_SIDE] = (
        torch.randn(CLASSES, CHANNELS, NONZERO_SIDE, NONZERO_SIDE, generator=rng)
        / (CHANNELS * NONZERO_SIDE**2) ** 0.5
    )
    if name.endswith("a"):
        stages.append(_convolution(weight))
    else:
        others = torch.ones(1, CHANNELS, KERNEL_SIDE, KERNEL_SIDE)
        others[..., :NONZERO_SIDE, :NONZERO_SIDE] = 0
        # The sums come first: they cancel before anything is rounded.
        both = torch.cat([torch.ones(CLASSES, 2), torch.eye(CLASSES)], 1)
        stages += [
            _convolution(torch.cat([others, -others, weight])),
            _convolution(both[:, :, None, None]),
        ]
    net = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    return Model(net, name=name, size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)


def _convolution(weight: Tensor, **options: int) -> nn.Conv2d:
    outside, inside, *sides = weight.shape
    layer = nn.Conv2d(inside, outside, tuple(sides), bias=False, **options)  # type: ignore[arg-type]
    layer.weight.data = weight
    return layer
