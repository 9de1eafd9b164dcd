"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009).

They are read from an .npz file with train_x, train_y, test_x and test_y, or from the published
folders of python batches. The classes of CIFAR-100 are its fine ones.
"""

from __future__ import annotations

import codecs
import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from heatproof.data.base import Sample
from heatproof.data.catalog import dataset
from heatproof.data.folder import mode_for
from heatproof.data.images import Mode, Size, fit
from heatproof.errors import HeatproofError, join_limited
from heatproof.files import content_hash
from heatproof.models.model import Model

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLASSES_100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle",
    "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle",
    "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch",
    "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox",
    "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom",
    "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake",
    "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle",
    "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip
SPLITS = ("train", "test")


@dataclass(frozen=True)
class Kind:
    """One of the two data sets.

    Attributes:
        title: Its name in messages.
        classes: The names of its classes.
        folder: The published folder.
        batches: The files of each split in the folder.
        labels: The key of the labels in these files.
    """

    title: str
    classes: tuple[str, ...]
    folder: str
    batches: Mapping[str, Sequence[str]]
    labels: bytes


KINDS = {
    "cifar10": Kind(
        "CIFAR-10",
        CLASSES,
        "cifar-10-batches-py",
        {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
        b"labels",
    ),
    "cifar100": Kind(
        "CIFAR-100",
        CLASSES_100,
        "cifar-100-python",
        {"train": ["train"], "test": ["test"]},
        b"fine_labels",
    ),
}
Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


class Cifar:
    """A split in its original order; the id of an image is its number.

    Args:
        kind: ``cifar10`` or ``cifar100``.
        path: The .npz file, or the folder of python batches.
        split: ``train`` or ``test``.
        size: Side in pixels of the images that the model takes, or their height and width.
        resize: Side that images are resized to before they are cropped to ``size``.
        mode: What images are converted to: ``RGB``, or ``L`` for grey.
        names: The model's class names, which labels are matched to; by number if None.
        limit: The number of samples; all by default.

    Raises:
        HeatproofError: If the data cannot be read, or a class name is missing in ``names``.
    """

    has_silhouettes = False

    def __init__(
        self,
        kind: str,
        path: Path,
        split: str = "test",
        *,
        size: Size = 32,
        resize: int | str = 32,
        mode: Mode = "RGB",
        names: Sequence[str] | None = None,
        limit: int | None = None,
    ):
        facts = KINDS[kind]
        if split not in SPLITS:
            raise HeatproofError(
                f'{facts.title} has no split "{split}"; it has: {", ".join(SPLITS)}'
            )
        pixels, labels = _read(facts, path, split)
        index = _class_index(facts, names)
        self.classes = facts.classes
        self.name = f"{kind}:{path}:{split}"
        self.size = size
        self.resize = resize
        self.mode = mode
        self.pixels = pixels[:limit]  # (N, 32, 32, 3)
        self.labels: Sequence[int | None] = [index[label] for label in labels[:limit].tolist()]
        self.ids: Sequence[str] = [f"{split}-{i:05d}" for i in range(len(self.pixels))]
        self.fingerprints: Sequence[str] = [
            f"{content_hash(p.tobytes())} {size}" for p in self.pixels
        ]

    def __len__(self) -> int:
        return len(self.ids)

    def load(self, index: int) -> Sample:
        return Sample(
            self.ids[index],
            fit(Image.fromarray(self.pixels[index]).convert(self.mode), self.size, self.resize),
            self.labels[index],
        )


def path_and_split(rest: str, split: str | None, kind: str = "cifar10") -> tuple[Path, str]:
    """Parse ``path`` or ``path:split``.

    Raises:
        HeatproofError: If the name includes another split than the one given.
    """
    path, _, named = rest.rpartition(":")
    if named not in SPLITS or not path:
        return Path(rest), split or "test"
    if split is not None and split != named:
        raise HeatproofError(f"{kind}:{rest} names a split, and split={split} another")
    return Path(path), named


def _register(kind: str) -> None:
    @dataset(
        kind,
        summary=f"{kind}:/path[:train], an .npz file or the folder of python batches; "
        "splits train, test",
        training_split=lambda rest: f"{kind}:{path_and_split(rest, None, kind)[0]}:train",
    )
    def open_cifar(
        *, rest: str, model: Model | None, split: str | None, limit: int | None
    ) -> Cifar:
        path, split = path_and_split(rest, split, kind)
        if model is None:
            return Cifar(kind, path, split, limit=limit)
        return Cifar(
            kind,
            path,
            split,
            size=model.size,
            resize=model.resize,
            mode=mode_for(model),
            names=model.classes,
            limit=limit,
        )


for _kind in KINDS:
    _register(_kind)


def _class_index(kind: Kind, names: Sequence[str] | None) -> Sequence[int]:
    """Return the model's index of each class, by name; by number if it has no names."""
    if names is None:
        return range(len(kind.classes))
    missing = [name for name in kind.classes if name not in names]
    if missing:
        raise HeatproofError(
            f"the model has no class named {', '.join(missing[:3])}; {kind.title} has: "
            f"{join_limited(kind.classes, 10)}"
        )
    return [list(names).index(name) for name in kind.classes]


def _read(kind: Kind, path: Path, split: str) -> tuple[Pixels, Labels]:
    if path.is_dir():
        inside = path / kind.folder
        pixels, labels = _batches(kind, inside if inside.is_dir() else path, split)
    elif path.is_file():
        pixels, labels = _arrays(kind, path, split)
    else:
        raise HeatproofError(
            f"there is no {path.absolute()}; {kind.title} is read from an .npz file or from the "
            f"folder {kind.folder}"
        )
    valid = (
        pixels.ndim == 4
        and pixels.shape[1:] == (32, 32, 3)
        and pixels.dtype == np.uint8
        and labels.shape == (len(pixels),)
    )
    if not valid or not len(labels) or labels.min() < 0 or labels.max() >= len(kind.classes):
        raise HeatproofError(
            f"{path}: expected images of 32×32×3 in 8 bits and as many labels from 0 to "
            f"{len(kind.classes) - 1}; "
            f"found {pixels.shape} {pixels.dtype} and {labels.shape}"
        )
    return pixels, labels


def _arrays(kind: Kind, path: Path, split: str) -> tuple[Pixels, Labels]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return np.asarray(file[f"{split}_x"]), np.asarray(file[f"{split}_y"]).astype(np.int64)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise HeatproofError(
            f"cannot read {path} as {kind.title}: {error}; it has train_x, train_y, test_x and "
            "test_y"
        ) from None


def _batches(kind: Kind, folder: Path, split: str) -> tuple[Pixels, Labels]:
    parts = [_unpickled(kind, folder / name) for name in kind.batches[split]]
    flat = np.concatenate([np.asarray(part[b"data"], dtype=np.uint8) for part in parts])
    labels = np.concatenate([np.asarray(part[kind.labels], dtype=np.int64) for part in parts])
    return flat.reshape(len(flat), 3, 32, 32).transpose(0, 2, 3, 1), labels


def _unpickled(kind: Kind, path: Path) -> Any:
    if not path.is_file():
        raise HeatproofError(
            f"there is no {path}; the folder {kind.folder} has: "
            f"{', '.join(chain(*kind.batches.values()))}"
        )
    try:
        with open(path, "rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
        if not isinstance(content, dict) or not {b"data", kind.labels} <= content.keys():
            raise pickle.UnpicklingError("it has no data and labels")
    except Exception as error:  # a broken or hostile pickle can make the reader raise anything
        raise HeatproofError(f"cannot read {path} as a batch of {kind.title}: {error}") from None
    return content


def _latin(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"unexpected encoding {encoding}")
    return codecs.latin_1_encode(text)[0]


class _ArraysOnly(pickle.Unpickler):
    """Unpickles plain values and numpy arrays, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        allowed: dict[tuple[str, str], Callable[..., Any]] = {
            ("multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _latin,
        }
        short = module.removeprefix("numpy.core.").removeprefix("numpy._core.")
        if (short, name) not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not an array")
        return allowed[short, name]
