"""A run's directory. Parts are written whole or not at all, so a killed run loses only the task it was in.

spec.json         what the directory belongs to          rows/<task>.parquet       one row a sample, protocol and method
plan.json         the cells of the latest plan           kept/<task>.safetensors   logits, curves, drops; images and maps of the first
provenance.json   versions, hardware, spec               timings/<task>.json       seconds and passes
                                                         prepared/<key>.safetensors   what methods need to know of a model beforehand
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.protocols import Protocol
from heatproof.protocols.base import register_stored, stored_protocol

SCHEMA = pa.schema(
    [
        ("cell", pa.string()),
        *(
            (name, pa.string())
            for name in ("model", "method", "layer", "protocol", "setting", "baseline", "sample")
        ),
        ("target", pa.int32()),
        ("target_is", pa.string()),  # label, or prediction
        ("value", pa.float64()),
        ("status", pa.string()),  # ok, undefined, failed, n/a, skipped
        ("message", pa.string()),
    ]
)
COLUMNS = [f.name for f in SCHEMA if f.name != "cell"]


class PendingCurves(NamedTuple):
    """The samples of one (model, method) that a protocol has measured, and has yet to conclude from."""

    protocol: Protocol
    model: str
    method: str
    samples: list[str]  # (N,)
    rows: pd.Index  # (N,) of the frame
    lost: pd.Index  # of which nothing is kept
    curves: dict[str, Tensor]  # (N, S) each


class Store:
    def __init__(self, root: Path):
        self.root = root

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Take the directory for this spec."""
        self.check(identity)
        self.write_json("spec.json", identity)

    def check(self, identity: Mapping[str, Any]) -> None:
        """Raises where the directory belongs to another spec, or to something else; it is left as it is."""
        found = self.read_json("spec.json")
        own = re.compile(r"\.tmp-|\.lock$")
        if (
            found is None
            and self.root.exists()
            and any(not own.match(p.name) for p in self.root.iterdir())
        ):
            raise HeatproofError(
                f"{self.root} is not empty and not a run of heatproof; choose another directory with -o"
            )
        if found is not None and found != json.loads(json.dumps(identity)):
            keys = [
                k
                for k in {*found, *identity}
                if found.get(k) != json.loads(json.dumps(identity)).get(k)
            ]
            raise HeatproofError(
                f"{self.root} belongs to another spec (it differs in: {', '.join(sorted(keys))}); choose another directory with -o"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time."""
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HeatproofError(
                    f"another run is writing to {self.root}; wait for it, or choose another directory with -o"
                ) from None
            for left in self.root.rglob(".tmp-*"):  # of a run that was killed
                left.unlink()
            yield

    def write_json(self, name: str, content: Any) -> None:
        self._write(name, json.dumps(content, indent=1, ensure_ascii=False).encode())

    def read_json(self, name: str) -> Any:
        path = self.root / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def commit(
        self,
        task: str,
        rows: list[dict[str, Any]],
        kept: Mapping[str, Tensor],
        notes: Mapping[str, str],
        timings: Any,
    ) -> None:
        """The rows last: once they are there, the task is done."""
        self._write(
            f"kept/{task}.safetensors",
            save({k: v.contiguous() for k, v in kept.items()}, dict(notes)),
        )
        self.write_json(f"timings/{task}.json", timings)
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), sink, compression="zstd")
        self._write(f"rows/{task}.parquet", sink.getvalue().to_pybytes())

    def part(self, task: str) -> list[dict[str, Any]]:
        path = self.root / "rows" / f"{task}.parquet"
        return pq.read_table(path, schema=SCHEMA).to_pylist() if path.is_file() else []

    def rows(self) -> pd.DataFrame:
        """Everything the latest plan asks for and is there, in the plan's order."""
        frame = self._written()
        for told in self.read_json("plan.json")["protocols"]:
            if told.get("aggregates") and stored_protocol(told["id"], told["settings"]) is None:
                of_it = (frame["protocol"] == told["id"]) & (frame["status"] == "ok")
                frame.loc[of_it, ["status", "message"]] = (
                    "undefined",
                    f"the code of protocol {told['id']} is not loaded; import it first",
                )
        for part in self.pending_curves(frame):
            frame.loc[part.lost, ["status", "message"]] = (
                "undefined",
                "its curves are not kept, since others of its task failed",
            )
            if not part.samples:
                continue
            found = part.protocol.aggregate(part.curves)
            frame.loc[part.rows, "value"] = found.value.numpy()
            frame.loc[part.rows, "message"] = found.reasons
            frame.loc[part.rows, "status"] = ["undefined" if why else "ok" for why in found.reasons]
        return frame

    def pending_curves(self, frame: pd.DataFrame | None = None) -> Iterator[PendingCurves]:
        """What protocols have kept of all samples of a model to conclude from, method by method."""
        frame = self._written() if frame is None else frame
        plan = self.read_json("plan.json")
        for told in plan["protocols"]:
            protocol = stored_protocol(told["id"], told["settings"])
            if not told.get("aggregates") or protocol is None:
                continue
            of_it = (
                (frame["protocol"] == told["id"])
                & (frame["setting"] == told["setting"])
                & (frame["baseline"] == told["baseline"])
            )
            for (model, method), rows in frame[of_it & (frame["status"] == "ok")].groupby(
                ["model", "method"], sort=False
            ):
                about = {task: plan["about"][task] for task in plan["tasks"]}
                tasks = [
                    task
                    for task, a in about.items()
                    if a["model"] == model and told["canonical"] in a["protocols"]
                ]
                keys = {name: f"{told['canonical']} {method} {name}" for name in told["aggregates"]}
                ids, curves = self._stacked(tasks, keys)
                place = {sample: i for i, sample in enumerate(ids)}
                there = rows["sample"].isin(place)
                samples = rows.loc[there, "sample"].tolist()
                found = {
                    name: curve[[place[sample] for sample in samples]]
                    for name, curve in curves.items()
                }
                yield PendingCurves(
                    protocol, model, method, samples, rows.index[there], rows.index[~there], found
                )

    def _stacked(
        self, tasks: Sequence[str], keys: Mapping[str, str]
    ) -> tuple[list[str], dict[str, Tensor]]:
        """The samples of some tasks, and what was kept of them under some keys; tasks that lack some are left out."""
        ids: list[str] = []
        found: dict[str, list[Tensor]] = {name: [] for name in keys}
        for task in tasks:
            path = self.root / "kept" / f"{task}.safetensors"
            if not path.is_file():
                continue
            with safe_open(path, "pt") as file:
                if set(keys.values()) <= set(file.keys()):
                    ids += json.loads(file.metadata()["ids"])
                    for name, key in keys.items():
                        found[name].append(file.get_tensor(key))
        return ids, {name: torch.cat(parts) for name, parts in found.items() if parts}

    def _written(self) -> pd.DataFrame:
        """As tasks have written it: what only all samples together can tell is open."""
        plan = self.read_json("plan.json")
        if plan is None:
            raise HeatproofError(f"{self.root} is not a run of heatproof (it has no plan.json)")
        if not all(re.fullmatch(r"[\w-]+", task) for task in plan["tasks"]):
            raise HeatproofError(
                f"{self.root}/plan.json names tasks that are no file names; this is not a run of heatproof"
            )
        for facts in plan["protocols"]:
            register_stored(facts)
        wanted = {
            key: i for i, key in enumerate(key for cells in plan["tasks"].values() for key in cells)
        }
        parts = [
            pq.read_table(p, schema=SCHEMA)
            for t in plan["tasks"]
            if (p := self.root / "rows" / f"{t}.parquet").is_file()
        ]
        frame = pa.concat_tables(parts or [SCHEMA.empty_table()]).to_pandas()
        frame = frame[frame["cell"].isin(wanted)]
        return frame.sort_values("cell", key=lambda c: c.map(wanted), kind="stable").reset_index(
            drop=True
        )[COLUMNS]

    def kept(self, task: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        path = self.root / "kept" / f"{task}.safetensors"
        if not path.is_file():
            return {}, {}
        with safe_open(path, "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118 (not a dict)

    def prepared(self, key: str, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """What was made before, or is made now and kept."""
        path = self.root / "prepared" / f"{key}.safetensors"
        if not path.is_file():
            self._write(
                f"prepared/{key}.safetensors",
                save({k: v.cpu().contiguous() for k, v in make().items()}),
            )
        return load_file(path)

    def _write(self, name: str, content: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".tmp-", delete=False) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
