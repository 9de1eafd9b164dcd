"""The format of a run directory: its files, their content, and the keys under which it is stored.

========================================  ========================================================
``spec.json``                             the spec that the directory belongs to
``plan.json``                             the tasks of the latest plan (``PlanFile``)
``provenance.json``                       models, spec and machine of the run (``Provenance``)
``provenance/<hash>.json``                versions and hardware of a process (``Origin``)
``tasks/<task>.json``                     files and records of a finished task (``TaskManifest``)
``rows/<task>.<hash>.parquet``            one row per sample, protocol, method (``ROW_SCHEMA``)
``tensors/<task>.<hash>.safetensors``     tensors by ``TensorKey``, with ``SampleNotes``
``timings/<task>.<hash>.json``            seconds and passes (``Timings``)
``latencies.json``                        time of each method alone (``Latencies``)
``race.json``                             which methods were dropped when (``RaceFile``)
``same_as.json``                          which models are a paper's (``SameAs``)
``prepared/<key>.<hash>.safetensors``     tensors computed once per run (``PreparedKey``)
``parts/<task>/<n>.<hash>.safetensors``   what an unfinished task has computed (``PartNotes``)
``damaged/``                              files that were set aside, and ``notes.txt``
========================================  ========================================================

Every file can be verified. A file with a ``<hash>`` in its name has these digits at the start of
its SHA-256; the others are JSON objects whose first entry is the SHA-256 of the rest (``seal``).
Nothing outside this module builds or parses a file name or a key. Texts for people, such as
``ModelView.title``, are never parsed.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.protocols import ViewKey
from heatproof.scoring.prepared import PreparedKind
from heatproof.tensor.scores import HeadName
from heatproof.text import clip

FORMAT: Literal[3] = 3  # of the directory; a run of another format is run again rather than read
UPGRADABLE = 2  # files of this format are taken over, since only their names were different
SHARD_SIZE = 64  # samples per task; fixed, so that a larger limit reuses what a smaller one did
Count = Annotated[int, Field(ge=0, lt=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e38, le=1e38)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]  # of an origin, also a file's name
Milliseconds = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e12)]
Side = Annotated[int, Field(ge=1, le=2**16)]  # of an image, in pixels
Setting = tuple[str, str, str]  # protocol, setting, baseline: the columns of the rows


# Files

FileKind = Literal["rows", "tensors", "timings"]  # of a finished task, also the names of folders
SUFFIXES: dict[FileKind, str] = {
    "rows": ".parquet",
    "tensors": ".safetensors",
    "timings": ".json",
}
TaskPaths = dict[FileKind, list[Path]]
HASH_DIGITS = 16  # of a SHA-256 in the name of a file
_NAME_HASH = re.compile(rf"\.([0-9a-f]{{{HASH_DIGITS}}})\.[a-z]+$")


def hashed_name(stem: str, sha256: str, suffix: str) -> str:
    """Return the name of a file that says what its SHA-256 is."""
    return f"{stem}.{sha256[:HASH_DIGITS]}{suffix}"


def name_hash(name: str) -> str | None:
    """Return how the SHA-256 of a file begins, as its name says; None if it does not say it."""
    found = _NAME_HASH.search(name)
    return found[1] if found else None


@dataclass(frozen=True)
class RunPaths:
    """The files of a run directory."""

    root: Path

    @property
    def spec(self) -> Path:
        return self._inside("spec.json")

    @property
    def plan(self) -> Path:
        return self._inside("plan.json")

    @property
    def provenance(self) -> Path:
        return self._inside("provenance.json")

    @property
    def latencies(self) -> Path:
        return self._inside("latencies.json")

    @property
    def race(self) -> Path:
        return self._inside("race.json")

    @property
    def same_as(self) -> Path:
        return self._inside("same_as.json")

    @property
    def lock(self) -> Path:
        return self._inside(".lock")

    @property
    def report(self) -> Path:
        return self._inside("report")

    @property
    def damaged(self) -> Path:
        return self._inside("damaged")

    def manifest(self, task: str) -> Path:
        return self._inside("tasks", f"{task}.json")

    def folder(self, kind: str) -> Path:
        return self._inside(kind)

    def stored(self, kind: str, name: str) -> Path:
        """Return the path of a file in one of the folders."""
        return self._inside(kind, name)

    def manifests(self) -> list[Path]:
        """Return all manifests that are there."""
        return self._found("tasks", "*.json")

    def of_task(self, task: str) -> TaskPaths:
        """Return all files that a task has written, with a hash in their names."""
        return {
            kind: [path for path in self._found(kind, f"{task}.*{suffix}") if name_hash(path.name)]
            for kind, suffix in SUFFIXES.items()
        }

    def of_tasks(self) -> dict[str, TaskPaths]:
        """Return the files of all tasks; every folder is listed once."""
        found: dict[str, TaskPaths] = {}
        for kind, suffix in SUFFIXES.items():
            for path in self._found(kind, f"*{suffix}"):
                if name_hash(path.name):
                    files = found.setdefault(path.name.partition(".")[0], {k: [] for k in SUFFIXES})
                    files[kind].append(path)
        return found

    def parts(self, task: str) -> Path:
        return self._inside("parts", task)

    def prepared(self, key: PreparedKey) -> list[Path]:
        """Return the files with the tensors under a key."""
        found = self._found("prepared", f"{key.digest}.*.safetensors")
        return [path for path in found if name_hash(path.name)]

    def _found(self, folder: str, pattern: str) -> list[Path]:
        paths = sorted(self._inside(folder).glob(pattern))
        return [self._inside(folder, path.name) if path.is_symlink() else path for path in paths]

    def _inside(self, *names: str) -> Path:
        """Return a path in the directory; a run of somebody else must not lead out of it."""
        path = self.root
        for name in names:
            if name in ("", ".", "..") or "/" in name or os.sep in name:
                raise HeatproofError(f'"{clip(name)}" is not the name of a file of a run')
            path = path / name
            if os.path.islink(path) and not path.resolve().is_relative_to(self.root.resolve()):
                raise HeatproofError(
                    f"{path} is a link that leads out of the run's directory; remove it, or "
                    "replace it by what it leads to"
                )
        return path


def is_run(directory: Path) -> bool:
    """Return whether a directory holds a run."""
    return os.path.isfile(RunPaths(directory).plan)  # takes any name


# Keys


class ModelView(NamedTuple):
    """A model under one of its views: what a task evaluates."""

    model: str  # its name in the rows
    view: ViewKey = ViewKey()

    @property
    def title(self) -> str:
        """A text for people."""
        return self.model if self.view.is_plain else f"{self.model}, {self.view.label}"


@dataclass(frozen=True)
class TensorKey:
    """The key of a stored tensor, whose first axis is that of the samples of a task.

    Attributes:
        kind: ``logits`` ``(N, K)`` of the intact images; ``channel_peaks`` ``(N, C)``, the largest
            activation of some channels; ``images`` ``(n, C, H, W)`` of the first samples, 8 bit;
            ``map`` ``(n, h, w)`` of the first samples, half precision, scaled to a largest absolute
            value of 1, and ``map_scale`` ``(n,)``, by which it was divided; ``shared``, what a
            protocol computes for all methods; ``curve`` ``(N, S)``, what it keeps of one method;
            ``native`` ``(n, h, w)``, maps as they were computed, and ``state``, the state of an
            optimisation, in parts of unfinished tasks only.
        protocol: The protocol's canonical name, for ``shared`` and ``curve``.
        method: The method's label, for ``map``, ``map_scale`` and ``curve``.
        name: What the protocol calls it, for ``shared`` and ``curve``.
    """

    kind: Literal[
        "logits",
        "channel_peaks",
        "images",
        "map",
        "map_scale",
        "shared",
        "curve",
        "native",
        "state",
    ]
    protocol: str = ""
    method: str = ""
    name: str = ""

    @classmethod
    def map(cls, method: str) -> TensorKey:
        return cls("map", method=method)

    @classmethod
    def map_scale(cls, method: str) -> TensorKey:
        return cls("map_scale", method=method)

    @classmethod
    def shared(cls, protocol: str, name: str) -> TensorKey:
        return cls("shared", protocol=protocol, name=name)

    @classmethod
    def native(cls, map_key: str, targets: str) -> TensorKey:
        return cls("native", method=map_key, name=targets)

    @classmethod
    def state(cls, map_key: str, name: str) -> TensorKey:
        return cls("state", method=map_key, name=name)

    @classmethod
    def curve(cls, protocol: str, method: str, name: str) -> TensorKey:
        return cls("curve", protocol=protocol, method=method, name=name)

    def encode(self) -> str:
        """Return the key as JSON, so that every field may contain any character."""
        return _encoded(self)

    @classmethod
    def decode(cls, text: str) -> TensorKey:
        """Parse what ``encode`` returns; raises ValidationError for anything else."""
        return _decoded(text)


_TENSOR_KEY = TypeAdapter(TensorKey)


# All tasks of a run have the same keys.
@lru_cache(maxsize=20_000)
def _encoded(key: TensorKey) -> str:
    return json.dumps({field: value for field, value in asdict(key).items() if value})


@lru_cache(maxsize=20_000)
def _decoded(text: str) -> TensorKey:
    return _TENSOR_KEY.validate_json(text)


class BlockKey(NamedTuple):
    """The key of a tensor that belongs to a block of samples of a task."""

    start: int  # position of the first sample in the task
    tensor: TensorKey

    def encode(self) -> str:
        return f"{self.start} {self.tensor.encode()}"

    @classmethod
    def decode(cls, text: str) -> BlockKey:
        start, _, tensor = text.partition(" ")
        return cls(int(start), TensorKey.decode(tensor))


LOGITS = TensorKey("logits")
CHANNEL_PEAKS = TensorKey("channel_peaks")
IMAGES = TensorKey("images")


@dataclass(frozen=True)
class TimingKey:
    """A step that was timed: the maps of a method, the shared part of a protocol, or a score.

    Attributes:
        kind: ``maps``, ``shared`` or ``scores``.
        method: The method's map key for ``maps``, its label for ``scores``.
        protocol: The protocol's canonical name, for ``shared`` and ``scores``.
    """

    kind: Literal["maps", "shared", "scores"]
    method: str = ""
    protocol: str = ""


@dataclass(frozen=True)
class PreparedKey:
    """Identifies tensors that are computed once per run, from images that are not evaluated."""

    kind: PreparedKind
    name: str
    version: int | str  # with the hash of the code, if it is a user's own
    model: str  # fingerprint
    backend: str
    reference: str  # fingerprint of the reference images

    @property
    def digest(self) -> str:
        return content_hash(json.dumps(asdict(self)), length=24)


# Content of the files


class Content(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class GridNote(Content):
    """The images of a sample on a grid, and the cell that is evaluated."""

    images: tuple[str, ...]  # ids of the images in the grid, row by row
    cell: int  # the grid cell that is evaluated


class SampleNotes(Content):
    """The samples of a task, in the order of the first axis of its tensors."""

    ids: list[str] = []
    labels: list[int | None] = []
    grids: list[GridNote] | None = None  # None: the samples are not grids


class TaskContent(Content):
    """Identity of samples, methods and protocols of a task; older versions did not write it.

    Tensors are stored under the labels of methods. Two methods may have the same label, for example
    before and after an edit of their code, and so may two models or seeds.
    """

    samples: str = ""  # hash of samples, weights, backend, seed and code of the data
    methods: dict[str, str] = {}  # by label, what identifies a method at its layer
    maps: dict[str, str] = {}  # by label, whether the stored maps explain the label or prediction
    protocols: dict[str, str] = {}  # by canonical name, what identifies what methods share


class Timing(Content):
    """The seconds that one thing took in all batches of a task."""

    key: TimingKey
    seconds: float


class PassCount(Content):
    """How many images went through the network, forwards or backwards."""

    kind: Annotated[str, Field(pattern=r"^(forward|backward)$")]
    start: str = ""  # the layer that the passes began at; empty for the image
    images: int


class Timings(Content):
    """Seconds and passes of a task."""

    seconds: list[Timing] = []
    passes: list[PassCount] = []
    batch_size: int = 0  # of the latest attempt
    images: int = 0

    def seconds_of(self, key: TimingKey) -> float | None:
        return next((timing.seconds for timing in self.seconds if timing.key == key), None)

    def updated(
        self,
        seconds: Mapping[TimingKey, float],
        passes: Mapping[str, int],
        batch_size: int,
        images: int,
    ) -> Timings:
        """Return these timings after another attempt, which replaces what it repeats.

        Args:
            seconds: What the attempt took.
            passes: Images by kind of pass, as ``Model.pass_counts`` has them.
            batch_size: Images in one pass.
            images: Number of samples.
        """
        merged = {timing.key: timing.seconds for timing in self.seconds} | dict(seconds)
        counts = Counter({(count.kind, count.start): count.images for count in self.passes})
        for name, number in passes.items():
            kind, _, start = name.partition(" from ")
            counts[kind, start] += number
        return Timings(
            seconds=[Timing(key=key, seconds=value) for key, value in merged.items()],
            passes=[
                PassCount(kind=kind, start=start, images=number)
                for (kind, start), number in counts.items()
            ],
            batch_size=batch_size,
            images=images,
        )


class Latency(Content):
    """How long a method takes alone, on one machine.

    Attributes:
        model: The model's name in the rows.
        map_key: What identifies the map before its transforms, which take next to no time.
        machine: The processor or accelerator, and the number of threads.
        milliseconds: Of one map, of a single image; None if it was not timed.
        is_from_run: Whether that is the time in the run, where methods may share passes, since
            timing it alone would have taken long.
        batch_milliseconds: Of one map, ``batch_size`` of them at a time; None if it was not timed.
        batch_size: Images in the batch.
        peak_bytes: Memory that maps of the batch need, beyond the model; None where it is unknown.
        reason: Why it was not timed; empty if it was.
    """

    model: str
    map_key: str
    machine: str
    milliseconds: Milliseconds | None = None
    is_from_run: bool = False
    batch_milliseconds: Milliseconds | None = None
    batch_size: Count = 0
    peak_bytes: Count | None = None
    reason: str = ""


class Latencies(Content):
    """``latencies.json``: the time of each method of a run, alone."""

    methods: list[Latency] = []


class SaidNetwork(Content):
    """A model that its user says is a network of a paper.

    Attributes:
        model: The model of the run.
        fingerprint: Its weights; of other weights nothing is said.
        network: The name of the network in the tables of papers.
        by: How it was said, such as ``--as``.
    """

    model: str
    fingerprint: str
    network: str
    by: str


class SameAs(Content):
    """``same_as.json``: which models of a run its user says are networks of papers."""

    networks: list[SaidNetwork] = []


class PartNotes(Content):
    """The content of a part of an unfinished task, besides its tensors.

    Attributes:
        content: What the task computes.
        ids: Readable samples of the task, in order.
        batch_size: Images in one pass.
        origin: Digest of the ``Origin`` of what the part holds.
        map_notes: Notes and missing maps, by key of native maps.
        timings: What the content of the part took.
        after: The parts that its writer had read or written before; nothing is in them and in this
            one.
    """

    content: TaskContent
    ids: list[str]
    batch_size: Annotated[int, Field(ge=1, lt=2**31)]
    origin: Digest
    map_notes: dict[str, tuple[list[str], list[str]]]
    timings: Timings
    after: list[str]


class Cost(Content):
    """Images and their passes; a backward pass includes its forward pass.

    Attributes:
        images: The number of images.
        forwards: Forward passes from the image on.
        backwards: Backward passes down to the image.
        later_forwards: Forward passes that start at a later layer.
        later_backwards: Backward passes that end at a later layer.
    """

    images: Count
    forwards: Count
    backwards: Count
    later_forwards: Count = 0
    later_backwards: Count = 0

    @classmethod
    def of(cls, images: int, passes: Mapping[str, int]) -> Cost:
        """Return the cost of images, from passes by kind as ``Model.pass_counts`` has them."""
        later = {"forward": 0, "backward": 0}
        for name, count in passes.items():
            kind, is_later, _ = name.partition(" from ")
            if is_later:
                later[kind] += count
        return cls(
            images=images,
            forwards=passes.get("forward", 0),
            backwards=passes.get("backward", 0),
            later_forwards=later["forward"],
            later_backwards=later["backward"],
        )

    def __add__(self, other: Cost) -> Cost:
        """Return the cost of both together."""
        mine, others = self.model_dump(), other.model_dump()
        return Cost(**{name: mine[name] + others[name] for name in mine})


class TransformFacts(Content):
    """A transform of a method's maps, with its arguments in order."""

    name: str
    arguments: tuple[Any, ...]


class MethodFacts(Content):
    """Facts about a method."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # earlier versions wrote more

    canonical: str
    family: str
    paper: str
    summary: str
    signed: bool
    layer: str
    layerless: str  # the label without the layer
    layerless_base: str  # the label without layer and transforms
    before_last: str  # the label without the last transform
    transforms: tuple[TransformFacts, ...]
    cost: tuple[Count, Count] | None  # forward and backward passes for a map; None: unknown
    map_key: str  # methods with the same map key share their maps
    first_seed: str = ""  # the label with the seed of the run; empty: it has that


class ProtocolFacts(Content):
    """Facts about a protocol with its settings."""

    id: str
    version: Count
    summary: str
    higher_is_better: bool
    range: tuple[Finite, Finite] | None  # None: the scale of the model's scores
    random_score: Finite | None
    citation: str
    target: str  # label or prediction
    canonical: str
    setting: str
    baseline: str
    settings: dict[str, Any]
    shared_forwards: Count  # per image, once for all methods
    method_forwards: Count  # per image and method
    explanations: Count  # per image and method
    aggregates: tuple[str, ...]  # the curves that its values are computed from, if not per sample

    @property
    def key(self) -> Setting:
        return self.id, self.setting, self.baseline


class TaskFacts(Content):
    """One task of a plan."""

    name: Annotated[str, Field(pattern=r"^[\w-]+$")]  # also the name of its files
    model: str
    view: ViewKey
    protocols: list[str]  # canonical names
    records: list[str]

    @property
    def subject(self) -> ModelView:
        return ModelView(self.model, self.view)


class ViewFacts(Content):
    """One view of a model in a plan."""

    model: str
    view: ViewKey
    cost: Cost
    pool: dict[int, Count] | None = None  # class -> number of images that grids are drawn from
    reused: Count = 0  # images that occur in more than one grid

    @property
    def subject(self) -> ModelView:
        return ModelView(self.model, self.view)


class PlanFile(Content):
    """``plan.json``: the latest plan of a run."""

    format: Literal[3] = FORMAT
    tasks: list[TaskFacts]
    methods: dict[str, MethodFacts]  # by label
    protocols: list[ProtocolFacts]
    views: list[ViewFacts]

    @model_validator(mode="after")
    def _protocols_exist(self) -> PlanFile:
        planned = {protocol.canonical for protocol in self.protocols}
        for task in self.tasks:
            missing = [name for name in task.protocols if name not in planned]
            if missing:
                raise ValueError(f"task {task.name} names a protocol that is missing: {missing[0]}")
        return self


class EpochFacts(Content):
    """Measurements on validation images after an epoch of fine-tuning; 0 is before it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    epoch: int
    loss: float | None = None
    accuracy: float
    worst_all: float  # correct whichever patch is deleted
    worst_largest: float
    drop: float | None = None
    idsds: float | None = None  # mean over the probe methods
    idsds_error: float | None = None
    probes: dict[str, float] = {}


class FineTuningFacts(Content):
    """How weights were fine-tuned, as their file says."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    fine_tuned: str  # patches and baseline
    base: str  # fingerprint of the weights before
    data: str
    lr: float
    epochs: int
    batch_size: int
    step: int
    seed: int
    loss: str
    images: int
    tested: int  # validation images that worst-patch accuracy was measured on
    kept: int  # epoch
    history: list[EpochFacts] = []

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> FineTuningFacts | None:
        """Read the metadata of a weights file; None if they do not say it."""
        try:
            recipe = json.loads(metadata["recipe"])
            recipe["data"] = recipe["data"].rpartition(" ")[0]  # without the hash of the images
            history = json.loads(metadata["history"])
            return cls(**recipe, kept=int(metadata["epoch"]), history=history)
        # An error of pydantic is a ValueError.
        except (KeyError, ValueError, TypeError, AttributeError):
            return None

    @property
    def kept_epoch(self) -> EpochFacts:
        """Measurements after the epoch whose weights were kept."""
        kept = (epoch for epoch in self.history if epoch.epoch == self.kept)
        return next(kept, self.history[-1])


class ModelFacts(Content):
    """Facts about one view of a model."""

    model: str
    view: ViewKey
    fingerprint: str
    fine_tuned: str
    fine_tuning: FineTuningFacts | None = None  # None: not fine-tuned, or not on record
    backend: str
    backend_reason: str = ""  # why it was chosen; empty if the spec names it
    parameters: Count
    size: Side | tuple[Side, Side]  # the side of square images in pixels; else height and width
    image_channels: Side = 3
    classes: Annotated[int, Field(ge=1, le=2**31)]
    head: HeadName = "softmax"
    class_names: list[str] | None
    layers: dict[str, str]  # of the aliases middle, final, cam
    all_layers: list[str]
    target: str = ""  # what is explained; empty: what each protocol says
    output_advice: str = ""  # what to do about outputs that are not logits
    mean: list[Finite] = []  # of images in [0, 1], by channel; empty if it is not on record
    std: list[Finite] = []
    normalization: str = ""  # whether mean and std were given, or whose they are
    channels: list[int] = []  # of the layer cam: those whose largest activations are stored

    @property
    def subject(self) -> ModelView:
        return ModelView(self.model, self.view)

    @property
    def height_and_width(self) -> tuple[int, int]:
        """The size of the images in pixels."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def size_text(self) -> str:
        """The size of the images, with their channels where they are not colour images."""
        height, width = self.height_and_width
        size = f"{height} px" if height == width else f"{height}×{width} px"
        return size if self.image_channels == 3 else f"{size}, {channels_text(self.image_channels)}"

    @property
    def classes_text(self) -> str:
        """The number of classes, with the head where it is not a softmax."""
        return str(self.classes) if self.head == "softmax" else f"{self.classes} ({self.head} head)"


def channels_text(count: int) -> str:
    """Return the number of channels, and how pictures show them if they cannot show all."""
    if count == 1:
        return "grey"
    shown = "their mean" if count == 2 else "the first three"
    return f"{count} channels (pictures show {shown})"


class Hardware(Content):
    """The machine of a run."""

    machine: str
    cpu: str
    cores: int | None
    threads: int


class Origin(Content):
    """Versions and hardware that computed a record; stored once per digest."""

    heatproof: str
    git: str | None
    python: str
    packages: dict[str, str]
    hardware: Hardware
    device: str
    backend: str
    batch_size: int  # images in one pass

    @property
    def digest(self) -> str:
        return content_hash(to_json(self), length=HASH_DIGITS)


class StoredFile(Content):
    """A file of a finished task."""

    name: Annotated[str, Field(pattern=r"^[\w-]+\.[0-9a-f]{16}\.[a-z]+$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Count


class RecordGroup(Content):
    """Records of a task that have the same numbers of rows and were computed in the same way."""

    rows: dict[str, Count]  # number of rows of each record by status
    origins: list[int] = []  # which of the task's origins computed them
    records: list[str]


class TaskManifest(Content):
    """``tasks/<task>.json``, which is written last: a task that has it is finished."""

    task: Annotated[str, Field(pattern=r"^[\w-]+$")]
    files: dict[FileKind, StoredFile]
    content: TaskContent
    groups: list[RecordGroup]  # few, so that thousands of manifests are read in seconds
    origins: list[Digest] = []
    rebuilt: bool = False  # whether it was lost and made anew from the files

    @model_validator(mode="after")
    def _is_whole(self) -> TaskManifest:
        if self.files.keys() != SUFFIXES.keys():
            raise ValueError(f"it does not name the files {', '.join(SUFFIXES)}")
        known = range(len(self.origins))
        if any(i not in known for group in self.groups for i in group.origins):
            raise ValueError("a record has an origin that is not listed")
        return self

    @cached_property
    def records(self) -> dict[str, RecordGroup]:
        """The group of each record."""
        return {record: group for group in self.groups for record in group.records}

    @property
    def failed(self) -> set[str]:
        """The records that failed for some sample."""
        failed = (group.records for group in self.groups if group.rows.get("failed"))
        return set().union(*failed)


class Provenance(Content):
    """``provenance.json``: what is needed to understand or repeat a run."""

    heatproof: str
    git: str | None
    python: str
    packages: dict[str, str]
    hardware: Hardware
    devices: list[str]
    started: str
    models: list[ModelFacts]
    spec: dict[str, Any]


NO_TASKS = b'"tasks": []'


def plan_parts(plan: PlanFile, tasks: Iterable[TaskFacts]) -> Iterator[bytes]:
    """Yield the bytes of a plan with some tasks, part by part: it can have millions of records.

    Args:
        plan: The plan, without tasks.
        tasks: Its tasks.
    """
    before, _, after = to_json(plan).partition(NO_TASKS)
    yield before + NO_TASKS[:-1]
    separator = b"\n  "
    for task in tasks:
        yield separator + to_json(task).replace(b"\n", b"\n  ")
        separator = b",\n  "
    yield (b"]" if separator == b"\n  " else b"\n ]") + after


def to_json(content: BaseModel) -> bytes:
    """Return the bytes of a JSON file."""
    return content.model_dump_json(indent=1).encode()
