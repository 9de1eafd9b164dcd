"""Make the plan of a run: which records there are, their keys, and the tasks that share passes."""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

from heatproof.baselines import Baseline
from heatproof.data.base import Data, PartData, code_of
from heatproof.data.grids import Grids
from heatproof.data.reference import Reference, reference_for
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.files import content_hash
from heatproof.methods import Expression, expand_layers
from heatproof.methods.adapters import Adapted
from heatproof.methods.explain import check_applicable
from heatproof.models.backends import AUTO, EAGER
from heatproof.models.model import Model
from heatproof.models.targets import check_labels, example_view
from heatproof.plan.question import Question
from heatproof.plan.tasks import KEY_DIGITS, NO_KEY, Plan, Records, Task
from heatproof.protocols import Protocol, View, ViewKey
from heatproof.runs.format import SHARD_SIZE, TaskContent
from heatproof.scoring.evaluation import Evaluation

Refusal = Callable[[Expression, Model, bool], str]
# Takes all samples of a view as a task, images per pass and the weights' fingerprint; returns the
# view's model with a backend.
Choose = Callable[[Task, int, str], Model]


def make_plan(
    models: Sequence[Model],
    data: Sequence[Data],
    expressions: Sequence[Expression],
    protocols: Sequence[Protocol],
    *,
    seed: int = 0,
    batch_size: int = 64,
    keep_maps: int | Literal["all"] = 64,
    methods_of: Sequence[Sequence[Expression]] | None = None,
    references: Sequence[Data | int | None] | None = None,
    refusal: Refusal | None = None,
    choose: Choose | None = None,
    question: Question | None = None,
) -> Plan:
    """Plan the evaluation of methods on models.

    Args:
        models: The models; their names must differ.
        data: The data of each model.
        expressions: The methods.
        protocols: The protocols with their settings.
        seed: Seed for all noise.
        batch_size: Images in one pass.
        keep_maps: For how many samples of each model images and maps are stored, or ``all``.
        methods_of: The methods of each model, if they differ.
        references: For each model, images that are not evaluated, for what is prepared beforehand,
            or their number; None, or None for a model, chooses them by the data.
        refusal: Says why a method is not defined for a model, given whether the data has
            silhouettes; empty if it is. By default every method is tried.
        choose: Chooses the backend of models that have ``auto``; by default it is eager.
        question: What the run is to decide, if it may stop before all samples.

    Returns:
        The plan, with tasks of ``SHARD_SIZE`` samples, or of ``question.step``.

    Raises:
        HeatproofError: If models or samples have the same name, or labels are not classes.
        NotApplicable: If no protocol is defined for any of the models.
    """
    names = [model.name for model in models]
    if len(set(names)) != len(names):
        raise HeatproofError(f"two models are called {_repeated(names)}; give one another name")
    pairs = list(zip(models, data, strict=True))
    for model, samples in pairs:
        _check_data(samples, model)
    refusals = {(m.name, p.canonical): _refusal(p, m) for m in models for p in protocols}
    if all(refusals.values()):
        reasons = "; ".join(dict.fromkeys(refusals.values()))
        raise NotApplicable(f"there is nothing to evaluate: {reasons}")
    accepted = {
        p.canonical: [pair for pair in pairs if not refusals[pair[0].name, p.canonical]]
        for p in protocols
    }
    for expression in expressions:
        _check_objects(expression, models)
    tasks: list[Task] = []
    size = question.step if question else SHARD_SIZE
    with_backend = _Backends(choose or _eager, min(batch_size, size) if question else batch_size)
    why_not = refusal or cache(method_refusal)
    references = references or [None] * len(models)
    methods_of = methods_of or [expressions] * len(models)
    for (model, samples), reference_data, methods in zip(
        pairs, references, methods_of, strict=True
    ):
        refused = {p.canonical: refusals[model.name, p.canonical] for p in protocols}
        at_layers = expand_layers(methods, model)
        model_tasks: list[Task] = []
        own_weights = model.fingerprint()
        fingerprints: dict[int, str] = {}
        for view, evaluating in _views(model, samples, protocols, refused, accepted):
            reference = _reference(view, reference_data, seed, at_layers, evaluating)
            if id(view.model) not in fingerprints:  # cells of a grid have the same model
                fingerprints[id(view.model)] = _fingerprint(view.model, model, own_weights)
            weights = fingerprints[id(view.model)]
            model_tasks += _tasks(
                model.name,
                view,
                evaluating,
                at_layers,
                reference,
                refused,
                seed,
                weights,
                why_not,
                with_backend,
                size,
            )
        # Views of the same images run after each other.
        tasks += sorted(model_tasks, key=lambda task: task.indices.start)
    kept = sys.maxsize if keep_maps == "all" else keep_maps
    return Plan(tuple(tasks), seed, batch_size, kept, question)


def _fingerprint(view: Model, model: Model, weights: str) -> str:
    """Return the fingerprint of a view, whose weights are hashed only if they are not the model's.

    Args:
        view: The view's model.
        model: The model that it is a view of.
        weights: The fingerprint of that model.
    """
    if view is model:
        return weights
    if view.view and view.module is model.module:
        return _hash([weights, view.view])
    return view.fingerprint()


class _Backends:
    """Chooses the backend of each model once, since the cells of a grid have the same model."""

    def __init__(self, choose: Choose, batch_size: int):
        self._choose = choose
        self._batch_size = batch_size
        self._chosen: dict[Model, Model] = {}

    def __call__(self, task: Task, weights: str) -> Model:
        if task.model not in self._chosen:
            self._chosen[task.model] = self._choose(task, self._batch_size, weights)
        return self._chosen[task.model]


def _eager(task: Task, batch_size: int, weights: str) -> Model:
    model = task.model
    return model.with_backend(EAGER) if model.backend == AUTO else model


def _refusal(protocol: Protocol, model: Model) -> str:
    """Return why a protocol is not defined for a model; empty if it is."""
    try:
        protocol.check_target(model)
        protocol.check(model)
    except NotApplicable as error:
        return str(error)
    return ""


def _check_objects(expression: Expression, models: Sequence[Model]) -> None:
    """Check that an object of another library was made with one of the networks.

    Raises:
        NotApplicable: If it explains none of them.
    """
    if not isinstance(expression.entry.function, Adapted):
        return
    reasons = [expression.entry.function.applies(model) for model in models]
    if all(reasons):
        raise NotApplicable(f"{expression.label} does not apply: {reasons[0]}")


def _views(
    model: Model,
    data: Data,
    protocols: Sequence[Protocol],
    refused: dict[str, str],
    accepted: Mapping[str, Sequence[tuple[Model, Data]]],
) -> list[tuple[View, list[Protocol]]]:
    """Return each view once, with its protocols; a refused protocol goes with the plain view.

    Protocols that find that they are not applicable to the data join ``refused``.
    """
    views: dict[ViewKey, View] = {}
    evaluating: dict[ViewKey, list[Protocol]] = {}
    for protocol in protocols:
        name = protocol.canonical
        chosen: Sequence[View] = [View(ViewKey(), model, data)]
        try:
            chosen = chosen if refused[name] else protocol.views(model, data, accepted[name])
        except NotApplicable as error:
            refused[name] = str(error)
        for view in chosen:
            views.setdefault(view.key, view)
            evaluating.setdefault(view.key, []).append(protocol)
    return [(views[key], evaluating[key]) for key in views]


def _tasks(
    model_name: str,
    view: View,
    protocols: Sequence[Protocol],
    expressions: Sequence[Expression],
    reference: Reference | str,
    refused: Mapping[str, str],
    seed: int,
    weights: str,
    not_applicable: Refusal,
    with_backend: _Backends,
    size: int,
) -> Iterator[Task]:
    """Divide one view into shards.

    Args:
        model_name: The model's name in the rows.
        view: Model and data.
        protocols: The protocols that evaluate this view.
        expressions: The methods, at their layers.
        reference: The reference images, or why there are none (empty: nothing needs them).
        refused: By protocol, why it is not defined for the model.
        seed: Seed for all noise.
        weights: The fingerprint of the view's model.
        not_applicable: Says why a method is not defined for a model.
        with_backend: Returns the view's model with a backend, given all its samples as a task.
        size: Samples of a shard.
    """
    model = view.model
    data = view.data
    no_reference = reference if isinstance(reference, str) else ""
    images = None if isinstance(reference, str) else reference
    reference_key = images.fingerprint if images else ""
    lacking = _lacking(data)
    method_reasons = {
        e.canonical: (no_reference if e.needs_reference else "")
        or not_applicable(e, model, data.has_silhouettes)
        for e in expressions
    }
    layers = {
        e.canonical: "" if method_reasons[e.canonical] else model.layer_name(e.layer)
        for e in expressions
    }

    def protocol_reason(protocol: Protocol) -> str:
        return (
            refused[protocol.canonical]
            or "; ".join(filter(None, (lacking[need] for need in protocol.needs)))
            or (no_reference if protocol.needs_reference else "")
        )

    # What is the same in every shard is computed once.
    contents: list[str] = []
    evaluations: list[Evaluation] = []
    for protocol in protocols:
        of_protocol = _of_protocol(protocol)
        protocol_needs_reference = protocol.needs_reference
        no_protocol = protocol_reason(protocol)
        for expression in expressions:
            needs_reference = protocol_needs_reference or expression.needs_reference
            content = [
                *of_protocol,
                expression.canonical,
                layers[expression.canonical],
                reference_key if needs_reference else "",
            ]
            contents.append(json.dumps(content)[1:])
            why_not = no_protocol or method_reasons[expression.canonical]
            evaluations.append(Evaluation(protocol, expression, why_not))
    of_every_shard = tuple(evaluations)
    methods = {
        e.label: _hash(
            [e.canonical, layers[e.canonical], reference_key if e.needs_reference else ""]
        )
        for e in expressions
    }
    shared = {
        p.canonical: _hash([*_of_protocol(p), reference_key if p.needs_reference else ""])
        for p in protocols
    }
    code = _data_code(data)
    every_sample = Task(
        name="",
        model_name=model_name,
        view=view.key,
        model=model,
        data=data,
        indices=range(len(data.ids)),
        records=Records(of_every_shard, [NO_KEY] * len(of_every_shard)),
        reference=images,
    )
    model = with_backend(every_sample, weights)
    for start in range(0, len(data.ids), size):
        indices = range(start, min(start + size, len(data.ids)))
        shard = [(data.ids[i], data.fingerprints[i], data.labels[i]) for i in indices]
        beginning = [data.name, shard, weights, model.backend, seed, *code]
        records = Records(of_every_shard, _keys(beginning, contents))
        name = _task_name(model_name, view.key, start // size, [data.ids[i] for i in indices])
        identity = TaskContent(samples=_hash(beginning), methods=methods, protocols=shared)
        yield Task(name, model_name, view.key, model, data, indices, records, images, identity)


def _task_name(model_name: str, view: ViewKey, number: int, ids: Sequence[str]) -> str:
    """Return a file name that a shard of other samples does not have."""
    subject = _hash([model_name, view.kind, view.name, view.cell])
    return f"{subject[:8]}-{number:05d}-{_hash(ids)[:6]}"


def _lacking(data: Data) -> dict[str, str]:
    """Return why data does not meet each need that a protocol may have; empty if it does."""
    parts = ""
    if not isinstance(data, PartData):
        parts = f"{data.name} has no parts; use paperbirds or funnybirds:…"
    silhouette = ""
    if not data.has_silhouettes:
        silhouette = (
            f"{data.name} does not say which pixels matter; use watermark:… or paperbirds, or "
            "give masks: hp.load_data(images, masks=…), or regions:/boxes.json:folder:/images"
        )
    return {"parts": parts, "silhouette": silhouette}


def _reference(
    view: View,
    data: Data | int | None,
    seed: int,
    expressions: Sequence[Expression],
    protocols: Sequence[Protocol],
) -> Reference | str:
    """Return the reference images if anything needs them, or why there are none.

    Raises:
        HeatproofError: If images are named that cannot serve, such as those that are evaluated.
    """
    needed = any(e.needs_reference for e in expressions)
    if not needed and not any(p.needs_reference for p in protocols):
        return ""
    try:
        return reference_for(view.data, view.model, data, seed)
    except HeatproofError as error:
        if data is not None and not isinstance(view.data, Grids):
            raise
        return f"it needs reference images. {error}"


def _repeated(names: Sequence[str]) -> str:
    """Return a name that occurs more than once."""
    return Counter(names).most_common(1)[0][0]


def _check_data(data: Data, model: Model) -> None:
    if not data.ids:
        raise HeatproofError(f"{data.name} has no samples")
    if len(set(data.ids)) != len(data.ids):
        raise HeatproofError(
            f'{data.name} has two samples with the id "{_repeated(data.ids)}"; every sample '
            "needs its own"
        )
    check_labels(model, data.name, data.labels)
    labels = {label for label in data.labels if label is not None}
    if model.head == "regression":
        return
    outside = {label for label in labels if not 0 <= label < model.n_classes}
    if outside:
        raise HeatproofError(
            f"{data.name} has labels such as {min(outside)}, but the classes of {model.name} are "
            f"0 to {model.n_classes - 1}"
        )


def method_refusal(expression: Expression, model: Model, has_silhouettes: bool) -> str:
    """Return why a method is not defined for a model; empty if it is."""
    try:
        check_applicable(expression, example_view(model), has_silhouettes)
    except NotApplicable as error:
        return str(error)
    return ""


def _data_code(data: Data) -> list[str]:
    """Return what identifies the code of a user's own data set; nothing for those that ship."""
    code = code_of(data)
    if code is None:
        return []
    return [code or secrets.token_hex(8)]  # code that cannot be read is never recognized


def _of_protocol(protocol: Protocol) -> list[Any]:
    """Return what identifies a protocol beside the samples and the reference images."""
    return [protocol.canonical, protocol.target_policy, _baseline_version(protocol)]


def _baseline_version(protocol: Protocol) -> int | str:
    return Baseline.parse(protocol.baseline_name).entry.revision if protocol.baseline_name else 0


def _keys(beginning: list[Any], contents: Sequence[str]) -> Iterator[str]:
    """Yield the hashes of lists with the same beginning, which is written and hashed once.

    Args:
        beginning: How the lists begin.
        contents: How they go on, each as JSON without its opening bracket.
    """
    begun = hashlib.sha256(json.dumps(beginning)[:-1].encode())
    for content in contents:
        sha = begun.copy()
        sha.update(f", {content}".encode())
        yield sha.hexdigest()[:KEY_DIGITS]


def _hash(content: Any) -> str:
    return content_hash(json.dumps(content), length=24)
