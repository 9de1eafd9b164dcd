"""A method under a protocol: the unit that is scored."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from heatproof.methods import Expression
from heatproof.protocols import Protocol


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A protocol's scores of a method on one view of a model.

    Attributes:
        protocol: The protocol with its settings.
        expression: The method.
        not_applicable: Why there are no scores; empty if there are.
    """

    protocol: Protocol
    expression: Expression
    not_applicable: str = ""

    @cached_property
    def unrecognizable(self) -> bool:
        """Whether it runs user code that cannot be read, so that an edit would go unnoticed."""
        return "" in (*self.expression.sources, *self.protocol.sources)
