"""Read and write the directory of a run, whose format is in ``bench/layout.py``.

Every file is written completely or not at all, so a killed run loses only the task it was in. Every
file is verified when it is read: what is damaged is noted in ``Store.damage`` and left out, and the
next run makes it anew (``bench/integrity.py``).
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from safetensors.torch import load, save
from torch import Tensor

from heatproof.bench.directory import RunDirectory, Stamp, stamp_of
from heatproof.bench.layout import (
    COLUMNS,
    ROW_SCHEMA,
    SUFFIXES,
    FileKind,
    GridNote,
    Origin,
    PlanFile,
    PreparedKey,
    ProtocolFacts,
    Provenance,
    TaskFacts,
    TaskManifest,
    TensorKey,
    Timings,
    name_hash,
    to_json,
)
from heatproof.bench.sealed import (
    Content,
    damaged,
    parse_json,
    read_sealed,
    read_spec,
    reason_of,
    seal,
)
from heatproof.bench.taskfiles import (
    TaskTensors,
    encode_files,
    make_manifest,
    read_rows,
    read_tensors,
    read_timings,
)
from heatproof.data.grids import grid_name
from heatproof.errors import HeatproofError, join_limited
from heatproof.files import TEMP_PREFIX
from heatproof.protocols import Protocol
from heatproof.protocols.base import register_stored, stored_protocol

T = TypeVar("T")
RUN_NAMES = {*SUFFIXES, "tasks", "provenance", "prepared", "parts", "plan.json", "provenance.json"}
SAME_KEYS = ("data", "seed", "backend")  # of specs whose results can be in the same directory


SAMPLE_DIGESTS = 64  # of a run's first images, by which data of the same name is recognised


def _differing(stored: Mapping[str, Any], requested: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of a spec because of which nothing of a stored run could be reused.

    Python objects of the same name are compared by their images and weights, where both runs have
    them on record.
    """
    for key in SAME_KEYS:
        if stored.get(key) != requested.get(key):
            yield key
    images = [set(spec.get("images", ())) for spec in (stored, requested)]
    if all(images) and not images[0] & images[1]:
        yield "data, whose images are others"
    common = [model for model in requested.get("models", []) if model in stored.get("models", [])]
    before = stored.get("weights", {})
    now = requested.get("weights", {})
    changed = [
        model
        for model in common
        if isinstance(model, str)  # a name, not the entry of a spec
        and model in before
        and now.get(model, before[model]) != before[model]
    ]
    if not common:
        yield "models"
    elif changed == common:
        yield f"models, as {join_limited(changed)} has other weights or preprocessing"


class PendingCurves(NamedTuple):
    """Curves of one model and method, from which a protocol computes values for all samples."""

    protocol: Protocol
    model: str
    method: str
    samples: list[str]  # (N,)
    rows: pd.Index  # (N,) of the frame
    lost: pd.Index  # rows of samples whose curves are not stored
    curves: dict[str, Tensor]  # (N, S) each
    damaged: bool = False  # whether curves are lost because a file is damaged


class Store(RunDirectory):
    """What a run has stored.

    Args:
        root: The directory; it is created by the first write.
    """

    def __init__(self, root: Path):
        super().__init__(root)
        self._manifests: dict[Path, tuple[Stamp, TaskManifest]] = {}

    def claim(self, identity: Mapping[str, Any], add: bool = False) -> None:
        """Take the directory for a spec; raises as ``check`` does."""
        self.check(identity, add)
        if self.paths.spec.is_file():
            try:
                read_spec(self.paths.spec)
            except HeatproofError as error:
                self.set_aside([self.paths.spec], reason_of(error))
        images = identity.get("images", ())
        kept = {**identity, "images": images[:SAMPLE_DIGESTS]} if images else identity
        content = json.dumps(kept, indent=1, ensure_ascii=False)
        self.write(self.paths.spec, seal(content.encode()))

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
            names = [path.name for path in self.root.iterdir()] if self.root.exists() else []
            if any(map(self._is_foreign, names)) and not RUN_NAMES & set(names):
                raise HeatproofError(
                    f"{self.root} is not empty and not a run of heatproof; choose another "
                    "directory with -o"
                )
            return
        try:
            stored = read_spec(self.paths.spec)
        except HeatproofError as error:
            if not self.paths.plan.is_file():
                raise
            warnings.warn(f"{error}; it is written anew from this spec", stacklevel=2)
            return
        requested = json.loads(json.dumps(identity))
        differing = list(_differing(stored, requested))
        if differing and not add:
            raise HeatproofError(
                f"{self.root} holds a run of another spec, of which nothing could be reused (it "
                f"differs in: {', '.join(differing)}); choose another directory with -o (in "
                "Python: out=…), or add to this one with --add (in Python: add=True)"
            )

    def _is_foreign(self, name: str) -> bool:
        return name != self.paths.lock.name and not name.startswith(TEMP_PREFIX)

    def write_plan(self, plan: PlanFile, provenance: Provenance, computes: bool = True) -> None:
        """Write what is run and how; the plan last, so that a run with a plan has both.

        Args:
            plan: The plan.
            provenance: What is needed to repeat a run that starts now.
            computes: Whether the run computes anything. If not, versions and hardware on record
                stay those of the run that did.
        """
        before = self._sound(self.paths.provenance, Provenance)
        if before is not None and not computes:
            changed = {"models": provenance.models, "spec": provenance.spec}
            provenance = before.model_copy(update=changed)
        self._sound(self.paths.plan, PlanFile)
        self.write(self.paths.provenance, seal(to_json(provenance)))
        self.write(self.paths.plan, seal(to_json(plan)))

    def _sound(self, path: Path, kind: type[Content]) -> Content | None:
        """Return the content of a sealed file; one that is damaged is set aside."""
        try:
            return read_sealed(path, kind)
        except FileNotFoundError:
            return None
        except HeatproofError as error:
            self.set_aside([path], reason_of(error))
            return None

    def write_origin(self, origin: Origin) -> str:
        """Store what computes records, unless it is there; return its digest."""
        path = self.paths.stored("provenance", f"{origin.digest}.json")
        if self.origin(origin.digest) is None:
            self.write(path, to_json(origin))
        return origin.digest

    def origin(self, digest: str) -> Origin | None:
        """Return what computed records; None if it is not on record, or damaged."""
        path = self.paths.stored("provenance", f"{digest}.json")
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest()[: len(digest)] != digest:
                raise ValueError("its checksum does not match")
            return parse_json(content, Origin)
        except FileNotFoundError:
            return None
        except ValueError as error:
            self.damage[path] = str(error)
            return None

    def plan(self) -> PlanFile:
        """Return the latest plan.

        Raises:
            HeatproofError: If the directory is not a run, or the plan is damaged.
        """
        if not self.paths.plan.is_file():
            lost = RUN_NAMES & {path.name for path in self.root.glob("*")}
            if lost:
                raise damaged(self.paths.plan, "it is missing")
            raise HeatproofError(
                f"{self.root} is not a run of heatproof (it has no {self.paths.plan.name})"
            )
        return read_sealed(self.paths.plan, PlanFile)

    def provenance(self) -> Provenance:
        """Return the provenance of the latest plan."""
        if not self.paths.provenance.is_file():
            raise damaged(self.paths.provenance, "it is missing")
        return read_sealed(self.paths.provenance, Provenance)

    def commit(self, task: str, rows: pa.Table, kept: TaskTensors, timings: Timings) -> None:
        """Write the results of a task; its manifest last, since a task that has one is finished.

        The manifest is replaced at once, and files of an earlier commit are deleted after that: a
        process that is killed leaves the task as it was, or as it should be.

        Args:
            task: The task's name.
            rows: Its rows (``ROW_SCHEMA``), ordered by record.
            kept: Its tensors, and what computed its records.
            timings: What it took.
        """
        contents = encode_files(rows, kept, timings)
        files = {
            kind: self.write_hashed(self.paths.folder(kind), task, SUFFIXES[kind], content)
            for kind, content in contents.items()
        }
        before = self.manifest(task)
        manifest = make_manifest(task, files, kept, rows)
        self.write(self.paths.manifest(task), seal(to_json(manifest)))
        for kind, file in (before.files if before else {}).items():
            if file.name != files[kind].name:
                self.paths.stored(kind, file.name).unlink(missing_ok=True)

    def manifest(self, task: str) -> TaskManifest | None:
        """Return the manifest of a task; None if the task is not finished."""
        path = self.paths.manifest(task)
        try:
            stamp = stamp_of(path)
        except FileNotFoundError:
            return None
        known = self._manifests.get(path)
        if known and known[0] == stamp:
            return known[1]
        try:
            manifest = read_sealed(path, TaskManifest)
            if manifest.task != task:
                raise damaged(path, f"it belongs to the task {manifest.task}")
        except HeatproofError as error:
            self.damage[path] = reason_of(error)
            return None
        self._manifests[path] = (stamp, manifest)
        return manifest

    def is_finished(self, task: str) -> bool:
        """Return whether a task has been written, and its rows are whole."""
        return self.path_of(task, "rows") is not None

    def path_of(self, task: str, kind: FileKind) -> Path | None:
        """Return a verified file of a task; None if it does not exist or is damaged."""
        manifest = self.manifest(task)
        if manifest is None:
            return None
        path = self.paths.stored(kind, manifest.files[kind].name)
        problem = self.problem_of(path, manifest.files[kind])
        if problem and self.manifest(task) != manifest:  # committed anew by another process
            return self.path_of(task, kind)
        if problem:
            self.damage[path] = problem
            return None
        self.damage.pop(path, None)
        return path

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
            if pending.damaged:
                reason = "its curves are damaged; run the spec again to compute them anew"
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
            any(self.is_finished(t) and self.path_of(t, "tensors") is None for t in tasks),
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
        table = _as_categories(self.table(task.name))
        records = table["record"].combine_chunks()
        order = {record: i for i, record in enumerate(task.records)}
        positions = np.array([order.get(r, -1) for r in records.dictionary.to_pylist()], int)
        of_row = positions[records.indices.to_numpy()]
        if (of_row >= 0).all() and (np.diff(of_row) >= 0).all():
            return table
        chosen = np.flatnonzero(of_row >= 0)
        return table.take(chosen[np.argsort(of_row[chosen], kind="stable")])

    def table(self, task: str) -> pa.Table:
        """Return the rows of a task as written (``ROW_SCHEMA``); none if it is not finished."""
        found = self._read(task, "rows", read_rows)
        return ROW_SCHEMA.empty_table() if found is None else found

    def tensors(self, task: str, only: Iterable[TensorKey] | None = None) -> TaskTensors:
        """Return the stored tensors of a task, and its samples; empty if there are none.

        Args:
            task: The task's name.
            only: The keys to read; all by default.
        """
        found = self._read(task, "tensors", partial(read_tensors, only=only))
        return TaskTensors() if found is None else found

    def origins(self, task: str) -> dict[str, list[str]]:
        """Return what computed each record of a task: digests of `origin`."""
        return self.tensors(task, ()).origins

    def _read(self, task: str, kind: FileKind, read: Callable[[Path], T]) -> T | None:
        """Read a file of a task; None if it is not finished, or the file is damaged."""
        path = self.path_of(task, kind)
        if path is None:
            return None
        try:
            return read(path)
        except ValueError as error:
            self.damage[path] = str(error)
            return None

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
        return self._read(task, "timings", read_timings)

    def prepared(
        self, key: PreparedKey, compute: Callable[[], Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Return the tensors under a key; compute and store them if they are missing."""
        for path in self.paths.prepared(key):
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            if digest.startswith(name_hash(path.name) or "none"):
                return load(content)
            self.set_aside([path], "its content does not match its checksum")
            warnings.warn(f"{path} was damaged; it is computed anew", stacklevel=2)
        tensors = {name: tensor.cpu().contiguous() for name, tensor in compute().items()}
        content = save(tensors)
        self.write_hashed(self.paths.folder("prepared"), key.digest, ".safetensors", content)
        return load(content)


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
