"""Maps on the overview: which methods and samples they are of, and their scores."""

from pathlib import Path

import pytest
import torch
from scipy.stats import spearmanr

import heatproof as hp
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.report.sections import headline
from heatproof.report.sections.example_maps import agreement, choose, shown_methods
from heatproof.report.site import Site

METHODS = ["ig(steps=3)", "ixg", "gradcam", "random", "edges"]


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> hp.Result:
    out = tmp_path_factory.mktemp("examples") / "run"
    return hp.evaluate(
        "paperbirds/resnet", "paperbirds:test", METHODS, ["sds"], limit=12, out=out, keep_maps=5
    )


def test_samples_are_those_of_median_largest_and_smallest_agreement():
    found = {"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.4, "e": -0.2}
    assert [sample for sample, _ in choose(list(found), found)] == ["d", "b", "e"]
    assert choose(["a", "b", "c", "d"], {}) == [("a", ""), ("b", ""), ("c", "")]


def test_agreement_is_the_mean_rank_correlation_of_all_pairs_of_maps(result):
    kept = RunStatistics(result.store).kept("paperbirds/resnet")
    sample = next(iter(kept.with_images))
    methods = ["ixg", "ig(steps=3)", "random"]
    pooled = [
        torch.nn.functional.adaptive_avg_pool2d(kept.map(sample, m).double()[None], 28).flatten()
        for m in methods
    ]
    pairs = [(0, 1), (0, 2), (1, 2)]
    expected = sum(spearmanr(pooled[i], pooled[j]).statistic for i, j in pairs) / 3
    assert agreement(kept, [sample], methods)[sample] == pytest.approx(expected, abs=1e-6)


def test_the_maps_are_of_the_leader_a_popular_method_and_the_best_control(result, tmp_path: Path):
    run = RunStatistics(result.store)
    (verdict,) = headline.content(run, Site(tmp_path)).verdicts
    shown = {column.method: column.roles for column in verdict.maps.columns}
    evidence = verdict.evidence
    assert "ranks first" in shown[evidence.leader]
    assert "often used" in shown["gradcam"] or evidence.leader == "gradcam"
    assert list(shown)[-1] == evidence.ranked_controls[0]
    scores = result.scores.set_index(["sample", "method"])["value"]
    for row in verdict.maps.rows:
        for column, picture in zip(verdict.maps.columns, row.maps, strict=True):
            assert picture.score == pytest.approx(scores[row.sample, column.method])
    kept = run.kept("paperbirds/resnet")
    assert list(shown_methods(run, evidence, kept)) == list(shown)


def test_there_are_no_maps_where_none_were_kept(tmp_path: Path):
    result = hp.evaluate(
        "paperbirds/resnet",
        "paperbirds:test",
        ["ixg", "random"],
        ["sds"],
        limit=4,
        keep_maps=0,
        out=tmp_path / "run",
    )
    (verdict,) = headline.content(RunStatistics(result.store), Site(tmp_path / "site")).verdicts
    assert verdict.maps is None
    page = result.report().read_text(encoding="utf-8")
    assert "No maps were kept in this run" in page and "example-maps" not in page
