"""Images changed on purpose, so that known pixels reveal the class (Li et al. 2024).

``watermark:paperbirds:test`` is a data set over another one. Either a mark is painted on the image
and labels are random, so that only the mark reveals them; or pixels are removed by a rule that
reveals the class. On an empty canvas there is nothing but the mark. The pixels that reveal the
class are the silhouette of the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from heatproof.data.base import Data, Sample
from heatproof.data.catalog import dataset, default_reference, load_data, training_split
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.noise import generator
from heatproof.tensor.patches import bands_of

VERSION = 1  # raised when images are changed differently
NUMBER_BOX_SIDE = 60 / 224  # as a fraction of the image's side
REMOVED_FRACTION = 0.7  # of the pixels
NOTCH_FRACTION = 0.05  # of the pixels, removed at a position that depends on the class
CANVAS_GREY = 128 / 255
DIGITS = (  # 3×5, row by row
    "111101101101111",
    "010110010010111",
    "111001111100111",
    "111001111001111",
    "101101111001001",
    "111100111001111",
    "111100111101111",
    "111001010010010",
    "111101111101111",
    "111101111001111",
)


class Painted(NamedTuple):
    """Paint on an image: which pixels, their values, and which of them reveal the class."""

    where: Tensor  # (H, W) bool: the pixels that are changed
    value: Tensor  # (H, W) in [0, 1]: what they become, in all channels
    reveals: Tensor  # (H, W) bool: those of them that reveal the class


# (label, number of classes, side of the image, random numbers of the sample) -> what is painted
Paint = Callable[[int, int, int, np.random.Generator], Painted]


def watermark(label: int, classes: int, size: int, chance: np.random.Generator) -> Painted:
    """Paint a black square at a random position, with the label's number in white."""
    box = round(NUMBER_BOX_SIDE * size)
    width = 4 * len(str(classes - 1)) - 1
    scale = min((box - 2) // width, (box - 2) // 5)
    if scale < 1:
        raise HeatproofError(
            f"numbers up to {classes - 1} do not fit into images of {size} px; take larger images "
            "or fewer classes"
        )
    shapes = [
        torch.tensor([int(dot) for dot in DIGITS[int(digit)]]).reshape(5, 3) for digit in str(label)
    ]
    line = torch.cat([torch.nn.functional.pad(shape, (0, 1)) for shape in shapes], 1)[:, :-1]
    number = line.repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    top, left = chance.integers(size - box + 1, size=2).tolist()
    where = torch.zeros(size, size, dtype=torch.bool)
    value = torch.zeros(size, size)
    where[top : top + box, left : left + box] = True
    height, width = number.shape
    y = top + (box - height) // 2
    x = left + (box - width) // 2
    value[y : y + height, x : x + width] = number.float()
    return Painted(where, value, where)


def stripes(label: int, classes: int, size: int, chance: np.random.Generator) -> Painted:
    """Paint the label in binary: one band of rows per digit, the lowest on top, white for 1."""
    digits = (classes - 1).bit_length()
    where = ((label >> bands_of(size, digits)) & 1).bool()[:, None].expand(size, size)
    return Painted(where, torch.ones(size, size), where)


def disc(label: int, classes: int, size: int, chance: np.random.Generator) -> Painted:
    """Paint a black disc in the middle, the same for all classes."""
    where = _disc(size, round(REMOVED_FRACTION * size**2))
    return Painted(where, torch.zeros(size, size), torch.zeros_like(where))


def notch(label: int, classes: int, size: int, chance: np.random.Generator) -> Painted:
    """Paint a black square at the edge, clockwise from the top left by the class."""
    side = round(NOTCH_FRACTION**0.5 * size)
    length = size - side  # of the path along one edge
    edge, along = divmod(4 * length * label // classes, length)
    corners = ((0, along), (along, length), (length, length - along), (length - along, 0))
    top, left = corners[edge]
    where = torch.zeros(size, size, dtype=torch.bool)
    where[top : top + side, left : left + side] = True
    return Painted(where, torch.zeros(size, size), where)


def disc_and_notch(label: int, classes: int, size: int, chance: np.random.Generator) -> Painted:
    """Paint the notch, and a disc so that as many pixels are black as with `disc` alone."""
    corner = notch(label, classes, size, chance).where
    middle = _disc(size, round(REMOVED_FRACTION * size**2) - int(corner.sum()), besides=corner)
    whole = disc(label, classes, size, chance).where
    return Painted(corner | middle, torch.zeros(size, size), corner & ~whole)


def _disc(size: int, pixels: int, besides: Tensor | None = None) -> Tensor:  # (size, size) bool
    """Return a mask of the given number of pixels, those nearest to the middle."""
    offset = torch.arange(size) * 2 - (size - 1)
    distance = offset[:, None] ** 2 + offset[None, :] ** 2
    if besides is not None:
        distance = distance.masked_fill(besides, 8 * size**2)
    order = distance.flatten().argsort(stable=True)
    return (
        torch.zeros(size**2, dtype=torch.bool)
        .index_fill(0, order[:pixels], True)
        .reshape(size, size)
    )


class Alteration(NamedTuple):
    """A way to change images."""

    paint: Paint
    summary: str
    relabels: bool = True  # labels are random, so that nothing else reveals them
    blank: bool = False  # on an empty canvas
    reveals: bool = True  # whether some of the changed pixels reveal the class


ALTERATIONS: dict[str, Alteration] = {
    "watermark": Alteration(
        watermark, "random labels, and a number on the image that reveals them"
    ),
    "watermark-blank": Alteration(
        watermark, "random labels, and a number on an empty canvas that reveals them", blank=True
    ),
    "stripes": Alteration(stripes, "random labels, and white stripes that encode them"),
    "stripes-blank": Alteration(
        stripes,
        "random labels, and white stripes on an empty canvas that encode them",
        blank=True,
    ),
    "disc": Alteration(
        disc, "70 % of the pixels black, a disc in the middle", relabels=False, reveals=False
    ),
    "disc-notch": Alteration(
        disc_and_notch,
        "70 % of the pixels black, a disc and a square at the edge that reveals the class",
        relabels=False,
    ),
    "notch": Alteration(
        notch,
        "5 % of the pixels black, a square at the edge that reveals the class",
        relabels=False,
    ),
}


class Altered:
    """Another data set with changed images. The change depends on (seed, sample id, label).

    Args:
        images: The data set.
        kind: How its images are changed, a key of ``ALTERATIONS``.
        seed: Seed for random labels and positions.

    Raises:
        HeatproofError: If the number of classes or a label is not known.
    """

    def __init__(self, images: Data, kind: str, seed: int = 0):
        self.images = images
        self.kind = kind
        self.seed = seed
        self._alteration = ALTERATIONS[kind]
        self.classes: Sequence[str] = getattr(images, "classes", ())
        if not self.classes:
            raise HeatproofError(
                f"{kind}:{images.name}: images can be altered only if their number of classes is "
                "known; use paperbirds or cifar10"
            )
        if any(label is None for label in images.labels):
            raise HeatproofError(f"{kind}:{images.name}: some images have no label")
        self.name = f"{kind}:{images.name}"
        self.ids = images.ids
        self.has_silhouettes = self._alteration.reveals
        self.labels: Sequence[int | None] = [self._label(i) for i in range(len(images.ids))]
        self.fingerprints = [
            f"{fingerprint} {kind} {seed} v{VERSION}" for fingerprint in images.fingerprints
        ]

    def __len__(self) -> int:
        return len(self.ids)

    def _label(self, index: int) -> int | None:
        if not self._alteration.relabels:
            return self.images.labels[index]
        return int(generator(self.seed, "label", self.ids[index]).integers(len(self.classes)))

    def load(self, index: int) -> Sample:
        sample = self.images.load(index)
        label = self.labels[index]
        assert label is not None
        image = (
            torch.full_like(sample.image, CANVAS_GREY) if self._alteration.blank else sample.image
        )
        if image.shape[-1] != image.shape[-2]:
            size = "×".join(map(str, image.shape[-2:]))
            raise HeatproofError(
                f"{self.name}: marks are painted on square images; those of {self.images.name} "
                f"have {size} px"
            )
        painted = self._alteration.paint(
            label, len(self.classes), image.shape[-1], generator(self.seed, "mark", sample.id)
        )
        image = torch.where(painted.where, painted.value, image)
        return Sample(sample.id, image, label, painted.reveals if self.has_silhouettes else None)


def _register(kind: str, summary: str) -> None:
    @dataset(
        kind,
        summary=f"{kind}:paperbirds or {kind}:cifar10:/path, {summary}",
        training_split=lambda rest: f"{kind}:{training_split(rest)}",
        reference=lambda evaluated, model, seed: Altered(
            default_reference(evaluated.images, model, seed), kind, evaluated.seed
        ),
    )
    def open_altered(
        *, rest: str, model: Model | None, split: str | None, limit: int | None, seed: int
    ) -> Altered:
        if not rest:
            raise HeatproofError(
                f"{kind} alters other data: write {kind}:paperbirds:test or {kind}:cifar10:/path"
            )
        return Altered(load_data(rest, model, split=split, limit=limit, seed=seed), kind, seed)


for _kind, _alteration in ALTERATIONS.items():
    _register(_kind, _alteration.summary)
