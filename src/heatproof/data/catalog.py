"""Data sets by name, fitted to a model."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heatproof.data.altered import ALTERATIONS, Altered
from heatproof.data.base import Data, PartData, PartViews, Sample, UnreadableImage
from heatproof.data.cifar10 import Cifar10, place_and_split
from heatproof.data.folder import ImageFolder
from heatproof.data.funnybirds import FunnyBirds
from heatproof.data.labels import place_and_labels
from heatproof.data.paperbirds import Paperbirds
from heatproof.errors import HeatproofError, unknown
from heatproof.models.model import Model

DATA = {
    "paperbirds": "paper-cut birds, drawn by code; splits train, val, test",
    "folder": "folder:/path, one subfolder a class (its name, ImageNet's wnid or its number) or no labels; folder:/path:labels.csv",
    "funnybirds": "funnybirds:/path, the published FunnyBirds folder",
    "cifar10": "cifar10:/path[:train], an .npz file or the folder of python batches; splits train, test",
    **{
        kind: f"{kind}:paperbirds or {kind}:cifar10:/path, {how.summary}"
        for kind, how in ALTERATIONS.items()
    },
}


@dataclass
class Batch:
    """Samples ready for a model; those that could not be read are named apart."""

    ids: list[str]
    x: Tensor  # (B, 3, H, W) in the model's input space
    labels: list[int | None]
    silhouette: Tensor | None  # (B, H, W) bool
    unreadable: dict[str, str]  # id -> why
    parts: PartViews | None = (
        None  # (B, P, 3, H, W) and (B, P, K, H, W), where a protocol asks for them
    )

    def part(self, rows: slice) -> Batch:
        silhouette = None if self.silhouette is None else self.silhouette[rows]
        parts = (
            None
            if self.parts is None
            else PartViews(self.parts.without[rows], self.parts.masks[rows])
        )
        return Batch(self.ids[rows], self.x[rows], self.labels[rows], silhouette, {}, parts)


def load_data(
    name: str | Data,
    model: Model | None = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """`paperbirds:test`, `folder:/path/to/images`, `folder:/path/to/images:labels.csv`, `watermark:paperbirds:test`.

    The model tells the size and the classes.
    """
    if not isinstance(name, str):
        if not (hasattr(name, "load") and hasattr(name, "ids")):
            raise HeatproofError(
                f"data is a name, such as paperbirds:test or folder:/path/to/images, or a data set; got {name!r}"
            )
        return name
    if limit is not None and limit < 1:
        raise HeatproofError(f"limit must be at least 1; got {limit}")
    kind, _, rest = name.partition(":")
    if kind in ALTERATIONS:
        if not rest:
            raise HeatproofError(
                f"{kind} is put on other data: write {kind}:paperbirds:test or {kind}:cifar10:/path"
            )
        return Altered(load_data(rest, model, split=split, limit=limit, seed=seed), kind, seed)
    if kind == "paperbirds" and rest and split and rest != split:
        raise HeatproofError(f"{name} names a split, and split={split} another")
    if kind == "paperbirds":
        return Paperbirds(
            split=split or rest or "test", size=model.size if model else 64, limit=limit
        )
    if kind == "folder":
        if model is None:
            raise HeatproofError(
                f"{name}: an image folder is fitted to a model; call load_data({name!r}, model=model)"
            )
        if split:
            raise HeatproofError(
                f"{name}: an image folder has no splits, so split={split} says nothing; name the folder of that split"
            )
        root, labels = place_and_labels(rest)
        told = {"size": model.size, "resize": model.resize, "n_classes": model.n_classes}
        return ImageFolder(
            root, labels=labels, classes=model.classes, limit=limit, seed=seed, **told
        )
    if kind == "funnybirds":
        return FunnyBirds(
            Path(rest), size=model.size if model else 256, split=split or "test", limit=limit
        )
    if kind == "cifar10":
        path, part = place_and_split(rest, split)
        size, resize, names = (model.size, model.resize, model.classes) if model else (32, 32, None)
        return Cifar10(path, part, size=size, resize=resize, names=names, limit=limit)
    if Path(name).is_dir():
        raise HeatproofError(
            f'"{name}" is a directory, which is named with its kind: folder:{name}'
        )
    raise unknown("data", name, DATA)


def training_split(name: str) -> str:
    """What belongs to it and is not judged."""
    kind, _, rest = name.partition(":")
    if kind in ALTERATIONS:
        return f"{kind}:{training_split(rest)}"
    if kind == "paperbirds":
        return "paperbirds:train"
    if kind == "cifar10":
        return f"cifar10:{place_and_split(rest, None)[0]}:train"
    raise HeatproofError(
        f"{name} has no split to train on; models are taught on paperbirds or cifar10:/path"
    )


def load_batch(data: Data, indices: Sequence[int], model: Model, with_parts: bool = False) -> Batch:
    """Decode in threads; the order is that of the indices."""

    def one(i: int) -> tuple[Sample, PartViews | None] | UnreadableImage:
        try:
            return data.load(i), data.parts(i) if with_parts and isinstance(
                data, PartData
            ) else None
        except UnreadableImage as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(one, indices))
    good = [pair[0] for pair in loaded if not isinstance(pair, UnreadableImage)]
    views = [
        pair[1] for pair in loaded if not isinstance(pair, UnreadableImage) and pair[1] is not None
    ]
    for sample in good:
        if sample.image.shape != (len(model.mean), model.size, model.size):
            shape = "×".join(map(str, sample.image.shape))
            raise HeatproofError(
                f"{data.name} gives images of {shape}, but {model.name} takes {len(model.mean)}×{model.size}×{model.size}"
            )
    unreadable = {
        data.ids[i]: str(e)
        for i, e in zip(indices, loaded, strict=True)
        if isinstance(e, UnreadableImage)
    }
    x = (
        model.normalize(torch.stack([s.image for s in good]))
        if good
        else torch.empty(0, 3, model.size, model.size)
    )
    masks = [s.silhouette for s in good if s.silhouette is not None]
    silhouette = torch.stack(masks) if good and len(masks) == len(good) else None
    parts = (
        PartViews(torch.stack([v.without for v in views]), torch.stack([v.masks for v in views]))
        if views
        else None
    )
    return Batch([s.id for s in good], x, [s.label for s in good], silhouette, unreadable, parts)
