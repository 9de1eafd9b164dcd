"""How fast this machine is: seconds per pass and per method, measured by runs as they go.

What is measured is kept in ``$HEATPROOF_CACHE/speed``, one small file for each machine, number of
threads, version of torch, backend, network and image size. ``heatproof plan`` reads it.
"""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from heatproof.errors import HeatproofError
from heatproof.files import atomic_write, content_hash
from heatproof.methods import Expression
from heatproof.models.cache_dir import home
from heatproof.models.cutting import Body
from heatproof.models.guards import eval_mode
from heatproof.models.model import Model
from heatproof.models.passes import pass_kind
from heatproof.models.views import seen_sides
from heatproof.plan.tasks import Task
from heatproof.platform import cpu_name, peak_memory
from heatproof.protocols import Protocol
from heatproof.runs.format import ModelView, TimingKey
from heatproof.scoring.evaluation import Evaluation
from heatproof.scoring.out_of_memory import is_out_of_memory

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
    return expression.cost_at(
        lambda: layer_shape(model, expression.layer), partial(seen_sides, model)
    )


def method_passes(expression: Expression, model: Model) -> Counter[str]:
    """Return the same by kind of pass, as ``Model.pass_counts`` has them; none if unknown.

    A method that explains a layer runs the network from there on, unless it needs the image.
    """
    forwards, backwards = method_cost(expression, model) or (0, 0)
    layer = model.layer_index(expression.layer)
    needs = expression.entry.needs
    passes: Counter[str] = Counter()
    if layer and "image" in needs and "gradient" in needs:  # forward to the layer, back to it
        forwards += backwards
    passes[pass_kind("forward", model, 0 if "image" in needs else layer)] += forwards
    passes[pass_kind("backward", model, layer)] += backwards
    return +passes


def in_forwards(model: Model, passes: Mapping[str, int]) -> float:
    """Return what passes cost in forward passes through the whole network."""
    return seconds_of(model, passes, 1.0, FORWARDS_PER_BACKWARD)


def seconds_of(model: Model, passes: Mapping[str, int], forward: float, backward: float) -> float:
    """Return what passes cost, if those from a later layer cost their share of the operations.

    Args:
        model: The model.
        passes: Images by kind of pass, as ``Model.pass_counts`` has them.
        forward: What a forward pass through the whole network costs.
        backward: The same for a backward pass.
    """
    total = 0.0
    for name, count in passes.items():
        kind, _, layer = name.partition(" from ")
        share = share_after(model, layer) if layer else 1.0
        total += count * share * (forward if kind == "forward" else backward)
    return total


class Probe(NamedTuple):
    """The shapes and operations of a network, as one pass of one image shows them.

    Attributes:
        shapes: The shape of the activation at each layer, as far as they are known.
        operations: The floating-point operations, by convolutions and matrix products.
        after: The operations from each layer on, if they are known.
    """

    shapes: dict[int, tuple[int, ...]]
    operations: int
    after: dict[int, int]


_probes: WeakKeyDictionary[Body, Probe] = WeakKeyDictionary()


def probe(model: Model) -> Probe:
    """Pass one image through a network, once for all models that have it in common.

    Raises:
        HeatproofError: If there is not enough memory for it.
    """
    if model.body not in _probes:
        try:
            _probes[model.body] = _probe(model)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise HeatproofError(
                f"{model.name}: there is not enough memory for a pass with one image"
            ) from error
    return _probes[model.body]


def probe_shapes(model: Model) -> None:
    """Find the same without computing values, for a network that is never run.

    What the network caches of such a pass has no values either.
    """
    if model.body not in _probes:
        with suppress(Exception), FakeTensorMode(allow_non_fake_inputs=True):
            _probes[model.body] = _probe(model)  # else an operation needs values


def _probe(model: Model) -> Probe:
    x = torch.zeros((1, *model.image_shape), device=model.device, dtype=model.dtype)
    counter = FlopCounterMode(display=False)
    steps = model.body.steps(0)
    with torch.no_grad(), eval_mode(model.module), counter:
        h = model.passes.to_layout(x)
        if steps is None:  # it always runs as a whole
            _, seen = model.body.run(h, 0, watch=range(len(model.layer_table.names)))
            shapes = {layer: tuple(activation.shape[1:]) for layer, activation in seen.items()}
            total = counter.get_total_flops()
            return Probe(shapes, total, dict.fromkeys(shapes, total))
        shapes = {}
        done = {}
        cells = 1
        for to, run in steps:
            h = run(h)
            if to == "crop":  # activations show all grid cells side by side
                cells = model.height // h.shape[-2]
            elif isinstance(to, int) and to < len(model.layer_table.names):
                shape = h.shape[1:]
                shapes[to] = (*shape[:1], *(cells * side for side in shape[1:]))
                done[to] = counter.get_total_flops()
    total = counter.get_total_flops()
    return Probe(shapes, total, {layer: total - before for layer, before in done.items()})


def share_after(model: Model, layer: str) -> float:
    """Return the share of a pass's operations that come after a layer, given by its name."""
    found = probe(model)
    number = model.body.layers.index(layer)
    return found.after.get(number, found.operations) / found.operations if found.operations else 1.0


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
