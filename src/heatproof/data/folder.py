"""A folder of images: one subfolder per class, a file of labels, or no labels at all."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from heatproof.data.base import Sample
from heatproof.data.catalog import dataset
from heatproof.data.images import MODE_BY_CHANNELS, SUFFIXES, Mode, Size, fit, read_image
from heatproof.data.labels import WNID, class_index, labels_of, path_and_labels
from heatproof.data.source import image_stamps, once
from heatproof.errors import HeatproofError, join_limited
from heatproof.files import escape_name
from heatproof.models.model import Model
from heatproof.tensor.noise import generator
from heatproof.text import counted


class ImageFolder:
    """Images below a folder in a seeded random order; the id of an image is its path there.

    The samples of a smaller limit are the first of those of a larger one.

    Args:
        root: The folder.
        size: Side in pixels of the images that the model takes, or their height and width.
        resize: What the shorter side is resized to before the middle is cropped to ``size``, or
            text such as ``square bicubic`` (see `heatproof.models.preprocessing`).
        mode: What images are read as: ``RGB``, ``L`` (grey, one channel) or ``RGBA``.
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
        size: Size,
        resize: int | str,
        mode: Mode = "RGB",
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
        self.name = escape_name(f"folder:{root}:{labels}" if labels else f"folder:{root}")
        self.root = root
        self.label_file = labels
        self.size = size
        self.resize = resize
        self.mode = mode
        order = generator(seed, "folder order").permutation(len(paths))[:limit]
        self._paths = [paths[i] for i in order]
        self.ids: list[str] = [escape_name(path) for path in self._paths]
        if labels is not None:
            texts = labels_of(labels, paths, root)
            index = class_index(texts, classes, n_classes, f"labels of {labels}")
            self.labels: list[int | None] = [index[texts[i]] for i in order]
        else:
            folders = _folder_index(root, paths, classes, n_classes)
            _warn_about_labels(root, paths)
            self.labels = [folders.get(image.partition("/")[0]) for image in self._paths]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def files(self) -> list[Path]:
        """The path of each image."""
        return [self.root / path for path in self._paths]

    @cached_property
    def fingerprints(self) -> list[str]:
        return image_stamps([f"{self.root}/{path}" for path in self._paths])

    def load(self, index: int) -> Sample:
        image = read_image(self.root / self._paths[index], mode=self.mode)
        return Sample(self.ids[index], fit(image, self.size, self.resize), self.labels[index])


@dataset(
    "folder",
    summary="folder:/path, one subfolder per class (its name, ImageNet's wnid or its number) or no "
    "labels; folder:/path:labels.csv",
    reference=lambda evaluated, model, seed: _open(
        evaluated.root, evaluated.label_file, model, seed
    ),
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
    root, labels = path_and_labels(rest)
    return _open(root, labels, model, seed, limit)


def _open(
    root: Path, labels: Path | None, model: Model, seed: int, limit: int | None = None
) -> ImageFolder:
    return ImageFolder(
        root,
        size=model.size,
        resize=model.resize,
        mode=mode_for(model),
        labels=labels,
        classes=model.classes,
        n_classes=model.n_classes,
        limit=limit,
        seed=seed,
    )


def mode_for(model: Model) -> Mode:
    """Return what image files are read as for a model: RGB, or grey for one channel.

    Raises:
        HeatproofError: If the model has another number of channels.
    """
    channels = len(model.mean)
    if channels not in MODE_BY_CHANNELS:
        raise HeatproofError(
            f"{model.name} takes {channels} channels, and image files have 1 or 3; give the images "
            "as a tensor: hp.TensorData(images, labels), where images in [0, 1] have the shape "
            f"(N, {channels}, {model.height}, {model.width})"
        )
    return MODE_BY_CHANNELS[channels]


def list_images(root: Path) -> list[str]:
    """Return the paths of all images below a folder, sorted folder by folder.

    Nothing is opened. Links to folders are followed, but not in circles. A subfolder or link that
    cannot be read is skipped with a warning.

    Raises:
        HeatproofError: If the folder itself cannot be read.
    """
    return once(("images", str(root)), lambda: _list_images(root))


def _list_images(root: Path) -> list[str]:
    images: list[str] = []
    ahead: list[tuple[str, frozenset[str]]] = [("", frozenset())]
    while ahead:
        below, above = ahead.pop()
        here = os.path.realpath(root / below)
        if here in above:
            continue
        try:
            with os.scandir(here) as entries:
                found = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            reason = f"cannot list {escape_name(str(root / below))}: {error.strerror}"
            if not below:
                raise HeatproofError(reason) from None
            warnings.warn(f"{reason}; it is skipped", stacklevel=5)
            continue
        for entry in found:  # names with a dot are what programs leave: .ipynb_checkpoints
            if _is_dir(entry):
                ahead.append((f"{below}{entry.name}/", above | {here}))
            elif entry.name[entry.name.rfind(".") :].lower() in SUFFIXES:
                images.append(below + entry.name)
    return sorted(images, key=lambda image: image.replace("/", "\0"))  # which no name contains


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a link to itself
        path = escape_name(entry.path)
        warnings.warn(f"cannot follow {path}: {error.strerror}; it is skipped", stacklevel=6)
        return False


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
            f"{root} has {counted(len(folders), 'subfolder')} and the model {n_classes} classes "
            "without names, so labels cannot be matched; give the model its class names: "
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
