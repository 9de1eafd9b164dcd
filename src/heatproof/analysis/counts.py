"""Counts of what was evaluated: images, their tiles, grids of images, and maps of grids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from heatproof.data.tiles import image_of
from heatproof.runs.format import GridNote
from heatproof.text import counted


@dataclass(frozen=True)
class SampleCounts:
    """Numbers of images and grids that samples are.

    Attributes:
        images: Single images, or those that tiles are from.
        tiles: Samples that are a tile of an image.
        grids: Number of grids, by the number of images in each.
        maps: Samples that are a cell of a grid; a grid with four evaluated cells has four maps.
    """

    images: int
    grids: Mapping[int, int]
    maps: int
    tiles: int = 0

    @classmethod
    def of(cls, samples: Iterable[str], grids: Mapping[str, GridNote]) -> SampleCounts:
        """Count samples.

        Args:
            samples: Ids of samples; those that occur twice are counted once.
            grids: What samples on grids consist of, from `Store.grids`.
        """
        distinct = set(samples.unique() if isinstance(samples, pd.Series) else samples)
        maps = [grids[sample] for sample in distinct if sample in grids]
        sizes = Counter(len(images) for images in {note.images for note in maps})
        single = [sample for sample in distinct if sample not in grids]
        images = {image_of(sample) for sample in single}
        tiles = sum(image_of(sample) != sample for sample in single)
        return cls(len(images), dict(sorted(sizes.items())), len(maps), tiles)

    @property
    def independent(self) -> int:
        """Images and grids: tiles of an image and maps of a grid depend on each other."""
        return self.images + sum(self.grids.values())

    @property
    def unit(self) -> str:
        """The word for samples: images, tiles, maps (of grids), or samples for several kinds."""
        if not self.maps:
            return "tiles" if self.tiles else "images"
        return "samples" if self.images else "maps"

    def __str__(self) -> str:
        parts = [counted(self.images, "image")] if self.images or not self.maps else []
        if self.tiles:
            parts = [f"{counted(self.tiles, 'tile')} of {counted(self.images, 'image')}"]
        for size, count in self.grids.items():
            parts.append(f"{counted(count, 'grid')} of {size} images")
        text = ", ".join(parts)
        return f"{text} ({counted(self.maps, 'map')})" if self.maps else text
