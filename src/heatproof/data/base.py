"""The interface of every data set: images with stable ids."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.tensor.noise import sample_ids
from heatproof.text import counted, show
from heatproof.userfile import source_hash


class UnreadableImage(HeatproofError):
    """An image that cannot be used. The sample is skipped and reported; the others go on."""


@dataclass(frozen=True)
class Sample:
    """One image with what is known about it."""

    id: str
    image: Tensor  # (C, H, W) float32 in [0, 1]
    label: int | None = None
    silhouette: Tensor | None = None  # (H, W) bool: the pixels of the object


class Data(Protocol):
    """A finite sequence of samples. Everything but the images is known without decoding them."""

    @property
    def name(self) -> str: ...
    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def labels(self) -> Sequence[int | None]: ...
    @property
    def fingerprints(self) -> Sequence[str]:
        """One text per sample that changes when the image changes under the same id."""
        ...

    @property
    def has_silhouettes(self) -> bool: ...

    def load(self, index: int) -> Sample:
        """Decode one sample.

        Raises:
            UnreadableImage: If it cannot be used.
        """
        ...


@dataclass(frozen=True)
class PartViews:
    """A sample's parts: the picture without each of them, and the pixels of each."""

    without: Tensor  # (P, C, H, W) uint8
    masks: Tensor  # (P, K, H, W) bool: up to K instances of a part, such as two wings


@runtime_checkable
class PartData(Data, Protocol):
    """Data whose objects have parts that can be removed one by one, all else being equal."""

    @property
    def part_names(self) -> Sequence[str]: ...

    def parts(self, index: int) -> PartViews:
        """Decode the parts of one sample."""
        ...


def code_of(data: Data) -> str | None:
    """Return the source hash of a data set's class, or of the data set that it changes.

    Returns:
        None for classes of heatproof. Empty if the source cannot be read.
    """
    inner: Any = getattr(data, "images", None)
    if hasattr(inner, "load"):
        return code_of(inner)
    return source_hash(type(data))


class TensorData:
    """Images in memory, already of the model's size.

    Args:
        images: Images of shape ``(N, C, H, W)`` with values in [0, 1].
        labels: One class index per image, or None.
        ids: One id per image; by default its number.
        name: The name in results and reports.

    Raises:
        HeatproofError: If shapes, types or lengths do not fit.
    """

    has_silhouettes = False

    def __init__(
        self,
        images: Tensor,
        labels: Sequence[int] | Tensor | None = None,
        ids: Sequence[str] | None = None,
        name: str = "tensors",
    ):
        _check_images(images)
        if labels is not None and len(labels) != len(images):
            raise HeatproofError(
                f"{counted(len(images), 'image')}, but {counted(len(labels), 'label')}"
            )
        self.name = name
        self.images = images.float()
        self.ids = [str(i) for i in sample_ids(ids, len(images))]
        if len(self.ids) != len(images):
            raise HeatproofError(
                f"{counted(len(images), 'image')}, but {counted(len(self.ids), 'id')}"
            )
        self.labels = [None] * len(images) if labels is None else _class_indices(labels)
        self.fingerprints = [content_hash(i.numpy().tobytes()) for i in self.images]

    def __len__(self) -> int:
        return len(self.ids)

    def load(self, index: int) -> Sample:
        return Sample(self.ids[index], self.images[index], self.labels[index])


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor) or not len(images):
        raise HeatproofError(
            "images must be a tensor of at least one image, (N, channels, H, W) in [0, 1]"
        )
    rule = (
        "images must be floats of shape (N, channels, H, W) in [0, 1]: before the model's "
        "normalization"
    )
    shape = "×".join(map(str, images.shape))
    if not images.is_floating_point():
        kind = str(images.dtype).removeprefix("torch.")
        raise HeatproofError(
            f"{rule}; got {kind}. Write images.float() / 255, or hp.load_data(images), which takes "
            "uint8"
        )
    if images.ndim == 4 and images.shape[-1] in (1, 3) and images.shape[1] not in (1, 3):
        raise HeatproofError(f"{rule}; got {shape}. Write images.permute(0, 3, 1, 2)")
    if images.ndim != 4:
        raise HeatproofError(f"{rule}; got {shape}")
    low = float(images.min())
    high = float(images.max())
    if low >= 0 and high <= 1:
        return
    if low >= 0 and 10 < high <= 255:
        cure = "Write images / 255"
    else:
        cure = "Remove Normalize, or write hp.load_data(images, normalized=(mean, std))"
    raise HeatproofError(f"{rule}; got values from {low:.3g} to {high:.3g}. {cure}")


def class_number(label: Any) -> int:
    """Return a class index, which may be written as a float without a fraction.

    Raises:
        TypeError: If it is not a single whole number.
    """
    try:
        return operator.index(label)
    except TypeError:
        several = getattr(label, "ndim", 0) > 0
        if isinstance(label, str) or several:
            raise
        number = float(label)
        if not number.is_integer():
            raise TypeError(f"{label} is not a whole number") from None
        return int(number)


def _class_indices(labels: Sequence[int] | Tensor) -> list[int | None]:
    indices: list[int | None] = []
    label: Any
    for label in labels:
        try:
            indices.append(None if label is None else class_number(label))
        except (TypeError, ValueError):
            got = label.item() if getattr(label, "ndim", 1) == 0 else label
            raise HeatproofError(
                f"labels must be class indices, that is whole numbers from 0; got {show(got)}. "
                "hp.load_data takes names of classes"
            ) from None
    return indices
