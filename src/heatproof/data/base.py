"""Images with stable ids: what every data set gives, whatever it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class UnreadableImage(ValueError):
    """An image that cannot be used; the message says why. The sample is skipped and named, the others go on."""


@dataclass(frozen=True)
class Sample:
    id: str
    image: Tensor  # (3, H, W) float32 in [0, 1]
    label: int | None = None
    silhouette: Tensor | None = None  # (H, W) bool: the object, whatever its class


class Data(Protocol):
    """A finite sequence of samples. `ids` and `labels` are known without decoding anything."""

    name: str
    ids: Sequence[str]
    labels: Sequence[int | None]

    def load(self, index: int) -> Sample:
        """Decode one sample; raises UnreadableImage where it cannot be used."""
        ...
