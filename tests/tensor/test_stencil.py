import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve

import heatproof.functional as F
from heatproof.baselines import Baseline
from heatproof.errors import HeatproofError
from heatproof.tensor import stencil
from heatproof.tensor.noise import Rng
from heatproof.tensor.stencil import impute


def by_lu(image, removed):
    """Solve the equations as written: a removed pixel is the weighted mean of its neighbours."""
    channels, height, width = image.shape
    pixels = [tuple(pixel) for pixel in np.argwhere(removed.numpy())]
    number = {pixel: k for k, pixel in enumerate(pixels)}
    matrix = lil_matrix((len(pixels), len(pixels)))
    right_hand_side = np.zeros((len(pixels), channels))
    for k, (i, j) in enumerate(pixels):
        for a in (-1, 0, 1):
            for b in (-1, 0, 1):
                other = (i + a, j + b)
                if (a or b) and 0 <= other[0] < height and 0 <= other[1] < width:
                    weight = 1 / 6 if a * b == 0 else 1 / 12
                    matrix[k, k] += weight
                    if other in number:
                        matrix[k, number[other]] = -weight
                    else:
                        right_hand_side[k] += weight * image[:, other[0], other[1]].double().numpy()
    filled = image.double().clone()
    filled[:, removed] = torch.from_numpy(
        spsolve(matrix.tocsc(), right_hand_side).reshape(right_hand_side.shape).T.copy()
    )
    return filled


def draw(batch, height, width, fraction, seed=0, channels=3):
    noise = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, channels, height, width, generator=noise)
    removed = torch.rand(batch, height, width, generator=noise) < fraction
    return x, removed


def disc(size, fraction):
    lines = torch.arange(size) - size * 0.45
    distance = lines[:, None] ** 2 + lines**2
    return distance <= distance.flatten().kthvalue(max(1, int(fraction * size**2))).values


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("size", [16, 45, 64])
def test_equals_a_sparse_lu(fraction, size):
    x, removed = draw(2, size, size, fraction, seed=size)
    removed[1] = disc(size, fraction)
    ours, cycles = impute(x, removed)
    for image, mask, filled in zip(x, removed, ours, strict=True):
        torch.testing.assert_close(filled.double(), by_lu(image, mask), rtol=0, atol=1e-5)
    assert cycles.max() <= 12


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 21),
    st.integers(1, 21),
    st.floats(0, 1),
    st.integers(1, 4),
    st.integers(0, 2**31),
)
def test_equals_a_sparse_lu_on_any_shape_and_mask(height, width, fraction, channels, seed):
    x, removed = draw(1, height, width, fraction, seed, channels)
    if removed.any():
        removed[0, seed % height, seed % width] = False
    ours = impute(x, removed)[0]
    torch.testing.assert_close(
        ours[0].double(),
        by_lu(x[0], removed[0]) if removed.any() else x[0].double(),
        rtol=0,
        atol=1e-5,
    )


def test_double_precision_is_kept():
    x, removed = draw(2, 40, 33, 0.8)
    double = impute(x.double(), removed)[0]
    assert double.dtype == torch.float64
    torch.testing.assert_close(double[0], by_lu(x[0], removed[0]), rtol=0, atol=1e-5)
    half = impute(x.half(), removed)[0]
    assert half.dtype == torch.float16 and torch.equal(
        half[~removed[:, None].expand_as(x)], x.half()[~removed[:, None].expand_as(x)]
    )


@pytest.mark.parametrize(("height", "width"), [(13, 18), (8, 7), (1, 20)])
def test_coarse_grids_are_the_same_equations(height, width):
    """Compare with PᵀAP, where P interpolates bilinearly and is zero on known pixels."""
    fine = stencil.finest_level(draw(1, height, width, 0.7)[1][0].numpy())
    for _ in range(2):
        coarse = stencil.coarser_level(fine)
        grid, wide_grid = (tuple(side - 2 for side in level.free.shape) for level in (coarse, fine))
        hats = np.eye(grid[0] * grid[1]).reshape(-1, *grid)
        wide = np.zeros((len(hats), *wide_grid))
        for i in range(wide_grid[0]):
            for j in range(wide_grid[1]):
                corners = [hats[:, (i + a) // 2, (j + b) // 2] for a in (0, 1) for b in (0, 1)]
                wide[:, i, j] = np.mean(corners, 0) * fine.free[i + 1, j + 1]
        wide = wide.reshape(len(hats), -1)
        expected = wide @ matrix(fine) @ wide.T
        np.testing.assert_allclose(matrix(coarse), expected, rtol=1e-6, atol=1e-5)
        np.testing.assert_array_equal(matrix(coarse), matrix(coarse).T)
        fine = coarse


def matrix(level):
    height, width = (side - 2 for side in level.free.shape)
    unit = np.zeros((height * width, height + 2, width + 2), np.float32)
    unit[:, 1:-1, 1:-1] = np.eye(height * width).reshape(-1, height, width)
    unit *= level.free
    columns = np.zeros_like(unit)
    stencil.multiply(level, unit, columns)
    return columns[:, 1:-1, 1:-1].reshape(height * width, -1).astype(float)


def test_a_sweep_down_and_its_residual_are_those_of_the_matrix():
    """A sweep from zero solves the triangle of a pixel and the row above it."""
    level = stencil.coarser_level(stencil.finest_level(draw(1, 21, 17, 0.8)[1][0].numpy()))
    height, width = (side - 2 for side in level.free.shape)
    full = matrix(level)
    rows = np.arange(height * width) // width
    rhs = np.zeros((2, height + 2, width + 2), np.float32)
    rhs[:, 1:-1, 1:-1] = np.random.default_rng(0).normal(size=(2, height, width))
    rhs *= level.free
    u, rest = np.zeros_like(rhs), np.zeros_like(rhs)
    stencil.descend(level, u, rhs, rest)
    triangle = np.where(rows[:, None] > rows, full, 0) + np.diag(
        np.where(level.free > 0, level.damped, 1)[1:-1, 1:-1].ravel()
    )
    for c in range(2):
        right = rhs[c, 1:-1, 1:-1].ravel()
        expected = np.linalg.solve(triangle, right)
        np.testing.assert_allclose(u[c, 1:-1, 1:-1].ravel(), expected, rtol=0, atol=1e-5)
        left = right - full @ expected
        np.testing.assert_allclose(rest[c, 1:-1, 1:-1].ravel(), left, rtol=0, atol=1e-5)


def test_a_constant_image_is_restored_exactly():
    for fraction in (0.3, 0.9, 0.99):
        removed = draw(4, 50, 61, fraction)[1]
        removed[3] = disc(61, fraction)[:50]
        x = torch.tensor([0.1, -2.117904, 0.0]).view(3, 1, 1).expand(4, 3, 50, 61)
        assert torch.equal(impute(x, removed)[0], x)


def test_a_ramp_is_restored_away_from_the_border():
    ramp = (torch.arange(40)[:, None] * 0.1 - torch.arange(48) * 0.05)[None, None]
    removed = torch.zeros(1, 40, 48, dtype=torch.bool)
    removed[:, 1:-1, 1:-1] = draw(1, 38, 46, 0.9)[1]
    torch.testing.assert_close(impute(ramp, removed)[0], ramp, rtol=0, atol=1e-5)


def test_filled_pixels_stay_between_the_known_ones():
    x, removed = draw(3, 64, 64, 0.95)
    filled = impute(x, removed)[0]
    for image, mask, ours in zip(x, removed, filled, strict=True):
        low, high = image[:, ~mask].amin(1, keepdim=True), image[:, ~mask].amax(1, keepdim=True)
        assert (ours[:, mask] > low - 1e-5).all() and (ours[:, mask] < high + 1e-5).all()


def test_one_known_pixel_fills_the_whole_image():
    x, removed = draw(2, 33, 20, 1.1)
    removed[0, 32, 19] = removed[1, 7, 4] = False
    filled, cycles = impute(x, removed)
    assert torch.equal(filled[0], x[0, :, 32, 19, None, None].expand(3, 33, 20))
    assert torch.equal(filled[1], x[1, :, 7, 4, None, None].expand(3, 33, 20))
    assert cycles.tolist() == [1, 1]


def test_nothing_removed_and_everything_removed_need_no_solver():
    x, removed = draw(3, 12, 12, 0.5)
    removed[0], removed[2] = False, True
    filled, cycles = impute(x, removed)
    assert torch.equal(filled[0], x[0])
    torch.testing.assert_close(filled[2], x[2].mean((1, 2), keepdim=True).expand_as(x[2]))
    assert cycles[0] == cycles[2] == 0 < cycles[1]
    assert impute(x[:0], removed[:0])[0].shape == (0, 3, 12, 12)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_sample_does_not_depend_on_the_rest_of_its_batch(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, removed = draw(9, 90, 97, 0.5)
        removed[1:4] = torch.stack(
            [torch.nn.functional.pad(disc(90, fraction), (0, 7)) for fraction in (0.2, 0.6, 0.95)]
        )
        removed[5], removed[6], x[7, 0] = False, draw(1, 90, 97, 0.98)[1][0], 0.5
        together, cycles = impute(x, removed)
        assert len(set(cycles.tolist())) > 2
        for order in ([4], [8, 2], [7, 3, 1, 0, 5], [6, 6, 6, 6, 1]):
            filled, part_cycles = impute(x[order], removed[order])
            assert torch.equal(filled, together[order]) and torch.equal(part_cycles, cycles[order])
    finally:
        torch.set_num_threads(before)


def test_the_bytes_are_the_same_on_every_processor():
    """`make test-isa` runs this with the instructions of older processors."""
    noise = np.random.default_rng(0)
    x = torch.from_numpy(noise.random((3, 3, 61, 90), np.float32))
    removed = torch.from_numpy(noise.random((3, 61, 90)) < 0.6)
    filled = impute(x, removed)[0].numpy()
    assert hashlib.sha256(filled.tobytes()).hexdigest()[:16] == "ed75eda9a6bb0579"


def test_known_pixels_are_unchanged_and_noise_is_added_to_removed_pixels():
    x, removed = draw(4, 64, 64, 0.5)
    rng = Rng(3, ["a", "b", "c", "a"])
    plain, noisy = F.linear_impute(x, removed, 0, rng), F.linear_impute(x, removed, 0.01, rng)
    known = ~removed[:, None].expand_as(x)
    assert torch.equal(plain[known].view(torch.int32), x[known].view(torch.int32))
    assert torch.equal(noisy[known].view(torch.int32), x[known].view(torch.int32))
    noise = (noisy - plain)[~known]
    assert noise.std().item() == pytest.approx(0.01, rel=0.03) and abs(noise.mean()) < 3e-4
    both = removed[0] & removed[3]
    torch.testing.assert_close(
        (noisy - plain)[0][:, both], (noisy - plain)[3][:, both], rtol=0, atol=1e-6
    )
    assert torch.equal(F.linear_impute(x[1:2], removed[1:2], 0.01, Rng(3, ["b"])), noisy[1:2])
    assert not torch.equal(F.linear_impute(x, removed, 0.01, Rng(4, rng.ids)), noisy)
    assert torch.equal(F.linear_impute(x, removed), F.linear_impute(x, removed, rng=Rng(0, "0123")))


def test_the_baseline_gives_every_step_of_a_sample_its_own_image():
    x, removed = draw(2, 32, 32, 0.4)
    remove = Baseline.parse("linear(noise=0)").remover(x, None, Rng(0, "ab"))
    samples, masks = (
        torch.tensor([0, 0, 1]),
        torch.stack([removed[0], removed[0] | removed[1], removed[1]]),
    )
    assert torch.equal(remove(samples, masks), F.linear_impute(x[samples], masks, 0))
    assert Baseline.parse("linear").arguments == {"noise": 0.01}


def test_the_arguments_are_not_changed():
    x, removed = draw(2, 20, 20, 0.6)
    x.requires_grad_()
    copies = x.detach().clone(), removed.clone()
    state = torch.get_rng_state()
    assert not F.linear_impute(x, removed).requires_grad
    assert (
        torch.equal(x, copies[0])
        and torch.equal(removed, copies[1])
        and torch.equal(torch.get_rng_state(), state)
    )


def unfit(x):
    x = x.clone()
    x[1, 0, 2, 3] = torch.nan
    return x


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x, m: F.linear_impute(x[0], m),
            r"floats of shape \(B, C, H, W\); got torch.float32 of \(3, 8, 9\)",
        ),
        (lambda x, m: F.linear_impute(x.int(), m), "got torch.int32"),
        (
            lambda x, m: F.linear_impute(x, m.float()),
            r"bool mask of shape \(2, 8, 9\) for these images; got torch.float32 of \(2, 8, 9\)",
        ),
        (
            lambda x, m: F.linear_impute(x, m[:1]),
            r"bool mask of shape \(2, 8, 9\) for these images; got torch.bool of \(1, 8, 9\)",
        ),
        (lambda x, m: F.linear_impute(x, m[:, None]), r"got torch.bool of \(2, 1, 8, 9\)"),
        (
            lambda x, m: F.linear_impute(unfit(x), m),
            r"images to impute must be finite; rows \[1\] are not",
        ),
        (lambda x, m: F.linear_impute(x, m, -1), "finite standard deviation ≥ 0; got -1"),
        (lambda x, m: F.linear_impute(x, m, rng=Rng(0, "a")), "rng has 1 ids for 2 images"),
        (lambda x, m: Baseline.parse("linear(noise=-1)"), "noise"),
    ],
)
def test_bad_input_is_named(call, message):
    x, removed = draw(2, 8, 9, 0.5)
    with pytest.raises(HeatproofError, match=message):
        call(x, removed)
