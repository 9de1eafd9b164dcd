"""Scores of one method under one protocol, batch by batch, for training loops and other libraries.

The scores are those of ``evaluate`` for the same samples: the same code computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heatproof.data.base import Data, Sample
from heatproof.data.catalog import Batch
from heatproof.data.reference import Reference
from heatproof.errors import HeatproofError
from heatproof.methods import Expression
from heatproof.methods.explain import check_applicable
from heatproof.models.model import Model
from heatproof.protocols import Protocol
from heatproof.scoring.evaluation import Evaluation
from heatproof.scoring.prepared import PreparedTensors
from heatproof.scoring.score_batch import score_batch
from heatproof.text import counted


class MethodScores(NamedTuple):
    """The scores of a batch.

    Attributes:
        values: Scores ``(B,)`` of float64; nan where there is none.
        reasons: Why there is none; empty where there is a score.
    """

    values: Tensor
    reasons: list[str]


@dataclass(frozen=True)
class _NoImages:
    """A data set for protocols that only choose a model by it."""

    ids: Sequence[str] = ("0",)
    labels: Sequence[int | None] = (None,)
    fingerprints: Sequence[str] = ("0",)
    name: str = "batch"
    has_silhouettes: bool = False

    def load(self, index: int) -> Sample:
        raise NotImplementedError("the images of a batch are given to score")


class Scorer:
    """Scores the maps of one method under one protocol, batch by batch.

    Args:
        model: The model.
        protocol: The protocol with its settings.
        seed: Seed for all noise.
        batch_size: Images in one pass.
        reference: Images that are not evaluated, for what methods, baselines or protocols prepare.

    Raises:
        HeatproofError: If the protocol has no score per sample, or needs more than images.
    """

    def __init__(
        self,
        model: Model,
        protocol: Protocol,
        *,
        seed: int = 0,
        batch_size: int = 64,
        reference: Data | None = None,
    ):
        if protocol.aggregates:
            raise HeatproofError(
                f"{protocol.id} has no scores of single samples, only of all together; use "
                "hp.evaluate"
            )
        if protocol.needs:
            raise HeatproofError(
                f"{protocol.id} needs the {' and '.join(sorted(protocol.needs))} of images; use "
                "hp.evaluate with data that has them"
            )
        if type(protocol).views is not Protocol.views and not protocol.fine_tuning:
            raise HeatproofError(
                f"{protocol.id} makes images of its own, such as grids of images; use hp.evaluate"
            )
        protocol.check(model)
        (view,) = protocol.views(model, _NoImages())
        self.model = view.model
        self.protocol = protocol
        self._view = view.key
        self._seed = seed
        self._batch_size = batch_size
        images = None if reference is None else Reference(reference, range(len(reference.ids)))
        self._prepared = PreparedTensors(self.model, images)

    def check(self, method: Expression) -> None:
        """Check a method before anything is computed; raises HeatproofError."""
        check_applicable(method, self.model, False)
        needing = [self.protocol.id] if self.protocol.needs_reference else []
        needing += [method.label] if method.needs_reference else []
        if needing and self._prepared.reference is None:
            raise HeatproofError(
                f"{needing[0]} needs reference images, which are not evaluated; name them: "
                'reference=hp.load_data("folder:/data/train", model)'
            )

    def score(
        self, method: Expression, images: Tensor, labels: Sequence[int | None], ids: Sequence[str]
    ) -> MethodScores:
        """Score the maps of a method for a batch.

        Args:
            method: The method.
            images: Images in the model's input space, ``(B, C, H, W)``.
            labels: Classes ``(B,)``, from which protocols choose what is explained.
            ids: Sample ids ``(B,)``, which key noise.

        Raises:
            HeatproofError: If images do not fit the model, or the method fails for all of them.
        """
        _check_images(self.model, images)
        if not len(images) == len(labels) == len(ids):
            raise HeatproofError(
                f"{counted(len(images), 'image')}, but {counted(len(labels), 'target')}"
            )
        x = images.to(self.model.device, self.model.dtype)
        batch = Batch(list(ids), x, list(labels), None, {})
        evaluation = Evaluation(self.protocol, method)
        size = max(1, min(self._batch_size, len(images)))
        values: list[float] = []
        messages: list[str] = []
        failed: list[bool] = []
        with self.model.passes.batches_of(size):
            for start in range(0, len(images), size):
                part = batch.part(slice(start, start + size))
                found = score_batch(
                    self.model,
                    part,
                    [evaluation],
                    seed=self._seed,
                    view=self._view,
                    prepared=self._prepared,
                ).outcomes[evaluation]
                values += found.values
                messages += found.messages
                failed += [status == "failed" for status in found.statuses]
        if all(failed):
            raise HeatproofError(messages[0])
        return MethodScores(torch.tensor(values, dtype=torch.float64), messages)


def _check_images(model: Model, images: Tensor) -> None:
    shape = model.image_shape
    if images.ndim != 4 or not len(images) or tuple(images.shape[1:]) != shape:
        raise HeatproofError(
            f"{model.name} takes images of shape (B, {', '.join(map(str, shape))}) in its input "
            f"space; got {tuple(images.shape)}"
        )
