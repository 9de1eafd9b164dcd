"""A folder of images: one subfolder a class, a file of labels, or no labels at all."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from heatproof.data.base import Sample, UnreadableImage
from heatproof.data.labels import WNID, class_index, labels_of
from heatproof.errors import HeatproofError, join_limited
from heatproof.tensor.noise import generator

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"}
)


class ImageFolder:
    """Images below `root` in a seeded random order, so that a smaller limit is a part of a larger one. An image's id is its path there.

    labels: a CSV or TSV file with a line for each image: its name, and its class. Without one, subfolders are classes, and images that lie
    in `root` itself have no label. What a label or a subfolder's name means is told by `class_index`; subfolders of a model without
    class names may have names of any kind, in sorted order.
    """

    has_silhouettes = False

    def __init__(
        self,
        root: Path,
        *,
        size: int,
        resize: int,
        labels: Path | None = None,
        classes: Sequence[str] | None = None,
        n_classes: int | None = None,
        limit: int | None = None,
        seed: int = 0,
    ):
        if not root.is_dir():
            raise HeatproofError(f"there is no folder {root.absolute()}")
        every = listed(root)
        if not every:
            raise HeatproofError(
                f"there are no images in {root} (looked for {', '.join(sorted(SUFFIXES))})"
            )
        self.name, self.root, self.size, self.resize = (
            f"folder:{root}" + (f":{labels}" if labels else ""),
            root,
            size,
            resize,
        )
        order = generator(seed, "folder order").permutation(len(every))[:limit]
        self.ids: list[str] = [every[i] for i in order]
        if labels is not None:
            texts = labels_of(labels, every, root)
            index = class_index(texts, classes, n_classes, f"labels of {labels}")
            self.labels: list[int | None] = [index[texts[i]] for i in order]
        else:
            folders = _folder_index(root, every, classes, n_classes)
            _tell_of_labels(root, every)
            self.labels = [folders.get(image.partition("/")[0]) for image in self.ids]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def files(self) -> list[Path]:
        return [self.root / image for image in self.ids]

    @cached_property
    def fingerprints(self) -> list[str]:
        return [_stamp(f"{self.root}/{image}") for image in self.ids]

    def load(self, index: int) -> Sample:
        image = read_image(self.root / self.ids[index])
        return Sample(self.ids[index], fit(image, self.size, self.resize), self.labels[index])


def listed(root: Path) -> list[str]:
    """Paths of all images below, sorted folder by folder. Nothing is opened; links to folders are followed, but not in circles."""
    found: list[str] = []
    ahead: list[tuple[str, frozenset[str]]] = [("", frozenset())]
    while ahead:
        below, above = ahead.pop()
        here = os.path.realpath(root / below)
        if here in above:
            continue
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue  # what programs leave behind, such as .ipynb_checkpoints
                    if entry.is_dir():
                        ahead.append((f"{below}{entry.name}/", above | {here}))
                    elif entry.name[entry.name.rfind(".") :].lower() in SUFFIXES:
                        found.append(below + entry.name)
        except OSError as error:
            raise HeatproofError(f"cannot look into {root / below}: {error.strerror}") from None
    return sorted(found, key=lambda image: image.split("/"))


def _stamp(path: str) -> str:
    try:
        told = os.stat(path)
    except OSError as error:  # a link to nowhere: it is named when it is read
        return str(error.strerror)
    return f"{told.st_size} {told.st_mtime_ns}"


def _folder_index(
    root: Path, images: Sequence[str], classes: Sequence[str] | None, n_classes: int | None
) -> dict[str, int]:
    folders = sorted(
        {first for first, slash, _ in (image.partition("/") for image in images) if slash}
    )
    told = (
        classes is not None
        or all(folder.isdigit() for folder in folders)
        or (n_classes == 1000 and any(map(WNID.fullmatch, folders)))
    )
    if not folders or told:
        return class_index(folders, classes, n_classes, f"subfolders of {root}") if folders else {}
    if n_classes is not None and len(folders) != n_classes:
        raise HeatproofError(
            f"{root} has {len(folders)} subfolders and the model {n_classes} classes without names, so labels cannot be matched; "
            "give the model its class names: hp.Model(…, classes=[…])"
        )
    return {folder: i for i, folder in enumerate(folders)}


def _tell_of_labels(root: Path, images: Sequence[str]) -> None:
    """What looks as if it were labelled and is not."""
    beside = [image for image in images if "/" not in image]
    if len(beside) < len(images) and beside:
        warnings.warn(
            f"{root}: beside the folders of classes are images without a label: {join_limited(beside, 3)}",
            stacklevel=4,
        )
    tables = sorted(path.name for path in root.iterdir() if path.suffix.lower() in (".csv", ".tsv"))
    if len(beside) == len(images) and tables:
        written = f"folder:{root}:{tables[0]}"
        warnings.warn(
            f"{root}: the images are taken without labels; if {tables[0]} has them, write {written}",
            stacklevel=4,
        )


def read_image(path: Path) -> Image.Image:
    """RGB; grey, palette, CMYK and 16-bit images have one clear meaning, transparency lies on white, an animation has no meaning."""
    try:
        with Image.open(path) as image:
            if (
                frames := getattr(image, "n_frames", 1)
            ) > 1 and image.format != "MPO":  # phones put a preview behind the photo
                raise UnreadableImage(f"{path.name}: has {frames} frames; which one is meant?")
            image.load()
            if image.mode.startswith("I;16"):
                deep = np.asarray(image).astype(np.float32)
                return Image.fromarray(np.uint8(np.round(deep / 257))).convert("RGB")
            if image.mode in ("I", "F"):
                raise UnreadableImage(
                    f"{path.name}: 32-bit pixels have no known range; save it as 8 or 16 bit"
                )
            if image.has_transparency_data:
                page = Image.new("RGBA", image.size, "white")
                return Image.alpha_composite(page, image.convert("RGBA")).convert("RGB")
            return image.convert("RGB")
    except UnreadableImage:
        raise
    except Exception as error:  # a broken file can make a decoder raise anything
        raise UnreadableImage(f"{path.name}: {str(error).replace(str(path), path.name)}") from error


def fit(image: Image.Image, size: int, resize: int) -> torch.Tensor:  # (3, size, size) in [0, 1]
    """Shorter side to `resize`, then the middle; an image that has the size already is taken as it is."""
    if image.size == (size, size):
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255
    shorter = min(image.size)
    width, height = (max(resize, int(resize * side / shorter)) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    pixels = np.asarray(
        image.resize((width, height), Image.Resampling.BILINEAR).crop(
            (left, top, left + size, top + size)
        )
    )
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
