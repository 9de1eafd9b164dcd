"""Bounded batches of one fixed size, so that the bytes of a sample do not depend on its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


def chunks(samples: int, variants: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Index pairs (sample, variant) over all variants of all samples, at most `size` at a time, sample by sample.

    Sample by sample, because then the place of a pair in its chunk does not depend on how many samples come after it.
    """
    for flat in rows(torch.arange(samples * variants), size):
        yield flat // variants, flat % variants


def pad(x: Tensor, size: int) -> Tensor:  # (n, ...) -> (size, ...)
    """Fill up with zero rows, which lie in memory as the others do."""
    return (
        x
        if len(x) == size
        else torch.cat([x, torch.zeros_like(x[:1].expand(size - len(x), *x.shape[1:]))])
    )


def rows(x: Tensor, size: int) -> tuple[Tensor, ...]:
    """At most `size` rows at a time."""
    parts: tuple[Tensor, ...] = torch.split(x, size)
    return parts


def each(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Row by row, where a matrix product of all rows at once would round each by how many there are."""
    return torch.stack([function(row) for row in x])


class Block(NamedTuple):
    """All pairs of some samples and some variants."""

    rows: slice  # of the chunk
    samples: slice
    variants: slice

    def of(self, chunk: Tensor) -> Tensor:  # (n, …) -> (samples, variants, …), a view
        return chunk[self.rows].view(-1, self.variants.stop - self.variants.start, *chunk.shape[1:])


def blocks(sample: Tensor, variant: Tensor, variants: int) -> list[Block]:
    """A chunk as the last variants of one sample, whole samples, and the first variants of another: slices, where indices would copy."""
    begin = int(sample[0]) * variants + int(variant[0])
    end = begin + len(sample)
    edges = sorted(
        {
            begin,
            min(end, -(-begin // variants) * variants),
            max(begin, end // variants * variants),
            end,
        }
    )
    return [
        Block(
            slice(a - begin, b - begin),
            slice(a // variants, -(-b // variants)),
            slice(a % variants, (b - 1) % variants + 1),
        )
        for a, b in pairwise(edges)
    ]
