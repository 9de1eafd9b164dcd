"""The format of a run directory: its files, their content, and the keys under which it is stored.

======================================  ==========================================================
``spec.json``                           the spec that the directory belongs to
``plan.json``                           the tasks of the latest plan (``PlanFile``)
``provenance.json``                     versions, hardware, models, spec (``Provenance``)
``rows/<task>.parquet``                 one row per sample, protocol and method (``ROW_SCHEMA``)
``tensors/<task>.safetensors``          tensors by ``TensorKey``, with ``SampleNotes``
``timings/<task>.json``                 seconds and passes (``Timings``)
``prepared/<digest>.safetensors``       tensors that are computed once per run (``PreparedKey``)
======================================  ==========================================================

Nothing outside this module builds or parses a file name or a key. Texts for people, such as
``ModelView.title``, are never parsed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from heatproof.errors import HeatproofError
from heatproof.files import content_hash
from heatproof.protocols import ViewKey
from heatproof.text import clip

FORMAT: Literal[2] = 2  # of the directory; a run of another format is run again rather than read
Setting = tuple[str, str, str]  # protocol, setting, baseline: the columns of the rows

ROW_SCHEMA = pa.schema(
    [
        ("record", pa.string()),
        ("model", pa.string()),
        ("method", pa.string()),
        ("layer", pa.string()),
        ("protocol", pa.string()),
        ("setting", pa.string()),
        ("baseline", pa.string()),
        ("sample", pa.string()),
        ("target", pa.int32()),
        ("target_is", pa.string()),  # label, or prediction
        ("value", pa.float64()),
        ("status", pa.string()),  # ok, undefined, failed, missing, n/a, skipped
        ("message", pa.string()),
        ("note", pa.string()),  # what the method says about the map; may be absent in older files
    ]
)
COLUMNS = [field.name for field in ROW_SCHEMA if field.name != "record"]


# Files


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
    def lock(self) -> Path:
        return self._inside(".lock")

    @property
    def report(self) -> Path:
        return self._inside("report")

    def rows(self, task: str) -> Path:
        return self._inside("rows", f"{task}.parquet")

    def tensors(self, task: str) -> Path:
        return self._inside("tensors", f"{task}.safetensors")

    def timings(self, task: str) -> Path:
        return self._inside("timings", f"{task}.json")

    def prepared(self, key: PreparedKey) -> Path:
        return self._inside("prepared", f"{key.digest}.safetensors")

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
            protocol computes for all methods; ``curve`` ``(N, S)``, what it keeps of one method.
        protocol: The protocol's canonical name, for ``shared`` and ``curve``.
        method: The method's label, for ``map``, ``map_scale`` and ``curve``.
        name: What the protocol calls it, for ``shared`` and ``curve``.
    """

    kind: Literal["logits", "channel_peaks", "images", "map", "map_scale", "shared", "curve"]
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
    def curve(cls, protocol: str, method: str, name: str) -> TensorKey:
        return cls("curve", protocol=protocol, method=method, name=name)

    def encode(self) -> str:
        """Return the key as JSON, so that every field may contain any character."""
        return json.dumps({field: value for field, value in asdict(self).items() if value})

    @classmethod
    def decode(cls, text: str) -> TensorKey:
        """Parse what ``encode`` returns; raises ValidationError for anything else."""
        return _TENSOR_KEY.validate_json(text)


_TENSOR_KEY = TypeAdapter(TensorKey)
LOGITS = TensorKey("logits")
CHANNEL_PEAKS = TensorKey("channel_peaks")
IMAGES = TensorKey("images")


@dataclass(frozen=True)
class TimingKey:
    """What time was spent on: the maps of a method, the shared part of a protocol, or a score.

    Attributes:
        kind: ``maps``, ``shared`` or ``scores``.
        method: The method's map key for ``maps``, its label for ``scores``.
        protocol: The protocol's canonical name, for ``shared`` and ``scores``.
    """

    kind: Literal["maps", "shared", "scores"]
    method: str = ""
    protocol: str = ""


PreparedKind = Literal["method", "baseline", "protocol"]


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


class _Content(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class GridNote(_Content):
    """What a sample on a grid consists of."""

    images: tuple[str, ...]  # ids of the images in the grid, row by row
    cell: int  # the grid cell that is evaluated


class SampleNotes(_Content):
    """The samples of a task, in the order of the first axis of its tensors."""

    ids: list[str] = []
    labels: list[int | None] = []
    grids: list[GridNote] | None = None  # None: the samples are not grids


class Timing(_Content):
    """The seconds that one thing took in all batches of a task."""

    key: TimingKey
    seconds: float


class PassCount(_Content):
    """How many images went through the network, forwards or backwards."""

    kind: str
    start: str = ""  # the layer that the passes began at; empty for the image
    images: int


class Timings(_Content):
    """What a task took."""

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


class Cost(_Content):
    """Images, and passes through the whole network; a backward pass includes its forward pass."""

    images: int
    forwards: int
    backwards: int


class TransformFacts(_Content):
    """A transform of a method's maps, with its arguments in order."""

    name: str
    arguments: tuple[Any, ...]


class MethodFacts(_Content):
    """What the report says about a method."""

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
    cost: tuple[int, int] | None  # forward and backward passes per image; None: unknown
    map_key: str  # methods with the same map key share their maps


class ProtocolFacts(_Content):
    """What the report says about a protocol with its settings."""

    id: str
    version: int
    summary: str
    higher_is_better: bool
    range: tuple[float, float] | None  # None: the scale of the model's scores
    random_score: float | None
    citation: str
    target: str  # label or prediction
    canonical: str
    setting: str
    baseline: str
    settings: dict[str, Any]
    shared_forwards: int  # per image, once for all methods
    method_forwards: int  # per image and method
    explanations: int  # per image and method
    aggregates: tuple[str, ...]  # the curves that its values are computed from, if not per sample

    @property
    def key(self) -> Setting:
        return self.id, self.setting, self.baseline


class TaskFacts(_Content):
    """One task of a plan."""

    name: Annotated[str, Field(pattern=r"^[\w-]+$")]  # also the name of its files
    model: str
    view: ViewKey
    protocols: list[str]  # canonical names
    records: list[str]

    @property
    def subject(self) -> ModelView:
        return ModelView(self.model, self.view)


class ViewFacts(_Content):
    """One view of a model in a plan."""

    model: str
    view: ViewKey
    cost: Cost
    pool: dict[int, int] | None = None  # class -> number of images that grids are drawn from
    reused: int = 0  # images that occur in more than one grid

    @property
    def subject(self) -> ModelView:
        return ModelView(self.model, self.view)


class PlanFile(_Content):
    """``plan.json``: the latest plan of a run."""

    format: Literal[2] = FORMAT
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


class EpochFacts(_Content):
    """What was measured on validation images after an epoch of fine-tuning; 0 is before it."""

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


class FineTuningFacts(_Content):
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
        """What was measured after the epoch whose weights were kept."""
        kept = (epoch for epoch in self.history if epoch.epoch == self.kept)
        return next(kept, self.history[-1])


class ModelFacts(_Content):
    """What is recorded about one view of a model."""

    model: str
    view: ViewKey
    fingerprint: str
    fine_tuned: str
    fine_tuning: FineTuningFacts | None = None  # None: not fine-tuned, or not on record
    backend: str
    parameters: int
    size: int
    classes: int
    class_names: list[str] | None
    layers: dict[str, str]  # of the aliases middle, final, cam
    all_layers: list[str]
    output_advice: str = ""  # what to do about outputs that are not logits
    channels: list[int] = []  # of the layer cam: those whose largest activations are stored

    @property
    def subject(self) -> ModelView:
        return ModelView(self.model, self.view)


class Hardware(_Content):
    """The machine of a run."""

    machine: str
    cpu: str
    cores: int | None
    threads: int


class Provenance(_Content):
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


Content = TypeVar("Content", bound=BaseModel)


def to_json(content: BaseModel) -> bytes:
    """Return the bytes of a JSON file."""
    return content.model_dump_json(indent=1).encode()


def read_json(path: Path, kind: type[Content]) -> Content:
    """Read a JSON file of a run and validate it.

    Raises:
        HeatproofError: If the file is damaged, or was written by another version of heatproof.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        content = _object(path)
        if kind is PlanFile and content and content.get("format") != FORMAT:
            raise HeatproofError(
                f"{path} was written by another version of heatproof; run its spec again into the "
                "same directory, or into another"
            ) from None
        raise damaged(path, f"{where}: {problem['msg']}" if where else problem["msg"]) from None


def read_spec(path: Path) -> dict[str, Any]:
    """Read ``spec.json``.

    Raises:
        HeatproofError: If the file is damaged.
    """
    spec = _object(path)
    if not spec:
        raise damaged(path, "it is not a JSON object")
    return spec


def damaged(path: Path, problem: str) -> HeatproofError:
    """Return the error for a file that cannot be read."""
    return HeatproofError(
        f"{path} is damaged ({problem}); restore it, or delete the directory of the run and run "
        "its spec again"
    )


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
