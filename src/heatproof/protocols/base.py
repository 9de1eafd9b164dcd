"""A protocol judges maps: what all methods share is computed once, then every method is measured sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from heatproof.baselines import Baseline
from heatproof.data.base import Data, PartViews
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.registry import Registry
from heatproof.tensor.noise import Rng


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
            return "as it is"
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
    """Settings are the fields; facts about the protocol are class variables."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: ClassVar[str]
    version: ClassVar[int]
    summary: ClassVar[str]
    higher_is_better: ClassVar[bool]
    range: ClassVar[tuple[float, float] | None]  # None: as the model's logits
    random_score: ClassVar[
        float | None
    ]  # what a map that knows nothing scores; None: it depends on the model
    target: ClassVar[Literal["label", "prediction"]]
    citation: ClassVar[str]
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
        return f"{self.id}@{self.version}({', '.join(f'{k}={v}' for k, v in sorted(self.model_dump().items()))})"


@dataclass(frozen=True)
class ProtocolEntry:
    id: str
    cls: type[Protocol]


PROTOCOLS: Registry[ProtocolEntry] = Registry("protocol")


def protocol(cls: type[Protocol]) -> type[Protocol]:
    PROTOCOLS.add(ProtocolEntry(cls.id, cls))
    return cls


def make_protocol(name: str, settings: Mapping[str, Any]) -> Protocol:
    from pydantic import ValidationError

    cls = PROTOCOLS[name].cls
    try:
        return cls(**settings)
    except ValidationError as error:
        raise HeatproofError("; ".join(_explain(name, cls, e) for e in error.errors())) from None


def _explain(name: str, cls: type[Protocol], error: Any) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"protocol {name} has no setting {key!r}; it has: {', '.join(cls.model_fields)}"
    return f"protocol {name}, {key}: found {error['input']!r}; {error['msg'].removeprefix('Value error, ')}"
