"""The models of a spec: loaded, or trained and fine-tuned first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from heatproof.bench.spec import PLAIN, ModelSpec, Spec
from heatproof.data.altered import ALTERATIONS
from heatproof.data.base import Data
from heatproof.data.catalog import load_data, training_split
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.models.vision import RANDOM
from heatproof.models.zoo import load_fine_tuned, load_model
from heatproof.protocols import Protocol
from heatproof.training import cache
from heatproof.training.recipes import RECIPES
from heatproof.training.retrain import RetrainRecipe

Making = cache.Progress


def open_model(
    told: ModelSpec, spec: Spec, device: str, train: bool, progress: Making | None
) -> Model:
    """`train`: whether what is missing is made; if not, untrained weights stand in."""
    if told.name is not None:
        model = load_model(
            told.name,
            told.weights,
            device,
            fine_tuned_weights=told.fine_tuned_weights,
            fine_tuned=told.fine_tuned,
        )
    elif told.trained_on is not None:
        model = _taught(told, spec, device, train, progress)
    else:
        model = _made(told, spec.judges(), device, train, progress)
    if told.evaluated_on is not None and told.evaluated_on != told.trained_on:
        model.name += f" evaluated on {told.evaluated_on}"
    model.name, model.backend = told.alias or model.name, spec.backend
    return model


def to_make(spec: Spec) -> list[str]:
    """What has to be trained before a run of the spec begins."""
    files = [file for told in spec.models if told.train is not None for file in _files(told, spec)]
    return list(dict.fromkeys(what for path, what in files if not path.is_file()))


def _made(
    told: ModelSpec,
    protocols: Sequence[Protocol],
    device: str,
    train: bool,
    progress: Making | None,
) -> Model:
    assert told.train is not None
    net, seed = told.train.removeprefix("paperbirds/"), told.seed or 0
    weights = cache.trained(net, seed, progress) if train else cache.weights_path(net, seed)
    model = load_model(told.train, weights if weights.is_file() else RANDOM, device)
    model.name += f" seed {told.seed}" if told.seed is not None else ""
    for to in _fine_tunings(told, protocols):
        path = (
            cache.fine_tuned(model, weights, to, seed, progress)
            if train
            else cache.fine_tuned_path(weights, to)
        )
        model.fine_tuned_weights[to] = path if path.is_file() else None
    return load_fine_tuned(model, told.fine_tuned) if told.fine_tuned else model


def _taught(
    told: ModelSpec, spec: Spec, device: str, train: bool, progress: Making | None
) -> Model:
    assert told.train is not None and told.trained_on is not None
    seed = told.seed or 0
    weights = (
        cache.retrained(*_lesson(told, spec), seed, progress)
        if train
        else cache.retrained_path(*_lesson(told, spec), seed)
    )
    model = load_model(told.train, weights if weights.is_file() else RANDOM, device)
    model.name += f" trained on {told.trained_on}" + (
        f" seed {told.seed}" if told.seed is not None else ""
    )
    if told.trained_on != PLAIN and ALTERATIONS[told.trained_on].relabels:
        model.classes = None
    return model


def _lesson(told: ModelSpec, spec: Spec) -> tuple[RetrainRecipe, Data]:
    """How it is taught, and on what: the training split of what it is judged on."""
    assert told.train is not None and told.trained_on is not None
    lesson = RetrainRecipe(
        told.train,
        **{key: value for key in ("images", "epochs") if (value := getattr(told, key)) is not None},
    )
    name = training_split(judged := spec.data.changed(told.trained_on).name)
    if name == judged or spec.data.split == "train":
        raise HeatproofError(
            f"{told.train} is taught on {name}, so it cannot be judged on it; judge it on another split"
        )
    return lesson, load_data(name, load_model(told.train, RANDOM), limit=lesson.images)


def _fine_tunings(told: ModelSpec, protocols: Sequence[Protocol]) -> list[str]:
    return list(
        dict.fromkeys(to for to in (*(p.fine_tuning for p in protocols), told.fine_tuned) if to)
    )


def _files(told: ModelSpec, spec: Spec) -> Iterator[tuple[Path, str]]:
    """Each with what it takes."""
    assert told.train is not None
    if told.trained_on is not None:
        lesson, data = _lesson(told, spec)
        seen = lesson.epochs * len(data.ids)
        yield (
            cache.retrained_path(lesson, data, told.seed or 0),
            f"teach {told.train} on {data.name}, {seen:,} images forward and backward",
        )
        return
    net, seed = told.train.removeprefix("paperbirds/"), told.seed or 0
    weights, name = cache.weights_path(net, seed), told.train + (f" seed {seed}" if seed else "")
    yield weights, f"train {name}, about {RECIPES[net].minutes:.0f} min on two cores"
    for to in _fine_tunings(told, spec.judges()):
        yield (
            cache.fine_tuned_path(weights, to),
            f"fine-tune {name} for {to}, about {cache.FINE_TUNING_MINUTES:.0f} min",
        )
