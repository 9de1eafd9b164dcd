"""A run as the report sees it: rows, what follows from them, and the stored tensors of a model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heatproof.analysis.agreement import AgreementMatrix, By, agreement_matrix
from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.halves import bootstrap_aggregates
from heatproof.analysis.intervals import GROUP, AggregateDraws, RankedLayers
from heatproof.analysis.ranks import CONTROL, Key, Standings, ranked_layers, standings_of
from heatproof.analysis.settings import SettingScores, scored_settings, summary
from heatproof.analysis.significance import PairedTests, pairs_of
from heatproof.analysis.tables import groups
from heatproof.plan.tasks import SHARD_SIZE
from heatproof.protocols import PROTOCOLS, ViewKey
from heatproof.runs.format import (
    CHANNEL_PEAKS,
    IMAGES,
    LOGITS,
    GridNote,
    ModelFacts,
    ModelView,
    ProtocolFacts,
    TaskFacts,
    TensorKey,
    TimingKey,
)
from heatproof.runs.store import Store
from heatproof.runs.task_files import TaskTensors
from heatproof.tensor.scores import HeadName, class_probabilities, is_correct
from heatproof.text import short_titles

PLAIN_VIEW = ViewKey()
MOST_CURVES = 80 * SHARD_SIZE  # samples of a model whose curves and logits the report shows
CRISP_BELOW = 160  # px: smaller images are drawn with square pixels


@dataclass
class Kept:
    """The stored tensors of one view of a model, of its first `MOST_CURVES` samples.

    Attributes:
        total: The number of samples of the view.
        ids: The samples.
        labels: Their labels; None where a sample has none.
        logits: Their logits, ``(K,)`` each.
        head: The head of the model.
        grids: What samples on grids consist of; empty for other views.
        with_images: The first samples, whose images and maps are stored: the tensors of a sample's
            task, and its row in them.
        read: Reads tensors of all samples, task by task; those that are missing are left out.
    """

    total: int = 0
    ids: list[str] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    head: HeadName = "softmax"
    grids: dict[str, GridNote] = field(default_factory=dict)
    with_images: dict[str, tuple[dict[TensorKey, Tensor], int]] = field(default_factory=dict)
    read: Callable[[Sequence[TensorKey]], dict[TensorKey, Tensor]] = lambda keys: {}

    def add(self, task: TaskTensors) -> None:
        """Add a task: all its tensors if it has images, else at least its logits."""
        ids = task.samples.ids
        self.ids += ids
        self.labels += task.samples.labels
        self.logits += list(task.tensors[LOGITS])
        self.grids |= dict(zip(ids, task.samples.grids or [], strict=False))
        images = len(task.tensors.get(IMAGES, ()))
        self.with_images |= {sample: (task.tensors, i) for i, sample in enumerate(ids[:images])}

    def image(self, sample: str) -> Tensor:  # (C, H, W) uint8
        """Return the image of one of the first samples."""
        tensors, row = self.with_images[sample]
        return tensors[IMAGES][row]

    def map(self, sample: str, method: str) -> Tensor | None:  # (h, w)
        """Return the map of one of the first samples, scaled to a largest absolute value of 1."""
        return self.row(sample, TensorKey.map(method))

    def unscaled_map(self, sample: str, method: str) -> Tensor | None:  # (h, w)
        """Return the map of one of the first samples in its original scale."""
        values = self.map(sample, method)
        scale = self.row(sample, TensorKey.map_scale(method))
        return None if values is None or scale is None else values.float() * scale.float()

    def has_maps(self, method: str) -> bool:
        """Return whether the maps of a method are stored for any sample."""
        key = TensorKey.map(method)
        return any(key in tensors for tensors, _ in self.with_images.values())

    def shared_row(self, sample: str, protocol: ProtocolFacts, name: str) -> Tensor | None:
        """Return what a protocol computed for all methods, for one of the first samples."""
        return self.row(sample, TensorKey.shared(protocol.canonical, name))

    def shared(self, protocol: ProtocolFacts, name: str) -> Tensor | None:  # (N, …)
        """Return what a protocol computed for all methods, in the order of ``ids``."""
        return self._all(TensorKey.shared(protocol.canonical, name))

    def curves(self, protocol: ProtocolFacts, method: str, name: str) -> Tensor | None:  # (N, S)
        """Return what a protocol kept of the maps of a method, in the order of ``ids``."""
        return self._all(TensorKey.curve(protocol.canonical, method, name))

    def curves_of(
        self, protocol: ProtocolFacts, methods: Sequence[str], name: str
    ) -> dict[str, Tensor]:  # (N, S) each
        """Return the curves of those methods that have them, every file of which is read once."""
        keys = {m: TensorKey.curve(protocol.canonical, m, name) for m in methods}
        found = self.read(list(keys.values()))
        return {m: found[k] for m, k in keys.items() if k in found and self._is_whole(found[k])}

    def channel_peaks(self) -> Tensor | None:  # (N, C)
        """Return the largest activations of some channels, in the order of ``ids``."""
        return self._all(CHANNEL_PEAKS)

    def row(self, sample: str, key: TensorKey) -> Tensor | None:
        """Return a stored tensor of one of the first samples; None if it is missing."""
        tensors, row = self.with_images[sample]
        return tensors[key][row] if key in tensors and row < len(tensors[key]) else None

    def _all(self, key: TensorKey) -> Tensor | None:
        """Return the tensor of all samples; None if some sample lacks it."""
        values = self.read([key]).get(key)
        return values if values is not None and self._is_whole(values) else None

    def _is_whole(self, values: Tensor) -> bool:
        return len(values) == len(self.ids)

    @property
    def part(self) -> str:
        """Which samples these are, if they are not all of the view; else empty."""
        count = len(self.ids)
        return f"the first {count:,} of {self.total:,} samples" if count < self.total else ""

    @cached_property
    def correct(self) -> list[bool | None]:
        """Whether each sample's label is predicted; None where it has none."""
        if not self.ids:
            return []
        return _correct(torch.stack(self.logits), self.labels, self.head)

    def confidence(self, row: int) -> tuple[int, float]:
        """Return (predicted class, its probability) of a sample by its position."""
        logits = self.logits[row].double()
        top = int(logits.argmax())
        return top, float(class_probabilities(logits, self.head)[top])


class Run:
    """A run directory, read once.

    Args:
        store: The directory.
        rows: Its rows, if `Store.rows` has been called before.

    Raises:
        HeatproofError: If it is not a run, or damaged.
    """

    def __init__(self, store: Store, rows: pd.DataFrame | None = None):
        self.store = store
        self.plan = store.plan()
        self.provenance = store.provenance()
        self.rows = store.rows() if rows is None else rows
        self.methods = self.plan.methods
        self.protocols: dict[Key, ProtocolFacts] = {p.key: p for p in self.plan.protocols}
        self.tasks = self.plan.tasks
        self.models = list(dict.fromkeys(task.model for task in self.tasks))
        self._accuracies: dict[tuple[str, ViewKey], tuple[int, int]] = {}

    @property
    def name(self) -> str:
        """The name of the directory; for a temporary one, that of the data."""
        root = self.store.root.resolve()
        in_temp = root.parent == Path(tempfile.gettempdir()).resolve()
        data = self.provenance.spec.get("data", {})
        if in_temp and root.name.startswith("heatproof-") and "name" in data:
            return str(data["name"])
        return root.name

    @cached_property
    def clusters(self) -> dict[str, str]:
        """The cluster of each sample: the grid that it belongs to, or the sample itself.

        Empty if no sample belongs to a grid.
        """
        if not self._grids:
            return {}
        distinct = self.rows[["sample", "cluster"]].drop_duplicates("sample", keep="last")
        return dict(zip(distinct["sample"], distinct["cluster"], strict=True))

    @cached_property
    def aggregate_draws(self) -> AggregateDraws:
        """Draws of the protocols that aggregate over all samples."""
        return bootstrap_aggregates(self.store, self.rows)

    @cached_property
    def ranked_layers(self) -> RankedLayers:
        """The layer within which each (model, method) is ranked, where layers are compared."""
        return ranked_layers(self.rows, self.methods)

    @cached_property
    def settings(self) -> list[SettingScores]:
        """The scores of every model and setting with their draws, which all statistics share."""
        draws = self.aggregate_draws
        return scored_settings(self.rows, aggregate_draws=draws, layers=self.ranked_layers)

    def table(self, model: str, key: Key) -> pd.DataFrame:
        """Return the scores of a model under one setting: samples down, methods across."""
        found = (scores.table for scores in self.settings if scores.key == (model, *key))
        table = next(found, None)
        return pd.DataFrame() if table is None else table.frame

    def settings_of(self, standing: Standings) -> list[SettingScores]:
        """Return the scores of a model; of the methods at one layer if standings are of that."""
        of_model = [scores for scores in self.settings if scores.key[0] == standing.model]
        return [s.of(standing.methods) for s in of_model] if standing.layer else of_model

    @cached_property
    def summary(self) -> pd.DataFrame:
        return summary(self.settings)

    def summary_of(self, standing: Standings) -> pd.DataFrame:
        """Return the summary of the methods of standings, which may be those at one layer."""
        return summary(self.settings_of(standing)) if standing.layer else self.summary

    @cached_property
    def standings(self) -> list[Standings]:
        """Standings of each model that has rows."""
        return standings_of(self.settings)

    def pairs_of(self, standing: Standings) -> dict[Key, PairedTests]:
        """Return the tests of all pairs of methods of standings, which may be those at one layer.

        They are by protocol, setting and baseline, with the draws that the ranks are from.
        """
        tests = pairs_of(self.settings_of(standing))
        return {(key[1], key[2], key[3]): found for key, found in tests.items()}

    @cached_property
    def accuracy(self) -> dict[str, tuple[int, int]]:
        """(correct, labelled) of each model."""
        return {model: self.accuracy_of(model, self._first_view(model)) for model in self.models}

    def accuracy_of(self, model: str, view: ViewKey) -> tuple[int, int]:
        """Return (correct, labelled); (0, 0) on grids, where the class of one cell is explained."""
        if (model, view) not in self._accuracies:
            self._accuracies[model, view] = self._count_correct(model, view)
        return self._accuracies[model, view]

    def _count_correct(self, model: str, view: ViewKey) -> tuple[int, int]:
        if view not in self.networks(model):
            return 0, 0
        facts = self.facts(model, view)
        head: HeadName = facts.head if facts else "softmax"
        correct: list[bool | None] = []
        for task in self.tasks_of(ModelView(model, view)):
            stored = self.store.tensors(task.name, (LOGITS,))
            if LOGITS in stored.tensors:
                correct += _correct(stored.tensors[LOGITS], stored.samples.labels, head)
        labelled = [right for right in correct if right is not None]
        return sum(labelled), len(labelled)

    def tasks_of(self, subject: ModelView) -> list[TaskFacts]:
        """Return the tasks of a view of a model."""
        return [task for task in self.tasks if task.subject == subject]

    @cached_property
    def counts(self) -> SampleCounts:
        """How many images, grids and maps were evaluated."""
        return self._count(self.rows)

    @cached_property
    def counts_of(self) -> dict[tuple[str, Key], SampleCounts]:
        """How many images, grids and maps were evaluated, by model and setting."""
        columns = self.rows[[*GROUP, "status", "sample"]]
        parts = groups(columns, GROUP)
        return {(key[0], (key[1], key[2], key[3])): self._count(part) for key, part in parts}

    def _count(self, rows: pd.DataFrame) -> SampleCounts:
        return SampleCounts.of(rows.loc[rows["status"] != "skipped", "sample"], self._grids)

    @cached_property
    def _grids(self) -> dict[str, GridNote]:
        return self.store.grids()

    @property
    def unfinished(self) -> list[str]:
        """Tasks without rows."""
        return [task.name for task in self.tasks if not self.store.is_finished(task.name)]

    @property
    def made_in_python(self) -> bool:
        """Whether the run was made by ``evaluate`` rather than from a spec."""
        return "version" not in self.provenance.spec

    def family(self, method: str) -> str:
        """Return the family of a method, which has a colour and a symbol."""
        return self.methods[method].family if method in self.methods else "other"

    def controls(self, methods: Sequence[str]) -> list[str]:
        """Return the controls among methods, in their order."""
        return [m for m in methods if self.is_control(m)]

    def is_control(self, method: str) -> bool:
        """Return whether a method never looks at the model."""
        return self.family(method) == CONTROL

    @cached_property
    def setting_labels(self) -> dict[Key, str]:
        """The shortest texts that distinguish the settings of this run."""
        return {key: " · ".join(self.setting_parts(key)) for key in self.protocols}

    def setting_values(self, key: Key) -> dict[str, str]:
        """Return the settings of a protocol as texts, with the baseline that it uses."""
        settings = self.protocols[key].settings
        values = {name: str(value) for name, value in settings.items() if value is not None}
        return values | ({"baseline": key[2]} if key[2] else {})

    def agreement_matrices(self, by: By = "protocol") -> list[AgreementMatrix]:
        """Return the rank correlations of every model, and of every layer if it has several."""
        values = {key: self.setting_values(key) for key in self.protocols}
        found = (
            agreement_matrix(
                standing, by, self.controls(standing.methods), self.setting_labels, values
            )
            for of_model in self.standings
            for standing in of_model.by_layer
        )
        return [matrix for matrix in found if matrix is not None]

    def setting_parts(self, key: Key) -> list[str]:
        """Return what distinguishes a setting: protocol, settings that differ, baseline."""
        name, _, baseline = key
        settings = self.protocols[key].settings
        others = [p.settings for p in self.protocols.values() if p.id == name]
        differing = [
            f"{setting}={value}"
            for setting, value in settings.items()
            if setting != "baseline" and any(o.get(setting) != value for o in others)
        ]
        several = len({p.id for p in self.protocols.values()}) > 1
        parts = [name if several else "", *differing, baseline]
        return [part for part in parts if part] or [name]

    def views(self, model: str) -> dict[ViewKey, list[Key]]:
        """Return the views of a model, and under which settings each was evaluated."""
        return self._views.get(model, {})

    @cached_property
    def _views(self) -> dict[str, dict[ViewKey, list[Key]]]:
        keys = {protocol.canonical: key for key, protocol in self.protocols.items()}
        found: dict[str, dict[ViewKey, list[Key]]] = {}
        for task in self.tasks:
            of_model = found.setdefault(task.model, {})
            of_model[task.view] = [keys[protocol] for protocol in task.protocols]
        return found

    def networks(self, model: str) -> dict[ViewKey, list[Key]]:
        """Return the views that show the network the data itself: plain first, then fine-tuned."""
        views = sorted(self.views(model).items(), key=lambda item: not item[0].is_plain)
        return {view: keys for view, keys in views if view.is_plain or view.is_fine_tuned}

    def view_of(self, model: str, key: Key) -> ViewKey:
        """Return the view of a model that a setting evaluated."""
        views = (view for view, keys in self.views(model).items() if key in keys)
        return next(views, PLAIN_VIEW)

    def plain_twin(self, model: str, key: Key) -> Key | None:
        """Return the setting that asks the same of the plain model, for one of a fine-tuned one."""
        if not self.view_of(model, key).is_fine_tuned:
            return None
        twins = (k for k in self.views(model).get(PLAIN_VIEW, []) if k[1:] == key[1:])
        return next(twins, None)

    def _first_view(self, model: str) -> ViewKey:
        """Return the plain view of a model if it has one, else the first."""
        views = self.views(model)
        return PLAIN_VIEW if PLAIN_VIEW in views else next(iter(views), PLAIN_VIEW)

    @cached_property
    def preferred(self) -> list[Key]:
        """The settings, those of fine-tuned networks first: they have seen deleted patches."""

        def is_plain(key: Key) -> bool:
            return not any(self.view_of(model, key).is_fine_tuned for model in self.models)

        return sorted(self.protocols, key=is_plain)

    @cached_property
    def short_names(self) -> dict[str, str]:
        """The models' names without the part before the first slash, if it is the same for all.

        Of those in files, the file's name is left.
        """
        titles = {name: name for name in self.models} | short_titles(self.models)
        if len({title.partition("/")[0] for title in titles.values()}) > 1:
            return titles
        return {name: title.partition("/")[2] or title for name, title in titles.items()}

    def facts(self, model: str, view: ViewKey | None = None) -> ModelFacts | None:
        """Return what is on record about a view of a model, by default the plain one."""
        subject = ModelView(model, self._first_view(model) if view is None else view)
        return next((f for f in self.provenance.models if f.subject == subject), None)

    def image_size(self, model: str, view: ViewKey | None = None) -> tuple[int, int]:
        """Return height and width of a model's images in pixels; 0 if they are not on record."""
        facts = self.facts(model, view)
        return facts.height_and_width if facts else (0, 0)

    @property
    def any_shape(self) -> bool:
        """Whether the images of a model are not square, so that pictures keep their shape."""
        sizes = (facts.height_and_width for facts in self.provenance.models)
        return any(height != width for height, width in sizes)

    def is_crisp(self, model: str) -> bool:
        """Return whether images of a model are drawn with square pixels."""
        return 0 < max(self.image_size(model)) < CRISP_BELOW

    def kept(self, model: str, view: ViewKey | None = None) -> Kept:
        """Return the stored tensors of a view of a model, by default the plain one.

        They are read from disk each time: the maps of one model can be hundreds of megabytes. Those
        of more than `MOST_CURVES` samples are not read.
        """
        facts = self.facts(model, view)
        subject = ModelView(model, self._first_view(model) if view is None else view)
        kept = Kept(head=facts.head if facts else "softmax")
        tasks = self.tasks_of(subject)
        first = self.store.first_tasks(tasks, MOST_CURVES)
        kept.read = partial(self._read_all, first)
        for task in first:
            tensors = self.store.tensors(task.name, (LOGITS, IMAGES))
            if len(tensors.tensors.get(IMAGES, ())):
                tensors = self.store.tensors(task.name)
            if LOGITS in tensors.tensors:
                kept.add(tensors)
        kept.total = len(kept.ids) + sum(map(self._sample_count, tasks[len(first) :]))
        return kept

    def _read_all(
        self, tasks: Sequence[TaskFacts], keys: Sequence[TensorKey]
    ) -> dict[TensorKey, Tensor]:
        """Read tensors of all samples of some tasks; those that a task lacks are left out."""
        parts: dict[TensorKey, list[Tensor]] = {key: [] for key in keys}
        for task in tasks:
            stored = self.store.tensors(task.name, parts)
            for key in list(parts):
                values = stored.tensors.get(key)
                if values is not None and len(values) == len(stored.samples.ids):
                    parts[key].append(values)
                elif stored.samples.ids:
                    del parts[key]
            if not parts:
                break
        return {key: torch.cat(values) for key, values in parts.items() if values}

    def _sample_count(self, task: TaskFacts) -> int:
        """Return the number of samples of a task that could be read, by its manifest."""
        manifest = self.store.manifest(task.name)
        counts = [group.rows for group in manifest.groups] if manifest else []
        return max((sum(rows.values()) - rows.get("skipped", 0) for rows in counts), default=0)

    @cached_property
    def milliseconds(self) -> dict[tuple[str, str], float]:
        """Time per map of (model, method) in this run; not of its own for a method that shares."""
        seconds: dict[tuple[str, str], list[float]] = {}
        images: dict[tuple[str, str], int] = {}
        for task in self.tasks:
            timings = self.store.timings(task.name)
            if timings is None:
                continue
            count = self._sample_count(task)
            if not count:
                continue
            by_key = {timing.key: timing.seconds for timing in timings.seconds}
            for method, facts in self.methods.items():
                spent = by_key.get(TimingKey("maps", facts.map_key))
                if spent is not None:
                    seconds.setdefault((task.model, method), []).append(spent)
                    images[task.model, method] = images.get((task.model, method), 0) + count
        return {key: 1000 * sum(spent) / images[key] for key, spent in seconds.items()}

    def class_name(self, model: str, index: int | None) -> str:
        """Return the name of a class of a model, or its index as a text."""
        if index is None:
            return "no label"
        facts = self.facts(model)
        names = facts.class_names if facts else None
        return names[index] if names and index < len(names) else f"class {index}"


def _correct(
    logits: Tensor, labels: Sequence[int | None], head: HeadName
) -> list[bool | None]:  # (N, K), (N,)
    """Return whether each label is predicted; None where there is none."""
    targets = torch.tensor([0 if label is None else label for label in labels])
    found = is_correct(logits, targets, head).tolist()
    return [
        None if label is None else bool(right) for right, label in zip(found, labels, strict=True)
    ]


def mean_scores(rows: pd.DataFrame, methods: Sequence[str]) -> pd.Series:
    """Return the mean score of each sample over some methods, best first.

    The mean is over the settings of the first protocol, since scores of two cannot be mixed.
    """
    part = rows[rows["method"].isin(list(methods)) & np.isfinite(rows["value"])]
    if not len(part):
        return pd.Series(dtype=float)
    protocol = part["protocol"].iloc[0]
    means = part[part["protocol"] == protocol].groupby("sample", sort=False)["value"].mean()
    return means.sort_values(ascending=not PROTOCOLS[protocol].cls.higher_is_better, kind="stable")
