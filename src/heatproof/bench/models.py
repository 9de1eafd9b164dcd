"""The models of a spec: loaded, or trained and fine-tuned first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from heatproof.bench.spec import ModelSpec, Spec
from heatproof.models.model import Model
from heatproof.models.vision import RANDOM
from heatproof.models.zoo import align, load_model
from heatproof.protocols import Protocol
from heatproof.training import cache
from heatproof.training.recipes import RECIPES

Making = cache.Progress


def open_model(told: ModelSpec, protocols: Sequence[Protocol], device: str, backend: str, train: bool, progress: Making | None) -> Model:
    """`train`: whether what is missing is made; if not, untrained weights stand in."""
    if told.name is not None:
        model = load_model(told.name, told.weights, device, tuned=told.tuned, aligned=told.aligned)
    else:
        model = _made(told, protocols, device, train, progress)
    model.name, model.backend = told.alias or model.name, backend
    return model


def to_make(spec: Spec) -> list[str]:
    """What has to be trained before a run of the spec begins."""
    return [what for told in spec.models if told.train is not None for path, what in _files(told, spec.judges()) if not path.is_file()]


def _made(told: ModelSpec, protocols: Sequence[Protocol], device: str, train: bool, progress: Making | None) -> Model:
    assert told.train is not None
    net, seed = told.train.removeprefix("paperbirds/"), told.seed or 0
    weights = cache.trained(net, seed, progress) if train else cache.place(net, seed)
    model = load_model(told.train, weights if weights.is_file() else RANDOM, device)
    model.name += f" seed {told.seed}" if told.seed is not None else ""
    for to in _alignments(told, protocols):
        path = cache.aligned(model, weights, to, seed, progress) if train else cache.aligned_place(weights, to)
        model.tuned[to] = path if path.is_file() else None
    return align(model, told.aligned) if told.aligned else model


def _alignments(told: ModelSpec, protocols: Sequence[Protocol]) -> list[str]:
    return list(dict.fromkeys(to for to in (*(p.alignment for p in protocols), told.aligned) if to))


def _files(told: ModelSpec, protocols: Sequence[Protocol]) -> Iterator[tuple[Path, str]]:
    """Each with what it takes."""
    assert told.train is not None
    net, seed = told.train.removeprefix("paperbirds/"), told.seed or 0
    weights, name = cache.place(net, seed), told.train + (f" seed {seed}" if seed else "")
    yield weights, f"train {name}, about {RECIPES[net].minutes:.0f} min on two cores"
    for to in _alignments(told, protocols):
        yield cache.aligned_place(weights, to), f"fine-tune {name} for {to}, about {cache.ALIGNING_MINUTES:.0f} min"
