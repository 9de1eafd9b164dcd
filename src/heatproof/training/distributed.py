"""Data-parallel training: one process, or those that ``torchrun`` started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from heatproof.errors import HeatproofError


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those that train together; every call also works with one process."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    def parallel(self, net: nn.Module) -> nn.Module:
        """Wrap a network in DistributedDataParallel if there are several processes."""
        if self.size == 1:
            return net
        device_ids = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(net, device_ids=device_ids)

    def all_reduce(self, *values: float) -> list[float]:
        """Sum each value over all processes."""
        if self.size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return sums.tolist()

    def merge(self, entries: dict[str, Any]) -> dict[str, Any]:
        """Merge the dictionaries of all processes."""
        if self.size == 1:
            return entries
        gathered: list[dict[str, Any]] = [{}] * self.size
        dist.all_gather_object(gathered, entries)
        return {key: value for part in gathered for key, value in part.items()}

    def sync_buffers(self, net: nn.Module) -> None:
        """Copy the main process's buffers, such as running statistics, to the other processes."""
        if self.size > 1:
            for buffer in net.buffers():
                dist.broadcast(buffer, 0)

    def barrier(self) -> None:
        """Wait until all processes have reached this point."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def init_distributed(device: torch.device) -> Iterator[ProcessGroup]:
    """Join the processes that ``torchrun`` started, if any, and leave them on exit.

    They communicate by PyTorch's default for the device, such as gloo on a CPU and nccl on CUDA.

    Args:
        device: Device of this process.

    Yields:
        The process group; a group of one without ``torchrun``.

    Raises:
        HeatproofError: If PyTorch has no communication between processes for the device.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not dist.is_initialized():
        yield ProcessGroup(device)
        return
    joined = not dist.is_initialized()
    try:
        backend = dist.get_default_backend_for_device(device)
    except ValueError:
        raise HeatproofError(
            f"several processes cannot train on {device.type}, for which PyTorch has no "
            "communication between them; start a single process"
        ) from None
    if joined:
        dist.init_process_group(backend)
    try:
        yield ProcessGroup(device, dist.get_rank(), dist.get_world_size())
    finally:
        if joined:
            dist.destroy_process_group()
