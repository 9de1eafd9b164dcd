"""A run as the report sees it: rows and what follows from them, facts by name, and the kept tensors of one model at a time."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heatproof.analysis.intervals import AggregateDraws, bootstrap_aggregates, summarize
from heatproof.analysis.ranks import Key, Standings, standings
from heatproof.bench.store import Store
from heatproof.errors import HeatproofError
from heatproof.protocols import PROTOCOLS

CONTROL = "control"
FINE_TUNED = "fine-tuned "  # how the view of fine-tuned weights begins
CRISP_BELOW = 160  # px: smaller images are drawn with square pixels


@dataclass
class Kept:
    """Of one view of a model: logits, drops and other small things of all samples; images and maps of the first ones."""

    ids: list[str] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)  # (K,) each
    shown: dict[str, tuple[dict[str, Tensor], int]] = field(
        default_factory=dict
    )  # sample -> (tensors of its task, row)
    whole: dict[str, list[Tensor]] = field(
        default_factory=dict
    )  # what every sample has, task by task

    def of(self, sample: str, name: str) -> Tensor | None:
        tensors, row = self.shown[sample]
        return tensors[name][row] if name in tensors and row < len(tensors[name]) else None

    def every(self, name: str) -> Tensor | None:
        """(N, …) in the order of `ids`; none where some sample lacks it."""
        found = torch.cat(self.whole[name]) if name in self.whole else None
        return found if found is not None and len(found) == len(self.ids) else None

    @property
    def accuracy(self) -> tuple[int, int]:
        """(correct, labelled)"""
        judged = [
            (logits, label)
            for logits, label in zip(self.logits, self.labels, strict=True)
            if label is not None
        ]
        return sum(int(logits.argmax()) == label for logits, label in judged), len(judged)


class Run:
    def __init__(self, store: Store):
        plan = store.read_json("plan.json")
        if plan is None:
            raise HeatproofError(f"{store.root} is not a run of heatproof (it has no plan.json)")
        self.store, self.plan = store, plan
        self.provenance: dict[str, Any] = store.read_json("provenance.json") or {}
        self.rows = store.rows()
        self.methods: dict[str, dict[str, Any]] = plan["methods"]
        self.judges: dict[Key, dict[str, Any]] = {
            (p["id"], p["setting"], p["baseline"]): p for p in plan["protocols"]
        }
        self.tasks: dict[str, dict[str, Any]] = plan["about"]
        self.models = list(dict.fromkeys(task["model"] for task in self.tasks.values()))

    @property
    def name(self) -> str:
        """The directory's; a result that was not given one is called after its data."""
        root = self.store.root.resolve()
        temporary = root.parent == Path(tempfile.gettempdir()).resolve() and root.name.startswith(
            "heatproof-"
        )
        data = self.provenance.get("spec", {}).get("data", {})
        return str(data["name"]) if temporary and "name" in data else root.name

    @cached_property
    def _aggregate_draws(self) -> AggregateDraws:
        return bootstrap_aggregates(self.store, self.rows)

    @cached_property
    def summary(self) -> pd.DataFrame:
        return summarize(self.rows, aggregate_draws=self._aggregate_draws)

    @cached_property
    def standings(self) -> list[Standings]:
        return standings(self.rows, aggregate_draws=self._aggregate_draws) if len(self.rows) else []

    @cached_property
    def accuracy(self) -> dict[str, tuple[int, int]]:
        return {model: self.right(model, self._plainest(model)) for model in self.models}

    def right(self, model: str, view: str) -> tuple[int, int]:
        """(correct, labelled); (0, 0) on grids, where a network is asked for the class of one cell."""
        return self.kept(model, view).accuracy if view in self.networks(model) else (0, 0)

    @cached_property
    def samples(self) -> list[str]:
        return list(dict.fromkeys(self.rows.loc[self.rows["status"] != "skipped", "sample"]))

    @property
    def unfinished(self) -> list[str]:
        return [
            t
            for t in self.plan["tasks"]
            if not (self.store.root / "rows" / f"{t}.parquet").is_file()
        ]

    @property
    def made_in_python(self) -> bool:
        """Called through `evaluate`, rather than from a spec."""
        return "version" not in self.provenance.get("spec", {})

    def family(self, method: str) -> str:
        return str(self.methods.get(method, {}).get("family", "other"))

    def controls(self, methods: Sequence[str]) -> list[str]:
        return [m for m in methods if self.family(m) == CONTROL]

    def is_control(self, method: str) -> bool:
        return self.family(method) == CONTROL

    @cached_property
    def setting_labels(self) -> dict[Key, str]:
        """The shortest text that tells the settings of this run apart."""
        many = len({protocol for protocol, _, _ in self.judges}) > 1
        return {key: self._setting_label(key, many) for key in self.judges}

    def _setting_label(self, key: Key, many_protocols: bool) -> str:
        own = self.judges[key]["settings"]
        others = [j["settings"] for k, j in self.judges.items() if k[0] == key[0]]
        differing = [
            f"{name}={value}"
            for name, value in own.items()
            if name != "baseline" and any(o.get(name) != value for o in others)
        ]
        told = [*([key[0]] if many_protocols else []), *differing, key[2]]
        return " · ".join(t for t in told if t) or key[0]

    def views(self, model: str) -> dict[str, list[Key]]:
        """What was judged of a model, and under which settings: "" is the model as it is, `fine-tuned 16/zero` with fine-tuned weights."""
        keys = {judge["canonical"]: key for key, judge in self.judges.items()}
        return {
            task["view"]: [keys[p] for p in task["protocols"]]
            for task in self.tasks.values()
            if task["model"] == model
        }

    def networks(self, model: str) -> dict[str, list[Key]]:
        """The views that judge the model itself on the data itself, with its own weights first, or with fine-tuned ones."""
        return {
            view: keys
            for view, keys in sorted(self.views(model).items(), key=lambda item: bool(item[0]))
            if not view or is_fine_tuned(view)
        }

    def view_of(self, model: str, key: Key) -> str:
        """Under which weights a setting judged the model."""
        return next((view for view, keys in self.views(model).items() if key in keys), "")

    def plain_twin(self, model: str, key: Key) -> Key | None:
        """The setting that asked the same of the model as it is, where this one asked it of another view."""
        same = [k for k in self.views(model).get("", []) if k[1:] == key[1:]]
        return same[0] if same and is_fine_tuned(self.view_of(model, key)) else None

    def _plainest(self, model: str) -> str:
        views = self.views(model)
        return "" if "" in views else next(iter(views), "")

    @cached_property
    def preferred(self) -> list[Key]:
        """Settings, those of fine-tuned networks first: there a missing patch is nothing new."""
        return sorted(
            self.judges,
            key=lambda key: not any(is_fine_tuned(self.view_of(m, key)) for m in self.models),
        )

    @cached_property
    def short_names(self) -> dict[str, str]:
        """Models without what stands before the slash, where it is the same for all."""
        bare = {m: m.rpartition("/")[2] or m for m in self.models}
        return (
            bare
            if len({m.rpartition("/")[0] for m in self.models}) == 1
            else {m: m for m in self.models}
        )

    def facts(self, model: str, view: str | None = None) -> dict[str, Any]:
        """What is on record about a model, by default as it is."""
        view = self._plainest(model) if view is None else view
        return dict(self.provenance.get("models", {}).get(titled(model, view), {}))

    def kept(self, model: str, view: str | None = None) -> Kept:
        """By default of the model as it is. Read from disk each time: the maps of one model can be hundreds of megabytes."""
        found = Kept()
        view = self._plainest(model) if view is None else view
        for task, about in self.tasks.items():
            if (about["model"], about["view"]) != (model, view):
                continue
            tensors, notes = self.store.kept(task)
            if "logits" not in tensors:
                continue
            ids = json.loads(notes["ids"])
            found.ids += ids
            found.labels += json.loads(notes["labels"])
            found.logits += list(tensors["logits"])
            found.shown |= {
                sample: (tensors, i)
                for i, sample in enumerate(ids[: len(tensors.get("images", ()))])
            }
            for name, values in tensors.items():
                if len(values) == len(ids):
                    found.whole.setdefault(name, []).append(values)
        return found

    @cached_property
    def milliseconds(self) -> dict[tuple[str, str], float]:
        """(model, method) -> time an image in this run's company."""
        spent: dict[tuple[str, str], list[float]] = {}
        images: dict[tuple[str, str], int] = {}
        for task, about in self.tasks.items():
            model = about["model"]
            timings = self.store.read_json(f"timings/{task}.json")
            part = self.store.part(task) if timings else []
            count = len({r["sample"] for r in part if r["status"] != "skipped"})
            for method, facts in self.methods.items():
                seconds = (timings or {}).get("seconds", {}).get(f"method {facts['map']}")
                if seconds is not None and count:
                    spent.setdefault((model, method), []).append(seconds)
                    images[model, method] = images.get((model, method), 0) + count
        return {key: 1000 * sum(seconds) / images[key] for key, seconds in spent.items()}

    def class_name(self, model: str, index: int | None) -> str:
        names = self.facts(model).get("class_names")
        if index is None:
            return "no label"
        return str(names[index]) if names and index < len(names) else f"class {index}"


def titled(model: str, view: str) -> str:
    return f"{model}, {view}" if view else model


def is_fine_tuned(view: str) -> bool:
    return view.startswith(FINE_TUNED)


def view_words(view: str) -> str:
    return (
        f"fine-tuned ({view.removeprefix(FINE_TUNED)})"
        if is_fine_tuned(view)
        else view or "as it is"
    )


def confidence(logits: Tensor) -> tuple[int, float]:
    """(predicted class, its softmax)"""
    top = int(logits.argmax())
    return top, float(torch.softmax(logits.double(), 0)[top])


def mean_scores(rows: pd.DataFrame, methods: Sequence[str]) -> pd.Series:
    """Per sample, best first: over these methods and the settings of the first protocol, since scores of two do not mix."""
    part = rows[rows["method"].isin(list(methods)) & np.isfinite(rows["value"])]
    if not len(part):
        return pd.Series(dtype=float)
    protocol = part["protocol"].iloc[0]
    means = part[part["protocol"] == protocol].groupby("sample", sort=False)["value"].mean()
    return means.sort_values(ascending=not PROTOCOLS[protocol].cls.higher_is_better, kind="stable")
