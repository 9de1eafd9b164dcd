"""CIFAR-10 (Krizhevsky 2009).

It is read from an .npz file with train_x, train_y, test_x and test_y, or from the published folder
of python batches.
"""

from __future__ import annotations

import codecs
import pickle
import zipfile
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from heatproof.data.base import Sample
from heatproof.data.catalog import data
from heatproof.data.folder import fit
from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.models.model import Model

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


class Cifar10:
    """A split in its original order; the id of an image is its number.

    Args:
        path: The .npz file, or the folder of python batches.
        split: ``train`` or ``test``.
        size: Side in pixels of the images that the model takes.
        resize: Side that images are resized to before they are cropped to ``size``.
        names: The model's class names, which labels are matched to; by number if None.
        limit: The number of samples; all by default.

    Raises:
        HeatproofError: If the data cannot be read, or a class name is missing in ``names``.
    """

    classes = CLASSES
    has_silhouettes = False

    def __init__(
        self,
        path: Path,
        split: str = "test",
        *,
        size: int = 32,
        resize: int = 32,
        names: Sequence[str] | None = None,
        limit: int | None = None,
    ):
        if split not in BATCHES:
            raise HeatproofError(f'CIFAR-10 has no split "{split}"; it has: {", ".join(BATCHES)}')
        pixels, labels = _read(path, split)
        index = _class_index(names)
        self.name = f"cifar10:{path}:{split}"
        self.size = size
        self.resize = resize
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
            fit(Image.fromarray(self.pixels[index]), self.size, self.resize),
            self.labels[index],
        )


def path_and_split(rest: str, split: str | None) -> tuple[Path, str]:
    """Parse ``path`` or ``path:split``.

    Raises:
        HeatproofError: If the name includes another split than the one given.
    """
    path, _, named = rest.rpartition(":")
    if named not in BATCHES or not path:
        return Path(rest), split or "test"
    if split is not None and split != named:
        raise HeatproofError(f"cifar10:{rest} names a split, and split={split} another")
    return Path(path), named


@data(
    "cifar10",
    summary="cifar10:/path[:train], an .npz file or the folder of python batches; "
    "splits train, test",
    training_split=lambda rest: f"cifar10:{path_and_split(rest, None)[0]}:train",
)
def open_cifar10(
    *, rest: str, model: Model | None, split: str | None, limit: int | None
) -> Cifar10:
    """Open ``cifar10:/path`` or ``cifar10:/path:train``."""
    path, split = path_and_split(rest, split)
    if model is None:
        return Cifar10(path, split, limit=limit)
    return Cifar10(
        path, split, size=model.size, resize=model.resize, names=model.classes, limit=limit
    )


def _class_index(names: Sequence[str] | None) -> Sequence[int]:
    """Return the model's index of each class, by name; by number if it has no names."""
    if names is None:
        return range(len(CLASSES))
    missing = [name for name in CLASSES if name not in names]
    if missing:
        raise HeatproofError(
            f"the model has no class named {', '.join(missing[:3])}; CIFAR-10 has: "
            f"{', '.join(CLASSES)}"
        )
    return [list(names).index(name) for name in CLASSES]


def _read(path: Path, split: str) -> tuple[Pixels, Labels]:
    if path.is_dir():
        inside = path / "cifar-10-batches-py"
        pixels, labels = _batches(inside if inside.is_dir() else path, split)
    elif path.is_file():
        pixels, labels = _arrays(path, split)
    else:
        raise HeatproofError(
            f"there is no {path.absolute()}; CIFAR-10 is read from an .npz file or from the folder "
            "cifar-10-batches-py"
        )
    valid = (
        pixels.ndim == 4
        and pixels.shape[1:] == (32, 32, 3)
        and pixels.dtype == np.uint8
        and labels.shape == (len(pixels),)
    )
    if not valid or not len(labels) or labels.min() < 0 or labels.max() >= len(CLASSES):
        raise HeatproofError(
            f"{path}: expected images of 32×32×3 in 8 bits and as many labels from 0 to 9; "
            f"found {pixels.shape} {pixels.dtype} and {labels.shape}"
        )
    return pixels, labels


def _arrays(path: Path, split: str) -> tuple[Pixels, Labels]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return np.asarray(file[f"{split}_x"]), np.asarray(file[f"{split}_y"]).astype(np.int64)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise HeatproofError(
            f"cannot read {path} as CIFAR-10: {error}; it has train_x, train_y, test_x and test_y"
        ) from None


def _batches(folder: Path, split: str) -> tuple[Pixels, Labels]:
    parts = [_unpickled(folder / name) for name in BATCHES[split]]
    flat = np.concatenate([np.asarray(part[b"data"], dtype=np.uint8) for part in parts])
    labels = np.concatenate([np.asarray(part[b"labels"], dtype=np.int64) for part in parts])
    return flat.reshape(len(flat), 3, 32, 32).transpose(0, 2, 3, 1), labels


def _unpickled(path: Path) -> Any:
    if not path.is_file():
        raise HeatproofError(
            f"there is no {path}; the folder cifar-10-batches-py has: "
            f"{', '.join(chain(*BATCHES.values()))}"
        )
    try:
        with open(path, "rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
        if not isinstance(content, dict) or not {b"data", b"labels"} <= content.keys():
            raise pickle.UnpicklingError("it has no data and labels")
    except Exception as error:  # a broken or hostile pickle can make the reader raise anything
        raise HeatproofError(f"cannot read {path} as a batch of CIFAR-10: {error}") from None
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
