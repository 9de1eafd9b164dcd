"""Read and write the directory of a run, whose format is in ``runs/format.py``.

Every file is written completely or not at all, so a killed run loses only the task it was in. Every
file is verified when it is read: what is damaged is noted in ``Store.damage`` and left out, and the
next run makes it anew (``runs/integrity.py``).
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from safetensors.torch import load, save
from torch import Tensor

from heatproof.data.grids import grid_name
from heatproof.errors import HeatproofError, join_limited
from heatproof.files import TEMP_PREFIX
from heatproof.models.backends import AUTO
from heatproof.models.hashes import file_stamp
from heatproof.protocols import Protocol
from heatproof.protocols.base import Scores, register_stored, stored_protocol
from heatproof.runs.columns import ROW_SCHEMA
from heatproof.runs.curve_files import CurveBuffers, CurveReader, map_ahead, stack_curves
from heatproof.runs.directory import RunDirectory
from heatproof.runs.format import (
    SUFFIXES,
    FileKind,
    GridNote,
    Origin,
    PlanFile,
    PreparedKey,
    ProtocolFacts,
    Provenance,
    Setting,
    TaskFacts,
    TaskManifest,
    TensorKey,
    Timings,
    name_hash,
    plan_parts,
    to_json,
)
from heatproof.runs.row_frame import FrameBuilder
from heatproof.runs.sealed import (
    Content,
    damaged,
    parse_json,
    read_sealed,
    read_spec,
    reason_of,
    seal,
    seal_parts,
    unseal,
)
from heatproof.runs.task_files import (
    TaskTensors,
    encode_files,
    make_manifest,
    read_coded_rows,
    read_rows,
    read_tensors,
    read_timings,
)

T = TypeVar("T")
RUN_NAMES = {*SUFFIXES, "tasks", "provenance", "prepared", "parts", "plan.json", "provenance.json"}
CURVE_BYTES = 5 * 2**28  # of curves of all samples in memory at the same time
SAME_KEYS = ("data", "seed", "backend")  # of specs whose results can be in the same directory


SAMPLE_DIGESTS = 64  # of a run's first images, by which data of the same name is recognised


def _differing(stored: Mapping[str, Any], requested: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of a spec because of which nothing of a stored run could be reused.

    Python objects of the same name are compared by their images and weights, where both runs have
    them on record.
    """
    for key in SAME_KEYS:
        if key == "backend" and AUTO in _backends(stored, requested):
            continue  # the run keeps what it was begun with, or may be the same
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


def _backends(*specs: Mapping[str, Any]) -> set[str]:
    """Return the backends of specs; those of Python calls on record may have none."""
    return {spec.get("backend", AUTO) for spec in specs}


@dataclass(frozen=True)
class _Alignment:
    """Which rows of a method have curves, and in which order; that of the method before is kept.

    Attributes:
        codes: The samples of the rows, as codes of their categories, ``(R,)``.
        ids: The samples that have curves, ``(N,)``.
        stored: Whether each row has curves, ``(R,)``.
        order: The positions of rows that have curves among these, ``(K,)``.
        samples: The samples of rows that have curves, ``(K,)``.
    """

    codes: np.ndarray | None = None
    ids: Sequence[str] = ()
    stored: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    order: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    samples: list[str] = field(default_factory=list)

    @property
    def is_identity(self) -> bool:
        """Whether the rows have all curves in their order."""
        return np.array_equal(self.order, np.arange(len(self.ids)))

    def of(self, samples: pd.Series, ids: Sequence[str]) -> _Alignment:
        """Align the rows of another method; ``samples`` are categories."""
        codes = samples.cat.codes.to_numpy()
        if self.codes is not None and np.array_equal(codes, self.codes) and ids == self.ids:
            return self
        texts = samples.cat.categories
        position = np.full(len(texts) + 1, -1)  # the last is that of no text
        known = texts.get_indexer(pd.Index(ids, dtype=texts.dtype))
        position[known[known >= 0]] = np.flatnonzero(known >= 0)
        of_rows = position[codes]
        stored = of_rows >= 0
        return _Alignment(codes, ids, stored, of_rows[stored], samples[stored].tolist())


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
        self._manifests: dict[Path, tuple[str, TaskManifest]] = {}
        self._plan: tuple[str, PlanFile] | None = None
        self._scored: dict[str, dict[str, pd.DataFrame]] | None = None  # see `_scored_rows`

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
                    f"{self.name} is not empty and not a run of heatproof; choose another "
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
                f"{self.name} holds a run of another spec, of which nothing could be reused (it "
                f"differs in: {', '.join(differing)}); choose another directory with -o (in "
                "Python: out=…), or add to this one with --add (in Python: add=True)"
            )

    def _is_foreign(self, name: str) -> bool:
        return name != self.paths.lock.name and not name.startswith(TEMP_PREFIX)

    def write_plan(
        self,
        plan: PlanFile,
        provenance: Provenance,
        computes: bool = True,
        tasks: Callable[[], Iterable[TaskFacts]] | None = None,
    ) -> None:
        """Write what is run and how; the plan last, so that a run with a plan has both.

        Args:
            plan: The plan.
            provenance: What is needed to repeat a run that starts now.
            computes: Whether the run computes anything. If not, versions and hardware on record
                stay those of the run that did.
            tasks: Makes the tasks of a plan that does not have them, since they are too many.
        """
        before = self._sound(self.paths.provenance, Provenance)
        if before is not None and not computes:
            changed = {"models": provenance.models, "spec": provenance.spec}
            provenance = before.model_copy(update=changed)
        self._set_aside_if_changed(self.paths.plan)
        self._scored = None
        self.write(self.paths.provenance, seal(to_json(provenance)))
        listed = tasks or (lambda: plan.tasks)
        empty = plan.model_copy(update={"tasks": []})
        self.write(self.paths.plan, seal_parts(lambda: plan_parts(empty, listed())))

    def _set_aside_if_changed(self, path: Path) -> None:
        """Set a sealed file aside if it is not as it was written."""
        try:
            unseal(path.read_bytes())
        except FileNotFoundError:
            return
        except ValueError as error:
            self.set_aside([path], str(error))

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
                f"{self.name} is not a run of heatproof (it has no {self.paths.plan.name})"
            )
        stamp = file_stamp(self.paths.plan)
        if self._plan is None or self._plan[0] != stamp:
            self._plan = (stamp, read_sealed(self.paths.plan, PlanFile))
        return self._plan[1]

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
        self._scored = None
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
                self.remove(self.paths.stored(kind, file.name))
        self.remember()

    def fetch(self, task: str) -> None:
        """Bring the copy of a run on another file system up to date, as far as a task needs it."""
        if self.remote is None:
            return
        self.remote.pull(f"tasks/{task}.json", f"parts/{task}")
        manifest = self.manifest(task)
        if manifest is not None:
            self.remote.pull(*(f"{kind}/{file.name}" for kind, file in manifest.files.items()))

    def manifest(self, task: str) -> TaskManifest | None:
        """Return the manifest of a task; None if the task is not finished."""
        path = self.paths.manifest(task)
        try:
            stamp = file_stamp(path)
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
        self._scored = self._scored_rows(frame)
        frame["cluster"] = self._clusters(frame["sample"])
        for facts in self.plan().protocols:
            if facts.aggregates and stored_protocol(facts.id, facts.settings) is None:
                chosen = (frame["protocol"] == facts.id) & (frame["status"] == "ok")
                reason = f"the code of protocol {facts.id} is not loaded; import it first"
                _set_undefined(frame, frame.index[chosen], reason)
        values = frame["value"].to_numpy(copy=True) if self._scored else None
        for pending, scores in self.map_curves(_aggregated):
            reason = "its curves are not kept, since others of its task failed"
            if pending.damaged:
                reason = "its curves are damaged; run the spec again to compute them anew"
            _set_undefined(frame, pending.lost, reason)
            if scores is None:
                continue
            if values is not None:
                values[pending.rows] = scores.value.numpy()
            for reason in dict.fromkeys(filter(None, scores.reasons)):
                rows = [
                    row
                    for row, its_reason in zip(pending.rows, scores.reasons, strict=True)
                    if its_reason == reason
                ]
                _set_undefined(frame, pd.Index(rows), reason)
        if values is not None:
            frame["value"] = values
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

    def pending_curves(
        self,
        model: str | None = None,
        protocol_key: Setting | None = None,
        most: int | None = None,
    ) -> Iterator[PendingCurves]:
        """Yield the curves of protocols that compute values from all samples of a model together.

        They are those of the rows that `rows` has returned, if it was called before.

        Args:
            model: Name of a model; by default all.
            protocol_key: Protocol, setting and baseline; by default all.
            most: How many samples of a model are read at most, in whole tasks; by default all.
        """
        for group in self._pending_groups(model, protocol_key, most, None):
            yield from group

    def map_curves(
        self, function: Callable[[PendingCurves], T], most: int | None = None
    ) -> Iterator[tuple[PendingCurves, T]]:
        """Apply a function to what `pending_curves` yields, to several methods at a time.

        Args:
            function: Is called in threads. The curves are only valid until it returns, since the
                next ones have the same memory.
            most: How many samples of a model are read at most, in whole tasks; by default all.
        """
        for group in self._pending_groups(None, None, most, CurveBuffers()):
            yield from zip(group, map_ahead(function, group), strict=True)

    def _pending_groups(
        self,
        model: str | None,
        protocol_key: Setting | None,
        most: int | None,
        buffers: CurveBuffers | None,
    ) -> Iterator[list[PendingCurves]]:
        """Yield the curves of some methods at a time, which are in memory together.

        With buffers, they are only valid until the next are asked for.
        """
        if self._scored is None:
            self._scored = self._scored_rows(self._rows_as_written())
        plan = self.plan()
        for facts in plan.protocols:
            protocol = stored_protocol(facts.id, facts.settings)
            if protocol is None or facts.canonical not in self._scored:
                continue
            if protocol_key not in (None, facts.key):
                continue
            for name, of_model in self._scored[facts.canonical].items():
                if model not in (None, name):
                    continue
                tasks = [
                    task
                    for task in plan.tasks
                    if task.model == name and facts.canonical in task.protocols
                ]
                if most is not None:
                    tasks = self.first_tasks(tasks, most)
                    of_model = of_model[of_model["sample"].isin(self._samples_of(tasks))]
                names = [task.name for task in tasks]
                yield from self._pending(protocol, facts, name, of_model, names, buffers)

    def first_tasks(self, tasks: Sequence[TaskFacts], most: int) -> list[TaskFacts]:
        """Return the first of some tasks, which have no more than a number of samples in all.

        The first task is always among them; tasks that are not finished are not counted.
        """
        found: list[TaskFacts] = []
        count = 0
        for task in tasks:
            count += self._samples_in(task.name)
            if count > most and found:
                break
            found.append(task)
        return found

    def _samples_in(self, task: str) -> int:
        """Return the number of samples of a task, by its manifest."""
        manifest = self.manifest(task)
        groups = manifest.groups if manifest else []
        return max((sum(group.rows.values()) for group in groups), default=0)

    def _samples_of(self, tasks: Sequence[TaskFacts]) -> set[str]:
        ids = (self.tensors(task.name, ()).samples.ids for task in tasks)
        return {sample for of_task in ids for sample in of_task}

    def _scored_rows(self, frame: pd.DataFrame) -> dict[str, dict[str, pd.DataFrame]]:
        """Return the rows that have curves instead of values, by protocol and model.

        Args:
            frame: The rows as tasks have written them.
        """
        found = {}
        for facts in self.plan().protocols:
            if facts.aggregates:
                chosen = frame["status"] == "ok"
                columns = zip(("protocol", "setting", "baseline"), facts.key, strict=True)
                for column, value in columns:
                    chosen &= frame[column] == value
                rows = frame[["model", "method", "sample"]].iloc[np.flatnonzero(chosen)]
                by_model = rows.groupby("model", sort=False, observed=True)
                found[facts.canonical] = {str(model): part for model, part in by_model}
        return found

    def _pending(
        self,
        protocol: Protocol,
        facts: ProtocolFacts,
        model: str,
        rows: pd.DataFrame,
        tasks: list[str],
        buffers: CurveBuffers | None,
    ) -> Iterator[list[PendingCurves]]:
        """Yield the curves of the methods of a model, of as many at a time as can be in memory."""
        by_method = dict(iter(rows.groupby("method", sort=False, observed=True)["sample"]))
        keys = {
            method: [TensorKey.curve(facts.canonical, method, name) for name in facts.aggregates]
            for method in by_method
        }
        found = _Alignment()
        for methods in self._readable_at_once(tasks, keys):
            chosen = {method: keys[method] for method in methods}
            stacked = self._stacked(tasks, chosen, buffers or CurveBuffers())
            is_damaged = any(self._is_damaged(task, "tensors") for task in tasks)
            group = []
            for method, (ids, curves) in stacked.items():
                samples = by_method[method]
                found = found.of(samples, ids)
                if not found.is_identity:
                    curves = [curve[found.order] for curve in curves]
                pending = PendingCurves(
                    protocol,
                    model,
                    method,
                    found.samples,
                    samples.index[found.stored],
                    samples.index[~found.stored],
                    dict(zip(facts.aggregates, map(torch.from_numpy, curves), strict=False)),
                    is_damaged,
                )
                group.append(pending)
            yield group
            if buffers:
                buffers.give_back(curve for _, curves in stacked.values() for curve in curves)

    def _is_damaged(self, task: str, kind: FileKind) -> bool:
        """Return whether a file of a task was found to be damaged when it was read."""
        manifest = self.manifest(task)
        return manifest is not None and (
            self.paths.stored(kind, manifest.files[kind].name) in self.damage
        )

    def _readable_at_once(
        self, tasks: Sequence[str], keys: Mapping[str, Sequence[TensorKey]]
    ) -> Iterator[list[str]]:
        """Divide methods into groups whose curves of all tasks fit into `CURVE_BYTES`."""
        methods = list(keys)
        sizes = [0]
        for task in tasks[:1]:
            stored = self.tensors(task, [key for each in keys.values() for key in each]).tensors
            sizes += [
                sum(stored[key].nbytes for key in each if key in stored) for each in keys.values()
            ]
        count = max(1, CURVE_BYTES // max(1, max(sizes) * len(tasks)))
        for begin in range(0, len(methods), count):
            yield methods[begin : begin + count]

    def _stacked(
        self,
        tasks: Sequence[str],
        keys: Mapping[str, Sequence[TensorKey]],
        buffers: CurveBuffers,
    ) -> dict[str, tuple[list[str], list[np.ndarray]]]:
        """Return for each method the samples of tasks that have all its keys, and their curves."""
        reader = CurveReader(key for each in keys.values() for key in each)
        found = map_ahead(lambda task: self._read(task, "tensors", reader.read), tasks)
        most = sum(map(self._samples_in, tasks))
        read_ones = (curves for curves in found if curves is not None)
        return stack_curves(read_ones, keys, most, buffers, reader.release)

    def _rows_as_written(self) -> pd.DataFrame:
        """Return rows as tasks have written them, without values that need all samples."""
        plan = self.plan()
        for facts in plan.protocols:
            register_stored(facts.model_dump())
        builder = FrameBuilder()
        tables = map_ahead(lambda t: self._read(t.name, "rows", read_coded_rows), plan.tasks)
        for task, table in zip(plan.tasks, tables, strict=True):
            if table is not None:
                builder.add(table, task.records)
        return builder.frame()

    def table(self, task: str) -> pa.Table:
        """Return the rows of a task as written (``ROW_SCHEMA``); none if it is not finished."""
        found = self._read(task, "rows", read_rows)
        return ROW_SCHEMA.empty_table() if found is None else found

    def tensors(self, task: str, only: Iterable[TensorKey] | None = None) -> TaskTensors:
        """Return the stored tensors of a task, and its samples; empty if there are none.

        Args:
            task: The task's name.
            only: The keys to read; all by default. With some keys, neither the content nor the
                origins are read.
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


def _aggregated(pending: PendingCurves) -> Scores | None:
    """Compute the values of samples from the curves of all; None if there are none."""
    return pending.protocol.aggregate(pending.curves) if pending.samples else None


def _set_undefined(frame: pd.DataFrame, rows: pd.Index, reason: str) -> None:
    """Make scores undefined for a reason."""
    if not len(rows):
        return
    for column, text in (("status", "undefined"), ("message", reason)):
        if text not in frame[column].cat.categories:
            texts = frame[column].cat
            frame[column] = texts.set_categories(sorted([*texts.categories, text]))
        frame.loc[rows, column] = text
