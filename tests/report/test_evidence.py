"""What the overview and the ranking claim: ranks on common images, ties, and who says "wins"."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rescored import LINEAR_METHODS as METHODS
from rescored import linear_run as evaluate
from rescored import rescored

import heatproof as hp
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.cli.results import print_leaderboard
from heatproof.report.sections import headline, ranking
from heatproof.report.site import Site

SOURCES = Path(hp.__file__).parent
CLAIM = re.compile(
    r"significan|reproduced|\bwins\b|\bties? with\b|told apart|\bbeats?\b|outperform"
    r"|\bconclusive|hardly changes"
)
# What looks like a claim and is none, by file below src/heatproof.
ALLOWED = {
    "analysis/significance.py": ["significant"],  # a column of pairs()
    "analysis/race_wording.py": [
        " remain. More images may decide it, or a margin within which methods need not be told "
        "apart."
    ],
    "plan/question.py": [
        "mean scores that differ by less need not be told apart; by default all do"
    ],
    "report/sections/provenance.py": ["How was this made, and how can it be reproduced?"],
}


def mostly_nan(model, x, target, *, rng):
    """Return a map for the first image alone."""
    maps = hp.explain(model, x, target, "ixg")
    for i, sample in enumerate(rng.ids):
        maps[i] = maps[i] if sample.endswith("0") else torch.nan
    return maps


def page_text(report: Path, name: str) -> str:
    return " ".join((report.parent / name).read_text(encoding="utf-8").split())


def rows_of(page: str, kind: str) -> dict[str, list[str]]:
    """Return the cells of the rows of a table by method, without tags."""
    table = re.search(rf'<table class="[^"]*\b{kind}\b[^"]*">.*?</table>', page)
    assert table
    return {
        method: [re.sub("<[^>]*>", "", cell).strip() for cell in re.split(r"</t[dh]>", row)]
        for method, row in re.findall(r'<tr data-method="([^"]+)"[^>]*>(.*?)</tr>', table[0])
    }


def test_a_method_that_fails_on_most_images_is_not_ranked(tmp_path: Path):
    result = evaluate(tmp_path / "run", ["ixg", "saliency", mostly_nan, "random"])
    values = result.scores.pivot(index="sample", columns="method", values="value")
    assert np.isfinite(values["mostly_nan"]).sum() == 1
    line = result.summary().set_index("method").loc["mostly_nan"]
    assert np.isnan(line["rank"]) and line["n"] == 1
    assert line["mean"] == values["mostly_nan"].max()
    report = result.report()
    sentence = "<code>mostly_nan</code> is not ranked: it has a score on 1 of 6 images under zero"
    overview = page_text(report, "index.html")
    assert f"{sentence}. <a" in overview
    assert "Not ranked: <code>mostly_nan</code>." in overview
    assert set(rows_of(overview, "brief")) == {"ixg", "saliency", "random"}
    listed = page_text(report, "ranking.html")
    rows = rows_of(listed, "setting")
    assert list(rows)[-1] == "mostly_nan"
    assert rows["mostly_nan"][:2] == ["–", "–"] and "1 own" in rows["mostly_nan"]
    ranked = [cell for method, cells in rows.items() if method != "mostly_nan" for cell in cells]
    assert not any("own" in cell for cell in ranked)
    assert "“own” marks a method that lacks a score" in listed
    mark = re.search(r'<g class="mark[^"]*" data-method="mostly_nan".*?</g>', listed)
    assert mark and ">–</text>" in mark[0] and "not ranked" in mark[0]
    assert not re.search(r"\bnan\b", listed.replace("mostly_nan", ""))


def test_every_surface_marks_a_method_that_fails_on_most_images(tmp_path: Path, capsys):
    result = evaluate(tmp_path / "run", ["ixg", "saliency", mostly_nan, "random"])
    sentence = "`mostly_nan` is not ranked: it has a score on 1 of 6 images under zero"
    assert result.caveats[0] == sentence
    assert f"! {sentence}" in repr(result) and sentence in result._repr_html_()
    assert re.search(r"–  mostly_nan .* n = 1, not ranked, 5 failed", repr(result))
    markdown, latex = result.to_markdown(), result.to_latex()
    assert re.search(r"\| mostly\\_nan \| -?[\d.]+†", markdown)
    assert " † not ranked: no score on more than a tenth of the images" in markdown
    assert r"\textdagger{} not ranked: no score" in latex
    assert latex.count("&") == len(METHODS) + 2  # a note is no row of the table
    complete = result.to_markdown().replace("†", "").splitlines()[2:5]
    assert not any("not ranked" in line for line in complete)
    csv = pd.read_csv(result.to_csv(tmp_path / "out.csv")).set_index("method")
    assert np.isnan(csv.loc["mostly_nan", "rank"]) and csv.loc["mostly_nan", "n"] == 1
    assert "mostly_nan" not in set(result.pairs()[["better", "other"]].to_numpy().ravel())
    board = hp.leaderboard([result])
    assert re.search(r"–  mostly_nan .*not ranked, n = 1", repr(board))
    print_leaderboard(board)
    printed = capsys.readouterr().out
    assert "not ranked, n = 1" in printed and not re.search(r"\bnan\b|1\.0 ", printed)


def test_a_perfect_score_on_one_image_wins_nothing(tmp_path: Path):
    """Of the methods that are ranked, the others are compared on all six images."""
    result = evaluate(tmp_path / "run", [*METHODS, mostly_nan])

    def score(row: pd.Series) -> float:
        if row["method"] == "mostly_nan":
            return 1.0 if row["image"] == 0 else np.nan
        return 0.5 * (row["method"] == "ixg") + 0.01 * row["image"]

    result = rescored(result, score)
    (verdict,) = headline.content(RunStatistics(result.store), Site(tmp_path / "site")).verdicts
    assert verdict.leader == "ixg"
    assert set(result.summary().set_index("method").loc[METHODS, "n"]) == {6}
    overview = page_text(result.report(), "index.html")
    assert '<div class="winner"><strong>ixg</strong>' in overview


@pytest.fixture(scope="module")
def left_out(tmp_path_factory: pytest.TempPathFactory) -> hp.Result:
    """Two settings, under the second of which no method has a score."""
    protocols = ["sds(patches=4)", "deletion(steps=4, baseline=zero)"]
    result = evaluate(tmp_path_factory.mktemp("left_out") / "run", METHODS, protocols, 12)
    noise = np.random.default_rng(0).normal(size=12)

    def score(row: pd.Series) -> float:
        if row["protocol"] == "deletion":
            return np.nan
        lead = {"ixg": 0.4, "saliency": 0.2, "random": 0.0}[row["method"]]
        return lead + 0.02 * noise[(row["image"] * 5 + len(row["method"])) % 12]

    return rescored(result, score)


def test_a_setting_without_scores_does_not_erase_the_overview(left_out: hp.Result, tmp_path: Path):
    content = headline.content(RunStatistics(left_out.store), Site(tmp_path))
    (verdict,) = content.verdicts
    assert (verdict.leader, verdict.evidence.winner) == ("ixg", "ixg")
    assert (content.settings, content.counted_protocols) == (1, 1)
    assert verdict.protocols == []  # there is one that counts, as the lead says
    expected = left_out.scores.query("method == 'ixg' and protocol == 'sds'")["value"].mean()
    assert verdict.score.value == pytest.approx(expected)
    overview = page_text(left_out.report(), "index.html")
    assert '<p class="lead">Use <code>ixg</code> on net: it wins.' in overview
    assert "Ranked by mean rank over 1 setting;" in overview
    assert (
        "Left out of the mean rank, since too few methods have a score: deletion · zero."
    ) in overview
    assert list(rows_of(overview, "brief")) == METHODS
    assert not re.search(r"\bnan\b", overview)


def test_grids_of_a_model_with_two_classes_do_not_erase_the_overview(tmp_path: Path):
    """A grid needs as many classes as cells."""
    protocols = ["sds(patches=4)", "gridpg(grids=2, confidence=0)"]
    result = evaluate(tmp_path / "run", METHODS, protocols, 12, classes=2)
    (verdict,) = headline.content(RunStatistics(result.store), Site(tmp_path / "site")).verdicts
    assert verdict.leader in METHODS[:2]
    assert len(verdict.evidence.used) == 1
    overview = page_text(result.report(), "index.html")
    lead = re.search(r'<p class="lead">.*?</p>', overview)
    assert lead and f"<code>{verdict.leader}</code>" in lead[0]
    assert "since too few methods have a score: gridpg." in overview


def test_methods_with_equal_means_share_a_place(tmp_path: Path):
    protocols = [{"name": "sds", "patches": 4, "baseline": ["zero", "black"]}]
    result = evaluate(tmp_path / "run", METHODS, protocols, 8)

    def score(row: pd.Series) -> float:
        if row["method"] == "random":
            return 0.1 * (row["image"] % 2)
        swapped = row["image"] if row["method"] == "ixg" else 7 - row["image"]
        return 0.5 + 0.05 * swapped

    result = rescored(result, score)
    means = result.scores.groupby(["method", "baseline"])["value"].mean().unstack()
    assert means.loc["ixg"].tolist() == pytest.approx(means.loc["saliency"].tolist())
    run = RunStatistics(result.store)
    (verdict,) = headline.content(run, Site(tmp_path / "site")).verdicts
    assert {r.method: r.position for r in verdict.brief.rows} == {
        "ixg": 1,
        "saliency": 1,
        "random": 3,
    }
    (model,) = ranking.content(run, Site(tmp_path / "other")).models
    assert [r.position for r in model.rankings[0].overall] == [1, 1, 3]
    assert verdict.evidence.winner == ""
    report = result.report()
    for page, kind in (("index.html", "brief"), ("ranking.html", "overall")):
        rows = rows_of(page_text(report, page), kind)
        assert {method: cells[0] for method, cells in rows.items()} == {
            "ixg": "1",
            "saliency": "1",
            "random": "3",
        }
    for cells in rows_of(page_text(report, "ranking.html"), "setting").values():
        assert cells[0] in ("1", "3")


def test_an_axis_of_mean_ranks_has_room_for_all_methods_that_a_setting_ranks(tmp_path: Path):
    """A method that one setting alone ranks still takes a place there."""
    protocols = [{"name": "sds", "patches": 4, "baseline": ["zero", "black"]}]
    result = evaluate(tmp_path / "run", [*METHODS, "edges"], protocols)

    def score(row: pd.Series) -> float:
        place = [*METHODS, "edges"].index(row["method"])
        missing = row["method"] == "edges" and row["baseline"] == "black"
        return np.nan if missing else 0.1 * place + 0.01 * row["image"]

    result = rescored(result, score)
    (verdict,) = headline.content(RunStatistics(result.store), Site(tmp_path / "site")).verdicts
    assert verdict.brief.last == 4 and verdict.brief.unranked == ["edges"]
    ends = [r.rank.high for r in verdict.brief.rows]
    assert max(ends) <= 4
    report = result.report()
    for page in ("index.html", "ranking.html"):
        assert 'scope="col">1 to 4</th>' in page_text(report, page)


def string_literals(file: Path) -> list[str]:
    """Return the texts in Python code that are no docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    statements = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in statements
    ]


def texts_of(file: Path) -> list[str]:
    if file.suffix == ".py":
        return string_literals(file)
    return re.sub(r"\{#.*?#\}", "", file.read_text(encoding="utf-8"), flags=re.DOTALL).splitlines()


@pytest.mark.parametrize("suffix", [".py", ".j2", ".js"])
def test_only_wording_makes_claims(suffix: str):
    found: dict[str, list[str]] = {}
    for file in sorted(SOURCES.rglob(f"*{suffix}")):
        name = file.relative_to(SOURCES).as_posix()
        claims = [text for text in texts_of(file) if CLAIM.search(text)]
        if claims and name != "analysis/wording.py":
            found[name] = claims
    assert found == {name: texts for name, texts in ALLOWED.items() if name.endswith(suffix)}


@pytest.mark.parametrize(
    "text",
    [
        *("differ significantly", "was reproduced", "`a` wins on b", "it ties with c", "tie with"),
        *("cannot be told apart", "a beats b", "a outperforms b", "This is not conclusive"),
    ],
)
def test_claims_are_found(text: str, tmp_path: Path):
    code = tmp_path / "code.py"
    code.write_text(f'"""A docstring: {text}."""\n# {text}\nx = f"{{1}}: {text}"\n')
    assert sum(bool(CLAIM.search(t)) for t in texts_of(code)) == 1
