"""Linear models: six methods in closed form, and the best order of pixels for each baseline.

These are corrected statements of Picard et al. 2024, Section 3.2 and Appendix B: integrated
gradients have no factor of one half, and the gradient's order is the worst, not the best, for noise
that is *added*.
"""

from itertools import permutations, product
from math import factorial

import numpy as np
import pytest
import torch
from torch import nn

import heatproof as hp
import heatproof.functional as F
from heatproof.methods.perturbation import SoftMasks, enlarged_side, rise_maps
from heatproof.tensor.resample import linear

SIDE, BIAS, START = 3, 0.7, 0.25


def draw(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Linear(nn.Module):
    """Two classes, so that a target can be named; the first is f(x) = xw + b."""

    def __init__(self, channels):
        super().__init__()
        self.layer = nn.Linear(channels * SIDE**2, 2)
        with torch.no_grad():
            self.layer.weight.copy_(draw(2, channels * SIDE**2, seed=0))
            self.layer.bias.fill_(BIAS)

    def forward(self, x):
        return self.layer(x.flatten(1))


@pytest.fixture(scope="module", params=[1, 3])
def case(request):
    channels = request.param
    model = hp.Model(
        Linear(channels).eval(), size=SIDE, mean=[0.0] * channels, std=[1.0] * channels
    )
    w = model.module.layer.weight[0].detach().reshape(channels, SIDE, SIDE)
    return model, draw(4, channels, SIDE, SIDE, seed=1), w


def explain(case, method):
    model, x, _ = case
    return hp.explain(model, x, 0, method)


@pytest.mark.parametrize("method", ["saliency(reduce=sum)", "smoothgrad(reduce=sum)"])
def test_gradients_are_the_weights(case, method):
    _, x, w = case
    torch.testing.assert_close(
        explain(case, method), w.sum(0).expand(len(x), -1, -1), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("method", "start"),
    [
        ("ixg", 0),
        ("ig", 0),
        ("ig(steps=1)", 0),
        (f"ig(baseline='uniform({START}, {START})')", START),
        ("occlusion(size=1, stride=1)", 0),
        (f"occlusion(size=1, stride=1, baseline='uniform({START}, {START})')", START),
    ],
)
def test_the_others_are_the_weights_times_the_way_from_the_baseline(case, method, start):
    _, x, w = case
    torch.testing.assert_close(
        explain(case, method), ((x - start) * w).sum(1), rtol=1e-4, atol=1e-5
    )


GRIDS = torch.tensor(list(product([0.0, 1.0], repeat=SIDE**2)))  # (512, 9)


def test_rise_over_all_masks_of_single_pixels(case):
    """b + ½ (xw + x_i w_i): the order of x⊙w, whatever the constant."""
    model, x, w = case
    none = torch.zeros(len(GRIDS), 2, dtype=torch.long)
    every = SoftMasks(
        GRIDS.reshape(-1, SIDE, SIDE), none, torch.eye(SIDE), torch.eye(SIDE), (SIDE, SIDE)
    )
    found = rise_maps(model, x, torch.zeros(len(x), dtype=torch.long), every, 0.5, "logit", None)
    parts = (x * w).sum(1).double()
    torch.testing.assert_close(
        found, BIAS + (parts.sum((1, 2), keepdim=True) + parts) / 2, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("p", [0.5, 0.2])
def test_rise_over_random_soft_masks(case, p):
    """With m = A g and independent g, E[f(x⊙m) m_i] / p = b + p xw + (1 − p) Σ_j (A Aᵀ)_ij x_j w_j.

    Maps agree within five standard errors.
    """
    _, x, w = case
    count, side = 5000, linear(enlarged_side(SIDE, SIDE), SIDE, mirror=True)[:SIDE].double()
    both = torch.kron(side, side)  # (d, cells): what each pixel has of each cell
    parts = (x * w).sum(1).double().flatten(1)
    expected = BIAS + p * parts.sum(1, keepdim=True) + (1 - p) * parts @ (both @ both.T)

    masks, chance = GRIDS.double() @ both.T, (p**GRIDS * (1 - p) ** (1 - GRIDS)).prod(1).double()
    values = (BIAS + parts @ masks.T)[..., None] * masks / p  # (B, 512, d)
    mean = (values * chance[:, None]).sum(1)
    error = (((values - mean[:, None]) ** 2 * chance[:, None]).sum(1) / count).sqrt()
    torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-5)
    found = (
        explain(case, f"rise(masks={count}, cells={SIDE}, p={p}, score=logit)").double().flatten(1)
    )
    assert ((found - expected).abs() < 5 * error).all()


# Which order of the pixels is the best: all 720 orders of six.

D, H, W = 6, 2, 3
weights, image = draw(D, seed=2).double(), draw(D, seed=3).double()
ORDERS = torch.tensor(
    list(permutations(range(D)))
)  # (720, 6): the pixel that goes first, second, …
MU = 0.625  # exact in single precision


def f(x):
    return x @ weights + BIAS


def curves(fill, inserting=False):  # (720, 7): the score as every order goes along
    """Pixel by pixel, from the image to the fill or from the fill to the image."""
    start, end = (fill, image) if inserting else (image, fill)
    x, found = start.repeat(len(ORDERS), 1), [f(start.expand(len(ORDERS), -1))]
    for pixel in ORDERS.T:
        x[torch.arange(len(ORDERS)), pixel] = end[pixel]
        found.append(f(x))
    return torch.stack(found, 1)


def best(fill, inserting):
    """Return the order with the lowest sum of a deletion curve or the highest of an insertion one.

    Steps are from 1 to d, as in the paper.
    """
    sums = curves(fill, inserting)[:, 1:].sum(1)
    winner = sums.argmax() if inserting else sums.argmin()
    assert (sums == sums[winner]).sum() == 1
    return ORDERS[winner].tolist()


def descending(values):
    return values.argsort(descending=True).tolist()


# What a removed pixel becomes in expectation, which is all that counts for a linear score, and the
# values whose descending order is the best.
FILLS = {
    "zero": (torch.zeros(D).double(), image * weights),
    "replaced by noise of mean μ": (torch.full((D,), MU).double(), (image - MU) * weights),
    "with noise of U[0, 1] added": (image + 0.5, -weights),
}


@pytest.mark.parametrize("inserting", [False, True], ids=["deletion", "insertion"])
@pytest.mark.parametrize("name", FILLS)
def test_the_best_order_of_every_baseline(name, inserting):
    fill, by = FILLS[name]
    assert best(fill, inserting) == descending(by)


@pytest.mark.parametrize("inserting", [False, True], ids=["deletion", "insertion"])
def test_the_gradients_order_is_the_worst_where_noise_is_added(inserting):
    sums = curves(image + 0.5, inserting)[:, 1:].sum(1)
    worst = sums.argmin() if inserting else sums.argmax()
    assert ORDERS[worst].tolist() == descending(weights)


@pytest.mark.parametrize("inserting", [False, True], ids=["deletion", "insertion"])
def test_noise_of_mean_zero_that_is_added_makes_all_orders_alike(inserting):
    sums = curves(image, inserting)[:, 1:].sum(1)
    torch.testing.assert_close(sums, (D * f(image)).expand_as(sums))


def test_closed_forms_of_the_sums():
    """d f(x) − Σ_i (d − i + 1) (x − x')_{u_i} w_{u_i} for a deletion with fills x'."""
    steps = torch.arange(D, 0, -1).double()
    for fill, _ in FILLS.values():
        drops = ((image - fill) * weights)[ORDERS]
        torch.testing.assert_close(curves(fill)[:, 1:].sum(1), D * f(image) - drops @ steps)
        torch.testing.assert_close(curves(fill, True)[:, 1:].sum(1), D * f(fill) + drops @ steps)


@pytest.mark.parametrize("inserting", [False, True], ids=["deletion", "insertion"])
@pytest.mark.parametrize("name", FILLS)
def test_the_trapezoid_orders_as_the_sum_does(name, inserting):
    """They differ by the two ends of the curve, which no order changes."""
    found = curves(FILLS[name][0], inserting)
    differences = D * F.auc(found) - found[:, 1:].sum(1)
    torch.testing.assert_close(differences, differences[:1].expand_as(differences))


def maps_of(orders):  # (n, d) -> (n, H, W): the larger the sooner
    return (
        torch.empty(orders.shape)
        .scatter_(1, orders, torch.arange(D, 0, -1.0).expand_as(orders))
        .reshape(-1, H, W)
    )


@pytest.mark.parametrize(("baseline", "fill"), [("zero", 0.0), (f"uniform({MU}, {MU})", MU)])
def test_removal_curves_are_those_of_the_theory(baseline, fill):
    x = image.reshape(1, 1, H, W).expand(factorial(D), -1, -1, -1)
    target, fractions, fill = (
        torch.zeros(len(x), dtype=torch.long),
        [i / D for i in range(D + 1)],
        torch.full((D,), fill).double(),
    )
    arguments = {"baseline": baseline, "batch_size": 1024}
    deleted = F.removal_curve(
        lambda batch: f(batch.flatten(1))[:, None],
        x,
        target,
        maps_of(ORDERS),
        fractions,
        **arguments,
    )
    torch.testing.assert_close(deleted, curves(fill))
    kept = F.removal_curve(
        lambda batch: f(batch.flatten(1))[:, None],
        x,
        target,
        maps_of(ORDERS),
        fractions,
        "least",
        **arguments,
    )
    torch.testing.assert_close(kept.flip(1), curves(fill, inserting=True))


def test_an_identical_baseline_removes_nothing():
    torch.testing.assert_close(F.auc(curves(image)), f(image).expand(len(ORDERS)))


@pytest.mark.parametrize("group", [2, 3])
def test_with_coarse_steps_the_best_order_is_the_best_up_to_the_order_within_a_step(group):
    fill, by = FILLS["zero"]
    sums = curves(fill)[:, ::group].sum(1)
    winners = ORDERS[sums < sums.min() + 1e-9]
    assert len(winners) == factorial(group) ** (D // group)
    theirs = [set(descending(by)[i : i + group]) for i in range(0, D, group)]
    assert all(
        [set(order[i : i + group]) for i in range(0, D, group)] == theirs
        for order in winners.tolist()
    )


def test_any_increasing_function_of_the_best_map_is_as_good():
    parts = image * weights
    for function in (lambda v: v**3, torch.exp, lambda v: 2 * v - 9):
        assert descending(function(parts)) == descending(parts) == best(FILLS["zero"][0], False)
    assert np.unique(parts).size == D
