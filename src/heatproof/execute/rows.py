"""The rows of a task: one per record and sample, with a score or the reason why there is none.

Rows are columns from the start: one Arrow table per record and block of samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from heatproof.plan.tasks import Record, Task
from heatproof.runs.columns import make_rows
from heatproof.scoring.block import Block
from heatproof.scoring.outcomes import Outcomes

PLACE = ("protocol", "setting", "baseline", "method")  # what a record is of, in its task


class RowBuilder:
    """Collects the rows of a task, each once.

    Args:
        task: The task.

    Attributes:
        tables: The rows in the order in which they were computed (``ROW_SCHEMA``).
    """

    def __init__(self, task: Task):
        self._task = task
        self.tables: list[pa.Table] = []
        self._present: dict[str, set[str]] = {}  # samples by record

    def restore(self, table: pa.Table) -> None:
        """Add rows that an earlier, interrupted attempt has computed."""
        self.tables.append(table)
        columns = (table[name].to_pylist() for name in ("record", "sample"))
        for record, sample in zip(*columns, strict=True):
            self._present.setdefault(record, set()).add(sample)

    def missing(self, record: Record, ids: Sequence[str]) -> list[int]:
        """Return the positions of the samples that have no row of a record yet."""
        present = self._present.get(record.key, set())
        return [i for i, sample in enumerate(ids) if sample not in present]

    def add_skipped(self, records: Iterable[Record], unreadable: Mapping[str, str]) -> None:
        """Add rows for samples that could not be read, which have no target."""
        ids = list(unreadable)
        outcomes = Outcomes.without_scores("skipped", list(unreadable.values()))
        for record in records:
            self._add(record, ids, [None] * len(ids), [""] * len(ids), outcomes)

    def add(self, record: Record, block: Block, outcomes: Outcomes) -> None:
        """Add the rows of a block of samples, except for those that are there."""
        target = self._task.model.target
        explains_labels = record.protocol.target_policy == "label"
        target_is = [
            "label" if explains_labels and labelled else "prediction" for labelled in block.labelled
        ]
        if target is not None:
            target_is = [target.text] * len(block)
        self._add(record, block.ids, block.classes, target_is, outcomes)

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
        table = make_rows(
            **self.record_columns(record),
            sample=ids,
            target=targets,
            target_is=target_is,
            value=outcomes.values,
            status=outcomes.statuses,
            message=outcomes.messages,
            note=outcomes.notes,
        )
        self.tables.append(table if len(missing) == len(ids) else table.take(missing))
        self._present.setdefault(record.key, set()).update(ids)

    def record_columns(self, record: Record) -> dict[str, str]:
        """Return the values that all rows of a record have in common."""
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
