"""One table over several runs, and several tables where scores are not comparable."""

import json

import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import ttest_rel

import heatproof as hp
from heatproof.cli import main
from heatproof.errors import HeatproofError

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
