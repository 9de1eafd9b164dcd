"""Tensors that methods, baselines and protocols compute from images that are not evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from torch import Tensor

from heatproof.baselines import Baseline
from heatproof.data.reference import Reference
from heatproof.methods import Expression
from heatproof.methods.explain import prepare
from heatproof.models.model import Model
from heatproof.protocols import Protocol

PreparedKind = Literal["method", "baseline", "protocol"]


class PreparedTensors:
    """Prepares tensors on first use, and keeps them in memory.

    Args:
        model: The model.
        reference: The images that are not evaluated; None if nothing needs them.
    """

    def __init__(self, model: Model, reference: Reference | None):
        self.model = model
        self.reference = reference
        self._loaded: dict[tuple[PreparedKind, str, int | str], Mapping[str, Tensor]] = {}

    def for_method(self, expression: Expression) -> Mapping[str, Tensor]:
        """Return the tensors that a method has prepared."""
        return self._once(
            "method",
            expression.map_key,
            0,
            lambda images: prepare(expression, self.model, images),
        )

    def for_baseline(self, baseline: Baseline) -> Mapping[str, Tensor]:
        """Return the tensors that a baseline has prepared."""
        return self._once(
            "baseline",
            baseline.label,
            baseline.entry.revision,
            lambda images: baseline.prepare(self.model, images.batches(self.model)),
        )

    def for_protocol(self, protocol: Protocol) -> Mapping[str, Tensor]:
        """Return the tensors that a protocol has prepared; none if it prepares nothing."""
        if not protocol.preparation_key:
            return {}
        return self._once(
            "protocol",
            protocol.preparation_key,
            protocol.source or 0,
            lambda images: protocol.prepare(self.model, images.batches(self.model)),
        )

    def _once(
        self,
        kind: PreparedKind,
        name: str,
        version: int | str,
        compute: Callable[[Reference], Mapping[str, Tensor]],
    ) -> Mapping[str, Tensor]:
        reference = self.reference
        assert reference is not None, "checked before: what prepares tensors has a reference"
        if (kind, name, version) not in self._loaded:
            tensors = self.load(kind, name, version, lambda: compute(reference))
            self._loaded[kind, name, version] = {
                label: tensor.to(self.model.device) for label, tensor in tensors.items()
            }
        return self._loaded[kind, name, version]

    def load(
        self,
        kind: PreparedKind,
        name: str,
        version: int | str,
        compute: Callable[[], Mapping[str, Tensor]],
    ) -> Mapping[str, Tensor]:
        """Return tensors that are not in memory; a run reads them where they are stored."""
        return compute()
