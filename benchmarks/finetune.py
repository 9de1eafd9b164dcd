"""Overhead of fine-tuning: its speed as a fraction of that of a bare training loop.

The bare loop has its batches in memory and only runs forward, backward and optimizer step. For a
folder of JPEG files there is a second loop, which reads them in the usual way: torch's DataLoader
with two workers, and torchvision's random crops and flips. All loops are timed in turn, so that
other work on the machine affects them alike. By CPU time, loading counts in full: that is the ratio
if no other core is free (the workers of a DataLoader are other processes and do not count).
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import heatproof as hp
from heatproof.baselines import Baseline
from heatproof.cli import keep_memory
from heatproof.data.base import Data
from heatproof.data.folder import ImageFolder
from heatproof.models.vision import import_torchvision
from heatproof.training.distributed import ProcessGroup
from heatproof.training.finetune import Trainer
from heatproof.training.loader import BatchLoader, Deletion
from heatproof.training.schedule import Schedule


class Bench:
    def __init__(
        self, model: hp.Model, data: Data, batch: int, baseline: str, out: Path, augment: bool
    ) -> None:
        self.model = model
        self.batch = batch
        loader = BatchLoader(data, range(len(data.ids)), model, augment=augment)
        deletion = Deletion(16, Baseline.parse(baseline))
        self.trainer = Trainer(
            model,
            loader,
            loader,
            deletion,
            Schedule(batch_size=batch, lr=1e-5),
            out,
            0,
            1,
            ProcessGroup(model.device),
            None,
        )
        self.net = copy.deepcopy(model.module).to(memory_format=torch.channels_last)
        self.optimiser = torch.optim.SGD(self.net.parameters(), 1e-5, 0.9, weight_decay=1e-4)
        self.ready = [
            (rows.x.contiguous(memory_format=torch.channels_last), rows.labels)
            for rows in loader.batches(self.trainer.batch_indices(1), 1, deletion)
        ]

    def ours(self, epoch: int) -> None:
        self.trainer.train_epoch(self.net, self.optimiser, epoch)

    def bare(self) -> None:
        self.steps(self.ready)

    def usual(self) -> None:
        """Train with torch's DataLoader and torchvision's transforms on the same files."""
        from torch.utils.data import DataLoader

        import_torchvision()
        from torchvision import datasets, transforms

        transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(self.model.size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(self.model.mean.flatten(), self.model.std.flatten()),
            ]
        )
        data = self.trainer.train_loader.data
        assert isinstance(data, ImageFolder)
        images = datasets.ImageFolder(str(data.files[0].parents[1]), transform)
        self.steps(DataLoader(images, self.batch, shuffle=True, num_workers=2))

    def steps(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.net.train()
        for x, labels in batches:
            x = x.contiguous(memory_format=torch.channels_last)
            loss = cross_entropy(self.net(x), labels)
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            loss.item()

    def compared(self, other: Callable[[], None], repeats: int) -> tuple[float, str, float]:
        """Time epochs in turn with another loop.

        Returns:
            Images per second, our speed as a fraction of the other's with its quartiles, and that
            fraction by CPU time.
        """
        images = sum(len(labels) for _, labels in self.ready)
        self.ours(2)
        turns = [
            (measured(partial(self.ours, repeat + 3)), measured(other)) for repeat in range(repeats)
        ]
        median = statistics.median
        low, ratio, high = statistics.quantiles([bare[0] / ours[0] for ours, bare in turns], n=4)
        return (
            images / median(ours[0] for ours, _ in turns),
            f"{ratio:.2f} ({low:.2f}–{high:.2f})",
            median(bare[1] / ours[1] for ours, bare in turns),
        )


def measured(call: Callable[[], None]) -> tuple[float, float]:
    """Return wall time and CPU time of all threads, in seconds."""
    wall = time.perf_counter()
    cpu = time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def photos(root: Path, count: int, side: int) -> Path:
    """Write paperbirds as JPEG files, one folder per class."""
    from PIL import Image

    birds = hp.load_data("paperbirds:train", limit=count)
    for i in range(count):
        sample = birds.load(i)
        folder = root / f"{sample.label:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (sample.image * 255).byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize((side, side)).save(folder / f"{i}.jpg")
    return root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="paperbirds/vgg")
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--side", type=int, default=96, help="Size of the JPEG files in pixels.")
    options = parser.parse_args()
    keep_memory()  # as `heatproof finetune` does; all loops profit
    model = hp.load_model(options.model)
    print(
        f"{model.name}, {options.images} images, batch {options.batch_size}, "
        f"{torch.get_num_threads()} threads"
    )
    with tempfile.TemporaryDirectory() as directory:
        without_names = copy.copy(model)
        without_names.classes = None
        files = photos(Path(directory) / "images", options.images, options.side)
        folder = hp.load_data(f"folder:{files}", without_names)
        birds = hp.load_data("paperbirds:train", model, limit=options.images)
        for title, data, baseline, augment in (
            ("paperbirds, zero", birds, "zero", False),
            ("paperbirds, uniform noise", birds, "uniform", False),
            ("paperbirds, blur", birds, "blur", False),
            (f"JPEG files of {options.side} px, random crops, zero", folder, "zero", True),
        ):
            bench = Bench(model, data, options.batch_size, baseline, Path(directory), augment)
            speed, ratio, cpu = bench.compared(bench.bare, options.repeats)
            print(
                f"  {title:48s} {speed:6.0f} images/s   {ratio} of a bare loop "
                f"({cpu:.2f} by CPU time)"
            )
            if augment and find_spec("torchvision"):
                speed, ratio, _ = bench.compared(bench.usual, options.repeats)
                print(f"  {title:48s} {speed:6.0f} images/s   {ratio} of a loop over a DataLoader")


if __name__ == "__main__":
    main()
