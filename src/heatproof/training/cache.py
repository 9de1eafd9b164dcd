"""Weights that are trained on demand and kept in the cache.

Networks whose weights do not ship, and their fine-tuned copies, are trained the first time they
are needed. The file name contains a hash of everything that determines the weights. The cache is
``$HEATPROOF_CACHE``, by default ``~/.cache/heatproof``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heatproof.data.base import Data
from heatproof.files import content_hash
from heatproof.models.checkpoint import metadata
from heatproof.models.download import home
from heatproof.models.model import Model
from heatproof.models.nets import NETS, load_state, net_named, stored
from heatproof.training import loop
from heatproof.training.checkpoint import write_weights
from heatproof.training.finetune import Step, finetune
from heatproof.training.retrain import RetrainRecipe, digest, retrain
from heatproof.training.schedule import SCHEDULES
from heatproof.training.train import get_recipe, train

FINE_TUNING_MINUTES = 1.5  # approximate, on two cores, with the short schedule
VALIDATION_IMAGES = 256  # whose patches are deleted after each epoch
VERSION = 1  # raised when training changes in a way that the recipe does not show
Progress = Callable[[str, int, int], None]  # what is being trained, amount done, total amount


def weights_path(net: str, seed: int = 0, steps: int | None = None) -> Path:
    """Return the cache path of an embedded network's weights, whether or not the file exists.

    Args:
        net: Name of the network without prefix, such as ``resnet18``.
        seed: Training seed.
        steps: Number of training steps, if other than the recipe's.
    """
    recipe = asdict(get_recipe(net, steps))
    del recipe["minutes"]  # an estimate, not a setting
    kind = NETS[net]
    key = _hash(recipe, seed, kind.options, kind.mean, kind.std)
    return home() / f"paperbirds-{net}-{key}.safetensors"


def retrained_path(recipe: RetrainRecipe, data: Data, seed: int = 0) -> Path:
    """Return the cache path of a network trained on ``data``, whether or not the file exists.

    Args:
        recipe: Network and training settings.
        data: Training images.
        seed: Training seed.
    """
    net = net_named(recipe.net)
    key = _hash(asdict(recipe), seed, net.options, net.mean, net.std, digest(data))
    return home() / f"{recipe.net.replace('/', '-')}-{key}-retrained.safetensors"


def fine_tuned_path(weights: Path, fine_tuned: str) -> Path:
    """Return the cache path of fine-tuned weights, whether or not the file exists.

    Args:
        weights: File of the weights that fine-tuning starts from.
        fine_tuned: Number of patches and baseline, such as ``16/zero``.
    """
    key = _hash(fine_tuned, asdict(SCHEDULES["short"]))
    return weights.with_name(f"{weights.stem}-{key}-fine-tuned.safetensors")


def trained(net: str, seed: int = 0, progress: Progress | None = None) -> Path:
    """Return the weights file of an embedded network; train the network if it does not exist.

    Args:
        net: Name of the network without prefix, such as ``resnet18``.
        seed: Training seed.
        progress: Called with what is being trained, the step and the number of steps.

    Returns:
        Path of the weights file in the cache.
    """
    path = weights_path(net, seed)
    if not path.is_file():
        train(net, seed=seed, out=path, progress=_step_progress(f"training {net}", progress))
    return path


def retrained(
    recipe: RetrainRecipe, data: Data, seed: int = 0, progress: Progress | None = None
) -> Path:
    """Return the weights file of a network trained on ``data``; train it if it does not exist.

    Args:
        recipe: Network and training settings.
        data: Training images.
        seed: Training seed.
        progress: Called with what is being trained, the step and the number of steps.

    Returns:
        Path of the weights file in the cache.
    """
    path = retrained_path(recipe, data, seed)
    if not path.is_file():
        description = f"training {recipe.net} on {data.name}"
        retrain(recipe, data, path, seed, _step_progress(description, progress))
    return path


def fine_tuned(
    model: Model, weights: Path, fine_tuned: str, seed: int = 0, progress: Progress | None = None
) -> Path:
    """Return the file of fine-tuned weights; fine-tune the model if it does not exist.

    Args:
        model: Model to fine-tune with the short schedule.
        weights: File of the model's weights; the fine-tuned file is stored beside it.
        fine_tuned: Number of patches and baseline, such as ``16/zero``.
        seed: Fine-tuning seed.
        progress: Called with what is being trained, the images seen and the images in total.

    Returns:
        Path of the fine-tuned weights in the cache.
    """
    path = fine_tuned_path(weights, fine_tuned)
    if not path.is_file():
        write_fine_tuned(model, fine_tuned, path, seed, progress)
    return path


def write_fine_tuned(
    model: Model, fine_tuned: str, path: Path, seed: int = 0, progress: Progress | None = None
) -> None:
    """Fine-tune an embedded model on paperbirds and store the result like the shipped weights.

    If it is interrupted, the next call resumes from the last finished epoch.
    """
    patches, _, baseline = fine_tuned.partition("/")
    unfinished = path.with_suffix("")

    def report(step: Step) -> None:
        if progress:
            progress(f"fine-tuning {model.name} for {fine_tuned}", step.images, step.total)

    result = finetune(
        model,
        "paperbirds:train",
        out=unfinished,
        patches=int(patches),
        baseline=baseline,
        schedule="short",
        seed=seed,
        worst_images=VALIDATION_IMAGES,
        progress=report,
    )
    write_weights(path, stored(load_state(result.weights)), metadata(result.weights))
    shutil.rmtree(unfinished)


def _step_progress(description: str, progress: Progress | None) -> loop.Progress | None:
    if progress is None:
        return None
    return lambda step, steps, loss: progress(description, step, steps)


def _hash(*parts: Any) -> str:
    return content_hash(json.dumps([VERSION, *parts]), length=12)
