"""Grids of images that a model classifies with confidence (Rao et al. 2024).

A grid is a tuple of indices; its images are tiled when it is loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from heatproof.data.base import Data, Sample
from heatproof.data.catalog import load_batch
from heatproof.errors import HeatproofError
from heatproof.files import atomic_write, content_hash
from heatproof.models.backends import used
from heatproof.models.cache_dir import home
from heatproof.models.model import Model
from heatproof.tensor.batching import rows
from heatproof.tensor.noise import generator
from heatproof.tensor.scores import is_correct
from heatproof.text import counted

Pool = Mapping[int, Sequence[int]]  # class -> indices of images
BATCH = 64  # fixed, so that the pool of images does not depend on the batch size of a run
VERSION = 1  # raised when confidences are computed in another way
SUGGESTED_CONFIDENCES = (0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.0)

# Models that must all be confident, each with its data; indices refer to the first one's data.
ConfidentModels = Sequence[tuple[Model, Data]]


class GridSample(NamedTuple):
    """Images and evaluated grid cell of a sample of ``Grids``."""

    images: tuple[str, ...]  # ids of the images, row by row
    cell: int  # the grid cell that is evaluated


class Grids:
    """A data set of n×n grids of images, with grid cells row by row.

    A sample is a grid and one of its cells. Its label is the class of the image in that cell.

    Args:
        images: The single images.
        grids: Indices of the images in each grid, row by row.
        side: Grid cells per side.
        cell: The grid cell that is evaluated.
        pool: The images that grids may contain, by class.
        load: Loads an image by its index; by default ``images.load``.

    Attributes:
        reused: The number of images that occur in more than one grid.
    """

    def __init__(
        self,
        images: Data,
        grids: Sequence[tuple[int, ...]],
        side: int,
        cell: int,
        pool: Pool,
        load: Callable[[int], Sample] | None = None,
    ):
        self.images = images
        self.grids = grids
        self.side = side
        self.cell = cell
        self.pool = pool
        self._load = load or images.load
        self.name = f"{images.name} in grids of {side}×{side}"
        samples = [GridSample(tuple(images.ids[i] for i in grid), cell) for grid in grids]
        self.ids = [grid_id(sample) for sample in samples]
        self.contents = dict(zip(self.ids, samples, strict=True))
        self.labels = [images.labels[grid[cell]] for grid in grids]
        self.fingerprints = [_digest(images.fingerprints[i] for i in grid) for grid in grids]
        self.has_silhouettes = images.has_silhouettes
        self.reused = count_reused(grids)

    def __len__(self) -> int:
        return len(self.ids)

    def load(self, index: int) -> Sample:
        samples = [self._load(i) for i in self.grids[index]]
        masks = [sample.silhouette for sample in samples if sample.silhouette is not None]
        silhouette = tile(masks, self.side) if len(masks) == len(samples) else None
        image = tile([sample.image for sample in samples], self.side)
        return Sample(self.ids[index], image, self.labels[index], silhouette)


def tile(tensors: Sequence[Tensor], side: int) -> Tensor:
    """Tile side² tensors of shape ``(…, h, w)`` row by row to ``(…, side · h, side · w)``."""
    grid_rows = [torch.cat(list(tensors[i * side : (i + 1) * side]), -1) for i in range(side)]
    return torch.cat(grid_rows, -2)


def grid_id(sample: GridSample) -> str:
    """Return an id such as ``a+b+c+d#2``; two samples that differ have different ids.

    Nothing is read back from it: images and grid cell are in ``Grids.contents``.
    """
    return f"{grid_name(sample.images)}#{sample.cell}"


def grid_name(images: Iterable[str]) -> str:
    """Return a name such as ``a+b+c+d``; two grids that differ have different names."""
    return "+".join(name.replace("\\", "\\\\").replace("+", "\\+") for name in images)


def confident_images(models: ConfidentModels, confidence: float) -> dict[int, list[int]]:
    """Return the images that every model classifies correctly with at least that softmax.

    Args:
        models: The models, each with its data. An image that is not in the data of all is left out.
        confidence: The least softmax of the label.

    Returns:
        Indices of images by class.
    """
    data = models[0][1]
    by_model = [
        dict(zip(its_data.ids, label_confidence(model, its_data).tolist(), strict=True))
        for model, its_data in models
    ]
    least = [min(scores.get(name, -1.0) for scores in by_model) for name in data.ids]
    pool: dict[int, list[int]] = {}
    for i, softmax in enumerate(least):
        if softmax >= max(confidence, 0.0):
            pool.setdefault(int(data.labels[i] or 0), []).append(i)
    return dict(sorted(pool.items()))


_confidences: WeakKeyDictionary[Model, dict[str, Tensor]] = WeakKeyDictionary()
_assuming: ContextVar[list[str] | None] = ContextVar("assuming", default=None)


@contextmanager
def assumed_confidence() -> Iterator[list[str]]:
    """Assume that every image is classified correctly, so that a plan needs no pass over them.

    Confidences that are in the cache are used all the same.

    Yields:
        A list to which the names of models are added whose confidences are assumed.
    """
    models: list[str] = []
    token = _assuming.set(models)
    try:
        yield models
    finally:
        _assuming.reset(token)


def label_confidence(model: Model, data: Data) -> Tensor:
    """Return the softmax of each image's label, computed once for a model and its data.

    The values are kept in memory and in the cache directory (`home`), so that planning, running and
    resuming a run need one pass over the images in all.

    Returns:
        Values ``(N,)`` of float64; −1 where the label is not predicted or the image is unreadable.

    Raises:
        HeatproofError: If an image has no label.
    """
    _images_by_class(data)
    samples = map(repr, zip(data.ids, data.fingerprints, data.labels, strict=True))
    # What computes a pass can change the last digits, and with them which images are in a pool.
    backend = used(model.backend)
    computed_by = f"{VERSION}, torch {torch.__version__}, {model.device.type}, {backend}"
    key = _digest([model.fingerprint(), computed_by, data.name, *samples])
    by_data = _confidences.setdefault(model, {})
    if key not in by_data:
        path = home() / "confidences" / key
        stored = _read_confidences(path, len(data.ids))
        assumed = _assuming.get()
        if stored is None and assumed is not None:
            if model.name not in assumed:
                assumed.append(model.name)
            return torch.ones(len(data.ids), dtype=torch.float64)
        if stored is None:
            stored = _compute_label_confidence(model, data)
            _write_confidences(path, stored)
        by_data[key] = stored
    return by_data[key]


def _write_confidences(path: Path, confidences: Tensor) -> None:
    """Write confidences after their hash; they are only computed again where this fails."""
    content = confidences.numpy().astype("<f8").tobytes()
    with suppress(OSError):
        atomic_write(path, content_hash(content, 64).encode() + content)


def _read_confidences(path: Path, count: int) -> Tensor | None:
    """Read what `_write_confidences` wrote; None if it is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest = content[:64]
    values = content[64:]
    if digest != content_hash(values, 64).encode() or len(values) != 8 * count:
        return None
    return torch.from_numpy(np.frombuffer(values, "<f8").astype(np.float64))


def _compute_label_confidence(model: Model, data: Data) -> Tensor:
    confidences = torch.full((len(data.ids),), -1.0, dtype=torch.float64)
    index_of = {name: i for i, name in enumerate(data.ids)}
    labels = torch.tensor(data.labels)
    with model.passes.batches_of(BATCH):
        for part in rows(torch.arange(len(data.ids)), BATCH):
            batch = load_batch(data, part.tolist(), model)
            if not batch.ids:
                continue
            indices = torch.tensor([index_of[name] for name in batch.ids])
            logits = model.logits(batch.x).double().cpu()
            probability = model.score_function("softmax")(logits, labels[indices])
            correct = is_correct(logits, labels[indices], model.head)
            confidences[indices] = torch.where(correct, probability, -1)
    return confidences


def draw_grids(
    pool: Pool, side: int, repeated: bool, count: int, seed: int = 0
) -> list[tuple[int, ...]]:
    """Draw grids from a pool of images.

    All grid cells of a grid have different classes, drawn uniformly from those that have images
    left. With ``repeated``, the last grid cell shows another image of the first one's class. No
    image is evaluated twice and none occurs twice in a grid. As long as the pool allows, no image
    occurs in two grids; then, with ``repeated``, images beside the evaluated grid cells do. The
    first grids do not depend on ``count``.

    Args:
        pool: Indices of images by class.
        side: Grid cells per side.
        repeated: Whether the last grid cell repeats the class of the first.
        count: The largest number of grids.
        seed: Seed of the draw.

    Returns:
        Indices of the images in each grid, row by row; fewer grids if the pool runs out.
    """
    rng = generator(seed, "grids", side, repeated)
    unused = {label: rng.permutation(members).tolist() for label, members in pool.items()}
    if repeated:
        return _draw_repeating(pool, unused, side**2, count, rng)
    grids: list[tuple[int, ...]] = []
    while len(grids) < count:
        available = [label for label, images in unused.items() if images]
        if len(available) < side**2:
            break
        labels = rng.choice(available, side**2, replace=False).tolist()
        grids.append(tuple(unused[label].pop() for label in labels))
    return grids


def _draw_repeating(
    pool: Pool, unused: dict[int, list[int]], cells: int, count: int, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """Draw grids whose first and last cells, which are evaluated, have the same class.

    Rao et al. use each image once (Supplement I), or repeat those beside the evaluated grid cells
    where there are too few (Supplement J).

    Args:
        pool: Indices of images by class.
        unused: The same in random order; images are removed as they are drawn.
        cells: Grid cells of a grid.
        count: The largest number of grids.
        rng: Generates random numbers.
    """
    beside: dict[int, list[int]] = {label: [] for label in pool}  # shown, but not evaluated
    grids: list[tuple[int, ...]] = []
    if len(pool) < cells - 1:
        return grids
    while len(grids) < count:
        pairs = [label for label in pool if len(unused[label]) >= 2]
        pairs = pairs or [label for label in pool if len(unused[label] + beside[label]) >= 2]
        if not pairs:
            break
        first = pairs[rng.integers(len(pairs))]
        evaluated = [(unused[first] or beside[first]).pop() for _ in range(2)]

        others = [label for label in pool if label != first]
        available = rng.permutation([label for label in others if unused[label]]).tolist()
        labels = available[: cells - 2]
        rest = [label for label in others if label not in labels]
        labels += rng.choice(rest, cells - 2 - len(labels), replace=False).tolist()
        between: list[int] = []
        for label in labels:
            if unused[label]:
                between.append(unused[label].pop())
                beside[label].append(between[-1])
            else:
                between.append(pool[label][int(rng.integers(len(pool[label])))])
        grids.append((evaluated[0], *between, evaluated[1]))
    return grids


def count_reused(grids: Sequence[tuple[int, ...]]) -> int:
    """Return the number of images that occur in more than one grid."""
    occurrences = Counter(image for grid in grids for image in grid)
    return sum(count > 1 for count in occurrences.values())


def _images_by_class(data: Data) -> Pool:
    """Return the indices of all images by class.

    Raises:
        HeatproofError: If an image has no label.
    """
    pool: dict[int, list[int]] = {}
    for index, label in enumerate(data.labels):
        if label is None:
            raise HeatproofError(
                f"{data.name} has images without a label; grids need images of a known class"
            )
        pool.setdefault(int(label), []).append(index)
    return pool


def make_grids(
    models: ConfidentModels,
    side: int,
    *,
    repeated: bool,
    confidence: float,
    count: int | None,
    most: int,
    seed: int = 0,
) -> tuple[list[tuple[int, ...]], Pool]:
    """Draw grids of images that all models classify with confidence.

    Args:
        models: The models, each with its data.
        side: Grid cells per side.
        repeated: Whether the last grid cell repeats the class of the first.
        confidence: The least softmax of the label.
        count: The number of grids; None for as many as possible, up to ``most``.
        most: The largest number of grids if ``count`` is None.
        seed: Seed of the draw.

    Returns:
        The grids, and the pool of images that they are drawn from.

    Raises:
        HeatproofError: If there are too few images; the message suggests a threshold. Where the
            classes do not suffice for one grid, no pass is made.
    """
    data = models[0][1]
    everything = _images_by_class(data)
    if not draw_grids(everything, side, repeated, 1):
        needs = f"images of {side**2 - repeated} classes" + ", two of one class" * repeated
        raise HeatproofError(
            f"{data.name} has {_describe_pool(everything)}: not enough for a grid of "
            f"{side}×{side}. Use more data; a grid takes {needs}"
        )
    pool = confident_images(models, confidence)
    grids = draw_grids(pool, side, repeated, count or most, seed)
    if len(grids) < (count or 1):
        shortage = _describe_shortage(models, pool, repeated, confidence)
        if grids:
            shortage += f": enough for {counted(len(grids), 'grid')} of {side}×{side}, not {count}"
        else:
            shortage += f": not enough for a grid of {side}×{side}"
        suggestion = _suggest_confidence(models, side, repeated, confidence, count or 1, seed)
        raise HeatproofError(f"{shortage}. {suggestion}")
    return grids, pool


def _describe_shortage(
    models: ConfidentModels, pool: Pool, repeated: bool, confidence: float
) -> str:
    names = [model.name for model, _ in models]
    subject = f"{names[0]} gives"
    if len(names) > 1:
        subject = f"{', '.join(names[:-1])} and {names[-1]} all give"
    text = (
        f"{subject} {_describe_pool(pool)} of {models[0][1].name} their label with a softmax of "
        f"at least {confidence:g}"
    )
    if set(names) <= set(_assuming.get() or ()):  # no confidence is known yet
        text = f"{models[0][1].name} has {_describe_pool(pool)}"
    return f"{text}, and a grid needs two of one class" if repeated else text


def _suggest_confidence(
    models: ConfidentModels, side: int, repeated: bool, confidence: float, count: int, seed: int
) -> str:
    """Return what a lower threshold would give."""
    more_data = "Use more data, or ask for fewer or smaller grids"
    if _assuming.get():
        return more_data
    for lower in (c for c in SUGGESTED_CONFIDENCES if c < confidence):
        pool = confident_images(models, lower)
        grids = len(draw_grids(pool, side, repeated, count, seed))
        found = counted(grids, "grid")
        if grids >= count:
            return f"confidence={lower:g} would give {_describe_pool(pool)}, and {found}."
        if not lower:
            return f"Even confidence=0 gives {_describe_pool(pool)}, and {found}. {more_data}"
    return more_data


def _describe_pool(pool: Pool) -> str:
    images = sum(map(len, pool.values()))
    return f"{counted(images, 'image')} in {counted(len(pool), 'class', 'classes')}"


def _digest(parts: Iterable[str]) -> str:
    return content_hash(repr(list(parts)))
