"""Which backend computes the passes of a run: the fastest one that agrees with the network.

``backend: auto`` measures the backends that are installed, each with the same few images of the
run, and keeps the result in ``$HEATPROOF_CACHE/backends``. A run that has begun keeps its backend.
Whether anything is measured depends on the amount of work alone, not on the clock, so that short
runs choose the same everywhere.

A lower ``precision`` is measured in the same way, on images of the run, and refused where it
changes results, unless the spec says ``approximate: true``. Results state what was measured.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from heatproof.data.catalog import load_batch
from heatproof.errors import HeatproofError, format_error
from heatproof.files import atomic_write, content_hash
from heatproof.models import backends
from heatproof.models.backends import AUTO, EAGER, LOWER, OUTPUT_TOLERANCE, SINGLE
from heatproof.models.cache_dir import home
from heatproof.models.model import Model
from heatproof.plan.cost import task_cost
from heatproof.plan.open_models import TrainingProgress
from heatproof.plan.speed import machine_key, probe
from heatproof.plan.tasks import Task
from heatproof.protocols.single_deletion import patch_drops
from heatproof.runs.format import ModelView
from heatproof.runs.store import Store
from heatproof.tensor.rank import spearman
from heatproof.text import counted

MEASUREMENT_VERSION = 1
MEASURED_FROM_OPERATIONS = 5e12  # 600 passes of a ResNet-50, a minute on two cores
COMPILED_FROM_OPERATIONS = 1e14  # `compile` takes up to half a minute: twenty minutes on two cores
GPU_FACTOR = 50  # how much more work a GPU does in the same time
LEAST_CORRELATION_WITH_EAGER = 0.999  # of the ranks of all patches by their drops
MOST_OF_EAGER_TIME = 0.9  # a backend that takes more is not worth it
LARGE_BATCH_OPERATIONS = 5e10  # of larger batches a part is measured
MEASURED_IMAGES = 8


class Trial(BaseModel):
    """Measurements of one backend.

    Attributes:
        seconds: Time per image; None if the backend cannot be used.
        difference: Largest difference from eager's logits, as a fraction of their range.
        correlation: Rank correlation of the drops of all patches with eager's; None where they have
            no order.
        refusal: Why the backend cannot be used; empty if it can.
    """

    model_config = ConfigDict(extra="ignore")

    seconds: float | None = None
    difference: float = 0.0
    correlation: float | None = None
    refusal: str = ""


class Trials(BaseModel):
    """Measurements of the backends of one network."""

    model_config = ConfigDict(extra="ignore")

    of: dict[str, Trial] = {}


class Choice(NamedTuple):
    """A backend, and why it was chosen."""

    backend: str
    reason: str


Choices = Mapping[ModelView, Choice]


def choices_of(root: Path | None) -> Choices:
    """Return the backends that a run directory was begun with, by model view.

    Args:
        root: The directory, which need not exist.
    """
    if root is None or not (store := Store(root)).paths.provenance.is_file():
        return {}
    with suppress(HeatproofError):  # damaged: the run is going to say so
        facts = store.provenance().models
        return {fact.subject: Choice(fact.backend, fact.backend_reason) for fact in facts}
    return {}


def choose(
    task: Task,
    batch_size: int,
    weights: str,
    begun: Choices,
    measure: bool,
    progress: TrainingProgress | None = None,
) -> Model:
    """Return the model of a task with a backend, where it is to be chosen.

    Args:
        task: All samples of a model view, with everything that is evaluated.
        batch_size: Images in one pass.
        weights: The fingerprint of the model.
        begun: The backends that the run was begun with.
        measure: Whether backends are measured. If not, those that nothing is known about are not
            chosen.
        progress: Called with (what is measured, backends done, backends in all).

    Raises:
        HeatproofError: If the backend that is named, or that the run was begun with, is not
            installed, or if a lower precision changes results that have to stay.
    """
    model = task.model
    if model.backend in LOWER:
        return _shortened(task, batch_size, begun.get(task.subject), measure, progress)
    if model.backend != AUTO:
        install = backends.missing(model.backend)
        if install:
            raise HeatproofError(f"the backend {model.backend} is not installed: {install}")
        return model
    before = begun.get(task.subject)
    if before is not None:
        _check_installed(before, task)
        return model.with_backend(*before)
    return model.with_backend(*_best(task, batch_size, weights, measure, progress))


def _shortened(
    task: Task,
    batch_size: int,
    before: Choice | None,
    measure: bool,
    progress: TrainingProgress | None,
) -> Model:
    """Return a model of a lower precision, which says by how much its results differ."""
    model = task.model
    if before is not None and before.backend == model.backend and model.approximate:
        reason = before.reason
    elif measure:
        reason = _measured_precision(task, batch_size, progress)
    else:
        return model
    chosen = model.with_backend(model.backend, reason)
    measured = f"passes without gradients of {model.name} are in {model.backend}: {reason}"
    chosen.output_advice = "; ".join(filter(None, (model.output_advice, measured)))
    return chosen


def _measured_precision(task: Task, batch_size: int, progress: TrainingProgress | None) -> str:
    """Compare logits and drops in a lower precision with those of the network, in a sentence."""
    model = task.model
    count = min(max(MEASURED_IMAGES, _samples(batch_size)), len(task.data.ids))
    x = load_batch(task.data, range(count), model).x
    if not len(x):
        raise HeatproofError(f"{model.name}: no image could be read to try {model.backend}")
    trial = _measure(model, x, batch_size, [model.backend], progress)[model.backend]
    if trial.seconds is None:
        raise HeatproofError(trial.refusal)
    if trial.refusal and not (model.approximate and math.isfinite(trial.difference)):
        raise HeatproofError(
            f"{model.name} cannot run in {model.backend}: {trial.refusal}. The precision {SINGLE} "
            "runs it; approximate: true accepts a difference, and results state it"
        )
    order = "the drops of patches have no order"
    if trial.correlation is not None:
        order = (
            f"the rank correlation of the drops of patches with those in {SINGLE} is "
            f"{trial.correlation:.4f}"
        )
    return (
        f"on {counted(len(x), 'image')} of this run its logits are off by up to "
        f"{trial.difference:.1e} of their range, and {order}"
    )


def _check_installed(before: Choice, task: Task) -> None:
    install = backends.missing(before.backend)
    if install:
        raise HeatproofError(
            f"{task.subject.title}: this run was begun with the backend {before.backend}, which is "
            f"not installed here; install it ({install}), or begin another run with -o (in Python: "
            "out=…)"
        )


def _best(
    task: Task, batch_size: int, weights: str, measure: bool, progress: TrainingProgress | None
) -> Choice:
    model = task.model
    if model.view:
        return Choice(EAGER, "grids are seen with gradients, which no other backend has")
    passes = task_cost(task)["forward"] * len(task.data.ids)
    operations = probe(model).operations
    scale = 1 if model.device.type == "cpu" else GPU_FACTOR
    work = passes * operations
    if work < scale * MEASURED_FROM_OPERATIONS:
        return Choice(EAGER, f"{passes:,} forward passes take no longer than to try others")
    names = [name for name in backends.NAMES if name != EAGER and not backends.missing(name)]
    if model.device.type != "cpu":
        names.remove("openvino")
    if work < scale * COMPILED_FROM_OPERATIONS:
        names.remove("compile")
    rows = (
        batch_size
        if batch_size * operations <= LARGE_BATCH_OPERATIONS
        else min(MEASURED_IMAGES, batch_size)
    )
    path = _path(model, weights, rows)
    trials = _read(path)
    if measure and not {EAGER, *names} <= set(trials.of):
        x = load_batch(task.data, range(min(_samples(rows), len(task.data.ids))), model).x
        if not len(x):
            return Choice(EAGER, "no image could be read to try others")
        trials = Trials(of=trials.of | _measure(model, x, rows, names, progress))
        with suppress(OSError):  # a cache that cannot be written is no reason to stop
            atomic_write(path, trials.model_dump_json(indent=1).encode())
    return _decide({name: trials.of[name] for name in (EAGER, *names) if name in trials.of})


def _decide(trials: Mapping[str, Trial]) -> Choice:
    """Return the fastest backend that can be used, and how fast the others are."""
    seconds = {name: t.seconds for name, t in trials.items() if t.seconds and not t.refusal}
    if EAGER not in seconds:
        return Choice(EAGER, "others have not been tried")
    fastest = min(seconds, key=seconds.__getitem__)
    if seconds[fastest] > MOST_OF_EAGER_TIME * seconds[EAGER]:
        fastest = EAGER
    ordered = sorted(seconds, key=seconds.__getitem__)
    speeds = ", ".join(f"{name} {1 / seconds[name]:.3g}" for name in ordered)
    refused = [f"{name} was refused: {t.refusal}" for name, t in trials.items() if t.refusal]
    return Choice(fastest, "; ".join([f"passes per second: {speeds}", *refused]))


def _samples(rows: int) -> int:
    """Return the number of images whose patches fill a few batches."""
    return max(2, rows // 8)


def _path(model: Model, weights: str, rows: int) -> Path:
    versions = [backends.library_version(name) for name in backends.NAMES]
    key = [
        MEASUREMENT_VERSION,
        machine_key(model.device),
        versions,
        weights,
        model.size,
        str(model.dtype),
    ]
    return home() / "backends" / f"{content_hash(json.dumps([*key, rows]), length=24)}.json"


def _read(path: Path) -> Trials:
    with suppress(OSError, ValidationError):
        return Trials.model_validate_json(path.read_bytes())
    return Trials()


def _measure(
    model: Model,
    x: Tensor,
    rows: int,
    names: list[str],
    progress: TrainingProgress | None = None,
) -> dict[str, Trial]:
    """Compute logits and the drops of patches by each backend, and time it."""
    patches = next((n * n for n in (4, 3, 5, 2) if not model.height % n and not model.width % n), 0)
    images = len(x) * (1 + patches)

    def show(done: int) -> None:
        if progress is not None:
            progress(f"trying backends for {model.name}, once", done, 1 + len(names))

    def passed(backend: str) -> tuple[Tensor, Tensor, float]:
        seen = model.with_backend(backend).with_batch_size(rows)
        seen.pass_counts = seen.pass_counts.copy()  # those of a run are its own
        with seen.passes.batches_of(rows):
            seen.logits(x[:1])  # makes the backend, and warms up
            begin = time.perf_counter()
            logits = seen.logits(x)
            target = logits.argmax(1) if eager is None else eager[0].argmax(1)
            drops = logits[:, :0]
            if patches:
                drops = patch_drops(seen, x, target, patches, clean=logits)
            return logits, drops, (time.perf_counter() - begin) / images

    eager: tuple[Tensor, Tensor, float] | None = None
    show(0)
    eager = passed(EAGER)
    trials = {EAGER: Trial(seconds=eager[2])}
    for name in names:
        show(len(trials))
        try:
            trials[name] = _compared(eager, passed(name))
        except Exception as error:  # a library may raise anything for a network it cannot run
            known = isinstance(error, HeatproofError)
            trials[name] = Trial(refusal=str(error) if known else format_error(error))
    show(len(trials))
    return trials


def _compared(eager: tuple[Tensor, Tensor, float], other: tuple[Tensor, Tensor, float]) -> Trial:
    """Compare the logits and drops of a backend with those of the network itself."""
    width = (eager[0].max() - eager[0].min()).clamp(min=1e-30)
    difference = float((other[0] - eager[0]).abs().max() / width)
    rho = float(spearman(other[1].reshape(1, -1), eager[1].reshape(1, -1)))
    correlation = None if math.isnan(rho) else rho  # the drops have no order
    refusal = ""
    if not difference <= OUTPUT_TOLERANCE:
        refusal = f"its logits differ by {difference:.0e} of their range"
    elif correlation is not None and correlation < LEAST_CORRELATION_WITH_EAGER:
        refusal = f"its drops of patches have a rank correlation of {correlation:.4f} with eager's"
    return Trial(seconds=other[2], difference=difference, correlation=correlation, refusal=refusal)
