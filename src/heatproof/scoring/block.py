"""A block of samples with the classes that are explained: what methods and protocols are given."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from heatproof.data.base import PartViews
from heatproof.methods import Explainer
from heatproof.protocols import EvalBatch
from heatproof.tensor.noise import Rng


@dataclass
class Block:
    """Samples of a batch, as protocols and methods see them.

    Results that methods and protocols share are kept for each block: the gradients of its
    explainer, and the caches of its `EvalBatch`.

    Attributes:
        batch: The samples as protocols see them.
        explainer: Computes the maps of the samples.
        labelled: Which samples have a label.
        rows: The position of the samples in the batch.
        classes: The explained class of each sample, or the first of several.
        lacking: Why a sample does not have the model's target; empty if it does.
    """

    batch: EvalBatch
    explainer: Explainer
    labelled: list[bool]
    rows: slice
    classes: list[int]
    lacking: list[str]
    _parts: dict[tuple[int, int], Block] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        """The ids of the samples."""
        return self.batch.ids

    @property
    def targets(self) -> list[int]:
        """The explained logits."""
        return self.batch.target.tolist()

    def __len__(self) -> int:
        return len(self.batch.ids)

    def part(self, rows: slice) -> Block:
        """Return some of the samples as a block of their own; all of them are the block itself."""
        bounds = rows.start, rows.stop
        if bounds == (0, len(self)):
            return self
        if bounds not in self._parts:
            whole = self.batch
            parts = whole.parts and PartViews(whole.parts.without[rows], whole.parts.masks[rows])
            batch = replace(
                whole,
                ids=whole.ids[rows],
                x=whole.x[rows],
                target=whole.target[rows],
                clean=whole.clean[rows],
                rng=Rng(whole.rng.seed, whole.ids[rows], whole.rng.device),
                parts=parts,
                silhouette=None if whole.silhouette is None else whole.silhouette[rows],
                batch_cache={},
                map_cache={},
            )
            explainer = self.explainer.part(rows)
            self._parts[bounds] = Block(
                batch,
                explainer,
                self.labelled[rows],
                rows,
                self.classes[rows],
                self.lacking[rows],
            )
        return self._parts[bounds]
