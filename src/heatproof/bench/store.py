"""A run's directory. Parts are written whole or not at all, so a killed run loses only the task it was in.

spec.json         what the directory belongs to          rows/<task>.parquet       one row a sample, protocol and method
plan.json         the cells of the latest plan           kept/<task>.safetensors   logits; images, maps and drops of the first samples
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
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.protocols import make_protocol

SCHEMA = pa.schema(
    [
        ("cell", pa.string()),
        *((name, pa.string()) for name in ("model", "method", "layer", "protocol", "setting", "baseline", "sample")),
        ("target", pa.int32()),
        ("target_is", pa.string()),  # label, or prediction
        ("value", pa.float64()),
        ("status", pa.string()),  # ok, undefined, failed, n/a, skipped
        ("message", pa.string()),
    ]
)
COLUMNS = [f.name for f in SCHEMA if f.name != "cell"]


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
        if found is None and self.root.exists() and any(not own.match(p.name) for p in self.root.iterdir()):
            raise HeatproofError(f"{self.root} is not empty and not a run of heatproof; choose another directory with -o")
        if found is not None and found != json.loads(json.dumps(identity)):
            keys = [k for k in {*found, *identity} if found.get(k) != json.loads(json.dumps(identity)).get(k)]
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
                raise HeatproofError(f"another run is writing to {self.root}; wait for it, or choose another directory with -o") from None
            for left in self.root.rglob(".tmp-*"):  # of a run that was killed
                left.unlink()
            yield

    def write_json(self, name: str, content: Any) -> None:
        self._write(name, json.dumps(content, indent=1, ensure_ascii=False).encode())

    def read_json(self, name: str) -> Any:
        path = self.root / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def commit(self, task: str, rows: list[dict[str, Any]], kept: Mapping[str, Tensor], notes: Mapping[str, str], timings: Any) -> None:
        """The rows last: once they are there, the task is done."""
        self._write(f"kept/{task}.safetensors", save({k: v.contiguous() for k, v in kept.items()}, dict(notes)))
        self.write_json(f"timings/{task}.json", timings)
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), sink, compression="zstd")
        self._write(f"rows/{task}.parquet", sink.getvalue().to_pybytes())

    def part(self, task: str) -> list[dict[str, Any]]:
        path = self.root / "rows" / f"{task}.parquet"
        return pq.read_table(path, schema=SCHEMA).to_pylist() if path.is_file() else []

    def rows(self) -> pd.DataFrame:
        """Everything the latest plan asks for and is there, in the plan's order."""
        plan = self.read_json("plan.json")
        if plan is None:
            raise HeatproofError(f"{self.root} is not a run of heatproof (it has no plan.json)")
        if not all(re.fullmatch(r"[\w-]+", task) for task in plan["tasks"]):
            raise HeatproofError(f"{self.root}/plan.json names tasks that are no file names; this is not a run of heatproof")
        wanted = {key: i for i, key in enumerate(key for cells in plan["tasks"].values() for key in cells)}
        parts = [pq.read_table(p, schema=SCHEMA) for t in plan["tasks"] if (p := self.root / "rows" / f"{t}.parquet").is_file()]
        frame = pa.concat_tables(parts or [SCHEMA.empty_table()]).to_pandas()
        frame = frame[frame["cell"].isin(wanted)]
        frame = frame.sort_values("cell", key=lambda c: c.map(wanted), kind="stable").reset_index(drop=True)[COLUMNS]
        for told in plan["protocols"]:
            if told.get("concludes"):
                self._conclude(frame, plan, told)
        return frame

    def _conclude(self, frame: pd.DataFrame, plan: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Fill in the values of a protocol that only all samples together can tell, for each model and method."""
        protocol = make_protocol(told["id"], told["settings"])
        of_it = (frame["protocol"] == protocol.id) & (frame["setting"] == protocol.setting) & (frame["baseline"] == protocol.removal)
        for (model, method), rows in frame[of_it & (frame["status"] == "ok")].groupby(["model", "method"], sort=False):
            curves = self.curves(plan, model, told["canonical"], method, told["concludes"])
            there = rows.index[rows["sample"].isin(curves)]
            lost = rows.index.difference(there)
            frame.loc[lost, ["status", "message"]] = "undefined", "its curve is not kept, since others of its batch failed"
            if not len(there):
                continue
            of_each = [curves[sample] for sample in frame.loc[there, "sample"]]
            found = protocol.conclude({name: torch.stack([c[name] for c in of_each]) for name in told["concludes"]})
            frame.loc[there, "value"] = found.value.numpy()
            frame.loc[there, "message"] = found.why
            frame.loc[there, "status"] = ["undefined" if why else "ok" for why in found.why]

    def curves(
        self, plan: Mapping[str, Any], model: str, canonical: str, method: str, names: Sequence[str]
    ) -> dict[str, dict[str, Tensor]]:  # sample -> name -> (S,)
        """What a protocol kept of every sample of a model."""
        found: dict[str, dict[str, Tensor]] = {}
        for task, about in plan["about"].items():
            path = self.root / "kept" / f"{task}.safetensors"
            if about["model"] != model or canonical not in about["protocols"] or not path.is_file():
                continue
            with safe_open(path, "pt") as file:
                keys = {name: f"{canonical} {method} {name}" for name in names}
                if all(key in file.keys() for key in keys.values()):  # noqa: SIM118 (not a dict)
                    kept = {name: file.get_tensor(key) for name, key in keys.items()}
                    for i, sample in enumerate(json.loads(file.metadata()["ids"])):
                        found[sample] = {name: curve[i] for name, curve in kept.items()}
        return found

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
            self._write(f"prepared/{key}.safetensors", save({k: v.cpu().contiguous() for k, v in make().items()}))
        return load_file(path)

    def _write(self, name: str, content: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".tmp-", delete=False) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
