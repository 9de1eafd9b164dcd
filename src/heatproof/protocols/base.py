"""A protocol judges maps: what all methods share is computed once, then every method is measured sample by sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from heatproof.baselines import Baseline
from heatproof.baselines.base import PreparedBaselines, no_reference
from heatproof.data.base import Data, PartViews
from heatproof.errors import HeatproofError, format_invalid
from heatproof.models.model import Model
from heatproof.registry import Registry
from heatproof.tensor.noise import Rng
from heatproof.userfile import source_hash


@dataclass(frozen=True)
class ViewKey:
    """Identifies what a protocol evaluates in place of a model and its data.

    Attributes:
        kind: ``plain`` is the model as it is, ``fine-tuned`` the model with other weights, ``grid``
            the model on grids of images; ``other`` is for protocols of third parties.
        name: What distinguishes views of one kind: ``16/zero`` of fine-tuned weights, protocol and
            settings of grids.
        cell: The grid cell that is evaluated, for views of the kind ``grid``.
    """

    kind: Literal["plain", "fine-tuned", "grid", "other"] = "plain"
    name: str = ""
    cell: int | None = None

    @property
    def is_plain(self) -> bool:
        return self.kind == "plain"

    @property
    def is_fine_tuned(self) -> bool:
        return self.kind == "fine-tuned"

    @property
    def label(self) -> str:
        """A text for people, empty for the plain view; programs compare the fields."""
        if self.is_plain:
            return ""
        if self.is_fine_tuned:
            return f"fine-tuned {self.name}"
        return self.name if self.cell is None else f"{self.name}, cell {self.cell}"

    @property
    def description(self) -> str:
        """The label in words, which are never empty."""
        if self.is_plain:
            return "original"
        return f"fine-tuned ({self.name})" if self.is_fine_tuned else self.label


@dataclass
class EvalBatch:
    """The samples of a task as a protocol sees them."""

    ids: list[str]
    x: Tensor  # (B, C, H, W) in the model's input space
    target: Tensor  # (B,)
    clean: Tensor  # (B, K) logits of x
    rng: Rng
    parts: PartViews | None = None  # where the protocol needs them
    silhouette: Tensor | None = None  # (B, H, W) bool, where the data has them
    prepared: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # what the protocol's `prepare` found
    prepared_baseline: PreparedBaselines = no_reference  # what a baseline has prepared
    explain: Callable[[Tensor], Tensor] | None = (
        None  # the maps of other images of these samples, by the method that is judged
    )
    batch_cache: dict[Hashable, Any] = field(
        default_factory=dict
    )  # work that protocols share, for all methods
    map_cache: dict[Hashable, Any] = field(
        default_factory=dict
    )  # work that protocols share, for the maps that are judged
    view: ViewKey = ViewKey()


class Scores(NamedTuple):
    value: Tensor  # (B,) float64; nan where undefined
    reasons: list[str]  # the reason, where it is undefined; else empty
    curves: Mapping[str, Tensor] = {}  # (B, S) each; kept with the run


Shared = Mapping[
    str, Tensor
]  # per-sample arrays, first axis B; kept with the run; `picture` of the first samples only
PICTURES = 4  # samples of which pictures are kept for every setting


class View(NamedTuple):
    """What is evaluated in place of (model, data). Protocols with equal view keys share a task."""

    key: ViewKey
    model: Model
    data: Data


class Protocol(BaseModel):
    """Base class of protocols: settings are the fields, facts are class variables.

    A protocol of your own defines `id`, `higher_is_better` and `score_maps`, and is registered
    with the `protocol` decorator.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: ClassVar[str]
    version: ClassVar[int] = 1
    source: ClassVar[str | None] = None  # hash of a user's code; None for what ships
    summary: ClassVar[str] = ""  # by default the first line of the docstring
    higher_is_better: ClassVar[bool]
    range: ClassVar[tuple[float, float] | None] = None  # None: as the model's logits
    # the score of a map that knows nothing; None: it depends on the model
    random_score: ClassVar[float | None] = None
    target: ClassVar[Literal["label", "prediction"]] = "label"
    citation: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = (
        frozenset()
    )  # `parts`: data whose objects have parts; `silhouette`: with masks
    constant_maps: ClassVar[bool] = (
        False  # whether a map that is the same everywhere has a score too
    )
    aggregates: ClassVar[
        tuple[str, ...]
    ] = ()  # curves of all samples without which none has a value; `measure` then leaves it open

    def facts(self) -> dict[str, Any]:
        names = (
            "id",
            "version",
            "summary",
            "higher_is_better",
            "range",
            "random_score",
            "citation",
        )
        return {**{name: getattr(self, name) for name in names}, "target": self.target_policy}

    @property
    def target_policy(self) -> Literal["label", "prediction"]:
        """What its maps explain: the target, where no setting says otherwise."""
        return self.target

    def views(
        self, model: Model, data: Data, among: Sequence[tuple[Model, Data]] = ()
    ) -> list[View]:
        """Before anything is divided into shards. among: all models of the plan that it can judge, each with its data."""
        return [View(ViewKey(), model, data)]

    @property
    def fine_tuning(self) -> str:
        """The fine-tuned weights it needs, such as 16/zero."""
        return ""

    def check(self, model: Model) -> None:
        """Raises where the settings do not fit the model: before anything runs."""
        if self.baseline_name and not (removal := Baseline.parse(self.baseline_name)).entry.prepare:
            blank = torch.zeros(
                1, len(model.mean), model.size, model.size, device=model.device, dtype=model.dtype
            )
            removal.fill(blank, model, Rng(0, [""], model.device))

    def shared_passes(self) -> Mapping[Hashable, int]:
        """Forwards an image for what all methods share, besides the clean one, by what they are: protocols may have some in common."""
        return {}

    def passes(self) -> Mapping[Hashable, int]:
        """Forwards an image for every method, by what they are."""
        return {}

    def explanations(self) -> int:
        """How often every method explains an image anew."""
        return 0

    @property
    def needs_reference(self) -> bool:
        """Whether it needs images that are not judged, for itself or for its baseline."""
        return bool(
            self.preparation_key
            or (self.baseline_name and Baseline.parse(self.baseline_name).entry.prepare)
        )

    def prepare(self, model: Model, batches: Iterator[Tensor]) -> Mapping[str, Tensor]:
        """Once a run, from images that are not judged, where `prepares`."""
        return {}

    @property
    def preparation_key(self) -> str:
        """What its preparation is called; protocols that call theirs alike share it. Empty: it has none."""
        return ""

    def compute_shared(self, model: Model, batch: EvalBatch) -> Shared:
        """What all methods need, once a batch; kept with the run."""
        return {}

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        raise NotImplementedError

    def aggregate(self, curves: Mapping[str, Tensor]) -> Scores:
        """Values from the curves (N, S) of all samples that could be measured, whenever they are read, where it `aggregates`."""
        raise NotImplementedError

    def bootstrap(
        self, curves: Mapping[str, Tensor], weights: Tensor
    ) -> Tensor:  # (N, S) each, (R, N) -> (R,)
        """The mean value of samples drawn with these weights, concluded from anew; nan where a draw has none."""
        raise NotImplementedError

    @property
    def baseline_name(self) -> str:
        """Its baseline, where it has one."""
        return getattr(self, "baseline", "")

    @property
    def setting(self) -> str:
        """All settings but the baseline, which has a column of its own, and those that are left open."""
        return ", ".join(
            f"{k}={v}" for k, v in self.model_dump().items() if k != "baseline" and v is not None
        )

    @property
    def canonical(self) -> str:
        revision = self.version if self.source is None else f"{self.version}+{self.source}"
        settings = ", ".join(f"{k}={v}" for k, v in sorted(self.model_dump().items()))
        return f"{self.id}@{revision}({settings})"

    @property
    def sources(self) -> tuple[str | None, ...]:
        """The source hashes of the protocol and its baseline; None if they ship."""
        removal = Baseline.parse(self.baseline_name).entry if self.baseline_name else None
        return (self.source, removal.source if removal else None)


@dataclass(frozen=True)
class ProtocolEntry:
    id: str
    cls: type[Protocol]


P = TypeVar("P", bound=Protocol)


def protocol(cls: type[P]) -> type[P]:
    """Register a subclass of `Protocol`.

    Example::

        @hp.protocol
        class InsideMass(hp.Protocol):
            \"\"\"Fraction of the attribution inside the middle of the image.\"\"\"

            id = "inside-mass"
            higher_is_better = True
            range = (0.0, 1.0)

            border: int = 8

            def score_maps(self, model, batch, shared, maps):
                mass = maps.abs().double()
                inside = mass[:, self.border : -self.border, self.border : -self.border]
                value = inside.sum((1, 2)) / mass.sum((1, 2))
                return hp.Scores(value, [""] * len(value))

    Args:
        cls: The class. Its fields are the settings; `id` is the name in specs.

    Returns:
        The class, unchanged but for its summary and source hash.

    Raises:
        HeatproofError: If facts are missing, or there is already a protocol of that name.
    """
    missing = [fact for fact in ("id", "higher_is_better") if not hasattr(cls, fact)]
    if missing:
        raise HeatproofError(
            f"protocol {cls.__name__} does not define {' and '.join(missing)}; write them as class "
            "variables"
        )
    cls.source = source_hash(cls)
    cls.summary = cls.summary or inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]
    PROTOCOLS.add(ProtocolEntry(cls.id, cls), cls)
    return cls


def _entry_of(cls: Any, name: str) -> ProtocolEntry:
    if not (isinstance(cls, type) and issubclass(cls, Protocol)):
        raise HeatproofError(
            f"a protocol is a name or a subclass of heatproof.protocols.Protocol; got {cls!r}"
        )
    protocol(cls)
    return PROTOCOLS[cls.id]


PROTOCOLS: Registry[ProtocolEntry] = Registry("protocol", _entry_of)


STORED_FACTS = (
    "version",
    "summary",
    "higher_is_better",
    "range",
    "random_score",
    "target",
    "citation",
)


def register_stored(facts: Mapping[str, Any]) -> None:
    """Make the facts about a stored run's protocol known if its code is not loaded.

    A run can thus be summarized and reported without the user's code, which is never run for it.

    Args:
        facts: What `Protocol.facts` returned when the run was made.
    """
    name = facts["id"]
    if name not in PROTOCOLS or PROTOCOLS.is_placeholder(name):
        known = {fact: facts[fact] for fact in STORED_FACTS if fact in facts}
        stored = type("StoredProtocol", (Protocol,), {"id": name, **known})
        PROTOCOLS.add(ProtocolEntry(name, stored), stored, placeholder=True)


def stored_protocol(name: str, settings: Mapping[str, Any]) -> Protocol | None:
    """Return the protocol of a stored run, or None if its code is not loaded.

    The settings were validated when the run was made. They are not validated again, as this could
    load files that they name.
    """
    if name not in PROTOCOLS or PROTOCOLS.is_placeholder(name):
        return None
    return PROTOCOLS[name].cls.model_construct(**settings)


def make_protocol(name: str, settings: Mapping[str, Any]) -> Protocol:
    """Return a protocol with its settings.

    Args:
        name: A registered name, or ``file:path.py:Class``.
        settings: Values of its fields, by name.

    Raises:
        HeatproofError: If there is no such protocol, or a setting does not fit.
    """
    cls = PROTOCOLS.resolve(name).cls
    if PROTOCOLS.is_placeholder(name):
        raise HeatproofError(
            f'protocol "{name}" was read from a stored run, and its code is not loaded; import it, '
            "or name it as file:path.py:Class"
        )
    try:
        return cls(**settings)
    except ValidationError as error:
        messages = [_explain(cls, details) for details in error.errors()]
        raise HeatproofError("; ".join(messages)) from None


def _explain(cls: type[Protocol], details: Any) -> str:
    if details["type"] == "extra_forbidden":
        fields = ", ".join(cls.model_fields) or "none"
        return f"protocol {cls.id} has no setting {details['loc'][-1]!r}; it has: {fields}"
    return f"protocol {cls.id}, {format_invalid(details)}"
