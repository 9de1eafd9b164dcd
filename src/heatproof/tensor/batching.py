"""Batches of a fixed size, so that a sample's bytes do not depend on the rest of its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


def chunks(samples: int, variants: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Enumerate all variants of all samples in chunks, sample by sample.

    In this order a pair's position in its chunk does not depend on how many samples follow.

    Args:
        samples: Number of samples.
        variants: Number of variants per sample.
        size: Maximum number of pairs per chunk.

    Yields:
        Sample indices and variant indices, ``(n,)`` each with n ≤ ``size``.
    """
    for flat in rows(torch.arange(samples * variants), size):
        yield flat // variants, flat % variants


def pad(x: Tensor, size: int) -> Tensor:  # (n, ...) -> (size, ...)
    """Append rows of zeros, in the same memory layout as the others."""
    if len(x) == size:
        return x
    zeros = torch.zeros_like(x[:1].expand(size - len(x), *x.shape[1:]))
    return torch.cat([x, zeros])


def rows(x: Tensor, size: int) -> tuple[Tensor, ...]:
    """Split a tensor along its first dimension into parts of at most ``size`` rows."""
    parts: tuple[Tensor, ...] = torch.split(x, size)
    return parts


def map_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function to each row separately and stack the results.

    A matrix product of all rows at once would round each row depending on their number.
    """
    return torch.stack([function(row) for row in x])


class Block(NamedTuple):
    """All pairs of consecutive samples and consecutive variants within a chunk."""

    rows: slice  # of the chunk
    samples: slice
    variants: slice

    def select(self, chunk: Tensor) -> Tensor:  # (n, …) -> (samples, variants, …)
        """Return a view of the block's rows."""
        return chunk[self.rows].view(-1, self.variants.stop - self.variants.start, *chunk.shape[1:])


def blocks(sample: Tensor, variant: Tensor, variants: int) -> list[Block]:
    """Divide a chunk into blocks, which can be sliced instead of copied by index.

    Args:
        sample: Sample indices of the chunk, ``(n,)``, from `chunks`.
        variant: Variant indices of the chunk, ``(n,)``.
        variants: Number of variants per sample.

    Returns:
        Up to three blocks: the last variants of one sample, complete samples, and the first
        variants of another sample.
    """
    begin = int(sample[0]) * variants + int(variant[0])
    end = begin + len(sample)
    first_complete = min(end, -(-begin // variants) * variants)
    last_complete = max(begin, end // variants * variants)
    edges = sorted({begin, first_complete, last_complete, end})
    return [
        Block(
            slice(a - begin, b - begin),
            slice(a // variants, -(-b // variants)),
            slice(a % variants, (b - 1) % variants + 1),
        )
        for a, b in pairwise(edges)
    ]
