"""What fine-tuning costs beyond its training steps: images a second over those of a bare loop on the same model and batch size.

The bare loop has its batches in memory and nothing to do but forward, backward and step; for a folder of JPEG files there is a second
one, which reads them as everyone does: torch's DataLoader with two workers, torchvision's random crops and flips. Both take turns
with ours, so that what else the machine does falls on all. By processor time the feed counts in full: that is the ratio where no core
is free to work beside the network's (workers of a DataLoader are other processes, and do not count).
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
        self, model: hp.Model, data: Data, batch: int, baseline: str, place: Path, augment: bool
    ) -> None:
        self.model, self.batch = model, batch
        loader = BatchLoader(data, range(len(data.ids)), model, augment=augment)
        deletion = Deletion(16, Baseline.parse(baseline))
        self.trainer = Trainer(
            model,
            loader,
            loader,
            deletion,
            Schedule(batch_size=batch, lr=1e-5),
            place,
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
        """The loop that reads the same files with torch's and torchvision's means."""
        from torch.utils.data import DataLoader

        import_torchvision()
        from torchvision import datasets, transforms

        look = transforms.Compose(
            [
                transforms.RandomResizedCrop(self.model.size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(self.model.mean.flatten(), self.model.std.flatten()),
            ]
        )
        data = self.trainer.train_loader.data
        assert isinstance(data, ImageFolder)
        images = datasets.ImageFolder(str(data.files[0].parents[1]), look)
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
        """(images a second, ours over the other's with its quartiles, the same by processor time), medians of epochs taken in turn."""
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
    """Seconds, and seconds of processor time over all threads."""
    wall, worked = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - worked


def photos(root: Path, count: int, side: int) -> Path:
    """Paperbirds as JPEG files of their classes."""
    from PIL import Image

    birds = hp.load_data("paperbirds:train", limit=count)
    for i in range(count):
        sample = birds.load(i)
        place = root / f"{sample.label:02d}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = (sample.image * 255).byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize((side, side)).save(place / f"{i}.jpg")
    return root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="paperbirds/vgg")
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--side", type=int, default=96, help="Of the JPEG files, in pixels.")
    options = parser.parse_args()
    keep_memory()  # as `heatproof finetune` does; it serves all loops
    model = hp.load_model(options.model)
    print(
        f"{model.name}, {options.images} images, batch {options.batch_size}, {torch.get_num_threads()} threads"
    )
    with tempfile.TemporaryDirectory() as place:
        nameless = copy.copy(model)
        nameless.classes = None
        folder = hp.load_data(
            f"folder:{photos(Path(place) / 'images', options.images, options.side)}", nameless
        )
        birds = hp.load_data("paperbirds:train", model, limit=options.images)
        for told, data, baseline, augment in (
            ("paperbirds, zero", birds, "zero", False),
            ("paperbirds, uniform noise", birds, "uniform", False),
            ("paperbirds, blur", birds, "blur", False),
            (f"JPEG files of {options.side} px, random crops, zero", folder, "zero", True),
        ):
            bench = Bench(model, data, options.batch_size, baseline, Path(place), augment)
            speed, ratio, work = bench.compared(bench.bare, options.repeats)
            print(
                f"  {told:48s} {speed:6.0f} images/s   {ratio} of a bare loop ({work:.2f} by processor time)"
            )
            if augment and find_spec("torchvision"):
                speed, ratio, _ = bench.compared(bench.usual, options.repeats)
                print(f"  {told:48s} {speed:6.0f} images/s   {ratio} of a loop over a DataLoader")


if __name__ == "__main__":
    main()
