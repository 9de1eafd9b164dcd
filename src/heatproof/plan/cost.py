"""The cost of a plan: passes through the network, time, memory and disk."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from heatproof.baselines import Baseline
from heatproof.methods import Expression
from heatproof.methods.expression import baseline_of
from heatproof.models.backends import EAGER, used
from heatproof.models.cutting import Body
from heatproof.models.model import Model
from heatproof.models.passes import pass_kind
from heatproof.models.views import shares_features
from heatproof.plan.speed import (
    FORWARDS_PER_BACKWARD,
    Calibration,
    Speed,
    method_passes,
    read_speed,
    record_speed,
    seconds_of,
)
from heatproof.plan.tasks import Plan, Task
from heatproof.runs.format import Cost, ModelView, TimingKey
from heatproof.scoring.evaluation import Evaluation
from heatproof.tensor.noise import Rng

BYTES_PER_ROW = 4  # once compressed
BYTES_PER_IMAGE_PIXEL = 3
BYTES_PER_MAP_PIXEL = 2
BYTES_PER_LOGIT = 4


def plan_cost(plan: Plan) -> dict[ModelView, Cost]:
    """Return the images of each model view, and the passes they may need.

    A backward pass includes its forward pass.
    """
    images = Counter({task.subject: 0 for task in plan.tasks})
    for task in plan.tasks:
        images[task.subject] += len(task.indices)
    return {
        subject: Cost.of(images[subject], passes) for subject, passes in plan_passes(plan).items()
    }


def plan_passes(plan: Plan) -> dict[ModelView, Counter[str]]:
    """Return the passes of each model view by their kind, as ``Model.pass_counts`` has them."""
    found: dict[ModelView, Counter[str]] = {}
    cost_of = cost_memo()
    for task in plan.tasks:
        passes = found.setdefault(task.subject, Counter())
        for kind, count in cost_of(task).items():
            passes[kind] += count * len(task.indices)
    for subject, task in {t.subject: t for t in plan.tasks if t.reference}.items():
        forward, backward = preparation_cost(task)
        found[subject]["forward"] += forward
        found[subject]["backward"] += backward
    return found


def preparation_cost(task: Task) -> tuple[int, int]:
    """Return the passes (forward, backward) that prepare the evaluation of a task's model view."""
    preparations = {record.protocol.preparation_key for record in task.applicable} - {""}
    expressions = [record.expression for record in task.applicable]
    preparations |= {e.map_key for e in expressions if e.entry.prepare is not None}
    baselines = set()
    for record in task.applicable:
        for name in (record.protocol.baseline_name, record.expression.arguments.get("baseline")):
            if isinstance(name, str) and name:
                baselines.add(name)
    costs = [Baseline.parse(name).preparation() for name in baselines]
    images = len(task.reference.indices) if task.reference else 0
    forwards = len(preparations) * images + sum(forward for forward, _ in costs)
    return forwards, sum(backward for _, backward in costs)


def cost_memo() -> Callable[[Task], Mapping[str, int]]:
    """Return `task_cost` for many tasks: shards of a view that evaluate the same cost the same."""
    known: dict[tuple[ModelView, tuple[Evaluation, ...]], Mapping[str, int]] = {}

    def cost(task: Task) -> Mapping[str, int]:
        key = (task.subject, task.records.evaluations)
        if key not in known:
            known[key] = task_cost(task)
        return known[key]

    return cost


def task_cost(task: Task) -> Counter[str]:
    """Return the passes per image by their kind, as ``Model.pass_counts`` has them.

    What methods share is counted once; passes that start at a later layer are of a kind of their
    own.
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
    expressions = {record.expression.map_key: record.expression for record in records}
    passes = _shared_between_methods(task.model, expressions.values())
    passes["forward"] += 1 + sum(shared.values()) + sum(per_method.values())
    followers = _followers(task.model, expressions.values())
    noise_counted = set[str]()
    for map_key, expression in expressions.items():
        repeats = sum(count for (key, _, _), count in other_maps.items() if key == map_key)
        if task.model.layer_index(expression.layer):  # the activation of each other image
            passes["forward"] += repeats
        is_shared = expression.shares_gradient or map_key in followers
        if not is_shared and expression.noise_key not in noise_counted - {""}:
            noise_counted.add(expression.noise_key)
            repeats += 1
        if repeats and is_made_ahead(task, expression):
            repeats -= 1
        for kind, count in method_passes(expression, task.model).items():
            passes[kind] += repeats * count
    return passes


def is_made_ahead(task: Task, expression: Expression) -> bool:
    """Return whether a method's passes are made with those of another cell of the same grids."""
    is_shared = expression.entry.shares_passes and expression.noise is None
    ahead = task.model.ahead if is_shared and shares_features(task.model) else None
    return ahead is not None and not ahead.is_first(task.data.ids[0])


def _shared_between_methods(model: Model, expressions: Iterable[Expression]) -> Counter[str]:
    """Return the passes per image that a `ModelBatch` makes for all methods together."""
    expressions = list(expressions)
    layers = {model.layer_index(expression.layer) for expression in expressions}
    by_gradient = [expression for expression in expressions if expression.shares_gradient]
    announced = {model.layer_index(expression.layer) for expression in by_gradient}
    passes: Counter[str] = Counter()
    if by_gradient:
        scores = {expression.arguments.get("score") for expression in by_gradient}
        if len(announced) > 1:  # the activations of later layers are those of the logit's pass
            scores.add("logit")
        passes[pass_kind("backward", model, min(announced))] = len(scores)
        announced.remove(min(announced))
    passes["forward"] = len(layers - announced - {0})  # that end at a layer
    return passes


def _followers(model: Model, expressions: Iterable[Expression]) -> set[str]:
    """Return the map keys of methods for which the own backward of another one serves."""
    by_key: dict[str, list[Expression]] = {}
    for expression in expressions:
        if expression.layers_key:
            by_key.setdefault(expression.layers_key, []).append(expression)
    serves_later_layers = model.body.steps(0) is not None
    followers = set()
    for same in by_key.values():
        layers = {expression.map_key: model.layer_index(expression.layer) for expression in same}
        first, *others = sorted(layers, key=lambda map_key: layers[map_key])
        seen = {layers[first]}
        for map_key in others:
            if serves_later_layers or layers[map_key] in seen:
                followers.add(map_key)
            seen.add(layers[map_key])
    return followers


def uncounted_methods(plan: Plan) -> list[str]:
    """Return the methods whose passes are not known: those of a user's own."""
    records = [record for task in plan.tasks for record in task.applicable]
    unknown = [record.expression for record in records if record.expression.entry.cost is None]
    return list(dict.fromkeys(expression.label for expression in unknown))


def planned_fills(plan: Plan) -> Counter[str]:
    """Return how often baselines with a cache fill in an image at most, by their labels.

    Each image of a curve is another one, and a method that fills in takes one per image.
    """
    found: Counter[str] = Counter()
    for task in plan.tasks:
        fills: dict[tuple[str, Hashable], int] = {}
        for record in task.applicable:
            protocol, expression = record.protocol, record.expression
            passes = {
                **{("", what): count for what, count in protocol.shared_passes().items()},
                **{(expression.label, what): n for what, n in protocol.passes().items()},
            }
            by_name = {protocol.baseline_name: passes}
            if (own := baseline_of(expression.arguments)) is not None:
                by_name.setdefault(own.label, {})["", "whole image"] = 1
            for name, counts in by_name.items():
                if name and Baseline.parse(name).entry.cached:
                    fills |= {(name, what): count for what, count in counts.items()}
        for (name, _), count in fills.items():
            found[name] += count * len(task.indices)
    return found


def seconds_per_fill(plan: Plan, name: str) -> float:
    """Time one image that a baseline fills in, half of whose pixels are removed."""
    model = plan.tasks[0].model
    baseline = Baseline.parse(name)
    x = model.normalize(torch.full((1, *model.image_shape), 0.5))
    removed = torch.arange(model.width, device=x.device).expand(x[:, 0].shape) < model.width // 2
    fill = partial(baseline.entry.function, x, removed, model=model, **baseline.arguments)
    return _timed(lambda: fill(rng=Rng(0, [""], x.device)))


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
    images = {subject: cost.images for subject, cost in plan_cost(plan).items()}
    for subject, passes in plan_passes(plan).items():
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
        seconds[subject] = seconds_of(task.model, passes, forward, backward)
        seconds[subject] += images[subject] * _beyond_passes(task, known, forward, backward)
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

    Imputations and sorting take time as well. It can be less than nothing where a method needs
    fewer passes than it states.
    """
    extra = 0.0
    expressions = {record.expression.map_key: record.expression for record in task.applicable}
    for map_key, expression in expressions.items():
        spent = known.seconds_of(TimingKey("maps", map_key))
        shared = expression.shares_gradient or expression.noise_key or expression.layers_key
        if spent is None or shared or (task.model.ahead and expression.entry.shares_passes):
            continue
        counted = method_passes(expression, task.model)
        extra += spent - seconds_of(task.model, counted, forward, backward)
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
