"""Weights that are made when they are asked for, and then kept: of recipes that do not ship, and fine-tuned from those.

They are kept by the hash of everything that they follow from, in $HEATPROOF_CACHE (~/.cache/heatproof).
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
from heatproof.training.checkpoint import write_weights
from heatproof.training.finetune import Step, finetune
from heatproof.training.retrain import RetrainRecipe, digest, teach
from heatproof.training.schedule import SCHEDULES
from heatproof.training.train import recipe_of, train

FINE_TUNING_MINUTES = 1.5  # about, on two cores, with the short schedule
VERSION = 1  # of what training does, besides its recipe
Progress = Callable[[str, int, int], None]  # what is made, how far, of how much


def place(net: str, seed: int = 0, steps: int | None = None) -> Path:
    """Where the weights of that recipe and seed are, or will be."""
    told = {key: value for key, value in asdict(recipe_of(net, steps)).items() if key != "minutes"}
    return (
        home()
        / f"paperbirds-{net}-{_hash(told, seed, NETS[net].options, NETS[net].mean, NETS[net].std)}.safetensors"
    )


def retrained_path(lesson: RetrainRecipe, data: Data, seed: int = 0) -> Path:
    """Where the weights are, or will be, of a network taught on that data."""
    net = net_named(lesson.net)
    key = _hash(asdict(lesson), seed, net.options, net.mean, net.std, digest(data))
    return home() / f"{lesson.net.replace('/', '-')}-{key}-retrained.safetensors"


def retrained(
    lesson: RetrainRecipe, data: Data, seed: int = 0, progress: Progress | None = None
) -> Path:
    path = retrained_path(lesson, data, seed)
    if not path.is_file():
        what = f"teaching {lesson.net} on {data.name}"
        teach(
            lesson,
            data,
            path,
            seed,
            progress and (lambda step, steps, loss: progress(what, step, steps)),
        )
    return path


def fine_tuned_path(weights: Path, to: str) -> Path:
    return weights.with_name(
        f"{weights.stem}-{_hash(to, asdict(SCHEDULES['short']))}-fine-tuned.safetensors"
    )


def trained(net: str, seed: int = 0, progress: Progress | None = None) -> Path:
    path = place(net, seed)
    if not path.is_file():
        train(
            net,
            seed=seed,
            out=path,
            progress=progress
            and (lambda step, steps, loss: progress(f"training {net}", step, steps)),
        )
    return path


def fine_tuned(
    model: Model, weights: Path, to: str, seed: int = 0, progress: Progress | None = None
) -> Path:
    """Fine-tuned from the model, whose weights are in that file, with the short schedule."""
    path = fine_tuned_path(weights, to)
    if not path.is_file():
        make_aligned(model, to, path, seed, progress)
    return path


def make_aligned(
    model: Model, to: str, path: Path, seed: int = 0, progress: Progress | None = None
) -> None:
    """As the embedded models' aligned weights are made and stored. Stopped on the way, it goes on from the last epoch."""
    patches, _, baseline = to.partition("/")
    unfinished = path.with_suffix("")

    def told(step: Step) -> None:
        if progress:
            progress(f"fine-tuning {model.name} for {to}", step.images, step.total)

    found = finetune(
        model,
        "paperbirds:train",
        out=unfinished,
        patches=int(patches),
        baseline=baseline,
        schedule="short",
        seed=seed,
        progress=told,
    )
    write_weights(path, stored(load_state(found.weights)), metadata(found.weights))
    shutil.rmtree(unfinished)


def _hash(*parts: Any) -> str:
    return content_hash(json.dumps([VERSION, *parts]), length=12)
