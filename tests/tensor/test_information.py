import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heatproof.functional as F
from heatproof.tensor.information import INFORMATION


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_measures_equal_those_of_scipy_and_numpy():
    logits = 3 * draw(4, 6, 10)
    values = logits.double().numpy()
    p = scipy.special.softmax(values, -1)
    expected = {
        "mean-sigmoid": scipy.special.expit(values).mean(-1),
        "negentropy": np.log(10) - scipy.stats.entropy(p, axis=-1),
        "mean-logit": values.mean(-1),
        "energy": (values**2).mean(-1),
        "logit-variance": ((values - values.mean(-1, keepdims=True)) ** 2).mean(-1),
    }
    assert expected.keys() == INFORMATION.keys()
    for name, measure in INFORMATION.items():
        np.testing.assert_allclose(measure(logits), expected[name], rtol=1e-12)
    np.testing.assert_allclose(
        F.negentropy(logits), scipy.special.rel_entr(p, 0.1).sum(-1), rtol=1e-10
    )  # KL from uniform


@pytest.mark.parametrize("shift", [-7.0, 0.5, 100.0])
def test_a_constant_added_to_all_logits_changes_only_the_papers_measures(shift):
    logits = draw(5, 10).double()
    for measure in (F.negentropy, F.logit_variance):
        torch.testing.assert_close(measure(logits + shift), measure(logits), rtol=1e-10, atol=1e-10)
    for measure in (F.mean_sigmoid, F.mean_logit):
        assert ((measure(logits + shift) - measure(logits)) * np.sign(shift) > 0.05).all()
    energy = F.logit_variance(logits) + (F.mean_logit(logits) + shift) ** 2
    torch.testing.assert_close(F.energy(logits + shift), energy)


def test_uniform_and_certain_predictions_have_extreme_values():
    uniform, certain = torch.full((10,), 3.0), torch.tensor([0.0] + [-torch.inf] * 9)
    assert F.negentropy(uniform) == pytest.approx(0, abs=1e-12) and F.negentropy(uniform) >= 0
    assert F.logit_variance(uniform) == 0
    assert F.mean_sigmoid(torch.zeros(10)) == 0.5
    assert F.negentropy(certain) == pytest.approx(np.log(10))


ramp = torch.linspace(0, 1, 11)


@pytest.mark.parametrize(
    ("curve", "fraction"),
    [
        (
            ramp,
            9 / 11,
        ),  # 0.8 of 5.5 is 4.4; the sums are 0, .1, .3, .6, 1, 1.5, 2.1, 2.8, 3.6, 4.5, 5.5
        (5 + 3 * ramp, 9 / 11),  # stretched
        (1 - torch.exp(-5 * ramp), 9 / 11),
        (1 - ramp, 5 / 11),  # 1, 1.9, 2.7, 3.4, 4, 4.5
        ((ramp < 0.05).float(), 0),
        ((ramp > 0.95).float(), 10 / 11),
        (torch.tensor([1.0] * 10 + [0.0]), 7 / 11),  # 8 of 10
        (torch.full((11,), 2.0), np.nan),
        (ramp.where(ramp != 1, np.nan), np.nan),
    ],
)
def test_where_four_fifths_of_the_area_are_reached(curve, fraction):
    assert F.area_reached(curve) == pytest.approx(fraction, nan_ok=True)
    assert F.area_reached(torch.stack([curve, ramp])).tolist() == pytest.approx(
        [fraction, 9 / 11], nan_ok=True
    )


@pytest.mark.parametrize("fraction", [0.5, 0.8])
def test_the_area_reached_by_monotonic_curves(fraction):
    """A rising curve needs at least that fraction of its points, a falling one at most."""
    steps = torch.rand(500, 20, generator=torch.Generator().manual_seed(0)) ** 8
    rising = steps.cumsum(1)
    last = F.area_reached(rising, fraction) + 1 / 20
    assert (last >= fraction).all()
    assert (F.area_reached(rising.flip(1), fraction) <= fraction).all()


def test_the_fraction_of_the_area_that_is_out_of_domain():
    distance = ramp.expand(3, -1)
    curves = torch.stack([(ramp - 0.5).abs(), ramp, 1 - ramp])
    areas = F.area_beyond(curves, distance, 0.45)
    # Trapezoidal weights 1 … 1 ½ from the point .5 on: .1 + … + .4 + ½ · .5 = 1.25 of 2.5,
    # .5 + … + .9 + ½ = 4 of 5, and .5 + … + .1 = 1.5 of 5.
    assert areas.tolist() == pytest.approx([0.5, 0.8, 0.3])
    assert F.area_beyond(curves, distance, -1.0).tolist() == pytest.approx([1, 1, 1])
    assert F.area_beyond(curves, distance, 1.0).tolist() == [0, 0, 0]  # beyond, not at
    assert F.area_beyond(
        curves, distance, torch.tensor([[0.45], [2.0], [-1.0]])
    ).tolist() == pytest.approx([0.5, 0, 1])
    assert F.area_beyond(torch.full((11,), 2.0), ramp, 0.5).isnan()
    assert F.area_beyond(ramp.where(ramp != 1, np.nan), ramp, 0.5).isnan()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shift=st.floats(-100, 100),
    scale=st.floats(0.01, 100),
    threshold=st.floats(0, 1),
)
def test_the_area_out_of_domain_depends_on_neither_shift_nor_scale(seed, shift, scale, threshold):
    curve = draw(4, 11, seed=seed).double()
    distance = torch.rand(4, 11, generator=torch.Generator().manual_seed(seed))
    area = F.area_beyond(curve, distance, threshold)
    assert ((area >= 0) & (area <= 1 + 1e-12)).all()
    torch.testing.assert_close(F.area_beyond(scale * curve + shift, distance, threshold), area)
