"""Data sets by name, fitted to a model."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heatproof.data.base import Data, Sample, UnreadableImage
from heatproof.data.folder import ImageFolder
from heatproof.data.paperbirds import Paperbirds
from heatproof.errors import HeatproofError, unknown
from heatproof.models.model import Model

DATA = {"paperbirds": "paper-cut birds, drawn by code; splits train, val, test", "folder": "folder:/path, one subfolder a class"}


@dataclass
class Batch:
    """Samples ready for a model; those that could not be read are named apart."""

    ids: list[str]
    x: Tensor  # (B, 3, H, W) in the model's input space
    labels: list[int | None]
    silhouette: Tensor | None  # (B, H, W) bool
    unreadable: dict[str, str]  # id -> why

    def part(self, rows: slice) -> Batch:
        return Batch(self.ids[rows], self.x[rows], self.labels[rows], None if self.silhouette is None else self.silhouette[rows], {})


def load_data(name: str | Data, model: Model | None = None, *, split: str | None = None, limit: int | None = None, seed: int = 0) -> Data:
    """`paperbirds:test` or `folder:/path/to/images`. The model tells the size and the classes."""
    if not isinstance(name, str):
        return name
    if limit is not None and limit < 1:
        raise HeatproofError(f"limit must be at least 1; got {limit}")
    kind, _, rest = name.partition(":")
    if kind == "paperbirds" and rest and split and rest != split:
        raise HeatproofError(f"{name} names a split, and split={split} another")
    if kind == "paperbirds":
        return Paperbirds(split=split or rest or "test", size=model.size if model else 64, limit=limit)
    if kind == "folder":
        if model is None:
            raise HeatproofError(f"{name}: an image folder is fitted to a model; call load_data({name!r}, model=model)")
        return ImageFolder(
            Path(rest), size=model.size, resize=model.resize, classes=model.classes, n_classes=model.n_classes, limit=limit, seed=seed
        )
    raise unknown("data", name, DATA)


def load_batch(data: Data, indices: Sequence[int], model: Model) -> Batch:
    """Decode in threads; the order is that of the indices."""

    def one(i: int) -> Sample | UnreadableImage:
        try:
            return data.load(i)
        except UnreadableImage as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(one, indices))
    good = [s for s in loaded if isinstance(s, Sample)]
    for sample in good:
        if sample.image.shape != (len(model.mean), model.size, model.size):
            shape = "×".join(map(str, sample.image.shape))
            raise HeatproofError(f"{data.name} gives images of {shape}, but {model.name} takes {len(model.mean)}×{model.size}×{model.size}")
    unreadable = {data.ids[i]: str(e) for i, e in zip(indices, loaded, strict=True) if isinstance(e, UnreadableImage)}
    x = model.normalize(torch.stack([s.image for s in good])) if good else torch.empty(0, 3, model.size, model.size)
    masks = [s.silhouette for s in good if s.silhouette is not None]
    return Batch(
        [s.id for s in good], x, [s.label for s in good], torch.stack(masks) if good and len(masks) == len(good) else None, unreadable
    )
