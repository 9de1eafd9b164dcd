"""Choose an engine by name: ``local`` computes in this process, ``dask`` on workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from heatproof.errors import HeatproofError, unknown
from heatproof.execute.runner import OpenTask, Watcher, execute
from heatproof.plan.spec import Spec
from heatproof.plan.tasks import Plan
from heatproof.runs.store import Store

ENGINES = ("local", "dask")


@dataclass(frozen=True)
class Engine:
    """Computes the tasks of a run.

    Attributes:
        execute: Computes what a run directory does not have yet, and tells a watcher.
        threads: Threads of every process that computes, on which the last bits of results depend;
            None for those that torch has in this process.
    """

    execute: Callable[[Plan, Store, Watcher, Sequence[OpenTask]], None]
    threads: int | None = None


LOCAL = Engine(execute)


@dataclass(frozen=True)
class EngineOptions:
    """Which engine computes a run, and on what.

    Attributes:
        engine: ``local``, this process, or ``dask``, the workers of a Dask cluster.
        workers: Number of single-threaded worker processes on this machine; by default one per
            core, or one per GPU.
        address: Address of a running Dask scheduler, such as ``tcp://10.0.0.1:8786``.
        cluster: A YAML file that names a class of cluster and its arguments.
        gpus: GPUs that every worker on this machine has to itself: 0 or 1.
        threads: Threads of every worker, by default 1. Results of other numbers of threads may
            differ in their last bits.
        dashboard: Whether the workers on this machine get Dask's dashboard, which any user of this
            machine can see.
        insecure: Whether the user knows that a cluster without TLS runs the code of whoever
            reaches it; silences the warning.
    """

    engine: str = "local"
    workers: int | None = None
    address: str | None = None
    cluster: str | Path | None = None
    gpus: int | None = None
    threads: int | None = None
    dashboard: bool | None = None
    insecure: bool | None = None

    def check(self) -> None:
        """Raise HeatproofError if the options do not go together."""
        if self.engine not in ENGINES:
            raise unknown("engine", self.engine, list(ENGINES))
        names = [field.name for field in fields(self) if field.name != "engine"]
        given = [name for name in names if getattr(self, name) is not None]
        if given and self.engine == "local":
            raise HeatproofError(
                f"{' and '.join(given)} {'goes' if len(given) == 1 else 'go'} with the engine "
                "dask: --engine dask --workers 2 (in Python: engine='dask', workers=2)"
            )
        places = [name for name in given if name in ("workers", "address", "cluster")]
        if len(places) > 1:
            raise HeatproofError(
                f"{' and '.join(places)} are different places to compute; give one of them"
            )
        if self.gpus is not None and places not in ([], ["workers"]):
            raise HeatproofError(
                f"gpus goes with workers, which are started on this machine; {places[0]} decides "
                "itself which GPU a worker has"
            )
        if self.dashboard is not None and places not in ([], ["workers"]):
            raise HeatproofError(
                f"dashboard goes with workers, which are started on this machine; {places[0]} "
                "decides itself whether there is one"
            )
        for name in ("workers", "threads"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise HeatproofError(f"{name} must be at least 1; got {number}")
        if self.gpus not in (None, 0, 1):
            raise HeatproofError(
                f"gpus is 0 or 1, since a task computes on one GPU; got {self.gpus}. Start more "
                "workers to use more GPUs: --workers 4 --gpus 1"
            )


def make_engine(options: EngineOptions, spec: Spec, device: str = "auto") -> Engine:
    """Return what computes a run.

    Args:
        options: The engine and its settings.
        spec: The spec, which workers open themselves.
        device: Device that workers load models to.

    Raises:
        HeatproofError: If the options do not go together, or Dask is not installed.
    """
    options.check()
    if options.engine == "local":
        return LOCAL
    from heatproof.execute.engines.client import DaskEngine

    threads = options.threads or 1
    return Engine(DaskEngine(options, spec, device, threads), threads)
