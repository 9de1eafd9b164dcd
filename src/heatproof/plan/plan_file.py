"""The content of ``plan.json``: what a run stores about its tasks, methods and protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from heatproof.data.base import Data
from heatproof.data.grids import Grids
from heatproof.methods import Expression
from heatproof.plan.cost import plan_cost
from heatproof.plan.speed import method_cost
from heatproof.plan.tasks import Plan, Task
from heatproof.protocols import Protocol
from heatproof.runs.format import (
    MethodFacts,
    PlanFile,
    ProtocolFacts,
    TaskFacts,
    TransformFacts,
    ViewFacts,
)

Cost = tuple[int, int]  # forward and backward passes for a map


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
    costs = _costs(of_views.values())

    def tasks() -> Iterator[TaskFacts]:
        return (_task_facts(task, names[task.records.evaluations]) for task in plan.tasks)

    without_tasks = PlanFile(
        tasks=[],
        methods={
            label: method_facts(e, costs.get(label, e.cost)) for label, e in expressions.items()
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


def _costs(tasks: Iterable[Task]) -> dict[str, Cost]:
    """Return the passes for a map of each method, on the model where they are the most."""
    costs: dict[str, Cost] = {}
    for task in tasks:
        for evaluation in task.records.evaluations:
            label = evaluation.expression.label
            cost = (
                None
                if evaluation.not_applicable
                else method_cost(evaluation.expression, task.model)
            )
            if cost is not None:
                costs[label] = max(cost, costs.get(label, cost), key=sum)
    return costs


def method_facts(expression: Expression, cost: Cost | None = None) -> MethodFacts:
    """Return what a run stores about a method.

    Args:
        expression: The method.
        cost: Forward and backward passes for a map; None if they are not known.
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
        cost=cost,
        map_key=expression.map_key,
        first_seed=expression.first_seed.label if expression.seed else "",
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
        explanations=sum(protocol.explanations().values()),
        aggregates=protocol.aggregates,
    )


def _pool_sizes(data: Data) -> dict[int, int] | None:
    if not isinstance(data, Grids):
        return None
    return {label: len(images) for label, images in data.pool.items()}
