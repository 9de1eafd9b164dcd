"""Recognize that memory ran out, on a graphics card or in the main memory."""

from __future__ import annotations

import torch

CPU_ALLOCATOR_MESSAGES = ("can't allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        text in str(error) for text in CPU_ALLOCATOR_MESSAGES
    )
