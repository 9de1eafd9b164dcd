"""Runs with next to nothing to say: every surface says so, without an exception, nan or a blank."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner
from report_text import report_text
from rescored import LINEAR_METHODS as METHODS
from rescored import linear_run as evaluate
from rescored import rescored

import heatproof as hp
from heatproof.cli import main
from heatproof.cli.results import print_summary
from heatproof.results.compare import compare
from heatproof.results.export import TABLE_FORMATS, TABLES
from heatproof.results.leaderboard import leaderboard
from heatproof.results.plots import DESCRIPTIONS

TWO = ["sds(patches=4)", "deletion(steps=4, baseline=zero)"]
SAID = re.compile(r"(?<![\w.`'\"=-])(nan|inf|NaN|∞)(?![\w`'\"-])")  # no such number in prose


def score(row: pd.Series) -> float:
    lead = {"ixg": 0.4, "saliency": 0.2, "random": 0.0}[row["method"]]
    return lead + 0.03 * (row["image"] * 7 % 5) + 0.001 * row["image"]


def no_image_with_all_scores(row: pd.Series) -> float:
    return score(row) if row["image"] % 3 == METHODS.index(row["method"]) else np.nan


def of_one_setting(row: pd.Series) -> float:
    return np.nan if row["protocol"] == "deletion" else score(row)


def broken(model, x, target):
    raise ValueError("not today")


def few(out: Path, images: int) -> hp.Result:
    return evaluate(out, METHODS, TWO, images)


SCARCE = {
    "no image with all scores": (
        lambda out: rescored(evaluate(out, METHODS, TWO, 12), no_image_with_all_scores),
        "No method can be ranked on net",
    ),
    "one method": (
        lambda out: evaluate(out, ["ixg"], TWO, 12),
        "is the only method that is ranked on net",
    ),
    "two images": (lambda out: few(out, 2), "there are only 2 images"),
    "one image": (lambda out: few(out, 1), "there is only 1 image"),
    "all failed": (
        lambda out: evaluate(out, [("mine", broken)], TWO, 4),
        "mine has no score (failed): ValueError: not today",
    ),
    "no score": (
        lambda out: rescored(evaluate(out, METHODS, TWO, 4), lambda row: np.nan),
        "ixg has no score (undefined)",
    ),
    "one grid": (
        lambda out: hp.evaluate(
            "paperbirds/resnet",
            hp.load_data("paperbirds:test", limit=12),
            METHODS,
            ["gridpg(grids=1)"],
            out=out,
        ),
        "there is only 1",
    ),
    "a setting that applies to nothing": (
        lambda out: rescored(evaluate(out, METHODS, TWO, 12), of_one_setting),
        "Use `ixg` on net: it wins.",
    ),
}


def command(*arguments: object) -> tuple[int, str]:
    """Run a command, which must end without a traceback; return its exit code and what it says."""
    shown = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    return shown.exit_code, shown.output


def visible(page: Path) -> str:
    """Return what a reader of a page sees below its navigation."""
    text = page.read_text(encoding="utf-8").partition("<main")[2].partition("</main>")[0]
    text = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", text, flags=re.DOTALL)
    return " ".join(re.sub("<[^>]*>", " ", text.partition(">")[2]).split())


@pytest.mark.parametrize("kind", SCARCE)
def test_every_command_says_what_there_is_or_why_there_is_nothing(kind: str, tmp_path: Path):
    make, _ = SCARCE[kind]
    result = make(tmp_path / "run")
    run = result.store.root
    has_scores = bool(result.summary()["n"].any())
    said: dict[str, str] = {}

    def ends(name: str, *arguments: object, allowed: tuple[int, ...] = (0,)) -> int:
        code, said[name] = command(*arguments)
        assert code in allowed, (name, code, said[name])
        if code == 2:
            assert said[name].startswith("error: ") and len(said[name].split()) > 5, said[name]
        assert said[name].strip(), name
        return code

    ends("report", "report", run, "-o", tmp_path / "site")
    ends("single file", "report", run, "--single-file", tmp_path / "one.html")
    for name in TABLES:
        for ending in TABLE_FORMATS:
            out = tmp_path / f"{name}{ending}"
            code = ends(f"{name}{ending}", "table", run, name, "-o", out, allowed=(0, 2))
            if code == 0 and ending != ".csv":
                said[f"{name}{ending}"] = out.read_text(encoding="utf-8")
    listed = command("figure", run, "--list")[1]
    for name in DESCRIPTIONS:
        assert name in listed
        ends(f"figure {name}", "figure", run, name, "-o", tmp_path / f"{name}.svg", allowed=(0, 2))
    page = tmp_path / "compare.html"
    ends("compare", "compare", run, run, "--html", page)
    said["compare.html"] = visible(page)
    limits = ("--fail-if-worse", "all:0", "--undecided", "fail")
    ends("gate", "compare", run, run, *limits, "--html", page, allowed=(0, 5))
    said["gate.html"] = visible(page)
    board = tmp_path / "board.html"
    code = ends("leaderboard", "leaderboard", run, "--html", board, allowed=(0, 2))
    assert code == (0 if has_scores else 2)
    if has_scores:
        said["board.html"] = visible(board)
    said |= {page.name: visible(page) for page in (tmp_path / "site").glob("*.html")}
    said["one.html"] = visible(tmp_path / "one.html")
    said["caveats"] = " ".join(result.caveats) or "none"
    for name, text in said.items():
        assert len(text) > 3, name
        found = SAID.search(text)
        assert not found, (name, text[max(0, found.start() - 80) :][:160])


@pytest.mark.parametrize("kind", SCARCE)
def test_scarce_scores_are_said_on_every_surface(kind: str, tmp_path: Path, capsys):
    make, sentence = SCARCE[kind]
    result = make(tmp_path / "run")
    said = " ".join(repr(result).split())
    assert sentence in said
    page = result.report()
    print_summary(result)
    printed = capsys.readouterr().out
    texts = {
        "repr": said,
        "html": re.sub("<[^>]*>", " ", result._repr_html_()),
        "markdown": result.to_markdown(),
        "latex": result.to_latex(),
        "terminal": printed,
        "report": report_text(page),
    }
    for name, text in texts.items():
        assert text.strip(), name
        assert not SAID.search(text), (name, text[max(0, SAID.search(text).start() - 80) :][:160])
    assert isinstance(result.pairs(), pd.DataFrame)
    assert isinstance(result.needed(0.05), pd.DataFrame)
    assert isinstance(result.agreement(), pd.DataFrame) and isinstance(
        result.variance(), pd.DataFrame
    )
    same = compare(result, result)
    assert not len(same.significant)
    assert "nan" not in repr(same)
    assert set(same.gate([("all", 0.0)])["outcome"]) <= {"same", "undecided"}
    if result.summary()["n"].any():
        board = leaderboard([result])
        assert "nan" not in repr(board) and ">nan<" not in board._repr_html_()


def test_two_runs_without_a_common_image_are_said_to_have_none(tmp_path: Path):
    first, second = (evaluate(tmp_path / name, METHODS, TWO, 4) for name in "ab")
    store = second.store
    for task in store.plan().tasks:
        table = store.table(task.name)
        rows = table.to_pandas()
        rows["sample"] = "other " + rows["sample"].astype(str)
        changed = pa.Table.from_pandas(rows, table.schema, preserve_index=False)
        store.commit(task.name, changed, store.tensors(task.name), store.timings(task.name))
    found = compare(first, hp.Result.load(store.root))
    assert "nothing can be compared, as no sample has a score in both" in repr(found)
    assert "no common samples" in repr(found) and "nan" not in repr(found)
    assert set(found.gate([("all", 0.0)])["outcome"]) == {"undecided"}
