"""Positions of an image in a layer's activation: channels first, last, or tokens.

Convolutional networks have activations of shape ``(B, C, h, w)``. Transformers have tokens
``(B, N, D)``, of which the first may stand for no position (class, distillation and register
tokens), or channels last, ``(B, h, w, D)``, as Swin of timm and torchvision.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

from torch import Tensor, nn

# The number of tokens before the patches, where the network does not say it.
PREFIX_TOKENS = {
    0: "patches alone, as in Swin",
    1: "a class token, as in ViT and BEiT",
    2: "class and distillation tokens, as in DeiT",
    5: "a class token and four registers, as in DINOv2",
}


class Grid(NamedTuple):
    """View of an activation that is not ``(B, C, h, w)`` as one that is.

    Attributes:
        height: The number of rows.
        width: The number of columns.
        prefix: The number of tokens before those of the positions; None: channels come last.
    """

    height: int
    width: int
    prefix: int | None = None

    def channels_first(self, activation: Tensor) -> Tensor:
        """Return an activation, or its gradient, as ``(B, C, h, w)`` without the prefix."""
        if self.prefix is None:
            return activation.movedim(-1, 1)
        patches = activation[:, self.prefix : self.prefix + self.height * self.width]
        return patches.mT.reshape(*patches.mT.shape[:2], self.height, self.width)

    @property
    def text(self) -> str:
        """Description of the activation, for messages."""
        if self.prefix is None:
            return f"features of {self.height}×{self.width} positions with channels last"
        before = f" after {self.prefix} other(s)" if self.prefix else ""
        return f"tokens of {self.height}×{self.width} patches{before}"


def find_grid(module: nn.Module, shape: Sequence[int], image: Sequence[int]) -> Grid | None:
    """Find the grid of an activation that does not have channels first.

    The channels of tokens are what norms of the network normalize; other tensors of three
    dimensions have no grid.

    Args:
        module: The network.
        shape: The shape of one image's activation: (N, D) or (h, w, D).
        image: Height and width of the image.

    Returns:
        The grid; None if the activation has channels first, or no positions.
    """
    if not shape:  # one number per image
        return None
    last = shape[-1]
    normalized = {m.normalized_shape[-1] for m in module.modules() if isinstance(m, nn.LayerNorm)}
    normalized |= {m.num_features for m in module.modules() if isinstance(m, nn.BatchNorm1d)}
    if last not in normalized:
        return None
    if len(shape) == 3:
        height, width, _ = shape
        first = normalized | {m.out_channels for m in module.modules() if isinstance(m, nn.Conv2d)}
        is_last = height not in first and height * image[1] == width * image[0]
        return Grid(height, width) if is_last and height * width > 1 else None
    if len(shape) != 2:
        return None
    known = getattr(module, "num_prefix_tokens", None)  # timm's name
    for prefix in PREFIX_TOKENS if known is None else (known,):
        height = isqrt((shape[0] - prefix) * image[0] // image[1]) if shape[0] > prefix else 0
        width = height * image[1] // image[0]
        if height * width == shape[0] - prefix > 1:
            return Grid(height, width, prefix)
    return None
