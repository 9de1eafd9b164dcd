"""Bounded batches of one fixed size, so that the bytes of a sample do not depend on its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    return x if len(x) == size else torch.cat([x, torch.zeros_like(x[:1].expand(size - len(x), *x.shape[1:]))])


def rows(x: Tensor, size: int) -> tuple[Tensor, ...]:
    """At most `size` rows at a time."""
    parts: tuple[Tensor, ...] = torch.split(x, size)
    return parts


def each(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Row by row, where a matrix product of all rows at once would round each by how many there are."""
    return torch.stack([function(row) for row in x])


def taken(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows], which lie in memory as x does, in a fraction of the time."""
    return x.index_select(0, rows) if not _last(x) else x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)


def add_at(total: Tensor, rows: Tensor, values: Tensor) -> None:
    """total[rows] += values, where a row may come more than once."""
    if _last(total) and _last(values):
        total, values = total.permute(0, 2, 3, 1), values.permute(0, 2, 3, 1)  # memory in its order
    total.index_add_(0, rows, values)


def _last(x: Tensor) -> bool:
    return x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
