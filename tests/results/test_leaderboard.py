"""One table over several runs, and several tables where scores are not comparable."""

import base64
import hashlib
import html
import json
import re
from urllib.parse import unquote

import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import ttest_rel

import heatproof as hp
from heatproof.cli import main
from heatproof.errors import HeatproofError
from heatproof.runs.sealed import seal, unseal

from .conftest import network, part_of, photos


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two people with different networks and methods, and one with fewer images."""
    root = tmp_path_factory.mktemp("leaderboard")
    protocols = ["sds", {"name": "deletion", "steps": 4}]
    hp.evaluate(network(0, "a"), photos(), ["ixg", "saliency"], protocols, out=root / "ann" / "x")
    hp.evaluate(network(1, "b"), photos(), ["ixg", "random"], ["sds"], out=root / "bob" / "x")
    fewer = part_of(photos(), slice(0, 5))
    hp.evaluate(network(0, "a"), fewer, ["ixg"], ["sds"], out=root / "few")
    return root


def test_scores_on_the_same_samples_are_in_one_table(runs):
    found = hp.leaderboard([runs / "ann" / "x", runs / "bob" / "x"])
    sds, deletion = found.boards
    assert not found.notes
    assert (sds.protocol.id, deletion.protocol.id) == ("sds", "deletion")
    entries = set(zip(sds.lines["method"], sds.lines["model"], sds.lines["run"], strict=True))
    own = {("ixg", "a", "ann/x"), ("saliency", "a", "ann/x")}
    assert entries == own | {("ixg", "b", "bob/x"), ("random", "b", "bob/x")}
    assert sds.lines["mean"].is_monotonic_decreasing
    assert deletion.lines["mean"].is_monotonic_increasing
    assert sds.lines["place"].tolist() == [1, 2, 3, 4]


def test_means_and_ties_are_those_of_the_runs(runs):
    folders = [runs / "ann" / "x", runs / "bob" / "x"]
    lines = hp.leaderboard(folders).boards[0].lines
    scores = {}
    for folder, name in zip(folders, ("ann/x", "bob/x"), strict=True):
        rows = hp.Result.load(folder).scores
        for method, part in rows[rows["protocol"] == "sds"].groupby("method"):
            scores[method, name] = part.set_index("sample")["value"]
    for line in lines.to_dict("records"):
        assert line["mean"] == pytest.approx(scores[line["method"], line["run"]].mean())
        assert line["low"] <= line["mean"] <= line["high"]
    first, last = (scores[m, r] for m, r in lines[["method", "run"]].iloc[[0, -1]].to_numpy())
    p = ttest_rel(first, last.reindex(first.index)).pvalue
    shared = set(lines["letters"].iloc[0]) & set(lines["letters"].iloc[-1])
    assert shared or p < 0.05


def test_other_samples_are_in_another_table_with_a_note(runs):
    found = hp.leaderboard([runs])
    assert [len(board.samples) for board in found.boards if board.protocol.id == "sds"] == [12, 5]
    (note,) = found.notes
    assert "sds" in note and "other samples" in note and "few (5 samples)" in note
    frame = found.to_frame()
    assert frame["table"].nunique() == len(found.boards) == 3
    assert "ixg · a · few" in repr(found) and note in repr(found)
    assert "ixg" in found._repr_html_()


def test_a_leaderboard_in_the_terminal_and_in_files(runs, tmp_path):
    files = ["--json", str(tmp_path / "b.json"), "--csv", str(tmp_path / "b.csv")]
    shown = CliRunner().invoke(main, ["leaderboard", str(runs), *files], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "sds version" in shown.output and "higher is better" in shown.output
    lines = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))["lines"]
    read = pd.read_csv(tmp_path / "b.csv", keep_default_na=False)
    assert len(lines) == len(read) == len(hp.leaderboard([runs]).to_frame())


def test_no_runs_are_refused(tmp_path):
    with pytest.raises(HeatproofError, match="there is no run in"):
        hp.leaderboard([tmp_path])
    with pytest.raises(HeatproofError, match="is not a directory"):
        hp.leaderboard([tmp_path / "nowhere"])


@pytest.fixture(scope="module")
def submitted(runs, tmp_path_factory):
    """Bob's run as a file."""
    out = tmp_path_factory.mktemp("submitted") / "bob.heatproof.json"
    arguments = [
        runs / "bob" / "x",
        "--submit",
        out,
        "--by",
        "Bob <b>",
        "--report",
        "https://b.ob/r",
    ]
    call("leaderboard", *arguments)
    return out


def call(*arguments, code=0):
    shown = CliRunner().invoke(main, [*map(str, arguments)], catch_exceptions=False)
    assert shown.exit_code == code, shown.output
    return " ".join(shown.output.split())


def test_a_submission_is_ranked_as_its_run(runs, submitted):
    of_runs = hp.leaderboard([runs / "ann" / "x", runs / "bob" / "x"]).to_frame()
    of_file = hp.leaderboard([runs / "ann" / "x", submitted]).to_frame()
    same = [name for name in of_runs if name != "run"]
    pd.testing.assert_frame_equal(of_runs[same], of_file[same])
    assert set(of_file[of_file["control"]]["method"]) == {"random"}
    found = hp.leaderboard([submitted.parent]).runs[submitted.name]
    assert (found.by, found.report, found.root) == ("Bob <b>", "https://b.ob/r", None)
    assert found.spec == hp.Result.load(runs / "bob" / "x").spec_hash
    assert "is valid" in call("leaderboard", "--check", submitted)


def test_the_best_are_those_that_no_entry_is_ahead_of(runs):
    folder = runs / "ann" / "x"
    (sds,) = (b for b in hp.leaderboard([folder]).boards if b.protocol.id == "sds")
    pairs = hp.Result.load(folder).pairs(protocol="sds")
    behind = set(pairs.loc[pairs["p"] <= 0.05, "other"])
    assert {
        m for m, best in zip(sds.lines["method"], sds.lines["may_be_best"], strict=True) if best
    }
    assert not behind & set(sds.lines.loc[sds.lines["may_be_best"], "method"])


def changed(path, change):
    """Seal a submission whose content is changed."""
    content = json.loads(unseal(path.read_bytes()))
    change(content)
    return seal(json.dumps(content).encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(extra=1), "extra"),
        (lambda c: c.update(report="javascript:alert(1)"), "report"),
        (lambda c: c["scores"][0]["protocol"].update(version=99), "of version 99 of the protocol"),
        (lambda c: c["scores"][0]["methods"]["ixg"].pop(), "and there are 12 samples"),
        (lambda c: c["scores"][0]["methods"]["ixg"].__setitem__(0, 7.0), "a score outside -1 to 1"),
        (lambda c: c["scores"][0]["samples"].__setitem__(0, "photo_01"), "listed twice"),
    ],
)
def test_submissions_that_are_wrong_are_refused(submitted, tmp_path, change, message):
    path = tmp_path / "x.heatproof.json"
    path.write_bytes(changed(submitted, change))
    assert message in call("leaderboard", "--check", path, code=2)
    assert message in call("leaderboard", path, code=2)


def test_a_changed_byte_of_a_submission_is_noticed(submitted, tmp_path):
    path = tmp_path / "x.heatproof.json"
    path.write_bytes(submitted.read_bytes().replace(b"Bob", b"Eve"))
    shown = call("leaderboard", "--check", path, code=2)
    assert "checksum does not match" in shown and "--submit FILE" in shown


def test_what_a_submission_needs_is_said(runs, tmp_path):
    run = runs / "bob" / "x"
    assert "takes one run" in call("leaderboard", run, "--submit", tmp_path / "a", code=2)
    named = ["--submit", tmp_path / "a.json", "--by", "Bob"]
    assert "must end in .heatproof.json" in call("leaderboard", run, *named, code=2)
    address = ["--submit", tmp_path / "a.heatproof.json", "--by", "Bob", "--report", "ftp://x"]
    assert "begins with https://" in call("leaderboard", run, *address, code=2)


def test_a_page_has_all_entries_escaped_with_links_and_who(runs, submitted, tmp_path):
    out = tmp_path / "board.html"
    hp.Result.load(runs / "ann" / "x").report()
    call("leaderboard", runs / "ann" / "x", submitted, "--html", out)
    page = out.read_text(encoding="utf-8")
    assert "Bob &lt;b&gt;" in page and "Bob <b>" not in page
    assert 'href="https://b.ob/r"' in page
    (link,) = re.findall(r'href="([^"]*index.html)"', page)
    assert (out.parent / unquote(link)).resolve() == runs / "ann" / "x" / "report" / "index.html"
    frame = hp.leaderboard([runs / "ann" / "x", submitted]).to_frame()
    entries = len(frame[["method", "model", "run"]].drop_duplicates())
    assert page.count("<tr data-filtered") == len(frame) + entries
    policy = re.search(r'Security-Policy" content="([^"]*)"', page)[1]
    for tag in ("style", "script"):
        text = re.search(rf"<{tag}>(.*)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert digest in html.unescape(policy)
