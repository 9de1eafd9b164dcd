"""The public surface: load_model, load_data, explain, evaluate, Result, finetune."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor, nn

import heatproof.data as data  # the package itself is the decorator hp.data
from heatproof.analysis.intervals import bootstrap_aggregates, summarize
from heatproof.bench.models import Making, open_model
from heatproof.bench.plan import Plan, Task, make_plan
from heatproof.bench.run import execute, provenance
from heatproof.baselines import baseline
from heatproof.bench.spec import (
    DataSpec,
    ProtocolLike,
    Spec,
    load_spec,
    make_spec,
    parse_protocols,
)
from heatproof.bench.store import Store
from heatproof.data.base import Data, Sample, TensorData
from heatproof.data.catalog import load_data
from heatproof.data.grids import Grids
from heatproof.errors import HeatproofError
from heatproof.methods import Expression, method, parse_methods, transform
from heatproof.methods import explain as _explain
from heatproof.models.model import Model
from heatproof.models.zoo import load_model
from heatproof.protocols import EvalBatch, Protocol, Scores, protocol
from heatproof.report import build
from heatproof.report.sections import section
from heatproof.training.finetune import FineTuned, finetune

__all__ = [
    "EvalBatch",
    "FineTuned",
    "HeatproofError",
    "Model",
    "Protocol",
    "Result",
    "Sample",
    "Scores",
    "TensorData",
    "baseline",
    "data",
    "evaluate",
    "explain",
    "finetune",
    "load_data",
    "load_model",
    "method",
    "protocol",
    "run",
    "section",
    "transform",
]

Method = str | Callable[..., Tensor]


def explain(
    model: Model | nn.Module | str,
    images: Tensor,
    targets: Tensor | Sequence[int] | int | None = None,
    method: Method = "gradcam",
    **options: Any,
) -> Tensor:
    """Maps (B, H, W) for images in the model's input space (`model.normalize` brings them there).

    targets: class indices; None explains the model's own prediction.
    method: an expression such as "ig(steps=20)@middle|abs", or a function `(model, x, target, *, rng)`.
    """
    return _explain(load_model(model), images, targets, Expression.parse(method), **options)


class Result:
    """What a run found. `scores` has one row a sample, protocol and method."""

    def __init__(self, store: Store, temporary: bool = False):
        self.store, self._temporary = store, temporary
        self.scores: pd.DataFrame = store.rows()
        if temporary:
            weakref.finalize(self, shutil.rmtree, store.root, ignore_errors=True)

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{n} {status}" for status, n in self.scores["status"].value_counts().items()
        )
        return f"Result({self.scores['method'].nunique()} methods, {self.scores['sample'].nunique()} samples: {counts})\n{self.summary()}"

    def _repr_html_(self) -> str:
        return self.summary().to_html(index=False, float_format="{:.3f}".format)

    @classmethod
    def load(cls, directory: str | Path) -> Result:
        """A run that is in a directory, from the command line or from `evaluate(…, out=…)`."""
        return cls(Store(Path(directory)))

    def summary(self, resamples: int = 2000) -> pd.DataFrame:
        """Mean, 95 % interval, rank and rank interval, n, failures; one line a model, protocol setting and method."""
        return summarize(
            self.scores, resamples, again=bootstrap_aggregates(self.store, self.scores, resamples)
        )

    @property
    def failures(self) -> pd.DataFrame:
        return self.scores[self.scores["status"] == "failed"]

    @property
    def left_out(self) -> pd.DataFrame:
        """What has no score, and why: failed, undefined, not applicable, unreadable; one line a reason, with its samples counted."""
        lost = self.scores[self.scores["status"] != "ok"]
        return (
            lost.groupby(["model", "protocol", "method", "status", "message"], sort=False)
            .size()
            .rename("samples")
            .reset_index()
        )

    def report(self, directory: str | Path | None = None) -> Path:
        """Build the site; returns its first page. By default inside the run's directory."""
        if directory is None and self._temporary:
            raise HeatproofError(
                'this result has no directory of its own; say where: result.report("out/")'
            )
        return build(
            self.store, Path(directory) if directory is not None else self.store.root / "report"
        )

    def save(self, directory: str | Path) -> Path:
        """Keep a result that was not given a directory."""
        target = Path(directory)
        if target.exists() and any(target.iterdir()):
            raise HeatproofError(f"{target} is not empty; choose another directory")
        shutil.copytree(
            self.store.root, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock")
        )
        return target


def evaluate(
    model: Model | nn.Module | str | Sequence[Model | nn.Module | str],
    data: Data | str | tuple[Tensor, Sequence[int] | Tensor | None],
    methods: Sequence[Method],
    protocols: Sequence[ProtocolLike] = ("sds",),
    *,
    limit: int | None = None,
    reference: Data | str | Tensor | None = None,
    seed: int = 0,
    batch_size: int = 64,
    keep_maps: int = 64,
    out: str | Path | None = None,
    progress: Callable[[Task, bool], None] | None = None,
) -> Result:
    """Judge methods on a model (or several) and data.

    data: a name ("paperbirds:test", "folder:/images"), a data set from `load_data`, or (images in [0, 1], labels).
    methods: expressions, or functions `(model, x, target, *, rng) -> maps`.
    reference: images that are not judged, for methods that need some beforehand (`iba`); by default paperbirds:train, or what a folder
        has besides the judged images.
    out: a directory to keep the run in; the same call with the same directory does only what is missing.
    """
    if isinstance(methods, str) or callable(methods):
        methods = [methods]
    if isinstance(protocols, str | Mapping | Protocol | type):
        protocols = [protocols]
    if not methods or not protocols:
        raise HeatproofError("there is nothing to judge: give at least one method and one protocol")
    if batch_size < 1:
        raise HeatproofError(f"batch_size must be at least 1; got {batch_size}")
    if not isinstance(data, str | tuple) and not hasattr(data, "fingerprints"):
        raise HeatproofError(
            f"data is a name, (images, labels), or what load_data gives; got {type(data).__name__}"
        )
    models = [
        load_model(m) for m in ([model] if isinstance(model, Model | nn.Module | str) else model)
    ]
    expressions, judges = parse_methods(list(methods)), parse_protocols(protocols)
    if limit is not None and not isinstance(data, str):
        raise HeatproofError(
            "limit goes with the name of a data set; give load_data the limit, or fewer images"
        )
    sets: list[Data] = [
        TensorData(*data) if isinstance(data, tuple) else load_data(data, m, limit=limit, seed=seed)
        for m in models
    ]
    others: list[Data | None] = [
        None
        if reference is None
        else TensorData(reference)
        if isinstance(reference, Tensor)
        else load_data(reference, m, seed=seed)
        for m in models
    ]
    plan = make_plan(
        models,
        sets,
        expressions,
        judges,
        seed=seed,
        batch_size=batch_size,
        keep_maps=keep_maps,
        references=others,
    )
    told = {
        "models": [m.name for m in models],
        "data": {"name": sets[0].name, "limit": limit},
        "methods": [e.label for e in expressions],
        "protocols": [{"name": p.id, **p.model_dump()} for p in judges],
        "seed": seed,
    }
    identity = {**told, "data": {"name": sets[0].name}}
    if out is not None:
        _run(plan, Store(Path(out)), identity, told, progress)
        return Result(Store(Path(out)))
    store = Store(Path(tempfile.mkdtemp(prefix="heatproof-")))
    try:
        _run(plan, store, identity, told, progress)
        return Result(store, temporary=True)
    except BaseException:
        shutil.rmtree(store.root, ignore_errors=True)
        raise


def open_spec(
    spec: Spec, device: str = "auto", *, train: bool = True, progress: Making | None = None
) -> Plan:
    """Load everything a spec names, train what is to be trained, and plan it.

    train: False takes untrained weights in place of those that are not made yet; the plan costs the same.
    """
    protocols = spec.judges()
    models = [open_model(m, spec, device, train, progress) for m in spec.models]

    def opened(told: DataSpec, model: Model) -> Data:
        return load_data(told.name, model, split=told.split, limit=told.limit, seed=spec.seed)

    sets = [
        opened(spec.data.changed(told.change), m)
        for told, m in zip(spec.models, models, strict=True)
    ]
    references = [opened(spec.reference, m) for m in models] if spec.reference else None
    return make_plan(
        models,
        sets,
        spec.expressions(),
        protocols,
        seed=spec.seed,
        batch_size=spec.batch_size,
        keep_maps=spec.keep_maps,
        references=references,
    )


def run(
    spec: Spec | str | Path | Mapping[str, Any],
    out: str | Path,
    device: str = "auto",
    progress: Callable[[Task, bool], None] | None = None,
    plan: Plan | None = None,
) -> Result:
    """Run a spec (a YAML file, the name of a study, or the same as a dict) into a directory; what is there already is not done again."""
    if not isinstance(spec, Spec):
        spec = make_spec(spec) if isinstance(spec, Mapping) else load_spec(spec)
    store = Store(Path(out))
    _run(plan or open_spec(spec, device), store, spec.identity(), spec.told(), progress)
    return Result(store)


def _run(
    plan: Plan,
    store: Store,
    identity: dict[str, Any],
    told: dict[str, Any],
    progress: Callable[[Task, bool], None] | None,
) -> None:
    models = {t.title: t.model for t in plan.tasks}
    if store.root.exists() and not store.root.is_dir():
        raise HeatproofError(f"{store.root} is a file, not a directory")
    store.check(identity)
    with store.locked():
        store.claim(identity)
        cells = {t.name: [c.key for c in t.cells] for t in plan.tasks}
        about = {
            t.name: {
                "model": t.owner,
                "view": t.view,
                "protocols": list(dict.fromkeys(c.protocol.canonical for c in t.cells)),
            }
            for t in plan.tasks
        }
        pools = {
            t.title: {label: len(own) for label, own in t.data.pool.items()}
            for t in plan.tasks
            if isinstance(t.data, Grids)
        }
        facts = {
            "methods": _facts(plan),
            "protocols": _judges(plan),
            "cost": plan.cost(),
            "pools": pools,
        }
        store.write_json("plan.json", {"tasks": cells, "about": about, **facts})
        store.write_json("provenance.json", provenance(told, models))
        execute(plan, store, progress or (lambda task, reused: None))


def _facts(plan: Plan) -> dict[str, Any]:
    found = {c.expression.label: c.expression for t in plan.tasks for c in t.cells}
    return {
        label: {
            "canonical": e.canonical,
            "family": e.entry.family,
            "paper": e.entry.paper,
            "summary": e.entry.summary,
            "signed": e.signed,
            "layer": e.layer,
            "cost": e.cost,
            "map": e.map_key,
        }
        for label, e in found.items()
    }


def _judges(plan: Plan) -> list[dict[str, Any]]:
    found = {c.protocol.canonical: c.protocol for t in plan.tasks for c in t.cells}
    return [
        {
            **p.facts(),
            "canonical": p.canonical,
            "setting": p.setting,
            "baseline": p.baseline_name,
            "settings": p.model_dump(),
            "forwards": sum(p.shared_passes().values()),
            "each": sum(p.passes().values()),
            "explanations": p.explanations(),
            "aggregates": list(p.aggregates),
        }
        for p in found.values()
    ]
