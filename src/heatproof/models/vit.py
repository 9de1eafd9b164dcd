"""A plain vision transformer. Attention and both of its products are modules, so that they can be watched and given rules."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from heatproof.models.operations import Product, Sum


class Attention(nn.Module):
    """softmax(q kᵀ / √d) v in every head. The output of `softmax` is the attention, (B, heads, tokens, tokens)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.compare, self.softmax, self.mix = Product(), nn.Softmax(dim=-1), Product()

    def extra_repr(self) -> str:
        return f"heads={self.heads}"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )  # each (B, heads, tokens, d)
        attention = self.softmax(self.compare(q, k.mT) * self.scale)
        out: Tensor = self.proj(self.mix(attention, v).transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Norms first: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, dim: int, heads: int, ratio: float, eps: float = 1e-6) -> None:
        super().__init__()
        hidden = round(dim * ratio)
        self.norm1, self.attn, self.add1 = nn.LayerNorm(dim, eps), Attention(dim, heads), Sum()
        mlp = OrderedDict[str, nn.Module](
            fc1=nn.Linear(dim, hidden), act=nn.GELU(), fc2=nn.Linear(hidden, dim)
        )
        self.norm2, self.mlp, self.add2 = nn.LayerNorm(dim, eps), nn.Sequential(mlp), Sum()

    def forward(self, x: Tensor) -> Tensor:
        x = self.add1(x, self.attn(self.norm1(x)))
        out: Tensor = self.add2(x, self.mlp(self.norm2(x)))
        return out


class Tokens(nn.Module):
    """Image -> (B, 1 + patches, dim): the class token, then the patches row by row, each with its position."""

    def __init__(self, size: int, patch: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 1 + (size // patch) ** 2, dim))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.proj(x).flatten(2).mT
        return torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1) + self.pos_embed


class ClassToken(nn.Module):
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
    """tokens, block1…, norm, pool, head."""
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
    """Made of the parts above, in their order."""
    kinds = [type(stage) for stage in module.children()] if type(module) is nn.Sequential else []
    blocks = len(kinds) - 4
    return blocks > 0 and kinds == [Tokens, *[Block] * blocks, nn.LayerNorm, ClassToken, nn.Linear]
