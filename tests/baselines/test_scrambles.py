import numpy as np
import pytest
import scipy.optimize
import torch
from torch import nn

import heatproof as hp
from heatproof.baselines import Baseline
from heatproof.baselines.scrambles import (
    clipped_around_mean,
    mirrored_order,
    order_within,
    permuted,
)
from heatproof.errors import HeatproofError
from heatproof.tensor.noise import Rng

UNBOUNDED = "(-1e9, 1e9)"
SIZES = [(1, 32, 32), (3, 31, 33), (4, 12, 20), (2, 5, 6), (3, 1, 7)]  # channels, height, width


def image(shape, n=3):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))


def fill(text, x, seed=0):
    return Baseline.parse(text).fill(x, None, Rng(seed, [str(i) for i in range(len(x))]))


def pixels(x):
    """Return the sorted pixels of each sample, each with all its channels."""
    return [sorted(map(tuple, sample.reshape(len(sample), -1).T.tolist())) for sample in x]


@pytest.mark.parametrize("shape", SIZES)
def test_permutation_keeps_every_pixel(shape):
    x = image(shape)
    assert pixels(fill("permutation", x)) == pixels(x)
    assert pixels(fill("permutation(compat=xplique)", x)) == pixels(x)


def test_every_image_has_its_own_order():
    x = image((3, 16, 16), 1).expand(3, -1, -1, -1)
    ours, theirs = fill("permutation", x), fill("permutation(compat=xplique)", x)
    assert not torch.equal(ours[0], ours[1])
    assert torch.equal(theirs[0], theirs[1])
    assert not torch.equal(ours, fill("permutation", x, seed=1))


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("cells", [8, 2])
def test_local_permutation_keeps_the_pixels_of_every_cell(shape, cells):
    x = image(shape)
    painted = fill(f"local-permutation(cells={cells})", x)
    _, height, width = shape
    across, along = min(cells, height), min(cells, width)
    for i in range(across):
        for j in range(along):
            # The cell of a pixel is given by its position as a fraction of the side.
            cell = (
                slice(-(-i * height // across), -(-(i + 1) * height // across)),
                slice(-(-j * width // along), -(-(j + 1) * width // along)),
            )
            assert pixels(painted[:, :, *cell]) == pixels(x[:, :, *cell])
    assert not torch.equal(painted, x) or (height <= cells and width <= cells)


def test_all_orders_within_a_group_are_equally_likely():
    group = torch.tensor([0, 1, 0, 1, 0])
    orders = order_within(group, Rng(0, [str(i) for i in range(3000)]).uniform("test", (5,)))
    distinct, counts = np.unique(orders.numpy(), axis=0, return_counts=True)
    assert len(distinct) == 12  # 3! · 2!
    assert (group[torch.from_numpy(distinct)] == group).all()
    assert np.abs(counts - 250).max() < 5 * np.sqrt(250)


@pytest.mark.parametrize("shape", SIZES)
def test_mirrored_frequencies_stay_mirrored_and_the_mean_in_its_place(shape):
    height, width = shape[1:]
    for order in mirrored_order(Rng(0, "abcd").uniform("test", (height, width))).tolist():
        assert sorted(order) == list(range(height * width))
        assert order[0] == 0
        for k, source in enumerate(order):
            mirror = -(k // width) % height * width + -(k % width) % width
            assert order[mirror] == -(source // width) % height * width + -(source % width) % width


def test_all_mirrored_orders_are_equally_likely():
    """Of 4 × 2 frequencies, one is the mean, three are their own mirror and four form two pairs.

    Pairs are swapped with each other and in themselves, which makes 3! · 2! · 2² orders.
    """
    orders = mirrored_order(Rng(0, [str(i) for i in range(9600)]).uniform("test", (4, 2)))
    distinct, counts = np.unique(orders.numpy(), axis=0, return_counts=True)
    assert len(distinct) == 48
    assert np.abs(counts - 200).max() < 5 * np.sqrt(200)


@pytest.mark.parametrize("shape", SIZES)
def test_scrambled_phases_keep_the_magnitudes(shape):
    x = image(shape)
    painted = fill(f"scramble-phase{UNBOUNDED}", x)
    theirs, ours = (np.abs(np.fft.fft2(v.double().numpy())) for v in (x, painted))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        painted.square().sum((1, 2, 3)), x.square().sum((1, 2, 3)), rtol=1e-5
    )
    assert not torch.allclose(painted, x)


@pytest.mark.parametrize("shape", SIZES)
def test_scrambled_magnitudes_keep_the_phases(shape):
    x = image(shape)
    painted = fill(f"scramble-magnitude{UNBOUNDED}", x)
    theirs, ours = (np.fft.fft2(v.double().numpy()) for v in (x, painted))
    assert np.abs(ours / np.abs(ours) - theirs / np.abs(theirs)).max() < 1e-4
    for a, b in zip(
        np.abs(ours).reshape(-1, shape[1] * shape[2]),
        np.abs(theirs).reshape(-1, shape[1] * shape[2]),
        strict=True,
    ):
        np.testing.assert_allclose(np.sort(a), np.sort(b), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(painted, x)


@pytest.mark.parametrize("what", ["magnitude", "phase"])
def test_channels_are_scrambled_alike(what):
    x = image((1, 16, 16)).expand(-1, 3, -1, -1)
    painted = fill(f"scramble-{what}{UNBOUNDED}", x)
    torch.testing.assert_close(painted[:, 0], painted[:, 2])


@pytest.mark.parametrize("what", ["magnitude", "phase"])
@pytest.mark.parametrize("size", [32, 31])
def test_scrambled_images_keep_the_mean_colour_and_the_range(what, size):
    module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    model = hp.Model(module, size=size, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))
    # Bright edges on black, so that a scrambled image would leave the range.
    pixels = (
        torch.rand(8, 3, size, size, generator=torch.Generator().manual_seed(0)) > 0.8
    ).float()
    x = model.normalize(pixels)
    rng = Rng(0, [str(i) for i in range(8)])
    painted = Baseline.parse(f"scramble-{what}").fill(x, model, rng)
    free = Baseline.parse(f"scramble-{what}{UNBOUNDED}").fill(x, model, rng)
    low, high = model.input_range
    assert ((free < low) | (free > high)).float().mean() > 0.05
    assert (painted >= low).all() and (painted <= high).all()
    for image_of in (painted, free):
        torch.testing.assert_close(
            image_of.double().mean((2, 3)), x.double().mean((2, 3)), rtol=0, atol=1e-5
        )


def test_clipping_around_the_mean_gives_the_nearest_image():
    x = 1.5 * image((2, 5, 6))
    low, high = torch.tensor([[[-1.0]], [[-2.0]]]), torch.tensor([[[1.5]], [[0.9]]])
    clipped = clipped_around_mean(x, low, high)
    for before, after in zip(x, clipped, strict=True):
        for c in range(2):
            values = before[c].double().numpy().ravel()
            nearest = scipy.optimize.minimize(
                lambda v, values=values: ((v - values) ** 2).sum(),
                np.full(values.shape, values.mean()),
                jac=lambda v, values=values: 2 * (v - values),
                bounds=[(low[c].item(), high[c].item())] * len(values),
                constraints={"type": "eq", "fun": lambda v, values=values: (v - values).mean()},
                method="SLSQP",
                options={"ftol": 1e-12},
            )
            np.testing.assert_allclose(after[c].ravel(), nearest.x, atol=1e-4)
    assert torch.equal(clipped_around_mean(clipped, low, high), clipped)


@pytest.mark.parametrize("what", ["magnitude", "phase"])
def test_a_scramble_without_a_range_is_reported(what):
    with pytest.raises(HeatproofError, match=rf"give the bounds: scramble-{what}\(-1, 1\)"):
        fill(f"scramble-{what}", image((3, 8, 8)))


def test_permuted_takes_the_pixel_at_each_index():
    x = torch.arange(12.0).reshape(1, 2, 2, 3)
    assert permuted(x, torch.tensor([5, 4, 3, 2, 1, 0])).tolist() == [
        [[[5, 4, 3], [2, 1, 0]], [[11, 10, 9], [8, 7, 6]]]
    ]
