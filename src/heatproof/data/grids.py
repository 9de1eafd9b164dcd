"""Grids of images that a model is sure of (Rao et al. 2024), put together from tuples of indices when they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from heatproof.data.base import Data, Sample
from heatproof.data.catalog import load_batch
from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.models.model import Model
from heatproof.tensor.batching import rows
from heatproof.tensor.noise import generator

Pool = Mapping[int, Sequence[int]]  # class -> indices of images
BATCH = 64  # of the pass that finds the pool, so that it does not depend on the batches of a run
OFFERS = (0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.0)  # thresholds that a message may suggest


class GridSample(NamedTuple):
    """What a sample of ``Grids`` consists of."""

    images: tuple[str, ...]  # ids of the images, row by row
    cell: int  # the grid cell that is evaluated


class Grids:
    """n×n images as one, cells row by row. A sample is a grid and the cell that is judged in it, whose class is its label."""

    def __init__(
        self,
        images: Data,
        cells: Sequence[tuple[int, ...]],
        grid: int,
        judged: int,
        pool: Pool,
        load: Callable[[int], Sample] | None = None,
    ):
        self.images, self.cells, self.grid, self.judged, self.pool = (
            images,
            cells,
            grid,
            judged,
            pool,
        )
        self._load = load or images.load
        self.name = f"{images.name} in grids of {grid}×{grid}"
        grids = [GridSample(tuple(images.ids[i] for i in own), judged) for own in cells]
        self.ids = [grid_id(sample) for sample in grids]
        self.contents = dict(zip(self.ids, grids, strict=True))
        self.labels = [images.labels[own[judged]] for own in cells]
        self.fingerprints = [_digest(images.fingerprints[i] for i in own) for own in cells]
        self.has_silhouettes = images.has_silhouettes

    def __len__(self) -> int:
        return len(self.ids)

    def load(self, index: int) -> Sample:
        parts = [self._load(i) for i in self.cells[index]]
        masks = [part.silhouette for part in parts if part.silhouette is not None]
        silhouette = tiled(masks, self.grid) if len(masks) == len(parts) else None
        return Sample(
            self.ids[index],
            tiled([part.image for part in parts], self.grid),
            self.labels[index],
            silhouette,
        )


def tiled(
    parts: Sequence[Tensor], grid: int
) -> Tensor:  # grid² of (…, h, w) -> (…, grid · h, grid · w)
    lines = [torch.cat(list(parts[row * grid : (row + 1) * grid]), -1) for row in range(grid)]
    return torch.cat(lines, -2)


def grid_id(sample: GridSample) -> str:
    """Return an id such as ``a+b+c+d#2``; two samples that differ have different ids.

    Nothing is read back from it: images and grid cell are in ``Grids.contents``.
    """
    images = (name.replace("\\", "\\\\").replace("+", "\\+") for name in sample.images)
    return "+".join(images) + f"#{sample.cell}"


Voters = Sequence[
    tuple[Model, Data]
]  # whose word counts, each with its images; indices are those of the first one's


def pool_of(voters: Voters, confidence: float) -> dict[int, list[int]]:
    """Per class, the images that every model gives their own label with at least that softmax; one that a model does not have is out."""
    (_, data), pool = voters[0], dict[int, list[int]]()
    each = [
        dict(zip(own.ids, own_confidence(model, own).tolist(), strict=True))
        for model, own in voters
    ]
    sure = torch.tensor(
        [min(known.get(name, -1.0) for known in each) for name in data.ids], dtype=torch.float64
    )
    for i in ((sure >= confidence) & (sure >= 0)).nonzero().flatten().tolist():
        pool.setdefault(int(data.labels[i] or 0), []).append(i)
    return dict(sorted(pool.items()))


_known: WeakKeyDictionary[Model, dict[str, Tensor]] = WeakKeyDictionary()


def own_confidence(model: Model, data: Data) -> Tensor:  # (N,) float64
    """The softmax of each image's label where that is the prediction; −1 where it is not, or the image cannot be read.

    A pass over all of the data, once for a model and what is in it.
    """
    if any(label is None for label in data.labels):
        raise HeatproofError(
            f"{data.name} has images without a label; grids are made of images whose class is known and found"
        )
    key = _digest(
        [
            model.fingerprint(),
            data.name,
            *map(repr, zip(data.ids, data.fingerprints, data.labels, strict=True)),
        ]
    )
    known = _known.setdefault(model, {})
    if key not in known:
        known[key] = torch.full((len(data.ids),), -1.0, dtype=torch.float64)
        place, labels = {name: i for i, name in enumerate(data.ids)}, torch.tensor(data.labels)
        with model.batches_of(BATCH):
            for part in rows(torch.arange(len(data.ids)), BATCH):
                batch = load_batch(data, part.tolist(), model)
                if batch.ids:
                    at = torch.tensor([place[name] for name in batch.ids])
                    logits = model.logits(batch.x).double().cpu()
                    own = logits.softmax(1).gather(1, labels[at, None])[:, 0]
                    known[key][at] = torch.where(logits.argmax(1) == labels[at], own, -1)
    return known[key]


def draw(pool: Pool, grid: int, repeated: bool, count: int, seed: int = 0) -> list[tuple[int, ...]]:
    """At most `count` grids; fewer where the pool runs out. More grids begin with those of fewer.

    All cells have classes of their own, each grid's drawn uniformly over classes that have images left. Where the class is `repeated`, the
    last cell shows another image of the first one's. No image is judged twice, and none is twice in a grid; what is only shown beside the
    judged cells may return in another grid.
    """
    rng, places = generator(seed, "grids", grid, repeated), grid**2
    left = {label: rng.permutation(members).tolist() for label, members in pool.items()}
    found: list[tuple[int, ...]] = []
    while len(found) < count:
        needed = 2 if repeated else 1
        judgeable = [label for label, own in left.items() if len(own) >= needed]
        if repeated:
            if not judgeable or len(pool) < places - 1:
                break
            first = judgeable[rng.integers(len(judgeable))]
            beside = rng.choice(
                [label for label in pool if label != first], places - 2, replace=False
            ).tolist()
            shown = [pool[label][int(rng.integers(len(pool[label])))] for label in beside]
            found.append((left[first].pop(), *shown, left[first].pop()))
        else:
            if len(judgeable) < places:
                break
            found.append(
                tuple(
                    left[label].pop()
                    for label in rng.choice(judgeable, places, replace=False).tolist()
                )
            )
    return found


def make_grids(
    voters: Voters,
    grid: int,
    *,
    repeated: bool,
    confidence: float,
    count: int | None,
    most: int,
    seed: int = 0,
) -> tuple[list[tuple[int, ...]], Pool]:
    """(grids, the pool they are from). count=None: as many as the pool gives, at most `most`."""
    pool = pool_of(voters, confidence)
    found = draw(pool, grid, repeated, count or most, seed)
    if len(found) < (count or 1):
        raise HeatproofError(
            _too_few(voters, grid, repeated, confidence, count or 1, pool, len(found), seed)
        )
    return found, pool


def _too_few(
    voters: Voters,
    grid: int,
    repeated: bool,
    confidence: float,
    count: int,
    pool: Pool,
    found: int,
    seed: int,
) -> str:
    """What is there, and what a lower threshold would give."""
    names = [model.name for model, _ in voters]
    who = (
        f"{names[0]} gives"
        if len(names) == 1
        else f"{', '.join(names[:-1])} and {names[-1]} all give"
    )
    told = f"{who} {_told(pool)} of {voters[0][1].name} their label with a softmax of at least {confidence:g}"
    told += ", and two of a class are needed for a grid" if repeated else ""
    told += (
        f": enough for {found} grids of {grid}×{grid}, not {count}"
        if found
        else f": not enough for a grid of {grid}×{grid}"
    )
    for lower in (offer for offer in OFFERS if offer < confidence):
        other = pool_of(voters, lower)
        enough = len(draw(other, grid, repeated, count, seed))
        if enough >= count or not lower:
            verb = (
                f"confidence={lower:g} would give" if enough >= count else "even confidence=0 gives"
            )
            more = "" if enough >= count else " Give more data, or ask for fewer or smaller grids"
            return f"{told}. {verb[0].upper()}{verb[1:]} {_told(other)}, and {enough} grids.{more}"
    return f"{told}. Give more data, or ask for fewer or smaller grids"


def _told(pool: Pool) -> str:
    images = sum(map(len, pool.values()))
    return f"{images} image{'s' * (images != 1)} in {len(pool)} class{'es' * (len(pool) != 1)}"


def _digest(parts: Iterable[str]) -> str:
    return content_hash(repr(list(parts)))
