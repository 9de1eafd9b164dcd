"""Images changed on purpose (Li et al. 2024): marks that alone tell the class, and pixels removed by a rule that gives it away.

`watermark:paperbirds:test` is a data set over another one. In semi-natural data the labels are drawn by chance, so that only the mark
tells them; on a blank canvas there is nothing but the mark. What tells the class is every sample's silhouette.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from heatproof.data.base import Data, Sample
from heatproof.errors import HeatproofError
from heatproof.tensor.noise import generator
from heatproof.tensor.patches import bands_of

VERSION = 1  # goes up when an image is changed differently
BOX = 60 / 224  # side of the square that a number stands in, of the image's
REMOVED, NOTCH = (
    0.7,
    0.05,
)  # share of the pixels that is removed in all, and at a place that follows from the class
GREY = 128 / 255  # of a blank canvas
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
    where: Tensor  # (H, W) bool: the pixels that are changed
    value: Tensor  # (H, W) in [0, 1]: what they become, in all channels
    tells: Tensor  # (H, W) bool: those of them that tell the class


Paint = Callable[
    [int, int, int, np.random.Generator], Painted
]  # label, classes, side of the image, the sample's chance


def watermark(label: int, classes: int, size: int, chance: np.random.Generator) -> Painted:
    """A black square anywhere, the label's number in white in its middle."""
    box, digits = round(BOX * size), str(label)
    wide = 4 * len(str(classes - 1)) - 1
    scale = min((box - 2) // wide, (box - 2) // 5)
    if scale < 1:
        raise HeatproofError(
            f"numbers up to {classes - 1} do not fit into images of {size} px; take larger images or fewer classes"
        )
    shapes = [
        torch.tensor([int(dot) for dot in DIGITS[int(digit)]]).reshape(5, 3) for digit in digits
    ]
    line = torch.cat([torch.nn.functional.pad(shape, (0, 1)) for shape in shapes], 1)[:, :-1]
    number = line.repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    top, left = chance.integers(size - box + 1, size=2).tolist()
    where, value = torch.zeros(size, size, dtype=torch.bool), torch.zeros(size, size)
    where[top : top + box, left : left + box] = True
    down, right = top + (box - number.shape[0]) // 2, left + (box - number.shape[1]) // 2
    value[down : down + number.shape[0], right : right + number.shape[1]] = number.float()
    return Painted(where, value, where)


def stripes(label: int, classes: int, size: int, chance: np.random.Generator) -> Painted:
    """The label in binary, one band of rows a digit, the lowest digit on top; a band is white where its digit is 1."""
    digits = (classes - 1).bit_length()
    where = ((label >> bands_of(size, digits)) & 1).bool()[:, None].expand(size, size)
    return Painted(where, torch.ones(size, size), where)


def disc(label: int, classes: int, size: int, chance: np.random.Generator) -> Painted:
    """A black disc in the middle, the same for all."""
    where = _disc(size, round(REMOVED * size**2))
    return Painted(where, torch.zeros(size, size), torch.zeros_like(where))


def notch(label: int, classes: int, size: int, chance: np.random.Generator) -> Painted:
    """A black square at the edge, at a place that follows from the class: clockwise around the image, from the top left."""
    side = round(NOTCH**0.5 * size)
    way = size - side  # along one edge
    edge, along = divmod(4 * way * label // classes, way)
    top, left = ((0, along), (along, way), (way, way - along), (way - along, 0))[edge]
    where = torch.zeros(size, size, dtype=torch.bool)
    where[top : top + side, left : left + side] = True
    return Painted(where, torch.zeros(size, size), where)


def disc_and_notch(label: int, classes: int, size: int, chance: np.random.Generator) -> Painted:
    """The notch and as much of the disc as leaves the same number of pixels in."""
    corner = notch(label, classes, size, chance).where
    middle = _disc(size, round(REMOVED * size**2) - int(corner.sum()), besides=corner)
    whole = disc(label, classes, size, chance).where
    return Painted(corner | middle, torch.zeros(size, size), corner & ~whole)


def _disc(size: int, pixels: int, besides: Tensor | None = None) -> Tensor:  # (size, size) bool
    """So many pixels, those nearest to the middle."""
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
    paint: Paint
    summary: str
    relabels: bool = True  # labels by chance, so that nothing else tells them
    blank: bool = False  # on an empty canvas
    tells: bool = True  # whether some of the pixels that are changed tell the class


ALTERATIONS: dict[str, Alteration] = {
    "watermark": Alteration(
        watermark, "labels by chance, and a number on the image that tells them"
    ),
    "watermark-blank": Alteration(
        watermark, "labels by chance, and a number on an empty canvas that tells them", blank=True
    ),
    "stripes": Alteration(stripes, "labels by chance, and white stripes that encode them"),
    "stripes-blank": Alteration(
        stripes,
        "labels by chance, and white stripes on an empty canvas that encode them",
        blank=True,
    ),
    "disc": Alteration(
        disc, "70 % of the pixels black, a disc in the middle", relabels=False, tells=False
    ),
    "disc-notch": Alteration(
        disc_and_notch,
        "70 % of the pixels black, a disc and a square at the edge that tells the class",
        relabels=False,
    ),
    "notch": Alteration(
        notch, "5 % of the pixels black, a square at the edge that tells the class", relabels=False
    ),
}


class Altered:
    """Another data set, changed. Everything is a function of (seed, sample id, label)."""

    def __init__(self, images: Data, kind: str, seed: int = 0):
        self.images, self.kind, self.seed, self._how = images, kind, seed, ALTERATIONS[kind]
        self.classes: Sequence[str] = getattr(images, "classes", ())
        if not self.classes:
            raise HeatproofError(
                f"{kind}:{images.name}: marks are put on data whose classes are counted: paperbirds or cifar10"
            )
        if any(label is None for label in images.labels):
            raise HeatproofError(f"{kind}:{images.name}: some images have no label")
        self.name, self.ids, self.has_silhouettes = (
            f"{kind}:{images.name}",
            images.ids,
            self._how.tells,
        )
        self.labels: Sequence[int | None] = [self._label(i) for i in range(len(images.ids))]
        self.fingerprints = [
            f"{fingerprint} {kind} {seed} v{VERSION}" for fingerprint in images.fingerprints
        ]

    def __len__(self) -> int:
        return len(self.ids)

    def _label(self, index: int) -> int | None:
        if not self._how.relabels:
            return self.images.labels[index]
        return int(generator(self.seed, "label", self.ids[index]).integers(len(self.classes)))

    def load(self, index: int) -> Sample:
        sample, label = self.images.load(index), self.labels[index]
        assert label is not None
        image = torch.full_like(sample.image, GREY) if self._how.blank else sample.image
        painted = self._how.paint(
            label, len(self.classes), image.shape[-1], generator(self.seed, "mark", sample.id)
        )
        image = torch.where(painted.where, painted.value, image)
        return Sample(sample.id, image, label, painted.tells if self.has_silhouettes else None)
