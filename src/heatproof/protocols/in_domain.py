"""Protocols that evaluate a network which was fine-tuned on images like those it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from heatproof.data.base import Data
from heatproof.models.model import Model
from heatproof.models.zoo import check_fine_tuned, load_fine_tuned
from heatproof.protocols.base import Protocol, View, ViewKey


class InDomain(Protocol):
    """Base class of protocols that are evaluated on fine-tuned weights.

    A subclass says which (``fine_tuning``).
    """

    missing: Literal["skip"] | None = Field(
        default=None,
        description="skip: without fine-tuned weights it is not applicable; by default an error",
    )

    def check(self, model: Model) -> None:
        super().check(model)
        if self.missing and model.fine_tuned != self.fine_tuning:
            check_fine_tuned(model, self.fine_tuning)

    def views(
        self, model: Model, data: Data, among: Sequence[tuple[Model, Data]] = ()
    ) -> list[View]:
        key = ViewKey("fine-tuned", self.fine_tuning)
        return [View(key, load_fine_tuned(model, self.fine_tuning), data)]
