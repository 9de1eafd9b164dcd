"""How fast this machine is: seconds per pass and per method, measured by runs as they go.

What is measured is kept in ``$HEATPROOF_CACHE/speed``, one small file for each machine, number of
threads, version of torch, backend, network and image size. ``heatproof plan`` reads it.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch.utils.flop_counter import FlopCounterMode

from heatproof.files import atomic_write, content_hash
from heatproof.methods import Expression
from heatproof.models.cache_dir import home
from heatproof.models.cutting import Body
from heatproof.models.guards import eval_mode
from heatproof.models.model import Model
from heatproof.plan.tasks import Task
from heatproof.platform import cpu_name, peak_memory
from heatproof.protocols import Protocol
from heatproof.runs.format import ModelView, TimingKey
from heatproof.scoring.evaluation import Evaluation

FORWARDS_PER_BACKWARD = 3.0  # cost of a backward pass with its forward pass, in forward passes
# Methods that optimise: images per sample in one step, where a pass of `extremal` is half as large.
STEPWISE: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "extremal": lambda arguments: 2 * len(arguments["areas"]),
    "iba": lambda arguments: int(arguments["copies"]),
}


def method_cost(expression: Expression, model: Model) -> tuple[int, int] | None:
    """Return forward and backward passes per image of a method, by itself; None if unknown.

    The cost may depend on the size of the layer.
    """
    return expression.cost_at(lambda: layer_shape(model, expression.layer))


class Probe(NamedTuple):
    """What one pass of one image tells about a network.

    Attributes:
        shapes: The shape of the activation at each layer.
        operations: The floating-point operations, by convolutions and matrix products.
    """

    shapes: dict[int, tuple[int, ...]]
    operations: int


_probes: WeakKeyDictionary[Body, Probe] = WeakKeyDictionary()


def probe(model: Model) -> Probe:
    """Pass one image through a network, once for all models that have it in common."""
    if model.body not in _probes:
        x = torch.zeros((1, *model.image_shape), device=model.device, dtype=model.dtype)
        layers = range(len(model.layer_table.names))
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), eval_mode(model.module), counter:
            _, seen = model.body.run(model.passes.to_layout(x), 0, watch=layers)
        shapes = {layer: tuple(activation.shape[1:]) for layer, activation in seen.items()}
        _probes[model.body] = Probe(shapes, counter.get_total_flops())
    return _probes[model.body]


def layer_shape(model: Model, layer: str) -> tuple[int, ...]:
    """Return the shape of one image's activation."""
    number = model.layer_index(layer)
    if number == 0:
        return tuple(model.image_shape)
    shapes = probe(model).shapes
    if number not in shapes:
        shapes[number] = model.shape(layer)
    return shapes[number]


@dataclass
class Speed:
    """Seconds and images of passes through the whole network, as a run makes them."""

    seconds: dict[str, float] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)

    def add(self, seconds: float, passes: Mapping[str, int]) -> None:
        """Add what a call took, if all its passes were of one kind and through the whole network.

        Args:
            seconds: Time.
            passes: Images by kind of pass, as ``Model.pass_counts`` has them.
        """
        kinds = [kind for kind, count in passes.items() if count]
        if kinds in (["forward"], ["backward"]):
            kind = kinds[0]
            self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
            self.images[kind] = self.images.get(kind, 0) + passes[kind]

    def of(self, kind: str) -> float | None:
        """Return the seconds per image of ``forward`` or ``backward``; None if unknown."""
        images = self.images.get(kind, 0)
        return self.seconds[kind] / images if images else None


@dataclass
class Pace:
    """How long single samples of a run take, to decide what is computed in blocks.

    Attributes:
        forward: Seconds of a forward pass, by model view.
    """

    forward: dict[ModelView, float | None] = field(default_factory=dict)

    def of_maps(self, task: Task, expression: Expression) -> float | None:
        """Return the expected seconds of a map; None if unknown."""
        return self._seconds(task, method_cost(expression, task.model))

    def variants(self, task: Task, expression: Expression) -> float:
        """Return how many images of one sample a method passes at a time; 0 if unknown."""
        cost = method_cost(expression, task.model)
        if cost is None or expression.entry.source is not None:
            return 0.0
        if expression.entry.id in STEPWISE:
            return float(STEPWISE[expression.entry.id](expression.arguments))
        return sum(cost) / (expression.noise.n if expression.noise else 1)

    def of_shared(self, task: Task, protocol: Protocol) -> float | None:
        """Return the expected seconds of what methods share; None if unknown."""
        return self._seconds(task, (sum(protocol.shared_passes().values()), 0))

    def of_scores(self, task: Task, evaluation: Evaluation) -> float | None:
        """Return the expected seconds of a score; None if unknown."""
        forwards = sum(evaluation.protocol.passes().values())
        explanations = sum(evaluation.protocol.explanations().values())
        cost = method_cost(evaluation.expression, task.model) if explanations else (0, 0)
        if cost is None:
            return None
        return self._seconds(task, (forwards + explanations * cost[0], explanations * cost[1]))

    def score_variants(self, task: Task, evaluation: Evaluation) -> float:
        """Return how many images of one sample a protocol passes at a time; 0 if unknown."""
        if evaluation.protocol.source is not None:
            return 0.0
        if evaluation.protocol.explanations():
            return self.variants(task, evaluation.expression)
        return float(sum(evaluation.protocol.passes().values()))

    def _seconds(self, task: Task, cost: tuple[int, int] | None) -> float | None:
        forward = self.forward.get(task.subject)
        if forward is None or cost is None:
            return None
        return forward * (cost[0] + FORWARDS_PER_BACKWARD * cost[1])


class Calibration(BaseModel):
    """The known speed of one network on this machine.

    Attributes:
        forward: Seconds of a forward pass per image; None if it was not measured.
        backward: Seconds of a backward pass with its forward pass.
        items: Seconds per image by what they were spent on (``TimingKey``); of scores the mean over
            methods.
        memory: Peak of the process in bytes; None if it is unknown.
    """

    model_config = ConfigDict(extra="ignore")

    forward: float | None = None
    backward: float | None = None
    items: dict[str, float] = {}
    memory: int | None = None

    def seconds_of(self, key: TimingKey) -> float | None:
        """Return the seconds per image of something; None if it was not measured."""
        return self.items.get(_encode(key))


def read_speed(model: Model) -> Calibration:
    """Return what is known about a model's speed; nothing if it has not been run here."""
    with suppress(OSError, ValidationError):
        return Calibration.model_validate_json(_path(model).read_bytes())
    return Calibration()


def record_speed(
    model: Model,
    speed: Speed,
    seconds: Mapping[TimingKey, float],
    samples: int,
    full: bool = True,
) -> None:
    """Keep what a run has measured, for plans to come.

    Args:
        model: The model, as it was evaluated.
        speed: Seconds per pass.
        seconds: Time by what it was spent on.
        samples: Number of samples that it was spent on.
        full: Whether passes were full. Those of the last few samples are filled up and take longer
            per sample, so they count only for what is not known yet.
    """
    before = read_speed(model)
    measured = {name: value / samples for name, value in _items(seconds)} if samples else {}
    now = Calibration(forward=speed.of("forward"), backward=speed.of("backward"), items=measured)
    first, second = (now, before) if full else (before, now)
    after = Calibration(
        forward=first.forward or second.forward,
        backward=first.backward or second.backward,
        items=second.items | first.items,
        memory=used_memory(),
    )
    with suppress(OSError):  # a cache that cannot be written is no reason to stop
        atomic_write(_path(model), after.model_dump_json(indent=1).encode())


def used_memory() -> int | None:
    """Return the peak memory of the GPU, or of this process, in bytes; None if it is unknown."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else peak_memory()


def _items(seconds: Mapping[TimingKey, float]) -> Iterator[tuple[str, float]]:
    scores: dict[str, list[float]] = {}
    for key, value in seconds.items():
        if key.kind == "scores":
            scores.setdefault(_encode(key), []).append(value)
        else:
            yield _encode(key), value
    for name, values in scores.items():
        yield name, sum(values) / len(values)


def _encode(key: TimingKey) -> str:
    """Return the name of an item; scores are those of any method."""
    return json.dumps({**asdict(key), "method": "" if key.kind == "scores" else key.method})


def machine_key(device: torch.device) -> list[Any]:
    """Return what the speed of a network depends on besides the network."""
    return [
        platform.machine(),
        cpu_name(),
        os.cpu_count(),
        torch.get_num_threads(),
        torch.__version__,
        str(device),
        torch.cuda.get_device_name(device) if device.type == "cuda" else "",
    ]


def _path(model: Model) -> Path:
    machine = machine_key(model.device)
    network = [str(model.module), model.size, model.view, str(model.dtype), model.backend]
    return home() / "speed" / f"{content_hash(json.dumps([machine, network]), length=24)}.json"
