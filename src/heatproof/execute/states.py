"""The state of an optimisation that takes minutes, as the parts of an unfinished task keep it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from heatproof.methods.optimisation_state import Checkpoint
from heatproof.runs.format import BlockKey, TensorKey


@dataclass(frozen=True)
class OptimisationStates(Checkpoint):
    """The states of one method on one block of samples.

    Attributes:
        key: What they belong to: the method, the samples and the explained classes.
        start: Position of the first sample in the task.
        restored: States that an earlier attempt has written.
        current: Where states are put that are to be written.
        write: Called after every state; it writes them once in a while.
    """

    key: TensorKey
    start: int
    restored: Mapping[BlockKey, Tensor]
    current: dict[BlockKey, Tensor]
    write: Callable[[], None]

    def load(self, name: str) -> Mapping[str, Tensor] | None:
        """Return what an earlier attempt has saved under a name; None if there is nothing."""
        found = {}
        for block, values in self.restored.items():
            if block.start == self.start and block.tensor.method == self.key.method:
                samples, of, field = json.loads(block.tensor.name)
                if (samples, of) == (self.key.name, name):
                    found[field] = values
        if not found:
            return None
        self._put(name, found)  # until the first step is done, this is the latest state
        return found

    def save(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Keep a state instead of the one before, to be written with the next part."""
        self._put(name, state)
        self.write()

    def _put(self, name: str, state: Mapping[str, Tensor]) -> None:
        for field, values in state.items():
            full_name = json.dumps([self.key.name, name, field])
            self.current[BlockKey(self.start, replace(self.key, name=full_name))] = values
