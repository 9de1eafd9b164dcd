"""Weights that are trained on demand and kept in the cache.

Networks whose weights do not ship, and their fine-tuned copies, are trained the first time they
are needed. The file name contains a hash of everything that determines the weights; the hash of the
file itself is beside it, and a damaged file is trained anew. The cache is ``$HEATPROOF_CACHE``, by
default ``~/.cache/heatproof``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from heatproof.data.base import Data
from heatproof.files import content_hash
from heatproof.models.cache_dir import home
from heatproof.models.hashes import is_intact, record_hash
from heatproof.models.model import Model
from heatproof.models.nets import ASSETS, NETS, load_state, net_named, stored
from heatproof.models.weights_file import metadata
from heatproof.training import loop
from heatproof.training.checkpoint import write_weights
from heatproof.training.finetune import Step, finetune
from heatproof.training.recipes import RECIPES
from heatproof.training.retrain import RetrainRecipe, digest, retrain
from heatproof.training.schedule import SCHEDULES, Schedule
from heatproof.training.train import get_recipe, train

VALIDATION_IMAGES = 256  # whose patches are deleted after each epoch
VERSION = 1  # raised when training changes in a way that the recipe does not show
VALIDATION_TIME_FRACTION = 0.45  # of the training, for an epoch of 6000 images
Progress = Callable[[str, int, int], None]  # what is being trained, amount done, total amount


@dataclass(frozen=True)
class FineTuning:
    """A fine-tuning on demand.

    Attributes:
        fine_tuned: Number of patches and baseline, such as ``16/zero``, or part of the pixels.
        seed: Seed of the deletions and of the order of the images.
        changes: Settings of the short schedule to replace, by field name of `Schedule`.
    """

    fine_tuned: str
    seed: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """The short schedule with these changes."""
        return replace(SCHEDULES["short"], **self.changes)

    def minutes(self, net: str) -> float:
        """Return the approximate duration for an embedded network on two cores."""
        recipe = RECIPES[net]
        schedule = self.schedule
        trained = schedule.epochs * (schedule.limit or recipe.images)
        validated = VALIDATION_TIME_FRACTION * schedule.epochs * 6000
        return recipe.minutes * (trained + validated) / (recipe.steps * recipe.batch)


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


def fine_tuned_path(weights: Path, fine_tuning: FineTuning) -> Path:
    """Return the cache path of fine-tuned weights, whether or not the file exists.

    Args:
        weights: File of the weights that fine-tuning starts from, in the cache or in the package.
        fine_tuning: What for, and how.
    """
    shipped = content_hash(weights.read_bytes()) if weights.parent == ASSETS else ""
    key = _hash(fine_tuning.fine_tuned, asdict(fine_tuning.schedule), fine_tuning.seed, shipped)
    return home() / f"{weights.stem}-{key}-fine-tuned.safetensors"


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
    report = _step_progress(f"training {net}", progress)
    return _made_once(path, lambda: train(net, seed=seed, out=path, progress=report))


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
    report = _step_progress(f"training {recipe.net} on {data.name}", progress)
    return _made_once(path, lambda: retrain(recipe, data, path, seed, report))


def fine_tuned(
    model: Model,
    weights: Path,
    fine_tuning: FineTuning,
    data: Data | str = "paperbirds:train",
    progress: Progress | None = None,
) -> Path:
    """Return the file of fine-tuned weights; fine-tune the model if it does not exist.

    Args:
        model: Model to fine-tune.
        weights: File of the model's weights.
        fine_tuning: What for, and how.
        data: Training images.
        progress: Called with what is being trained, the images seen and the images in total.

    Returns:
        Path of the fine-tuned weights in the cache.
    """
    path = fine_tuned_path(weights, fine_tuning)
    return _made_once(path, lambda: write_fine_tuned(model, fine_tuning, path, data, progress))


def write_fine_tuned(
    model: Model,
    fine_tuning: FineTuning,
    path: Path,
    data: Data | str = "paperbirds:train",
    progress: Progress | None = None,
) -> None:
    """Fine-tune an embedded model and store the result like the shipped weights.

    If it is interrupted, the next call resumes from the last finished epoch.
    """
    deleted, _, baseline = fine_tuning.fine_tuned.partition("/")
    of_pixels = deleted.endswith("%")
    unfinished = path.with_suffix("")

    def report(step: Step) -> None:
        if progress:
            description = f"fine-tuning {model.name} for {fine_tuning.fine_tuned}"
            progress(description, step.images, step.total)

    result = finetune(
        model,
        data,
        out=unfinished,
        patches=16 if of_pixels else int(deleted),
        pixels=float(deleted[:-1]) / 100 if of_pixels else None,
        baseline=baseline,
        schedule=fine_tuning.schedule,
        seed=fine_tuning.seed,
        worst_images=VALIDATION_IMAGES,
        progress=report,
    )
    write_weights(path, stored(load_state(result.weights)), metadata(result.weights))
    shutil.rmtree(unfinished)


def _made_once(path: Path, make: Callable[[], object]) -> Path:
    """Make a file of weights unless it is in the cache, intact; return its path."""
    if not is_intact(path):
        make()
        record_hash(path)
    return path


def _step_progress(description: str, progress: Progress | None) -> loop.Progress | None:
    if progress is None:
        return None
    return lambda step, steps, loss: progress(description, step, steps)


def _hash(*parts: Any) -> str:
    return content_hash(json.dumps([VERSION, *parts]), length=12)
