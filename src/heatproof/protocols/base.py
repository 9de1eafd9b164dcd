"""A protocol judges maps: what all methods share is computed once, then every method is measured sample by sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass
class Judged:
    """The samples of a task as a protocol sees them."""

    ids: list[str]
    x: Tensor  # (B, C, H, W) in the model's input space
    target: Tensor  # (B,)
    clean: Tensor  # (B, K) logits of x
    rng: Rng
    parts: PartViews | None = None  # where the protocol needs them


class Measured(NamedTuple):
    value: Tensor  # (B,) float64; nan where undefined
    why: list[str]  # the reason, where it is undefined; else empty


Shared = Mapping[str, Tensor]  # per-sample arrays, first axis B; kept with the run


class Pose(NamedTuple):
    """What is judged in place of (model, data). Protocols whose poses have the same view share a task."""

    view: str  # "": as they are
    model: Model
    data: Data


class Protocol(BaseModel):
    """Settings are the fields; facts about the protocol are class variables."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: ClassVar[str]
    version: ClassVar[int]
    summary: ClassVar[str]
    higher_is_better: ClassVar[bool]
    range: ClassVar[tuple[float, float]]
    random_score: ClassVar[float]  # what a map that knows nothing scores
    target: ClassVar[Literal["label", "prediction"]]
    citation: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()  # `parts`: data whose objects have parts

    def facts(self) -> dict[str, Any]:
        names = ("id", "version", "summary", "higher_is_better", "range", "random_score", "target", "citation")
        return {name: getattr(self, name) for name in names}

    def pose(self, model: Model, data: Data) -> list[Pose]:
        """Before anything is divided into shards."""
        return [Pose("", model, data)]

    @property
    def alignment(self) -> str:
        """The fine-tuned weights it needs, such as 16/zero."""
        return ""

    def check(self, model: Model) -> None:
        """Raises where the settings do not fit the model: before anything runs."""
        if self.removal:
            blank = torch.zeros(1, len(model.mean), model.size, model.size, device=model.device, dtype=model.dtype)
            Baseline.parse(self.removal).fill(blank, model, Rng(0, [""], model.device))

    def forwards(self) -> int:
        """Passes an image for what all methods share, besides the clean one."""
        raise NotImplementedError

    def share(self, model: Model, batch: Judged) -> Shared:
        raise NotImplementedError

    def measure(self, model: Model, batch: Judged, shared: Shared, maps: Tensor) -> Measured:
        raise NotImplementedError

    @property
    def removal(self) -> str:
        """Its baseline, where it has one."""
        return getattr(self, "baseline", "")

    @property
    def setting(self) -> str:
        """All settings but the baseline, which has a column of its own, and those that are left open."""
        return ", ".join(f"{k}={v}" for k, v in self.model_dump().items() if k != "baseline" and v is not None)

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
