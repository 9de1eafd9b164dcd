"""The models of a spec: loaded by name, or trained and fine-tuned first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from heatproof.data.altered import ALTERATIONS
from heatproof.data.base import Data
from heatproof.data.catalog import load_data, training_split
from heatproof.errors import HeatproofError
from heatproof.models import nets
from heatproof.models.backends import SINGLE
from heatproof.models.model import Model
from heatproof.models.vision import RANDOM_WEIGHTS
from heatproof.models.zoo import (
    DOWNLOADED_WEIGHTS,
    cached_fine_tuned,
    is_published,
    load_fine_tuned,
    load_model,
    missing_fine_tuning,
)
from heatproof.plan.spec import PLAIN, RETRAINING_KEYS, ModelSpec, Spec
from heatproof.training import cache
from heatproof.training.cache import FineTuning
from heatproof.training.recipes import RECIPES
from heatproof.training.retrain import RetrainRecipe

TrainingProgress = cache.Progress
FINE_TUNING_LABELS = {
    "seed": "fine-tuning seed",
    "lr": "lr",
    "epochs": "fine-tuning epochs",
    "batch_size": "fine-tuning batch size",
    "step": "fine-tuning step",
    "images": "fine-tuning images",
}


def open_model(
    entry: ModelSpec, spec: Spec, device: str, train: bool, progress: TrainingProgress | None
) -> Model:
    """Return a model of a spec.

    Args:
        entry: The model's entry in the spec.
        spec: The whole spec, whose protocols decide what the model is fine-tuned for.
        device: The device that the model is loaded to.
        train: Whether missing weights are trained. If not, untrained weights take their place.
        progress: Called with (what is trained, steps done, steps in all).

    Raises:
        HeatproofError: If there is no such model, or it cannot be trained on this data.
    """
    if entry.name is not None:
        weights = entry.weights
        fine_tuned_weights = entry.fine_tuned_weights or cached_fine_tuned(entry.name)
        if weights is None and is_published(entry.name) and spec.uses_only_fine_tuned(entry):
            weights = RANDOM_WEIGHTS  # nothing evaluates them
        model = load_model(
            entry.name,
            weights,
            device,
            fine_tuned_weights=fine_tuned_weights,
            fine_tuned=None if entry.fine_tuning else entry.fine_tuned,
            head=entry.head,
            batch_dependent=bool(entry.batch_dependent),
        )
        if entry.fine_tuning is not None:
            model = _with_fine_tuned(model, entry, spec, train, progress)
    elif entry.trained_on is not None:
        model = _retrained_model(entry, spec, device, train, progress)
    else:
        model = _trained_model(entry, spec, device, train, progress)
    if entry.evaluated_on is not None and entry.evaluated_on != entry.trained_on:
        model.name += f" evaluated on {entry.evaluated_on}"
    model.name = entry.alias or model.name
    model.backend = spec.backend
    model = model.with_precision(spec.precision or SINGLE, bool(spec.approximate))
    target = entry.target or spec.target
    return model if target is None else model.with_target(target)


def check_fine_tuned_weights(spec: Spec) -> None:
    """Check that published networks have the fine-tuned weights that protocols need; open none.

    Raises:
        HeatproofError: If one of them lacks some; the message says how to get them.
    """
    protocols = [p for p in spec.parsed_protocols() if not getattr(p, "missing", None)]
    wanted = [protocol.fine_tuning for protocol in protocols if protocol.fine_tuning]
    for entry in spec.models:
        name = entry.name
        if name is None or entry.fine_tuning or entry.fine_tuned or not is_published(name):
            continue  # weights are made, come with the network, or are missed when it is loaded
        has = entry.fine_tuned_weights or cached_fine_tuned(name)
        lacking = [fine_tuning for fine_tuning in wanted if fine_tuning not in has]
        if lacking and has != DOWNLOADED_WEIGHTS:
            raise HeatproofError(missing_fine_tuning(name, lacking[0], has))


def pending_training(spec: Spec) -> list[str]:
    """Return what has to be trained before a run of the spec can start, one text each."""
    pending: dict[str, None] = {}
    for entry in spec.models:
        if entry.train is None and entry.fine_tuning is None:
            continue
        for path, description in _weight_files(entry, spec):
            if not path.is_file():
                pending[description] = None
    return list(pending)


def _trained_model(
    entry: ModelSpec, spec: Spec, device: str, train: bool, progress: TrainingProgress | None
) -> Model:
    """Return an embedded model that its recipe trains, with its fine-tuned weights."""
    assert entry.train is not None
    net = entry.train.removeprefix("paperbirds/")
    seed = entry.seed or 0
    weights = cache.trained(net, seed, progress) if train else cache.weights_path(net, seed)
    model = load_model(entry.train, weights if weights.is_file() else RANDOM_WEIGHTS, device)
    model.name += _seed_suffix(entry)
    return _with_fine_tuned(model, entry, spec, train, progress)


def _retrained_model(
    entry: ModelSpec, spec: Spec, device: str, train: bool, progress: TrainingProgress | None
) -> Model:
    """Return a model that is trained on altered images."""
    assert entry.train is not None and entry.trained_on is not None
    recipe, data = _retraining(entry, spec)
    seed = entry.seed or 0
    if train:
        weights = cache.retrained(recipe, data, seed, progress)
    else:
        weights = cache.retrained_path(recipe, data, seed)
    model = load_model(entry.train, weights if weights.is_file() else RANDOM_WEIGHTS, device)
    model.name += f" trained on {entry.trained_on}{_seed_suffix(entry)}"
    if entry.trained_on != PLAIN and ALTERATIONS[entry.trained_on].relabels:
        model.classes = None
    return _with_fine_tuned(model, entry, spec, train, progress)


def _with_fine_tuned(
    model: Model, entry: ModelSpec, spec: Spec, train: bool, progress: TrainingProgress | None
) -> Model:
    """Return an embedded model with the fine-tuned weights that the spec asks for."""
    model.name += _fine_tuning_suffix(entry)
    model.fine_tuned_weights = {}
    fine_tunings = _fine_tunings(entry, spec)
    weights = _base_weights(entry, spec) if fine_tunings else None
    for fine_tuning in fine_tunings:
        assert weights is not None
        if train:
            data = _fine_tuning_data(entry, spec)
            path = cache.fine_tuned(model, weights, fine_tuning, data, progress)
        else:
            path = cache.fine_tuned_path(weights, fine_tuning)
        model.fine_tuned_weights[fine_tuning.fine_tuned] = path if path.is_file() else None
    return load_fine_tuned(model, entry.fine_tuned) if entry.fine_tuned else model


def _base_weights(entry: ModelSpec, spec: Spec) -> Path:
    """Return the file of the weights that are fine-tuned."""
    if entry.train is None:
        assert entry.name is not None
        return nets.weights_path(entry.name.removeprefix("paperbirds/"))
    seed = entry.seed or 0
    if entry.trained_on is None:
        return cache.weights_path(entry.train.removeprefix("paperbirds/"), seed)
    recipe, data = _retraining(entry, spec)
    return cache.retrained_path(recipe, data, seed)


def _fine_tuning_data(entry: ModelSpec, spec: Spec) -> Data | str:
    """Return the images that a model is fine-tuned on: those that it was trained on."""
    return "paperbirds:train" if entry.trained_on is None else _retraining(entry, spec)[1]


def _retraining(entry: ModelSpec, spec: Spec) -> tuple[RetrainRecipe, Data]:
    """Return the recipe and its data: the training split of the data that is evaluated."""
    assert entry.train is not None and entry.trained_on is not None
    recipe = _recipe(entry)
    evaluated = spec.data.altered(entry.trained_on).name
    name = training_split(evaluated)
    if name == evaluated or spec.data.split == "train":
        raise HeatproofError(
            f"{entry.train} is trained on {name}, so it cannot be evaluated on it; evaluate it on "
            "another split"
        )
    return recipe, load_data(name, _untrained(entry.train), limit=recipe.images)


@lru_cache(maxsize=1)
def _untrained(name: str) -> Model:
    """Return a network that the images of a training are fitted to."""
    return load_model(name, RANDOM_WEIGHTS)


def _recipe(entry: ModelSpec) -> RetrainRecipe:
    """Return how a model is trained on altered images."""
    assert entry.train is not None
    settings = {key: getattr(entry, key) for key in RETRAINING_KEYS}
    changes = {name: value for name, value in settings.items() if value is not None}
    return RetrainRecipe(entry.train, **changes)


def _fine_tunings(entry: ModelSpec, spec: Spec) -> list[FineTuning]:
    """Return the fine-tunings that protocols or the entry itself ask for."""
    named = [*(protocol.fine_tuning for protocol in spec.parsed_protocols()), entry.fine_tuned]
    settings = entry.fine_tuning.model_dump(exclude_none=True) if entry.fine_tuning else {}
    seed = settings.pop("seed", 0)
    if "images" in settings:
        settings["limit"] = settings.pop("images")
    if entry.trained_on is not None:
        settings.setdefault("limit", _recipe(entry).images)
    return [FineTuning(name, seed, settings) for name in dict.fromkeys(named) if name]


def _seed_suffix(entry: ModelSpec) -> str:
    return "" if entry.seed is None else f" seed {entry.seed}"


def _fine_tuning_suffix(entry: ModelSpec) -> str:
    """Return how the fine-tuning differs from that of the shipped weights, as part of a name."""
    if entry.fine_tuning is None:
        return ""
    settings = entry.fine_tuning.model_dump(exclude_none=True)
    return "".join(f" {FINE_TUNING_LABELS[key]} {value}" for key, value in settings.items())


def _weight_files(entry: ModelSpec, spec: Spec) -> Iterator[tuple[Path, str]]:
    """Yield the files of weights that a model needs, each with what it takes to train it."""
    name = entry.train or entry.name
    assert name is not None
    net = name.removeprefix("paperbirds/")
    weights = _base_weights(entry, spec)
    if entry.trained_on is not None:
        recipe, data = _retraining(entry, spec)
        images = recipe.epochs * len(data.ids)
        name += f" on {len(data.ids):,} images of {data.name}"
        yield weights, f"train {name}, {images:,} images forward and backward"
    elif entry.train is not None:
        name += f" seed {entry.seed}" if entry.seed else ""
        yield weights, f"train {name}, about {RECIPES[net].minutes:.0f} min on two cores"
    for fine_tuning in _fine_tunings(entry, spec):
        path = cache.fine_tuned_path(weights, fine_tuning)
        minutes = f", about {fine_tuning.minutes(net):.0f} min" if net in RECIPES else ""
        label = f"{name}{_fine_tuning_suffix(entry)}"
        yield path, f"fine-tune {label} for {fine_tuning.fine_tuned}{minutes}"
