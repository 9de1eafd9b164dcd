"""What a run will do: cells (the unit of record), grouped into tasks (the unit of work), and what they cost."""

from __future__ import annotations

import hashlib
import json
import resource
import secrets
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from heatproof.baselines import Baseline
from heatproof.data.base import Data, PartData, code_of
from heatproof.data.catalog import Batch, load_batch
from heatproof.data.reference import Reference, reference_for
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods import Expression, at_their_layers
from heatproof.methods.explain import check_applicable
from heatproof.models.model import Model
from heatproof.protocols import Protocol, View

SHARD = 64


@dataclass(frozen=True)
class Cell:
    """One (model, protocol setting, method, shard), keyed by everything that changes its numbers."""

    key: str
    protocol: Protocol
    expression: Expression
    not_applicable: str = ""

    @property
    def unrecognizable(self) -> bool:
        """Whether it runs user code that cannot be read, so that an edit would go unnoticed."""
        return "" in (*self.expression.sources, *self.protocol.sources)


@dataclass(frozen=True)
class Task:
    """One (model view, shard) with all its cells, which share passes."""

    name: str
    owner: str  # the model in the rows, whatever the view
    view: str  # "": the model and the data as they are
    model: Model
    data: Data
    indices: range
    cells: tuple[Cell, ...]
    reference: Reference | None = None  # where something needs one

    @property
    def title(self) -> str:
        return f"{self.owner}, {self.view}" if self.view else self.owner

    def load(self) -> Batch:
        """With what its protocols need."""
        with_parts = any("parts" in c.protocol.needs for c in self.cells if not c.not_applicable)
        return load_batch(self.data, self.indices, self.model, with_parts)


@dataclass(frozen=True)
class Plan:
    tasks: tuple[Task, ...]
    seed: int
    batch_size: int
    keep_maps: int

    def cost(self) -> dict[str, dict[str, int]]:
        """Per model and view: images, and passes an image may need. A backward includes its forward."""
        total: dict[str, dict[str, int]] = {}
        for task in self.tasks:
            forwards, backwards = task_cost(task)
            row = total.setdefault(task.title, {"images": 0, "forwards": 0, "backwards": 0})
            row["images"] += len(task.indices)
            row["forwards"] += forwards * len(task.indices)
            row["backwards"] += backwards * len(task.indices)
        for title, task in {t.title: t for t in self.tasks if t.reference}.items():
            forwards, backwards = _preparation(task)
            total[title]["forwards"] += forwards
            total[title]["backwards"] += backwards
        return total


def _preparation(task: Task) -> tuple[int, int]:
    """(forwards, backwards) before anything is judged."""
    live = [c for c in task.cells if not c.not_applicable]
    banks = {c.protocol.preparation_key for c in live if c.protocol.preparation_key}
    named = {
        name
        for c in live
        for name in (c.protocol.baseline_name, c.expression.arguments.get("baseline"))
        if isinstance(name, str) and name
    }
    costs = [Baseline.parse(name).preparation() for name in named]
    return len(banks) * len(task.reference.indices if task.reference else ()) + sum(
        f for f, _ in costs
    ), sum(b for _, b in costs)


def task_cost(task: Task) -> tuple[int, int]:
    """(forwards, backwards) an image through the whole network; what methods share is counted once, what starts at a later layer not."""
    live = [c for c in task.cells if not c.not_applicable]
    shared: dict[Hashable, int] = {}
    each: dict[Hashable, int] = {}
    again: dict[str, int] = {}  # how often a method explains anew, by its maps
    for cell in live:
        shared |= cell.protocol.shared_passes()
        each |= {(cell.expression.label, what): n for what, n in cell.protocol.passes().items()}
        again[cell.expression.map_key] = (
            again.get(cell.expression.map_key, 0) + cell.protocol.explanations()
        )
    forwards, backwards, drawn = 1 + sum(shared.values()) + sum(each.values()), 0, set[str]()
    expressions = {c.expression.map_key: c.expression for c in live}.values()
    layers = {e.map_key: task.model.layer_name(e.layer) for e in expressions}
    for expression in expressions:
        f, b = expression.cost_on(task.model) or (0, 0) if again[expression.map_key] else (0, 0)
        forwards, backwards = (
            forwards + again[expression.map_key] * f,
            backwards + again[expression.map_key] * b,
        )
        whole = layers[expression.map_key] == "input" or "image" in expression.entry.needs
        if (
            whole
            and not expression.shares_gradient
            and not (expression.drawn and expression.drawn in drawn)
        ):
            drawn.add(expression.drawn)
            f, b = expression.cost_on(task.model) or (0, 0)
            forwards, backwards = forwards + f, backwards + b
    watched = {layers[e.map_key] for e in expressions if e.shares_gradient}
    to_reach = set(layers.values()) - {"input"}
    if "input" in watched:
        backwards += len({e.arguments.get("score") for e in expressions if e.shares_gradient})
        to_reach -= watched
    return forwards + len(to_reach), backwards


def make_plan(
    models: Sequence[Model],
    data: Sequence[Data],
    expressions: Sequence[Expression],
    protocols: Sequence[Protocol],
    *,
    seed: int = 0,
    batch_size: int = 64,
    keep_maps: int = 64,
    references: Sequence[Data | None] | None = None,
) -> Plan:
    """Fixed blocks of 64 samples, so that a larger limit takes up what a smaller one has done."""
    tasks: list[Task] = []
    names = [m.name for m in models]
    if len(set(names)) != len(names):
        raise HeatproofError(
            f"two models are called {next(n for n in names if names.count(n) > 1)}; give one another name"
        )
    given = list(zip(models, data, strict=True))
    for original, originals in given:
        _check_data(originals, original)
    refusals = {(m.name, p.canonical): _refusal(p, m) for m in models for p in protocols}
    if all(refusals.values()):
        raise NotApplicable(
            "there is nothing to judge: " + "; ".join(dict.fromkeys(refusals.values()))
        )
    among = {
        p.canonical: [pair for pair in given if not refusals[pair[0].name, p.canonical]]
        for p in protocols
    }
    for (original, originals), told in zip(given, references or [None] * len(models), strict=True):
        refused = {p.canonical: refusals[original.name, p.canonical] for p in protocols}
        asked = at_their_layers(expressions, original)
        own: list[Task] = []
        for view, judges in _views_of(original, originals, protocols, refused, among):
            known = _reference(view, told, seed, asked, judges)
            common = [view.model.backend, seed, *_data_code(originals)]
            own += _tasks(original.name, view, judges, asked, known, refused, common)
        tasks += sorted(
            own, key=lambda task: task.indices.start
        )  # views of the same images after each other
    smallest = min(batch_size, *(len(t.data.ids) for t in tasks))
    return Plan(tuple(tasks), seed, smallest, keep_maps)


def _refusal(protocol: Protocol, model: Model) -> str:
    """Why a protocol is not defined for a model; "" where it is."""
    try:
        protocol.check(model)
    except NotApplicable as error:
        return str(error)
    return ""


def _views_of(
    model: Model,
    data: Data,
    protocols: Sequence[Protocol],
    refused: Mapping[str, str],
    among: Mapping[str, Sequence[tuple[Model, Data]]],
) -> list[tuple[View, list[Protocol]]]:
    """The views that are judged, each once, and by which protocols; one that is refused stands with the model as it is."""
    views: dict[str, View] = {}
    judges: dict[str, list[Protocol]] = {}
    for protocol in protocols:
        own = protocol.canonical
        for view in (
            [View("", model, data)] if refused[own] else protocol.views(model, data, among[own])
        ):
            views.setdefault(view.name, view)
            judges.setdefault(view.name, []).append(protocol)
    return [(views[name], judges[name]) for name in views]


def _tasks(
    owner: str,
    view: View,
    protocols: Sequence[Protocol],
    expressions: Sequence[Expression],
    reference: Reference | str,
    refused: Mapping[str, str],
    common: Sequence[Any],
) -> Iterator[Task]:
    model, data = view.model, view.data
    lacking = reference if isinstance(reference, str) else ""
    not_applicable = {
        e.canonical: (lacking if e.needs_reference else "")
        or _reason(e, model, data.has_silhouettes)
        for e in expressions
    }
    lacks = {
        "parts": ""
        if isinstance(data, PartData)
        else f"{data.name} has no parts; use paperbirds or funnybirds:…",
        "silhouette": ""
        if data.has_silhouettes
        else f"{data.name} does not tell which pixels matter; use watermark:… or paperbirds",
    }
    layers = {
        e.canonical: "" if not_applicable[e.canonical] else model.layer_name(e.layer)
        for e in expressions
    }
    weights = model.fingerprint()
    bank = None if isinstance(reference, str) else reference
    known = bank.fingerprint if bank else ""
    for start in range(0, len(data.ids), SHARD):
        indices = range(start, min(start + SHARD, len(data.ids)))
        shard = [(data.ids[i], data.fingerprints[i], data.labels[i]) for i in indices]
        block = [data.name, shard, weights, *common]
        cells = tuple(
            Cell(
                _hash(
                    [
                        *block,
                        p.canonical,
                        p.target_policy,
                        _baseline_version(p),
                        e.canonical,
                        layers[e.canonical],
                        _told(known, p, e),
                    ]
                ),
                p,
                e,
                refused[p.canonical]
                or "; ".join(filter(None, (lacks[need] for need in p.needs)))
                or (lacking if p.needs_reference else "")
                or not_applicable[e.canonical],
            )
            for p in protocols
            for e in expressions
        )
        name = f"{_hash([owner, view.name])[:8]}-{start // SHARD:05d}-{_hash([data.ids[i] for i in indices])[:6]}"  # a part block apart
        yield Task(name, owner, view.name, model, data, indices, cells, bank)


def _reference(
    view: View,
    told: Data | None,
    seed: int,
    expressions: Sequence[Expression],
    protocols: Sequence[Protocol],
) -> Reference | str:
    """Where a method, a protocol or a baseline needs one; or why there is none."""
    if not _told("some", *expressions, *protocols):
        return ""
    try:
        return reference_for(view.data, view.model, told, seed)
    except HeatproofError as error:
        return f"it needs reference images. {error}"


def _check_data(data: Data, model: Model) -> None:
    if not data.ids:
        raise HeatproofError(f"{data.name} has no samples")
    if len(set(data.ids)) != len(data.ids):
        twice = next(i for i in data.ids if list(data.ids).count(i) > 1)
        raise HeatproofError(
            f'{data.name} has two samples with the id "{twice}"; ids tell samples apart'
        )
    strange = {
        label for label in data.labels if label is not None and not 0 <= label < model.n_classes
    }
    if strange:
        raise HeatproofError(
            f"{data.name} has labels such as {min(strange)}, but the classes of {model.name} are 0 to {model.n_classes - 1}"
        )


def _reason(expression: Expression, model: Model, has_silhouettes: bool) -> str:
    try:
        check_applicable(expression, model, has_silhouettes)
    except NotApplicable as error:
        return str(error)
    return ""


def _told(reference: str, *users: Protocol | Expression) -> str:
    return reference if any(user.needs_reference for user in users) else ""


def _data_code(data: Data) -> list[str]:
    """Return what identifies the code of a user's own data set; nothing for those that ship."""
    code = code_of(data)
    if code is None:
        return []
    return [code or secrets.token_hex(8)]  # code that cannot be read is never recognised


def _baseline_version(protocol: Protocol) -> int | str:
    return Baseline.parse(protocol.baseline_name).entry.revision if protocol.baseline_name else 0


def _hash(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Forecast:
    seconds: dict[str, float]  # per model and view
    memory: int  # bytes: the peak of this process, or of the GPU, with one batch each way
    disk: int  # bytes


def forecast(plan: Plan) -> Forecast:
    """From a short calibration: one timed batch each way, after one to warm up."""
    seconds = {}
    for title, cost in plan.cost().items():
        model = next(t.model for t in plan.tasks if t.title == title)
        x = torch.zeros(
            plan.batch_size,
            len(model.mean),
            model.size,
            model.size,
            device=model.device,
            dtype=model.dtype,
        )
        target = torch.zeros(plan.batch_size, dtype=torch.long, device=model.device)
        with model.batches_of(plan.batch_size):
            forward = _timed(model.logits, x) / plan.batch_size
            backward = _timed(model.gradient, x, target) / plan.batch_size
        seconds[title] = cost["forwards"] * forward + cost["backwards"] * backward
    memory = (
        torch.cuda.max_memory_allocated()
        if torch.cuda.is_available()
        else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )
    return Forecast(
        seconds, memory, sum(map(_disk, plan.tasks, [plan.keep_maps] * len(plan.tasks)))
    )


def _timed(call: Callable[..., object], *arguments: object) -> float:
    call(*arguments)
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def _disk(task: Task, keep_maps: int) -> int:
    """TrainBatch take some 4 bytes each once compressed; kept maps 2 bytes a pixel, images 3, logits 4 a class."""
    kept = max(0, min(keep_maps - task.indices.start, len(task.indices)))
    pixels, maps = task.model.size**2, len({c.expression.label for c in task.cells})
    return (
        4 * len(task.cells) * len(task.indices)
        + kept * pixels * (3 + 2 * maps)
        + 4 * task.model.n_classes * len(task.indices)
    )
