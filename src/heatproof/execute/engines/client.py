"""The engine ``dask``: the client sends tasks to workers, which write to the run directory."""

from __future__ import annotations

import queue
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from heatproof.errors import HeatproofError
from heatproof.execute.engines.base import EngineOptions
from heatproof.execute.engines.clusters import connected, require_dask
from heatproof.execute.engines.job import Job, Outcome, make_job, request
from heatproof.execute.engines.worker import TOPIC, compute_task, is_computing
from heatproof.execute.runner import OpenTask, Watcher, begin
from heatproof.plan.spec import Spec
from heatproof.plan.tasks import Plan, Task
from heatproof.runs.store import Store

TASKS_PER_WORKER = 2  # tasks per worker that the scheduler knows about
TASK_RETRIES = 2  # of a task that raised an error, such as a disk that was away for a moment
POLL_SECONDS = 1.0  # between two looks at which workers there are
GRACE_SECONDS = 20.0  # that workers have to write what they have computed
RESUME = "what is computed is kept, and the same command continues the run"


class DaskEngine:
    """Computes the tasks of a run on the workers of a Dask cluster.

    Args:
        options: Where to compute.
        spec: The spec, which every worker opens itself.
        device: Device that workers load models to.
        threads: Threads of every worker.

    Raises:
        HeatproofError: If Dask is not installed.
    """

    def __init__(self, options: EngineOptions, spec: Spec, device: str = "auto", threads: int = 1):
        require_dask()
        self._threads = threads
        self._options = options
        self._spec = spec
        self._device = device

    def __call__(
        self, plan: Plan, store: Store, watcher: Watcher, open_tasks: Sequence[OpenTask]
    ) -> None:
        """Compute what a run directory does not have yet.

        Args:
            plan: What to compute.
            store: The run directory, which this process has locked and which has the plan.
            watcher: Follows the run.
            open_tasks: The tasks that are not finished.

        Raises:
            HeatproofError: If a worker refuses a task, or the scheduler is lost.
        """
        begin(plan, open_tasks, watcher)
        tasks = [entry.task for entry in open_tasks]
        if not tasks:
            return
        job = make_job(self._spec, self._device, self._threads, store)
        with connected(self._options, watcher.note) as client:
            Dispatch(client, job, tasks, watcher).run()
        store.refresh()


class Dispatch:
    """Keeps the workers of a cluster busy with the tasks of a run.

    The scheduler knows about few tasks per worker at any time, so that its load does not depend on
    the size of the run; workers that join later get tasks within a second.
    """

    def __init__(self, client: Any, job: Job, tasks: Sequence[Task], watcher: Watcher):
        self._client = client
        self._job = job
        self._watcher = watcher
        self._waiting = [(number, task) for number, task in enumerate(tasks)][::-1]
        self._tasks = {task.name: task for task in tasks}
        self._sent: dict[Any, tuple[int, Task]] = {}  # by future
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._workers: set[str] | None = None
        self._noted: set[str] = set()
        self._lost = False  # the scheduler

    def run(self) -> None:
        """Compute all tasks; what is computed when an error is raised has been written."""
        with self._reported():
            try:
                while self._waiting or self._sent:
                    self._send()
                    with suppress(queue.Empty):
                        self._receive(self._done.get(timeout=POLL_SECONDS))
            except BaseException:  # also an interruption
                if not self._lost:
                    self._stop()
                raise

    def _send(self) -> None:
        workers = self._find_workers()
        while self._waiting and len(self._sent) < TASKS_PER_WORKER * len(workers):
            number, task = self._waiting.pop()
            future = self._client.submit(
                compute_task,
                self._job,
                request(task),
                key=f"heatproof-{task.name}-{time.monotonic_ns()}",
                pure=False,
                priority=-number,
                retries=TASK_RETRIES,
            )
            self._sent[future] = (number, task)
            future.add_done_callback(self._done.put)

    def _find_workers(self) -> set[str]:
        """Return the addresses of the workers, and tell the user when some are lost."""
        try:
            workers = set(self._client.nthreads())
        except Exception as error:
            raise self._lost_scheduler() from error
        before = self._workers
        if before is None and not workers:
            self._watcher.note("waiting for workers")
        for address in (before or set()) - workers:
            self._watcher.note(f"worker {address} was lost; another one repeats its task")
        self._workers = workers
        return workers

    def _receive(self, future: Any) -> None:
        """Take the outcome of a task."""
        from distributed import KilledWorker

        number, task = self._sent.pop(future)
        if future.status == "cancelled":
            raise self._lost_scheduler()
        if future.status == "error":
            error = future.exception()
            if isinstance(error, KilledWorker):
                raise HeatproofError(
                    f"several workers ended while they computed task {task.name} of "
                    f"{task.model_name}, probably for lack of memory; run it again with a smaller "
                    f"--batch-size. {RESUME.capitalize()}"
                ) from error
            raise error
        outcome: Outcome = future.result()
        if outcome.error:
            raise HeatproofError(outcome.error)
        for note in outcome.notes:
            if note not in self._noted:
                self._noted.add(note)
                warnings.warn(note, stacklevel=2)
        if outcome.stopped:  # its worker is closing
            self._waiting.append((number, task))
        else:
            self._watcher.finish(task, False)

    def _lost_scheduler(self) -> HeatproofError:
        self._lost = True
        address = self._client.scheduler.address if self._client.scheduler else "the cluster"
        return HeatproofError(f"the scheduler at {address} is lost; {RESUME}")

    def _stop(self) -> None:
        """Cancel what was sent, and let workers write what they have computed."""
        with suppress(Exception):
            self._client.cancel(list(self._sent), force=True)
            end = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < end:
                if not any(self._client.run(is_computing, on_error="ignore").values()):
                    return
                time.sleep(0.2)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Hear from workers how far their tasks are."""

        def advance(event: tuple[float, dict[str, Any]]) -> None:
            message = event[1]
            if task := self._tasks.get(message["task"]):
                self._watcher.advance(task, message["passed"], message["kept"])

        self._client.subscribe_topic(TOPIC, advance)
        try:
            yield
        finally:
            with suppress(Exception):
                self._client.unsubscribe_topic(TOPIC)
