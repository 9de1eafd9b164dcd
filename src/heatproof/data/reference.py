"""Reference images, which are not evaluated: methods, baselines and protocols prepare with them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from heatproof.data.base import Data, code_of
from heatproof.data.catalog import DEFAULT_REFERENCE_IMAGES, default_reference, load_batch
from heatproof.data.grids import Grids
from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.models.model import Model


@dataclass(frozen=True)
class Reference:
    """Samples of a data set that serve as a reference."""

    data: Data
    indices: Sequence[int]

    @property
    def fingerprint(self) -> str:
        """A hash that changes when an image or the code of a user's own data set changes."""
        samples = [(self.data.ids[i], self.data.fingerprints[i]) for i in self.indices]
        code = code_of(self.data)
        parts = [self.data.name, samples, *([] if code is None else [code])]
        return content_hash(repr(parts))

    def batches(self, model: Model) -> Iterator[Tensor]:
        """Yield images ``(B, C, H, W)`` in the model's input space; unreadable ones are left out.

        Raises:
            HeatproofError: If no image can be read.
        """
        count = 0
        for start in range(0, len(self.indices), model.batch_size):
            batch = load_batch(self.data, self.indices[start : start + model.batch_size], model)
            count += len(batch.ids)
            if batch.ids:
                yield batch.x
        if not count:
            raise HeatproofError(f"none of the reference images of {self.data.name} can be read")


def reference_for(
    evaluated: Data, model: Model, named: Data | int | None = None, seed: int = 0
) -> Reference:
    """Return the reference images for a data set, none of which is evaluated.

    Args:
        evaluated: The data set that maps are evaluated on.
        model: The model that the images are fitted to.
        named: The reference images that the user names, or their number. By default the data set
            says which to use, such as the training split, or the other images of a folder.
        seed: Seed for the sample order.

    Raises:
        HeatproofError: If there are no such images, or named ones are evaluated.
    """
    if isinstance(evaluated, Grids):
        raise HeatproofError("There are none for grids")
    most = named if isinstance(named, int) else DEFAULT_REFERENCE_IMAGES
    if named is None or isinstance(named, int):
        data = default_reference(evaluated, model, seed, most)
    else:
        data = named
    taken = set(zip(evaluated.ids, evaluated.fingerprints, strict=True))
    rest = [i for i in range(len(data.ids)) if (data.ids[i], data.fingerprints[i]) not in taken]
    if data is named and len(rest) < len(data.ids):
        raise HeatproofError(
            f"{len(data.ids) - len(rest)} of the {len(data.ids)} reference images of {data.name} "
            "are evaluated; name images that are not, or leave the reference out"
        )
    if not rest:
        raise HeatproofError(
            f"all images of {data.name} are evaluated, and none is left as a reference; lower the "
            "limit or name a reference"
        )
    if isinstance(named, int) and len(rest) < named:
        warnings.warn(
            f"{data.name} has {len(rest):,} images that are not evaluated, so that the reference "
            f"has these and not {named:,}",
            stacklevel=2,
        )
    return Reference(data, rest if data is named else rest[:most])
