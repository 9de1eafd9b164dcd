"""Large images as tiles of the size that a network takes: ``tiles:folder:/slides``.

Tiles are cut at the resolution of the image, side by side around its middle; what is left at the
borders is less than half a tile. Tiles of one image are not independent: `image_of` says which
image a tile is from, and intervals and tests draw images, with all their tiles.
"""

from __future__ import annotations

import re
import warnings
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from heatproof.data.base import Sample, UnreadableImage
from heatproof.data.catalog import dataset, load_data
from heatproof.data.folder import ImageFolder
from heatproof.data.images import Mode, image_size, read_image, to_tensor
from heatproof.errors import HeatproofError, join_limited
from heatproof.models.model import Model
from heatproof.tensor.noise import generator
from heatproof.text import counted

_TILE = re.compile(r"(?P<image>.+)#tile=\d+,\d+", re.DOTALL)


class Tile(NamedTuple):
    """A tile: the image that it is from, its row and column there, and its corner in pixels."""

    image: int
    row: int
    column: int
    top: int
    left: int


def image_of(sample: str) -> str:
    """Return the image that a tile is from; of any other sample, the sample itself."""
    match = _TILE.fullmatch(sample) if "#tile=" in sample else None
    return match["image"] if match else sample


class Tiles:
    """The tiles of a folder of images; the id of a tile is ``IMAGE#tile=ROW,COLUMN``.

    The first tile of every image comes first, then the second of every image that has two, and so
    on, in a seeded random order of images and of the tiles of each. So few samples are of as many
    images as possible, and the samples of a smaller limit are the first of those of a larger one.

    Args:
        images: The folder.
        limit: The number of tiles; all by default.
        seed: Seed for the order.

    Raises:
        HeatproofError: If no image is as large as a tile.
    """

    has_silhouettes = False

    def __init__(self, images: ImageFolder, limit: int | None = None, seed: int = 0):
        self.name = f"tiles:{images.name}"
        self.images = images
        side = images.size
        self.height, self.width = (side, side) if isinstance(side, int) else side
        rounds = [self._cut(i, seed) for i in range(len(images.ids))]
        small = [name for name, tiles in zip(images.ids, rounds, strict=True) if not tiles]
        size = f"{self.width}×{self.height} px"
        if len(small) == len(rounds):
            raise HeatproofError(
                f"{self.name}: no image is as large as a tile of {size}; {images.name} fits images "
                "to the network as they are"
            )
        if small:
            warnings.warn(
                f"{self.name}: {counted(len(small), 'image')} cannot be read or "
                f"{'is' if len(small) == 1 else 'are'} smaller than a tile of {size} and left out: "
                f"{join_limited(small, 3)}",
                stacklevel=4,
            )
        most = max(map(len, rounds))
        tiles = [of_image[k] for k in range(most) for of_image in rounds if k < len(of_image)]
        self.tiles = tiles[:limit]
        self.ids = [f"{images.ids[t.image]}#tile={t.row},{t.column}" for t in self.tiles]
        self.labels = [images.labels[t.image] for t in self.tiles]

    def _cut(self, image: int, seed: int) -> list[Tile]:
        """Return the tiles of an image, in a random order."""
        try:
            width, height = image_size(self.images.files[image])
        except UnreadableImage:
            return []
        down, across = height // self.height, width // self.width
        top, left = (height - down * self.height) // 2, (width - across * self.width) // 2
        tiles = [
            Tile(image, row, column, top + row * self.height, left + column * self.width)
            for row in range(down)
            for column in range(across)
        ]
        order = generator(seed, "tile order", self.images.ids[image]).permutation(len(tiles))
        return [tiles[k] for k in order]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def fingerprints(self) -> list[str]:
        """That of the image, and the size of tiles, which decides where they are cut."""
        size = f"{self.width}×{self.height}"
        return [f"{self.images.fingerprints[t.image]} {size}" for t in self.tiles]

    def load(self, index: int) -> Sample:
        tile = self.tiles[index]
        stamp = self.images.fingerprints[tile.image]
        picture = _picture(self.images.files[tile.image], self.images.mode, stamp)
        box = (tile.left, tile.top, tile.left + self.width, tile.top + self.height)
        return Sample(self.ids[index], to_tensor(picture.crop(box)), self.labels[index])


@lru_cache(maxsize=1)
def _picture(path: Path, mode: Mode, stamp: str) -> Image.Image:
    """Return a decoded image; the last one is kept for its next tile, if it has not changed."""
    return read_image(path, mode=mode)


@dataset(
    "tiles",
    summary="tiles:folder:/path, large images cut into tiles of the network's size; tiles of an "
    "image are drawn together by intervals and tests",
    reference=lambda evaluated, model, seed: _open(evaluated.images.name, model, None, seed),
)
def open_tiles(
    *, rest: str, model: Model | None, split: str | None, limit: int | None, seed: int
) -> Tiles:
    """Open ``tiles:folder:/path``."""
    if split:
        raise HeatproofError(
            f"tiles:{rest}: an image folder has no splits; leave out split={split}"
        )
    return _open(rest, model, limit, seed)


def _open(name: str, model: Model | None, limit: int | None, seed: int) -> Tiles:
    images = load_data(name, model, seed=seed) if name.startswith("folder:") else None
    if not isinstance(images, ImageFolder):
        raise HeatproofError(
            f'"tiles:{name}": tiles are cut from a folder of images: tiles:folder:/path or '
            "tiles:folder:/path:labels.csv"
        )
    return Tiles(images, limit, seed)
