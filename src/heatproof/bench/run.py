"""From a plan to rows: every task once, the methods of a task sharing their passes."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import heatproof
from heatproof.baselines import Baseline
from heatproof.bench.plan import Cell, Plan, Task
from heatproof.bench.store import Store
from heatproof.data.catalog import Batch
from heatproof.data.reference import Reference
from heatproof.errors import format_error
from heatproof.methods import Explainer, Expression
from heatproof.methods.explain import ends, finite, prepare, transformed
from heatproof.models.model import Model
from heatproof.protocols import EvalBatch, Protocol
from heatproof.protocols.base import PICTURES, Shared
from heatproof.tensor.noise import Rng, generator

EVERY = 2**62
CHANNELS = 6  # of the last spatial layer that are watched
Progress = Callable[[Task, bool], None]  # a task is done; True where it was there already


def execute(plan: Plan, store: Store, progress: Progress = lambda task, reused: None) -> None:
    """Do what is missing. A cell that failed before is tried again; a failed method does not stop the others."""
    missing: list[tuple[Task, list[dict[str, Any]], list[Cell]]] = []
    for task in plan.tasks:
        done = _finished(store.part(task.name), task)
        open_cells = [c for c in task.cells if c.key not in {r["cell"] for r in done}]
        if open_cells:
            missing.append((task, done, open_cells))
        else:
            progress(task, True)
    with ThreadPoolExecutor(1) as loader:
        following: Future[Batch] | None = None
        for i, (task, done, open_cells) in enumerate(missing):
            batch = (following or loader.submit(task.load)).result()
            following = None
            if i + 1 < len(missing):
                following = loader.submit(missing[i + 1][0].load)
            _commit(plan, store, task, batch, done, open_cells)
            progress(task, False)


def _finished(rows: list[dict[str, Any]], task: Task) -> list[dict[str, Any]]:
    failed = {r["cell"] for r in rows if r["status"] == "failed"}
    again = {c.key for c in task.cells if c.unrecognizable}
    if again and rows:
        names = ", ".join(sorted({c.expression.label for c in task.cells if c.key in again}))
        warnings.warn(
            f"the code of {names} cannot be read, so its results are not taken up again",
            stacklevel=2,
        )
    planned = {c.key for c in task.cells}
    return [r for r in rows if r["cell"] in planned - failed - again]


def _commit(
    plan: Plan,
    store: Store,
    task: Task,
    batch: Batch,
    done: list[dict[str, Any]],
    cells: list[Cell],
) -> None:
    size, before = plan.batch_size, task.model.passes.copy()
    while True:
        try:
            work = _Work(plan, task, cells, store)
            with task.model.batches_of(size), task.model.preparing(work.prepared_baseline):
                work.do(batch, size)
            break
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size = max(1, size // 2)
    order = {c.key: i for i, c in enumerate(task.cells)}
    rows = sorted(done + work.rows, key=lambda r: order[r["cell"]])
    old_kept, old_notes = store.kept(task.name) if done else ({}, {})
    old = (store.read_json(f"timings/{task.name}.json") if done else None) or {
        "seconds": {},
        "passes": {},
    }
    timings = {
        "seconds": {**old["seconds"], **work.seconds},
        "passes": dict(Counter(old["passes"]) + (task.model.passes - before)),
        "batch_size": size,
        "images": len(batch.ids),
    }
    notes = {"ids": json.dumps(batch.ids), "labels": json.dumps(batch.labels)}
    store.commit(task.name, rows, {**old_kept, **work.kept()}, {**old_notes, **notes}, timings)


class _Work:
    """The cells of one task, batch by batch: maps and shared quantities are computed once, whoever asks for them."""

    def __init__(self, plan: Plan, task: Task, cells: Sequence[Cell], store: Store):
        self.task, self.store = task, store
        self.cells, self.model, self.owner, self.seed = cells, task.model, task.owner, plan.seed
        self.wanted = max(0, plan.keep_maps - task.indices.start)
        self.rows: list[dict[str, Any]] = []
        self.seconds: dict[str, float] = {}
        self._kept: dict[str, list[Tensor]] = {}
        self._most: dict[str, int] = {}
        self._ready: dict[str, Mapping[str, Tensor]] = {}
        self._done = 0

    def do(self, batch: Batch, size: int) -> None:
        self.rows += [
            self._common(c) | _told(s, "skipped", why)
            for c in self.cells
            for s, why in batch.unreadable.items()
        ]
        for start in range(0, len(batch.ids), size):
            part = batch.part(slice(start, start + size))
            spatial = "cam" in self.model.landmarks
            clean, last = self.model.logits_and_activation(part.x, "cam" if spatial else "input")
            self._keep("logits", clean, EVERY)
            if spatial:
                self._keep("peaks", peaks(last), EVERY)
            self._keep(
                "images",
                (self.model.denormalize(part.x) * 255).round().clamp(0, 255).byte(),
                self.wanted,
            )
            self._shown = set[str]()
            for targets, cells in self._by_target(part, clean).items():
                self._judge(part, cells, targets, clean)
            self._done += len(part.ids)

    def kept(self) -> dict[str, Tensor]:
        """What every batch of the task had; a map that failed for some has no place among the others."""
        found = {name: torch.cat(parts) for name, parts in self._kept.items()}
        return {name: t for name, t in found.items() if len(t) == min(self._done, self._most[name])}

    def _keep(self, name: str, rows: Tensor, most: int) -> None:
        """Of the first samples of the task: of all what is small, of some what is large."""
        self._most[name] = most
        self._kept.setdefault(name, []).append(rows[: max(0, most - self._done)].cpu())

    def _by_target(self, batch: Batch, clean: Tensor) -> dict[tuple[int, ...], list[Cell]]:
        """Which cells explain what: the label where there is one, or the model's prediction. Where the two agree, maps are shared."""
        predicted = clean.argmax(1).tolist()
        self._by_label = [label is not None for label in batch.labels]
        labels = [
            p if label is None else label for p, label in zip(predicted, batch.labels, strict=True)
        ]
        found: dict[tuple[int, ...], list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(
                tuple(labels if cell.protocol.target_policy == "label" else predicted), []
            ).append(cell)
        return found

    def _judge(
        self, batch: Batch, cells: Sequence[Cell], targets: tuple[int, ...], clean: Tensor
    ) -> None:
        target = torch.tensor(targets, device=clean.device)
        rng = Rng(self.seed, batch.ids, self.model.device)
        judged = EvalBatch(batch.ids, batch.x, target, clean, rng, batch.parts, batch.silhouette)
        explainer = Explainer(self.model, batch.x, target, rng, batch.silhouette, self._prepared)
        for cell in cells:
            if cell.not_applicable:
                self._each(cell, judged, "n/a", cell.not_applicable)
        live = [c for c in cells if not c.not_applicable]
        shared = {
            canonical: self._share(p, judged)
            for canonical, p in {c.protocol.canonical: c.protocol for c in live}.items()
        }
        layers = sorted({c.expression.layer for c in live if c.expression.shares_gradient})
        with self.model.sharing(batch.x, target, layers):
            for map_key in dict.fromkeys(
                c.expression.map_key for c in live
            ):  # one method's maps in memory at a time
                self._method(
                    [c for c in live if c.expression.map_key == map_key], judged, shared, explainer
                )

    def _prepared(self, expression: Expression) -> Mapping[str, Tensor]:
        return self._ready_for(
            expression.map_key, lambda reference: prepare(expression, self.model, reference)
        )

    def prepared_baseline(self, baseline: Baseline) -> Mapping[str, Tensor]:
        what = f"baseline {baseline.label} of version {baseline.entry.revision}"
        return self._ready_for(
            what, lambda reference: baseline.prepare(self.model, reference.batches(self.model))
        )

    def _prepared_protocol(self, protocol: Protocol) -> Mapping[str, Tensor]:
        what = f"{protocol.preparation_key}{protocol.source or ''}"
        return self._ready_for(
            what,
            lambda reference: protocol.prepare(self.model, reference.batches(self.model)),
        )

    def _ready_for(
        self, what: str, make: Callable[[Reference], Mapping[str, Tensor]]
    ) -> Mapping[str, Tensor]:
        """Once a run for every (model view, reference, what is made of them), read once a task."""
        reference = self.task.reference
        assert reference is not None
        if what not in self._ready:
            of = [self.model.fingerprint(), self.model.backend, reference.fingerprint, what]
            key = hashlib.sha256(repr(of).encode()).hexdigest()[:24]
            found = self.store.prepared(key, lambda: make(reference))
            self._ready[what] = {name: t.to(self.model.device) for name, t in found.items()}
        return self._ready[what]

    def _share(self, protocol: Protocol, judged: EvalBatch) -> tuple[EvalBatch, Shared] | str:
        def share() -> tuple[EvalBatch, Shared]:
            given = (
                replace(judged, prepared=self._prepared_protocol(protocol))
                if protocol.preparation_key
                else judged
            )
            return given, protocol.compute_shared(self.model, given)

        found = self._timed(f"protocol {protocol.canonical}", share)
        if not isinstance(found, str):
            for name, values in found[1].items():
                few = name == "picture"
                most = min(PICTURES - self.task.indices.start, self.wanted) if few else EVERY
                self._keep(
                    f"{protocol.canonical} {name}", values if few else values.float(), max(0, most)
                )
        return found

    def _method(
        self,
        cells: Sequence[Cell],
        judged: EvalBatch,
        shared: Mapping[str, tuple[EvalBatch, Shared] | str],
        explainer: Explainer,
    ) -> None:
        """All cells of one method, which differ in their transforms and protocols."""
        native = self._timed(
            f"method {cells[0].expression.map_key}", explainer.native, cells[0].expression
        )
        for label in dict.fromkeys(c.expression.label for c in cells):
            same = [c for c in cells if c.expression.label == label]
            small = (
                native
                if isinstance(native, str)
                else self._timed(None, transformed, same[0].expression, native, judged.rng)
            )
            if isinstance(small, str):
                for cell in same:
                    self._each(cell, judged, "failed", small)
                continue
            self._keep_map(label, small)
            low, high = ends(small)
            fine, varies = low.isfinite() & high.isfinite(), high > low
            if small is not native:
                fine &= finite(native)
            maps = explainer.resized(
                small if fine.all() else torch.where(fine[:, None, None], small, 0)
            )
            own: dict[Hashable, Any] = {}
            for cell in same:
                given = shared[cell.protocol.canonical]
                if isinstance(given, str):
                    self._each(cell, judged, "failed", given)
                else:
                    batch = replace(
                        given[0], map_cache=own, explain=partial(explainer.again, cell.expression)
                    )
                    self._measure(cell, batch, given[1], maps, fine.tolist(), varies.tolist())

    def _measure(
        self,
        cell: Cell,
        judged: EvalBatch,
        shared: Shared,
        maps: Tensor,
        fine: Sequence[bool],
        varies: Sequence[bool],
    ) -> None:
        what = f"{cell.protocol.canonical} {cell.expression.label}"
        measured = self._timed(
            f"cell {what}", cell.protocol.score_maps, self.model, judged, shared, maps
        )
        if isinstance(measured, str):
            self._each(cell, judged, "failed", measured)
            return
        for name, curve in measured.curves.items():
            lost = ~torch.tensor(fine)[:, None]
            self._keep(f"{what} {name}", curve.float().cpu().masked_fill(lost, torch.nan), EVERY)
        found = []
        for value, why, is_fine, is_varied in zip(
            measured.value.tolist(), measured.reasons, fine, varies, strict=True
        ):
            if not is_fine:
                found.append(
                    ("failed", f"{cell.expression.label}: the map is not finite", math.nan)
                )
            elif not is_varied and not cell.protocol.constant_maps:
                found.append(("undefined", "the map is the same everywhere", math.nan))
            else:
                found.append(("undefined", why, math.nan) if why else ("ok", "", value))
        self._add(cell, judged, found)

    def _keep_map(self, label: str, maps: Tensor) -> None:
        """Half precision, each map scaled to a largest value of 1, so that small ones do not vanish; the scale beside it.

        Where some protocols explain the label and others a prediction that differs, those that come first in the spec are shown.
        """
        if label in self._shown:
            return
        self._shown.add(label)
        maps = maps[: max(0, self.wanted - self._done)]
        scale = maps.abs().flatten(1).amax(1).nan_to_num(1.0, 1.0)
        scale = torch.where(scale > 0, scale, 1.0)
        self._keep(f"map {label}", (maps / scale[:, None, None]).half(), self.wanted)
        self._keep(f"scale {label}", scale, self.wanted)

    def _timed(self, what: str | None, call: Callable[..., Any], *arguments: Any) -> Any:
        """The result, or what went wrong as text: for the rows of this cell, while the others go on."""
        begin = time.perf_counter()
        try:
            return call(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return format_error(error)
        finally:
            if what:
                self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - begin

    def _each(self, cell: Cell, judged: EvalBatch, status: str, message: str) -> None:
        self._add(cell, judged, [(status, message, math.nan)] * len(judged.ids))

    def _add(self, cell: Cell, judged: EvalBatch, found: Sequence[tuple[str, str, float]]) -> None:
        """A row for each sample, from its status, message and value."""
        same, explained = self._common(cell), cell.protocol.target_policy == "label"
        for sample, target, known, (status, message, value) in zip(
            judged.ids, judged.target.tolist(), self._by_label, found, strict=True
        ):
            target_is = "label" if explained and known else "prediction"
            self.rows.append(same | _told(sample, status, message, value, target, target_is))

    def _common(self, cell: Cell) -> dict[str, Any]:
        """What all rows of a cell have in common."""
        return {
            "cell": cell.key,
            "model": self.owner,
            "method": cell.expression.label,
            "layer": self.model.layer_name(cell.expression.layer)
            if not cell.not_applicable
            else cell.expression.layer,
            "protocol": cell.protocol.id,
            "setting": cell.protocol.setting,
            "baseline": cell.protocol.baseline_name,
        }


def _told(
    sample: str,
    status: str,
    message: str,
    value: float = math.nan,
    target: int | None = None,
    target_is: str = "",
) -> dict[str, Any]:
    return {
        "sample": sample,
        "target": target,
        "target_is": target_is,
        "value": value,
        "status": status,
        "message": message,
    }


def peaks(activation: Tensor) -> Tensor:  # (B, C, h, w) -> (B, CHANNELS)
    """How strongly each image excites some channels, at most; the same channels for all networks of that width."""
    width = activation.shape[1]
    chosen = generator(0, "channels", width).permutation(width)[:CHANNELS]
    return activation[:, sorted(chosen)].flatten(2).amax(2)


def provenance(spec: dict[str, Any], models: Mapping[str, Model]) -> dict[str, Any]:
    """What is needed to know, or to repeat, what was run."""
    packages = ("torch", "numpy", "scipy", "pillow", "pandas", "pyarrow")
    return {
        "heatproof": heatproof.__version__,
        "git": _git_revision(),
        "python": platform.python_version(),
        "packages": {p: importlib.metadata.version(p) for p in packages},
        "hardware": {
            "machine": platform.machine(),
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "devices": sorted({str(m.device) for m in models.values()}),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "models": {
            title: {
                "fingerprint": m.fingerprint(),
                "fine_tuned": m.fine_tuned,
                "backend": m.backend,
                "parameters": sum(p.numel() for p in m.module.parameters()),
                "size": m.size,
                "classes": m.n_classes,
                "class_names": m.classes,
                "layers": m.landmarks,
                "all_layers": m.all_layers,
            }
            for title, m in models.items()
        },
        "spec": spec,
    }


def _git_revision() -> str | None:
    here = Path(__file__).parent
    found = (
        subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False
        )
        if _in_checkout(here)
        else None
    )
    return found.stdout.strip() if found and found.returncode == 0 else None


def _in_checkout(path: Path) -> bool:
    return any((p / ".git").exists() and (p / "pyproject.toml").exists() for p in path.parents)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
