"""A layer inside the last block of a plain ViT: the output of its first norm.

After the last block only the class token counts, so CAMs of vision transformers explain what its
attention looks at: the patches after the block's first norm. The residual stream bypasses the norm,
so an activation of this layer is the tokens after the norm, followed by those that bypass it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import torch
from torch import Tensor, nn

from heatproof.models.cutting import Staged, Steps
from heatproof.models.vit import Block


class WithLastNorm:
    """The body of a plain ViT with a further layer in its last block.

    Args:
        inner: The body without it, a chain of stages.
    """

    def __init__(self, inner: Staged):
        self.inner = inner
        self.stages = inner.stages
        last = max(i for i, stage in enumerate(inner.stages) if type(stage.module) is Block)
        self.block = cast(Block, inner.stages[last].module)
        self.norm = last + 1  # the number of the new layer, which comes after the block before
        names = inner.layers
        name = f"{inner.stages[last].name}.norm1"
        self.layers = [*names[: self.norm], name, *names[self.norm :]]
        self.aliases = {name: self._outer(layer) for name, layer in inner.aliases.items()}

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        before, after = self.norm - 1, self.norm
        seen: dict[int, Tensor] = {}
        if start < self.norm and (self.norm in watch or stop == self.norm):
            h, seen = self._inner(h, start, before, watch)
            start, h = self.norm, self._with_norm(h)
        if start == self.norm:
            if self.norm in watch:
                seen[self.norm] = h
            if stop == self.norm:
                return h, seen
            h = self._after_norm(h)
            if stop == after + 1:
                return h, seen | ({stop: h} if stop in watch else {})
            start = after + 1
        h, more = self._inner(h, start, stop, watch)
        return h, seen | more

    def steps(self, start: int) -> Steps:
        own: Steps = []
        if start == self.norm:
            own = [(start + 1, self._after_norm)]
            start += 1
        inner = self.inner.steps(start - (start > self.norm))
        outer = [(to if isinstance(to, str) else self._outer(to), run) for to, run in inner]
        return [*own, *outer]

    def module_after(self, layer: int) -> nn.Module | None:
        if layer in (self.norm - 1, self.norm):
            return None
        return self.inner.module_after(layer - (layer > self.norm))

    def _outer(self, layer: int) -> int:
        return layer + (layer >= self.norm)

    def _inner(
        self, h: Tensor, start: int, stop: int | None, watch: Collection[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run the body without the new layer; numbers are those with it."""
        numbers = {layer - (layer > self.norm): layer for layer in watch if layer != self.norm}
        end = None if stop is None else stop - (stop > self.norm)
        first = start - (start > self.norm)
        h, seen = self.inner.run(h, first, end, [n for n in numbers if n >= first])
        return h, {numbers[layer]: values for layer, values in seen.items()}

    def _with_norm(self, h: Tensor) -> Tensor:
        return torch.cat([self.block.norm1(h), h], 1)

    def _after_norm(self, h: Tensor) -> Tensor:
        normed, x = (part.contiguous() for part in h.chunk(2, 1))
        block = self.block  # as in its own `forward`
        x = block.add1(x, block.attn(normed))
        out: Tensor = block.add2(x, block.mlp(block.norm2(x)))
        return out
