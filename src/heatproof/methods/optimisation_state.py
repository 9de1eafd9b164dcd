"""The state of a long optimisation, which a run writes now and then and continues from."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class Checkpoint:
    """Keeps the latest state of a method that takes the argument ``checkpoint``.

    By default nothing is kept. A method that continues from a state must give the same bytes as one
    that was not interrupted.
    """

    def load(self, name: str) -> Mapping[str, Tensor] | None:
        """Return what was saved under a name; None if there is nothing.

        Args:
            name: What the state belongs to, if a call has several optimisations.
        """
        return None

    def save(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Keep a state; its tensors must not be changed in place afterwards."""
