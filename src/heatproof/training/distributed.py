"""The processes that train together: one, or those that `torchrun` started."""

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
    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """The one that writes."""
        return self.rank == 0

    def parallel(self, net: nn.Module) -> nn.Module:
        if self.size == 1:
            return net
        return nn.parallel.DistributedDataParallel(
            net, device_ids=[self.device] if self.device.type == "cuda" else None
        )

    def all_reduce(self, *values: float) -> list[float]:
        """Each value, summed over all processes."""
        if self.size == 1:
            return list(values)
        told = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(told)
        return told.tolist()

    def gather(self, found: dict[str, Any]) -> dict[str, Any]:
        """What any of them found."""
        if self.size == 1:
            return found
        everyone: list[dict[str, Any]] = [{}] * self.size
        dist.all_gather_object(everyone, found)
        return {key: value for one in everyone for key, value in one.items()}

    def sync_buffers(self, net: nn.Module) -> None:
        """Running statistics are each process's own while it trains; the first one's count."""
        if self.size > 1:
            for buffer in net.buffers():
                dist.broadcast(buffer, 0)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextmanager
def init_distributed(device: torch.device) -> Iterator[ProcessGroup]:
    """Joins the others where `torchrun` says there are any (gloo on a CPU, nccl on CUDA), and leaves them at the end."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not dist.is_initialized():
        yield ProcessGroup(device)
        return
    if device.type not in ("cpu", "cuda"):
        raise HeatproofError(f"several processes train on cpu or cuda, not on {device.type}")
    joined = not dist.is_initialized()
    if joined:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield ProcessGroup(device, dist.get_rank(), dist.get_world_size())
    finally:
        if joined:
            dist.destroy_process_group()
