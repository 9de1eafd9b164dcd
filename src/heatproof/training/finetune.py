"""In-domain fine-tuning (Hesse et al. 2024): a network that was trained with deleted cells knows the images IDSDS judges it on."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import heatproof
from heatproof.baselines import Baseline
from heatproof.data.base import Data
from heatproof.data.folder import ImageFolder
from heatproof.errors import HeatproofError
from heatproof.files import TEMP_PREFIX, content_hash
from heatproof.models.model import Model
from heatproof.models.zoo import load_model
from heatproof.tensor.noise import generator
from heatproof.tensor.patches import grid_side
from heatproof.training.checkpoint import (
    RESUME,
    WEIGHTS,
    read_resume,
    write_resume,
    write_weights,
)
from heatproof.training.distributed import ProcessGroup, init_distributed
from heatproof.training.loader import BatchLoader, Deletion
from heatproof.training.schedule import Schedule, checked, loss_function
from heatproof.training.splits import opened, split
from heatproof.training.validate import judge


class Step(NamedTuple):
    """How far it is."""

    epoch: int
    epochs: int
    images: int  # done, of `total` over all epochs
    total: int
    loss: float


@dataclass(frozen=True)
class Epoch:
    """Accuracies are on the validation images; epoch 0 is the network as it came."""

    epoch: int
    loss: float | None  # mean over the training images as they were seen
    accuracy: float  # untouched images
    worst_all: float  # right whichever one cell is deleted
    worst_largest: float  # right without the cell that takes most of the label's probability
    seconds: float


@dataclass(frozen=True)
class FineTuned:
    weights: Path
    metrics: tuple[Epoch, ...]
    best: int  # the epoch whose weights were kept
    unreadable: dict[str, str]  # sample id -> why it was skipped
    empty: tuple[str, ...]  # classes without a training image


def finetune(
    model: Model | nn.Module | str,
    data: Data | str | tuple[Tensor, Sequence[int] | Tensor],
    *,
    out: str | Path,
    val: Data | str | tuple[Tensor, Sequence[int] | Tensor] | float | None = None,
    patches: int = 16,
    baseline: str = "zero",
    schedule: str | Schedule = "paper",
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    step: int | None = None,
    gamma: float | None = None,
    limit: int | None = None,
    augment: bool | None = None,
    seed: int = 0,
    workers: int = 2,
    worst_images: int = 512,
    progress: Callable[[Step], None] | None = None,
) -> FineTuned:
    """Fine-tune a copy of a model on images of which half have one cell of the √P×√P grid replaced by the baseline.

    data: a name ("paperbirds:train", "folder:/images"), a data set from `load_data`, or (images in [0, 1], labels).
    out: a directory for `fine-tuned.safetensors` (the epoch with the best clean accuracy on `val`, the later one of equals) and for
        what the same call needs to go on where it was killed.
    val: what that choice is made on; by default paperbirds:val, or a tenth of the images held out (a float is that share).
    schedule: "paper" (30 epochs, batch 256, SGD, learning rate 1e-3 divided by 10 every 10 epochs), "short" (the embedded models),
        or a Schedule; `epochs` … `limit` change one thing in it.
    augment: random resized crops and flips; by default on for image folders.
    worst_images: worst-patch accuracy costs P passes an image; it is measured on so many validation images.

    Under `torchrun` the batch is split over the processes, and the first one writes. Batch norm then sees its own process's part.
    """
    known, label = load_model(model), Baseline.parse(baseline)
    grid_side(patches, known.size, known.size)
    changes = {
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "step": step,
        "gamma": gamma,
        "limit": limit,
    }
    plan = checked(
        schedule, {key: value for key, value in changes.items() if value is not None}, known.module
    )
    if known.dtype not in (torch.float32, torch.float64):
        raise HeatproofError(
            f"{known.name} has weights of {known.dtype}; training takes float32: module.float()"
        )
    images = opened(data, known, plan.limit, seed)
    training, judging, validation = split(images, val, known, seed)
    crops = isinstance(images, ImageFolder) if augment is None else augment
    feed = BatchLoader(images, training, known, seed, crops, workers)
    held = BatchLoader(validation, judging, known, seed, workers=workers)
    feed.peek()
    held.peek()
    directory = Path(out)
    if directory.exists() and not directory.is_dir():
        raise HeatproofError(f"{directory} is a file, not a directory")
    directory.mkdir(parents=True, exist_ok=True)
    with init_distributed(known.device) as team:
        return Run(
            known,
            feed,
            held,
            Deletion(patches, label),
            plan,
            directory,
            seed,
            worst_images,
            team,
            progress,
        ).go()


@dataclass
class Run:
    model: Model
    feed: BatchLoader
    held: BatchLoader
    deletion: Deletion
    plan: Schedule
    out: Path
    seed: int
    worst_images: int
    team: ProcessGroup
    progress: Callable[[Step], None] | None

    def go(self) -> FineTuned:
        net = copy.deepcopy(self.model.module).requires_grad_(True)
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        net.zero_grad(set_to_none=True)
        optimiser = torch.optim.SGD(
            net.parameters(), self.plan.lr, self.plan.momentum, weight_decay=self.plan.weight_decay
        )
        if self.plan.batch_size < 2 * self.team.size or len(self.feed.indices) < 2 * self.team.size:
            raise HeatproofError(
                f"every process needs at least 2 images in a batch: {self.plan.batch_size} over {self.team.size}"
            )
        identity = self.identity()
        found = read_resume(self.out, identity, self.model.device)
        metrics: list[Epoch] = []
        if found is not None:
            metrics = restored(found, net, optimiser, self.out / RESUME)
            self.feed.unreadable.update(json.loads(found["metrics"])["unreadable"])
        if self.team.is_main:
            for left in self.out.glob(f"{TEMP_PREFIX}*"):
                left.unlink()
        parallel = self.team.parallel(net)
        if not metrics:
            metrics = [self.measured(net, 0, None, time.perf_counter())]
            self.keep(net, optimiser, metrics, identity)
        for epoch in range(len(metrics), self.plan.epochs + 1):
            start = time.perf_counter()
            for group in optimiser.param_groups:
                group["lr"] = self.plan.rate(epoch)
            loss = self.train(parallel, optimiser, epoch)
            self.team.sync_buffers(net)
            metrics.append(self.measured(net, epoch, loss, start))
            self.keep(net, optimiser, metrics, identity)
        self.team.wait()
        best = best_epoch(metrics)
        present = {self.feed.data.labels[i] for i in self.feed.indices}
        names = self.model.classes or [str(k) for k in range(self.model.n_classes)]
        empty = tuple(name for k, name in enumerate(names) if k not in present)
        return FineTuned(
            self.out / WEIGHTS,
            tuple(metrics),
            best,
            {**self.feed.unreadable, **self.held.unreadable},
            empty,
        )

    def train(self, net: nn.Module, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """One pass over the training images; the mean loss."""
        losses = loss_function(self.model)
        groups = self.groups(epoch)
        total = seen = 0.0
        on_gpu = [self.model.device] if self.model.device.type == "cuda" else []
        net.train()
        with torch.random.fork_rng(devices=on_gpu), torch.enable_grad():
            torch.manual_seed(
                int(generator(self.seed, "dropout", epoch, self.team.rank).integers(2**62))
            )
            mine = [group[self.team.rank :: self.team.size] for group in groups]
            for number, rows in enumerate(self.feed.batches(mine, epoch, self.deletion), start=1):
                count = len(rows.ids)
                logits = net(at_least_two(rows.x).contiguous(memory_format=torch.channels_last))
                loss = losses(logits[:count], rows.labels).sum()
                summed, images = self.team.all_reduce(loss.item(), count)
                if not math.isfinite(summed):
                    raise self.diverged(summed, epoch, number)
                total, seen = total + summed, seen + images
                optimiser.zero_grad()
                torch.autograd.backward(loss * (self.team.size / max(images, 1)))
                optimiser.step()
                if self.progress and self.team.is_main:
                    done = (epoch - 1) * sum(map(len, groups)) + sum(map(len, groups[:number]))
                    self.progress(
                        Step(
                            epoch,
                            self.plan.epochs,
                            done,
                            self.plan.epochs * sum(map(len, groups)),
                            total / max(seen, 1),
                        )
                    )
        if not seen:
            raise HeatproofError(
                f"none of the training images can be read: {next(iter(self.feed.unreadable.values()))}"
            )
        if not all(torch.isfinite(p).all() for p in net.parameters()):
            raise self.diverged(math.nan, epoch, len(groups))
        return total / seen

    def groups(self, epoch: int) -> list[list[int]]:
        """The epoch's batches, over all processes. A single image that is left over at the end is left out."""
        order = generator(self.seed, "order", epoch).permutation(self.feed.indices).tolist()
        size = self.plan.batch_size
        groups = [order[start : start + size] for start in range(0, len(order), size)]
        return groups if len(groups[-1]) > 1 else groups[:-1]

    def diverged(self, loss: float, epoch: int, step: int) -> HeatproofError:
        kept = f"{self.out} keeps epoch {epoch - 1}" if epoch > 1 else "nothing was kept"
        return HeatproofError(
            f"training diverged: the loss was {loss} in epoch {epoch}, batch {step}. Try a smaller learning rate "
            f"(lr={self.plan.rate(epoch) / 10:g} instead of {self.plan.rate(epoch):g}) in another directory; {kept}"
        )

    def measured(self, net: nn.Module, epoch: int, loss: float | None, start: float) -> Epoch:
        found = judge(net, self.held, self.deletion, self.worst_images, self.team)
        for feed in (self.feed, self.held):
            feed.unreadable.update(self.team.gather(feed.unreadable))
        return Epoch(epoch, loss, *found, seconds=round(time.perf_counter() - start, 3))

    def keep(
        self,
        net: nn.Module,
        optimiser: torch.optim.Optimizer,
        metrics: Sequence[Epoch],
        identity: dict[str, Any],
    ) -> None:
        """The best weights first: killed in between, the epoch is done again and gives the same bytes."""
        if not self.team.is_main:
            return
        told = identity | {"epochs": self.plan.epochs}
        last = metrics[-1]
        if last.epoch and best_epoch(metrics) == last.epoch:
            metadata = {
                "fine_tuned": identity["fine_tuned"],
                "model": self.model.name,
                "base": identity["base"],
                "recipe": json.dumps(told, sort_keys=True),
                "epoch": str(last.epoch),
                "accuracy": f"{last.accuracy:.4f}",
                "heatproof": heatproof.__version__,
            }
            if self.model.classes:
                metadata["classes"] = json.dumps(self.model.classes)
            write_weights(self.out / WEIGHTS, net.state_dict(), metadata)
        story = {
            "epochs": [asdict(epoch) for epoch in metrics],
            "unreadable": {**self.feed.unreadable, **self.held.unreadable},
        }
        parts = {"identity": json.dumps(identity), "epoch": last.epoch, "net": net.state_dict()}
        write_resume(
            self.out / RESUME,
            parts | {"optimiser": optimiser.state_dict(), "metrics": json.dumps(story)},
        )

    def identity(self) -> dict[str, Any]:
        """Everything that changes the weights, but for how long it goes on."""
        recipe = {
            key: value
            for key, value in asdict(self.plan).items()
            if key not in ("epochs", "limit", "lr_norm")
        }
        return {
            "fine_tuned": f"{self.deletion.patches}/{self.deletion.baseline.label}",
            "model": self.model.name,
            "base": self.model.fingerprint(),
            "data": f"{self.feed.data.name} {digest(self.feed)}",
            "val": f"{self.held.data.name} {digest(self.held)}",
            "augment": self.feed.augment,
            "seed": self.seed,
            **recipe,
        }


def at_least_two(x: Tensor) -> Tensor:
    """Batch norm needs two rows, and every process a pass, even where its share of the last batch is less or cannot be read."""
    return (
        x if len(x) > 1 else x.expand(2, *x.shape[1:]) if len(x) else x.new_zeros(2, *x.shape[1:])
    )


def best_epoch(metrics: Sequence[Epoch]) -> int:
    """By clean accuracy, the later one of equals; the network as it came does not take part."""
    return max(metrics[1:], key=lambda e: (e.accuracy, e.epoch), default=metrics[0]).epoch


def restored(
    found: dict[str, Any], net: nn.Module, optimiser: torch.optim.Optimizer, path: Path
) -> list[Epoch]:
    try:
        net.load_state_dict(found["net"])
        optimiser.load_state_dict(found["optimiser"])
        metrics = [Epoch(**told) for told in json.loads(found["metrics"])["epochs"]]
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise HeatproofError(
            f"cannot go on from {path}: it does not fit the model ({str(error).splitlines()[0]})"
        ) from error
    return metrics


def digest(feed: BatchLoader) -> str:
    data = feed.data
    told = repr([(data.ids[i], data.labels[i], data.fingerprints[i]) for i in feed.indices])
    return content_hash(told, length=12)
