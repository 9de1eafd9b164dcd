"""Images for training: read in threads ahead of the network, cropped, and with one cell of the grid deleted in half of them.

All chance is keyed by (seed, epoch, sample id): what a sample looks like depends on no worker, order or neighbour.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from heatproof.baselines import Baseline
from heatproof.data.base import Data, UnreadableImage
from heatproof.data.folder import ImageFolder, read_image
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng, chance, generator
from heatproof.tensor.patches import grid_side, in_cells, patch_masks

AHEAD = 2  # batches that are made while the network is busy


@dataclass
class TrainBatch:
    ids: list[str]
    x: Tensor  # (B, 3, H, W) in the model's input space
    labels: Tensor  # (B,)


@dataclass
class BatchLoader:
    """Some samples of a data set, in batches. Images that are never cropped at random are made once and kept, up to `memory` bytes."""

    data: Data
    indices: Sequence[int]
    model: Model
    seed: int = 0
    augment: bool = False
    workers: int = 2
    memory: int = 2 << 30
    unreadable: dict[str, str] = field(default_factory=dict)  # id -> why; grows as they are met
    _kept: dict[int, Tensor] = field(
        default_factory=dict
    )  # ready for the network: four times the bytes of a picture, and no work a batch
    _spent: int = 0

    def __post_init__(self) -> None:
        if self.augment and not isinstance(self.data, ImageFolder):
            raise HeatproofError(
                f"random crops need an image folder; {self.data.name} gives images of one size (augment=False)"
            )
        if self.workers < 1:
            raise HeatproofError(f"workers must be at least 1; got {self.workers}")
        self._mean, self._std = (of.cpu().flatten() for of in (self.model.mean, self.model.std))

    def peek(self) -> None:
        """Raises at once where the images are not of the model's size."""
        self._image(self.indices[0], 0)

    def batches(
        self, groups: Sequence[Sequence[int]], epoch: int = 0, deletion: Deletion | None = None
    ) -> Iterator[TrainBatch]:
        """Groups of indices as tensors, in order; what cannot be read is left out and named in `unreadable`.

        Each thread keeps to one core: torch would start a team for it, whose idle spinning takes the network's. Where nothing is left to
        read and the network has the same cores, threads would only stand in its way.
        """
        if self.model.device.type == "cpu" and all(
            i in self._kept for group in groups for i in group
        ):
            for group in groups:
                yield self._rows(None, group, epoch, deletion)
            return
        threads = torch.get_num_threads()
        readers, maker = (
            ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
            for count in (self.workers, 1)
        )
        waiting: deque[Future[TrainBatch]] = deque()
        try:
            for group in groups:
                waiting.append(maker.submit(self._rows, readers, group, epoch, deletion))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            maker.shutdown(cancel_futures=True)
            readers.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)

    def _rows(
        self,
        readers: ThreadPoolExecutor | None,
        group: Sequence[int],
        epoch: int,
        deletion: Deletion | None,
    ) -> TrainBatch:
        missing = [i for i in group if i not in self._kept]
        found: dict[int, Tensor | None] = {i: self._kept[i] for i in group if i in self._kept}
        if readers and missing:
            shares = [missing[worker :: self.workers] for worker in range(self.workers)]
            for part in readers.map(
                lambda share: [(i, self._image(i, epoch)) for i in share], shares
            ):
                found.update(part)
        good = [(i, image) for i in group if (image := found[i]) is not None]
        ids = [self.data.ids[i] for i, _ in good]
        shape = (0, self.model.size, self.model.size, len(self.model.mean))
        x = torch.stack([image for _, image in good]) if good else torch.empty(shape)
        x = (
            (self._normal(x) if self.augment else x)
            .permute(0, 3, 1, 2)
            .to(self.model.device, self.model.dtype)
        )  # channels last
        if deletion is not None and good:
            x = deletion(x, ids, self.model, self.seed, epoch)
        return TrainBatch(
            ids,
            x,
            torch.tensor([self.data.labels[i] for i, _ in good], device=x.device, dtype=torch.long),
        )

    def _image(
        self, index: int, epoch: int
    ) -> Tensor | None:  # (H, W, 3): bytes of a random crop, or in the model's input space
        sample, mean = self.data.ids[index], self.model.mean
        try:
            if self.augment:
                assert isinstance(self.data, ImageFolder)
                return random_crop(
                    read_image(self.data.files[index]),
                    self.model.size,
                    generator(self.seed, "crop", epoch, sample),
                )
            image = self.data.load(index).image
        except UnreadableImage as error:
            self.unreadable[sample] = str(error)
            return None
        wanted = (len(mean), self.model.size, self.model.size)
        if image.shape != wanted:
            shapes = ["×".join(map(str, shape)) for shape in (image.shape, wanted)]
            raise HeatproofError(
                f"{self.data.name} gives images of {shapes[0]}, but {self.model.name} takes {shapes[1]}"
            )
        made = self._normal(image.permute(1, 2, 0).contiguous())
        if self._spent + made.nbytes <= self.memory:
            self._kept[index] = made
            self._spent += made.nbytes
        return made

    def _normal(
        self, images: Tensor
    ) -> Tensor:  # (…, H, W, 3) bytes, or in [0, 1] -> in the model's input space
        """As `Model.normalize`, without its copies, and in the machine's memory wherever the model is."""
        x = images.to(self.model.dtype, copy=True)
        return (x.div_(255) if images.dtype == torch.uint8 else x).sub_(self._mean).div_(self._std)


@dataclass(frozen=True)
class Deletion:
    """One uniformly chosen cell of the grid gives way to the baseline, in half of the images (Hesse et al. 2024, App. B)."""

    patches: int
    baseline: Baseline
    share: float = 0.5

    def __call__(
        self, x: Tensor, ids: Sequence[str], model: Model, seed: int, epoch: int
    ) -> Tensor:
        drawn = ((row, chance(seed, "deletion", epoch, sample)) for row, sample in enumerate(ids))
        struck = [(row, int(u / self.share * self.patches)) for row, u in drawn if u < self.share]
        if not struck:
            return x
        rows, cells = torch.tensor(struck, device=x.device).unbind(1)
        rng = Rng(seed, [f"{ids[row]} in epoch {epoch}" for row, _ in struck], x.device)
        side = grid_side(self.patches, *x.shape[2:])
        down, across = cells // side, cells % side
        if self.baseline.entry.blind:
            painted = self.baseline.fill(
                x[: len(rows), :, : x.shape[2] // side, : x.shape[3] // side], model, rng
            )
        else:
            masks = patch_masks(self.patches, *x.shape[2:])[cells.cpu()].to(x.device)
            whole = self.baseline.fill(x[rows], model, rng, masks)
            painted = in_cells(whole, side)[torch.arange(len(rows)), :, down, :, across]
        in_cells(x, side)[rows, :, down, :, across] = painted
        return x


def random_crop(
    image: Image.Image, size: int, chance: np.random.Generator
) -> Tensor:  # (size, size, 3) bytes
    """8 to 100 % of the area, sides 3:4 to 4:3, mirrored in half of the cases: torchvision's RandomResizedCrop and flip."""
    width, height = image.size
    for _ in range(10):
        area, ratio = (
            width * height * chance.uniform(0.08, 1),
            math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3))),
        )
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(chance.integers(width - w + 1)), int(chance.integers(height - h + 1))
            break
    else:  # a very long or very flat image: the largest crop from its middle
        w, h = min(width, max(1, round(height * 4 / 3))), min(height, max(1, round(width * 4 / 3)))
        left, top = (width - w) // 2, (height - h) // 2
    cropped = image.crop((left, top, left + w, top + h)).resize(
        (size, size), Image.Resampling.BILINEAR
    )
    pixels = torch.from_numpy(np.array(cropped))
    return pixels.flip(1) if chance.random() < 0.5 else pixels
