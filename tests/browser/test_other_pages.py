"""Pages beside the report: leaderboards and comparisons of runs."""

from pathlib import Path

import pytest
from small_runs import evaluate
from visitor import serious_findings

import heatproof as hp
from heatproof.results.comparison_page import ComparedRun, comparison_page
from heatproof.results.leaderboard_page import leaderboard_page

pytestmark = pytest.mark.browser


def test_pages_of_several_runs_fit_and_are_accessible(visit, tmp_path: Path):
    for name, count in (("a", 12), ("b", 12), ("c", 8)):
        evaluate(tmp_path / name, count=count)
    board = leaderboard_page(hp.leaderboard([tmp_path]), tmp_path / "board.html")
    (tmp_path / "board.html").write_text(board, encoding="utf-8")
    compared = hp.compare(tmp_path / "a", tmp_path / "b")
    (tmp_path / "compare.html").write_text(
        comparison_page("a", [ComparedRun("b", compared)]), encoding="utf-8"
    )
    for scheme in ("light", "dark"):
        for width in (1300, 390):
            viewport = {"width": width, "height": 900}
            visitor = visit(tmp_path, viewport=viewport, color_scheme=scheme)
            for name in ("board.html", "compare.html"):
                page = visitor.open(name)
                assert serious_findings(page) == [], (name, scheme, width)
                assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
