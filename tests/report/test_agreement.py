"""Protocols are compared under the settings that they share, alike on the page and in tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata, spearmanr

import heatproof as hp
from heatproof.analysis.agreement import ranking_under, shared_settings
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.report.sections import agreement
from heatproof.report.sections.agreement import Matrix, Pair, _matrix
from heatproof.report.site import Site

METHODS = ["ixg", "ig(steps=3)", "saliency", "gradcam"]
PROTOCOLS = [
    {"name": "sds", "patches": 4, "baseline": ["zero", "blur", "uniform"]},
    {"name": "deletion", "steps": 4, "baseline": ["zero", "blur"]},
    {"name": "insertion", "steps": 4, "baseline": ["blur", "zero"]},
]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> hp.Result:
    out = tmp_path_factory.mktemp("agreement") / "run"
    methods = [*METHODS, "random"]
    return hp.evaluate("paperbirds/vgg", "paperbirds:test", methods, PROTOCOLS, limit=6, out=out)


@pytest.fixture(scope="module")
def matrix(result: hp.Result, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    content = agreement.content(RunStatistics(result.store), Site(tmp_path_factory.mktemp("site")))
    assert content is not None
    ((found,),) = content.by_model.values()
    return found


def mean_ranks(result: hp.Result, protocol: str) -> np.ndarray:
    lines = result.summary()
    lines = lines[(lines["protocol"] == protocol) & lines["baseline"].isin(["zero", "blur"])]
    return lines.groupby("method")["rank"].mean()[METHODS].to_numpy()


def test_protocols_are_compared_under_the_baselines_that_all_have(result, matrix: Matrix):
    assert matrix.under == "blur and zero"
    assert len(matrix.pairs) == 3
    for pair in matrix.pairs:
        ranks = [mean_ranks(result, protocol) for protocol in (pair.a, pair.b)]
        value = pair.correlation.value
        if min(np.ptp(r) for r in ranks) == 0:
            assert np.isnan(value)
        else:
            assert value == pytest.approx(spearmanr(*ranks).statistic)


def test_the_page_the_table_and_the_file_have_the_same_numbers(result, matrix: Matrix):
    frame = result.agreement().set_index(["a", "b"])
    page = result.report()
    text = (page.parent / "stability.html").read_text()
    assert "Do the protocols agree?" in text
    files = [
        path for path in page.parent.glob("figures/*.csv") if "correlation" in path.read_text()
    ]
    (saved,) = (pd.read_csv(path).set_index(["a", "b"]) for path in files)
    for pair in matrix.pairs:
        line = frame.loc[(pair.a, pair.b)]
        expected = [line["correlation"], line["low"], line["high"]]
        np.testing.assert_allclose(list(pair.correlation), expected)
        np.testing.assert_allclose(list(saved.loc[(pair.a, pair.b)]), expected)


class Found:
    """Correlations of three rankings."""

    model, layer, under = "net", "", ""
    labels = ("a", "b", "c")
    methods = ("m1", "m2", "m3")

    def __init__(self, *cells: tuple[float, float, float]):
        self.pairs = dict(zip([(0, 1), (0, 2), (1, 2)], map(Estimate._make, cells), strict=True))
        self.overall = self

    def cell(self, i: int, j: int) -> Estimate:
        return self.pairs[i, j]


def test_protocols_agree_or_contradict_only_with_their_whole_interval(tmp_path: Path):
    nan = float("nan")
    found = _matrix(Site(tmp_path), Found((0.9, 0.51, 1.0), (-0.6, -0.9, -0.1), (0.9, 0.5, 1.0)))
    assert found.agreeing == [Pair("a", "b", Estimate(0.9, 0.51, 1.0))]
    assert [(pair.a, pair.b) for pair in found.contradicting] == [("a", "c")]
    assert [(pair.a, pair.b) for pair in found.unclear] == [("b", "c")]
    tied = _matrix(Site(tmp_path), Found((nan, nan, nan), (nan, nan, nan), (-0.5, -1.0, -0.001)))
    assert len(tied.undefined) == 2
    assert len(tied.unclear) == 1  # the interval is printed as −1.00 to 0.00
    assert "all methods tie" in str(tied.figure.svg)


def test_settings_are_restricted_where_protocols_differ_in_them():
    settings = [
        ("sds", {"baseline": "zero", "patches": "16"}),
        ("sds", {"baseline": "blur", "patches": "16"}),
        ("deletion", {"baseline": "zero", "steps": "8"}),
        ("rate", {}),
    ]
    assert shared_settings(settings) == ({"sds": [0], "deletion": [2], "rate": [3]}, "zero")
    apart = [("sds", {"baseline": "blur"}), ("road", {"baseline": "linear"})]
    assert shared_settings(apart) == ({"sds": [0], "road": [1]}, "")


def test_mean_ranks_are_ranked_once_more_in_every_draw(result: hp.Result):
    (standing,) = RunStatistics(result.store).standings
    methods, ranks, drawn = ranking_under(standing, [0, 1, 3])
    assert methods == standing.methods
    under = standing.under([0, 1, 3])
    np.testing.assert_array_equal(ranks, rankdata(under.mean_ranks, "min"))
    np.testing.assert_array_equal(drawn, rankdata(under.drawn_mean_ranks, "min", axis=1))
