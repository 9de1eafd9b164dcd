"""Evaluate methods and read the results: explain, evaluate, run and Result."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor, nn

from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.intervals import bootstrap_aggregates, summarize
from heatproof.analysis.ranks import ranked_layers
from heatproof.bench.layout import TensorKey
from heatproof.bench.orchestrate import open_spec, run_plan
from heatproof.bench.plan import Plan, make_plan
from heatproof.bench.runner import Progress
from heatproof.bench.spec import ProtocolLike, Spec, load_spec, make_spec, parse_protocols
from heatproof.bench.store import Store
from heatproof.data.base import Data
from heatproof.data.catalog import load_data
from heatproof.errors import HeatproofError, unknown
from heatproof.methods import Expression, parse_methods
from heatproof.methods import explain as explain_expression
from heatproof.methods.notes import kind_of
from heatproof.models.model import Model
from heatproof.models.zoo import load_model
from heatproof.protocols import Protocol
from heatproof.report import build
from heatproof.report.sections import SECTIONS

Method = str | Callable[..., Tensor]
AnyModel = Model | nn.Module | str


def explain(
    model: AnyModel,
    images: Tensor,
    targets: Tensor | Sequence[int] | int | None = None,
    method: Method = "gradcam",
    **options: Any,
) -> Tensor:
    """Compute the maps of a method.

    Args:
        model: A ``Model``, a module, or a name such as ``torchvision:resnet50``.
        images: Images ``(B, C, H, W)`` in the model's input space, as ``model.normalize`` returns
            them.
        targets: Class indices ``(B,)``, or one for all; None explains the model's predictions.
        method: An expression such as ``"ig(steps=20)@middle|abs"``, or a function
            ``(model, x, target, *, rng) -> maps``.
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


class Result:
    """The results of a run.

    Attributes:
        scores: A frame with one row per model, protocol setting, method and sample. Its columns:

            * ``model``: the model's name.
            * ``method``: the method as it was given, such as ``ig(steps=20)|abs``.
            * ``layer``: the layer it explains; ``input`` for the image.
            * ``protocol``: the protocol's name, such as ``sds``.
            * ``setting``: its settings except the baseline, such as ``patches=16, score=logit``.
            * ``baseline``: its baseline; empty if it has none.
            * ``sample``: the sample's id.
            * ``target``: the index of the class that is explained; empty for skipped samples.
            * ``target_is``: ``label``, or ``prediction`` where that is what was explained.
            * ``value``: the score; nan unless the status is ``ok``.
            * ``status``: ``ok``; ``undefined``, if there is a map but it has no score; ``failed``,
              if the method or the protocol raised an error or the map is not finite; ``missing``,
              if saved maps have none for the sample and its target; ``n/a``, if the method is not
              defined for the model or data; ``skipped``, if the image could not be read.
            * ``message``: the reason for any status other than ``ok``.
            * ``note``: what the method says about the map, such as that its optimisation did not
              converge; empty if there is nothing to say.
            * ``cluster``: the grid that the sample belongs to, otherwise the sample's id. Samples
              of a cluster are not independent; intervals draw them together.
        store: The run directory.
    """

    def __init__(self, store: Store, temporary: bool = False):
        self.store = store
        self.scores: pd.DataFrame = store.rows()
        self._temporary = temporary
        if temporary:
            weakref.finalize(self, shutil.rmtree, store.root, ignore_errors=True)

    def __repr__(self) -> str:
        statuses = self.scores["status"].value_counts()
        counts = ", ".join(f"{count} {status}" for status, count in statuses.items())
        methods = self.scores["method"].nunique()
        evaluated = self.scores.loc[self.scores["status"] != "skipped", "sample"]
        samples = SampleCounts.of(evaluated, self.store.grids())
        return f"Result({methods} methods, {samples}: {counts})\n{self.summary()}"

    def _repr_html_(self) -> str:
        return self.summary().to_html(index=False, float_format="{:.3f}".format)

    @classmethod
    def load(cls, directory: str | Path) -> Result:
        """Load the results of a run directory.

        Args:
            directory: Written by ``heatproof run``, ``run`` or ``evaluate(…, out=…)``.

        Raises:
            HeatproofError: If the directory is not a run, or damaged.
        """
        return cls(Store(Path(directory)))

    def summary(self, resamples: int = 2000) -> pd.DataFrame:
        """Summarize the scores over the samples.

        Args:
            resamples: Number of bootstrap draws for the intervals.

        Returns:
            One line per model, protocol, setting, baseline and method, with its layer and the
            columns ``mean``, ``low`` and ``high`` (95 % interval), ``rank``, ``rank_low`` and
            ``rank_high``, ``n`` (samples with a score: images, or maps of grids), and the number of
            rows that are ``undefined``, ``failed``, ``missing``, ``n/a`` and ``skipped``; ``noted``
            is the number of scores whose map has a note. Where a method was run at several layers,
            ranks are among the methods of the same layer and the controls.
        """
        draws = bootstrap_aggregates(self.store, self.scores, resamples)
        layers = ranked_layers(self.scores, self.store.plan().methods)
        return summarize(self.scores, resamples, aggregate_draws=draws, layers=layers)

    @property
    def failures(self) -> pd.DataFrame:
        """The rows whose status is ``failed``."""
        return self.scores[self.scores["status"] == "failed"]

    @property
    def left_out(self) -> pd.DataFrame:
        """Why rows have no score: one line per reason, with the number of its samples."""
        lost = self.scores[self.scores["status"] != "ok"]
        reasons = lost.groupby(["model", "protocol", "method", "status", "message"], sort=False)
        return reasons.size().rename("samples").reset_index()

    @property
    def notes(self) -> pd.DataFrame:
        """What methods say about their maps: one line per kind of note, with an example."""
        noted = self.scores[self.scores["note"] != ""]
        kinds = noted["note"].map(kind_of).rename("kind")
        groups = noted.groupby(["model", "method", kinds], sort=False)
        counted = groups.agg(samples=("sample", "nunique"), example=("note", "first"))
        return counted.reset_index()

    def maps(
        self, method: str, model: str | None = None, protocol: str | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Read the stored maps of a method one after another, however many there are.

        A run stores the maps of the first ``keep_maps`` samples, or of all with ``keep_maps: all``,
        in half precision.

        Args:
            method: The method as it is called in ``scores``.
            model: The model, if the run has several.
            protocol: A protocol, such as ``idsds`` or ``gridpg``, whose view of model and data the
                maps are of; by default the first of the run.

        Yields:
            The sample and its map ``(h, w)`` at the resolution of the method's layer. On grids, a
            sample is a grid and the class of one of its cells.

        Raises:
            HeatproofError: If there is no such method, model or protocol, or the model is not
                named.
        """
        plan = self.store.plan()
        models = list(dict.fromkeys(task.model for task in plan.tasks))
        if method not in plan.methods:
            raise unknown("method", method, plan.methods)
        if model is None and len(models) > 1:
            raise HeatproofError(f"the run has several models; name one: {', '.join(models)}")
        if model is not None and model not in models:
            raise unknown("model", model, models)
        ids = [facts.id for facts in plan.protocols]
        if protocol is not None and protocol not in ids:
            raise unknown("protocol", protocol, ids)
        wanted = next(p.canonical for p in plan.protocols if p.id == (protocol or ids[0]))
        keys = (TensorKey.map(method), TensorKey.map_scale(method))
        for task in plan.tasks:
            if task.model != (model or models[0]) or wanted not in task.protocols:
                continue
            stored = self.store.tensors(task.name, keys)
            if keys[0] in stored.tensors:
                scaled, scales = (stored.tensors[key] for key in keys)
                for sample, values, scale in zip(stored.samples.ids, scaled, scales, strict=False):
                    yield sample, values.float() * scale

    def report(self, directory: str | Path | None = None) -> Path:
        """Build the report.

        Args:
            directory: Where the site is written; inside the run directory by default.

        Returns:
            The path of its first page.

        Raises:
            HeatproofError: If the result has no directory and none is given, or if the directory
                holds anything other than a report.
        """
        if directory is None and self._temporary:
            raise HeatproofError(
                'this result was not given a directory; name one: result.report("out/")'
            )
        return build(self.store, Path(directory) if directory else self.store.paths.report)

    def save(self, directory: str | Path) -> Path:
        """Copy the run directory of a result, such as one that was not given a directory.

        Args:
            directory: The new directory; it must be empty or not exist.

        Returns:
            Its path.

        Raises:
            HeatproofError: If the directory is not empty.
        """
        target = Path(directory)
        if target.exists() and any(target.iterdir()):
            raise HeatproofError(f"{target} is not empty; choose another directory")
        lock = shutil.ignore_patterns(self.store.paths.lock.name)
        shutil.copytree(self.store.root, target, dirs_exist_ok=True, ignore=lock)
        return target


def evaluate(
    model: AnyModel | Sequence[AnyModel],
    data: Any,
    methods: Method | Sequence[Method],
    protocols: ProtocolLike | Sequence[ProtocolLike] = ("sds",),
    *,
    limit: int | None = None,
    reference: Any = None,
    seed: int = 0,
    batch_size: int = 64,
    keep_maps: int = 64,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Evaluate methods on one or more models.

    Args:
        model: A ``Model``, a module or a name, or several of them.
        data: A name such as ``paperbirds:test`` or ``folder:/images``, or an object that
            ``load_data`` takes: a ``Dataset``, a ``DataLoader``, a list of images, a data set of
            Hugging Face, (images ``(N, 3, H, W)`` in [0, 1], labels ``(N,)`` or None), ….
        methods: Expressions, or functions ``(model, x, target, *, rng) -> maps``.
        protocols: Names such as ``sds``, ``sds(patches=64)`` or ``file:mine.py:MyProtocol``,
            mappings with a name and settings, or objects and subclasses of ``Protocol``; a list as
            a setting stands for one protocol each.
        limit: Number of samples; all by default.
        reference: Images that are not evaluated, for what some methods, baselines and protocols
            prepare beforehand. By default the training split, or the images beyond the limit.
        seed: Seed for all noise and for the sample order.
        batch_size: Images in one pass.
        keep_maps: For how many samples of each model images and maps are stored for the report.
        out: A run directory. The same call with the same directory computes only what is missing.
        progress: Called after every task, with the task and whether it was finished before.

    Returns:
        The results.

    Raises:
        HeatproofError: If an argument is not valid; nothing has been computed then.
    """
    methods = [methods] if isinstance(methods, str) or callable(methods) else list(methods)
    if isinstance(protocols, str | Mapping | Protocol | type):
        protocols = [protocols]
    if not methods or not protocols:
        raise HeatproofError(
            "there is nothing to evaluate: give at least one method and one protocol"
        )
    if batch_size < 1:
        raise HeatproofError(f"batch_size must be at least 1; got {batch_size}")
    entries = [model] if isinstance(model, AnyModel) else model
    models = [load_model(entry) for entry in entries]
    expressions = parse_methods(methods)
    parsed = parse_protocols(protocols)
    data_sets = _load(data, models, limit, seed)
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
    )
    identity = {
        "models": [m.name for m in models],
        "data": {"name": data_sets[0].name},
        "methods": [e.label for e in expressions],
        "protocols": [{"name": p.id, **p.model_dump()} for p in parsed],
        "seed": seed,
    }
    spec = {**identity, "data": {"name": data_sets[0].name, "limit": limit}}
    if out is not None:
        store = Store(Path(out))
        run_plan(plan, store, identity, spec, progress)
        return Result(store)
    store = Store(Path(tempfile.mkdtemp(prefix="heatproof-")))
    try:
        run_plan(plan, store, identity, spec, progress)
        return Result(store, temporary=True)
    except BaseException:
        shutil.rmtree(store.root, ignore_errors=True)
        raise


def _load(data: Any, models: Sequence[Model], limit: int | None, seed: int) -> list[Data]:
    """Open data for each model; an object is read only once for all of them."""
    if not isinstance(data, str):
        data = load_data(data, limit=limit, seed=seed)
        limit = None
    return [load_data(data, model, limit=limit, seed=seed) for model in models]


def run(
    spec: Spec | str | Path | Mapping[str, Any],
    out: str | Path,
    device: str = "auto",
    progress: Progress | None = None,
    plan: Plan | None = None,
) -> Result:
    """Run a spec. What its directory already holds is not computed again.

    Args:
        spec: A YAML file, the name of a study, or the same content as a mapping.
        out: The run directory.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``, or ``auto``.
        progress: Called after every task, with the task and whether it was finished before.
        plan: The plan of the spec, if ``open_spec`` has made it before.

    Returns:
        The results.

    Raises:
        HeatproofError: If the spec is not valid, or the directory belongs to another one.
    """
    if isinstance(spec, Mapping):
        spec = make_spec(spec)
    elif not isinstance(spec, Spec):
        spec = load_spec(spec)
    if spec.lead is not None and spec.lead not in SECTIONS:
        raise unknown("section of the report", spec.lead, [entry.id for entry in SECTIONS])
    store = Store(Path(out))
    run_plan(plan or open_spec(spec, device), store, spec.identity(), spec.as_dict(), progress)
    return Result(store)
