"""Curves of all samples of a model, for protocols that compute their values from all together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pandas as pd
import torch

from heatproof.protocols import Protocol
from heatproof.protocols.base import stored_protocol
from heatproof.runs.curve_files import CurveBuffers, CurveReader, map_ahead, stack_curves
from heatproof.runs.format import ProtocolFacts, Setting, TaskFacts, TensorKey
from heatproof.runs.store import Store
from heatproof.scoring.aggregate import PendingCurves

T = TypeVar("T")
MOST_CURVE_BYTES = 5 * 2**28  # in memory at the same time


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


class AllCurves:
    """Reads the curves of the rows of a run.

    Args:
        store: The run directory.
        rows: Its rows as they were written, with `COLUMNS`.
    """

    COLUMNS = ("model", "method", "protocol", "setting", "baseline", "sample", "status")

    def __init__(self, store: Store, rows: pd.DataFrame):
        self._store = store
        self._scored = self._scored_rows(rows)

    def each(
        self,
        model: str | None = None,
        protocol_key: Setting | None = None,
        most: int | None = None,
    ) -> Iterator[PendingCurves]:
        """Yield the curves of protocols that compute values from all samples of a model together.

        Args:
            model: Name of a model; by default all.
            protocol_key: Protocol, setting and baseline; by default all.
            most: How many samples of a model are read at most, in whole tasks; by default all.
        """
        for group in self._pending_groups(model, protocol_key, most, None):
            yield from group

    def map(
        self, function: Callable[[PendingCurves], T], most: int | None = None
    ) -> Iterator[tuple[PendingCurves, T]]:
        """Apply a function to what `each` yields, to several methods at a time.

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
        plan = self._store.plan()
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
                    tasks = self._store.first_tasks(tasks, most)
                    of_model = of_model[of_model["sample"].isin(self._samples_of(tasks))]
                names = [task.name for task in tasks]
                yield from self._pending(protocol, facts, name, of_model, names, buffers)

    def _samples_of(self, tasks: Sequence[TaskFacts]) -> set[str]:
        ids = (self._store.tensors(task.name, ()).samples.ids for task in tasks)
        return {sample for of_task in ids for sample in of_task}

    def _scored_rows(self, frame: pd.DataFrame) -> dict[str, dict[str, pd.DataFrame]]:
        """Return the rows that have curves instead of values, by protocol and model.

        Args:
            frame: The rows as tasks have written them.
        """
        found = {}
        for facts in self._store.plan().protocols:
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
            is_damaged = any(self._store.is_damaged(task, "tensors") for task in tasks)
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

    def _readable_at_once(
        self, tasks: Sequence[str], keys: Mapping[str, Sequence[TensorKey]]
    ) -> Iterator[list[str]]:
        """Divide methods into groups whose curves of all tasks fit into `MOST_CURVE_BYTES`."""
        methods = list(keys)
        sizes = [0]
        for task in tasks[:1]:
            stored = self._store.tensors(
                task, [key for each in keys.values() for key in each]
            ).tensors
            sizes += [
                sum(stored[key].nbytes for key in each if key in stored) for each in keys.values()
            ]
        count = max(1, MOST_CURVE_BYTES // max(1, max(sizes) * len(tasks)))
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
        found = map_ahead(lambda task: self._store.read(task, "tensors", reader.read), tasks)
        most = sum(map(self._store.samples_in, tasks))
        read_ones = (curves for curves in found if curves is not None)
        return stack_curves(read_ones, keys, most, buffers, reader.release)
