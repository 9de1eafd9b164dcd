"""From a plan to rows: every task once, the methods of a task sharing their passes."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import heatproof
from heatproof.bench.plan import Cell, Plan, Task
from heatproof.bench.store import Store
from heatproof.data.catalog import Batch, load_batch
from heatproof.methods import Explainer
from heatproof.methods.explain import finite, transformed
from heatproof.protocols import Judged, Protocol
from heatproof.protocols.base import Shared
from heatproof.tensor.noise import Rng

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
            batch = (following or loader.submit(load_batch, task.data, task.indices, task.model)).result()
            following = None
            if i + 1 < len(missing):
                after = missing[i + 1][0]
                following = loader.submit(load_batch, after.data, after.indices, after.model)
            _commit(plan, store, task, batch, done, open_cells)
            progress(task, False)


def _finished(rows: list[dict[str, Any]], task: Task) -> list[dict[str, Any]]:
    failed = {r["cell"] for r in rows if r["status"] == "failed"}
    again = {c.key for c in task.cells if c.expression.entry.source == ""}  # code that cannot be read cannot be recognised
    if again and rows:
        names = ", ".join(sorted({c.expression.label for c in task.cells if c.key in again}))
        warnings.warn(f"the code of {names} cannot be read, so its results are not taken up again", stacklevel=2)
    planned = {c.key for c in task.cells}
    return [r for r in rows if r["cell"] in planned - failed - again]


def _commit(plan: Plan, store: Store, task: Task, batch: Batch, done: list[dict[str, Any]], cells: list[Cell]) -> None:
    size, before = plan.batch_size, task.model.passes.copy()
    while True:
        try:
            with task.model.batches_of(size):
                work = _Work(plan, task, batch, cells)
                rows = work.rows()
            break
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size = max(1, size // 2)
    order = {c.key: i for i, c in enumerate(task.cells)}
    rows = sorted(done + rows, key=lambda r: order[r["cell"]])
    old_kept, old_notes = store.kept(task.name) if done else ({}, {})
    old = (store.read_json(f"timings/{task.name}.json") if done else None) or {"seconds": {}, "passes": {}}
    timings = {
        "seconds": {**old["seconds"], **work.seconds},
        "passes": dict(Counter(old["passes"]) + (task.model.passes - before)),
        "batch_size": size,
        "images": len(batch.ids),
    }
    store.commit(task.name, rows, {**old_kept, **work.kept}, {**old_notes, **work.notes}, timings)


class _Work:
    """One task: maps and shared quantities are computed once, whoever asks for them."""

    def __init__(self, plan: Plan, task: Task, batch: Batch, cells: Sequence[Cell]):
        self.task, self.batch, self.cells, self.model = task, batch, cells, task.model
        self.seed = plan.seed
        self.keep = max(0, min(plan.keep_maps - task.indices.start, len(batch.ids)))
        self.seconds: dict[str, float] = {}
        self.kept: dict[str, Tensor] = {}
        self.notes = {"ids": json.dumps(batch.ids), "labels": json.dumps(batch.labels)}

    def rows(self) -> list[dict[str, Any]]:
        rows = [self._row(c, s, None, "skipped", why) for c in self.cells for s, why in self.batch.unreadable.items()]
        if not self.batch.ids:
            return rows
        clean = self.model.logits(self.batch.x)
        self.kept["logits"] = clean.cpu()
        self.kept["images"] = (self.model.denormalize(self.batch.x[: self.keep]) * 255).round().clamp(0, 255).byte().cpu()
        for policy in sorted({c.protocol.target for c in self.cells}):
            rows += self._judge([c for c in self.cells if c.protocol.target == policy], policy, clean)
        return rows

    def _judge(self, cells: Sequence[Cell], policy: str, clean: Tensor) -> list[dict[str, Any]]:
        predicted = clean.argmax(1)
        labels = [
            p if policy == "prediction" or label is None else label for label, p in zip(self.batch.labels, predicted.tolist(), strict=True)
        ]
        target = torch.tensor(labels, device=predicted.device)
        rng = Rng(self.seed, self.batch.ids, self.model.device)
        judged = Judged(self.batch.ids, self.batch.x, target, clean, rng)
        explainer = Explainer(self.model, self.batch.x, target, rng, self.batch.silhouette)
        rows = [row for c in cells if c.not_applicable for row in self._each(c, target, "n/a", c.not_applicable)]
        live = [c for c in cells if not c.not_applicable]
        shared = {canonical: self._share(p, judged) for canonical, p in {c.protocol.canonical: c.protocol for c in live}.items()}
        layers = sorted({c.expression.layer for c in live if c.expression.shares_gradient})
        with self.model.sharing(self.batch.x, target, layers):
            for expression in {c.expression.map_key: c.expression for c in live}.values():  # one method's maps in memory at a time
                native = self._timed(f"method {expression.map_key}", explainer.native, expression)
                for cell in live:
                    if cell.expression.map_key == expression.map_key:
                        rows += self._measure(cell, judged, shared[cell.protocol.canonical], native, explainer)
        return rows

    def _share(self, protocol: Protocol, judged: Judged) -> Shared | str:
        found = self._timed(f"protocol {protocol.canonical}", protocol.share, self.model, judged)
        if not isinstance(found, str):
            self.kept |= {f"{protocol.canonical} {k}": v[: self.keep].float().cpu() for k, v in found.items()}
        return found

    def _measure(
        self, cell: Cell, judged: Judged, shared: Shared | str, native: Tensor | str, explainer: Explainer
    ) -> list[dict[str, Any]]:
        problem = native if isinstance(native, str) else shared if isinstance(shared, str) else ""
        if not problem:
            assert isinstance(native, Tensor) and not isinstance(shared, str)
            small = transformed(cell.expression, native)
            self._keep_map(cell.expression.label, small[: self.keep])
            maps = explainer.resized(small)
            good = finite(maps)
            scored = torch.where(good[:, None, None], maps, 0)
            measured = self._timed(None, cell.protocol.measure, self.model, judged, shared, scored)
            if not isinstance(measured, str):
                return [
                    self._judged_row(cell, sample, target, fine, value, why)
                    for sample, target, fine, value, why in zip(
                        judged.ids, judged.target.tolist(), good.tolist(), measured.value.tolist(), measured.why, strict=True
                    )
                ]
            problem = measured
        return self._each(cell, judged.target, "failed", problem)

    def _keep_map(self, label: str, maps: Tensor) -> None:
        """Half precision, each map scaled to a largest value of 1, so that small ones do not vanish; the scale beside it."""
        scale = maps.abs().flatten(1).amax(1).nan_to_num(1.0, 1.0)
        scale = torch.where(scale > 0, scale, 1.0)
        self.kept |= {f"map {label}": (maps / scale[:, None, None]).half().cpu(), f"scale {label}": scale.cpu()}

    def _timed(self, what: str | None, call: Callable[..., Any], *arguments: Any) -> Any:
        """The result, or what went wrong as text: for the rows of this cell, while the others go on."""
        begin = time.perf_counter()
        try:
            return call(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        finally:
            if what:
                self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - begin

    def _judged_row(self, cell: Cell, sample: str, target: int, fine: bool, value: float, why: str) -> dict[str, Any]:
        if not fine:
            return self._row(cell, sample, target, "failed", f"{cell.expression.label}: the map is not finite")
        return self._row(cell, sample, target, "undefined", why) if why else self._row(cell, sample, target, "ok", "", value)

    def _each(self, cell: Cell, target: Tensor, status: str, message: str) -> list[dict[str, Any]]:
        return [self._row(cell, s, t, status, message) for s, t in zip(self.batch.ids, target.tolist(), strict=True)]

    def _row(self, cell: Cell, sample: str, target: int | None, status: str, message: str, value: float = float("nan")) -> dict[str, Any]:
        return {
            "cell": cell.key,
            "model": self.model.name,
            "method": cell.expression.label,
            "layer": self.model.layer_name(cell.expression.layer),
            "protocol": cell.protocol.id,
            "setting": cell.protocol.setting,
            "baseline": cell.protocol.baseline,
            "sample": sample,
            "target": target,
            "value": value,
            "status": status,
            "message": message,
        }


def provenance(spec: dict[str, Any], models: Sequence[Any]) -> dict[str, Any]:
    """What is needed to know, or to repeat, what was run."""
    packages = ("torch", "numpy", "scipy", "pillow", "pandas", "pyarrow")
    return {
        "heatproof": heatproof.__version__,
        "git": _git_revision(),
        "python": platform.python_version(),
        "packages": {p: importlib.metadata.version(p) for p in packages},
        "hardware": {"machine": platform.machine(), "cpu": _cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "devices": sorted({str(m.device) for m in models}),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "models": {
            m.name: {
                "fingerprint": m.fingerprint(),
                "parameters": sum(p.numel() for p in m.module.parameters()),
                "size": m.size,
                "classes": m.n_classes,
                "class_names": m.classes,
                "layers": {a: m.layer_name(a) for a in ("middle", "final", "cam")},
            }
            for m in models
        },
        "spec": spec,
    }


def _git_revision() -> str | None:
    here = Path(__file__).parent
    found = (
        subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False) if _in_checkout(here) else None
    )
    return found.stdout.strip() if found and found.returncode == 0 else None


def _in_checkout(path: Path) -> bool:
    return any((p / ".git").exists() and (p / "pyproject.toml").exists() for p in path.parents)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
