"""The cluster of a run: workers on this machine, a running scheduler, or a class in a YAML file.

Whoever can connect to a scheduler of Dask can run code in its workers and in the client. So a
cluster that heatproof starts on this machine listens on the loopback interface alone, and admits
only processes that have its certificate, which exists in memory.

Workers import this module when they start, so it imports nothing heavy.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from heatproof.execute.engines.base import EngineOptions

CONNECT_SECONDS = 20
CLUSTER_MODULES = ("dask_jobqueue", "dask_kubernetes.operator", "dask_cuda", "distributed")
EXAMPLE = "class: SLURMCluster, cores: 1, memory: 8GB, jobs: 8"
LOOPBACK = "127.0.0.1"
PRIVATE_PROTOCOLS = ("tls://", "wss://", "inproc://")  # encrypted, or within one process
# A worker sends a sign of life every half second, and the scheduler looks as often as this for
# workers that have sent none for this long.
HANGING = {"distributed.scheduler.worker-ttl": "20s"}
# The web servers that Dask starts in any case have nothing to say.
NO_PAGES: dict[str, list[str]] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


def require_dask() -> None:
    """Raise HeatproofError if Dask is not installed."""
    for name in ("distributed", "cryptography"):
        if importlib.util.find_spec(name) is None:
            raise HeatproofError(
                f"the engine dask is not installed, since there is no package {name}: "
                'pip install "heatproof[dask]"'
            )


@contextmanager
def connected(options: EngineOptions, note: Callable[[str], None]) -> Iterator[Any]:
    """Start or find a cluster, and stop what was started at the end.

    Args:
        options: Where to compute.
        note: Called with lines for the user.

    Yields:
        The client of Dask.

    Raises:
        HeatproofError: If there is no scheduler at the address, or the cluster cannot be started.
    """
    import dask
    from distributed import Client

    if options.address is not None:
        client = _find_scheduler(options.address)
        cluster = None
    else:
        with dask.config.set(HANGING):
            cluster = _read_cluster(Path(options.cluster)) if options.cluster else _local(options)
        client = Client(cluster, timeout=CONNECT_SECONDS, set_as_default=False)
    try:
        _warn_if_open(client.scheduler.address, options)
        if options.address is None and options.cluster is None:
            client.register_plugin(_local_plugin(options))
        if link := dashboard(client):
            note(f"dashboard: {link}")
        yield client
    finally:
        with _silenced():
            client.close(timeout=5)
            if cluster is not None:
                cluster.close(timeout=10)


def _find_scheduler(address: str) -> Any:
    """Return a client of the scheduler at an address."""
    from distributed import Client

    try:
        return Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except TypeError as error:  # a TLS address without certificates
        raise HeatproofError(
            f"the scheduler at {address} needs certificates; say where they are, such as "
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE=ca.pem "
            "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT=client.pem"
        ) from error
    except (OSError, ValueError) as error:
        raise HeatproofError(
            f"there is no Dask scheduler at {address} ({str(error).splitlines()[0]}), or it does "
            "not admit this process; start one with: dask scheduler"
        ) from error


def _warn_if_open(address: str, options: EngineOptions) -> None:
    """Warn if the connection to a scheduler is not encrypted, unless the user knows it."""
    if not address.startswith(PRIVATE_PROTOCOLS) and not options.insecure:
        warnings.warn(
            f"the connections of the Dask cluster at {address} are not encrypted: whoever can "
            "reach them can run code in the workers and in this process. Use TLS, as "
            "docs/cluster-security.md shows, or --insecure (insecure=True) if only you reach this "
            "network",
            stacklevel=2,
        )


def dashboard(client: Any) -> str:
    """Return the address of the scheduler's dashboard; empty if it has none."""
    with suppress(Exception):
        services = client.scheduler_info().get("services", {})
        has_pages = options_known() and services.get("dashboard")
        return str(client.dashboard_link or "") if has_pages else ""
    return ""


def options_known() -> bool:
    """Return whether the dashboard has pages, which bokeh draws."""
    return importlib.util.find_spec("bokeh") is not None


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep Dask from reporting connections that end because everything ends."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _local(options: EngineOptions) -> Any:
    """Start single-threaded worker processes on this machine, for this process alone."""
    import dask
    from distributed import LocalCluster
    from distributed.security import Security

    count = options.workers or os.cpu_count() or 1
    kind: Any = LocalCluster
    if options.gpus:
        count = len(_chosen_gpus(options.workers))
        if importlib.util.find_spec("dask_cuda") is not None:
            from dask_cuda import LocalCUDACluster

            kind = LocalCUDACluster
    arguments = (
        {}
        if kind is not LocalCluster
        else {
            "processes": True,
            "memory_limit": 0,  # as in a local run: batch_size bounds the memory
        }
    )
    with dask.config.set({} if options.dashboard else NO_PAGES):
        return kind(
            n_workers=count,
            threads_per_worker=1,
            host=LOOPBACK,
            protocol="tls://",
            security=Security.temporary(),
            dashboard_address=f"{LOOPBACK}:0",  # any free port
            scheduler_kwargs={"dashboard": bool(options.dashboard)},
            silence_logs=logging.CRITICAL,
            **arguments,
        )


def _chosen_gpus(workers: int | None) -> list[str]:
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return choose_gpus(workers, torch.cuda.device_count(), visible)


def choose_gpus(workers: int | None, count: int, visible: str | None) -> list[str]:
    """Return the value of ``CUDA_VISIBLE_DEVICES`` of each worker.

    Args:
        workers: Number of workers; None for one per GPU.
        count: Number of GPUs that this process sees.
        visible: This process's own ``CUDA_VISIBLE_DEVICES``.

    Raises:
        HeatproofError: If there are fewer GPUs than workers.
    """
    names = visible.split(",")[:count] if visible else [str(i) for i in range(count)]
    wanted = count if workers is None else workers
    if not names or wanted > len(names):
        raise HeatproofError(
            f"{wanted or 1} workers with one GPU each need as many GPUs; PyTorch sees {count}. "
            "Start fewer workers, or leave out --gpus"
        )
    return names[:wanted]


def _local_plugin(options: EngineOptions) -> Any:
    from distributed import WorkerPlugin

    gpus = _chosen_gpus(options.workers) if options.gpus else []

    class LocalWorker(WorkerPlugin):
        """Prepares a worker process on this machine, also one that is started later."""

        name = "heatproof-local"

        def setup(self, worker: Any) -> None:
            prepare_worker(worker.name, gpus)

    return LocalWorker()


def prepare_worker(number: object, gpus: Sequence[str]) -> None:
    """Give a worker its GPU, and leave Ctrl-C to the client, which stops workers in order."""
    if gpus and isinstance(number, int):
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _read_cluster(path: Path) -> Any:
    """Start the cluster that a YAML file describes."""
    from heatproof.plan.yaml_reader import parse_yaml, read_text

    if not path.is_file():
        raise HeatproofError(f"there is no file {path.absolute()}; it would hold: {EXAMPLE}")
    content = parse_yaml(read_text(path), str(path))
    if not isinstance(content, dict) or not isinstance(content.get("class"), str):
        raise HeatproofError(f"{path} names no class of cluster; write, for example: {EXAMPLE}")
    arguments = dict(content)
    kind = find_cluster(arguments.pop("class"), str(path))
    jobs = arguments.pop("jobs", None)
    workers = arguments.pop("workers", None)
    try:
        cluster = kind(**arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise HeatproofError(f"{path}: {content['class']} cannot be started: {error}") from error
    if jobs is not None:
        cluster.scale(jobs=jobs)
    elif workers is not None:
        cluster.scale(workers)
    return cluster


def find_cluster(name: str, source: str) -> Callable[..., Any]:
    """Return a class of cluster by its name, such as ``SLURMCluster``, or by its dotted path.

    Raises:
        HeatproofError: If its package is not installed, or has no such class.
    """
    module, _, attribute = name.rpartition(".")
    for candidate in [module] if module else CLUSTER_MODULES:
        try:
            found = getattr(importlib.import_module(candidate), attribute, None)
        except ImportError:
            continue
        if found is not None:
            return found
    packages = module or "dask-jobqueue (Slurm, PBS, LSF, SGE), dask-kubernetes or dask-cuda"
    raise HeatproofError(
        f"{source}: there is no class of cluster {name} in {sys.prefix}; it needs {packages}: "
        "pip install dask-jobqueue"
    )
