"""Communication between processes on the pretend accelerator: by copies on the processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future


class Collectives(dist.ProcessGroup):
    """What data-parallel training needs, of tensors of the pretend accelerator."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any):
        super().__init__(rank, size)
        self._host = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._name = ""

    def _on_host(
        self, tensors: Sequence[Tensor], run: Callable[[list[Tensor]], Any], result: Any
    ) -> Any:
        copies = [tensor.cpu() for tensor in tensors]
        run(copies).wait()
        for tensor, copied in zip(tensors, copies, strict=True):
            tensor.copy_(copied)
        future: Future[Any] = Future()
        future.set_result(result)
        return _create_work_from_future(future)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._on_host(tensors, lambda copies: self._host.allreduce(copies), tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        return self._on_host(tensors, lambda copies: self._host.broadcast(copies, opts), tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        sent = inputs[0].cpu()
        run = lambda copies: self._host.allgather([copies], [sent])  # noqa: E731
        return self._on_host(outputs[0], run, outputs)

    def barrier(self, opts: Any = None) -> Any:
        return self._on_host([], lambda _: self._host.barrier(), [])

    def getBackendName(self) -> str:
        return "pretend"

    @property
    def pg_name(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name


def register() -> None:
    """Let processes on the pretend accelerator communicate."""
    dist.Backend.register_backend("pretend", Collectives, devices=["fake"])
    assert dist.get_default_backend_for_device(torch.device("fake")) == "pretend"
