"""The grid paper's reduced VGG-11 on CIFAR-10 (Rao et al. 2024, supplement J): two convolutions less, so that the last map is 4×4.

The paper gives the network, not how it is trained: the recipe is ours.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

import heatproof
from heatproof.data.cifar10 import CLASSES, Cifar10, path_and_split
from heatproof.errors import HeatproofError
from heatproof.models.nets import CIFAR10, build_cifar10, stored
from heatproof.training.checkpoint import write_weights
from heatproof.training.loop import Progress, descend, untrained
from heatproof.training.train import logits_of, normalised


@dataclass(frozen=True)
class Cifar10Recipe:
    steps: int = 7800  # 20 epochs
    batch: int = 128
    rate: float = 1e-3  # the highest learning rate of AdamW: up in a line, down in half a cosine
    warmup: float = 0.15  # share of the steps
    decay: float = 5e-2
    shift: int = 4  # px: pictures are mirrored, and shifted by at most that
    clip: float = 1.0


def train_cifar10(
    data: str,
    out: Path,
    *,
    net: str = "vgg11",
    steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    limit: int | None = None,
) -> dict[str, float]:
    """Train, write the weights, and say how good they are on the test split. data: `cifar10:/path`."""
    if not data.startswith("cifar10:"):
        raise HeatproofError(
            f"cifar10/{net} is trained on CIFAR-10, named like cifar10:/path/cifar10.npz; got {data}"
        )
    path, _ = path_and_split(data.removeprefix("cifar10:"), "train")
    recipe = Cifar10Recipe() if steps is None else Cifar10Recipe(steps=steps)
    (images, labels), held_out = (
        _tensors(Cifar10(path, split, limit=limit)) for split in ("train", "test")
    )
    trained = _fit(net, recipe, images, labels, seed, progress)
    trained.load_state_dict(
        {
            key: value.to(trained.state_dict()[key].dtype)
            for key, value in stored(trained.state_dict()).items()
        }
    )
    found = _judged(trained, *held_out)
    told: dict[str, Any] = {
        "net": net,
        "recipe": json.dumps(asdict(recipe)),
        "seed": str(seed),
        "classes": json.dumps(CLASSES),
    }
    told |= {"accuracy": f"{found['accuracy']:.4f}", "heatproof": heatproof.__version__}
    write_weights(out, stored(trained.state_dict()), told)
    return found


def _tensors(data: Cifar10) -> tuple[Tensor, Tensor]:  # (N, 3, 32, 32) uint8, (N,)
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
    net = untrained(lambda: build_cifar10(name), seed)

    def loss_of_next() -> Tensor:
        picks = torch.randint(len(images), (recipe.batch,), generator=generator)
        batch = varied(images[picks], recipe.shift, generator)
        return cross_entropy(net(normalised(batch, CIFAR10.mean, CIFAR10.std)), labels[picks])

    return descend(net, recipe, loss_of_next, progress)


def varied(
    images: Tensor, shift: int, generator: torch.Generator
) -> Tensor:  # (B, 3, H, W) -> same
    """Half of them mirrored, each shifted by up to that many px; what comes in is black."""
    count, _, height, width = images.shape
    mirrored = torch.rand(count, generator=generator) < 0.5
    images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
    wide = pad(images, (shift, shift, shift, shift))
    top, left = torch.randint(2 * shift + 1, (2, count), generator=generator)
    rows = (top[:, None] + torch.arange(height))[:, None, :, None]
    columns = (left[:, None] + torch.arange(width))[:, None, None, :]
    return wide[
        torch.arange(count)[:, None, None, None], torch.arange(3)[:, None, None], rows, columns
    ]


def _judged(net: nn.Module, images: Tensor, labels: Tensor) -> dict[str, float]:
    """The share of pictures that are right, and that are right with a softmax of 0.99 or more."""
    softmax = logits_of(
        net, images, prepare=lambda part: normalised(part, CIFAR10.mean, CIFAR10.std)
    ).softmax(1)
    confidence, predicted = softmax.max(1)
    right = predicted == labels
    return {
        "accuracy": right.float().mean().item(),
        "confident": (right & (confidence >= 0.99)).float().mean().item(),
    }
