"""Batches of samples, and blocks of them that are computed on their own."""

from __future__ import annotations

from dataclasses import replace

from heatproof.data.base import PartViews
from heatproof.execute.rows import BatchSamples
from heatproof.files import content_hash
from heatproof.methods import Explainer
from heatproof.protocols import EvalBatch
from heatproof.tensor.noise import Rng


class Slices:
    """A batch whose samples explain the same classes, and blocks of its samples.

    What methods and protocols share is kept for each block: the gradients of its explainer, and the
    results that protocols share. The block of all samples is the batch itself.

    Args:
        start: Position of the batch in its task.
        samples: The samples, and what is explained.
        batch: The samples as protocols see them.
        explainer: Computes maps of the batch.
    """

    def __init__(self, start: int, samples: BatchSamples, batch: EvalBatch, explainer: Explainer):
        self.start = start
        self.samples = samples
        self.explainer = explainer
        self.all = slice(0, len(samples.ids))
        self._batches = {bounds(self.all): batch}
        self._explainers = {bounds(self.all): explainer}

    @property
    def targets(self) -> str:
        """A name for the explained classes."""
        return content_hash(repr(tuple(self.samples.targets)))

    def samples_of(self, rows: slice) -> BatchSamples:
        """Return the samples of a block."""
        samples = self.samples
        return BatchSamples(samples.ids[rows], samples.targets[rows], samples.labelled[rows])

    def batch_of(self, rows: slice) -> EvalBatch:
        """Return a block as protocols see it."""
        if bounds(rows) not in self._batches:
            whole = self._batches[bounds(self.all)]
            parts = whole.parts and PartViews(whole.parts.without[rows], whole.parts.masks[rows])
            silhouette = None if whole.silhouette is None else whole.silhouette[rows]
            self._batches[bounds(rows)] = replace(
                whole,
                ids=whole.ids[rows],
                x=whole.x[rows],
                target=whole.target[rows],
                clean=whole.clean[rows],
                rng=Rng(whole.rng.seed, whole.ids[rows], whole.rng.device),
                parts=parts,
                silhouette=silhouette,
                batch_cache={},
                map_cache={},
            )
        return self._batches[bounds(rows)]

    def explainer_of(self, rows: slice) -> Explainer:
        """Return what computes the maps of a block."""
        if bounds(rows) not in self._explainers:
            self._explainers[bounds(rows)] = self.explainer.part(rows)
        return self._explainers[bounds(rows)]


def bounds(rows: slice) -> tuple[int, int]:
    """Return where a block begins and ends; slices cannot be keys."""
    return rows.start, rows.stop
