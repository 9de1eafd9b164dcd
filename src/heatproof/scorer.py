"""Scores of batches in memory, outside of runs: what training loops and other libraries call.

The scores are those of ``evaluate`` for the same samples: the same code computes them.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from heatproof.data.base import Data, Sample
from heatproof.data.catalog import Batch
from heatproof.data.reference import Reference
from heatproof.errors import HeatproofError
from heatproof.execute.parts import Journal
from heatproof.execute.task_runner import TaskRunner
from heatproof.methods import Expression
from heatproof.methods.explain import check_applicable
from heatproof.models.model import Model
from heatproof.plan.speed import Pace
from heatproof.plan.tasks import NO_KEY, Evaluation, Plan, Records, Task
from heatproof.protocols import Protocol
from heatproof.runs.store import Store
from heatproof.text import counted


class BatchScores(NamedTuple):
    """The scores of a batch.

    Attributes:
        values: Scores ``(B,)`` of float64; nan where there is none.
        reasons: Why there is none; empty where there is a score.
    """

    values: Tensor
    reasons: list[str]


@dataclass(frozen=True)
class _Batch:
    """A batch as a data set: images in the model's input space, which are never loaded."""

    ids: Sequence[str]
    labels: Sequence[int | None]
    name: str = "batch"
    has_silhouettes: bool = False

    @property
    def fingerprints(self) -> Sequence[str]:
        return list(self.ids)

    def load(self, index: int) -> Sample:
        raise NotImplementedError("the images of a batch are passed to the runner")


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
        (view,) = protocol.views(model, _Batch(["0"], [None]))
        self.model = view.model
        self.protocol = protocol
        self._view = view.key
        self._seed = seed
        self._batch_size = batch_size
        self._reference = None
        if reference is not None:
            self._reference = Reference(reference, range(len(reference.ids)))
        self._store = Store(Path(tempfile.mkdtemp(prefix="heatproof-")))  # of prepared tensors
        weakref.finalize(self, shutil.rmtree, self._store.root, ignore_errors=True)

    def check(self, method: Expression) -> None:
        """Check a method before anything is computed; raises HeatproofError."""
        check_applicable(method, self.model, False)
        needing = [self.protocol.id] if self.protocol.needs_reference else []
        needing += [method.label] if method.needs_reference else []
        if needing and self._reference is None:
            raise HeatproofError(
                f"{needing[0]} needs reference images, which are not evaluated; name them: "
                'reference=hp.load_data("folder:/data/train", model)'
            )

    def score(
        self, method: Expression, images: Tensor, labels: Sequence[int | None], ids: Sequence[str]
    ) -> BatchScores:
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
        records = Records((Evaluation(self.protocol, method),), [NO_KEY])
        data = _Batch(list(ids), list(labels))
        count = len(images)
        task = Task(
            "batch",
            self.model.name,
            self._view,
            self.model,
            data,
            range(count),
            records,
            self._reference,
        )
        plan = Plan((task,), self._seed, self._batch_size, keep_maps=0)
        size = plan.rows_per_pass(task)
        batch = Batch(
            list(ids), images.to(self.model.device, self.model.dtype), list(labels), None, {}
        )
        journal = Journal(self._store, task, batch, size)
        runner = TaskRunner(plan, task, task.records, self._store, journal, Pace())
        with self.model.passes.batches_of(size):
            runner.run(batch, size)
        journal.clear()
        table = pa.concat_tables(runner.progress.rows)
        rows = {row["sample"]: row for row in table.to_pylist()}
        found = [rows[sample] for sample in ids]
        if all(row["status"] == "failed" for row in found):
            raise HeatproofError(found[0]["message"])
        values = torch.tensor([row["value"] for row in found], dtype=torch.float64)
        return BatchScores(values, [row["message"] for row in found])


def _check_images(model: Model, images: Tensor) -> None:
    shape = model.image_shape
    if images.ndim != 4 or not len(images) or tuple(images.shape[1:]) != shape:
        raise HeatproofError(
            f"{model.name} takes images of shape (B, {', '.join(map(str, shape))}) in its input "
            f"space; got {tuple(images.shape)}"
        )
