"""Blocks of samples: how slow steps are cut, so that what is computed can be written in between."""

from __future__ import annotations

import math
from collections.abc import Sequence

PART_SECONDS = 60.0  # a part is written when the last one is older than this
MOST_EXTRA_PASSES = 1.2  # a factor: passes of blocks of samples are less full


def blocks(
    rows: Sequence[int], seconds: float | None, variants: float, batch_size: int
) -> list[slice]:
    """Divide samples into blocks that take no longer than a part may.

    Args:
        rows: Positions of the samples, ascending.
        seconds: Expected time per sample; None if it is unknown.
        variants: Images per sample in one series of passes; 0 if it is unknown. Blocks are not so
            small that there would be more than a fifth more passes, since passes have a fixed
            number of rows.
        batch_size: Images in one pass.

    Returns:
        Contiguous blocks; a single one if the samples are fast or their time is unknown.
    """
    size = len(rows)
    if seconds is not None and seconds * size > PART_SECONDS and variants >= 1:
        least = _smallest_block(size, variants, batch_size)
        size = min(size, max(least, int(PART_SECONDS / seconds) // least * least))
    return contiguous(rows, size)


def contiguous(rows: Sequence[int], size: int) -> list[slice]:
    """Divide ascending positions into blocks without gaps, of at most ``size``."""
    found: list[slice] = []
    for row in rows:
        if found and found[-1].stop == row and row - found[-1].start < size:
            found[-1] = slice(found[-1].start, row + 1)
        else:
            found.append(slice(row, row + 1))
    return found


def _smallest_block(samples: int, variants: float, batch_size: int) -> int:
    """Return the smallest block with which passes are filled well enough."""

    def passes(block: int) -> int:
        whole, rest = divmod(samples, block)
        return whole * math.ceil(block * variants / batch_size) + math.ceil(
            rest * variants / batch_size
        )

    most = MOST_EXTRA_PASSES * passes(samples)
    return next(block for block in range(1, samples + 1) if passes(block) <= most)
