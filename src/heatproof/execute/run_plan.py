"""Execute a plan in a run directory: claim it, write the plan, compute the tasks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from heatproof.errors import HeatproofError, join_limited
from heatproof.execute.engines.base import LOCAL, Engine
from heatproof.execute.latency import time_methods
from heatproof.execute.progress import ProgressLike, shown
from heatproof.execute.runner import find_open_tasks
from heatproof.plan.plan_file import plan_file_parts
from heatproof.plan.speed import layer_shape
from heatproof.plan.tasks import Plan
from heatproof.runs.format import Provenance
from heatproof.runs.provenance import provenance
from heatproof.runs.store import Store


def run_plan(
    plan: Plan,
    store: Store,
    identity: Mapping[str, Any],
    spec: Mapping[str, Any],
    progress: ProgressLike = None,
    add: bool = False,
    engine: Engine = LOCAL,
    rounds: Callable[[Store], Iterator[Plan]] | None = None,
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
        rounds: Yields the part of the plan up to the end of each round, if what is computed depends
            on what was found before.

    Raises:
        HeatproofError: If the spec does not go with the directory, it holds something else, or
            another process is writing to it.
    """
    store.check(identity, add)
    with store.locked(), shown(progress) as watcher:
        store.claim(identity, add)
        models = {task.subject: task.model for task in plan.tasks}
        facts = provenance(spec, models, engine.threads, layer_shape)
        if not add:
            _warn_of_other_networks(facts, store)
        _warn_of_other_tasks(store, rounds is not None)
        if rounds is None:
            store.remove(store.paths.race)  # of an earlier run in the same directory
        for part in rounds(store) if rounds else (plan,):
            open_tasks = find_open_tasks(part, store)
            without_tasks, tasks = plan_file_parts(part)
            store.write_plan(without_tasks, facts, computes=bool(open_tasks), tasks=tasks)
            engine.execute(part, store, watcher, open_tasks)
            plan = part
        if engine is LOCAL:  # workers may be other machines, and share theirs
            time_methods(plan, store)


def _warn_of_other_tasks(store: Store, decides: bool) -> None:
    """Say that nothing of an earlier run is reused, as only one of the two decides."""
    try:
        decided = "decide" in store.provenance().spec
    except HeatproofError:  # there was no run, or the file is damaged
        return
    if decided != decides:
        warnings.warn(
            f"{store.name} holds a run {'with' if decided else 'without'} decide, whose tasks have "
            "another size: everything is computed anew. To use what is there, run it "
            f"{'with' if decided else 'without'} decide again; to keep both, choose another "
            "directory with -o (in Python: out=…)",
            stacklevel=2,
        )


def _warn_of_other_networks(now: Provenance, store: Store) -> None:
    """Say for which models nothing of an earlier run is reused, as the network is another."""
    try:
        before = {model.subject: model.fingerprint for model in store.provenance().models}
    except HeatproofError:  # there was no run, or the file is damaged
        return
    others = [
        facts.subject.title
        for facts in now.models
        if before.get(facts.subject, facts.fingerprint) != facts.fingerprint
    ]
    if others:
        warnings.warn(
            f"{join_limited(others)}: everything is computed anew, as the network of this name in "
            f"{store.root} has other weights, preprocessing or code (for file: names also another "
            "place of the file)",
            stacklevel=2,
        )
