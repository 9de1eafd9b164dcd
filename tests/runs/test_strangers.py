"""Runs with valid checksums that hold what no run writes: named, left out, and found by check."""

import hashlib
import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from safetensors.torch import save

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.runs.format import hashed_name
from heatproof.runs.integrity import check
from heatproof.runs.sealed import seal, unseal
from heatproof.runs.store import Store

PROTOCOLS = ["sds(patches=4)", "deletion(steps=2)"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "original"
    arguments = ("paperbirds/resnet", "paperbirds:test", ["ixg", "random"])
    hp.evaluate(*arguments, PROTOCOLS, limit=70, keep_maps=2, out=out)
    return out


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def replace(run: Path, kind: str, content: bytes, counts: pa.Table | None = None) -> None:
    """Replace a file of the first task, and let its manifest say so."""
    manifest = sorted(run.glob("tasks/*.json"))[0]
    described = json.loads(unseal(manifest.read_bytes()))
    name = described["files"][kind]["name"]
    (run / kind / name).unlink()
    digest = hashlib.sha256(content).hexdigest()
    new = hashed_name(name.partition(".")[0], digest, Path(name).suffix)
    (run / kind / new).write_bytes(content)
    described["files"][kind] = {"name": new, "sha256": digest, "size": len(content)}
    if counts is not None:
        found = counts.group_by("record").aggregate([([], "count_all")]).to_pylist()
        described["groups"] = [
            {"rows": {"ok": row["count_all"]}, "records": [row["record"]]} for row in found
        ]
    manifest.write_bytes(seal(json.dumps(described).encode()))


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def rows_of(run: Path) -> pa.Table:
    manifest = json.loads(unseal(sorted(run.glob("tasks/*.json"))[0].read_bytes()))
    return pq.read_table(run / "rows" / manifest["files"]["rows"]["name"])


def with_column(table: pa.Table, name: str, values: list) -> pa.Table:
    i = table.column_names.index(name)
    return table.set_column(i, name, pa.array(values, table.schema.field(name).type))


def changed(table: pa.Table, name: str, value: object) -> pa.Table:
    return with_column(table, name, [value, *table[name].to_pylist()[1:]])


ROWS = {
    "a null": (lambda t: changed(t, "method", None), "column method has nulls"),
    "a state": (lambda t: changed(t, "status", "fine"), "values that there are not"),
    "an infinite score": (lambda t: changed(t, "value", float("inf")), "infinite scores"),
    "a negative class": (lambda t: changed(t, "target", -3), "negative classes"),
    "a long text": (lambda t: changed(t, "message", "x" * 70_000), "more than 65,536 characters"),
    "another method": (lambda t: changed(t, "method", "ig"), "more than one method"),
    "a sample twice": (
        lambda t: with_column(t, "sample", [t["sample"][1].as_py(), *t["sample"].to_pylist()[1:]]),
        "a sample twice",
    ),
    "a row less": (lambda t: t.slice(1), "rows, but its manifest"),
    "a column less": (lambda t: t.drop_columns(["layer"]), "layer"),
    "many rows": (lambda t: t.take(pa.array([0] * 100_000)), "rows, but its manifest"),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_checked(run, name):
    change, problem = ROWS[name]
    replace(run, "rows", parquet(change(rows_of(run))))
    assert_left_out(run, problem)


def test_counts_of_a_manifest_are_bounded(run):
    table = rows_of(run).take(pa.array([0] * 100_000))
    replace(run, "rows", parquet(table), counts=table)
    assert_left_out(run, "a record of more than 64 samples")


def test_pages_that_unpack_to_gigabytes_are_not_unpacked(run):
    """The header of a page, not the footer, decides how much memory is taken."""
    table = changed(rows_of(run), "note", "x" * 160_000_000)
    replace(run, "rows", parquet(table))
    assert_left_out(run, "a page that unpacks to 160,000,")


TENSORS = {
    "logits": (lambda t: t[:3], "are of 3 of 64 samples"),
    "images": (lambda t: t.float(), "images have the type F32"),
    "map": (lambda t: t.flatten(1), "have the shape"),
    "curve": (lambda t: t[:, :2].contiguous(), "different lengths"),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_are_checked(run, kind):
    change, problem = TENSORS[kind]
    manifest = json.loads(unseal(sorted(run.glob("tasks/*.json"))[0].read_bytes()))
    with safe_open(run / "tensors" / manifest["files"]["tensors"]["name"], "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    key = next(key for key in tensors if json.loads(key)["kind"] == kind)
    tensors[key] = change(tensors[key])
    replace(run, "tensors", save(tensors, metadata))
    assert_found(run, problem)


def assert_left_out(run: Path, problem: str) -> None:
    """Check that the first task is named and left out, the other one read, and the run mended."""
    findings = check(Store(run)).findings
    assert len(findings) == 1 and problem in findings[0].problem
    with pytest.warns(UserWarning, match="damaged files"):
        result = hp.Result.load(run)
    assert result.scores["sample"].nunique() == 6
    assert any(problem in caveat for caveat in result.caveats)


def test_tensors_of_more_samples_than_there_are_rows_are_left_out(run):
    """Room for curves is made by the manifest."""
    rows = rows_of(run)
    samples = sorted(set(rows["sample"].to_pylist()))[:60]
    fewer = rows.filter(pc.is_in(rows["sample"], pa.array(samples)))
    replace(run, "rows", parquet(fewer), counts=fewer)
    assert_found(run, "more samples than the rows of its manifest")
    assert "deletion" in str(hp.Result.load(run).protocols)


def test_passes_are_of_known_kinds(run):
    path = sorted(run.glob("timings/*"))[0]
    timings = json.loads(path.read_bytes())
    timings["passes"][0]["kind"] = "sideways"
    replace(run, "timings", json.dumps(timings).encode())
    assert_found(run, "(forward|backward)")


@pytest.mark.parametrize("origin", ["../plan", "a" * 300])
def test_the_origin_of_records_is_a_digest(run, origin):
    """It is the name of a file."""
    manifest = sorted(run.glob("tasks/*.json"))[0]
    described = json.loads(unseal(manifest.read_bytes()))
    described["origins"] = [origin] * len(described["origins"])
    manifest.write_bytes(seal(json.dumps(described).encode()))
    assert_found(run, "origins")
    with pytest.warns(UserWarning, match="damaged files"):
        hp.Result.load(run)


def test_the_origins_beside_tensors_are_digests(run):
    """Merged runs read them there."""
    manifest = json.loads(unseal(sorted(run.glob("tasks/*.json"))[0].read_bytes()))
    with safe_open(run / "tensors" / manifest["files"]["tensors"]["name"], "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    origins = json.loads(metadata["origins"])
    metadata["origins"] = json.dumps(origins | {next(iter(origins)): ["a" * 70_000]})
    replace(run, "tensors", save(tensors, metadata))
    assert_found(run, "entry origins")


def assert_found(run: Path, problem: str) -> None:
    assert problem in " ".join(finding.problem for finding in check(Store(run)).findings)


def test_the_next_run_makes_anew_what_a_stranger_made_up(run, original):
    replace(run, "rows", parquet(changed(rows_of(run), "target", -3)))
    check(Store(run))  # which remembers what it has verified
    arguments = ("paperbirds/resnet", "paperbirds:test", ["ixg", "random"])
    with pytest.warns(UserWarning, match=r"set aside .* made anew"):
        result = hp.evaluate(*arguments, PROTOCOLS, limit=70, keep_maps=2, out=run)
    assert not any("damaged files" in caveat for caveat in result.caveats)  # all is well again
    pd.testing.assert_frame_equal(result.scores, hp.Result.load(original).scores)


def test_a_plan_is_checked(run):
    plan = json.loads(unseal((run / "plan.json").read_bytes()))
    plan["protocols"][0]["settings"]["patches"] = "many"
    (run / "plan.json").write_bytes(seal(json.dumps(plan).encode()))
    with pytest.raises(HeatproofError, match="protocol sds: patches"):
        hp.Result.load(run)
    assert [f.path.name for f in check(Store(run)).findings] == ["plan.json"]


def test_identical_runs_are_identical_files(original, tmp_path):
    arguments = ("paperbirds/resnet", "paperbirds:test", ["ixg", "random"])
    again = tmp_path / "again"
    hp.evaluate(*arguments, PROTOCOLS, limit=70, keep_maps=2, out=again)
    for kind in ("rows", "tensors"):
        names = [sorted(path.name for path in (run / kind).iterdir()) for run in (original, again)]
        assert names[0] == names[1]


@pytest.mark.parametrize("change", ["key", "name"])
def test_a_plan_with_endless_names_is_refused_in_few_words(run, change):
    plan = json.loads(unseal((run / "plan.json").read_bytes()))
    if change == "key":
        plan["tasks"][0]["view"]["x" * 70_000] = 1
    else:
        plan["tasks"][0]["protocols"] = ["x" * 70_000]
    (run / "plan.json").write_bytes(seal(json.dumps(plan).encode()))
    with pytest.raises(HeatproofError, match="plan.json is damaged") as error:
        hp.Result.load(run)
    assert len(str(error.value)) < 2000
