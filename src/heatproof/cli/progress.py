"""Progress of trainings, shown like that of runs, and of what takes long before a run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from heatproof.execute.progress import LINE_SECONDS, Meter, clock

if TYPE_CHECKING:
    from heatproof.training.finetune import Step


@contextmanager
def preparation_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show how far each model is that is trained, or whose backends are tried, before a run."""
    with ExitStack() as stack:
        meters: dict[str, Meter] = {}

        def advance(description: str, done: int, total: int) -> None:
            if description not in meters:
                stack.close()  # the one before is finished
                meters[description] = stack.enter_context(Meter(description))
            meters[description].update(done, total, f"{done}/{total}")

        yield advance


@contextmanager
def still_working(title: str) -> Iterator[None]:
    """Say now and then that something goes on whose end cannot be foreseen."""
    finished = threading.Event()
    begin = time.monotonic()

    def follow() -> None:
        while not finished.wait(LINE_SECONDS):
            print(f"{title}: {clock(time.monotonic() - begin)} elapsed", file=sys.stderr)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


@contextmanager
def step_progress() -> Iterator[Callable[[int, int, float], None]]:
    """Show training steps with the loss, from the first step on."""
    with Meter("training") as meter:

        def advance(step: int, total: int, loss: float) -> None:
            meter.update(step, total, f"step {step}/{total}, loss {loss:.3f}")

        yield advance


@contextmanager
def finetune_progress() -> Iterator[Callable[[Step], None]]:
    """Show how far a fine-tuning is, with the loss."""
    with Meter("fine-tuning") as meter:

        def advance(step: Step) -> None:
            status = f"epoch {step.epoch}/{step.epochs}, loss {step.loss:.3f}"
            meter.update(step.images, step.total, status)

        yield advance
