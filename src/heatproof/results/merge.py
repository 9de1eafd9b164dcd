"""One result of several runs: other methods, models, protocols or samples.

A run directory is made of tasks, each with the rows and tensors of some samples of a model's view.
Merging groups the samples of a view by the tasks that have them: every group becomes one task, with
the rows of all its sources. What several runs have in common is kept once, and must be equal.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from heatproof.errors import HeatproofError, join_limited
from heatproof.execute.rows import PLACE, places_of, rows_of
from heatproof.files import TEMP_PREFIX, content_hash
from heatproof.results.result import Result
from heatproof.runs.addresses import to_read, to_write
from heatproof.runs.format import (
    LOGITS,
    GridNote,
    Latencies,
    MethodFacts,
    ModelFacts,
    ModelView,
    PassCount,
    PlanFile,
    ProtocolFacts,
    Provenance,
    RunPaths,
    SameAs,
    SampleNotes,
    TaskFacts,
    TensorKey,
    Timing,
    Timings,
    ViewFacts,
)
from heatproof.runs.sealed import read_spec
from heatproof.runs.store import Store
from heatproof.runs.task_files import TaskTensors

SCORE_ROUNDING = 1e-6  # by which scores of other machines may differ
LOGIT_ROUNDING = 1e-3  # of the largest logit


def merge(results: Sequence[Result | str | Path], out: str | Path | None = None) -> Result:
    """Make one result of several: of other methods, models, protocols or samples.

    What several results have in common is kept once. The merged result can be summarized, compared,
    reported and merged again, but not continued with ``run``.

    Args:
        results: Results, run directories or addresses.
        out: The directory or address of the merged run, empty or new; by default it is temporary.

    Returns:
        The merged result.

    Raises:
        HeatproofError: If results cannot be told apart or do not fit together: other weights under
            the same name of a model, another image under the same id of a sample, other settings
            under the same name of a method, another version of a protocol, or two different scores
            of the same model, setting, method and sample. The message names them.
    """
    stores = [r.store if isinstance(r, Result) else Store(to_read(r)) for r in results]
    if not stores:
        raise HeatproofError("there is nothing to merge; name results or run directories")
    directory = None if out is None else to_write(out)
    parts = [_Part(store) for store in stores]
    identity = {"merged": [part.provenance.spec for part in parts]}
    if directory is not None:
        _check_free(directory, identity)
    _check_models(parts)
    methods = _methods(parts)
    protocols = _protocols(parts)
    groups = [group for subject in _subjects(parts) for group in _groups(subject, parts)]
    root = directory or Path(tempfile.mkdtemp(prefix="heatproof-"))
    store = Store(root)
    try:
        store.claim(identity, add=True)
        tasks = [_write(store, group) for group in groups]
        views = _views(parts, groups)
        plan = PlanFile(tasks=tasks, methods=methods, protocols=protocols, views=views)
        store.write_plan(plan, _provenance(parts))
        store.write_latencies(_latencies(parts))
        said = {s.model: s for part in reversed(parts) for s in part.store.same_as().networks}
        if said:
            store.write_same_as(SameAs(networks=list(said.values())))
        return Result(store, temporary=out is None)
    except BaseException:
        if out is None:
            shutil.rmtree(root, ignore_errors=True)
        raise


def _check_free(directory: Path, identity: Mapping[str, Any]) -> None:
    """Check that a directory is empty, or holds what is left of the same merge, which goes on."""
    paths = RunPaths(directory)
    names = [path.name for path in directory.iterdir()] if directory.exists() else []
    if all(name.startswith(TEMP_PREFIX) for name in names):
        return
    if not paths.plan.exists() and paths.spec.is_file():  # the plan is written last
        with suppress(HeatproofError):
            if read_spec(paths.spec) == json.loads(json.dumps(identity)):
                return
    raise HeatproofError(f"{Store(directory).name} is not empty; choose another directory")


class _Part:
    """A run that is merged with others."""

    def __init__(self, store: Store):
        self.store = store
        self.plan = store.plan()
        self.provenance = store.provenance()

    @property
    def name(self) -> str:
        return self.store.name

    @cached_property
    def models(self) -> dict[ModelView, ModelFacts]:
        return {facts.subject: facts for facts in self.provenance.models}


@dataclass(frozen=True)
class _Source:
    """A task of a run."""

    part: _Part
    task: TaskFacts
    notes: SampleNotes
    samples: list[str]  # in the order of the tensors, and those that could not be read

    @classmethod
    def read(cls, part: _Part, task: TaskFacts) -> _Source:
        notes = part.store.tensors(task.name, ()).samples
        source = cls(part, task, notes, [])
        of_rows = source.rows()["sample"].unique().to_pylist()
        return replace(source, samples=list(dict.fromkeys([*notes.ids, *of_rows])))

    def rows(self) -> pa.Table:
        """Read rows from disk; those of all tasks are too many to be kept."""
        return rows_of(self.part.store.table(self.task.name), set(self.task.records))

    def tensors(self, only: Sequence[TensorKey] | None = None) -> dict[TensorKey, Tensor]:
        """Read tensors from disk; they are too large to be kept for all tasks."""
        return self.part.store.tensors(self.task.name, only).tensors


@dataclass(frozen=True)
class _Group:
    """Samples that the same tasks have."""

    sources: tuple[_Source, ...]
    samples: list[str]

    @property
    def is_whole(self) -> bool:
        """Whether it is a single task as it was."""
        return len(self.sources) == 1 and len(self.samples) == len(self.sources[0].samples)


def _check_models(parts: Sequence[_Part]) -> None:
    """Refuse models of the same name with other weights, structure or preprocessing."""
    known: dict[ModelView, tuple[str, _Part]] = {}
    for part in parts:
        for subject, facts in part.models.items():
            fingerprint, other = known.setdefault(subject, (facts.fingerprint, part))
            if fingerprint != facts.fingerprint:
                raise HeatproofError(
                    f"{subject.title} is not the same model in {other.name} ({fingerprint[:12]}) "
                    f"and in {part.name} ({facts.fingerprint[:12]}); give one another name: "
                    'hp.Model(network, name="…")'
                )


def _methods(parts: Sequence[_Part]) -> dict[str, MethodFacts]:
    """Return all methods by label; refuse a label with two meanings."""
    methods: dict[str, MethodFacts] = {}
    for part in parts:
        for label, facts in part.plan.methods.items():
            known = methods.setdefault(label, facts)
            if known.canonical != facts.canonical:
                raise HeatproofError(
                    f"the method {label} is {known.canonical} in one run and {facts.canonical} in "
                    f"{part.name}; results of both cannot have the same name"
                )
    return methods


def _protocols(parts: Sequence[_Part]) -> list[ProtocolFacts]:
    """Return all protocols with their settings; refuse two versions of one."""
    protocols: dict[tuple[str, str, str], ProtocolFacts] = {}
    for part in parts:
        for facts in part.plan.protocols:
            known = protocols.setdefault(facts.key, facts)
            if known.canonical != facts.canonical:
                raise HeatproofError(
                    f"the protocol {facts.id} has another version or code in {part.name} "
                    f"({facts.canonical}) than before ({known.canonical}); evaluate one of them "
                    "again with this version of heatproof"
                )
    return list(protocols.values())


def _subjects(parts: Sequence[_Part]) -> list[ModelView]:
    """Return all views of models, in the order in which the runs have them."""
    names = dict.fromkeys(task.model for part in parts for task in part.plan.tasks)
    found = dict.fromkeys(task.subject for part in parts for task in part.plan.tasks)
    order = list(names)
    return sorted(found, key=lambda subject: order.index(subject.model))


def _groups(subject: ModelView, parts: Sequence[_Part]) -> list[_Group]:
    """Group the samples of a view by the tasks that have them, and check what is there twice."""
    sources = [
        _Source.read(part, task)
        for part in parts
        for task in part.plan.tasks
        if task.subject == subject and part.store.is_finished(task.name)
    ]
    tasks_of: dict[str, list[int]] = {}
    for i, source in enumerate(sources):
        for sample in source.samples:
            tasks_of.setdefault(sample, []).append(i)
    members: dict[tuple[int, ...], list[str]] = {}
    for sample, indices in tasks_of.items():
        members.setdefault(tuple(indices), []).append(sample)
    groups = [_Group(tuple(sources[i] for i in key), ids) for key, ids in members.items()]
    for group in groups:
        if len(group.sources) > 1:
            _check_images(subject, group)
    return groups


def _check_images(subject: ModelView, group: _Group) -> None:
    """Refuse samples that have another label, or another image by the model's outputs."""
    first = group.sources[0]
    positions = _positions(first)
    logits = first.tensors((LOGITS,)).get(LOGITS)
    for source in group.sources[1:]:
        others = _positions(source)
        common = [sample for sample in group.samples if sample in positions and sample in others]
        other_logits = source.tensors((LOGITS,)).get(LOGITS)
        if not common or logits is None or other_logits is None:
            continue
        ours = [positions[sample] for sample in common]
        theirs = [others[sample] for sample in common]
        same = _same_logits(logits[ours].float(), other_logits[theirs].float())
        for i, sample in enumerate(common):
            label, other_label = first.notes.labels[ours[i]], source.notes.labels[theirs[i]]
            if not same[i] or label != other_label:
                raise HeatproofError(
                    f'sample "{sample}" of {subject.title} is another image or has another label '
                    f"in {first.part.name} than in {source.part.name}; give samples ids of their "
                    "own: hp.TensorData(images, labels, ids=[…])"
                )


def _positions(source: _Source) -> dict[str, int]:
    return {sample: i for i, sample in enumerate(source.notes.ids)}


def _same_logits(ours: Tensor, theirs: Tensor) -> list[bool]:  # (B, K) each
    """Return whether logits differ by no more than rounding."""
    if ours.shape != theirs.shape:
        return [False] * len(ours)
    apart = (ours - theirs).abs().amax(1)
    same: list[bool] = (apart <= LOGIT_ROUNDING * ours.abs().amax(1).clamp(min=1)).tolist()
    return same


def _write(store: Store, group: _Group) -> TaskFacts:
    """Write a group as one task of the merged run."""
    first = group.sources[0]
    name = first.task.name
    if not group.is_whole or store.is_finished(name):
        members = "\n".join(group.samples)
        name = f"{name[:8]}-merged-{content_hash(members + name, length=12)}"
    rows = _rows(group)
    kept = replace(_tensors(group), origins=_origins(store, group, rows))
    store.commit(name, rows, kept, _timings(group))
    return TaskFacts(
        name=name,
        model=first.task.model,
        view=first.task.view,
        protocols=list(dict.fromkeys(p for s in group.sources for p in s.task.protocols)),
        records=rows["record"].unique().to_pylist(),
    )


def _origins(store: Store, group: _Group, rows: pa.Table) -> dict[str, list[str]]:
    """Return what computed each record of a group, and put it on record in the merged run."""
    records = {place: record for record, place in places_of(rows).items()}
    found: dict[str, set[str]] = {}
    for source in group.sources:
        origins = source.part.store.origins(source.task.name)
        for record, place in places_of(source.rows()).items():
            for digest in origins.get(record, ()):
                origin = source.part.store.origin(digest)
                if place in records and origin is not None:
                    found.setdefault(records[place], set()).add(store.write_origin(origin))
    return {record: sorted(digests) for record, digests in found.items()}


def _rows(group: _Group) -> pa.Table:
    """Return the rows of all sources; those that are there twice must be equal.

    All rows of a place (setting and method) have the record of the first of them.
    """
    tables = []
    for source in group.sources:
        table = source.rows()
        chosen = pc.is_in(table["sample"], pa.array(group.samples, pa.string()))
        tables.append(table.filter(chosen))
    rows = pa.concat_tables(tables)
    if not rows.num_rows:
        return rows
    places = _distinct([_codes(rows[name]) for name in PLACE])
    keys = _distinct([places.number, _codes(rows["sample"])])
    _check_equal(group, rows, keys.first[keys.number], [table.num_rows for table in tables])
    first = places.first[places.number]
    record = rows.schema.get_field_index("record")
    rows = rows.set_column(record, rows.schema.field(record), rows["record"].take(first))
    kept = np.sort(keys.first)
    return rows.take(kept[np.argsort(first[kept], kind="stable")])


class _Distinct(NamedTuple):
    """Rows of some columns that are equal."""

    number: np.ndarray  # (rows,) of the distinct values
    first: np.ndarray  # (distinct values,) the first row of each


def _distinct(codes: Sequence[np.ndarray]) -> _Distinct:  # (rows,) each
    combined = np.zeros(len(codes[0]), np.int64)
    for column in codes:
        combined = combined * (column.max() + 1) + column
        combined = np.unique(combined, return_inverse=True)[1]  # so that no product overflows
    first = np.unique(combined, return_index=True)[1]
    return _Distinct(combined, first)


def _codes(column: pa.ChunkedArray) -> np.ndarray:  # (rows,)
    """Return a number for each text of a column, the same for equal ones; 0 for none."""
    encoded = column.combine_chunks().dictionary_encode()
    codes: np.ndarray = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64) + 1


def _check_equal(group: _Group, rows: pa.Table, first: np.ndarray, counts: Sequence[int]) -> None:
    """Refuse rows that differ from the first ones of the same setting, method and sample.

    Args:
        group: The group.
        rows: The rows of its sources, one after the other.
        first: For every row the first one of the same setting, method and sample.
        counts: Numbers of rows of the sources.
    """
    values = rows["value"].to_numpy()
    same = np.isclose(
        values, values[first], rtol=SCORE_ROUNDING, atol=SCORE_ROUNDING, equal_nan=True
    )
    for name in ("status", "target", "layer"):
        codes = _codes(rows[name])
        same &= codes == codes[first]
    if same.all():
        return
    there = int(np.argmin(same))
    sources = np.repeat(np.arange(len(counts)), counts)
    one, other = (rows.slice(i, 1).to_pylist()[0] for i in (int(first[there]), there))
    names = [group.sources[sources[i]].part.name for i in (first[there], there)]
    raise HeatproofError(
        f"{other['method']} has two scores for sample {other['sample']} of {other['model']} "
        f"under {other['protocol']}({other['setting']}, baseline={other['baseline']}): "
        f"{_shown(one)} in {names[0]} and {_shown(other)} in {names[1]}"
    )


def _shown(row: Mapping[str, Any]) -> str:
    return f"{row['value']:.6g}" if row["status"] == "ok" else str(row["status"])


def _tensors(group: _Group) -> TaskTensors:
    """Return the tensors of a group; those of the first samples alone may become fewer."""
    if group.is_whole:
        source = group.sources[0]
        return TaskTensors(source.tensors(), source.notes)
    notes: dict[str, tuple[int | None, GridNote | None]] = {}
    for source in group.sources:
        none: list[GridNote | None] = [None] * len(source.notes.ids)
        grids = source.notes.grids or none
        for sample, label, grid in zip(source.notes.ids, source.notes.labels, grids, strict=True):
            notes.setdefault(sample, (label, grid))
    ids = [sample for sample in group.samples if sample in notes]
    tensors: dict[TensorKey, Tensor] = {}
    for source in group.sources:
        position = {sample: i for i, sample in enumerate(source.notes.ids)}
        for key, values in source.tensors().items():
            rows = _first_rows(ids, position, len(values))
            of_all = len(values) == len(position)
            if key not in tensors and (len(rows) == len(ids) or not of_all):
                tensors[key] = values[torch.tensor(rows, dtype=torch.long)]
    grid_notes = [notes[sample][1] for sample in ids]
    grids_or_none = [note for note in grid_notes if note is not None]
    labels = [notes[sample][0] for sample in ids]
    return TaskTensors(tensors, SampleNotes(ids=ids, labels=labels, grids=grids_or_none or None))


def _first_rows(ids: Sequence[str], position: Mapping[str, int], count: int) -> list[int]:
    """Return the rows of the first samples that a tensor has, up to one that it does not have."""
    rows: list[int] = []
    for sample in ids:
        if sample not in position or position[sample] >= count:
            break
        rows.append(position[sample])
    return rows


def _timings(group: _Group) -> Timings:
    """Return what the sources took, in proportion to the samples of the group."""
    seconds: dict[Any, float] = {}
    passes: dict[tuple[str, str], float] = {}
    batch_size = 0
    for source in group.sources:
        timings = source.part.store.timings(source.task.name) or Timings()
        fraction = len(group.samples) / max(1, len(source.samples))
        batch_size = batch_size or timings.batch_size
        for timing in timings.seconds:
            seconds.setdefault(timing.key, timing.seconds * fraction)
        for count in timings.passes:
            key = (count.kind, count.start)
            passes[key] = passes.get(key, 0) + count.images * fraction
    return Timings(
        seconds=[Timing(key=key, seconds=value) for key, value in seconds.items()],
        passes=[
            PassCount(kind=kind, start=start, images=round(images))
            for (kind, start), images in passes.items()
        ],
        batch_size=batch_size,
        images=len(group.samples),
    )


def _latencies(parts: Sequence[_Part]) -> Latencies:
    """Return the time of each method alone, by the first run that has timed it."""
    timed = [latency for part in parts for latency in part.store.latencies().methods]
    first = {(latency.model, latency.map_key): latency for latency in reversed(timed)}
    return Latencies(methods=list(first.values()))


def _views(parts: Sequence[_Part], groups: Sequence[_Group]) -> list[ViewFacts]:
    """Return each view once, with the passes that were planned for it in all runs."""
    samples: dict[ModelView, int] = {}
    for group in groups:
        subject = group.sources[0].task.subject
        samples[subject] = samples.get(subject, 0) + len(group.samples)
    views: dict[ModelView, ViewFacts] = {}
    for part in parts:
        for view in part.plan.views:
            known = views.get(view.subject)
            cost = view.cost + known.cost if known else view.cost
            cost = cost.model_copy(update={"images": samples.get(view.subject, 0)})
            views[view.subject] = (known or view).model_copy(update={"cost": cost})
    return list(views.values())


def _provenance(parts: Sequence[_Part]) -> Provenance:
    """Return what is on record about all runs; what differs is joined, and kept in the spec."""
    records = [part.provenance for part in parts]
    first = records[0]
    models = {subject: facts for part in parts for subject, facts in part.models.items()}
    data = dict.fromkeys(str(_data(r).get("name", "")) for r in records)
    names = dict.fromkeys(name for record in records for name in record.packages)
    packages = {name: _joined(r.packages.get(name) for r in records) for name in names}
    return first.model_copy(
        update={
            "heatproof": _joined(record.heatproof for record in records),
            "git": _joined(record.git for record in records) or None,
            "python": _joined(record.python for record in records),
            "packages": packages,
            "devices": sorted({device for record in records for device in record.devices}),
            "models": list(models.values()),
            "spec": {
                "data": {"name": join_limited(filter(None, data))},
                "merged": [_summary(record) for record in _flat(records)],
            },
        }
    )


def _data(record: Provenance) -> dict[str, Any]:
    data = record.spec.get("data", {})
    return data if isinstance(data, dict) else {"name": data}


def _flat(records: Sequence[Provenance]) -> list[Provenance | dict[str, Any]]:
    """Return the runs that merged ones consist of."""
    flat: list[Provenance | dict[str, Any]] = []
    for record in records:
        flat += record.spec.get("merged", [record])
    return flat


def _summary(record: Provenance | dict[str, Any]) -> dict[str, Any]:
    if isinstance(record, dict):
        return record
    return record.model_dump(
        mode="json", include={"heatproof", "started", "packages", "hardware", "spec"}
    )


def _joined(values: Any) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value))
