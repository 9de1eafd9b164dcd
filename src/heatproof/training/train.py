"""Training the embedded models on paperbirds, and measuring them.

The images show birds with parts removed, never with patches deleted. If a part is missing, the
classes that fit the remaining parts are equally likely.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heatproof.data.paperbirds import (
    CLASSES,
    MEAN,
    NAMES,
    PARTS,
    SPLITS,
    STD,
    compatible,
    label_of,
    render,
)
from heatproof.errors import unknown
from heatproof.models.nets import NETS, stored, weights_path
from heatproof.training.checkpoint import write_trained
from heatproof.training.loop import Progress, init_network, train_loop
from heatproof.training.losses import LOSSES
from heatproof.training.recipes import RECIPES, Recipe

Logits = Callable[[Tensor], Tensor]  # normalised images (B, 3, H, W) -> (B, classes)
Normalize = Callable[[Tensor], Tensor]  # images (B, 3, H, W) uint8 -> normalised images
CONFIDENT_SOFTMAX = 0.99


def train(
    name: str,
    *,
    steps: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train an embedded model, write its weights and measure them on the test split.

    Args:
        name: Name of the recipe, such as ``resnet18``.
        steps: Number of training steps, if other than the recipe's.
        seed: Seed of the initial weights and of the batches.
        out: File to write; by default the one that ships with the package.
        progress: Called after each step with step, steps and loss.

    Returns:
        ``accuracy`` and ``confident`` (see `accuracy`), ``drops`` (see `part_drops`), and the
        training time in ``minutes``.

    Raises:
        HeatproofError: If there is no recipe of that name.
    """
    recipe = get_recipe(name, steps)
    start = time.perf_counter()
    net = fit(recipe, seed, progress)
    minutes = (time.perf_counter() - start) / 60
    round_weights(net)
    normalize_images = normalizer(recipe.net)
    metrics: dict[str, Any] = {
        **accuracy(net, normalize_images=normalize_images),
        "drops": part_drops(net, normalize_images=normalize_images),
        "minutes": minutes,
    }
    write_trained(
        out or weights_path(name),
        net,
        recipe,
        seed,
        net=recipe.net,
        accuracy=f"{metrics['accuracy']:.4f}",
        classes=json.dumps(NAMES),
    )
    return metrics


def get_recipe(name: str, steps: int | None = None) -> Recipe:
    """Return a recipe by name, with another number of steps if one is given.

    Raises:
        HeatproofError: If there is no recipe of that name.
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    recipe = RECIPES[name]
    if steps is not None:
        recipe = replace(recipe, steps=steps)
    needed = recipe.steps * recipe.batch
    return replace(recipe, images=min(recipe.images, needed))


def fit(recipe: Recipe, seed: int, progress: Progress | None = None) -> nn.Sequential:
    """Train a network from scratch by a recipe.

    Args:
        recipe: Network and training settings.
        seed: Seed of the initial weights and of the batches.
        progress: Called after each step with step, steps and loss.

    Returns:
        The trained network in eval mode.
    """
    generator = torch.Generator().manual_seed(seed)
    net = init_network(NETS[recipe.net].module, seed)
    images, targets = training_set(recipe, generator)
    normalize_images = normalizer(recipe.net)
    loss = LOSSES[recipe.loss].of_batch

    def next_loss() -> Tensor:
        batch, target = draw_batch(images, targets, recipe, generator)
        return loss(net(normalize_images(batch)), target)

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


def round_weights(net: nn.Module) -> None:
    """Round the weights in place to the precision in which they are stored."""
    state = net.state_dict()
    rounded = {key: value.to(state[key].dtype) for key, value in stored(state).items()}
    net.load_state_dict(rounded)


def training_set(recipe: Recipe, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Render the training images of a recipe.

    Args:
        recipe: Number of images, and the fraction of birds with missing parts.
        generator: Draws the missing parts.

    Returns:
        Images ``(N, 3, H, W)`` of uint8 and targets ``(N, classes)``, uniform over the classes
        that fit the remaining parts.
    """
    chosen = []
    for index in range(recipe.images):
        damaged = torch.rand((), generator=generator).item() < recipe.deletion
        keep = len(PARTS) - int(torch.randint(len(PARTS) + 1, (), generator=generator)) * damaged
        order = torch.randperm(len(PARTS), generator=generator).tolist()
        chosen.append((index, tuple(PARTS[i] for i in sorted(order[:keep]))))
    targets = [target_distribution(label_of(index), parts) for index, parts in chosen]
    return render_images("train", chosen), torch.stack(targets)


def render_images(split: str, chosen: Sequence[tuple[int, Sequence[str]]]) -> Tensor:
    """Render birds, given as (index, parts that are left), to ``(N, 3, H, W)`` of uint8."""
    images = [
        torch.from_numpy(render(0, split, index, parts=parts).image) for index, parts in chosen
    ]
    return torch.stack(images).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def target_distribution(label: int, parts: Sequence[str]) -> Tensor:  # (classes,)
    """Return the uniform distribution over the classes that fit the remaining parts."""
    fitting = list(compatible(label, parts))
    target = torch.zeros(len(CLASSES))
    target[fitting] = 1 / len(fitting)
    return target


def draw_batch(
    images: Tensor, targets: Tensor, recipe: Recipe, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw a batch of images ``(B, 3, H, W)`` and targets ``(B, classes)``, mirrored at random."""
    picks = torch.randint(len(images), (recipe.batch,), generator=generator)
    batch = images[picks]
    target = targets[picks]
    mirrored = torch.rand(recipe.batch, generator=generator) < 0.5
    batch[mirrored] = batch[mirrored].flip(-1)
    count = round(recipe.batch * recipe.mosaic)
    if count:
        batch[:count], target[:count] = mosaics(batch, target, count, generator)
    return batch, target


def mosaics(
    images: Tensor, targets: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Cut windows of one image's size out of 2×2 mosaics.

    An image's weight in the target is proportional to the square of its area in the window: a
    bird stays complete until well over half of its image is out of sight.

    Args:
        images: Images to choose from, ``(B, 3, H, W)``.
        targets: Their targets, ``(B, classes)``.
        count: Number of windows.
        generator: Draws the images and the windows.

    Returns:
        Windows ``(count, 3, H, W)`` and targets ``(count, classes)``.
    """
    side = images.shape[-1]
    windows = []
    blends = []
    for _ in range(count):
        four = torch.randint(len(images), (4,), generator=generator)
        down, right = torch.randint(side + 1, (2,), generator=generator).tolist()
        a, b, c, d = images[four]
        mosaic = torch.cat([torch.cat([a, b], dim=-1), torch.cat([c, d], dim=-1)], dim=-2)
        windows.append(mosaic[:, down : down + side, right : right + side])
        heights = torch.tensor([side - down, down])
        widths = torch.tensor([side - right, right])
        areas = torch.outer(heights, widths).flatten().double()
        blends.append((areas**2 / areas.square().sum()).to(targets.dtype) @ targets[four])
    return torch.stack(windows), torch.stack(blends)


def normalize(images: Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    """Normalise images ``(B, 3, H, W)`` of uint8 to the input space of a network."""
    centre = torch.tensor(mean).view(1, 3, 1, 1)
    spread = torch.tensor(std).view(1, 3, 1, 1)
    return (images.float() / 255 - centre) / spread


def normalizer(net: str) -> Normalize:
    """Return `normalize` with the mean and standard deviation of an embedded network."""
    return partial(normalize, mean=NETS[net].mean, std=NETS[net].std)


@torch.no_grad()
def predict(
    model: Logits, images: Tensor, batch: int = 200, normalize_images: Normalize = normalize
) -> Tensor:
    """Compute the logits ``(N, classes)`` of images ``(N, 3, H, W)`` of uint8, in batches."""
    return torch.cat([model(normalize_images(part)) for part in torch.split(images, batch)])


def accuracy(
    model: Logits, count: int = SPLITS["test"], normalize_images: Normalize = normalize
) -> dict[str, float]:
    """Measure a model's accuracy on the test split of paperbirds.

    Args:
        model: From normalised images to logits.
        count: Number of images, from the first on.
        normalize_images: How the model's input is normalised.

    Returns:
        ``accuracy`` and ``confident`` (see `correct_fractions`).
    """
    labels = torch.tensor([label_of(index) for index in range(count)])
    images = render_images("test", [(index, PARTS) for index in range(count)])
    return correct_fractions(predict(model, images, normalize_images=normalize_images), labels)


def correct_fractions(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute how many predictions are correct.

    Args:
        logits: ``(N, classes)``.
        labels: ``(N,)``.

    Returns:
        ``accuracy``, the fraction of correct predictions, and ``confident``, the fraction that is
        correct with a softmax of at least 0.99.
    """
    confidence, predicted = logits.softmax(1).max(1)
    correct = predicted == labels
    return {
        "accuracy": correct.float().mean().item(),
        "confident": (correct & (confidence >= CONFIDENT_SOFTMAX)).float().mean().item(),
    }


def part_drops(
    model: Logits, count: int = 512, normalize_images: Normalize = normalize
) -> dict[str, dict[str, float]]:
    """Measure how far the label's logit drops when a part of a bird of the test split is removed.

    Args:
        model: From normalised images to logits.
        count: Number of images, from the first on.
        normalize_images: How the model's input is normalised.

    Returns:
        For each part the ``mean`` drop over the images, and the ``fraction`` of images whose
        logit drops.
    """
    labels = torch.tensor([[label_of(index)] for index in range(count)])

    def label_logits(parts: Sequence[str]) -> Tensor:
        images = render_images("test", [(index, parts) for index in range(count)])
        return predict(model, images, normalize_images=normalize_images).gather(1, labels)

    complete = label_logits(PARTS)
    drops = {}
    for part in PARTS:
        drop = complete - label_logits([other for other in PARTS if other != part])
        drops[part] = {"mean": drop.mean().item(), "fraction": (drop > 0).float().mean().item()}
    return drops
