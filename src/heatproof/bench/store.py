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

SAMPLES = "samples"  # the metadata entry of a tensor file that holds its notes


@dataclass(frozen=True)
class TaskTensors:
    """The stored tensors of a task, and which samples they belong to."""

    tensors: dict[TensorKey, Tensor] = field(default_factory=dict)
    samples: SampleNotes = SampleNotes()  # noqa: RUF009 (frozen)


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

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Take the directory for a spec; raises as ``check`` does."""
        self.check(identity)
        content = json.dumps(identity, indent=1, ensure_ascii=False)
        atomic_write(self.paths.spec, content.encode())

    def check(self, identity: Mapping[str, Any]) -> None:
        """Check that the directory is free, or belongs to this spec. Nothing is written.

        Args:
            identity: What a run directory belongs to, as ``Spec.identity`` returns it.

        Raises:
            HeatproofError: If the directory belongs to another spec, or holds something else.
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
        keys = {*stored, *requested}
        differing = sorted(key for key in keys if stored.get(key) != requested.get(key))
        if differing:
            raise HeatproofError(
                f"{self.root} belongs to another spec (it differs in: {', '.join(differing)}); "
                "choose another directory with -o"
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
        notes = {SAMPLES: kept.samples.model_dump_json()}
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

        Values that a protocol computes from the curves of all samples are filled in. A further
        column ``cluster`` says which samples are not independent: it is the grid that a sample
        belongs to, and otherwise the sample itself.
        """
        frame = self._rows_as_written()
        grids = self._grid_of_samples()
        frame["cluster"] = [grids.get(sample, sample) for sample in frame["sample"]]
        for facts in self.plan().protocols:
            if facts.aggregates and stored_protocol(facts.id, facts.settings) is None:
                chosen = (frame["protocol"] == facts.id) & (frame["status"] == "ok")
                frame.loc[chosen, ["status", "message"]] = (
                    "undefined",
                    f"the code of protocol {facts.id} is not loaded; import it first",
                )
        for pending in self.pending_curves(frame):
            frame.loc[pending.lost, ["status", "message"]] = (
                "undefined",
                "its curves are not kept, since others of its task failed",
            )
            if not pending.samples:
                continue
            scores = pending.protocol.aggregate(pending.curves)
            frame.loc[pending.rows, "value"] = scores.value.numpy()
            frame.loc[pending.rows, "message"] = scores.reasons
            frame.loc[pending.rows, "status"] = [
                "undefined" if reason else "ok" for reason in scores.reasons
            ]
        return frame

    def _grid_of_samples(self) -> dict[str, str]:
        """Return the grid of every sample on a grid, by its id."""
        grids = {}
        for task in self.plan().tasks:
            notes = self.tensors(task.name, ()).samples
            for sample, grid in zip(notes.ids, notes.grids or [], strict=False):
                grids[sample] = grid_name(grid.images)
        return grids

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
            for (model, method), rows in frame[chosen].groupby(["model", "method"], sort=False):
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
        order: dict[str, int] = {}
        for task in plan.tasks:
            for record in task.records:
                order[record] = len(order)
        tables = [self._table(task.name) for task in plan.tasks if self.is_finished(task.name)]
        frame = pa.concat_tables(tables or [ROW_SCHEMA.empty_table()]).to_pandas()
        frame = frame[frame["record"].isin(order)]
        frame = frame.sort_values("record", key=lambda keys: keys.map(order), kind="stable")
        return frame.reset_index(drop=True)[COLUMNS]

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
                notes = (file.metadata() or {}).get(SAMPLES, "")
            return TaskTensors(tensors, SampleNotes.model_validate_json(notes))
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
