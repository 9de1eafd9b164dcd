"""FunnyBirds as its authors publish it (Hesse et al., ICCV 2023).

The folder has images, part maps, and every image without each part::

    root/classes.json  parts.json  dataset_test.json
    root/test/<class>/<number>.png
    root/test_part_map/<class>/<number>.png
    root/test_interventions/<class>/<number>/body_<parts kept>.png

As in the authors' code, a fourth channel of an image is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from heatproof.data.base import PartViews, Sample
from heatproof.data.catalog import check_colour, dataset
from heatproof.data.images import read_image
from heatproof.data.source import image_stamps
from heatproof.errors import HeatproofError
from heatproof.models.model import Model

# In a part map each instance of a part has its own colour.
INSTANCES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "beak": ((255, 255, 0),),
    "eye": ((255, 255, 253), (255, 255, 254)),
    "foot": ((255, 0, 1), (255, 0, 2)),
    "tail": ((0, 0, 255),),
    "wing": ((0, 255, 1), (0, 255, 2)),
}


class FunnyBirds:
    """A split of FunnyBirds.

    Args:
        root: The folder.
        size: Side in pixels that images are resized to.
        split: ``test`` or ``train``.
        limit: The number of samples; all by default.

    Raises:
        HeatproofError: If files are missing.
    """

    has_silhouettes = True

    def __init__(
        self, root: Path, *, size: int = 256, split: str = "test", limit: int | None = None
    ):
        scenes = _read_json(root / f"dataset_{split}.json")
        self.name = f"funnybirds:{root}"
        self.root = root
        self.size = size
        self.split = split
        self.part_names: Sequence[str] = sorted(_read_json(root / "parts.json"))
        unknown = [p for p in self.part_names if p not in INSTANCES]
        if unknown:
            raise HeatproofError(
                f"{root / 'parts.json'} names parts that have no colour in part maps: "
                f"{', '.join(unknown)}"
            )
        self.labels: Sequence[int | None] = [int(scene["class_idx"]) for scene in scenes][:limit]
        self.ids: Sequence[str] = [
            f"{label}/{number:06d}" for number, label in enumerate(self.labels)
        ]
        missing = [i for i in self.ids if not self._path("", i).is_file()]
        if missing:
            raise HeatproofError(
                f"{root} lacks {len(missing)} of {len(self.ids)} {split} images, such as "
                f"{self._path('', missing[0])}"
            )
        stamps = image_stamps([self._path("", i) for i in self.ids])
        self.fingerprints: Sequence[str] = [f"{stamp} {size}" for stamp in stamps]

    def __len__(self) -> int:
        return len(self.ids)

    def load(self, index: int) -> Sample:
        image = self._pixels(self._path("", self.ids[index])).float() / 255
        bird = self._part_map(index).any(2)
        return Sample(self.ids[index], image, self.labels[index], torch.from_numpy(bird))

    def parts(self, index: int) -> PartViews:
        folder = self.root / f"{self.split}_interventions" / self.ids[index]
        without = [self._pixels(folder / self._file_without(part)) for part in self.part_names]
        part_map = self._part_map(index)
        most = max(map(len, INSTANCES.values()))
        masks = torch.zeros(len(self.part_names), most, self.size, self.size, dtype=torch.bool)
        for p, name in enumerate(self.part_names):
            for k, colour in enumerate(INSTANCES[name]):
                masks[p, k] = torch.from_numpy((part_map == colour).all(2))
        return PartViews(torch.stack(without), masks)

    def _file_without(self, part: str) -> str:
        return "_".join(["body", *(p for p in self.part_names if p != part)]) + ".png"

    def _path(self, kind: str, sample: str) -> Path:
        return self.root / f"{self.split}{kind}" / f"{sample}.png"

    def _pixels(self, path: Path) -> Tensor:  # (3, H, W) uint8
        image = read_image(path, transparency=False)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)

    def _part_map(self, index: int) -> np.ndarray:  # (H, W, 3)
        image = read_image(self._path("_part_map", self.ids[index]), transparency=False)
        return np.asarray(image.resize((self.size, self.size), Image.Resampling.NEAREST))


def _read_json(path: Path) -> Any:
    if not path.is_file():
        raise HeatproofError(
            f"there is no {path}; a FunnyBirds folder has classes.json, parts.json and "
            "dataset_test.json"
        )
    return json.loads(path.read_text(encoding="utf-8"))


@dataset(
    "funnybirds",
    summary="funnybirds:/path, the published FunnyBirds folder",
    splits={"train": "train"},
)
def open_funnybirds(
    *, rest: str, model: Model | None, split: str | None, limit: int | None
) -> FunnyBirds:
    """Open ``funnybirds:/path``."""
    size = 256
    if model is not None:
        check_colour("funnybirds", model)
        size = model.square_side("funnybirds")
    return FunnyBirds(Path(rest), size=size, split=split or "test", limit=limit)
