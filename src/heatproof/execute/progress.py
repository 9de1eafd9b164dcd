"""How far a run or a training is: a bar in a terminal or notebook, else a line now and then."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import IO, Any

from heatproof.execute.runner import Callback, OpenTask, Progress, Watcher
from heatproof.models.model import Model
from heatproof.plan.cost import cost_memo, preparation_cost
from heatproof.plan.speed import FORWARDS_PER_BACKWARD, in_forwards
from heatproof.plan.tasks import Plan, Task
from heatproof.text import counted

LINE_SECONDS = 10.0  # between two lines
BAR_SECONDS = 0.5  # between two updates of a bar in a notebook
BAR_WIDTH = 30
OPEN_FRACTION = 0.99  # of a task, at most, as long as it is not finished

ProgressLike = bool | Progress | Watcher | None


class Meter:
    """Shows how far something is; a context manager.

    Args:
        title: What is going on, such as ``run``.
        stream: Where it is shown; by default standard error.

    Attributes:
        done: The amount that is done, of ``total``.
        total: The total amount; 0 if it is unknown.
        reused: The part of it that was done before, which took no time now.
        status: Text to add, such as ``task 3/12``.
        is_behind: Whether what is counted is done, but not all of it: the rest is unknown.
    """

    def __init__(self, title: str, stream: IO[str] | None = None):
        self.title = title
        self.done = 0.0
        self.total = 0.0
        self.reused = 0.0
        self.status = ""
        self.is_behind = False
        self.measure: Callable[[], None] = _nothing  # called before anything is shown
        self._stream = stream or sys.stderr
        self._begin = time.monotonic()
        self._stopped = threading.Event()
        self._shown = ""
        self._display: _Display = _display(self._stream)
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Meter:
        self._begin = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()
        if self.total:
            self.measure()
            self.measure = _nothing
            if kind is None:
                self.done = self.total
            self.show()
        self._display.close()

    def update(self, done: float, total: float, status: str = "") -> None:
        """Set how far it is. The first update is shown at once."""
        first = not self.total
        self.done = done
        self.total = total
        self.status = status
        if first:
            self.show()

    def show(self) -> None:
        """Show the present state."""
        self.measure()
        text = self.text()
        if text != self._shown:
            self._shown = text
            self._display.show(text, self.done / self.total if self.total else 0.0)

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._display.note(text)

    def text(self) -> str:
        """Return the present state, such as ``run: 40 %, task 3/12, 0:20 elapsed, 0:30 left``."""
        elapsed = time.monotonic() - self._begin
        parts = []
        if self.total:
            percent = int(100 * min(1.0, self.done / self.total))  # 100 only at the end
            parts.append(f"{percent} %")
        parts += [self.status] if self.status else []
        parts.append(f"{clock(elapsed)} elapsed")
        made = self.done - self.reused
        if made > 0 and self.done < self.total and not self.is_behind:
            parts.append(f"about {clock(elapsed * (self.total - self.done) / made)} left")
        return f"{self.title}: {', '.join(parts)}"

    def _follow(self) -> None:
        while not self._stopped.wait(self._display.interval):
            if self.total:
                self.show()


def _nothing() -> None:
    pass


class _Display:
    """Prints lines."""

    interval = LINE_SECONDS

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def show(self, text: str, fraction: float) -> None:
        print(text, file=self._stream, flush=True)

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """End the display."""


class _Terminal(_Display):
    """Shows a bar in the last line of a terminal."""

    interval = BAR_SECONDS

    def __init__(self, stream: IO[str]):
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        super().__init__(stream)
        console = Console(file=stream)
        self._bar = Bar(BarColumn(BAR_WIDTH), TextColumn("{task.description}"), console=console)
        self._task = self._bar.add_task("", total=1.0)

    def show(self, text: str, fraction: float) -> None:
        self._bar.start()
        self._bar.update(self._task, completed=fraction, description=text.replace("[", r"\["))

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._bar.stop()


class _Notebook(_Display):
    """Shows a bar in the output of a notebook's cell."""

    interval = BAR_SECONDS

    def __init__(self, stream: IO[str]):
        super().__init__(stream)
        self._handle: Any = None

    def show(self, text: str, fraction: float) -> None:
        from IPython.display import display

        filled = round(BAR_WIDTH * min(1.0, fraction))
        content = {"text/plain": f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {text}"}
        if self._handle is None:
            self._handle = display(  # type: ignore[no-untyped-call]
                content, raw=True, display_id=True
            )
        else:
            self._handle.update(content, raw=True)


def _display(stream: IO[str]) -> _Display:
    if _in_notebook():
        return _Notebook(stream)
    return _Terminal(stream) if stream.isatty() else _Display(stream)


def _in_notebook() -> bool:
    """Return whether the code runs in a cell of a notebook."""
    if "IPython" not in sys.modules or importlib.util.find_spec("ipykernel") is None:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


def clock(seconds: float) -> str:
    """Format a duration as ``m:ss`` or ``h:mm:ss``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def passes_made(model: Model, counts: Counter[str] | None = None) -> float:
    """Return how many forward passes of a model take as long as some passes.

    Args:
        model: The model.
        counts: Images by kind of pass; by default those that the model has made so far.
    """
    return in_forwards(model, (model.pass_counts if counts is None else counts).copy())


class RunWatcher(Watcher):
    """Shows how far a run is, from the passes it makes, not only from finished tasks."""

    def __init__(self, meter: Meter):
        self._meter = meter
        self._meter.measure = self._measure
        self._weights: dict[str, float] = {}  # of the tasks that are to be computed
        self._open: list[Task] = []
        self._tasks = 0
        self._finished = 0
        self._reused = 0
        self._computed = 0.0
        self._before = 0.0
        self._elsewhere: dict[str, float] = {}  # passes that other processes have made, by task

    def begin(self, plan: Plan, open_tasks: Sequence[OpenTask]) -> None:
        self._tasks = len(plan.tasks)
        self._open = [entry.task for entry in open_tasks]
        cost_of = cost_memo()

        def weight(task: Task) -> float:
            return len(task.indices) * in_forwards(task.model, cost_of(task))

        begun = {task.subject for task in plan.tasks if task not in self._open}
        for task, missing in open_tasks:
            self._weights[task.name] = weight(replace(task, records=missing))
            if task.reference and task.subject not in begun:
                forward, backward = preparation_cost(replace(task, records=missing))
                self._weights[task.name] += forward + FORWARDS_PER_BACKWARD * backward
                begun.add(task.subject)
        open_weight = sum(self._weights.values())
        total = max(open_weight, sum(map(weight, plan.tasks))) or 1.0
        self._computed = total - open_weight
        self._finished = self._tasks - len(open_tasks)
        reused = f", {self._finished} of them finished before" if self._finished else ""
        status = f"{counted(self._tasks, 'task')}{reused}"
        if open_tasks:
            self._before = self._passed()
            self._meter.reused = self._computed
            self._meter.update(self._computed, total, status)
        else:
            tasks = counted(self._tasks, "task")
            self._meter.note(f"run: nothing to compute, {tasks} finished before")

    def finish(self, task: Task, reused: bool) -> None:
        if reused:
            return
        self._finished += 1
        self._computed += self._weights[task.name]
        self._open.remove(task)
        self._elsewhere.pop(task.name, None)
        self._before = self._passed()

    def resume(self, task: Task, passes: Counter[str]) -> None:
        passed = min(passes_made(task.model, passes), OPEN_FRACTION * self._weights[task.name])
        self._before = self._passed() - passed
        self._meter.reused += passed

    def advance(self, task: Task, passed: float, kept: float) -> None:
        if task not in self._open:
            return
        if task.name not in self._elsewhere:
            self._meter.reused += min(kept, OPEN_FRACTION * self._weights[task.name])
        self._elsewhere[task.name] = passed

    def note(self, text: str) -> None:
        self._meter.note(text)

    def _passed(self) -> float:
        """Return the passes of the task that is computed now, in forward passes."""
        if not self._open:
            return 0.0
        return passes_made(self._open[0].model)

    def _measure(self) -> None:
        if not self._open:
            self._meter.done = self._meter.total
            self._meter.status = f"task {self._tasks}/{self._tasks}"
            return
        here = {self._open[0].name: max(0.0, self._passed() - self._before)}
        passed = dict(self._elsewhere) or here
        limits = {name: OPEN_FRACTION * self._weights[name] for name in passed}
        made = sum(min(limits[name], passes) for name, passes in passed.items())
        self._meter.done = self._computed + made
        self._meter.is_behind = all(passes > limits[name] for name, passes in passed.items())
        if self._meter.done > self._meter.reused:
            behind = ", beyond the passes that were counted" if self._meter.is_behind else ""
            self._meter.status = f"task {self._finished + 1}/{self._tasks}{behind}"


@contextmanager
def shown(progress: ProgressLike) -> Iterator[Watcher]:
    """Return what follows a run, as ``hp.run`` and ``hp.evaluate`` are told.

    Args:
        progress: True shows a bar, or lines where there is no terminal; False or None nothing; a
            function is called after every task, with the task and whether it was finished before.
    """
    if progress is True:
        with Meter("run") as meter:
            yield RunWatcher(meter)
    elif isinstance(progress, Watcher):
        yield progress
    else:
        yield Callback(progress) if progress else Watcher()
