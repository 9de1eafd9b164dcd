"""The one reader of a run: rows, plan, tensors, timings and provenance of a directory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from heatproof.data.grids import grid_name
from heatproof.data.tiles import image_of
from heatproof.protocols import ViewKey
from heatproof.protocols.base import register_stored, stored_protocol
from heatproof.runs.all_curves import AllCurves
from heatproof.runs.format import (
    CHANNEL_PEAKS,
    IMAGES,
    LOGITS,
    SHARD_SIZE,
    GridNote,
    Latency,
    ModelFacts,
    ModelView,
    ProtocolFacts,
    SaidNetwork,
    Setting,
    TaskFacts,
    TensorKey,
)
from heatproof.runs.store import Store
from heatproof.runs.task_files import TaskTensors
from heatproof.scoring.aggregate import aggregate, fill_values, set_undefined
from heatproof.tensor.scores import HeadName, class_probabilities, is_correct

PLAIN_VIEW = ViewKey()
FILLED_COLUMNS = {"value", "status", "message"}  # by protocols that need all samples
MOST_SAMPLES_READ = 80 * SHARD_SIZE  # of a model, whose curves and logits pages show


@dataclass
class Kept:
    """The stored tensors of one view of a model, of its first `MOST_SAMPLES_READ` samples.

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
    """A run directory, read once, and only what is asked for.

    Args:
        store: The directory.

    Raises:
        HeatproofError: If it is not a run, or damaged.
    """

    def __init__(self, store: Store):
        self.store = store
        self.plan = store.plan()
        self.provenance = store.provenance()
        self.methods = self.plan.methods
        self.protocols: dict[Setting, ProtocolFacts] = {p.key: p for p in self.plan.protocols}
        self.tasks = self.plan.tasks
        self.models = list(dict.fromkeys(task.model for task in self.tasks))
        self._accuracies: dict[tuple[str, ViewKey], tuple[int, int]] = {}

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows of the latest plan that have been written, in its order.

        Texts are categories. Values that a protocol computes from the curves of all samples are
        filled in. A further column ``cluster`` says which samples are not independent: it is the
        grid that a sample belongs to, the image that a tile is from, and else the sample itself.
        """
        for facts in self.plan.protocols:
            register_stored(facts.model_dump())
        frame = self.store.rows()
        self.all_curves = AllCurves(self.store, frame)
        frame["cluster"] = self._clusters(frame["sample"])
        for facts in self.plan.protocols:
            if facts.aggregates and stored_protocol(facts.id, facts.settings) is None:
                chosen = (frame["protocol"] == facts.id) & (frame["status"] == "ok")
                reason = f"the code of protocol {facts.id} is not loaded; import it first"
                set_undefined(frame, frame.index[chosen], reason)
        fill_values(frame, self.all_curves.map(aggregate))
        return frame

    def columns(self, *names: str) -> pd.DataFrame:
        """Return some columns of the rows; if `rows` are not in memory, only these are read."""
        if "rows" in self.__dict__ or FILLED_COLUMNS & {*names}:
            return self.rows[list(names)]
        stored = dict.fromkeys("sample" if name == "cluster" else name for name in names)
        frame = self.store.rows(list(stored))
        if "cluster" in names:
            frame["cluster"] = self._clusters(frame["sample"])
        return frame[list(names)]

    def _clusters(self, samples: pd.Series) -> pd.Series:
        """Return the cluster of every row's sample, as categories; see `clusters`."""
        clusters = self._clusters_among(samples.cat.categories)
        if not clusters:
            return samples.copy()
        names = pd.Categorical([clusters[sample] for sample in samples.cat.categories])
        codes = names.codes[samples.cat.codes]
        return pd.Series(pd.Categorical.from_codes(codes, names.categories), samples.index)

    def _clusters_among(self, samples: Iterable[str]) -> dict[str, str]:
        grids = {sample: grid_name(note.images) for sample, note in self.grids.items()}
        clusters = {sample: grids.get(sample) or image_of(sample) for sample in samples}
        return clusters if any(own != of for own, of in clusters.items()) else {}

    @cached_property
    def all_curves(self) -> AllCurves:
        """The curves of protocols that compute values from all samples of a model together."""
        return AllCurves(self.store, self.store.rows(AllCurves.COLUMNS))

    @cached_property
    def grids(self) -> dict[str, GridNote]:
        """The images and the evaluated cell of samples on grids; other samples are missing."""
        notes: dict[str, GridNote] = {}
        for task in self.tasks:
            if task.view.cell is not None:
                samples = self.store.tensors(task.name, only=()).samples
                notes |= dict(zip(samples.ids, samples.grids or [], strict=False))
        return notes

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
    def hidden_methods(self) -> list[str]:
        """The methods that the directory has results of, and that the latest plan does not ask for.

        As the first finished task of each model says.
        """
        first = {task.model: task.name for task in reversed(self.tasks)}
        manifests = map(self.store.manifest, first.values())
        stored = [label for manifest in manifests if manifest for label in manifest.content.methods]
        return [label for label in dict.fromkeys(stored) if label not in self.methods]

    @cached_property
    def clusters(self) -> dict[str, str]:
        """The cluster of each sample: its grid, the image that it is a tile of, or itself.

        Empty if every sample is its own cluster.
        """
        return self._clusters_among(self.columns("sample")["sample"].cat.categories)

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

    def views(self, model: str) -> dict[ViewKey, list[Setting]]:
        """Return the views of a model, and under which settings each was evaluated."""
        return self._views.get(model, {})

    @cached_property
    def _views(self) -> dict[str, dict[ViewKey, list[Setting]]]:
        keys = {protocol.canonical: key for key, protocol in self.protocols.items()}
        found: dict[str, dict[ViewKey, list[Setting]]] = {}
        for task in self.tasks:
            of_model = found.setdefault(task.model, {})
            of_model[task.view] = [keys[protocol] for protocol in task.protocols]
        return found

    def networks(self, model: str) -> dict[ViewKey, list[Setting]]:
        """Return the views that show the network the data itself: plain first, then fine-tuned."""
        views = sorted(self.views(model).items(), key=lambda item: not item[0].is_plain)
        return {view: keys for view, keys in views if view.is_plain or view.is_fine_tuned}

    def view_of(self, model: str, key: Setting) -> ViewKey:
        """Return the view of a model that a setting evaluated."""
        views = (view for view, keys in self.views(model).items() if key in keys)
        return next(views, PLAIN_VIEW)

    def plain_twin(self, model: str, key: Setting) -> Setting | None:
        """Return the setting that asks the same of the plain model, for one of a fine-tuned one."""
        if not self.view_of(model, key).is_fine_tuned:
            return None
        twins = (k for k in self.views(model).get(PLAIN_VIEW, []) if k[1:] == key[1:])
        return next(twins, None)

    def _first_view(self, model: str) -> ViewKey:
        """Return the plain view of a model if it has one, else the first."""
        views = self.views(model)
        return PLAIN_VIEW if PLAIN_VIEW in views else next(iter(views), PLAIN_VIEW)

    def facts(self, model: str, view: ViewKey | None = None) -> ModelFacts | None:
        """Return what is on record about a view of a model, by default the plain one."""
        subject = ModelView(model, self._first_view(model) if view is None else view)
        return next((f for f in self.provenance.models if f.subject == subject), None)

    def image_size(self, model: str, view: ViewKey | None = None) -> tuple[int, int]:
        """Return height and width of a model's images in pixels; 0 if they are not on record."""
        facts = self.facts(model, view)
        return facts.height_and_width if facts else (0, 0)

    def kept(self, model: str, view: ViewKey | None = None) -> Kept:
        """Return the stored tensors of a view of a model, by default the plain one.

        They are read from disk each time: the maps of one model can be hundreds of megabytes. Those
        of more than `MOST_SAMPLES_READ` samples are not read.
        """
        facts = self.facts(model, view)
        subject = ModelView(model, self._first_view(model) if view is None else view)
        kept = Kept(head=facts.head if facts else "softmax")
        tasks = self.tasks_of(subject)
        first = self.store.first_tasks(tasks, MOST_SAMPLES_READ)
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
    def latencies(self) -> dict[tuple[str, str], Latency]:
        """The time of each method alone, by model and method; those without one are missing."""
        found = {(timed.model, timed.map_key): timed for timed in self.store.latencies().methods}
        return {
            (model, method): found[model, facts.map_key]
            for model in self.models
            for method, facts in self.methods.items()
            if (model, facts.map_key) in found
        }

    @property
    def same_as(self) -> dict[str, SaidNetwork]:
        """The models that their user says are networks of papers; only of these weights."""
        weights = {(facts.model, facts.fingerprint) for facts in self.provenance.models}
        said = self.store.same_as().networks
        return {s.model: s for s in said if (s.model, s.fingerprint) in weights}

    def class_name(self, model: str, index: int | None) -> str:
        """Return the name of a class of a model, or its index as a text."""
        if index is None:
            return "no label"
        facts = self.facts(model)
        if facts and facts.head == "regression":
            return "value"
        names = facts.class_names if facts else None
        return names[index] if names and index < len(names) else f"class {index}"


def _correct(
    logits: Tensor, labels: Sequence[int | None], head: HeadName
) -> list[bool | None]:  # (N, K), (N,)
    """Return whether each label is predicted; None where there is none."""
    if head == "regression":
        return [None] * len(labels)
    targets = torch.tensor([0 if label is None else label for label in labels])
    found = is_correct(logits, targets, head).tolist()
    return [
        None if label is None else bool(right) for right, label in zip(found, labels, strict=True)
    ]
