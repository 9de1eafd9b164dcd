"""In-domain fine-tuning (Hesse et al. 2024).

A network that was trained with deleted patches has seen images like those that IDSDS shows it.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import heatproof
from heatproof.baselines import Baseline
from heatproof.data.base import Data
from heatproof.data.folder import ImageFolder
from heatproof.errors import HeatproofError, unknown
from heatproof.files import TEMP_PREFIX, content_hash
from heatproof.models.heads import as_logits
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
from heatproof.training.loader import BatchLoader, Deletion, PixelDeletion
from heatproof.training.losses import loss_function, loss_name
from heatproof.training.probes import Probes
from heatproof.training.schedule import Schedule, resolve_schedule
from heatproof.training.splits import NO_VALIDATION, open_training_data, split
from heatproof.training.validate import validate

Precision = Literal["auto", "float32", "bfloat16"]


class Step(NamedTuple):
    """Progress of a fine-tuning after a batch.

    Attributes:
        epoch: Current epoch, from 1.
        epochs: Number of epochs.
        images: Images seen so far, over all epochs.
        total: Images to see, over all epochs.
        loss: Mean loss of the epoch so far.
    """

    epoch: int
    epochs: int
    images: int
    total: int
    loss: float


@dataclass(frozen=True)
class Epoch:
    """Metrics of an epoch on the validation images; epoch 0 is the model before fine-tuning.

    Attributes:
        epoch: Number of the epoch.
        loss: Mean training loss; None for epoch 0.
        accuracy: Fraction of clean images that are classified correctly.
        worst_all: Fraction of images that stay correct whichever single patch is deleted.
        worst_largest: Fraction of images that stay correct when the patch is deleted whose
            deletion leaves the label the lowest probability.
        seconds: Duration of training and validation.
        drop: Mean drop of the label's logit when a patch is deleted.
        probes: Mean IDSDS of each probe method (see `heatproof.training.probes`).
        idsds: Mean over the images of the mean IDSDS of the probe methods.
        idsds_error: Standard error of ``idsds``.
    """

    epoch: int
    loss: float | None
    accuracy: float
    worst_all: float
    worst_largest: float
    seconds: float
    drop: float | None = None
    probes: dict[str, float] = field(default_factory=dict)
    idsds: float | None = None
    idsds_error: float | None = None


@dataclass(frozen=True)
class FineTuned:
    """Result of a fine-tuning.

    Attributes:
        weights: File with the weights of the best epoch.
        metrics: Metrics of all epochs, from epoch 0.
        best: The epoch whose weights were kept.
        unreadable: Reason by sample id, for the images that were skipped.
        empty_classes: Classes without a training image.
    """

    weights: Path
    metrics: tuple[Epoch, ...]
    best: int
    unreadable: dict[str, str]
    empty_classes: tuple[str, ...]


def finetune(
    model: Model | nn.Module | str,
    data: Data | str | tuple[Tensor, Sequence[int] | Tensor],
    *,
    out: str | Path,
    val: Data | str | tuple[Tensor, Sequence[int] | Tensor] | float | int | None = None,
    patches: int = 16,
    pixels: float | None = None,
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
    precision: Precision = "auto",
    progress: Callable[[Step], None] | None = None,
) -> FineTuned:
    """Fine-tune a copy of a model on images of which half have one patch replaced by a baseline.

    Or on images that have all lost some random pixels, for `f-fidelity` in place of `idsds`.

    The same call again resumes a fine-tuning that was interrupted. Under ``torchrun`` each batch
    is divided among the processes, and the main process writes the files; batch norm then uses
    the statistics of its own process's part of the batch.

    Args:
        model: A ``Model``, a module, or the name of a model. It is not changed.
        data: Training images: a name such as ``paperbirds:train`` or ``folder:/images``, a data
            set from ``load_data``, or a pair of images ``(N, C, H, W)`` in [0, 1] and labels
            ``(N,)``.
        out: Directory for ``fine-tuned.safetensors``, the epoch with the best clean accuracy on
            ``val``, and for what is needed to resume. Of equal epochs the last is kept: if the
            accuracy is 100 % throughout, that is the last epoch.
        val: Validation images, like ``data``, or the fraction or number of images of ``data`` to
            hold out. By default paperbirds:val for paperbirds:train, and a tenth of the images
            otherwise. ``none`` trains on all images, as the paper does: accuracies are then those
            of a tenth of the training images, and the last epoch is kept.
        patches: Number of patches P of the √P×√P grid.
        pixels: Deletes this part of the pixels in every image, for example 0.1, in place of
            patches; these are then only what worst-patch accuracy is measured with.
        baseline: What a deleted patch or pixel is replaced by.
        schedule: ``paper`` (30 epochs of SGD, batch size 256, learning rate 1e-3 or, for B-cos
            networks, 1e-2, divided by 10 every 10 epochs), ``short`` (the schedule of all embedded
            models), or a ``Schedule``. The loss is cross entropy, and binary cross entropy for
            B-cos networks and for the heads ``sigmoid`` and ``binary``.
        epochs: Replaces the number of epochs of the schedule.
        batch_size: Replaces the batch size of the schedule.
        lr: Replaces the learning rate of the schedule.
        momentum: Replaces the momentum of the schedule.
        weight_decay: Replaces the weight decay of the schedule.
        step: Replaces the number of epochs between two reductions of the learning rate.
        gamma: Replaces the factor of these reductions.
        limit: Replaces the number of training images of the schedule.
        augment: Whether to crop and mirror images at random; by default only image folders.
        seed: Seed of crops, deletions, dropout and the order of the images.
        workers: Threads that read images.
        worst_images: Number of validation images on which worst-patch accuracy is measured; it
            costs P forward passes per image. On the first 256 of them, the IDSDS of some cheap
            methods is measured too.
        precision: ``float32``; ``bfloat16``, which trains with mixed precision; or ``auto``, mixed
            precision on GPUs that have bfloat16. Weights and validation are in float32 in any case.
        progress: Called after each batch.

    Returns:
        The weights file and the metrics of all epochs.

    Raises:
        HeatproofError: If an argument is invalid, the data does not fit the model, ``out`` holds a
            fine-tuning with other settings, or training diverges.
    """
    loaded = load_model(model)
    if pixels is not None and not 0 < pixels < 1:
        raise HeatproofError(f"pixels is a part of the pixels, between 0 and 1; got {pixels}")
    replaced_by = Baseline.parse(baseline)
    deletion = (
        Deletion(patches, replaced_by)
        if pixels is None
        else PixelDeletion(pixels, replaced_by, patches)
    )
    grid_side(patches, loaded.height, loaded.width)
    settings = {
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "step": step,
        "gamma": gamma,
        "limit": limit,
    }
    changes = {key: value for key, value in settings.items() if value is not None}
    resolved = resolve_schedule(schedule, changes, loaded.module)
    if loaded.dtype not in (torch.float32, torch.float64):
        raise HeatproofError(
            f"{loaded.name} has weights of {loaded.dtype}, but training needs float32; "
            "convert it with module.float()"
        )
    images = open_training_data(data, loaded, resolved.limit, seed)
    train_indices, val_indices, val_images, held_out = split(images, val, loaded, seed)
    if augment is None:
        augment = isinstance(images, ImageFolder)
    train_loader = BatchLoader(images, train_indices, loaded, seed, augment, workers)
    val_loader = BatchLoader(val_images, val_indices, loaded, seed, workers=workers)
    train_loader.check_first()
    val_loader.check_first()
    directory = Path(out)
    if directory.exists() and not directory.is_dir():
        raise HeatproofError(f"{directory} is a file; choose a directory for the weights")
    directory.mkdir(parents=True, exist_ok=True)
    with init_distributed(loaded.device) as processes:
        trainer = Trainer(
            loaded,
            train_loader,
            val_loader,
            deletion,
            resolved,
            directory,
            seed,
            worst_images,
            processes,
            progress,
            held_out,
            uses_bfloat16(precision, loaded),
        )
        return trainer.run()


@dataclass
class Trainer:
    """One fine-tuning; the fields correspond to the arguments of `finetune`."""

    model: Model
    train_loader: BatchLoader
    val_loader: BatchLoader
    deletion: Deletion | PixelDeletion
    schedule: Schedule
    out: Path
    seed: int
    worst_images: int
    processes: ProcessGroup
    progress: Callable[[Step], None] | None
    held_out: bool = True  # whether validation images are not trained on
    mixed: bool = False  # whether passes of the training are in bfloat16

    def run(self) -> FineTuned:
        """Train all epochs that are missing."""
        self._check_batch_size()
        net = copy.deepcopy(self.model.module).requires_grad_(True)
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        net.zero_grad(set_to_none=True)
        optimiser = torch.optim.SGD(
            net.parameters(),
            self.schedule.lr,
            self.schedule.momentum,
            weight_decay=self.schedule.weight_decay,
        )
        identity = self.identity()
        checkpoint = read_resume(self.out, identity, self.model.device)
        metrics: list[Epoch] = []
        if checkpoint is not None:
            metrics = _restore(checkpoint, net, optimiser, self.out / RESUME)
            self.train_loader.unreadable.update(json.loads(checkpoint["metrics"])["unreadable"])
        if self.processes.is_main:
            for unfinished in self.out.glob(f"{TEMP_PREFIX}*"):
                unfinished.unlink()
        parallel = self.processes.parallel(net)
        if not metrics:
            metrics = [self.evaluate(net, 0, None, time.perf_counter())]
            self.save(net, optimiser, metrics, identity)
        for epoch in range(len(metrics), self.schedule.epochs + 1):
            start = time.perf_counter()
            for group in optimiser.param_groups:
                group["lr"] = self.schedule.rate(epoch)
            loss = self.train_epoch(parallel, optimiser, epoch)
            self.processes.sync_buffers(net)
            metrics.append(self.evaluate(net, epoch, loss, start))
            self.save(net, optimiser, metrics, identity)
        self.processes.barrier()
        return FineTuned(
            self.out / WEIGHTS,
            tuple(metrics),
            self.kept_epoch(metrics),
            self._unreadable(),
            self._empty_classes(),
        )

    def train_epoch(self, net: nn.Module, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """Make one pass over the training images and return the mean loss."""
        per_sample_loss = loss_function(self.model)
        batches = self.batch_indices(epoch)
        sizes = [len(batch) for batch in batches]
        rank = self.processes.rank
        local_batches = [batch[rank :: self.processes.size] for batch in batches]
        total = 0.0
        seen = 0.0
        on_gpu = [self.model.device] if self.model.device.type == "cuda" else []
        net.train()
        with torch.random.fork_rng(devices=on_gpu), torch.enable_grad():
            torch.manual_seed(int(generator(self.seed, "dropout", epoch, rank).integers(2**62)))
            loader = self.train_loader.batches(local_batches, epoch, self.deletion)
            for number, batch in enumerate(loader, start=1):
                count = len(batch.ids)
                x = at_least_two(batch.x).contiguous(memory_format=torch.channels_last)
                with torch.autocast(x.device.type, torch.bfloat16, enabled=self.mixed):
                    outputs = net(x)
                logits = as_logits(outputs, self.model.head)[:count].to(x.dtype)
                loss = per_sample_loss(logits, batch.labels).sum()
                summed, images = self.processes.all_reduce(loss.item(), count)
                if not math.isfinite(summed):
                    raise self._diverged(summed, epoch, number)
                total += summed
                seen += images
                optimiser.zero_grad()
                torch.autograd.backward(loss * (self.processes.size / max(images, 1)))
                optimiser.step()
                if self.progress and self.processes.is_main:
                    epochs = self.schedule.epochs
                    done = (epoch - 1) * sum(sizes) + sum(sizes[:number])
                    self.progress(
                        Step(epoch, epochs, done, epochs * sum(sizes), total / max(seen, 1))
                    )
        if not seen:
            reason = next(iter(self.train_loader.unreadable.values()))
            raise HeatproofError(f"none of the training images can be read: {reason}")
        if not all(torch.isfinite(p).all() for p in net.parameters()):
            raise self._diverged(math.nan, epoch, len(batches))
        return total / seen

    def batch_indices(self, epoch: int) -> list[list[int]]:
        """Return the epoch's batches, over all processes, without a last batch of one image."""
        order = generator(self.seed, "order", epoch).permutation(self.train_loader.indices).tolist()
        size = self.schedule.batch_size
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        return batches if len(batches[-1]) > 1 else batches[:-1]

    def evaluate(self, net: nn.Module, epoch: int, loss: float | None, start: float) -> Epoch:
        """Measure the network on the validation images."""
        probed = copy.deepcopy(self.model)
        probed.module.load_state_dict(net.state_dict())
        probes = Probes(probed, self.deletion.patches, self.seed)
        measured = validate(
            net, self.val_loader, self.deletion, self.worst_images, self.processes, probes
        )
        scores = probes.scores(self.processes)
        for loader in (self.train_loader, self.val_loader):
            loader.unreadable.update(self.processes.merge(loader.unreadable))
        return Epoch(
            epoch,
            loss,
            *measured,
            seconds=round(time.perf_counter() - start, 3),
            drop=scores.drop,
            probes=scores.methods,
            idsds=scores.idsds,
            idsds_error=scores.error,
        )

    def save(
        self,
        net: nn.Module,
        optimiser: torch.optim.Optimizer,
        metrics: Sequence[Epoch],
        identity: dict[str, Any],
    ) -> None:
        """Write the weights if they are the best so far, and then the checkpoint to resume from.

        If the process is killed in between, the epoch is repeated and gives the same bytes.
        """
        if not self.processes.is_main:
            return
        last = metrics[-1]
        best = self.kept_epoch(metrics)
        weights = self.out / WEIGHTS
        if best == last.epoch > 0:
            write_weights(weights, net.state_dict(), self.metadata(metrics, identity))
        elif best and weights.is_file():  # the same weights, with a longer history
            write_weights(weights, load_file(weights), self.metadata(metrics, identity))
        history = {
            "epochs": [asdict(epoch) for epoch in metrics],
            "unreadable": self._unreadable(),
        }
        checkpoint = {
            "identity": json.dumps(identity),
            "epoch": last.epoch,
            "net": net.state_dict(),
            "optimiser": optimiser.state_dict(),
            "metrics": json.dumps(history),
        }
        write_resume(self.out / RESUME, checkpoint)

    def metadata(self, metrics: Sequence[Epoch], identity: dict[str, Any]) -> dict[str, str]:
        """Return the metadata of the weights file: the settings, and what was measured."""
        best = self.kept_epoch(metrics)
        tested = min(self.worst_images, len(self.val_loader.indices))
        recipe = identity | {
            "epochs": self.schedule.epochs,
            "images": len(self.train_loader.indices),
            "tested": tested,
        }
        metadata = {
            "fine_tuned": identity["fine_tuned"],
            "model": self.model.name,
            "base": identity["base"],
            "recipe": json.dumps(recipe, sort_keys=True),
            "history": json.dumps([_history(epoch) for epoch in metrics]),
            "epoch": str(best),
            "accuracy": f"{metrics[best].accuracy:.4f}",
            "heatproof": heatproof.__version__,
        }
        if self.model.classes:
            metadata["classes"] = json.dumps(self.model.classes)
        return metadata

    def kept_epoch(self, metrics: Sequence[Epoch]) -> int:
        """Return the best epoch, or the last where no images are held out to choose one."""
        return best_epoch(metrics) if self.held_out else metrics[-1].epoch

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the weights, except for the number of epochs."""
        settings = asdict(self.schedule)
        for name in ("epochs", "limit", "network_lr"):
            del settings[name]
        return {
            "fine_tuned": self.deletion.name,
            "model": self.model.name,
            "base": self.model.fingerprint(),
            "data": f"{self.train_loader.data.name} {_digest(self.train_loader)}",
            "val": f"{self.val_loader.data.name} {_digest(self.val_loader)}"
            if self.held_out
            else NO_VALIDATION,
            **({"precision": "bfloat16"} if self.mixed else {}),
            "augment": self.train_loader.augment,
            "loss": loss_name(self.model),
            "seed": self.seed,
            **settings,
        }

    def _check_batch_size(self) -> None:
        needed = 2 * self.processes.size
        batch = min(self.schedule.batch_size, len(self.train_loader.indices))
        if batch < needed:
            raise HeatproofError(
                f"every process needs at least 2 images per batch: a batch has {batch} images "
                f"for {self.processes.size} processes, but needs {needed}"
            )

    def _diverged(self, loss: float, epoch: int, batch: int) -> HeatproofError:
        kept = f"{self.out} keeps epoch {epoch - 1}" if epoch > 1 else "nothing was kept"
        lr = self.schedule.rate(epoch)
        return HeatproofError(
            f"training diverged: the loss was {loss} in epoch {epoch}, batch {batch}. Try a "
            f"smaller learning rate (lr={lr / 10:g} instead of {lr:g}) in another directory; {kept}"
        )

    def _unreadable(self) -> dict[str, str]:
        return {**self.train_loader.unreadable, **self.val_loader.unreadable}

    def _empty_classes(self) -> tuple[str, ...]:
        present = {self.train_loader.data.labels[i] for i in self.train_loader.indices}
        names = self.model.classes or [str(k) for k in range(self.model.n_classes)]
        return tuple(name for k, name in enumerate(names) if k not in present)


def uses_bfloat16(precision: Precision, model: Model) -> bool:
    """Return whether a model is trained with mixed precision.

    Raises:
        HeatproofError: If there is no such precision, or the model is in double precision.
    """
    if precision not in get_args(Precision):
        raise unknown("precision", precision, get_args(Precision))
    if precision == "bfloat16" and model.dtype != torch.float32:
        raise HeatproofError(f"mixed precision is for weights of float32, not of {model.dtype}")
    if precision != "auto":
        return precision == "bfloat16"
    on_gpu = model.device.type == "cuda" and model.dtype == torch.float32
    return on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)


def at_least_two(x: Tensor) -> Tensor:  # (B, ...) -> (max(B, 2), ...)
    """Pad a batch to two rows.

    Batch norm needs two rows, and every process needs a forward pass, even if it has fewer images
    of the last batch or cannot read them.
    """
    if len(x) > 1:
        return x
    if len(x) == 1:
        return x.expand(2, *x.shape[1:])
    return x.new_zeros(2, *x.shape[1:])


def best_epoch(metrics: Sequence[Epoch]) -> int:
    """Return the epoch with the best clean accuracy, of equal ones the last.

    Epoch 0, the model before fine-tuning, counts only if there is no other.
    """
    return max(metrics[1:], key=lambda e: (e.accuracy, e.epoch), default=metrics[0]).epoch


def _history(epoch: Epoch) -> dict[str, Any]:
    """Return the metrics of an epoch as they are stored: rounded, without the duration."""
    values = asdict(epoch)
    del values["seconds"]
    probes = values.pop("probes")
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}
    return rounded | {"probes": {method: round(v, 4) for method, v in probes.items()}}


def _restore(
    checkpoint: dict[str, Any], net: nn.Module, optimiser: torch.optim.Optimizer, path: Path
) -> list[Epoch]:
    try:
        net.load_state_dict(checkpoint["net"])
        optimiser.load_state_dict(checkpoint["optimiser"])
        return [Epoch(**epoch) for epoch in json.loads(checkpoint["metrics"])["epochs"]]
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise HeatproofError(
            f"cannot resume from {path}: it does not fit the model "
            f"({str(error).splitlines()[0]}); choose another directory"
        ) from error


def _digest(loader: BatchLoader) -> str:
    data = loader.data
    content = repr([(data.ids[i], data.labels[i], data.fingerprints[i]) for i in loader.indices])
    return content_hash(content, length=12)
