"""Runs from strangers: they run no code, lead nowhere else, and cannot break the report."""

import csv
import json
import os
import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.errors import HeatproofError
from heatproof.platform import file_lock
from heatproof.report.build import LOCK, MARKER, build, build_single_file
from heatproof.runs.format import RunPaths
from heatproof.runs.sealed import seal, unseal
from heatproof.runs.store import Store

NAME = "=HYPERLINK(1)\x1b[2J\u202e<script>"
IDS = ["=cmd()", "+b\x07", "@c\x00", "-d\u202e"]


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def evaluate(out: Path, name: str = "net", ids: list[str] | None = None) -> hp.Result:
    model = hp.Model(small_net(), size=16, classes=["a", "b", "c", "d\x1b"], name=name)
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    data = hp.TensorData(images, [0, 1, 2, 3], ids=ids)
    return hp.evaluate(model, data, ["ixg", "random"], ["sds(patches=4)"], batch_size=4, out=out)


@pytest.fixture
def run(tmp_path) -> Path:
    evaluate(tmp_path / "run")
    return tmp_path / "run"


def write(path: Path, content) -> None:
    """Write a file with a checksum that matches, as a stranger can."""
    path.write_bytes(seal(json.dumps(content).encode()))


def edit(path: Path, change) -> None:
    content = json.loads(unseal(path.read_bytes()))
    change(content)
    write(path, content)


def test_hostile_names_break_neither_figures_nor_tables(tmp_path):
    page = evaluate(tmp_path / "run", NAME, IDS).report()
    site = page.parent
    for figure in site.glob("figures/*.svg"):
        ET.parse(figure)
    written = [p for p in site.rglob("*") if p.suffix in (".html", ".svg", ".js")]
    assert len(written) > 10
    for text in (p.read_text() for p in written):
        assert not any(mark in text for mark in "\x1b\x07\x00\u202e")
    numbers = list(site.glob("figures/*.csv"))
    assert numbers
    for path in numbers:
        with path.open(newline="", encoding="utf-8") as lines:
            cells = [cell for row in csv.reader(lines) for cell in row]
        assert not any(cell.startswith(("=", "+", "@")) for cell in cells)
        assert not any(mark in cell for cell in cells for mark in "\x1b\x07\x00\u202e")
    for file in ("summary.csv", "scores.csv"):
        with (site / file).open(newline="", encoding="utf-8") as lines:
            for line in csv.DictReader(lines):
                names = [line["model"], line.get("sample", "")]
                assert all(not name.startswith(("=", "+", "-", "@")) for name in names)
                assert line["model"].startswith("'=HYPERLINK(1)\\x1b[2J")


LONG = "x" * 10_000
WORST_IDS = [
    '<img src=x onerror="document.title=1">',
    "</script><script>alert(1)</script>",
    "\u05d0\u05d1 \u0627\u0644 🦜👩‍🚀 'quotes\" & `ticks`",
    LONG,
]


def test_names_of_any_kind_are_text_in_every_page(tmp_path):
    """HTML, quotes, emoji, right to left, 10,000 characters: as model, class, id and method."""

    def nasty(model, x, target, *, rng):
        return x.mean(1)

    nasty.__name__ = "__proto__"
    model = hp.Model(small_net(), size=16, classes=[*WORST_IDS[:3], LONG], name=WORST_IDS[1] + LONG)
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    result = hp.evaluate(
        model,
        hp.TensorData(images, [0, 1, 2, 3], ids=WORST_IDS),
        ["ixg", nasty, "random"],
        ["sds(patches=4)", "deletion(steps=4)"],
        batch_size=4,
        out=tmp_path / "run",
    )
    page = result.report()
    single = build_single_file(result, tmp_path / "single.html")
    for path in [*page.parent.glob("*.html"), single]:
        text = path.read_text()
        assert "<img src=x" not in text and "</script><script>alert" not in text
        assert len(text) < 2_000_000
        title = re.search("<title>(.*)</title>", text)
        assert title is not None and len(title[1]) < 200
    names = {p.name for p in page.parent.rglob("*") if p.is_file()}
    assert all(re.fullmatch(r"[\w.-]{1,40}", name) for name in names)


@pytest.mark.parametrize("labels", [None, [0, 1, 2, 3]])
def test_all_failed_one_method_one_sample_and_no_label_have_every_page(tmp_path, labels):
    def broken(model, x, target, *, rng):
        raise RuntimeError("<b>no</b>")

    for count, methods in ((4, [broken]), (1, ["ixg"]), (1, ["random"])):
        data = hp.TensorData(torch.rand(count, 3, 16, 16), labels and labels[:count])
        model = hp.Model(small_net(), size=16, name="net")
        result = hp.evaluate(model, data, methods, ["sds(patches=4)"], batch_size=4)
        page = result.report(tmp_path / f"{count}{methods[0]!s:.6}")
        for name in ("ranking", "failures", "provenance"):
            assert (page.parent / f"{name}.html").is_file()
        assert "<b>no</b>" not in (page.parent / "failures.html").read_text()


def test_a_run_that_is_half_corrupt_has_a_report_that_says_so(run):
    for folder in ("rows", "tensors"):
        for file in (run / folder).iterdir():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.warns(UserWarning, match="damaged|not as"):
        page = hp.Result.load(run).report()
    assert "damaged" in (page.parent / "failures.html").read_text()


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a/b", "..", "", "a\n", "a\0b"])
def test_a_task_names_no_file_outside(run, name):
    edit(run / "plan.json", lambda plan: plan["tasks"][0].update(name=name))
    with pytest.raises(HeatproofError, match="damaged"):
        _ = RunStatistics(Store(run)).rows


@pytest.mark.parametrize("name", ["../x", "/x", "a/b"])
def test_paths_of_a_run_stay_inside(tmp_path, name):
    with pytest.raises(HeatproofError, match="is not the name of a file of a run"):
        RunPaths(tmp_path).manifest(name)


@pytest.mark.skipif(os.name == "nt", reason="links need privileges on Windows")
def test_links_that_lead_out_of_a_run_are_not_followed(run, tmp_path):
    outside = tmp_path / "outside"
    for part in ("rows", "tensors", "tasks", "plan.json", "report", ".lock"):
        (run / "report").mkdir(exist_ok=True)
        moved = run / part
        moved.rename(outside)
        moved.symlink_to(outside)
        with pytest.raises(HeatproofError, match="a link that leads out of the run"):
            evaluate(run).report()
        moved.unlink()
        outside.rename(moved)
    rows = next((run / "rows").iterdir())
    rows.rename(outside)
    rows.symlink_to(outside)
    with pytest.raises(HeatproofError, match="a link that leads out of the run"):
        _ = RunStatistics(Store(run)).rows


@pytest.mark.skipif(os.name == "nt", reason="links need privileges on Windows")
def test_links_inside_a_run_and_to_a_run_are_followed(run, tmp_path):
    rows = next((run / "rows").iterdir())
    rows.rename(run / "rows" / "elsewhere")
    rows.symlink_to("elsewhere")
    (tmp_path / "link").symlink_to(run)
    assert len(RunStatistics(Store(tmp_path / "link")).rows) == 8


def strings(value, path=()):
    """Yield the path of every text in a JSON value."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            yield from strings(part, (*path, key))
    elif isinstance(value, str):
        yield path


def test_no_text_of_a_run_runs_code(run, tmp_path):
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for file in ("plan.json", "provenance.json"):
        original = (run / file).read_bytes()
        for path in strings(json.loads(unseal(original))):
            content = json.loads(unseal(original))
            part = content
            for key in path[:-1]:
                part = part[key]
            part[path[-1]] = f"file:{evil}:run"
            write(run / file, content)
            try:
                opened = RunStatistics(Store(run))
                assert opened.summary_frame is not None
            except (HeatproofError, KeyError):  # a method or task that the rows have is missing
                continue
        (run / file).write_bytes(original)
    edit(
        run / "plan.json",
        lambda plan: plan["protocols"][0]["settings"].update(baseline=f"file:{evil}:run"),
    )
    edit(
        run / "provenance.json",
        lambda p: p["spec"].update(lead=f"file:{evil}:run", methods=[f"file:{evil}:run"]),
    )
    hp.Result.load(run).report()
    assert not (tmp_path / "ran").exists()


def test_a_killed_report_does_not_block_the_next(run):
    killed = run / f".report-new-{os.getpid()}"  # as process 1 in a container
    killed.mkdir()
    (killed / "index.html").write_text("half")
    os.utime(killed, (time.time() - 7200,) * 2)
    fresh = run / ".report-new-00ff"
    fresh.mkdir()  # by a process that has not locked it yet
    unrelated = run / ".report-new-notes"
    unrelated.mkdir()
    locked = run / ".report-new-aa"
    locked.mkdir()
    (locked / LOCK).touch()
    page = build(RunStatistics(Store(run)), run / "report")
    assert page.is_file()
    assert not killed.exists()
    assert not locked.exists()
    assert fresh.is_dir()
    assert unrelated.is_dir()
    assert not (run / "report" / LOCK).exists()


def test_a_report_that_is_being_written_is_left_alone(run):
    busy = run / ".report-new-bb"
    busy.mkdir()
    with file_lock(busy / LOCK, "busy"):
        build(RunStatistics(Store(run)), run / "report")
        assert busy.is_dir()
    build(RunStatistics(Store(run)), run / "report")
    assert not busy.exists()


@pytest.mark.parametrize("marker", ["", "[]", "{}", '{"files": 3}', '{"files": [[]]}', "[" * 9999])
def test_a_damaged_marker_of_a_report_is_refused(run, marker):
    page = build(RunStatistics(Store(run)), run / "report")
    (page.parent / MARKER).write_text(marker)
    with pytest.raises(HeatproofError, match="damaged|not part of a report"):
        build(RunStatistics(Store(run)), run / "report")
