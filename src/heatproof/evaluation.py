"""Evaluate methods: explain, evaluate and run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from heatproof.analysis.rounds import rounds_of
from heatproof.data.base import Data
from heatproof.data.catalog import load_data
from heatproof.data.source import SourceData
from heatproof.data.subset import shuffled
from heatproof.errors import HeatproofError, unknown
from heatproof.execute.engines.base import LOCAL, EngineOptions, make_engine
from heatproof.execute.progress import ProgressLike
from heatproof.execute.run_plan import run_plan
from heatproof.files import content_hash
from heatproof.methods import Expression, parse_methods, with_seeds
from heatproof.methods import explain as explain_expression
from heatproof.models.backends import AUTO
from heatproof.models.model import Model
from heatproof.models.zoo import load_model
from heatproof.plan.backend_choice import choices_of, choose
from heatproof.plan.make_plan import make_plan
from heatproof.plan.open_spec import open_spec
from heatproof.plan.question import Question, as_question
from heatproof.plan.spec import (
    MAX_SEEDS,
    SEEDS_OF_RACE,
    ProtocolLike,
    Spec,
    load_spec,
    make_spec,
    parse_protocols,
)
from heatproof.plan.tasks import Plan
from heatproof.protocols import Protocol
from heatproof.report.sections import SECTIONS
from heatproof.results import Result
from heatproof.runs.addresses import to_write
from heatproof.runs.store import Store

# An expression, a function, an object of another library, or one of these with a name.
Method = Any
AnyModel = Model | nn.Module | str


def explain(
    model: AnyModel,
    images: Tensor,
    targets: Tensor | Sequence[int] | int | str | None = None,
    method: Method = "gradcam",
    **options: Any,
) -> Tensor:
    """Compute the maps of a method.

    Args:
        model: A ``Model``, a module, or a name such as ``torchvision:resnet50``.
        images: Images ``(B, C, H, W)`` in the model's input space, as ``model.normalize`` returns
            them.
        targets: Class indices ``(B,)``, or one for all; or a target such as ``runner-up``, ``class
            NAME`` or ``prediction - runner-up`` (see ``Model.with_target``); None explains the
            model's predictions.
        method: An expression such as ``"ig(steps=20)@middle|abs"``, a function such as
            ``(model, x, target) -> maps``, an object of Captum, pytorch-grad-cam, TorchCAM or
            Zennit, or one of these with a name (see ``hp.named``).
        **options: ``seed``, ``ids``, ``notes`` (an ``hp.MapNotes``, to which notes on single maps
            are added rather than issued as warnings) and others of ``heatproof.methods.explain``.

    Returns:
        Maps ``(B, H, W)``, signed and of the size of the images.

    Raises:
        HeatproofError: If the method is unknown, or not defined for the model.
    """
    return explain_expression(
        load_model(model), images, targets, Expression.parse(method), **options
    )


def evaluate(
    model: AnyModel | Sequence[AnyModel],
    data: Any,
    methods: Method | Iterable[Method],
    protocols: ProtocolLike | Sequence[ProtocolLike] = ("sds",),
    *,
    target: str | None = None,
    limit: int | None = None,
    reference: Any = None,
    seed: int = 0,
    seeds: int = 1,
    batch_size: int = 64,
    keep_maps: int | Literal["all"] = 64,
    backend: str | None = None,
    precision: str | None = None,
    approximate: bool = False,
    out: str | Path | None = None,
    progress: ProgressLike = None,
    add: bool = False,
    decide: Question | Mapping[str, Any] | bool = False,
    engine: str = "local",
    **engine_options: Any,
) -> Result:
    """Evaluate methods on one or more models.

    Args:
        model: A ``Model``, a module or a name, or several of them.
        data: A name such as ``paperbirds:test`` or ``folder:/images``, or an object that
            ``load_data`` takes: a ``Dataset``, a ``DataLoader``, a list of images, a data set of
            Hugging Face, (images ``(N, 3, H, W)`` in [0, 1], labels ``(N,)`` or None), ….
        methods: Expressions, functions such as ``(model, x, target) -> maps``, objects of Captum,
            pytorch-grad-cam, TorchCAM or Zennit, or any of these with a name: ``hp.named("name",
            method)`` or ``("name", method)``.
        protocols: Names such as ``sds``, ``sds(patches=64)`` or ``file:mine.py:MyProtocol``,
            mappings with a name and settings, or objects and subclasses of ``Protocol``; a list as
            a setting stands for one protocol each.
        target: What is explained, of all models: ``label``, ``prediction``, ``class NAME``,
            ``prediction - runner-up`` and others (see ``Model.with_target``). By default what each
            protocol says, or each model (``model.with_target(…)``).
        limit: Number of samples; all by default.
        reference: Images that are not evaluated, for what some methods, baselines and protocols
            prepare beforehand. By default the training split, or the images beyond the limit.
        seed: Seed for all noise and for the sample order.
        seeds: Maps of each method that draws random numbers: 2 computes them again with noise of
            their own (``ig-u|seed(1)``), and `Result.over_seeds` says what the noise changes.
        batch_size: Images in one pass.
        keep_maps: For how many samples of each model images and maps are stored for the report, or
            ``all``.
        backend: What computes whole passes without gradients, for all models: ``eager``, ``fused``,
            ``compile``, ``openvino``, or ``auto``, the fastest here. By default what each model
            says (``load_model(…, backend=…)``), which is ``auto`` unless it was changed.
        precision: Of whole passes without gradients, for all models: ``float32``, ``tf32``,
            ``bfloat16`` or ``float16``. By default what each model says, which is ``float32``, that
            of the weights, unless it was changed. A lower one is refused as a backend is: where
            results differ.
        approximate: Whether results of a lower precision may differ. By how much, measured on
            images of the run, is one of the result's caveats.
        out: A run directory, or an address such as ``s3://bucket/run``. What it already holds is
            not computed again, so a call with more methods, protocols, models or samples computes
            only these.
        progress: True shows a bar, or lines where there is no terminal. A function is called after
            every task, with the task and whether it was finished before.
        add: Whether ``out`` may hold a run with other data or another seed, or of other models.
        decide: True evaluates in growing rounds of images, and drops methods that can no longer be
            the best; settings such as ``{"margin": 0.02}`` are those of ``decide`` in a spec.
        engine: ``local``, or ``dask`` to compute on several processes or machines. Workers load
            everything themselves, so models, data, methods and protocols are given by names.
        **engine_options: ``workers``, ``address``, ``cluster`` and others, as in ``hp.run``.

    Returns:
        The results.

    Raises:
        HeatproofError: If an argument is not valid; nothing has been computed then.
    """
    options = _engine_options(engine, engine_options)
    root = None if out is None else to_write(out)
    if isinstance(methods, str) or callable(methods) or not isinstance(methods, Iterable):
        methods = [methods]
    methods = list(methods)
    if isinstance(protocols, str | Mapping | Protocol | type):
        protocols = [protocols]
    if not methods or not protocols:
        raise HeatproofError(
            "there is nothing to evaluate: give at least one method and one protocol"
        )
    if batch_size < 1:
        raise HeatproofError(f"batch_size must be at least 1; got {batch_size}")
    if keep_maps != "all" and (not isinstance(keep_maps, int) or keep_maps < 0):
        raise HeatproofError(f'keep_maps is a number of samples, or "all"; got {keep_maps!r}')
    if not 1 <= seeds <= MAX_SEEDS:
        raise HeatproofError(f"seeds is a number of seeds from 1 to {MAX_SEEDS}; got {seeds!r}")
    question = as_question(decide)
    if question is not None and seeds > 1:
        raise HeatproofError(SEEDS_OF_RACE)
    entries = [model] if isinstance(model, AnyModel) else list(model)
    portable = None
    if options.engine != "local":
        portable = _portable_spec(
            {
                "models": entries,
                "data": data,
                "reference": reference,
                "methods": methods,
                "protocols": list(protocols),
            },
            limit=limit,
            seed=seed,
            seeds=seeds if seeds > 1 else None,
            batch_size=batch_size,
            keep_maps=keep_maps,
            backend=backend,
            precision=precision,
            approximate=approximate or None,
            decide=None if question is None else question.model_dump(mode="json"),
            target=target,
        )
    models = [load_model(entry) for entry in entries]
    if target is not None:
        models = [model.with_target(target) for model in models]
    if backend is not None:
        models = [model.with_backend(backend) for model in models]
    if precision is not None:
        models = [model.with_precision(precision, approximate) for model in models]
    expressions, parsed = _parse(methods, protocols)
    expressions = with_seeds(expressions, seeds)
    data_sets = _load(data, models, limit, seed)
    if question is not None and not isinstance(data, str):  # which may be in any order
        data_sets = [d if isinstance(d, SourceData) else shuffled(d, seed) for d in data_sets]
    references = None if reference is None else _load(reference, models, None, seed)
    plan = make_plan(
        models,
        data_sets,
        expressions,
        parsed,
        seed=seed,
        batch_size=batch_size,
        keep_maps=keep_maps,
        references=references,
        choose=partial(choose, begun=choices_of(root), measure=True),
        question=question,
    )
    rounds = rounds_of(plan)
    identity = {
        "models": [m.name for m in models],
        "data": {"name": data_sets[0].name},
        "methods": [e.label for e in expressions],
        "protocols": [{"name": p.id, **p.model_dump()} for p in parsed],
        "seed": seed,
        "backend": backend or AUTO,
        **({"precision": precision} if precision else {}),
        **({"approximate": True} if approximate else {}),
        "weights": {
            model.name: model.fingerprint()
            for model, entry in zip(models, entries, strict=True)
            if not isinstance(entry, str)
        },
        "images": [] if isinstance(data, str) else _image_digests(data_sets),
    }
    spec = {key: value for key, value in identity.items() if key not in ("weights", "images")}
    spec |= {"data": {"name": data_sets[0].name, "limit": limit}}
    if question is not None:
        spec["decide"] = question.model_dump(mode="json", exclude_defaults=True)
    executor = make_engine(options, portable) if portable else LOCAL
    if root is not None:
        store = Store(root)
        run_plan(plan, store, identity, spec, progress, add, executor, rounds)
        return Result(store)
    store = Store(Path(tempfile.mkdtemp(prefix="heatproof-")))
    try:
        run_plan(plan, store, identity, spec, progress, add, executor, rounds)
        return Result(store, temporary=True)
    except BaseException:
        shutil.rmtree(store.root, ignore_errors=True)
        raise


def _parse(
    methods: Sequence[Method], protocols: Sequence[ProtocolLike]
) -> tuple[list[Expression], list[Protocol]]:
    """Parse methods and protocols, and tell all their mistakes at once."""
    problems: list[str] = []
    expressions: list[Expression] = []
    parsed: list[Protocol] = []
    try:
        expressions = parse_methods(methods)
    except HeatproofError as error:
        problems.append(str(error))
    try:
        parsed = parse_protocols(protocols)
    except HeatproofError as error:
        problems.append(str(error))
    if problems:
        raise HeatproofError("\n".join(problems))
    return expressions, parsed


def _image_digests(data_sets: Sequence[Data]) -> list[str]:
    """Return what identifies the images of Python objects, whose names may be the same."""
    digests: dict[str, None] = {}
    for data in data_sets:
        for fingerprint in data.fingerprints:
            digests[content_hash(fingerprint, length=12)] = None
    return list(digests)


def _load(data: Any, models: Sequence[Model], limit: int | None, seed: int) -> list[Data]:
    """Open data for each model; an object is read only once for all of them."""
    if not isinstance(data, str):
        data = load_data(data, limit=limit, seed=seed)
        limit = None
    return [load_data(data, model, limit=limit, seed=seed) for model in models]


def _engine_options(engine: str, options: Mapping[str, Any]) -> EngineOptions:
    names = [field.name for field in fields(EngineOptions) if field.name != "engine"]
    for name in options:
        if name not in names:
            raise unknown("argument", name, names)
    checked = EngineOptions(engine, **options)
    checked.check()
    return checked


def _portable_spec(things: Mapping[str, Any], **settings: Any) -> Spec:
    """Return a spec that workers can open.

    Raises:
        HeatproofError: If something is a Python object, which exists in this process only.
    """
    for key, value in things.items():
        for entry in value if isinstance(value, list) else [value]:
            if not isinstance(entry, str | Mapping | None):
                raise HeatproofError(
                    f"{key}: {type(entry).__name__} is a Python object of this process, which "
                    "workers cannot load; name it, such as file:mine.py:build, or use "
                    'engine="local"'
                )
    return make_spec({k: v for k, v in things.items() if v is not None}, **settings)


def run(
    spec: Spec | str | Path | Mapping[str, Any],
    out: str | Path,
    device: str = "auto",
    progress: ProgressLike = None,
    plan: Plan | None = None,
    add: bool = False,
    engine: str = "local",
    **engine_options: Any,
) -> Result:
    """Run a spec. What its directory already holds is not computed again.

    Args:
        spec: A YAML file, the name of a study, or the same content as a mapping.
        out: The run directory, or an address such as ``s3://bucket/run``.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``, or ``auto``.
        progress: True shows a bar, or lines where there is no terminal. A function is called after
            every task, with the task and whether it was finished before.
        plan: The plan of the spec, if ``open_spec`` has made it before.
        add: Whether ``out`` may hold a run with other data or another seed, or of other models.
        engine: ``local`` computes in this process, ``dask`` on the workers of a Dask cluster; the
            results are the same.
        **engine_options: Where ``dask`` computes: ``workers=4`` processes on this machine, with
            ``gpus=1`` on a GPU each; or the scheduler at ``address="tcp://…"``; or a ``cluster``
            that a YAML file describes. Workers compute with one thread, or ``threads=8``.
            ``dashboard=True`` shows Dask's dashboard of workers on this machine;
            ``insecure=True`` silences the warning of an address or cluster without TLS.

    Returns:
        The results.

    Raises:
        HeatproofError: If the spec is not valid, or does not go with what the directory holds.
    """
    if isinstance(spec, Mapping):
        spec = make_spec(spec)
    elif not isinstance(spec, Spec):
        spec = load_spec(spec)
    if spec.lead is not None and spec.lead not in SECTIONS:
        raise unknown("section of the report", spec.lead, [entry.id for entry in SECTIONS])
    executor = make_engine(_engine_options(engine, engine_options), spec, device)
    store = Store(to_write(out))
    plan = plan or open_spec(spec, device, out=store.root)
    rounds = rounds_of(plan)
    run_plan(plan, store, spec.identity(), spec.as_dict(), progress, add, executor, rounds)
    return Result(store)
