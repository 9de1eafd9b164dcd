"""Time each method alone, after its scores are computed: what a map costs whoever needs just one.

In a run, methods share passes, so the time that one of them takes there depends on its company and
its place in the spec. Here every method is called by itself, as `heatproof.explain` calls it, for
one image and for a batch. The fastest of some calls counts, as other work on the machine can only
slow them down. What is on record is not timed again on the same machine. Timing may take a small
part of a run; of methods that are slower, the time in the run is kept instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch

from heatproof.data.catalog import load_batch
from heatproof.execute.recorder import StoredTensors
from heatproof.methods import Explainer, Expression
from heatproof.methods.notes import MapNotes
from heatproof.models.batch import ModelBatch
from heatproof.models.targets import Chosen, Target, choose
from heatproof.plan.tasks import Plan, Task
from heatproof.platform import memory_in_use, peak_memory_since, reset_peak_memory
from heatproof.runs.format import Latencies, Latency, TimingKey
from heatproof.runs.provenance import machine_of
from heatproof.runs.store import Store
from heatproof.scoring.out_of_memory import is_out_of_memory
from heatproof.tensor.noise import Rng

MOST_OF_RUN = 0.05  # of the seconds that a run took, for single calls of the methods of a model
LEAST_SECONDS = 5.0  # for these calls, in any run
MOST_CALLS = 20  # of which the fastest counts, as long as a method is fast
ENOUGH_SECONDS = 0.1  # of the processor's time, for these calls


def time_methods(plan: Plan, store: Store) -> None:
    """Time the methods of a run that have not been timed on this machine, and store the times.

    Args:
        plan: What was computed.
        store: The run directory.
    """
    found = {(known.model, known.map_key): known for known in store.latencies().methods}
    limit = max(LEAST_SECONDS, MOST_OF_RUN * _seconds_of_run(store, plan.tasks))
    timed = False
    for task in _first_tasks(plan.tasks):
        expressions = _expressions(task)
        machine = machine_of(task.model)
        keys = [(task.model_name, expression.map_key) for expression in expressions]
        missing = [
            expression
            for expression, key in zip(expressions, keys, strict=True)
            if key not in found or found[key].machine != machine
        ]
        if missing:
            timed = True
            timer = _Timer(task, plan, store, machine, limit)
            found |= {(task.model_name, e.map_key): timer.time(e) for e in missing}
    if timed:
        store.write_latencies(Latencies(methods=list(found.values())))


def _first_tasks(tasks: Iterable[Task]) -> list[Task]:
    """Return the first task of each model, of its plain view where it has one."""
    first: dict[str, Task] = {}
    for task in tasks:
        known = first.get(task.model_name)
        if known is None or (task.view.is_plain and not known.view.is_plain):
            first[task.model_name] = task
    return list(first.values())


def _expressions(task: Task) -> list[Expression]:
    """Return one expression for each kind of map of a task."""
    return list({r.expression.map_key: r.expression for r in task.applicable}.values())


def _seconds_of_run(store: Store, tasks: Iterable[Task]) -> float:
    """Return how long the tasks of a run took, as far as it is on record."""
    found = (store.timings(task.name) for task in tasks)
    return sum(timing.seconds for timings in found if timings for timing in timings.seconds)


class _Timer:
    """Times the methods of one model on the first images of a task."""

    def __init__(self, task: Task, plan: Plan, store: Store, machine: str, limit: float):
        self._task = task
        self._seed = plan.seed
        self._machine = machine
        self._prepared = StoredTensors(task, store)
        self._timings = store.timings(task.name)
        self._sharing = _sharing(_expressions(task))
        self._limit = limit / max(1, len(_expressions(task)))
        self._batch = load_batch(task.data, task.indices[: plan.rows_per_pass(task)], task.model)

    @cached_property
    def _chosen(self) -> Chosen:
        model = self._task.model
        target = model.target or Target.parse("prediction")
        return choose(model, target, model.logits(self._batch.x), self._batch.labels)

    def time(self, expression: Expression) -> Latency:
        """Return the time of a method, or the reason why there is none."""
        try:
            return self._time(expression) if self._batch.ids else self._latency(expression)
        except Exception as error:  # the method has failed in the run as well, which says so
            why = "out of memory" if is_out_of_memory(error) else "failed"
            return self._latency(expression, reason=why)

    def _time(self, expression: Expression) -> Latency:
        size = len(self._batch.ids)
        in_run = self._seconds_in_run(expression)
        in_batch = None if expression.map_key in self._sharing else in_run
        if in_run is not None and in_run > self._limit:
            seconds, peak, from_run = in_run, None, True
        else:
            seconds, peak, from_run = self._seconds(expression, 1), None, False
            if seconds * size <= self._limit:
                in_batch = self._seconds(expression, size) / size
                peak = self._peak(expression)
        return self._latency(
            expression,
            milliseconds=1000 * seconds,
            is_from_run=from_run,
            batch_milliseconds=None if in_batch is None else 1000 * in_batch,
            batch_size=size,
            peak_bytes=peak,
        )

    def _latency(self, expression: Expression, **facts: Any) -> Latency:
        key = expression.map_key
        return Latency(model=self._task.model_name, map_key=key, machine=self._machine, **facts)

    def _seconds_in_run(self, expression: Expression) -> float | None:
        """Return the seconds of a map in the run, where methods may share passes."""
        timings = self._timings
        seconds = timings and timings.seconds_of(TimingKey("maps", expression.map_key))
        return seconds / timings.images if timings and seconds and timings.images else None

    def _seconds(self, expression: Expression, count: int) -> float:
        """Return the seconds of the fastest call for some images, after one that warms up."""
        calls = [self._call(expression, count)]
        if calls[0] < self._limit:
            calls = [self._call(expression, count)]
        end = time.process_time() + ENOUGH_SECONDS
        while len(calls) < MOST_CALLS and sum(calls) < self._limit and time.process_time() < end:
            calls.append(self._call(expression, count))
        return min(calls)

    def _peak(self, expression: Expression) -> int | None:
        """Return the memory that a batch needs beyond what is in use before; None if unknown."""
        device = self._task.model.device
        if not reset_peak_memory(device):
            return None
        before = memory_in_use(device)
        self._call(expression, len(self._batch.ids))
        peak = peak_memory_since(device)
        return None if before is None or peak is None else max(0, peak - before)

    def _call(self, expression: Expression, count: int) -> float:
        """Compute the maps of some images, and return the seconds that it took."""
        explainer = self._explainer(count, expression)
        model = self._task.model
        passes = model.pass_counts.copy()
        begin = time.perf_counter()
        explainer.native(expression, MapNotes(count))
        if model.device.type != "cpu":
            torch.accelerator.synchronize(model.device)
        seconds = time.perf_counter() - begin
        model.pass_counts.clear()  # these passes belong to no score
        model.pass_counts.update(passes)
        return seconds

    def _explainer(self, count: int, expression: Expression) -> Explainer:
        model = self._task.model
        batch = self._batch.part(slice(0, count))
        gradients = [expression.layer] if expression.shares_gradient else []
        return Explainer(
            ModelBatch(self._chosen.model, batch.x, self._chosen.target[:count], gradients),
            Rng(self._seed, batch.ids, model.device),
            batch.silhouette,
            self._prepared.for_method,
            self._prepared.for_baseline,
        )


def _sharing(expressions: Sequence[Expression]) -> set[str]:
    """Return the map keys of methods that share passes with others of a run.

    Methods share gradients, the activations of their layer, and noisy copies.
    """
    groups: dict[str, set[str]] = {}
    for expression in expressions:
        names = [f"noise {expression.noise_key}"] if expression.noise_key else []
        if expression.shares_gradient:
            names.append("gradient")
        if expression.layers_key:
            names.append(expression.layers_key)
        if expression.layer != "input":
            names += ["gradient", f"activation {expression.layer}"]
        for name in names:
            groups.setdefault(name, set()).add(expression.map_key)
    return set().union(*(keys for keys in groups.values() if len(keys) > 1))
