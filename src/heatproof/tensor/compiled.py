"""Loops over pixels, compiled by numba at their first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
T = TypeVar("T")


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a function, once per machine where its result can be kept.

    The function runs without Python's lock, so threads run side by side. Operations are neither
    reordered nor merged, so that all processors give the same bytes.
    """
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep it in
        return numba.njit(nogil=True)(function)
