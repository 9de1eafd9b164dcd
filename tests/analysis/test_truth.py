"""Known truth: a slow second look at completeness in one trial, and what must be so whatever is drawn."""

import numpy as np
import pytest

from heatproof.analysis.truth import LEVELS, THRESHOLDS, trials
from heatproof.tensor.noise import generator


@pytest.fixture(scope="module")
def found():
    return trials(3, points=300, features=100)


def test_what_lacks_something_is_less_complete(found):
    """Whatever is taken out votes for the label."""
    assert (found.completeness["removed"] <= found.completeness["truth"]).all()
    assert found.completeness["removed"].mean() < found.completeness["truth"].mean()
    assert (np.diff(found.completeness["truth"], axis=1) >= 0).all()


def test_what_votes_for_the_label_is_sound(found):
    for kind in ("truth", "removed"):
        np.testing.assert_allclose(found.soundness[kind], 1, rtol=1e-12)
    assert (found.soundness["introduced"][:, -1] < 0.99).all()


@pytest.mark.parametrize("fill", ["mean", "draw"])
def test_one_by_one(fill):
    """Completeness of the truth, a point and a threshold at a time."""
    draw = generator(0, "known truth")
    x = draw.standard_normal((50, 20))
    empty = draw.standard_normal((50, 20)) if fill == "draw" else np.zeros((50, 20))
    lost = []
    for share in THRESHOLDS:
        wrong = 0
        for point, other in zip(x, empty, strict=True):
            votes = point * np.sign(point.sum())
            left = [
                o if v > share * votes.max() else p
                for p, o, v in zip(point, other, votes, strict=True)
            ]
            wrong += np.sign(sum(left)) != np.sign(point.sum())
        lost.append(wrong / 50)
    found = trials(1, 50, 20, fill)
    np.testing.assert_allclose(found.completeness["truth"][0], lost)
    known = found.soundness["introduced"][np.isfinite(found.soundness["introduced"])]
    assert len(known)
    assert ((known >= 0) & (known <= 1)).all()
    assert found.soundness["truth"].shape == (1, len(LEVELS))
