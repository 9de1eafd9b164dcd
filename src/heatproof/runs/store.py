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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
from safetensors.torch import save
from torch import Tensor

from heatproof.errors import HeatproofError, join_limited
from heatproof.files import TEMP_PREFIX
from heatproof.models.backends import AUTO, SINGLE
from heatproof.models.hashes import file_stamp
from heatproof.runs.columns import FRAME_COLUMNS, ROW_SCHEMA
from heatproof.runs.content_checks import (
    Shapes,
    check_plan,
    check_planned,
    check_provenance,
    check_rows,
    check_same_shapes,
    check_tensors,
    check_timings,
)
from heatproof.runs.curve_files import map_ahead
from heatproof.runs.directory import RunDirectory
from heatproof.runs.format import (
    SUFFIXES,
    FileKind,
    Latencies,
    ModelView,
    Origin,
    PlanFile,
    PreparedKey,
    Provenance,
    SameAs,
    TaskFacts,
    TaskManifest,
    TensorKey,
    Timings,
    is_run,
    name_hash,
    plan_parts,
    to_json,
)
from heatproof.runs.race_file import RaceFile
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
    decode_prepared,
    encode_files,
    make_manifest,
    read_coded_rows,
    read_rows,
    read_tensors,
    read_timings,
)

T = TypeVar("T")
RUN_NAMES = {*SUFFIXES, "tasks", "provenance", "prepared", "parts", "plan.json", "provenance.json"}
# of specs whose results can be in the same directory, with their defaults
KEYS_OF_ONE_DIRECTORY = {"data": None, "seed": None, "backend": None, "precision": SINGLE}


KEPT_IMAGE_DIGESTS = 64  # of a run's first images, by which data of the same name is recognised


def _differing(stored: Mapping[str, Any], requested: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of a spec because of which nothing of a stored run could be reused.

    Python objects of the same name are compared by their images and weights, where both runs have
    them on record.
    """
    for key, default in KEYS_OF_ONE_DIRECTORY.items():
        if key == "backend" and AUTO in _backends(stored, requested):
            continue  # the run keeps what it was begun with, or may be the same
        if stored.get(key, default) != requested.get(key, default):
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


class Store(RunDirectory):
    """Reads and writes the files of a run.

    Args:
        root: The directory; it is created by the first write.
    """

    def __init__(self, root: Path):
        super().__init__(root)
        self._manifests: dict[Path, tuple[str, TaskManifest]] = {}
        self._plan: tuple[str, PlanFile] | None = None
        self._tasks: tuple[PlanFile, dict[str, TaskFacts]] | None = None  # of it, by name
        self.row_samples: dict[str, tuple[str, ...]] = {}  # of tasks whose rows were read
        self._contents: dict[Path, str] = {}  # what is wrong with the content of verified files
        self._shapes: dict[ModelView, Shapes] = {}  # of the first task of every view

    def claim(self, identity: Mapping[str, Any], add: bool = False) -> None:
        """Take the directory for a spec; raises as ``check`` does."""
        self.check(identity, add)
        if self.paths.spec.is_file():
            try:
                read_spec(self.paths.spec)
            except HeatproofError as error:
                self.set_aside([self.paths.spec], reason_of(error))
        images = identity.get("images", ())
        kept = {**identity, "images": images[:KEPT_IMAGE_DIGESTS]} if images else identity
        content = json.dumps(kept, indent=1, ensure_ascii=False)
        self.write(self.paths.spec, seal(content.encode()))

    def check(self, identity: Mapping[str, Any], add: bool = False) -> None:
        """Check that the directory is free, or that a spec goes with what it holds.

        A run can grow: another spec is accepted if it has the data, seed, backend and precision,
        and a model in common. With anything else nothing could be reused, so the directory is
        probably not the one that was meant. Nothing is written.

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

    def latencies(self) -> Latencies:
        """Return the times of methods alone; nothing if they were not timed, or are damaged."""
        return self._optional(self.paths.latencies, Latencies)

    def race(self) -> RaceFile:
        """Return which methods were dropped when; nothing if the run is no race, or damaged."""
        return self._optional(self.paths.race, RaceFile)

    def same_as(self) -> SameAs:
        """Return which models are networks of papers; nothing if nobody said so, or damaged."""
        return self._optional(self.paths.same_as, SameAs)

    def _optional(self, path: Path, kind: type[Content]) -> Content:
        """Return the content of a sealed file that a run may lack; empty if it is damaged."""
        try:
            return read_sealed(path, kind)
        except FileNotFoundError:
            return kind()
        except HeatproofError as error:
            self.damage[path] = reason_of(error)
            return kind()

    def write_latencies(self, latencies: Latencies) -> None:
        """Store the times of methods alone."""
        self.write(self.paths.latencies, seal(to_json(latencies)))

    def write_race(self, race: RaceFile) -> None:
        """Store which methods were dropped when."""
        self.write(self.paths.race, seal(to_json(race)))

    def write_same_as(self, same_as: SameAs) -> None:
        """Store which models are networks of papers."""
        self.write(self.paths.same_as, seal(to_json(same_as)))

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
            plan = read_sealed(self.paths.plan, PlanFile)
            try:
                check_plan(plan)
            except ValueError as error:
                raise damaged(self.paths.plan, str(error)) from None
            self._plan = (stamp, plan)
        return self._plan[1]

    def provenance(self) -> Provenance:
        """Return the provenance of the latest plan."""
        if not self.paths.provenance.is_file():
            raise damaged(self.paths.provenance, "it is missing")
        provenance = read_sealed(self.paths.provenance, Provenance)
        try:
            check_provenance(provenance)
        except ValueError as error:
            raise damaged(self.paths.provenance, str(error)) from None
        return provenance

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
            if any(file.name.partition(".")[0] != task for file in manifest.files.values()):
                raise damaged(path, "it names the files of another task")
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

    def rows(self, columns: Sequence[str] = FRAME_COLUMNS) -> pd.DataFrame:
        """Return the rows of the latest plan that have been written, in its order.

        Texts are categories, so that millions of rows fit into memory.

        Args:
            columns: The columns that are read; by default all.
        """
        plan = self.plan()
        builder = FrameBuilder(columns)
        read = partial(read_coded_rows, columns=("record", *columns))
        tables = map_ahead(lambda t: self.read(t.name, "rows", read), plan.tasks)
        seen: dict[tuple[str, str], set[str]] = {}  # samples by model and protocol
        for task, table in zip(plan.tasks, tables, strict=True):
            if table is not None and self._has_new_samples(task, seen):
                builder.add(table, task.records)
        del tables
        pa.default_memory_pool().release_unused()
        return builder.frame()

    def _has_new_samples(self, task: TaskFacts, seen: dict[tuple[str, str], set[str]]) -> bool:
        """Return whether no task before has a sample of this one; such a task is left out."""
        samples = set(self.row_samples.get(task.name, ()))
        of_protocols = [seen.setdefault((task.model, name), set()) for name in task.protocols]
        if any(samples & before for before in of_protocols):
            path = self.path_of(task.name, "rows")
            if path is not None:
                self.damage[path] = "it has samples of another task"
            return False
        for before in of_protocols:
            before |= samples
        return True

    def first_tasks(self, tasks: Sequence[TaskFacts], most: int) -> list[TaskFacts]:
        """Return the first of some tasks, which have no more than a number of samples in all.

        The first task is always among them; tasks that are not finished are not counted.
        """
        found: list[TaskFacts] = []
        count = 0
        for task in tasks:
            count += self.samples_in(task.name)
            if count > most and found:
                break
            found.append(task)
        return found

    def samples_in(self, task: str) -> int:
        """Return the number of samples of a task, by its manifest."""
        manifest = self.manifest(task)
        groups = manifest.groups if manifest else []
        return max((sum(group.rows.values()) for group in groups), default=0)

    def is_damaged(self, task: str, kind: FileKind) -> bool:
        """Return whether a file of a task was found to be damaged when it was read."""
        manifest = self.manifest(task)
        return manifest is not None and (
            self.paths.stored(kind, manifest.files[kind].name) in self.damage
        )

    def table(self, task: str) -> pa.Table:
        """Return the rows of a task as written (``ROW_SCHEMA``); none if it is not finished."""
        found = self.read(task, "rows", read_rows)
        return ROW_SCHEMA.empty_table() if found is None else found

    def tensors(self, task: str, only: Iterable[TensorKey] | None = None) -> TaskTensors:
        """Return the stored tensors of a task, and its samples; empty if there are none.

        Args:
            task: The task's name.
            only: The keys to read; all by default. With some keys, neither the content nor the
                origins are read.
        """
        found = self.read(task, "tensors", partial(read_tensors, only=only))
        return TaskTensors() if found is None else found

    def origins(self, task: str) -> dict[str, list[str]]:
        """Return what computed each record of a task: digests of `origin`."""
        return self.tensors(task, ()).origins

    def read(self, task: str, kind: FileKind, read: Callable[[Path], T]) -> T | None:
        """Read a file of a task; None if it is not finished, or the file is damaged."""
        path = self.path_of(task, kind)
        if path is None:
            return None
        problem = self.content_problem(task, kind, path)
        if not problem:
            try:
                return read(path)
            except ValueError as error:
                problem = str(error)
        self.damage[path] = problem
        return None

    def content_problem(self, task: str, kind: FileKind, path: Path) -> str:
        """Return what is wrong with the content of a verified file of a task; empty if nothing.

        A file is looked into once. One that is not as it should be is not remembered as verified.
        """
        if path not in self._contents:
            try:
                self._check_content(task, kind, path)
                self._contents[path] = ""
            except (ValueError, OSError) as error:
                self._contents[path] = str(error).partition("\n")[0]
                self.distrust(path)
        return self._contents[path]

    def _check_content(self, task: str, kind: FileKind, path: Path) -> None:
        manifest = self.manifest(task)
        if manifest is None:
            return
        planned = self._planned(task)
        if kind == "timings":
            check_timings(read_timings(path))
        elif kind == "rows":
            found = check_rows(path, manifest)
            self.row_samples[task] = found.samples
            if planned is not None:
                check_planned(found, planned, self.plan())
        else:
            header = check_tensors(path)
            if len(header.samples.ids) > self.samples_in(task):
                raise ValueError("it has more samples than the rows of its manifest")
            if planned is not None:
                check_same_shapes(self._shapes_of(planned), header)

    def _planned(self, task: str) -> TaskFacts | None:
        """Return what the latest plan says about a task; None if it is not in it."""
        with suppress(HeatproofError, FileNotFoundError):
            plan = self.plan()
            if self._tasks is None or self._tasks[0] is not plan:
                self._tasks = plan, {facts.name: facts for facts in plan.tasks}
            return self._tasks[1].get(task)
        return None

    def _shapes_of(self, task: TaskFacts) -> Shapes:
        """Return the shapes of the tensors of the first task with the same subject."""
        if task.subject not in self._shapes:
            shapes: Shapes = {}
            first = (other for other in self.plan().tasks if other.subject == task.subject)
            for other in first:
                path = self.path_of(other.name, "tensors")
                if path is not None:
                    with suppress(ValueError):
                        check_same_shapes(shapes, check_tensors(path))
                        break
            self._shapes[task.subject] = shapes
        return self._shapes[task.subject]

    def timings(self, task: str) -> Timings | None:
        """Return what a task took; None if it is not finished."""
        return self.read(task, "timings", read_timings)

    def prepared(
        self, key: PreparedKey, compute: Callable[[], Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Return the tensors under a key; compute and store them if they are missing."""
        for path in self.paths.prepared(key):
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            problem = "its content does not match its checksum"
            if digest.startswith(name_hash(path.name) or "none"):
                try:
                    return decode_prepared(content)
                except ValueError as error:
                    problem = str(error)
            self.set_aside([path], problem)
            warnings.warn(f"{path} was damaged; it is computed anew", stacklevel=2)
        tensors = {name: tensor.cpu().contiguous() for name, tensor in compute().items()}
        content = save(tensors)
        self.write_hashed(self.paths.folder("prepared"), key.digest, ".safetensors", content)
        return decode_prepared(content)


def methods_of_run(directory: Path) -> list[Any]:
    """Return the methods that a run shows, as its spec has them; nothing if there is no run."""
    if not is_run(directory):
        return []
    methods = Store(directory).provenance().spec.get("methods", [])
    return [methods] if isinstance(methods, str | dict) else list(methods)
