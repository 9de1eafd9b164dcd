"""Training the embedded models on paperbirds, and what is measured about them.

Models see pictures with parts taken off, never with patches taken out: a part that is gone leaves the classes that fit the
others equally likely.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import heatproof
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
from heatproof.errors import HeatproofError
from heatproof.models.nets import NETS, build, stored, weights_path
from heatproof.training.checkpoint import write_weights
from heatproof.training.loop import Progress, descend, untrained
from heatproof.training.recipes import RECIPES, Recipe

Logits = Callable[[Tensor], Tensor]  # normalised images (B, 3, H, W) -> (B, classes)
Prepare = Callable[[Tensor], Tensor]  # pictures (B, 3, H, W) uint8 -> normalised images

LOSSES: dict[
    str, Callable[[Tensor, Tensor], Tensor]
] = {  # of logits and targets, both (B, classes)
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": lambda logits, target: (
        binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1).mean()
    ),
}


def train(
    name: str,
    *,
    steps: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train one embedded model, write its weights and say how good they are."""
    recipe = recipe_of(name, steps)
    start = time.perf_counter()
    net = fit(recipe, seed, progress)
    minutes = (time.perf_counter() - start) / 60
    net.load_state_dict(
        {
            key: value.to(net.state_dict()[key].dtype)
            for key, value in stored(net.state_dict()).items()
        }
    )
    prepare = preparation(recipe.net)
    metrics: dict[str, Any] = {
        **accuracy(net, prepare=prepare),
        "drops": part_drops(net, prepare=prepare),
        "minutes": minutes,
    }
    write(net, recipe, seed, metrics["accuracy"], out or weights_path(name))
    return metrics


def recipe_of(name: str, steps: int | None = None) -> Recipe:
    if name not in RECIPES:
        raise HeatproofError(f'there is no recipe "{name}"; there are: {", ".join(RECIPES)}')
    recipe = RECIPES[name] if steps is None else replace(RECIPES[name], steps=steps)
    return replace(
        recipe, images=min(recipe.images, recipe.steps * recipe.batch)
    )  # no more than are seen


def fit(recipe: Recipe, seed: int, progress: Progress | None = None) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    net = untrained(partial(build, recipe.net), seed)
    images, targets = training_set(recipe, generator)
    prepare, loss_of = preparation(recipe.net), LOSSES[recipe.loss]

    def loss_of_next() -> Tensor:
        batch, target = draw_batch(images, targets, recipe, generator)
        return loss_of(net(prepare(batch)), target)

    return descend(net, recipe, loss_of_next, progress)


def training_set(recipe: Recipe, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures (N, 3, H, W) uint8 and targets (N, classes), uniform over the classes that fit what is left of the bird."""
    chosen = []
    for index in range(recipe.images):
        damaged = torch.rand((), generator=generator).item() < recipe.deletion
        keep = len(PARTS) - int(torch.randint(len(PARTS) + 1, (), generator=generator)) * damaged
        order = torch.randperm(len(PARTS), generator=generator).tolist()
        chosen.append((index, tuple(PARTS[i] for i in sorted(order[:keep]))))
    return pictures("train", chosen), torch.stack(
        [target_of(label_of(index), parts) for index, parts in chosen]
    )


def pictures(split: str, chosen: Sequence[tuple[int, Sequence[str]]], seed: int = 0) -> Tensor:
    """(N, 3, H, W) uint8 of (index, parts left in)."""
    drawn = [
        torch.from_numpy(render(seed, split, index, parts=parts).image) for index, parts in chosen
    ]
    return torch.stack(drawn).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def target_of(label: int, parts: Sequence[str]) -> Tensor:
    fitting = list(compatible(label, parts))
    target = torch.zeros(len(CLASSES))
    target[fitting] = 1 / len(fitting)
    return target


def draw_batch(
    images: Tensor, targets: Tensor, recipe: Recipe, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    picks = torch.randint(len(images), (recipe.batch,), generator=generator)
    batch, target = images[picks], targets[picks]
    mirrored = torch.rand(recipe.batch, generator=generator) < 0.5
    batch[mirrored] = batch[mirrored].flip(-1)
    straddling = round(recipe.batch * recipe.mosaic)
    if straddling:
        batch[:straddling], target[:straddling] = mosaics(batch, target, straddling, generator)
    return batch, target


def mosaics(
    images: Tensor, targets: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Windows of one picture's size onto 2×2 mosaics. A picture's share of the target goes with the square of its area in
    the window: a bird stays whole until well over half of its picture is out of sight."""
    side = images.shape[-1]
    windows, blends = [], []
    for _ in range(count):
        four = torch.randint(len(images), (4,), generator=generator)
        down, right = torch.randint(side + 1, (2,), generator=generator).tolist()
        a, b, c, d = images[four]
        mosaic = torch.cat([torch.cat([a, b], dim=-1), torch.cat([c, d], dim=-1)], dim=-2)
        windows.append(mosaic[:, down : down + side, right : right + side])
        areas = (
            torch.outer(torch.tensor([side - down, down]), torch.tensor([side - right, right]))
            .flatten()
            .double()
        )
        blends.append((areas**2 / areas.square().sum()).to(targets.dtype) @ targets[four])
    return torch.stack(windows), torch.stack(blends)


def normalised(images: Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    centre, spread = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
    return (images.float() / 255 - centre) / spread


def preparation(net: str) -> Prepare:
    """As that net takes its images."""
    return partial(normalised, mean=NETS[net].mean, std=NETS[net].std)


@torch.no_grad()
def logits_of(
    model: Logits, images: Tensor, batch: int = 200, prepare: Prepare = normalised
) -> Tensor:
    return torch.cat([model(prepare(part)) for part in torch.split(images, batch)])


def accuracy(
    model: Logits, count: int = SPLITS["test"], split: str = "test", prepare: Prepare = normalised
) -> dict[str, float]:
    """The share of pictures that are right, and that are right with a softmax of 0.99 or more."""
    labels = torch.tensor([label_of(index) for index in range(count)])
    softmax = logits_of(
        model, pictures(split, [(index, PARTS) for index in range(count)]), prepare=prepare
    ).softmax(1)
    confidence, predicted = softmax.max(1)
    right = predicted == labels
    return {
        "accuracy": right.float().mean().item(),
        "confident": (right & (confidence >= 0.99)).float().mean().item(),
    }


def part_drops(
    model: Logits, count: int = 512, split: str = "test", prepare: Prepare = normalised
) -> dict[str, dict[str, float]]:
    """How far the logit of the label falls when a part is taken off: mean over pictures, and the share where it falls."""
    labels = torch.tensor([[label_of(index)] for index in range(count)])

    def label_logits(parts: Sequence[str]) -> Tensor:
        return logits_of(
            model, pictures(split, [(index, parts) for index in range(count)]), prepare=prepare
        ).gather(1, labels)

    whole = label_logits(PARTS)
    drops = {
        part: whole - label_logits([other for other in PARTS if other != part]) for part in PARTS
    }
    return {
        part: {"mean": drop.mean().item(), "share": (drop > 0).float().mean().item()}
        for part, drop in drops.items()
    }


def write(net: nn.Module, recipe: Recipe, seed: int, measured: float, path: Path) -> None:
    metadata = {
        "net": recipe.net,
        "recipe": json.dumps(asdict(recipe)),
        "seed": str(seed),
        "accuracy": f"{measured:.4f}",
        "classes": json.dumps(NAMES),
        "heatproof": heatproof.__version__,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_weights(path, stored(net.state_dict()), metadata)
