"""The cost of a plan: passes through the network, time, memory and disk."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from heatproof.baselines import Baseline
from heatproof.models.backends import EAGER, used
from heatproof.models.cutting import Body
from heatproof.models.model import Model
from heatproof.plan.speed import (
    FORWARDS_PER_BACKWARD,
    Calibration,
    Speed,
    method_cost,
    read_speed,
    record_speed,
)
from heatproof.plan.tasks import Plan, Task
from heatproof.runs.format import Cost, ModelView, TimingKey
from heatproof.scoring.evaluation import Evaluation

BYTES_PER_ROW = 4  # once compressed
BYTES_PER_IMAGE_PIXEL = 3
BYTES_PER_MAP_PIXEL = 2
BYTES_PER_LOGIT = 4


def plan_cost(plan: Plan) -> dict[ModelView, Cost]:
    """Return the images of each model view, and the passes they may need.

    A backward pass includes its forward pass.
    """
    images: Counter[ModelView] = Counter()
    forwards: Counter[ModelView] = Counter()
    backwards: Counter[ModelView] = Counter()
    cost_of = cost_memo()
    for task in plan.tasks:
        forward, backward = cost_of(task)
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


def cost_memo() -> Callable[[Task], tuple[int, int]]:
    """Return `task_cost` for many tasks: shards of a view that evaluate the same cost the same."""
    known: dict[tuple[ModelView, tuple[Evaluation, ...]], tuple[int, int]] = {}

    def cost(task: Task) -> tuple[int, int]:
        key = (task.subject, task.records.evaluations)
        if key not in known:
            known[key] = task_cost(task)
        return known[key]

    return cost


def task_cost(task: Task) -> tuple[int, int]:
    """Return the passes (forward, backward) per image through the whole network.

    What methods share is counted once; passes that begin at a later layer are not counted.
    """
    records = task.applicable
    shared: dict[Hashable, int] = {}
    per_method: dict[Hashable, int] = {}
    other_maps: dict[tuple[str, str, Hashable], int] = {}  # by method and what they are of
    for record in records:
        shared |= record.protocol.shared_passes()
        for images, count in record.protocol.passes().items():
            per_method[record.expression.label, images] = count
        for what, count in record.protocol.explanations().items():
            other_maps[record.expression.map_key, record.expression.label, what] = count
    forwards = 1 + sum(shared.values()) + sum(per_method.values())
    backwards = 0
    expressions = {record.expression.map_key: record.expression for record in records}.values()
    layers = {e.map_key: task.model.layer_name(e.layer) for e in expressions}
    noise_counted = set[str]()
    for expression in expressions:
        repeats = sum(n for (key, _, _), n in other_maps.items() if key == expression.map_key)
        from_image = layers[expression.map_key] == "input" or "image" in expression.entry.needs
        noise_is_shared = expression.noise_key != "" and expression.noise_key in noise_counted
        if from_image and not expression.shares_gradient and not noise_is_shared:
            noise_counted.add(expression.noise_key)
            repeats += 1
        if repeats:
            forward, backward = method_cost(expression, task.model) or (0, 0)
            forwards += repeats * forward
            backwards += repeats * backward
    gradients = [e for e in expressions if e.shares_gradient]
    gradient_layers = {layers[e.map_key] for e in gradients}
    reached = set(layers.values()) - {"input"}  # layers whose activations need a forward pass
    if "input" in gradient_layers:
        backwards += len({e.arguments.get("score") for e in gradients})
        reached -= gradient_layers
    return forwards + len(reached), backwards


def uncounted_methods(plan: Plan) -> list[str]:
    """Return the methods whose passes are not known: those of a user's own."""
    records = [record for task in plan.tasks for record in task.applicable]
    unknown = [record.expression for record in records if record.expression.entry.cost is None]
    return list(dict.fromkeys(expression.label for expression in unknown))


Basis = Literal["runs", "measured", "estimated"]
TIMED_IMAGES = 2  # in one pass of an estimate
WARM_CALL_SECONDS = 0.2  # beside which what the first call does once is little
BASES: dict[Basis, str] = {
    "runs": "from earlier runs on this machine, usually within 30 %",
    "measured": "from full batches that were timed now, usually within 50 %",
    "estimated": f"from {TIMED_IMAGES} images that were timed now, perhaps off by a factor of two; "
    "--measure times full batches",
}


@dataclass(frozen=True)
class Forecast:
    """Expected time, memory and disk of a plan.

    Attributes:
        seconds: Time of each model view.
        memory: Peak of this process, or of the GPU, in bytes; None if it is unknown.
        disk: Size of the run directory in bytes.
        basis: What the least certain of these times is based on.
    """

    seconds: dict[ModelView, float]
    memory: int | None
    disk: int
    basis: Basis


def forecast(plan: Plan, measure: bool = False) -> Forecast:
    """Forecast time, memory and disk.

    Times are those of earlier runs on this machine, if there were any with the same network. Else
    they follow from the number of passes and a few images that are timed.

    Args:
        plan: The plan.
        measure: Whether a full batch in each direction is timed and kept for later plans.
    """
    tasks = {task.subject: task for task in plan.tasks}
    seconds = {}
    bases: set[Basis] = set()
    peaks = []
    timed: dict[str, tuple[float, float]] = {}
    per_pixel: dict[Body, tuple[float, float]] = {}
    for subject, cost in plan_cost(plan).items():
        task = tasks[subject]
        known = read_speed(task.model)
        peaks.append(known.memory)
        if measure:
            known = _measure(task.model, plan.rows_per_pass(task))
            peaks.append(known.memory)
        if known.forward is not None:
            forward = known.forward
            backward = known.backward or FORWARDS_PER_BACKWARD * forward
            bases.add("measured" if measure else "runs")
        else:
            model = task.model
            pixels = model.height * model.width
            kind = model.view.partition(",")[0]  # the cells of a grid take as long as each other
            network = f"{model.module}{model.size}{kind}"
            if network not in timed and model.body in per_pixel:
                # The same layers on a larger image, such as a grid: convolutions scale with it.
                forward, backward = (pixels * each for each in per_pixel[model.body])
                timed[network] = forward, backward
            if network not in timed:
                timed[network] = _seconds_per_image(
                    model, min(TIMED_IMAGES, plan.rows_per_pass(task))
                )
            forward, backward = timed[network]
            per_pixel.setdefault(model.body, (forward / pixels, backward / pixels))
            bases.add("estimated")
        seconds[subject] = cost.forwards * forward + cost.backwards * backward
        seconds[subject] += cost.images * _beyond_passes(task, known, forward, backward)
    disk = sum(_disk(task, plan.keep_maps) for task in plan.tasks)
    memory = max((peak for peak in peaks if peak is not None), default=None)
    basis = next(basis for basis in ("estimated", "measured", "runs") if basis in bases)
    return Forecast(seconds, memory, disk, basis)


def _measure(model: Model, batch_size: int) -> Calibration:
    """Time a batch in each direction, and keep the result for later plans."""
    speed = Speed()
    forward, backward = _seconds_per_image(model, batch_size)
    speed.add(forward, {"forward": 1})
    speed.add(backward, {"backward": 1})
    record_speed(model, speed, {}, 0)
    return read_speed(model)


def _beyond_passes(task: Task, known: Calibration, forward: float, backward: float) -> float:
    """Return the seconds per image that earlier runs took beyond the passes that are counted.

    Methods at later layers, imputations and sorting take time as well. It can be less than nothing
    where a method needs fewer passes than it states.
    """
    extra = 0.0
    expressions = {record.expression.map_key: record.expression for record in task.applicable}
    for map_key, expression in expressions.items():
        spent = known.seconds_of(TimingKey("maps", map_key))
        if spent is None or expression.shares_gradient or expression.noise_key:
            continue
        counted = (0, 0)
        from_image = task.model.layer_name(expression.layer) == "input"
        if from_image or "image" in expression.entry.needs:
            counted = method_cost(expression, task.model) or (0, 0)
        extra += spent - counted[0] * forward - counted[1] * backward
    return extra + _beyond_score_passes(task, known, forward)


def _beyond_score_passes(task: Task, known: Calibration, forward: float) -> float:
    """Return the same for protocols, whose passes are counted once if they share them."""
    extra = 0.0
    counted = set[Hashable]()

    def uncounted(passes: Mapping[Hashable, int], label: str) -> int:
        new = {(label, images): count for images, count in passes.items()}
        number = sum(count for images, count in new.items() if images not in counted)
        counted.update(new)
        return number

    protocols = {record.protocol.canonical: record.protocol for record in task.applicable}
    for name, protocol in protocols.items():
        passes = uncounted(protocol.shared_passes(), "")
        spent = known.seconds_of(TimingKey("shared", protocol=name))
        extra += 0.0 if spent is None else spent - passes * forward
    for record in task.applicable:
        passes = uncounted(record.protocol.passes(), record.expression.label)
        spent = known.seconds_of(TimingKey("scores", protocol=record.protocol.canonical))
        if spent is not None and not record.protocol.explanations():
            extra += spent - passes * forward
    return extra


def _seconds_per_image(model: Model, batch_size: int) -> tuple[float, float]:
    """Time a forward and a backward pass."""
    x = torch.zeros((batch_size, *model.image_shape), device=model.device, dtype=model.dtype)
    target = torch.zeros(batch_size, dtype=torch.long, device=model.device)
    with model.passes.batches_of(batch_size):
        if used(model.backend) != EAGER:
            model.logits(x)  # makes the backend, which takes longer than many passes
        forward = _timed(model.logits, x)
        backward = _timed(model.gradient, x, target)
    return forward / batch_size, backward / batch_size


def _timed(call: Callable[..., object], *arguments: object) -> float:
    """Return the seconds of a call, or of a second one where the first may be mostly warm-up."""
    begin = time.perf_counter()
    call(*arguments)
    first = time.perf_counter() - begin
    if first > WARM_CALL_SECONDS:
        return first
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def _disk(task: Task, keep_maps: int) -> int:
    samples = len(task.indices)
    kept = max(0, min(keep_maps - task.indices.start, samples))
    methods = {e.expression.label for e in task.records.evaluations} if kept else ()
    pixel = BYTES_PER_IMAGE_PIXEL + BYTES_PER_MAP_PIXEL * len(methods)
    return (
        BYTES_PER_ROW * len(task.records) * samples
        + kept * task.model.height * task.model.width * pixel
        + BYTES_PER_LOGIT * task.model.n_classes * samples
    )
