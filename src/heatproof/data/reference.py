"""Images that are not judged: for statistics that methods, baselines and protocols need of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from heatproof.data.altered import Altered
from heatproof.data.base import Data
from heatproof.data.catalog import load_batch, load_data
from heatproof.data.folder import ImageFolder
from heatproof.data.grids import Grids
from heatproof.data.paperbirds import Paperbirds
from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.models.model import Model

SIZE = 512  # images, where nothing else is said


@dataclass(frozen=True)
class Reference:
    data: Data
    indices: Sequence[int]

    @property
    def fingerprint(self) -> str:
        told = repr(
            [self.data.name, [(self.data.ids[i], self.data.fingerprints[i]) for i in self.indices]]
        )
        return content_hash(told)

    def batches(self, model: Model) -> Iterator[Tensor]:
        """In the model's input space; images that cannot be read are left out."""
        found = 0
        for start in range(0, len(self.indices), model.batch_size):
            batch = load_batch(self.data, self.indices[start : start + model.batch_size], model)
            found += len(batch.ids)
            if batch.ids:
                yield batch.x
        if not found:
            raise HeatproofError(f"none of the reference images of {self.data.name} can be read")


def reference_for(judged: Data, model: Model, told: Data | None = None, seed: int = 0) -> Reference:
    """What is told, or else the training split of paperbirds, or what a folder has besides the judged images. Never a judged image."""
    if isinstance(judged, Grids):
        raise HeatproofError("There are none for grids")
    data = told or _default(judged, model, seed)
    taken = set(zip(judged.ids, judged.fingerprints, strict=True))
    rest = [i for i in range(len(data.ids)) if (data.ids[i], data.fingerprints[i]) not in taken]
    if told and len(rest) < len(data.ids):
        raise HeatproofError(
            f"{len(data.ids) - len(rest)} of the {len(data.ids)} reference images of {data.name} are judged; name images that are not, "
            "or leave the reference out"
        )
    if not rest:
        raise HeatproofError(
            f"all images of {data.name} are judged, and none is left as a reference; lower the limit or name a reference"
        )
    return Reference(data, rest if told else rest[:SIZE])


def _default(judged: Data, model: Model, seed: int) -> Data:
    if isinstance(judged, Altered):
        return Altered(_default(judged.images, model, seed), judged.kind, judged.seed)
    if isinstance(judged, Paperbirds):
        return load_data("paperbirds:train", model, limit=SIZE)
    if isinstance(judged, ImageFolder):
        return load_data(judged.name, model, seed=seed)
    raise HeatproofError(
        f"{judged.name} has no images besides those that are judged; name a reference"
    )
