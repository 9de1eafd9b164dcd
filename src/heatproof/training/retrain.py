"""Training networks from scratch on images as they are or altered on purpose.

Images are neither mirrored nor shifted, since the marks that an alteration adds have a position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from heatproof.data.base import Data
from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.models.nets import net_named
from heatproof.training.checkpoint import write_trained
from heatproof.training.loop import OptimizerName, Progress, init_network, train_loop
from heatproof.training.train import normalize


@dataclass(frozen=True)
class RetrainRecipe:
    """Settings of the training of a network on given images.

    Attributes:
        net: Name of the network, such as ``paperbirds/resnet``.
        images: Number of training images, the first of the data set.
        epochs: Passes over the images.
        batch: Images per step.
        rate: Peak learning rate.
        warmup: Fraction of the steps over which the learning rate rises, before it falls; 0 for
            a constant rate.
        decay: Weight decay.
        clip: Maximum norm of the gradient.
        optimizer: ``adamw``, ``adam`` or ``sgd``.
    """

    net: str
    images: int = 6400
    epochs: int = 6
    batch: int = 64
    rate: float = 3e-3
    warmup: float = 0.15
    decay: float = 1e-2
    clip: float = 1.0
    optimizer: OptimizerName = "adamw"

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return self.epochs * (self.images // self.batch)


def digest(data: Data) -> str:
    """Hash the content of all images and their labels, independently of their location."""
    content = repr(list(zip(data.ids, data.fingerprints, data.labels, strict=True)))
    return content_hash(content)


def retrain(
    recipe: RetrainRecipe, data: Data, out: Path, seed: int = 0, progress: Progress | None = None
) -> None:
    """Train a network from scratch and write its weights.

    Args:
        recipe: Network and training settings.
        data: Training images with labels.
        out: File to write.
        seed: Seed for the initial weights and the order of the images.
        progress: Called after each step with step, steps and loss.

    Raises:
        HeatproofError: If there are too few images, or labels that the network does not have.
    """
    if not recipe.batch <= recipe.images <= len(data.ids):
        raise HeatproofError(
            f"cannot train on {recipe.images} images: {data.name} has {len(data.ids)}, "
            f"and a batch has {recipe.batch}; set images to a number in that range"
        )
    kind = net_named(recipe.net)
    images, labels = _tensors(data, recipe.images)
    if int(labels.max()) >= kind.classes:
        raise HeatproofError(
            f"{data.name} has the label {int(labels.max())}, but the classes of {recipe.net} "
            f"are 0 to {kind.classes - 1}"
        )
    net = init_network(kind.module, seed)
    batches = _batches(recipe, seed)

    def next_loss() -> Tensor:
        picks = next(batches)
        return cross_entropy(net(normalize(images[picks], kind.mean, kind.std)), labels[picks])

    train_loop(
        net,
        next_loss,
        progress,
        steps=recipe.steps,
        rate=recipe.rate,
        warmup=recipe.warmup,
        decay=recipe.decay,
        clip=recipe.clip,
        optimizer=recipe.optimizer,
    )
    kind_of_data = data.name.partition(":")[0]
    write_trained(out, net, recipe, seed, net=recipe.net, data=kind_of_data)


def _tensors(data: Data, count: int) -> tuple[Tensor, Tensor]:  # (N, 3, H, W) uint8, (N,)
    images = torch.stack([(data.load(i).image * 255).round().byte() for i in range(count)])
    return images.contiguous(memory_format=torch.channels_last), torch.tensor(data.labels[:count])


def _batches(recipe: RetrainRecipe, seed: int) -> Iterator[Tensor]:
    """Yield batches of indices; in each epoch every image once, except for an incomplete batch."""
    generator = torch.Generator().manual_seed(seed)
    usable = recipe.images // recipe.batch * recipe.batch
    while True:
        order = torch.randperm(recipe.images, generator=generator)
        yield from order[:usable].reshape(-1, recipe.batch)
