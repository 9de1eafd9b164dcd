"""Perturbation methods against closed forms, Captum, and slower versions of themselves."""

import copy
from itertools import product

import captum.attr
import numpy as np
import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.methods import Expression
from heatproof.methods.extremal import Bumps, at_level, blurred, largest
from heatproof.methods.perturbation import SoftMasks, windows
from heatproof.methods.surrogates import (
    all_coalitions,
    dependence,
    drawn_coalitions,
    ridge,
    shapley_kernel,
    sobol_sequence,
)
from heatproof.tensor.noise import Rng
from heatproof.tensor.resample import cubic, linear, nearest

SHORT = [
    "occlusion",
    "rise(masks=40)",
    "rise-u(masks=40)",
    "rise(masks=40, compat=xplique)",
    "lime(masks=150)",
    "kernelshap(masks=150)",
    "sobol(designs=4, cells=4)",
    "hsic(masks=64)",
    "extremal(steps=6, areas=[0.1, 0.3])",
]
ROUNDING = 2e-6  # of the largest value, between batch sizes


@pytest.fixture(scope="module")
def bird():
    from heatproof.data.catalog import load_batch

    model = hp.load_model("paperbirds/resnet")
    batch = load_batch(hp.load_data("paperbirds:test", model, limit=4), range(4), model)
    return model, batch.x, torch.tensor(batch.labels)


@pytest.fixture(scope="module")
def additive():
    """A linear model of 16 px: f(x) = Σ w x + b."""
    torch.manual_seed(0)
    return hp.Model(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4)), size=16)


def worth(model, x, target, cells):
    """Of each cell of a linear model: Σ w x over its pixels, spread over them."""
    parts = (x * model.module[1].weight[target].detach().reshape(x.shape)).sum(1)
    side = x.shape[-1] // cells
    sums = parts.reshape(len(x), cells, side, cells, side).sum((2, 4))
    return sums.repeat_interleave(side, 1).repeat_interleave(side, 2)


def close(ours, theirs, within=1e-5):
    assert (ours - theirs).abs().max() <= within * theirs.abs().max()


# All of them


@pytest.mark.parametrize("method", SHORT)
def test_neighbours_order_and_batch_size_do_not_matter(bird, method):
    model, x, target = bird
    whole = hp.explain(model, x, target, method, ids="abcd", seed=3)
    assert torch.equal(whole, hp.explain(model, x, target, method, ids="abcd", seed=3))
    for size in (7, 64):
        with model.passes.batches_of(size):
            several = hp.explain(model, x, target, method, ids="abcd", seed=3)
            assert torch.equal(
                several[[2, 0]],
                hp.explain(model, x[[2, 0]], target[[2, 0]], method, ids="ca", seed=3),
            )
            close(
                several,
                whole,
                1e-4 if "extremal" in method else 5 * ROUNDING if "sobol" in method else ROUNDING,
            )


@pytest.mark.parametrize("method", ["rise", "rise-u", "lime", "kernelshap"])
def test_noise_comes_from_the_seed(additive, method):
    x, target = torch.randn(2, 3, 16, 16), [0, 1]
    one, same, other = (
        hp.explain(additive, x, target, f"{method}(masks=130)", seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.allclose(one, other, rtol=1e-3)


@pytest.mark.parametrize("method", SHORT)
def test_the_network_is_left_as_it_was(method):
    from heatproof.models.guards import assert_unchanged

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    model, x = hp.Model(net.train(), size=32), torch.randn(2, 3, 32, 32)
    kept = x.clone()
    with assert_unchanged(net):
        hp.explain(model, x, [0, 1], method)
    assert net.training
    assert torch.equal(x, kept)
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        ("occlusion", 5**2 + 1),
        ("rise(masks=30)", 30),
        ("lime(masks=30)", 30),
        ("kernelshap(masks=130)", 132),
        ("kernelshap(cells=2)", 16),
        ("sobol(designs=4)", 4 * 65),
        ("hsic(masks=30)", 30),
        ("extremal(steps=4, areas=[0.1, 0.2])", 6),
    ],
)
def test_costs_are_what_is_told(method, passes):
    model = hp.Model(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4)), size=32)
    model.pass_counts.clear()
    hp.explain(model, torch.randn(2, 3, 32, 32), [0, 1], method)
    assert sum(model.pass_counts.values()) == 2 * passes
    told = Expression.parse(method).cost
    assert sum(told) == (29**2 + 1 if method == "occlusion" else passes)  # told for 224 px


@pytest.mark.parametrize("method", [m for m in SHORT if "extremal" not in m])
def test_memory_is_bounded_by_the_batch_size(additive, method):
    seen, whole = [], additive.module.forward
    additive.module.forward = lambda x: (seen.append(len(x)), whole(x))[1]
    additive.batch_size = 5
    try:
        hp.explain(
            additive,
            torch.randn(3, 3, 16, 16),
            [0, 1, 2],
            method.replace("occlusion", "occlusion(4)"),
        )
    finally:
        del additive.module.forward
        additive.batch_size = 64
    assert max(seen, default=0) <= 5


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("occlusion(size=0)", "size: found 0; input should be greater than or equal to 1"),
        ("occlusion(size=40)", "a window of 40 px covers all of input, 16×16; give a smaller size"),
        ("occlusion(size=17, compat=xplique)", "a window of 17 px covers all"),
        ("occlusion(size=2, stride=3)", "stride=3 leaves gaps between windows of 2 px"),
        ("occlusion(compat=captum)", "compat: found 'captum'; input should be 'xplique'"),
        ("rise(p=0)", "p: found 0; input should be greater than 0"),
        ("rise(masks=0)", "masks: found 0"),
        ("rise(score=probability)", "input should be 'logit', 'softmax' or 'logprob'"),
        ("rise(baseline=blurr)", 'unknown baseline "blurr"; did you mean blur'),
        ("lime(cells=17)", "cells=17: a map of 16×16 has at most 16 along a side"),
        ("lime(alpha=-1)", "alpha: found -1"),
        ("kernelshap(masks=100)", "64 cells need at least 128 masks; got masks=100"),
        ("sobol(designs=1)", "designs: found 1"),
        ("hsic(cells=1)", "cells: found 1"),
        ("extremal(areas=[])", "areas is empty"),
        ("extremal(areas=[1.5])", "areas: found"),
        ("extremal(steps=0)", "steps: found 0"),
    ],
)
def test_bad_arguments_are_told(additive, method, message):
    with pytest.raises(HeatproofError, match=message):
        hp.explain(additive, torch.randn(2, 3, 16, 16), [0, 1], method)


def test_baselines_are_for_images(bird):
    model, x, target = bird
    close(
        hp.explain(model, x, target, "occlusion(baseline='uniform(0, 0)')"),
        hp.explain(model, x, target, "occlusion"),
        1e-5,
    )
    with pytest.raises(
        HeatproofError, match="removed features become zero; baseline=blur is for images"
    ):
        hp.explain(model, x, target, "occlusion(baseline=blur)@middle")


# Occlusion


def test_windows_are_as_many_as_the_paper_counts():
    assert [len(windows(448, 16, 8)), len(windows(56, 5, 2)), len(windows(28, 5, 2))] == [
        57,
        29,
        15,
    ]
    for side, size, stride in product((7, 16, 31), (1, 2, 3, 4, 5, 6), (1, 2, 3)):
        if stride <= size:
            assert windows(side, size, stride).any(0).all(), (side, size, stride)


@pytest.mark.parametrize(("size", "stride"), [(4, 2), (5, 2), (3, 3)])
def test_occlusion_of_a_linear_model(additive, size, stride):
    """Window by window: the sum of w x inside, over the pixels inside."""
    x, target = torch.randn(3, 3, 16, 16), torch.tensor([0, 1, 2])
    parts, expected = worth(additive, x, target, 16), torch.zeros(3, 16, 16)
    starts = (
        range(-(size // 2), 17, stride)
        if size % 2
        else range(-(size // stride - 1) * stride, 16, stride)
    )
    for top, left in product(starts, starts):
        place = (
            slice(None),
            slice(max(top, 0), max(top + size, 0)),
            slice(max(left, 0), max(left + size, 0)),
        )
        if parts[place].numel():
            expected[place] += parts[place].mean((1, 2), keepdim=True)
    close(hp.explain(additive, x, target, f"occlusion({size}, {stride})"), expected)


@pytest.mark.parametrize("score", ["logit", "softmax"])
def test_captum_agrees_on_occlusion_where_windows_tile_the_image(bird, score):
    model, x, target = bird
    after = {"logit": lambda z: z, "softmax": lambda z: z.softmax(1)}[score]
    theirs = captum.attr.Occlusion(lambda batch: after(model.module(batch))).attribute(
        x, (3, 8, 8), (3, 8, 8), target=target
    )[:, 0]
    close(hp.explain(model, x, target, f"occlusion(8, 8, compat=xplique, score={score})"), theirs)


# RISE


def test_interpolation_as_matrices():
    grid = torch.randn(1, 1, 5, 5)
    matrix = linear(17, 5)
    torch.testing.assert_close(
        matrix @ grid[0, 0] @ matrix.T,
        nn.functional.interpolate(grid, (17, 17), mode="bilinear")[0, 0],
    )
    assert nearest(7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]
    for matrix in (
        linear(23, 4),
        linear(23, 4, mirror=True),
        cubic(23, 4),
        linear(9, 1, mirror=True),
    ):
        torch.testing.assert_close(matrix.sum(1), torch.ones(len(matrix)))
    line = cubic(40, 10) @ torch.arange(10.0)
    torch.testing.assert_close(
        line[8:32].diff(), torch.full((23,), 0.25)
    )  # a straight line stays one, away from the ends


def test_rise_masks_are_crops_of_an_enlarged_grid():
    masks = SoftMasks.draw(Rng(0, ["0"]), torch.zeros(1, 3, 20, 12), 500, 8, 0.3, None)
    drawn = masks(torch.arange(500))
    assert drawn.shape == (500, 20, 12)
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert abs(drawn.mean() - 0.3) < 0.02
    assert masks.offsets[:, 0].unique().tolist() == [0, 1, 2]
    assert masks.offsets[:, 1].unique().tolist() == [0, 1]


@pytest.mark.parametrize("compat", [None, "xplique"])
def test_rise_by_the_definition(bird, compat):
    model, x, target = bird
    ours = hp.explain(
        model,
        x,
        target,
        f"rise(masks=30, p=0.4, baseline='uniform(2, 2)', compat={compat})",
        seed=4,
    )
    masks = SoftMasks.draw(Rng(4, ["0"]), x, 30, 8, 0.4, compat)(torch.arange(30))
    for i in range(2):
        scores = model.logits(x[i] * masks[:, None] + 2 * (1 - masks[:, None])).softmax(1)[
            :, target[i]
        ]
        total = (scores[:, None, None] * masks).sum(0)
        close(ours[i], total / (masks.sum(0) if compat else 30 * 0.4))


def test_rise_u_is_over_one_image_for_all(additive):
    """Where a mask keeps nothing, all samples are the same: the noise image."""
    x = torch.randn(2, 3, 16, 16)
    noise = 2 * Rng(5, [""]).once("rise-u", (3, 16, 16)) - 1
    assert noise.min() < -0.9 < 0.9 < noise.max()
    maps = hp.explain(additive, noise.expand(2, 3, 16, 16), [1, 1], "rise-u(masks=50)", seed=5)
    masks = SoftMasks.draw(Rng(5, ["0"]), x, 50, 8, 0.1, None)(torch.arange(50)).sum(0)
    close(maps, (masks / 5 * additive.logits(noise[None]).softmax(1)[0, 1]).expand(2, 16, 16))


# Cells


@pytest.mark.parametrize(
    "method",
    [
        "lime(alpha=0, masks=300)",
        "lime(alpha=0, cells=4, masks=60)",
        "kernelshap",
        "kernelshap(cells=4)",
    ],
)
def test_surrogates_of_a_linear_model_are_its_own_coefficients(additive, method):
    x, target = torch.randn(3, 3, 16, 16), torch.tensor([0, 1, 2])
    close(
        hp.explain(additive, x, target, method),
        worth(additive, x, target, 4 if "cells=4" in method else 8),
    )


def test_ridge_is_weighted_least_squares():
    """As least squares with a row more for each coefficient's penalty."""
    torch.manual_seed(0)
    masks, scores, weights = (
        torch.rand(40, 5) < 0.5,
        torch.randn(2, 40).double(),
        torch.rand(40).double(),
    )
    design = np.column_stack([np.ones(40), masks.double()]) * weights.sqrt().numpy()[:, None]
    penalty = np.column_stack([np.zeros(5), np.eye(5)]) * np.sqrt(3)
    for row, ours in zip(scores, ridge(masks, scores, weights, 3.0), strict=True):
        right = np.concatenate([row * weights.sqrt(), np.zeros(5)])
        expected = np.linalg.lstsq(np.vstack([design, penalty]), right, rcond=None)[0][1:]
        np.testing.assert_allclose(ours, expected, atol=1e-12)


def test_lime_by_the_definition(bird):
    model, x, target = bird
    ours = hp.explain(model, x[:1], target[:1], "lime(masks=100, cells=2)")
    kept = Rng(0, ["0"]).once("lime", (100, 4)) < 0.5
    kept[0] = True
    images = x[:1] * kept.reshape(100, 1, 2, 2).float().repeat_interleave(32, 2).repeat_interleave(
        32, 3
    )
    scores = model.logits(images)[:, target[0]].double()
    cosine = kept.sum(1) / (kept.sum(1).sqrt() * 2).clamp(min=1e-9)
    weights = torch.exp(-((1 - cosine.double()) ** 2) / 0.25**2).sqrt()
    expected = (
        ridge(kept, scores[None], weights, 1.0)
        .reshape(2, 2)
        .repeat_interleave(32, 0)
        .repeat_interleave(32, 1)
    )
    close(ours[0], expected)


@pytest.mark.parametrize("score", ["logit", "softmax"])
def test_kernelshap_is_exact_where_all_coalitions_are_seen(bird, score):
    """Against Captum, which goes through all orders of the four cells."""
    model, x, target = bird
    after = {"logit": lambda z: z, "softmax": lambda z: z.softmax(1)}[score]
    halves = torch.arange(64) // 32
    cells = (2 * halves[:, None] + halves).repeat(1, 3, 1, 1)
    theirs = captum.attr.ShapleyValues(lambda batch: after(model(batch).detach()))
    close(
        hp.explain(model, x, target, f"kernelshap(cells=2, score={score})"),
        theirs.attribute(x, target=target, feature_mask=cells)[:, 0],
    )


def test_kernelshap_is_efficient(bird):
    model, x, target = bird
    sums = hp.explain(model, x, target, "kernelshap(masks=150)")[:, 4::8, 4::8].sum((1, 2))
    difference = (model.logits(x) - model.logits(torch.zeros_like(x))).gather(1, target[:, None])[
        :, 0
    ]
    close(sums, difference)


def test_coalitions():
    coalitions, weights = all_coalitions(5)
    assert len(coalitions) == 30
    assert coalitions.int().unique(dim=0).shape == (30, 5)
    assert not (coalitions.all(1) | ~coalitions.any(1)).any()
    for size in range(1, 5):
        assert weights[coalitions.sum(1) == size].sum() == pytest.approx(
            shapley_kernel(5)[size - 1].item()
        )
    drawn, _ = drawn_coalitions(Rng(0, ["0"]), 16, 4001)
    assert torch.equal(drawn[1:4000:2], ~drawn[:4000:2])
    sizes = torch.bincount(drawn.sum(1), minlength=17)
    assert sizes[0] == sizes[16] == 0
    np.testing.assert_allclose(sizes[1:16] / 4001, shapley_kernel(16), atol=0.025)


def test_sobol_indices_of_a_linear_model_are_shares_of_variance(additive):
    x, target = torch.randn(2, 3, 16, 16), torch.tensor([0, 1])
    maps = hp.explain(additive, x, target, "sobol(designs=512, cells=2, compat=xplique)")
    shares = worth(additive, x, target, 2)[:, ::8, ::8].flatten(1) ** 2
    up = cubic(16, 2)
    expected = up @ (shares / shares.sum(1, keepdim=True)).reshape(2, 2, 2) @ up.T
    close(maps, expected, 0.02)


def test_hsic_is_the_trace_of_its_matrices():
    masks = sobol_sequence(50, 4) > 0.5
    scores = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).double()
    centre = np.eye(50) - 1 / 50
    for row, ours in zip(scores.numpy(), dependence(masks, scores).numpy(), strict=True):
        distance = np.abs(row[:, None] - row)
        output = np.exp(
            -(distance**2) / (2 * np.sort(distance[distance > 0])[(50 * 49 - 1) // 2] ** 2)
        )
        for cell in range(4):
            a = masks[:, cell].double().numpy()
            kernel = 1 + (0.5 - (a[:, None] - a) ** 2)
            assert ours[cell] == pytest.approx(np.trace(kernel @ centre @ output @ centre) / 50)


def test_hsic_does_not_depend_on_where_the_logits_begin():
    """A width of the median score does, and is nothing where that is zero."""
    masks, scores = sobol_sequence(63, 9) > 0.5, torch.randn(1, 63).double()
    scores = scores - scores.median()
    torch.testing.assert_close(dependence(masks, scores), dependence(masks, scores + 100))
    assert dependence(masks, scores, "xplique").isnan().any()
    assert not dependence(masks, torch.full((1, 63), 2.0).double()).any()


@pytest.mark.parametrize(
    "method",
    [
        "rise(masks=600)",
        "lime",
        "kernelshap",
        "sobol",
        "hsic",
        "occlusion(4)",
        "extremal(150, step=4, sigma=8, jitter=False)",
    ],
)
def test_the_cell_that_decides_is_found(method):
    """The model looks for a fine pattern, which is everywhere, in one grid cell of the image."""
    model = hp.Model(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2)), size=32)
    pattern = (torch.arange(32)[:, None] + torch.arange(32)) % 2 * 2.0 - 1
    with torch.no_grad():
        model.module[1].weight.zero_()[0].reshape(3, 32, 32)[:, 8:12, 20:24] = (
            pattern[8:12, 20:24] / 5
        )
        model.module[1].bias.zero_()
    x = pattern * (torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)) + 0.5)
    maps = hp.explain(model, x, [0, 0], method)
    assert (maps[:, 8:12, 20:24].mean((1, 2)) > 1.3 * maps.mean((1, 2))).all()
    place = maps.flatten(1).argmax(1)
    assert ((place // 32 - 9.5).abs() < 8).all()
    assert ((place % 32 - 21.5).abs() < 8).all()


# Extremal perturbations


@pytest.mark.parametrize("bumps", [Bumps((10, 6), 3, 5), Bumps((8, 8), 4, 8), Bumps((6, 6), 1, 1)])
def test_masks_and_their_derivative(bumps):
    """Against the soft maximum over all bumps, place by place, and its derivative by autograd."""
    torch.manual_seed(0)
    pressure = torch.rand(2, *bumps.grid, dtype=torch.float64).requires_grad_()
    masks, whole = bumps.masks(pressure.detach())
    expected = torch.zeros_like(masks)
    reach = bumps.around
    for row, column in product(*map(range, masks.shape[1:])):
        heights = []
        for i, j in product(range(-bumps.padding, 2 * reach + 1 - bumps.padding), repeat=2):
            i, j = i + row // bumps.step, j + column // bumps.step
            distance = (
                (row - bumps.sigma - bumps.step * i) ** 2
                + (column - bumps.sigma - bumps.step * j) ** 2
            ) ** 0.5
            there = 0 <= i < bumps.grid[0] and 0 <= j < bumps.grid[1]
            heights.append(
                pressure[:, i, j] * np.exp(-2 * max(0, distance / bumps.sigma - 0.5) ** 2)
                if there
                else pressure[:, 0, 0] * 0
            )
        heights = torch.stack(heights, 1)
        expected[:, row, column] = (heights * (20 * heights).softmax(1)).sum(1)
    torch.testing.assert_close(masks, expected, rtol=1e-5, atol=1e-6)
    uphill = torch.randn_like(masks)
    (derivative,) = torch.autograd.grad(expected, pressure, uphill)
    torch.testing.assert_close(
        bumps.vjp(pressure.detach(), masks, whole, uphill), derivative, rtol=1e-4, atol=1e-4
    )


def test_levels_of_blur_and_their_slope():
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    pyramid = blurred(x, 4.0)
    assert torch.equal(at_level(pyramid, torch.ones(2, 16, 16).double())[0], x)
    masks = torch.rand(2, 16, 16, dtype=torch.float64)
    points, slope = at_level(pyramid, masks)
    torch.testing.assert_close(
        (at_level(pyramid, masks + 1e-7)[0] - points) / 1e-7, slope, rtol=1e-4, atol=1e-4
    )


def test_the_largest_places_and_equal_ones():
    masks = torch.tensor([[[0.1, 0.9], [0.5, 0.3]], [[0.5, 0.5], [0.5, 0.9]]])
    wanted = largest(masks, torch.tensor([0.25, 0.5]))
    torch.testing.assert_close(
        wanted, torch.tensor([[[0.0, 1], [0, 0]], [[1 / 3, 1 / 3], [1 / 3, 1]]])
    )


def test_masks_take_the_area_they_are_given(golden_model, images):
    model, (x, target) = golden_model("vgg"), images
    x, target = x[:2], target[:2]
    small, large, both = (
        hp.explain(model, x, target, f"extremal(200, areas={a}, step=4, sigma=8)")
        for a in ([0.1], [0.4], [0.1, 0.4])
    )
    room = (45 / 32) ** 2  # the area counts the margin
    for maps, area in ((small, 0.1), (large, 0.4)):
        assert ((maps.mean((1, 2)) / (area * room) - 1).abs() < 0.25).all()
        assert ((maps < 0.1) | (maps > 0.9)).float().mean() > 0.5
    close(both, (small + large) / 2, 0.05)


def test_a_mask_keeps_more_than_a_random_one(bird):
    model, x, target = bird
    kept = hp.explain(model, x, target, "extremal(steps=100)")
    pyramid = blurred(x, 20 * 64 / 224)
    scores = [
        model.logits(at_level(pyramid, m)[0]).gather(1, target[:, None]).mean()
        for m in (kept, kept.roll((23, 31), (1, 2)))
    ]
    assert scores[0] > scores[1] + 1


def test_double_precision_agrees(additive):
    x, target = torch.randn(2, 3, 16, 16), [0, 1]
    double = hp.Model(copy.deepcopy(additive.module).double(), size=16)
    for method in (m for m in SHORT if m != "occlusion"):
        close(
            hp.explain(additive, x, target, method),
            hp.explain(double, x.double(), target, method),
            2e-4,
        )


def test_windows_scale_with_the_input():
    """A window of 16 px of 448 is one of 2 px on an image of 64, and its stride 1."""
    model = hp.load_model("paperbirds/vgg")
    data = hp.load_data("paperbirds:test", model, limit=2)
    x = model.normalize(torch.stack([data.load(i).image for i in range(2)]))
    target = torch.tensor(data.labels)
    scaled = hp.explain(model, x, target, "occlusion(size=64, stride=64, of=448)")
    direct = hp.explain(model, x, target, "occlusion(size=9, stride=9)")
    assert torch.equal(scaled, direct)
    assert Expression.parse("occlusion(size=64, stride=64, of=448)").cost is not None
