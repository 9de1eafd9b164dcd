"""Progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from heatproof.bench.cost import plan_cost
from heatproof.cli.terminal import console

if TYPE_CHECKING:
    from heatproof.bench.plan import Plan, Task
    from heatproof.training.finetune import Step

BACKWARD = 3  # cost of a backward pass, with its forward pass, in forward passes


@contextmanager
def run_progress(plan: Plan) -> Iterator[Callable[[Task, bool], None]]:
    """Show a bar for a run that follows single passes, not only complete tasks."""
    models = list({id(task.model): task.model for task in plan.tasks}.values())
    before = [model.pass_counts.copy() for model in models]
    images = sum(len(task.indices) for task in plan.tasks)
    total = sum(c.forwards + BACKWARD * c.backwards for c in plan_cost(plan).values())
    reused = 0.0
    done = 0

    def passed() -> float:
        spent = [model.pass_counts - b for model, b in zip(models, before, strict=True)]
        return sum(s["forward"] + BACKWARD * s["backward"] for s in spent)

    class Passes(TextColumn):
        def render(self, task: Any) -> Any:
            bar.update(task.id, completed=min(total, reused + passed()))
            speed = images * (passed() / total) / task.elapsed if task.elapsed and total else 0
            task.fields["speed"] = f"{speed:.1f} images/s"
            return super().render(task)

    bar = _bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        Passes("{task.fields[speed]}"),
    )
    with bar:
        run_bar = bar.add_task(f"task 0/{len(plan.tasks)}", total=total, speed="")

        def advance(task: Task, was_stored: bool) -> None:
            nonlocal reused, done
            done += 1
            if was_stored:
                reused += total * len(task.indices) / images
            bar.update(run_bar, description=f"task {done}/{len(plan.tasks)}")

        yield advance
        bar.update(run_bar, completed=total)


@contextmanager
def preparation_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show one bar for each model that is trained before a run."""
    with _bar(TextColumn("{task.description}"), BarColumn()) as bar:
        bars: dict[str, TaskID] = {}

        def advance(description: str, done: int, total: int) -> None:
            if description not in bars:
                bars[description] = bar.add_task(description, total=total)
            bar.update(bars[description], completed=done)

        yield advance


@contextmanager
def step_progress() -> Iterator[Callable[[int, int, float], None]]:
    """Show a bar of training steps with the loss, from the first step on."""
    bar = _bar(
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
    )
    with bar:

        def advance(step: int, total: int, loss: float) -> None:
            if not bar.task_ids:
                bar.add_task("", total=total, loss=loss)
            bar.update(bar.task_ids[0], completed=step, loss=loss)

        yield advance


@contextmanager
def finetune_progress() -> Iterator[Callable[[Step], None]]:
    """Show a bar of a fine-tuning with speed and loss."""
    bar = _bar(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
    with bar:
        run_bar = bar.add_task("validating the original model", total=None, status="")

        def advance(step: Step) -> None:
            speed = bar.tasks[0].speed
            status = f"loss {step.loss:.3f}"
            if speed:
                status = f"{speed:.0f} images/s, {status}"
            bar.update(
                run_bar,
                description=f"epoch {step.epoch}/{step.epochs}",
                completed=step.images,
                total=step.total,
                status=status,
            )

        yield advance


def _bar(*columns: ProgressColumn) -> Progress:
    return Progress(
        *columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console
    )
