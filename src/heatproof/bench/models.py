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
from heatproof.models.zoo import align, load_model
from heatproof.protocols import Protocol
from heatproof.training import cache
from heatproof.training.recipes import RECIPES
from heatproof.training.taught import Lesson

Making = cache.Progress


def open_model(
    told: ModelSpec, spec: Spec, device: str, train: bool, progress: Making | None
) -> Model:
    """`train`: whether what is missing is made; if not, untrained weights stand in."""
    if told.name is not None:
        model = load_model(told.name, told.weights, device, tuned=told.tuned, aligned=told.aligned)
    elif told.taught is not None:
        model = _taught(told, spec, device, train, progress)
    else:
        model = _made(told, spec.judges(), device, train, progress)
    if told.shown is not None and told.shown != told.taught:
        model.name += f" shown {told.shown}"
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
    weights = cache.trained(net, seed, progress) if train else cache.place(net, seed)
    model = load_model(told.train, weights if weights.is_file() else RANDOM, device)
    model.name += f" seed {told.seed}" if told.seed is not None else ""
    for to in _alignments(told, protocols):
        path = (
            cache.aligned(model, weights, to, seed, progress)
            if train
            else cache.aligned_place(weights, to)
        )
        model.tuned[to] = path if path.is_file() else None
    return align(model, told.aligned) if told.aligned else model


def _taught(
    told: ModelSpec, spec: Spec, device: str, train: bool, progress: Making | None
) -> Model:
    assert told.train is not None and told.taught is not None
    seed = told.seed or 0
    weights = (
        cache.taught(*_lesson(told, spec), seed, progress)
        if train
        else cache.taught_place(*_lesson(told, spec), seed)
    )
    model = load_model(told.train, weights if weights.is_file() else RANDOM, device)
    model.name += f" taught {told.taught}" + (f" seed {told.seed}" if told.seed is not None else "")
    if told.taught != PLAIN and ALTERATIONS[told.taught].relabels:
        model.classes = None
    return model


def _lesson(told: ModelSpec, spec: Spec) -> tuple[Lesson, Data]:
    """How it is taught, and on what: the training split of what it is judged on."""
    assert told.train is not None and told.taught is not None
    lesson = Lesson(
        told.train,
        **{key: value for key in ("images", "epochs") if (value := getattr(told, key)) is not None},
    )
    name = training_split(judged := spec.data.changed(told.taught).name)
    if name == judged or spec.data.split == "train":
        raise HeatproofError(
            f"{told.train} is taught on {name}, so it cannot be judged on it; judge it on another split"
        )
    return lesson, load_data(name, load_model(told.train, RANDOM), limit=lesson.images)


def _alignments(told: ModelSpec, protocols: Sequence[Protocol]) -> list[str]:
    return list(dict.fromkeys(to for to in (*(p.alignment for p in protocols), told.aligned) if to))


def _files(told: ModelSpec, spec: Spec) -> Iterator[tuple[Path, str]]:
    """Each with what it takes."""
    assert told.train is not None
    if told.taught is not None:
        lesson, data = _lesson(told, spec)
        seen = lesson.epochs * len(data.ids)
        yield (
            cache.taught_place(lesson, data, told.seed or 0),
            f"teach {told.train} on {data.name}, {seen:,} images forward and backward",
        )
        return
    net, seed = told.train.removeprefix("paperbirds/"), told.seed or 0
    weights, name = cache.place(net, seed), told.train + (f" seed {seed}" if seed else "")
    yield weights, f"train {name}, about {RECIPES[net].minutes:.0f} min on two cores"
    for to in _alignments(told, spec.judges()):
        yield (
            cache.aligned_place(weights, to),
            f"fine-tune {name} for {to}, about {cache.ALIGNING_MINUTES:.0f} min",
        )
