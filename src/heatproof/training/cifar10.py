"""Training the reduced VGG-11 of Rao et al. 2024 (supplement J) on CIFAR-10.

It has two convolutions fewer than VGG-11, so that its last feature map is 4×4. The paper gives the
network but not its training; the recipe is ours.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from heatproof.data.cifar import CLASSES, Cifar, path_and_split
from heatproof.errors import HeatproofError
from heatproof.models.nets import CIFAR10, CIFAR10_NETS
from heatproof.training.checkpoint import write_trained
from heatproof.training.loop import Progress, init_network, train_loop
from heatproof.training.train import correct_fractions, normalize, predict, round_weights

_normalize = partial(normalize, mean=CIFAR10.mean, std=CIFAR10.std)


@dataclass(frozen=True)
class Cifar10Recipe:
    """Settings of a training on CIFAR-10.

    Attributes:
        steps: Number of training steps; by default 20 epochs.
        batch: Images per step.
        rate: Peak learning rate of AdamW.
        warmup: Fraction of the steps over which the learning rate rises.
        decay: Weight decay.
        shift: Images are mirrored at random, and shifted by up to so many pixels.
        clip: Maximum norm of the gradient.
    """

    steps: int = 7800
    batch: int = 128
    rate: float = 1e-3
    warmup: float = 0.15
    decay: float = 5e-2
    shift: int = 4
    clip: float = 1.0


def train_cifar10(
    data: str,
    out: Path,
    *,
    net: str = "vgg11",
    steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Train a network on CIFAR-10, write its weights and measure them on the test split.

    Args:
        data: Location of CIFAR-10, as ``cifar10:/path``.
        out: File to write.
        net: Name of the network.
        steps: Number of training steps, if other than the recipe's.
        seed: Seed of the initial weights and of the batches.
        progress: Called after each step with step, steps and loss.

    Returns:
        ``accuracy``, and ``confident``, the fraction that is correct with a softmax of at least
        0.99.

    Raises:
        HeatproofError: If ``data`` does not name CIFAR-10.
    """
    if not data.startswith("cifar10:"):
        raise HeatproofError(
            f"cifar10/{net} is trained on CIFAR-10, named like cifar10:/path/cifar10.npz; "
            f"got {data}"
        )
    path, _ = path_and_split(data.removeprefix("cifar10:"), "train")
    recipe = Cifar10Recipe() if steps is None else Cifar10Recipe(steps=steps)
    images, labels = _tensors(Cifar("cifar10", path, "train"))
    test_images, test_labels = _tensors(Cifar("cifar10", path, "test"))
    trained = _fit(net, recipe, images, labels, seed, progress)
    round_weights(trained)
    logits = predict(trained, test_images, normalize_images=_normalize)
    metrics = correct_fractions(logits, test_labels)
    write_trained(
        out,
        trained,
        recipe,
        seed,
        net=net,
        classes=json.dumps(CLASSES),
        accuracy=f"{metrics['accuracy']:.4f}",
    )
    return metrics


def _tensors(data: Cifar) -> tuple[Tensor, Tensor]:  # (N, 3, 32, 32) uint8, (N,)
    return torch.from_numpy(data.pixels).permute(0, 3, 1, 2).contiguous(), torch.tensor(data.labels)


def _fit(
    name: str,
    recipe: Cifar10Recipe,
    images: Tensor,
    labels: Tensor,
    seed: int,
    progress: Progress | None,
) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    net = init_network(CIFAR10_NETS[name].module, seed)

    def next_loss() -> Tensor:
        picks = torch.randint(len(images), (recipe.batch,), generator=generator)
        batch = mirror_and_shift(images[picks], recipe.shift, generator)
        return cross_entropy(net(_normalize(batch)), labels[picks])

    return train_loop(
        net,
        next_loss,
        progress,
        steps=recipe.steps,
        rate=recipe.rate,
        warmup=recipe.warmup,
        decay=recipe.decay,
        clip=recipe.clip,
    )


def mirror_and_shift(images: Tensor, shift: int, generator: torch.Generator) -> Tensor:
    """Mirror half of the images and shift each by up to ``shift`` pixels, padding with black.

    Args:
        images: ``(B, 3, H, W)``.
        shift: Maximum shift in pixels.
        generator: Source of the random numbers.

    Returns:
        Images of the same shape.
    """
    count, _, height, width = images.shape
    mirrored = torch.rand(count, generator=generator) < 0.5
    images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
    padded = pad(images, (shift, shift, shift, shift))
    top, left = torch.randint(2 * shift + 1, (2, count), generator=generator)
    rows = (top[:, None] + torch.arange(height))[:, None, :, None]
    columns = (left[:, None] + torch.arange(width))[:, None, None, :]
    samples = torch.arange(count)[:, None, None, None]
    channels = torch.arange(3)[:, None, None]
    return padded[samples, channels, rows, columns]
