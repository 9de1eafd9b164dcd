"""Read and write the directory of a run, whose format is in ``bench/layout.py``.

Every file is written completely or not at all, so a killed run loses only the task it was in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from heatproof.bench.layout import (
    COLUMNS,
    ROW_SCHEMA,
    GridNote,
    PlanFile,
    PreparedKey,
    ProtocolFacts,
    Provenance,
    RunPaths,
    SampleNotes,
    TaskContent,
    TaskFacts,
    TensorKey,
    Timings,
    damaged,
    read_json,
    read_spec,
    to_json,
)
from heatproof.data.grids import grid_name
from heatproof.errors import HeatproofError
from heatproof.files import TEMP_PREFIX, atomic_write
from heatproof.platform import file_lock
from heatproof.protocols import Protocol
from heatproof.protocols.base import register_stored, stored_protocol

SAMPLES = "samples"  # the metadata entries of a tensor file: its notes,
CONTENT = "content"  # and what it belongs to
SAME_KEYS = ("data", "seed", "backend")  # of specs whose results can be in the same directory


@dataclass(frozen=True)
class TaskTensors:
    """The stored tensors of a task, and which samples they belong to."""

    tensors: dict[TensorKey, Tensor] = field(default_factory=dict)
    samples: SampleNotes = SampleNotes()  # noqa: RUF009 (frozen)
    content: TaskContent = TaskContent()  # noqa: RUF009 (frozen)


class PendingCurves(NamedTuple):
    """Curves of one model and method, from which a protocol computes values for all samples."""

    protocol: Protocol
    model: str
    method: str
    samples: list[str]  # (N,)
    rows: pd.Index  # (N,) of the frame
    lost: pd.Index  # rows of samples whose curves are not stored
    curves: dict[str, Tensor]  # (N, S) each


class Store:
    """The directory of a run.

    Args:
        root: The directory; it is created by the first write.
    """

    def __init__(self, root: Path):
        self.root = root
        self.paths = RunPaths(root)

    def claim(self, identity: Mapping[str, Any], add: bool = False) -> None:
        """Take the directory for a spec; raises as ``check`` does."""
        self.check(identity, add)
        content = json.dumps(identity, indent=1, ensure_ascii=False)
        atomic_write(self.paths.spec, content.encode())

    def check(self, identity: Mapping[str, Any], add: bool = False) -> None:
        """Check that the directory is free, or that a spec goes with what it holds.

        A run can grow: another spec is accepted if it has the same data, seed and backend, and a
        model in common. With anything else nothing could be reused, so the directory is probably
        not the one that was meant. Nothing is written.

        Args:
            identity: What a run directory belongs to, as ``Spec.identity`` returns it.
            add: Whether any spec is accepted.

        Raises:
            HeatproofError: If the spec does not go with the directory, or it holds something else.
        """
        if self.root.exists() and not self.root.is_dir():
            raise HeatproofError(f"{self.root} is a file, not a directory")
        if not self.paths.spec.is_file():
            if self.root.exists() and any(map(self._is_foreign, self.root.iterdir())):
                raise HeatproofError(
                    f"{self.root} is not empty and not a run of heatproof; choose another "
                    "directory with -o"
                )
            return
        stored = read_spec(self.paths.spec)
        requested = json.loads(json.dumps(identity))
        differing = [key for key in SAME_KEYS if stored.get(key) != requested.get(key)]
        if not any(model in stored.get("models", []) for model in requested.get("models", [])):
            differing.append("models")
        if differing and not add:
            raise HeatproofError(
                f"{self.root} holds a run of another spec, of which nothing could be reused (it "
                f"differs in: {', '.join(differing)}); choose another directory with -o, or add to "
                "this one with --add (in Python: add=True)"
            )

    def _is_foreign(self, path: Path) -> bool:
        return path != self.paths.lock and not path.name.startswith(TEMP_PREFIX)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing; raises HeatproofError if another one does."""
        self.root.mkdir(parents=True, exist_ok=True)
        busy = (
            f"another run is writing to {self.root}; wait for it, or choose another directory "
            "with -o"
        )
        with file_lock(self.paths.lock, busy):
            for leftover in self.root.rglob(f"{TEMP_PREFIX}*"):  # of a run that was killed
                leftover.unlink()
            yield

    def write_plan(self, plan: PlanFile, provenance: Provenance) -> None:
        """Write what is run and how; the plan last, so that a run with a plan has both."""
        atomic_write(self.paths.provenance, to_json(provenance))
        atomic_write(self.paths.plan, to_json(plan))

    def plan(self) -> PlanFile:
        """Return the latest plan; raises HeatproofError if the directory is not a run."""
        if not self.paths.plan.is_file():
            raise HeatproofError(
                f"{self.root} is not a run of heatproof (it has no {self.paths.plan.name})"
            )
        return read_json(self.paths.plan, PlanFile)

    def provenance(self) -> Provenance:
        """Return the provenance of the latest plan."""
        if not self.paths.provenance.is_file():
            raise damaged(self.paths.provenance, "it is missing")
        return read_json(self.paths.provenance, Provenance)

    def commit(
        self, task: str, rows: Sequence[Mapping[str, Any]], kept: TaskTensors, timings: Timings
    ) -> None:
        """Write the results of a task; the rows last, since a task with rows is finished."""
        encoded = {key.encode(): tensor.contiguous() for key, tensor in kept.tensors.items()}
        notes = {
            SAMPLES: kept.samples.model_dump_json(),
            CONTENT: kept.content.model_dump_json(),
        }
        atomic_write(self.paths.tensors(task), save(encoded, notes))
        atomic_write(self.paths.timings(task), to_json(timings))
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, ROW_SCHEMA), sink, compression="zstd")
        atomic_write(self.paths.rows(task), sink.getvalue().to_pybytes())

    def is_finished(self, task: str) -> bool:
        """Return whether a task has written its rows."""
        return self.paths.rows(task).is_file()

    def task_rows(self, task: str) -> list[dict[str, Any]]:
        """Return the rows of a task as written; empty if it is not finished."""
        return self._table(task).to_pylist() if self.is_finished(task) else []

    def rows(self) -> pd.DataFrame:
        """Return the rows of the latest plan that have been written, in its order (``COLUMNS``).

        Texts are categories, so that millions of rows fit into memory. Values that a protocol
        computes from the curves of all samples are filled in. A further column ``cluster`` says
        which samples are not independent: it is the grid that a sample belongs to, and otherwise
        the sample itself.
        """
        frame = self._rows_as_written()
        frame["cluster"] = self._clusters(frame["sample"])
        for facts in self.plan().protocols:
            if facts.aggregates and stored_protocol(facts.id, facts.settings) is None:
                chosen = (frame["protocol"] == facts.id) & (frame["status"] == "ok")
                reason = f"the code of protocol {facts.id} is not loaded; import it first"
                _set_undefined(frame, frame.index[chosen], reason)
        for pending in self.pending_curves(frame):
            reason = "its curves are not kept, since others of its task failed"
            _set_undefined(frame, pending.lost, reason)
            if not pending.samples:
                continue
            scores = pending.protocol.aggregate(pending.curves)
            frame.loc[pending.rows, "value"] = scores.value.numpy()
            for reason in dict.fromkeys(filter(None, scores.reasons)):
                rows = [
                    row
                    for row, its_reason in zip(pending.rows, scores.reasons, strict=True)
                    if its_reason == reason
                ]
                _set_undefined(frame, pd.Index(rows), reason)
        return frame

    def _clusters(self, samples: pd.Series) -> pd.Series:
        """Return the grid of every sample on a grid, else the sample itself, as categories."""
        grids = {sample: grid_name(note.images) for sample, note in self.grids().items()}
        if not grids:
            return samples.copy()
        ids = samples.cat.categories
        names = pd.Categorical([grids.get(sample, sample) for sample in ids])
        codes = names.codes[samples.cat.codes]
        return pd.Series(pd.Categorical.from_codes(codes, names.categories), samples.index)

    def pending_curves(self, frame: pd.DataFrame | None = None) -> Iterator[PendingCurves]:
        """Yield the curves of protocols that compute values from all samples of a model together.

        Args:
            frame: The rows as tasks have written them; read from the directory by default.
        """
        frame = self._rows_as_written() if frame is None else frame
        plan = self.plan()
        for facts in plan.protocols:
            protocol = stored_protocol(facts.id, facts.settings)
            if not facts.aggregates or protocol is None:
                continue
            chosen = frame["status"] == "ok"
            for column, value in zip(("protocol", "setting", "baseline"), facts.key, strict=True):
                chosen &= frame[column] == value
            groups = frame[chosen].groupby(["model", "method"], sort=False, observed=True)
            for (model, method), rows in groups:
                tasks = [
                    task.name
                    for task in plan.tasks
                    if task.model == model and facts.canonical in task.protocols
                ]
                yield self._pending(protocol, facts, model, method, rows, tasks)

    def _pending(
        self,
        protocol: Protocol,
        facts: ProtocolFacts,
        model: str,
        method: str,
        rows: pd.DataFrame,
        tasks: list[str],
    ) -> PendingCurves:
        keys = {name: TensorKey.curve(facts.canonical, method, name) for name in facts.aggregates}
        ids, curves = self._stacked(tasks, keys)
        position = {sample: i for i, sample in enumerate(ids)}
        stored = rows["sample"].isin(position)
        samples = rows.loc[stored, "sample"].tolist()
        order = [position[sample] for sample in samples]
        return PendingCurves(
            protocol,
            model,
            method,
            samples,
            rows.index[stored],
            rows.index[~stored],
            {name: curve[order] for name, curve in curves.items()},
        )

    def _stacked(
        self, tasks: Sequence[str], keys: Mapping[str, TensorKey]
    ) -> tuple[list[str], dict[str, Tensor]]:
        """Return the samples of tasks that have all keys, and their tensors under these keys."""
        ids: list[str] = []
        parts: dict[str, list[Tensor]] = {name: [] for name in keys}
        for task in tasks:
            kept = self.tensors(task, keys.values())
            if not all(key in kept.tensors for key in keys.values()):
                continue
            ids += kept.samples.ids
            for name, key in keys.items():
                parts[name].append(kept.tensors[key])
        return ids, {name: torch.cat(tensors) for name, tensors in parts.items() if tensors}

    def _rows_as_written(self) -> pd.DataFrame:
        """Return rows as tasks have written them, without values that need all samples."""
        plan = self.plan()
        for facts in plan.protocols:
            register_stored(facts.model_dump())
        tables = [self._planned_rows(task) for task in plan.tasks if self.is_finished(task.name)]
        empty = _as_categories(ROW_SCHEMA.empty_table())
        table = pa.concat_tables(tables or [empty]).unify_dictionaries()
        frame = table.select(COLUMNS).to_pandas()
        for column in frame.columns[frame.dtypes == "category"]:  # so that texts sort as texts
            texts = frame[column].cat
            frame[column] = texts.reorder_categories(sorted(texts.categories))
        return frame

    def _planned_rows(self, task: TaskFacts) -> pa.Table:
        """Return the rows of a task that the plan has, in its order; texts are categories."""
        table = _as_categories(self._table(task.name))
        records = table["record"].combine_chunks()
        order = {record: i for i, record in enumerate(task.records)}
        positions = np.array([order.get(r, -1) for r in records.dictionary.to_pylist()], int)
        of_row = positions[records.indices.to_numpy()]
        if (of_row >= 0).all() and (np.diff(of_row) >= 0).all():
            return table
        chosen = np.flatnonzero(of_row >= 0)
        return table.take(chosen[np.argsort(of_row[chosen], kind="stable")])

    def _table(self, task: str) -> pa.Table:
        path = self.paths.rows(task)
        try:
            table = pq.read_table(path, schema=ROW_SCHEMA)
        except (pa.ArrowException, OSError) as error:  # OSError: the header is damaged
            raise self._damaged_task(task, path, error) from None
        column = table.schema.get_field_index("note")
        notes = pc.fill_null(table["note"], "")
        return table.set_column(column, table.schema.field(column), notes)

    def tensors(self, task: str, only: Iterable[TensorKey] | None = None) -> TaskTensors:
        """Return the stored tensors of a task, and its samples; empty if there are none.

        Args:
            task: The task's name.
            only: The keys to read; all by default.
        """
        path = self.paths.tensors(task)
        if not path.is_file():
            return TaskTensors()
        try:
            with safe_open(path, "pt") as file:
                names = set(file.keys())
                if only is None:
                    keys = {name: TensorKey.decode(name) for name in names}
                else:
                    keys = {key.encode(): key for key in only}
                tensors = {keys[name]: file.get_tensor(name) for name in names & set(keys)}
                metadata = file.metadata() or {}
            samples = SampleNotes.model_validate_json(metadata.get(SAMPLES, ""))
            content = TaskContent.model_validate_json(metadata.get(CONTENT, "{}"))
            return TaskTensors(tensors, samples, content)
        except (SafetensorError, ValidationError) as error:
            raise self._damaged_task(task, path, error) from None

    def grids(self) -> dict[str, GridNote]:
        """Return what the samples on grids consist of; other samples are missing."""
        notes: dict[str, GridNote] = {}
        for task in self.plan().tasks:
            if task.view.cell is not None:
                samples = self.tensors(task.name, only=()).samples
                notes |= dict(zip(samples.ids, samples.grids or [], strict=False))
        return notes

    def timings(self, task: str) -> Timings | None:
        """Return what a task took; None if it is not finished."""
        path = self.paths.timings(task)
        return read_json(path, Timings) if path.is_file() else None

    def _damaged_task(self, task: str, path: Path, error: Exception) -> HeatproofError:
        return HeatproofError(
            f"{path} is damaged ({str(error).splitlines()[0]}); delete it and "
            f"{self.paths.rows(task)}, then run the spec again to repeat this task"
        )

    def prepared(
        self, key: PreparedKey, compute: Callable[[], Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Return the tensors under a key; compute and store them if they are missing."""
        path = self.paths.prepared(key)
        if not path.is_file():
            tensors = {name: tensor.cpu().contiguous() for name, tensor in compute().items()}
            atomic_write(path, save(tensors))
        return load_file(path)


def _as_categories(table: pa.Table) -> pa.Table:
    """Return a table whose texts are dictionary-encoded."""
    for i, column in enumerate(table.schema):
        if pa.types.is_string(column.type):
            table = table.set_column(i, column.name, table[i].dictionary_encode())
    return table


def _set_undefined(frame: pd.DataFrame, rows: pd.Index, reason: str) -> None:
    """Make scores undefined for a reason."""
    for column, text in (("status", "undefined"), ("message", reason)):
        if text not in frame[column].cat.categories:
            texts = frame[column].cat
            frame[column] = texts.set_categories(sorted([*texts.categories, text]))
        frame.loc[rows, column] = text
