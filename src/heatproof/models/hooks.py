"""Looking at what goes through a network's modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from torch import Tensor, nn


class Call(NamedTuple):
    inputs: tuple[Tensor, ...]
    output: Tensor


T = TypeVar("T")


@contextmanager
def record_calls(
    modules: Iterable[nn.Module], keep: Callable[[Call], T]
) -> Iterator[dict[nn.Module, T]]:
    """What is kept of each module's last call, while this lasts."""
    seen: dict[nn.Module, T] = {}
    handles = []
    try:
        for module in modules:
            handles.append(
                module.register_forward_hook(
                    lambda m, inputs, out: seen.__setitem__(m, keep(Call(inputs, out)))
                )
            )
        yield seen
    finally:
        for handle in handles:
            handle.remove()
