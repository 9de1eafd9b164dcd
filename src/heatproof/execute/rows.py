"""The rows of a task: one per record and sample, with a score or the reason why there is none.

Rows are columns from the start: one Arrow table per record and block of samples.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from heatproof.plan.tasks import Record, Task
from heatproof.protocols.base import Scores
from heatproof.runs.format import ROW_SCHEMA

Status = Literal["ok", "undefined", "failed", "missing", "n/a", "skipped"]

PLACE = ("protocol", "setting", "baseline", "method")  # what a record is of, in its task


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


@dataclass(frozen=True)
class Outcomes:
    """What rows say about the samples of a block, in their order."""

    statuses: Sequence[Status]
    messages: Sequence[str]
    values: Sequence[float]
    notes: Sequence[str]

    @classmethod
    def same(cls, status: Status, messages: Sequence[str]) -> Outcomes:
        """Return outcomes without scores, which have the same status."""
        count = len(messages)
        return cls([status] * count, messages, [math.nan] * count, [""] * count)


class RowBuilder:
    """Collects the rows of a task, each once.

    Args:
        task: The task.
        done: Rows that an earlier, interrupted attempt has computed.

    Attributes:
        tables: The rows in the order in which they were computed (``ROW_SCHEMA``).
    """

    def __init__(self, task: Task, done: Sequence[pa.Table] = ()):
        self._task = task
        self.tables: list[pa.Table] = list(done)
        self._present: dict[str, set[str]] = {}  # samples by record
        for table in done:
            columns = (table[name].to_pylist() for name in ("record", "sample"))
            for record, sample in zip(*columns, strict=True):
                self._present.setdefault(record, set()).add(sample)

    def missing(self, record: Record, ids: Sequence[str]) -> list[int]:
        """Return the positions of the samples that have no row of a record yet."""
        present = self._present.get(record.key, set())
        return [i for i, sample in enumerate(ids) if sample not in present]

    def add_skipped(self, records: Sequence[Record], unreadable: Mapping[str, str]) -> None:
        """Add rows for samples that could not be read, which have no target."""
        ids = list(unreadable)
        outcomes = Outcomes.same("skipped", list(unreadable.values()))
        for record in records:
            self._add(record, ids, [None] * len(ids), [""] * len(ids), outcomes)

    def add_not_applicable(self, records: Sequence[Record], samples: BatchSamples) -> None:
        """Add the reason why each record has no scores, for every sample of a batch."""
        for record in records:
            messages = [record.not_applicable] * len(samples.ids)
            self._add_samples(record, samples, Outcomes.same("n/a", messages))

    def add_failed(self, records: Sequence[Record], samples: BatchSamples, message: str) -> None:
        """Add the same failure for every sample of a batch."""
        outcomes = Outcomes.same("failed", [message] * len(samples.ids))
        for record in records:
            self._add_samples(record, samples, outcomes)

    def add_scores(
        self, record: Record, samples: BatchSamples, scores: Scores, checks: MapChecks
    ) -> None:
        """Add the scores of a batch, except for maps that cannot be scored."""
        values = scores.value.tolist()
        statuses: list[Status] = ["ok"] * len(values)
        messages = [""] * len(values)
        for i, reason in enumerate(scores.reasons):
            if checks.missing[i]:
                statuses[i] = "missing"
                messages[i] = checks.missing[i]
            elif not checks.finite[i]:
                statuses[i] = "failed"
                messages[i] = f"{record.expression.label}: the map is not finite"
            elif not checks.varied[i] and not record.protocol.constant_maps:
                statuses[i] = "undefined"
                messages[i] = "the map is the same everywhere"
            elif reason:
                statuses[i] = "undefined"
                messages[i] = reason
            if statuses[i] != "ok":
                values[i] = math.nan
        self._add_samples(record, samples, Outcomes(statuses, messages, values, checks.notes))

    def _add_samples(self, record: Record, samples: BatchSamples, outcomes: Outcomes) -> None:
        explains_labels = record.protocol.target_policy == "label"
        target_is = [
            "label" if explains_labels and labelled else "prediction"
            for labelled in samples.labelled
        ]
        self._add(record, samples.ids, samples.targets, target_is, outcomes)

    def _add(
        self,
        record: Record,
        ids: Sequence[str],
        targets: Sequence[int | None],
        target_is: Sequence[str],
        outcomes: Outcomes,
    ) -> None:
        """Add a table with the rows that are not there yet."""
        missing = self.missing(record, ids)
        if not missing:
            return
        columns = [
            *(pa.repeat(text, len(ids)) for text in self.record_columns(record)),
            ids,
            targets,
            target_is,
            outcomes.values,
            outcomes.statuses,
            outcomes.messages,
            outcomes.notes,
        ]
        fields = zip(columns, ROW_SCHEMA, strict=True)
        arrays = [pa.array(column, field.type) for column, field in fields]
        table = pa.Table.from_arrays(arrays, schema=ROW_SCHEMA)
        self.tables.append(table if len(missing) == len(ids) else table.take(missing))
        self._present.setdefault(record.key, set()).update(ids)

    def record_columns(self, record: Record) -> list[str]:
        """Return the values of the first columns, which all rows of a record have."""
        layer = record.expression.layer
        if not record.not_applicable:
            layer = self._task.model.layer_name(layer)
        return [
            record.key,
            self._task.model_name,
            record.expression.label,
            layer,
            record.protocol.id,
            record.protocol.setting,
            record.protocol.baseline_name,
        ]


def rows_of(table: pa.Table, records: Collection[str]) -> pa.Table:
    """Return the rows of some records."""
    return table.filter(pc.is_in(table["record"], pa.array(list(records), pa.string())))


def in_order(table: pa.Table, records: Sequence[str]) -> pa.Table:
    """Return the rows of a plan's records in its order, each record's as they are."""
    position = {record: i for i, record in enumerate(records)}
    encoded = table["record"].combine_chunks().dictionary_encode()
    of_record = np.array([position.get(r, -1) for r in encoded.dictionary.to_pylist()], int)
    of_row = of_record[encoded.indices.to_numpy()]
    chosen = np.flatnonzero(of_row >= 0)
    return table.take(chosen[np.argsort(of_row[chosen], kind="stable")])


def places_of(rows: pa.Table) -> dict[str, tuple[str, ...]]:
    """Return the protocol, setting, baseline and method of every record (``PLACE``)."""
    names = ["record", *PLACE]
    records = rows.select(names).group_by(names, use_threads=False).aggregate([])
    columns = [records[name].to_pylist() for name in names]
    return {record: tuple(place) for record, *place in zip(*columns, strict=True)}
