"""Images for a difference: the number found shows it in about four of five simulated data sets."""

import numpy as np
import pytest
from scipy import stats
from small_runs import evaluate

from heatproof.analysis.families import pair_family
from heatproof.analysis.planning import images_for
from heatproof.errors import HeatproofError


@pytest.mark.parametrize(("methods", "difference"), [(2, 0.5), (6, 0.6), (15, 0.4)])
def test_so_many_images_show_a_difference_in_four_of_five_data_sets(methods, difference):
    """One pair differs, scores of methods on an image are correlated, and errors are normal."""
    rng = np.random.default_rng(methods)
    count = images_for(difference, spread=1.0, methods=methods)
    pairs = np.triu_indices(methods, 1)
    found = 0
    for _ in range(150):
        scores = rng.normal(size=(count, methods)) / np.sqrt(2) + rng.normal(size=(count, 1))
        scores[:, 0] += difference / 2
        scores[:, 1] -= difference / 2
        family = pair_family(scores, count, pairs, 0.0)
        found += bool(family.significant[0])
    assert 0.7 <= found / 150 <= 0.93


def test_two_methods_need_what_a_paired_t_test_needs():
    count = int(images_for(0.5, 1.0, 2))
    by_tables = next(
        n
        for n in range(3, 200)
        if stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, 0.5 * np.sqrt(n)) >= 0.8
    )
    assert abs(count - by_tables) <= 2


def test_a_result_says_how_many_images_a_difference_takes():
    result = evaluate(None, ["ixg", "saliency", "random"], 20)
    lines = result.needed(0.1)
    scores = result.scores
    for line in lines.to_dict("records"):
        chosen = scores[scores["protocol"] == line["protocol"]]
        table = chosen.pivot(index="sample", columns="method", values="value").to_numpy()
        pairs = [table[:, i] - table[:, j] for i, j in ((0, 1), (0, 2), (1, 2))]
        spreads = [pair.std(ddof=1) for pair in pairs]
        assert line["typical"] == pytest.approx(np.median(spreads))
        assert line["largest"] == pytest.approx(max(spreads))
        assert line["needed_for_all"] == images_for(0.1, max(spreads), 3)
        assert (line["methods"], line["n"]) == (3, 20)
    assert (result.needed(0.05)["needed"] >= lines["needed"]).all()
    for wrong in (0, -1, float("nan")):
        with pytest.raises(HeatproofError, match="is no difference to find"):
            result.needed(wrong)


def test_one_method_needs_no_number():
    lines = evaluate(None, ["ixg"], 4).needed(0.1)
    assert lines["needed"].isna().all() and len(lines) == 2
