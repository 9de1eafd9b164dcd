"""Networks taught on images as they are or changed on purpose: nothing is mirrored or shifted, since marks have a side and a place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import heatproof
from heatproof.data.base import Data
from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.models.nets import net_named, stored
from heatproof.training.checkpoint import write_weights
from heatproof.training.loop import Progress, descend, untrained
from heatproof.training.train import normalised


@dataclass(frozen=True)
class RetrainRecipe:
    """How a network is taught, whatever it is taught on."""

    net: str  # such as paperbirds/resnet
    images: int = 6400
    epochs: int = 6
    batch: int = 64
    rate: float = 3e-3
    warmup: float = 0.15
    decay: float = 1e-2
    clip: float = 1.0

    @property
    def steps(self) -> int:
        return self.epochs * (self.images // self.batch)


def digest(data: Data) -> str:
    """Of what is in the images and of their labels, wherever they lie."""
    told = repr(list(zip(data.ids, data.fingerprints, data.labels, strict=True)))
    return content_hash(told)


def teach(
    lesson: RetrainRecipe, data: Data, out: Path, seed: int = 0, progress: Progress | None = None
) -> None:
    """Teach a network on all of the data, and write its weights."""
    if not lesson.batch <= lesson.images <= len(data.ids):
        raise HeatproofError(
            f"{lesson.images} images are to be taught, but {data.name} has {len(data.ids)}; take {lesson.batch} to as many"
        )
    kind = net_named(lesson.net)
    images, labels = _tensors(data, lesson.images)
    if int(labels.max()) >= kind.classes:
        raise HeatproofError(
            f"{data.name} has a class {int(labels.max())}, but {lesson.net} knows {kind.classes}, from 0 on"
        )
    net = untrained(lambda: kind.build(kind.classes, **kind.options), seed)
    following = _batches(lesson, seed)

    def loss_of_next() -> Tensor:
        picks = next(following)
        return cross_entropy(net(normalised(images[picks], kind.mean, kind.std)), labels[picks])

    descend(net, lesson, loss_of_next, progress)
    told = {
        "net": lesson.net,
        "recipe": json.dumps(asdict(lesson)),
        "seed": str(seed),
        "data": data.name.partition(":")[0],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_weights(out, stored(net.state_dict()), told | {"heatproof": heatproof.__version__})


def _tensors(data: Data, count: int) -> tuple[Tensor, Tensor]:  # (N, 3, H, W) uint8, (N,)
    images = torch.stack([(data.load(i).image * 255).round().byte() for i in range(count)])
    return images.contiguous(memory_format=torch.channels_last), torch.tensor(data.labels[:count])


def _batches(lesson: RetrainRecipe, seed: int) -> Iterator[Tensor]:
    """Every image once an epoch, but for those that do not fill a batch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(lesson.images, generator=generator)
        yield from order[: lesson.images // lesson.batch * lesson.batch].reshape(-1, lesson.batch)
