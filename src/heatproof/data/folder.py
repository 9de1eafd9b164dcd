"""A folder of images: one subfolder per class, a file of labels, or no labels at all."""

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
from heatproof.data.catalog import data
from heatproof.data.labels import WNID, class_index, labels_of, path_and_labels
from heatproof.errors import HeatproofError, join_limited
from heatproof.models.model import Model
from heatproof.models.preprocessing import Resize
from heatproof.tensor.noise import generator

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"}
)


class ImageFolder:
    """Images below a folder in a seeded random order; the id of an image is its path there.

    The samples of a smaller limit are the first of those of a larger one.

    Args:
        root: The folder.
        size: Side in pixels of the images that the model takes.
        resize: What the shorter side is resized to before the middle is cropped to ``size``, or
            text such as ``square bicubic`` (see `heatproof.models.preprocessing`).
        labels: A CSV or TSV file with one line per image: its name and its class. Without it,
            subfolders are classes, and images in ``root`` itself have no label. `class_index` says
            how labels and names of subfolders are matched to classes. For a model without class
            names, subfolders may have any names; their sorted order counts.
        classes: The model's class names.
        n_classes: The number of classes.
        limit: The number of samples; all by default.
        seed: Seed for the sample order.

    Raises:
        HeatproofError: If there are no images, or labels do not match the classes.
    """

    has_silhouettes = False

    def __init__(
        self,
        root: Path,
        *,
        size: int,
        resize: int | str,
        labels: Path | None = None,
        classes: Sequence[str] | None = None,
        n_classes: int | None = None,
        limit: int | None = None,
        seed: int = 0,
    ):
        if not root.is_dir():
            raise HeatproofError(f"there is no folder {root.absolute()}")
        paths = list_images(root)
        if not paths:
            raise HeatproofError(
                f"there are no images in {root} (looked for {', '.join(sorted(SUFFIXES))})"
            )
        self.name = f"folder:{root}:{labels}" if labels else f"folder:{root}"
        self.root = root
        self.size = size
        self.resize = resize
        order = generator(seed, "folder order").permutation(len(paths))[:limit]
        self.ids: list[str] = [paths[i] for i in order]
        if labels is not None:
            texts = labels_of(labels, paths, root)
            index = class_index(texts, classes, n_classes, f"labels of {labels}")
            self.labels: list[int | None] = [index[texts[i]] for i in order]
        else:
            folders = _folder_index(root, paths, classes, n_classes)
            _warn_about_labels(root, paths)
            self.labels = [folders.get(image.partition("/")[0]) for image in self.ids]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def files(self) -> list[Path]:
        """The path of each image."""
        return [self.root / image for image in self.ids]

    @cached_property
    def fingerprints(self) -> list[str]:
        return [_stamp(f"{self.root}/{image}") for image in self.ids]

    def load(self, index: int) -> Sample:
        image = read_image(self.root / self.ids[index])
        return Sample(self.ids[index], fit(image, self.size, self.resize), self.labels[index])


@data(
    "folder",
    summary="folder:/path, one subfolder per class (its name, ImageNet's wnid or its number) or no "
    "labels; folder:/path:labels.csv",
    reference=lambda evaluated, model, seed: _open(evaluated.name.partition(":")[2], model, seed),
)
def open_folder(
    *, rest: str, model: Model | None, split: str | None, limit: int | None, seed: int
) -> ImageFolder:
    """Open ``folder:/path`` or ``folder:/path:labels.csv``."""
    name = f"folder:{rest}"
    if model is None:
        raise HeatproofError(
            f"{name}: an image folder is fitted to a model; call load_data({name!r}, model=model)"
        )
    if split:
        raise HeatproofError(
            f"{name}: an image folder has no splits, so split={split} has no meaning; name the "
            "folder of that split"
        )
    return _open(rest, model, seed, limit)


def _open(rest: str, model: Model, seed: int, limit: int | None = None) -> ImageFolder:
    root, labels = path_and_labels(rest)
    return ImageFolder(
        root,
        size=model.size,
        resize=model.resize,
        labels=labels,
        classes=model.classes,
        n_classes=model.n_classes,
        limit=limit,
        seed=seed,
    )


def list_images(root: Path) -> list[str]:
    """Return the paths of all images below a folder, sorted folder by folder.

    Nothing is opened. Links to folders are followed, but not in circles.
    """
    images: list[str] = []
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
                        images.append(below + entry.name)
        except OSError as error:
            raise HeatproofError(f"cannot list {root / below}: {error.strerror}") from None
    return sorted(images, key=lambda image: image.split("/"))


def _stamp(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError as error:  # a dangling link: it is reported when the image is read
        return str(error.strerror)
    return f"{status.st_size} {status.st_mtime_ns}"


def _folder_index(
    root: Path, images: Sequence[str], classes: Sequence[str] | None, n_classes: int | None
) -> dict[str, int]:
    folders = sorted({image.partition("/")[0] for image in images if "/" in image})
    if not folders:
        return {}
    named = (
        classes is not None
        or all(folder.isdigit() for folder in folders)
        or (n_classes == 1000 and any(map(WNID.fullmatch, folders)))
    )
    if named:
        return class_index(folders, classes, n_classes, f"subfolders of {root}")
    if n_classes is not None and len(folders) != n_classes:
        raise HeatproofError(
            f"{root} has {len(folders)} subfolders and the model {n_classes} classes without "
            "names, so labels cannot be matched; give the model its class names: "
            "hp.Model(…, classes=[…])"
        )
    return {folder: i for i, folder in enumerate(folders)}


def _warn_about_labels(root: Path, images: Sequence[str]) -> None:
    """Warn if images look as if they had labels that are not used."""
    beside = [image for image in images if "/" not in image]
    if len(beside) < len(images) and beside:
        warnings.warn(
            f"{root}: beside the folders of classes are images without a label: "
            f"{join_limited(beside, 3)}",
            stacklevel=4,
        )
    tables = sorted(path.name for path in root.iterdir() if path.suffix.lower() in (".csv", ".tsv"))
    if len(beside) == len(images) and tables:
        warnings.warn(
            f"{root}: the images are taken without labels; if {tables[0]} has them, write "
            f"folder:{root}:{tables[0]}",
            stacklevel=4,
        )


def read_image(path: Path, transparency: bool = True) -> Image.Image:
    """Read an image as RGB.

    Args:
        path: The file.
        transparency: Whether transparent pixels become white; if not, their colours are used.

    Raises:
        UnreadableImage: If it is broken, animated, or its values have no known range.
    """
    try:
        with Image.open(path) as image:
            frames = getattr(image, "n_frames", 1)
            if frames > 1 and image.format != "MPO":  # phones put a preview behind the photo
                raise UnreadableImage(f"{path.name}: has {frames} frames; which one is meant?")
            image.load()
            if image.mode.startswith("I;16"):
                deep = np.asarray(image).astype(np.float32)
                return Image.fromarray(np.uint8(np.round(deep / 257))).convert("RGB")
            if image.mode in ("I", "F"):
                raise UnreadableImage(
                    f"{path.name}: 32-bit pixels have no known range; save it as 8 or 16 bit"
                )
            if transparency and image.has_transparency_data:
                page = Image.new("RGBA", image.size, "white")
                return Image.alpha_composite(page, image.convert("RGBA")).convert("RGB")
            return image.convert("RGB")
    except UnreadableImage:
        raise
    except Exception as error:  # a broken file can make a decoder raise anything
        raise UnreadableImage(f"{path.name}: {str(error).replace(str(path), path.name)}") from error


def fit(image: Image.Image, size: int, resize: int | str) -> torch.Tensor:
    """Resize an image and crop the middle.

    An image that already has the right size is taken as it is.

    Args:
        image: An RGB image.
        size: Side of the result in pixels.
        resize: Length of the shorter side before cropping, or text such as ``square bicubic`` (see
            `heatproof.models.preprocessing`).

    Returns:
        Pixels ``(3, size, size)`` in [0, 1].
    """
    pixels = np.asarray(crop_middle(image, size, resize))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255


def crop_middle(
    image: Image.Image, size: int, resize: int | str, resample: Image.Resampling | None = None
) -> Image.Image:
    """Resize a picture and crop the middle; see `fit`. ``resample`` replaces the interpolation."""
    if image.size == (size, size):
        return image
    how = Resize.parse(resize, size)
    resample = Image.Resampling[how.interpolation.upper()] if resample is None else resample
    shorter = min(image.size)
    width, height = (max(how.side, int(how.side * side / shorter)) for side in image.size)
    if how.square:
        width = height = how.side
    left = how.border(width, size)
    top = how.border(height, size)
    resized = image.resize((width, height), resample)
    return resized.crop((left, top, left + size, top + size))
