"""A part of a data set: samples chosen by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from heatproof.data.base import Data, PartViews, Sample
from heatproof.errors import HeatproofError
from heatproof.tensor.noise import generator


class Subset:
    """Some samples of a data set, in its order; everything else is that of the data set.

    Args:
        images: The data set.
        indices: The positions of the chosen samples in it.
    """

    def __init__(self, images: Data, indices: Sequence[int]):
        self.images = images
        self.indices = list(indices)
        self.ids = [images.ids[i] for i in self.indices]
        self.labels = [images.labels[i] for i in self.indices]
        self.fingerprints = [images.fingerprints[i] for i in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getattr__(self, name: str) -> Any:
        if name in ("images", "indices"):  # not set yet, while it is copied
            raise AttributeError(name)
        value = getattr(self.images, name)
        return self._parts if name == "parts" else value

    def load(self, index: int) -> Sample:
        return self.images.load(self.indices[index])

    def _parts(self, index: int) -> PartViews:
        parts: PartViews = self.images.parts(self.indices[index])  # type: ignore[attr-defined]
        return parts


def take(data: Data, indices: Sequence[int]) -> Data:
    """Choose samples of a data set; one that can do so itself computes no more than it needs."""
    own: Callable[[Sequence[int]], Data] | None = getattr(data, "take", None)
    return Subset(data, indices) if own is None else own(indices)


def shuffled(data: Data, seed: int) -> Data:
    """Return all samples of a data set in a random order.

    Args:
        data: The data set.
        seed: Seed of the order.
    """
    return take(data, generator(seed, "sample order").permutation(len(data.ids)).tolist())


def balanced(data: Data, per_class: int, limit: int | None = None) -> Data:
    """Choose the same number of samples of every class, in the order of the data set.

    Args:
        data: The data set; every sample has a label.
        per_class: The number of samples of each class.
        limit: The number of samples in all.

    Raises:
        HeatproofError: If a sample has no label, or a class has too few samples.
    """
    if any(label is None for label in data.labels):
        raise HeatproofError(
            f"per_class chooses by label, but images of {data.name} have none; use limit"
        )
    sizes = Counter(data.labels)
    label, fewest = min(sizes.items(), key=lambda item: (item[1], item[0]))
    if fewest < per_class:
        raise HeatproofError(
            f"per_class: {per_class} is more than {data.name} has of class {label}; it has "
            f"{fewest} of it, so that per_class can be {fewest} at most"
        )
    chosen: list[int] = []
    taken: Counter[int | None] = Counter()
    for index, label in enumerate(data.labels):
        if taken[label] < per_class:
            taken[label] += 1
            chosen.append(index)
    return take(data, chosen[:limit])
