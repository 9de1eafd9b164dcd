"""Two networks that are one function, after Appendix H of Rao et al. 2024: does a method tell them apart?

Features of the whole image meet a layer that looks at the top left quarter alone. In the second network that layer also adds up all the
other features, once with each sign, and the next layer adds the two sums: nothing, for whatever image.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heatproof.errors import unknown
from heatproof.models.model import Model

PAIR = ("invariance-a", "invariance-b")
CHANNELS, CLASSES, SIZE = 16, 32, 64  # as paperbirds
WINDOW, SEEN = 15, 7  # of features of 16×16: what the layer looks at, and its corner that counts


def invariance(name: str) -> Model:
    """`rao2024/invariance-a`, or the same function written otherwise: `rao2024/invariance-b`."""
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
    weight = torch.zeros(CLASSES, CHANNELS, WINDOW, WINDOW)
    weight[..., :SEEN, :SEEN] = (
        torch.randn(CLASSES, CHANNELS, SEEN, SEEN, generator=rng) / (CHANNELS * SEEN**2) ** 0.5
    )
    if name.endswith("a"):
        stages.append(_convolution(weight))
    else:
        others = torch.ones(1, CHANNELS, WINDOW, WINDOW)
        others[..., :SEEN, :SEEN] = 0
        both = torch.cat(
            [torch.ones(CLASSES, 2), torch.eye(CLASSES)], 1
        )  # the sums first: they cancel before anything is rounded
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
