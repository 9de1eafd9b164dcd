"""Training images: read in threads, cropped at random, and with patches or pixels deleted.

All randomness is keyed by (seed, epoch, sample id): what a sample looks like does not depend on
the worker, the order or the other samples of its batch.
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
from heatproof.data.catalog import check_size
from heatproof.data.folder import ImageFolder
from heatproof.data.images import read_image
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng, chance, generator
from heatproof.tensor.patches import grid_side, patch_masks, patch_view

PREFETCHED_BATCHES = 2  # while the network is busy


@dataclass
class TrainBatch:
    """The readable samples of one batch."""

    ids: list[str]
    x: Tensor  # (B, C, H, W) in the model's input space
    labels: Tensor  # (B,)


@dataclass
class BatchLoader:
    """Loads samples of a data set in batches.

    Images that are not cropped at random are normalised once and cached.

    Attributes:
        data: The data set.
        indices: The samples of the data set that this loader covers.
        model: Model whose size, normalisation, dtype and device the images get.
        seed: Seed of crops and deletions.
        augment: Whether to crop and mirror images at random.
        workers: Threads that read images.
        memory: Maximum size of the cache in bytes.
        unreadable: Reason by sample id, for the unreadable images met so far.
    """

    data: Data
    indices: Sequence[int]
    model: Model
    seed: int = 0
    augment: bool = False
    workers: int = 2
    memory: int = 2 << 30
    unreadable: dict[str, str] = field(default_factory=dict)
    # Cached as floats: four times the bytes of a picture, but no work per batch.
    _cache: dict[int, Tensor] = field(default_factory=dict)
    _cached_bytes: int = 0

    def __post_init__(self) -> None:
        if self.augment and not isinstance(self.data, ImageFolder):
            raise HeatproofError(
                f"random crops need an image folder; {self.data.name} has images of a fixed size, "
                "so use augment=False"
            )
        if self.workers < 1:
            raise HeatproofError(f"workers must be at least 1; got {self.workers}")
        self._mean = self.model.mean.cpu().flatten()
        self._std = self.model.std.cpu().flatten()

    def check_first(self) -> None:
        """Load the first image, so that images of a wrong size raise before training starts."""
        self._load(self.indices[0], 0)

    def batches(
        self,
        groups: Sequence[Sequence[int]],
        epoch: int = 0,
        deletion: Deletion | PixelDeletion | None = None,
    ) -> Iterator[TrainBatch]:
        """Yield one batch per group of indices; unreadable images are left out and recorded.

        Reader threads use one core each: torch would otherwise start a thread pool in every
        reader, and their idle spinning takes cores from the network. If everything is cached and
        the network runs on the CPU, batches are made in the calling thread.

        Args:
            groups: Sample indices of each batch.
            epoch: Key of the random crops and deletions.
            deletion: Deletes patches or pixels of the loaded images.

        Yields:
            The batches in order.
        """
        on_cpu = self.model.device.type == "cpu"
        if on_cpu and all(i in self._cache for group in groups for i in group):
            for group in groups:
                yield self._batch(None, group, epoch, deletion)
            return
        threads = torch.get_num_threads()
        readers = _single_core_pool(self.workers)
        collator = _single_core_pool(1)
        waiting: deque[Future[TrainBatch]] = deque()
        try:
            for group in groups:
                waiting.append(collator.submit(self._batch, readers, group, epoch, deletion))
                if len(waiting) > PREFETCHED_BATCHES:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            collator.shutdown(cancel_futures=True)
            readers.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)

    def _batch(
        self,
        readers: ThreadPoolExecutor | None,
        group: Sequence[int],
        epoch: int,
        deletion: Deletion | PixelDeletion | None,
    ) -> TrainBatch:
        images: dict[int, Tensor | None] = {i: self._cache[i] for i in group if i in self._cache}
        missing = [i for i in group if i not in images]
        if readers and missing:
            parts = [missing[worker :: self.workers] for worker in range(self.workers)]
            for loaded in readers.map(lambda part: self._load_all(part, epoch), parts):
                images.update(loaded)
        readable = [(i, image) for i in group if (image := images[i]) is not None]
        ids = [self.data.ids[i] for i, _ in readable]
        if readable:
            x = torch.stack([image for _, image in readable])
        else:
            x = torch.empty(0, self.model.height, self.model.width, len(self.model.mean))
        if self.augment:
            x = self._normalize(x)
        x = x.permute(0, 3, 1, 2).to(self.model.device, self.model.dtype)  # channels last
        if deletion is not None and readable:
            x = deletion(x, ids, self.model, self.seed, epoch)
        labels = [self.data.labels[i] for i, _ in readable]
        return TrainBatch(ids, x, torch.tensor(labels, device=x.device, dtype=torch.long))

    def _load_all(self, indices: Sequence[int], epoch: int) -> list[tuple[int, Tensor | None]]:
        return [(i, self._load(i, epoch)) for i in indices]

    def _load(self, index: int, epoch: int) -> Tensor | None:  # (H, W, C)
        """Load an image: bytes of a random crop, or normalised; None if it is unreadable."""
        sample = self.data.ids[index]
        try:
            if self.augment:
                assert isinstance(self.data, ImageFolder)
                image = read_image(self.data.files[index], mode=self.data.mode)
                rng = generator(self.seed, "crop", epoch, sample)
                return random_crop(image, (self.model.height, self.model.width), rng)
            pixels = self.data.load(index).image
        except UnreadableImage as error:
            self.unreadable[sample] = str(error)
            return None
        check_size(self.data, pixels, self.model)
        normalized = self._normalize(pixels.permute(1, 2, 0).contiguous())
        if self._cached_bytes + normalized.nbytes <= self.memory:
            self._cache[index] = normalized
            self._cached_bytes += normalized.nbytes
        return normalized

    def _normalize(self, images: Tensor) -> Tensor:  # (…, H, W, C) bytes or in [0, 1] -> same
        """Do what ``Model.normalize`` does, without copies and always in main memory."""
        x = images.to(self.model.dtype, copy=True)
        if images.dtype == torch.uint8:
            x.div_(255)
        return x.sub_(self._mean).div_(self._std)


def _single_core_pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))


@dataclass(frozen=True)
class Deletion:
    """Replaces one random patch by the baseline, in half of the images (Hesse et al. 2024, App. B).

    Attributes:
        patches: Number of patches of the square grid.
        baseline: What a deleted patch is replaced by.
        fraction: Fraction of the images that lose a patch.
    """

    patches: int
    baseline: Baseline
    fraction: float = 0.5

    @property
    def name(self) -> str:
        """What weights are fine-tuned for that saw such images: ``16/zero``."""
        return f"{self.patches}/{self.baseline.label}"

    def __call__(
        self, x: Tensor, ids: Sequence[str], model: Model, seed: int, epoch: int
    ) -> Tensor:  # (B, C, H, W) -> same, changed in place
        """Delete patches in place; which ones depends on seed, epoch and sample id alone."""
        chosen = []  # (row of the batch, patch)
        for row, sample in enumerate(ids):
            draw = chance(seed, "deletion", epoch, sample)
            if draw < self.fraction:
                chosen.append((row, int(draw / self.fraction * self.patches)))
        if not chosen:
            return x
        rows, patches = torch.tensor(chosen, device=x.device).unbind(1)
        rng = Rng(seed, [f"{ids[row]} in epoch {epoch}" for row, _ in chosen], x.device)
        side = grid_side(self.patches, *x.shape[2:])
        down = patches // side
        across = patches % side
        if self.baseline.entry.blind:
            height = x.shape[2] // side
            width = x.shape[3] // side
            replacement = self.baseline.fill(x[: len(rows), :, :height, :width], model, rng)
        else:
            masks = patch_masks(self.patches, *x.shape[2:])[patches.cpu()].to(x.device)
            filled = self.baseline.fill(x[rows], model, rng, masks)
            replacement = patch_view(filled, side)[torch.arange(len(rows)), :, down, :, across]
        patch_view(x, side)[rows, :, down, :, across] = replacement
        return x


@dataclass(frozen=True)
class PixelDeletion:
    """Replaces random pixels by the baseline, in all images (Zheng et al. 2025).

    Attributes:
        pixels: Part of the pixels that every image loses.
        baseline: What deleted pixels are replaced by.
        patches: Number of patches of the grid that validation deletes one by one.
    """

    pixels: float
    baseline: Baseline
    patches: int = 16

    @property
    def name(self) -> str:
        """What weights are fine-tuned for that saw such images: ``10%/zero``."""
        return f"{100 * self.pixels:g}%/{self.baseline.label}"

    def __call__(
        self, x: Tensor, ids: Sequence[str], model: Model, seed: int, epoch: int
    ) -> Tensor:  # (B, C, H, W) -> same
        """Delete pixels; which ones depends on seed, epoch and sample id alone."""
        rng = Rng(seed, [f"{sample} in epoch {epoch}" for sample in ids], x.device)
        size = x.shape[2:]
        order = rng.uniform("deletion", (size.numel(),)).argsort(dim=1, stable=True)
        removed = torch.zeros_like(order, dtype=torch.bool)
        removed.scatter_(1, order[:, : int(self.pixels * size.numel())], True)
        remove = self.baseline.remover(x, model, rng)
        return remove(torch.arange(len(x), device=x.device), removed.reshape(-1, *size))


def random_crop(
    image: Image.Image, size: tuple[int, int], rng: np.random.Generator
) -> Tensor:  # (H, W, C) bytes
    """Crop and mirror at random, as torchvision's RandomResizedCrop and RandomHorizontalFlip do.

    The crop has 8 to 100 % of the area and an aspect ratio of 3:4 to 4:3 times that of the result.

    Args:
        image: An image.
        size: Height and width of the crop after resizing, in pixels.
        rng: Source of the random numbers.

    Returns:
        The crop, ``(*size, C)`` of uint8.
    """
    left, top, width, height = _crop_box(*image.size, rng, size[1] / size[0])
    box = (left, top, left + width, top + height)
    cropped = image.crop(box).resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(cropped)).reshape(*size, -1)
    return pixels.flip(1) if rng.random() < 0.5 else pixels


def _crop_box(
    width: int, height: int, rng: np.random.Generator, aspect: float = 1.0
) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a random crop; ``aspect`` is width / height."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3))) * aspect
        w = round(math.sqrt(area * ratio))
        h = round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = int(rng.integers(width - w + 1))
            top = int(rng.integers(height - h + 1))
            return left, top, w, h
    # The image is very long or very flat: take the largest crop from its centre.
    w = min(width, max(1, round(height * aspect * 4 / 3)))
    h = min(height, max(1, round(width / aspect * 4 / 3)))
    return (width - w) // 2, (height - h) // 2, w, h
