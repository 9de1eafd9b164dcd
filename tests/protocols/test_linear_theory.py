"""Exact results for linear models: six methods in closed form, and the best order per baseline.

These are corrected statements of Picard et al. 2024, Section 3.2 and Appendix B: integrated
gradients have no factor of one half, and for noise that is *added* the order of the gradient is
the worst, not the best.
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
    """A linear model of two classes, so that it has a target; the first is f(x) = xw + b."""

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
def test_gradient_methods_give_the_weights(case, method):
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
def test_other_methods_give_the_weights_times_the_difference_to_the_baseline(case, method, start):
    _, x, w = case
    torch.testing.assert_close(
        explain(case, method), ((x - start) * w).sum(1), rtol=1e-4, atol=1e-5
    )


GRIDS = torch.tensor(list(product([0.0, 1.0], repeat=SIDE**2)))  # (512, 9)


def test_rise_over_all_masks_of_single_pixels_has_a_closed_form(case):
    """Compare with b + ½ (xw + x_i w_i), whose order is that of x⊙w for any constant."""
    model, x, w = case
    no_shift = torch.zeros(len(GRIDS), 2, dtype=torch.long)
    all_masks = SoftMasks(
        GRIDS.reshape(-1, SIDE, SIDE), no_shift, torch.eye(SIDE), torch.eye(SIDE), (SIDE, SIDE)
    )
    maps = rise_maps(model, x, torch.zeros(len(x), dtype=torch.long), all_masks, 0.5, "logit", None)
    parts = (x * w).sum(1).double()
    torch.testing.assert_close(
        maps, BIAS + (parts.sum((1, 2), keepdim=True) + parts) / 2, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("p", [0.5, 0.2])
def test_rise_over_random_soft_masks_has_its_expected_value(case, p):
    """Check that the maps are within five standard errors of their expectation.

    With m = A g and independent g it is
    E[f(x⊙m) m_i] / p = b + p xw + (1 − p) Σ_j (A Aᵀ)_ij x_j w_j.
    """
    _, x, w = case
    count, side = 5000, linear(enlarged_side(SIDE, SIDE), SIDE, mirror=True)[:SIDE].double()
    weights_2d = torch.kron(side, side)  # (d, mask cells): weight of each mask cell in each pixel
    parts = (x * w).sum(1).double().flatten(1)
    expected = BIAS + p * parts.sum(1, keepdim=True) + (1 - p) * parts @ (weights_2d @ weights_2d.T)

    masks, probability = (
        GRIDS.double() @ weights_2d.T,
        (p**GRIDS * (1 - p) ** (1 - GRIDS)).prod(1).double(),
    )
    values = (BIAS + parts @ masks.T)[..., None] * masks / p  # (B, 512, d)
    mean = (values * probability[:, None]).sum(1)
    standard_error = (((values - mean[:, None]) ** 2 * probability[:, None]).sum(1) / count).sqrt()
    torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-5)
    maps = (
        explain(case, f"rise(masks={count}, cells={SIDE}, p={p}, score=logit)").double().flatten(1)
    )
    assert ((maps - expected).abs() < 5 * standard_error).all()


# The best order of pixels, among all 720 orders of six pixels

D, H, W = 6, 2, 3
weights, image = draw(D, seed=2).double(), draw(D, seed=3).double()
ORDERS = torch.tensor(list(permutations(range(D))))  # (720, 6): the pixel removed first, second, …
MU = 0.625  # exact in single precision


def f(x):
    return x @ weights + BIAS


def curves(fill, inserting=False):  # (720, 7): score after every step of every order
    """Replace pixel by pixel, from the image to the fill or from the fill to the image."""
    start, end = (fill, image) if inserting else (image, fill)
    x, scores = start.repeat(len(ORDERS), 1), [f(start.expand(len(ORDERS), -1))]
    for pixel in ORDERS.T:
        x[torch.arange(len(ORDERS)), pixel] = end[pixel]
        scores.append(f(x))
    return torch.stack(scores, 1)


def best(fill, inserting):
    """Return the order with the lowest sum of a deletion or the highest of an insertion curve.

    The sum is over steps 1 to d, as in the paper.
    """
    sums = curves(fill, inserting)[:, 1:].sum(1)
    winner = sums.argmax() if inserting else sums.argmin()
    assert (sums == sums[winner]).sum() == 1
    return ORDERS[winner].tolist()


def descending(values):
    return values.argsort(descending=True).tolist()


# The expected value of a removed pixel, which alone matters for a linear score, and the map that
# gives the best order.
FILLS = {
    "zero": (torch.zeros(D).double(), image * weights),
    "replaced by noise of mean μ": (torch.full((D,), MU).double(), (image - MU) * weights),
    "with noise of U[0, 1] added": (image + 0.5, -weights),
}


@pytest.mark.parametrize("inserting", [False, True], ids=["deletion", "insertion"])
@pytest.mark.parametrize("name", FILLS)
def test_every_baseline_has_the_predicted_best_order(name, inserting):
    fill, best_map = FILLS[name]
    assert best(fill, inserting) == descending(best_map)


@pytest.mark.parametrize("inserting", [False, True], ids=["deletion", "insertion"])
def test_the_order_of_the_gradient_is_the_worst_if_noise_is_added(inserting):
    sums = curves(image + 0.5, inserting)[:, 1:].sum(1)
    worst = sums.argmin() if inserting else sums.argmax()
    assert ORDERS[worst].tolist() == descending(weights)


@pytest.mark.parametrize("inserting", [False, True], ids=["deletion", "insertion"])
def test_added_noise_of_mean_zero_gives_all_orders_the_same_sum(inserting):
    sums = curves(image, inserting)[:, 1:].sum(1)
    torch.testing.assert_close(sums, (D * f(image)).expand_as(sums))


def test_sums_of_curves_equal_their_closed_forms():
    """Compare with d f(x) − Σ_i (d − i + 1) (x − x')_{u_i} w_{u_i} for a deletion with fill x'."""
    steps = torch.arange(D, 0, -1).double()
    for fill, _ in FILLS.values():
        drops = ((image - fill) * weights)[ORDERS]
        torch.testing.assert_close(curves(fill)[:, 1:].sum(1), D * f(image) - drops @ steps)
        torch.testing.assert_close(curves(fill, True)[:, 1:].sum(1), D * f(fill) + drops @ steps)


@pytest.mark.parametrize("inserting", [False, True], ids=["deletion", "insertion"])
@pytest.mark.parametrize("name", FILLS)
def test_the_trapezoidal_area_ranks_orders_as_the_sum_does(name, inserting):
    """The two differ by the ends of the curve, which do not depend on the order."""
    scores = curves(FILLS[name][0], inserting)
    differences = D * F.auc(scores) - scores[:, 1:].sum(1)
    torch.testing.assert_close(differences, differences[:1].expand_as(differences))


def maps_of(orders):  # (n, d) -> (n, H, W): larger values are removed first
    return (
        torch.empty(orders.shape)
        .scatter_(1, orders, torch.arange(D, 0, -1.0).expand_as(orders))
        .reshape(-1, H, W)
    )


@pytest.mark.parametrize(
    ("baseline", "fill"),
    [
        ("zero", torch.zeros(D).double()),
        (f"uniform({MU}, {MU})", torch.full((D,), MU).double()),
        (f"additive-uniform({MU}, {MU})", image + MU),
    ],
)
def test_removal_curves_equal_the_theory(baseline, fill):
    x = image.reshape(1, 1, H, W).expand(factorial(D), -1, -1, -1)
    target = torch.zeros(len(x), dtype=torch.long)
    fractions = [i / D for i in range(D + 1)]
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


@pytest.mark.parametrize(
    "order", [descending(weights), descending(-weights)], ids=["worst", "best"]
)
def test_added_noise_gives_the_expected_sum_of_the_theory(order):
    """Descending weights, the order of saliency, have the largest expected sum, not the least."""
    draws = 4000
    sums = F.removal_curve(
        lambda batch: f(batch.flatten(1))[:, None],
        image.reshape(1, 1, H, W).expand(draws, -1, -1, -1),
        torch.zeros(draws, dtype=torch.long),
        maps_of(torch.tensor([order])).expand(draws, -1, -1),
        [i / D for i in range(1, D + 1)],
        baseline="additive-uniform",
        batch_size=4096,
    ).sum(1)
    expected = D * f(image) + 0.5 * (weights[order] @ torch.arange(D, 0, -1).double())
    assert abs(sums.mean() - expected) < 5 * sums.std() / draws**0.5
    noise_mean_sums = curves(image + 0.5)[:, 1:].sum(1)
    end = noise_mean_sums.max() if order == descending(weights) else noise_mean_sums.min()
    torch.testing.assert_close(expected, end)


def test_an_identical_baseline_removes_nothing():
    torch.testing.assert_close(F.auc(curves(image)), f(image).expand(len(ORDERS)))


@pytest.mark.parametrize("group", [2, 3])
def test_coarse_steps_determine_the_best_order_up_to_the_order_within_a_step(group):
    fill, best_map = FILLS["zero"]
    sums = curves(fill)[:, ::group].sum(1)
    winners = ORDERS[sums < sums.min() + 1e-9]
    assert len(winners) == factorial(group) ** (D // group)
    best_groups = [set(descending(best_map)[i : i + group]) for i in range(0, D, group)]
    assert all(
        [set(order[i : i + group]) for i in range(0, D, group)] == best_groups
        for order in winners.tolist()
    )


def test_any_increasing_function_of_the_best_map_gives_the_best_order():
    parts = image * weights
    for function in (lambda v: v**3, torch.exp, lambda v: 2 * v - 9):
        assert descending(function(parts)) == descending(parts) == best(FILLS["zero"][0], False)
    assert np.unique(parts).size == D
