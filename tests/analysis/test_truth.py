"""Known truth: completeness against a slow loop, and what holds in every trial."""

import numpy as np
import pytest

from heatproof.analysis.truth import LEVELS, THRESHOLDS, trials
from heatproof.tensor.noise import generator


@pytest.fixture(scope="module")
def outcome():
    return trials(3, points=300, features=100)


def test_maps_with_removed_attribution_are_less_complete(outcome):
    """Only attribution that supports the label is removed."""
    assert (outcome.completeness["removed"] <= outcome.completeness["truth"]).all()
    assert outcome.completeness["removed"].mean() < outcome.completeness["truth"].mean()
    assert (np.diff(outcome.completeness["truth"], axis=1) >= 0).all()


def test_every_kind_of_map_has_a_row_per_trial(outcome):
    """The truth is computed once, and stands beside the maps of every trial."""
    for curves in (outcome.completeness, outcome.soundness):
        assert {len(rows) for rows in curves.values()} == {3}


def test_attribution_that_supports_the_label_is_sound(outcome):
    for kind in ("truth", "removed"):
        np.testing.assert_allclose(outcome.soundness[kind], 1, rtol=1e-12)
    assert (outcome.soundness["introduced"][:, -1] < 0.99).all()


@pytest.mark.parametrize("fill", ["mean", "draw"])
def test_completeness_against_a_loop(fill):
    """Compute the completeness of the truth for one point and threshold at a time."""
    draw = generator(0, "known truth")
    x = draw.standard_normal((50, 20))
    empty = draw.standard_normal((50, 20)) if fill == "draw" else np.zeros((50, 20))
    lost = []
    for threshold in THRESHOLDS:
        wrong = 0
        for point, other in zip(x, empty, strict=True):
            votes = point * np.sign(point.sum())
            left = [
                o if v > threshold * votes.max() else p
                for p, o, v in zip(point, other, votes, strict=True)
            ]
            wrong += np.sign(sum(left)) != np.sign(point.sum())
        lost.append(wrong / 50)
    outcome = trials(1, 50, 20, fill)
    np.testing.assert_allclose(outcome.completeness["truth"][0], lost)
    finite = outcome.soundness["introduced"][np.isfinite(outcome.soundness["introduced"])]
    assert len(finite)
    assert ((finite >= 0) & (finite <= 1)).all()
    assert outcome.soundness["truth"].shape == (1, len(LEVELS))
