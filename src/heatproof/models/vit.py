"""A plain vision transformer.

Attention and both of its products are modules, so that they can be hooked and given rules.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from heatproof.models.arithmetic import Product, Sum


class Attention(nn.Module):
    """softmax(q kᵀ / √d) v in every head.

    The output of ``softmax`` is the attention, ``(B, heads, tokens, tokens)``.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.compare = Product()
        self.softmax = nn.Softmax(dim=-1)
        self.mix = Product()

    def extra_repr(self) -> str:
        return f"heads={self.heads}"

    def forward(self, x: Tensor) -> Tensor:
        # Each of the three is (B, heads, tokens, d).
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attention = self.softmax(self.compare(q, k.mT) * self.scale)
        out: Tensor = self.proj(self.mix(attention, v).transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Norms first: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, dim: int, heads: int, ratio: float, eps: float = 1e-6) -> None:
        super().__init__()
        hidden = round(dim * ratio)
        self.norm1 = nn.LayerNorm(dim, eps)
        self.attn = Attention(dim, heads)
        self.add1 = Sum()
        mlp = OrderedDict[str, nn.Module](
            fc1=nn.Linear(dim, hidden), act=nn.GELU(), fc2=nn.Linear(hidden, dim)
        )
        self.norm2 = nn.LayerNorm(dim, eps)
        self.mlp = nn.Sequential(mlp)
        self.add2 = Sum()

    def forward(self, x: Tensor) -> Tensor:
        x = self.add1(x, self.attn(self.norm1(x)))
        out: Tensor = self.add2(x, self.mlp(self.norm2(x)))
        return out


class Tokens(nn.Module):
    """Images as tokens ``(B, 1 + patches, dim)``: the class token, then the patches row by row."""

    def __init__(self, size: int, patch: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 1 + (size // patch) ** 2, dim))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.proj(x).flatten(2).mT
        return torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1) + self.pos_embed


class ClassToken(nn.Module):
    """The class token alone."""

    def forward(self, x: Tensor) -> Tensor:  # (B, tokens, dim) -> (B, dim)
        return x[:, 0]


def vit(
    classes: int,
    *,
    size: int = 64,
    patch: int = 8,
    dim: int = 64,
    depth: int = 4,
    heads: int = 4,
    ratio: float = 2.0,
) -> nn.Sequential:
    """Build an untrained vision transformer: tokens, block1…, norm, pool, head.

    Args:
        classes: The number of logits.
        size: The side of the images, in pixels.
        patch: The side of the patches, in pixels.
        dim: The width of a token.
        depth: The number of blocks.
        heads: The number of attention heads.
        ratio: The width of the MLP's hidden layer, as a multiple of ``dim``.
    """
    parts = OrderedDict[str, nn.Module](tokens=Tokens(size, patch, dim))
    for number in range(1, depth + 1):
        parts[f"block{number}"] = Block(dim, heads, ratio)
    parts |= {
        "norm": nn.LayerNorm(dim, eps=1e-6),
        "pool": ClassToken(),
        "head": nn.Linear(dim, classes),
    }
    return nn.Sequential(parts)


def is_vit(module: nn.Module) -> bool:
    """Return whether a module is made of the parts above, in their order."""
    kinds = [type(stage) for stage in module.children()] if type(module) is nn.Sequential else []
    blocks = len(kinds) - 4
    return blocks > 0 and kinds == [Tokens, *[Block] * blocks, nn.LayerNorm, ClassToken, nn.Linear]
