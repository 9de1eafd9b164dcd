"""Runs of a stranger: changed in one place, with every checksum as it should be.

Whoever makes up a run can also seal it. So all commands that read a run get runs in which a JSON
file, the rows, the tensors or the timings of a task, what was prepared for a run, or a part of an
unfinished task were changed and sealed again; a manifest may be made to fit what was changed. There
are three: a run with scores, curves, grids and maps, one that dropped methods in rounds, and one
that was interrupted. They are also continued, as a user would who has received one.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

import heatproof as hp
from heatproof.cli.group import main
from heatproof.errors import HeatproofError
from heatproof.execute import blocks
from heatproof.report.serve import LiveReport
from heatproof.results.published import record_same_as
from heatproof.runs.format import hashed_name
from heatproof.runs.integrity import check
from heatproof.runs.part_files import PartFiles
from heatproof.runs.sealed import seal, unseal
from heatproof.runs.store import Store

Mutate = Callable[[random.Random, Any], Any]
TEXTS = ["", "\0", "\x1b[2J", "\u202e", "x" * 70_000, "nothing", "ok", "<script>", "a\nb"]
NUMBERS = [float("nan"), float("inf"), -1e308, 1e308, -1.0, 0.0, 7.5]
INTEGERS = [-1, 0, 5, 2**31 - 1, -(2**31)]
COMMANDS = ["report", "compare", "leaderboard", "figure", "table", "serve", "check", "merge", "run"]
ORIGINALS: dict[str, dict[str, Any]] = {
    "whole": {
        "methods": ["ixg", "gradcam", "random"],
        "protocols": [
            *("sds(patches=4)", "sds(patches=4, baseline=mean)", "soundness"),
            *("deletion(steps=4)", "gridpg(grids=1)"),
        ],
        "limit": 6,
    },
    "decided": {
        "methods": ["ixg", "saliency", "random"],
        "protocols": ["sds(patches=4)"],
        "limit": 48,
        "decide": True,
        "keep_maps": 0,
    },
    "unfinished": {
        "methods": ["ixg", "extremal(steps=6)", "random"],
        "protocols": ["sds(patches=4)", "soundness(step=0.5)"],
        "limit": 6,
    },
}


def make_original(name: str, out: Path) -> None:
    """Write one of the runs that are changed."""
    if name == "unfinished":
        _interrupt(out)
        return
    result = _evaluate(name, out)
    if name == "whole":
        record_same_as(result, ["hesse2024:resnet50"], "--as")


def _evaluate(name: str, out: Path) -> hp.Result:
    """Compute an original, or continue it."""
    arguments = ORIGINALS[name]
    return hp.evaluate("paperbirds/resnet", "paperbirds:test", **arguments, out=out)


class _Interrupted(BaseException):
    """Ends a run as a signal does."""


def _interrupt(out: Path) -> None:
    """Write a run that was interrupted when it had written some parts."""
    write, interval = PartFiles.write, blocks.PART_SECONDS
    written = 0

    def write_some(*arguments: Any) -> Path:
        nonlocal written
        written += 1
        if written > 6:
            raise _Interrupted
        return write(*arguments)

    blocks.PART_SECONDS, PartFiles.write = 0.0, write_some  # type: ignore[method-assign]
    try:
        with suppress(_Interrupted):
            _evaluate("unfinished", out)
    finally:
        blocks.PART_SECONDS, PartFiles.write = interval, write  # type: ignore[method-assign]


def sealed_run(rng: random.Random, folder: Path, mutate: Mutate) -> Callable[[], object]:
    """Return a case: a run that was changed and sealed again, given to a command."""
    originals = folder.parent / "strangers"
    for name in ORIGINALS:
        if not (originals / name).exists():
            make_original(name, originals / name)
    name = rng.choice(["whole", "whole", "whole", "decided", "unfinished", "unfinished"])
    run = folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(originals / name, run)
    kind = rng.choice([kind for kind in KINDS if kind == "json" or any(run.glob(f"{kind}/**/*.*"))])
    for _ in range(rng.choice((1, 1, 2))):
        with suppress(
            pa.ArrowException, SafetensorError, TypeError
        ):  # what was changed cannot be changed again
            CHANGES[kind](rng, run, mutate)
    is_continued = kind in ("prepared", "parts") and rng.random() < 0.7
    command = "run" if is_continued else rng.choice(COMMANDS)
    return partial(_use, command, run, name, originals / "whole", folder)


def _use(command: str, run: Path, name: str, other: Path, folder: Path) -> None:
    """Load a run, and give it to a command; raises HeatproofError if it is refused."""
    findings = check(Store(run)).findings
    try:
        result = hp.Result.load(run)
        str(result), repr(result), result.scores
    except HeatproofError:
        assert findings or name == "unfinished", "it is refused, but check finds nothing"
        if command != "run":
            raise
    arguments = {
        "report": [run, "-o", folder / "report"],
        "compare": [other, run],
        "leaderboard": [run, other],
        "table": [run, "ranking"],
        "figure": [run, "ranking", "-o", folder / "figure.svg"],
        "check": [run],
    }
    if command == "run":
        _evaluate(name, run)
        new = {finding.path for finding in check(Store(run)).findings}
        new -= {finding.path for finding in findings}  # nothing reads what is not needed any more
        assert not new, f"it was continued, and check finds {new}"
    elif command == "serve":
        LiveReport(run, folder / "served").refresh()
    elif command == "merge":
        hp.merge([run, other], out=folder / "merged")
    else:
        _command([command, *map(str, arguments[command])])


def _command(arguments: list[str]) -> None:
    """Call the command line in this process."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            main(arguments, standalone_mode=False)
    except SystemExit as error:
        if error.code in (2,):
            raise HeatproofError(printed.getvalue()) from None


def _change_json(rng: random.Random, run: Path, mutate: Mutate) -> None:
    single = [path.name for path in sorted(run.glob("*.json"))]
    name = rng.choice([*single, "plan.json", "task", "origin"])
    if name == "origin":
        path = rng.choice(sorted(run.glob("provenance/*.json")))
        _write_hashed(path, _changed(rng, path.read_bytes(), mutate))
        return
    tasks = sorted(run.glob("tasks/*.json"))
    path = rng.choice(tasks) if name == "task" and tasks else run / name
    if name == "task" and not tasks:
        path = run / "plan.json"
    path.write_bytes(seal(_changed(rng, unseal(path.read_bytes()), mutate)))


def _changed(rng: random.Random, content: bytes, mutate: Mutate) -> bytes:
    """Change values of a JSON object; often to others of the same type, which are harder to see."""
    value = json.loads(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        changed = _typed(rng, value) if rng.random() < 0.7 else mutate(rng, value)
        value = changed if isinstance(changed, dict) else value  # others cannot be sealed
    return json.dumps(value, default=str, skipkeys=True).encode("utf-8", "surrogatepass")


def _typed(rng: random.Random, value: Any) -> Any:
    """Replace one number or text by another, repeat or drop one item or entry."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        if rng.random() < 0.07:
            return {k: v for k, v in value.items() if k != key}
        if rng.random() < 0.05:
            return {**value, rng.choice(TEXTS): value[key]}
        return {**value, key: _typed(rng, value[key])}
    if isinstance(value, list) and value:
        i = rng.randrange(len(value))
        choice = rng.random()
        if choice < 0.1:
            return value[:i] + value[i + 1 :]
        if choice < 0.2:
            return value[:i] + [value[i]] * 2 + value[i + 1 :]
        return [*value[:i], _typed(rng, value[i]), *value[i + 1 :]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([*INTEGERS, value + 1, 10**12])
    if isinstance(value, float):
        return rng.choice(NUMBERS)
    return rng.choice([*TEXTS, f"{value}x"]) if isinstance(value, str) else value


def _change_rows(rng: random.Random, run: Path, mutate: Mutate) -> None:
    path = rng.choice(sorted(run.glob("rows/*")))
    table = pq.read_table(path)
    count = len(table)
    name = rng.choice(table.column_names)
    column = table.column_names.index(name)
    kind = table.schema.field(name).type
    rows = [rng.randrange(count) for _ in range(rng.choice((1, 3, count)))]
    change = rng.randrange(9)
    if change <= 2:
        texts = pa.types.is_string(kind)
        pool = TEXTS if texts else NUMBERS if pa.types.is_floating(kind) else INTEGERS
        values = table[name].to_pylist()
        for row in rows:
            values[row] = None if change == 0 else rng.choice(pool)
        table = table.set_column(column, name, pa.array(values, kind))
    elif change == 3:
        table = table.take(pa.array([*range(count), *rows]))
    elif change == 4:
        table = table.take(pa.array(sorted(set(range(count)) - set(rows))))
    elif change == 5:
        table = table.take(pa.array(rng.sample(range(count), count)))
    elif change == 6:
        other = rng.choice((pa.binary(), pa.int8(), pa.list_(pa.int32()), pa.float32(), pa.null()))
        table = table.set_column(column, name, pa.nulls(count, other))
    elif change == 7:
        table = table.drop_columns([name])
    else:
        repeated = rng.choice((1000, 100_000))
        taken = pc.choose(0, pa.array(list(range(count)) * repeated, pa.int32()))
        table = table.take(taken)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    _replace(rng, run, path, sink.getvalue().to_pybytes(), table if rng.random() < 0.7 else None)


def _change_tensors(rng: random.Random, run: Path, mutate: Mutate) -> None:
    path = rng.choice(sorted(run.glob("tensors/*")))
    _replace(rng, run, path, _changed_tensors(rng, path, mutate))


def _change_prepared(rng: random.Random, run: Path, mutate: Mutate) -> None:
    path = rng.choice(sorted(run.glob("prepared/*")))
    _write_hashed(path, _changed_tensors(rng, path, mutate))


def _change_parts(rng: random.Random, run: Path, mutate: Mutate) -> None:
    path = rng.choice(sorted(run.glob("parts/*/*")))
    _write_hashed(path, _changed_tensors(rng, path, mutate))


def _changed_tensors(rng: random.Random, path: Path, mutate: Mutate) -> bytes:
    with safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        metadata = file.metadata() or {}
    key = rng.choice(sorted(tensors))
    values = tensors[key]
    change = rng.randrange(9)
    if change == 8 and values.dtype != torch.uint8:
        change = 3
    if change == 0:
        tensors[key] = values[: rng.randrange(len(values) + 1)] if values.ndim else values + 1
    elif change == 1:
        tensors[key] = values.flatten()
    elif change == 2:
        tensors[key] = values[None].repeat(2, *[1] * values.ndim)
    elif change == 3:
        filled = rng.choice(NUMBERS) if values.is_floating_point() else rng.randrange(256)
        tensors[key] = torch.full_like(values, filled, dtype=torch.float64).to(values.dtype)
    elif change == 4:
        kinds = (torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.uint8)
        tensors[key] = values.to(rng.choice(kinds))
    elif change == 5:
        del tensors[key]
    elif change == 6:
        name = rng.choice([*TEXTS[2:], key.replace("curve", "map"), json.dumps({"kind": "logits"})])
        tensors[name] = values.clone()
    elif change == 7 and metadata:
        entry = rng.choice(sorted(metadata))
        metadata[entry] = _changed(rng, metadata[entry].encode(), mutate).decode("utf-8", "replace")
    elif change == 8:  # bytes of images or of a table
        flat = values.flatten().clone()
        for _ in range(rng.choice((1, 4, 20))):
            flat[rng.randrange(len(flat))] = rng.randrange(256)
        tensors[key] = flat.reshape(values.shape)
    return save({k: v.contiguous() for k, v in tensors.items()}, metadata)


def _change_timings(rng: random.Random, run: Path, mutate: Mutate) -> None:
    path = rng.choice(sorted(run.glob("timings/*")))
    _replace(rng, run, path, _changed(rng, path.read_bytes(), mutate))


CHANGES = {
    "json": _change_json,
    "rows": _change_rows,
    "tensors": _change_tensors,
    "timings": _change_timings,
    "prepared": _change_prepared,
    "parts": _change_parts,
}
KINDS = [*CHANGES, "json", "rows", "tensors"]


def _write_hashed(path: Path, content: bytes) -> Path:
    """Replace a file whose name has its hash, before the suffix, by another content."""
    path.unlink()
    digest = hashlib.sha256(content).hexdigest()
    before = path.name.split(".")[:-2]
    new = path.with_name(".".join([*before, digest[:16], path.suffix[1:]]))
    new.write_bytes(content)
    return new


def _replace(
    rng: random.Random, run: Path, path: Path, content: bytes, rows: pa.Table | None = None
) -> None:
    """Write a file of a task under its new hash, and the manifest that goes with it."""
    task = path.name.partition(".")[0]
    digest = hashlib.sha256(content).hexdigest()
    path.unlink()
    new = path.with_name(hashed_name(task, digest, path.suffix))
    new.write_bytes(content)
    manifest = run / "tasks" / f"{task}.json"
    described = json.loads(unseal(manifest.read_bytes()))
    described["files"][path.parent.name] = {
        "name": new.name,
        "sha256": digest,
        "size": len(content),
    }
    if rows is not None and all(
        name in rows.column_names and pa.types.is_string(rows.schema.field(name).type)
        for name in ("record", "status")
    ):
        described["groups"] = _groups(rows, described["groups"])
    manifest.write_bytes(seal(json.dumps(described, default=str).encode()))


def _groups(rows: pa.Table, before: list[Any]) -> list[Any]:
    """Count the rows of a table by record and status, as a manifest does."""
    counts = rows.group_by(["record", "status"]).aggregate([([], "count_all")]).to_pylist()
    found: dict[str, dict[str, int]] = {}
    for row in counts:
        found.setdefault(str(row["record"]), {})[str(row["status"])] = row["count_all"]
    origins = before[0]["origins"] if before else []
    return [{"rows": n, "origins": origins, "records": [r]} for r, n in found.items()]
