"""A linear model, for the propositions of Picard et al. 2024 (Sec. 3.1, Appendix B)."""

from __future__ import annotations

import torch
from torch import nn

from heatproof.errors import unknown
from heatproof.models.model import Model

NAME = "picard2024/linear"
CLASSES = 32  # as paperbirds
SIZE = 64


def linear(name: str) -> Model:
    """Build ``picard2024/linear``: logits that are weighted sums of the pixels, plus a bias.

    Raises:
        HeatproofError: If the name is another one.
    """
    if name != NAME:
        raise unknown("model", name, [NAME])
    rng = torch.Generator().manual_seed(0)
    layer = nn.Linear(3 * SIZE**2, CLASSES)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=rng) / SIZE)
        layer.bias.copy_(torch.randn(CLASSES, generator=rng))
    net = nn.Sequential(nn.Flatten(), layer).eval()
    return Model(net, name=name, size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
