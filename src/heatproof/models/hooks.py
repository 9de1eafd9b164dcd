"""Recording what goes through a network's modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeVar

from torch import Tensor, nn


class ModuleCall(NamedTuple):
    """Arguments and result of one call of a module."""

    inputs: tuple[Tensor, ...]
    output: Tensor


T = TypeVar("T")


@contextmanager
def record_calls(
    modules: Iterable[nn.Module], keep: Callable[[ModuleCall], T]
) -> Iterator[dict[nn.Module, T]]:
    """Record the last call of each module, for the duration of the context.

    Args:
        modules: The modules to watch.
        keep: What to record of a call.

    Yields:
        The records, by module.
    """
    seen: dict[nn.Module, T] = {}

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[module] = keep(ModuleCall(inputs, output))

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(record))
        yield seen
