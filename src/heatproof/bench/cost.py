"""What a plan costs: passes through the network, time, memory and disk."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

from heatproof.baselines import Baseline
from heatproof.bench.layout import Cost, ModelView
from heatproof.bench.plan import Plan, Task
from heatproof.models.model import Model
from heatproof.platform import peak_memory

BYTES_PER_ROW = 4  # once compressed
BYTES_PER_PIXEL = 3  # of a stored image
BYTES_PER_MAP_PIXEL = 2
BYTES_PER_LOGIT = 4


def plan_cost(plan: Plan) -> dict[ModelView, Cost]:
    """Return the images of each model view, and the passes they may need.

    A backward pass includes its forward pass.
    """
    images: Counter[ModelView] = Counter()
    forwards: Counter[ModelView] = Counter()
    backwards: Counter[ModelView] = Counter()
    for task in plan.tasks:
        forward, backward = task_cost(task)
        images[task.subject] += len(task.indices)
        forwards[task.subject] += forward * len(task.indices)
        backwards[task.subject] += backward * len(task.indices)
    for subject, task in {t.subject: t for t in plan.tasks if t.reference}.items():
        forward, backward = _preparation_cost(task)
        forwards[subject] += forward
        backwards[subject] += backward
    return {
        subject: Cost(
            images=images[subject], forwards=forwards[subject], backwards=backwards[subject]
        )
        for subject in images
    }


def _preparation_cost(task: Task) -> tuple[int, int]:
    """Return the passes (forward, backward) before anything is evaluated."""
    preparations = {record.protocol.preparation_key for record in task.applicable} - {""}
    baselines = set()
    for record in task.applicable:
        for name in (record.protocol.baseline_name, record.expression.arguments.get("baseline")):
            if isinstance(name, str) and name:
                baselines.add(name)
    costs = [Baseline.parse(name).preparation() for name in baselines]
    images = len(task.reference.indices) if task.reference else 0
    forwards = len(preparations) * images + sum(forward for forward, _ in costs)
    return forwards, sum(backward for _, backward in costs)


def task_cost(task: Task) -> tuple[int, int]:
    """Return the passes (forward, backward) per image through the whole network.

    What methods share is counted once; passes that begin at a later layer are not counted.
    """
    records = task.applicable
    shared: dict[Hashable, int] = {}
    per_method: dict[Hashable, int] = {}
    explanations: Counter[str] = Counter()  # how often each map is computed for other images
    for record in records:
        shared |= record.protocol.shared_passes()
        for images, count in record.protocol.passes().items():
            per_method[record.expression.label, images] = count
        explanations[record.expression.map_key] += record.protocol.explanations()
    forwards = 1 + sum(shared.values()) + sum(per_method.values())
    backwards = 0
    expressions = {record.expression.map_key: record.expression for record in records}.values()
    layers = {e.map_key: task.model.layer_name(e.layer) for e in expressions}
    noise_counted = set[str]()
    for expression in expressions:
        repeats = explanations[expression.map_key]
        from_image = layers[expression.map_key] == "input" or "image" in expression.entry.needs
        noise_is_shared = expression.noise_key != "" and expression.noise_key in noise_counted
        if from_image and not expression.shares_gradient and not noise_is_shared:
            noise_counted.add(expression.noise_key)
            repeats += 1
        if repeats:
            forward, backward = expression.cost_on(task.model) or (0, 0)
            forwards += repeats * forward
            backwards += repeats * backward
    gradients = [e for e in expressions if e.shares_gradient]
    gradient_layers = {layers[e.map_key] for e in gradients}
    reached = set(layers.values()) - {"input"}  # layers whose activations need a forward pass
    if "input" in gradient_layers:
        backwards += len({e.arguments.get("score") for e in gradients})
        reached -= gradient_layers
    return forwards + len(reached), backwards


@dataclass(frozen=True)
class Forecast:
    """What a plan is expected to take.

    Attributes:
        seconds: Time of each model view.
        memory: Peak of this process, or of the GPU, in bytes; None if it is unknown.
        disk: Size of the run directory in bytes.
    """

    seconds: dict[ModelView, float]
    memory: int | None
    disk: int


def forecast(plan: Plan) -> Forecast:
    """Forecast time, memory and disk from one timed batch in each direction."""
    tasks = {task.subject: task for task in plan.tasks}
    seconds = {}
    for subject, cost in plan_cost(plan).items():
        task = tasks[subject]
        forward, backward = _seconds_per_image(task.model, plan.rows_per_pass(task))
        seconds[subject] = cost.forwards * forward + cost.backwards * backward
    memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else peak_memory()
    return Forecast(seconds, memory, sum(_disk(task, plan.keep_maps) for task in plan.tasks))


def _seconds_per_image(model: Model, batch_size: int) -> tuple[float, float]:
    """Time a forward and a backward pass."""
    x = torch.zeros((batch_size, *model.image_shape), device=model.device, dtype=model.dtype)
    target = torch.zeros(batch_size, dtype=torch.long, device=model.device)
    with model.passes.batches_of(batch_size):
        forward = _timed(model.logits, x)
        backward = _timed(model.gradient, x, target)
    return forward / batch_size, backward / batch_size


def _timed(call: Callable[..., object], *arguments: object) -> float:
    """Return the seconds of a call, after another one to warm up."""
    call(*arguments)
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def _disk(task: Task, keep_maps: int) -> int:
    samples = len(task.indices)
    kept = max(0, min(keep_maps - task.indices.start, samples))
    methods = {record.expression.label for record in task.records}
    pixel = BYTES_PER_PIXEL + BYTES_PER_MAP_PIXEL * len(methods)
    return (
        BYTES_PER_ROW * len(task.records) * samples
        + kept * task.model.height * task.model.width * pixel
        + BYTES_PER_LOGIT * task.model.n_classes * samples
    )
