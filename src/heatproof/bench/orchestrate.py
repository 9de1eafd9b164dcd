"""From a spec to a finished run directory: load, plan, write the plan, execute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from heatproof.bench.choice import choices_of, choose
from heatproof.bench.cost import plan_cost
from heatproof.bench.engines.base import LOCAL, Engine
from heatproof.bench.layout import (
    MethodFacts,
    PlanFile,
    ProtocolFacts,
    TaskFacts,
    TransformFacts,
    ViewFacts,
)
from heatproof.bench.models import TrainingProgress, open_model
from heatproof.bench.plan import Plan, Task, make_plan
from heatproof.bench.progress import ProgressLike, shown
from heatproof.bench.provenance import provenance
from heatproof.bench.runner import find_open_tasks
from heatproof.bench.spec import DataSpec, Spec
from heatproof.bench.store import Store
from heatproof.data.base import Data
from heatproof.data.catalog import load_data
from heatproof.data.grids import Grids
from heatproof.data.source import shared_listings
from heatproof.methods import Expression
from heatproof.models.model import Model
from heatproof.protocols import Protocol


def open_spec(
    spec: Spec,
    device: str = "auto",
    *,
    train: bool = True,
    progress: TrainingProgress | None = None,
    measure: bool = True,
    out: Path | None = None,
) -> Plan:
    """Load everything a spec names, train what is missing, and plan the run.

    Args:
        spec: The spec.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``, or ``auto``.
        train: Whether missing weights are trained. If not, untrained weights take their place; the
            plan costs the same.
        progress: Called with (what is trained or measured, steps done, steps in all).
        measure: Whether backends are measured where the spec leaves the choice (``auto``).
        out: The run directory, if there is one: a run that has begun keeps its backends.

    Returns:
        The plan.

    Raises:
        HeatproofError: If something that the spec names does not exist or does not fit.
    """
    protocols = spec.parsed_protocols()
    models = [open_model(entry, spec, device, train, progress) for entry in spec.models]

    def load(data: DataSpec, model: Model) -> Data:
        return load_data(
            data.name,
            model,
            split=data.split,
            limit=data.limit,
            per_class=data.per_class,
            seed=spec.seed,
        )

    with shared_listings():
        data = [
            load(spec.data.altered(entry.alteration), model)
            for entry, model in zip(spec.models, models, strict=True)
        ]
        references = None
        if spec.reference:
            references = [load(spec.reference, model) for model in models]
        return make_plan(
            models,
            data,
            spec.expressions(),
            protocols,
            seed=spec.seed,
            batch_size=spec.batch_size,
            keep_maps=spec.keep_maps,
            references=references,
            choose=partial(choose, begun=choices_of(out), measure=measure, progress=progress),
        )


def run_plan(
    plan: Plan,
    store: Store,
    identity: Mapping[str, Any],
    spec: Mapping[str, Any],
    progress: ProgressLike = None,
    add: bool = False,
    engine: Engine = LOCAL,
) -> None:
    """Execute a plan in a run directory, which no other process may write to meanwhile.

    Args:
        plan: What to compute; what the directory already holds is not computed again.
        store: The run directory.
        identity: What the directory belongs to: the spec without the number of samples.
        spec: The spec as it is recorded.
        progress: True shows a bar, or lines where there is no terminal; a function is called after
            every task, with the task and whether it was finished before.
        add: Whether the directory may hold the run of any other spec.
        engine: What computes the tasks; by default this process, one after the other.

    Raises:
        HeatproofError: If the spec does not go with the directory, it holds something else, or
            another process is writing to it.
    """
    store.check(identity, add)
    with store.locked(), shown(progress) as watcher:
        store.claim(identity, add)
        models = {task.subject: task.model for task in plan.tasks}
        open_tasks = find_open_tasks(plan, store)
        facts = provenance(spec, models, engine.threads)
        without_tasks, tasks = plan_file_parts(plan)
        store.write_plan(without_tasks, facts, computes=bool(open_tasks), tasks=tasks)
        engine.execute(plan, store, watcher, open_tasks)


def plan_file(plan: Plan) -> PlanFile:
    """Return the content of ``plan.json``."""
    without_tasks, tasks = plan_file_parts(plan)
    return without_tasks.model_copy(update={"tasks": list(tasks())})


def plan_file_parts(plan: Plan) -> tuple[PlanFile, Callable[[], Iterator[TaskFacts]]]:
    """Return the content of ``plan.json`` without tasks, and what makes these one by one."""
    of_views = {task.records.evaluations: task for task in plan.tasks}  # the same in all shards
    evaluations = [evaluation for evaluations in of_views for evaluation in evaluations]
    expressions = {e.expression.label: e.expression for e in evaluations}
    names = {evaluations: list(task.protocols) for evaluations, task in of_views.items()}
    protocols: dict[str, Protocol] = {}
    for task in of_views.values():
        protocols |= task.protocols
    data = {task.subject: task.data for task in plan.tasks}
    sharing = _sharing(expressions.values())

    def tasks() -> Iterator[TaskFacts]:
        return (_task_facts(task, names[task.records.evaluations]) for task in plan.tasks)

    without_tasks = PlanFile(
        tasks=[],
        methods={
            label: method_facts(e, shares=e.map_key in sharing) for label, e in expressions.items()
        },
        protocols=[_protocol_facts(protocol) for protocol in protocols.values()],
        views=[
            ViewFacts(
                model=subject.model,
                view=subject.view,
                cost=cost,
                pool=_pool_sizes(data[subject]),
                reused=getattr(data[subject], "reused", 0),
            )
            for subject, cost in plan_cost(plan).items()
        ],
    )
    return without_tasks, tasks


def _task_facts(task: Task, protocols: list[str]) -> TaskFacts:
    return TaskFacts(
        name=task.name,
        model=task.model_name,
        view=task.view,
        protocols=protocols,
        records=task.records.keys,
    )


def _sharing(expressions: Iterable[Expression]) -> set[str]:
    """Return the map keys of methods that share passes with others, so they are not timed alone.

    Methods share gradients, the activations of their layer, and noisy copies.
    """
    maps = {expression.map_key: expression for expression in expressions}
    groups: dict[str, set[str]] = {}
    for map_key, expression in maps.items():
        names = [f"noise {expression.noise_key}"] if expression.noise_key else []
        if expression.shares_gradient:
            names.append("gradient")
        if expression.layer != "input":
            names += ["gradient", f"activation {expression.layer}"]
        for name in names:
            groups.setdefault(name, set()).add(map_key)
    shared = {name: keys for name, keys in groups.items() if len(keys) > 1}
    return set().union(*shared.values())


def method_facts(expression: Expression, shares: bool = False) -> MethodFacts:
    """Return what a run stores about a method.

    Args:
        expression: The method.
        shares: Whether it shares passes with other methods of the run.
    """
    transforms = [
        TransformFacts(name=entry.id, arguments=tuple(arguments.values()))
        for entry, arguments in expression.transforms
    ]
    default_layer = expression.entry.layer
    return MethodFacts(
        canonical=expression.canonical,
        family=expression.entry.family,
        paper=expression.entry.paper,
        summary=expression.entry.summary,
        signed=expression.signed,
        layer=expression.layer,
        layerless=expression.at(default_layer).label,
        layerless_base=expression.with_transforms(0).at(default_layer).label,
        before_last=expression.with_transforms(max(0, len(transforms) - 1)).label,
        transforms=tuple(transforms),
        cost=expression.cost,
        map_key=expression.map_key,
        shares=shares,
    )


def _protocol_facts(protocol: Protocol) -> ProtocolFacts:
    return ProtocolFacts(
        **protocol.facts(),
        canonical=protocol.canonical,
        setting=protocol.setting,
        baseline=protocol.baseline_name,
        settings=protocol.model_dump(),
        shared_forwards=sum(protocol.shared_passes().values()),
        method_forwards=sum(protocol.passes().values()),
        explanations=protocol.explanations(),
        aggregates=protocol.aggregates,
    )


def _pool_sizes(data: Data) -> dict[int, int] | None:
    if not isinstance(data, Grids):
        return None
    return {label: len(images) for label, images in data.pool.items()}
