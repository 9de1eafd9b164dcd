"""Images with stable ids: what every data set gives, whatever it is made of."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from heatproof.errors import HeatproofError, join_limited
from heatproof.files import content_hash
from heatproof.tensor.noise import sample_ids


class UnreadableImage(HeatproofError):
    """An image that cannot be used; the message says why. The sample is skipped and named, the others go on."""


@dataclass(frozen=True)
class Sample:
    id: str
    image: Tensor  # (3, H, W) float32 in [0, 1]
    label: int | None = None
    silhouette: Tensor | None = None  # (H, W) bool: the object, whatever its class


class Data(Protocol):
    """A finite sequence of samples. All but the images is known without decoding anything."""

    @property
    def name(self) -> str: ...
    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def labels(self) -> Sequence[int | None]: ...
    @property
    def fingerprints(self) -> Sequence[str]:
        """These change when an image changes under the same id."""
        ...

    @property
    def has_silhouettes(self) -> bool: ...

    def load(self, index: int) -> Sample:
        """Decode one sample; raises UnreadableImage where it cannot be used."""
        ...


@dataclass(frozen=True)
class PartViews:
    """A sample's parts: the picture without each of them, and where each is seen."""

    without: Tensor  # (P, 3, H, W) uint8
    masks: Tensor  # (P, K, H, W) bool: up to K instances of a part, such as two wings


@runtime_checkable
class PartData(Data, Protocol):
    """Data whose objects have parts that can be taken off one by one, with everything else left in place."""

    @property
    def part_names(self) -> Sequence[str]: ...

    def parts(self, index: int) -> PartViews: ...


class TensorData:
    """Images that are in memory already: (N, 3, H, W) in [0, 1], of the model's size."""

    def __init__(
        self,
        images: Tensor,
        labels: Sequence[int] | Tensor | None = None,
        ids: Sequence[str] | None = None,
        name: str = "tensors",
    ):
        if not isinstance(images, Tensor) or not len(images):
            raise HeatproofError(
                "images must be a tensor of at least one image, (N, 3, H, W) in [0, 1]"
            )
        if (
            images.ndim != 4
            or images.shape[1] != 3
            or not images.is_floating_point()
            or images.min() < 0
            or images.max() > 1
        ):
            raise HeatproofError(
                "images must be floats of shape (N, 3, H, W) in [0, 1]: before the model's normalisation"
            )
        if labels is not None and len(labels) != len(images):
            raise HeatproofError(f"{len(images)} images, but {len(labels)} labels")
        self.name, self.images, self.has_silhouettes = name, images.float(), False
        self.ids = [str(i) for i in sample_ids(ids, len(images))]
        if len(self.ids) != len(images):
            raise HeatproofError(f"{len(images)} images, but {len(self.ids)} ids")
        given = [None] * len(images) if labels is None else list(labels)
        try:
            self.labels = [None if label is None else operator.index(label) for label in given]
        except TypeError:
            raise HeatproofError(
                f"labels must be numbers of classes, from 0; got {join_limited(map(str, given))}"
            ) from None
        self.fingerprints = [content_hash(i.numpy().tobytes()) for i in self.images]

    def __len__(self) -> int:
        return len(self.ids)

    def load(self, index: int) -> Sample:
        return Sample(self.ids[index], self.images[index], self.labels[index])
