"""Arithmetic as modules, so that it can be hooked and given a rule."""

from __future__ import annotations

from torch import Tensor, nn


class Sum(nn.Module):
    """a + b."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Product(nn.Module):
    """The matrix product a b."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b
