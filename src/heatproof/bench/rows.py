"""The rows of a task: one per record and sample, with a score or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from heatproof.bench.plan import Record, Task
from heatproof.protocols.base import Scores

Row = dict[str, Any]  # a value for every column of `layout.ROW_SCHEMA`
Status = Literal["ok", "undefined", "failed", "missing", "n/a", "skipped"]


@dataclass(frozen=True)
class BatchSamples:
    """The samples of a batch, and which class is explained for each."""

    ids: Sequence[str]
    targets: Sequence[int]
    labelled: Sequence[bool]  # whether the sample has a label


@dataclass(frozen=True)
class MapChecks:
    """Which maps of a batch can be scored, and what the method says about them."""

    finite: list[bool]
    varied: list[bool]  # not the same value everywhere
    missing: list[str]  # why there is no map; empty where there is one
    notes: list[str]

    def of(self, rows: slice) -> MapChecks:
        """Return the checks of a block of the batch."""
        return MapChecks(self.finite[rows], self.varied[rows], self.missing[rows], self.notes[rows])

    @property
    def lost(self) -> Tensor:  # (B, 1) bool
        """Which maps are not finite, as those that are missing."""
        return ~torch.tensor(self.finite)[:, None]


class Outcome(NamedTuple):
    """What a row says about a sample."""

    status: Status
    message: str = ""
    value: float = math.nan
    note: str = ""


class RowBuilder:
    """Collects the rows of a task, each once.

    Args:
        task: The task.
        done: Rows that an earlier, interrupted attempt has computed.
    """

    def __init__(self, task: Task, done: Sequence[Row] = ()):
        self._task = task
        self.rows: list[Row] = list(done)
        self._present = {(row["record"], row["sample"]) for row in done}

    def missing(self, record: Record, ids: Sequence[str]) -> list[int]:
        """Return the positions of the samples that have no row of a record yet."""
        return [i for i, sample in enumerate(ids) if (record.key, sample) not in self._present]

    def add_skipped(self, records: Sequence[Record], unreadable: Mapping[str, str]) -> None:
        """Add rows for samples that could not be read, which have no target."""
        for record in records:
            for sample, message in unreadable.items():
                row = _sample_columns(sample, None, "", Outcome("skipped", message))
                self._append(self._record_columns(record) | row)

    def add_not_applicable(self, records: Sequence[Record], samples: BatchSamples) -> None:
        """Add the reason why each record has no scores, for every sample of a batch."""
        for record in records:
            outcome = Outcome("n/a", record.not_applicable)
            self._add(record, samples, [outcome] * len(samples.ids))

    def add_failed(self, records: Sequence[Record], samples: BatchSamples, message: str) -> None:
        """Add the same failure for every sample of a batch."""
        for record in records:
            self._add(record, samples, [Outcome("failed", message)] * len(samples.ids))

    def add_scores(
        self, record: Record, samples: BatchSamples, scores: Scores, checks: MapChecks
    ) -> None:
        """Add the scores of a batch, except for maps that cannot be scored."""
        outcomes = []
        for value, reason, finite, varied, missing, note in zip(
            scores.value.tolist(),
            scores.reasons,
            checks.finite,
            checks.varied,
            checks.missing,
            checks.notes,
            strict=True,
        ):
            if missing:
                outcome = Outcome("missing", missing)
            elif not finite:
                outcome = Outcome("failed", f"{record.expression.label}: the map is not finite")
            elif not varied and not record.protocol.constant_maps:
                outcome = Outcome("undefined", "the map is the same everywhere")
            elif reason:
                outcome = Outcome("undefined", reason)
            else:
                outcome = Outcome("ok", value=value)
            outcomes.append(outcome._replace(note=note))
        self._add(record, samples, outcomes)

    def _add(self, record: Record, samples: BatchSamples, outcomes: Sequence[Outcome]) -> None:
        common = self._record_columns(record)
        explains_labels = record.protocol.target_policy == "label"
        for sample, target, labelled, outcome in zip(
            samples.ids, samples.targets, samples.labelled, outcomes, strict=True
        ):
            target_is = "label" if explains_labels and labelled else "prediction"
            self._append(common | _sample_columns(sample, target, target_is, outcome))

    def _append(self, row: Row) -> None:
        key = (row["record"], row["sample"])
        if key not in self._present:
            self.rows.append(row)
            self._present.add(key)

    def _record_columns(self, record: Record) -> Row:
        layer = record.expression.layer
        if not record.not_applicable:
            layer = self._task.model.layer_name(layer)
        return {
            "record": record.key,
            "model": self._task.model_name,
            "method": record.expression.label,
            "layer": layer,
            "protocol": record.protocol.id,
            "setting": record.protocol.setting,
            "baseline": record.protocol.baseline_name,
        }


def _sample_columns(sample: str, target: int | None, target_is: str, outcome: Outcome) -> Row:
    return {
        "sample": sample,
        "target": target,
        "target_is": target_is,
        "value": outcome.value,
        "status": outcome.status,
        "message": outcome.message,
        "note": outcome.note,
    }
