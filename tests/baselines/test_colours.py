import numpy as np
import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.baselines import Baseline
from heatproof.errors import HeatproofError
from heatproof.tensor.noise import Rng


@pytest.fixture(scope="module")
def model():
    module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    return hp.Model(module, size=8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))


def fill(text, x, model, reference=None):
    baseline, rng = Baseline.parse(text), Rng(0, [str(i) for i in range(len(x))])
    prepared = None if reference is None else baseline.prepare(model, iter(reference))
    return baseline.fill(x, model, rng, prepared=prepared)


def batches(pixels, model, sizes):
    return iter(torch.split(model.normalize(torch.from_numpy(pixels).float() / 255), sizes))


@pytest.mark.parametrize("n", [7, 8])  # an odd and an even number of pixels
def test_the_median_of_the_reference_is_exact_for_images_of_8_bits(model, n):
    pixels = (
        np.random.default_rng(0).binomial(255, (0.2, 0.5, 0.9), (n, 8, 7, 3)).transpose(0, 3, 1, 2)
    )
    pixels = pixels[:, :, :, : 7 - n % 2]
    pixels[:, :, 0, 0] = [[0, 255, 255]]
    theirs = np.median(pixels, (0, 2, 3)) / 255
    painted = fill("median", torch.zeros(2, 3, 8, 8), model, batches(pixels, model, [3, n - 3]))
    torch.testing.assert_close(
        model.denormalize(painted)[1, :, 0, 0].double(), torch.from_numpy(theirs), rtol=0, atol=1e-7
    )


def test_the_median_of_two_levels_is_between_them(model):
    pixels = np.stack([np.full((3, 8, 8), 10), np.full((3, 8, 8), 13)])
    reference = batches(pixels, model, [1, 1])
    painted = model.denormalize(fill("median", torch.zeros(1, 3, 8, 8), model, reference))
    torch.testing.assert_close(painted, torch.full_like(painted, 11.5 / 255), rtol=0, atol=1e-7)


def test_the_median_of_any_images_is_within_half_a_level_of_16_bits(model):
    images = torch.rand(9, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    reference = [model.normalize(images)]
    painted = model.denormalize(fill("median", images[:1], model, reference))[0, :, 0, 0]
    theirs = np.median(images.numpy(), (0, 2, 3))
    assert np.abs(painted.numpy() - theirs).max() < 0.5 / 65535 + 1e-7


def test_the_mean_is_that_of_the_reference(model):
    images = torch.rand(9, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for sizes in ([9], [4, 5], [1] * 9):
        reference = torch.split(model.normalize(images), sizes)
        painted = model.denormalize(fill("mean", images[:2], model, reference))
        torch.testing.assert_close(
            painted[1, :, 3, 3].double(), images.double().mean((0, 2, 3)), rtol=0, atol=1e-6
        )
        assert (painted == painted[:1, :, :1, :1]).all()


@pytest.mark.parametrize("name", ["mean", "median"])
def test_a_missing_reference_is_reported(model, name):
    with pytest.raises(HeatproofError, match="reference"):
        fill(name, torch.zeros(1, 3, 8, 8), model)
    with pytest.raises(HeatproofError, match="hp.Model"):
        fill(name, torch.zeros(1, 3, 8, 8), None)


def test_black_is_black(model):
    painted = model.denormalize(fill("black", torch.ones(2, 3, 8, 8), model))
    torch.testing.assert_close(painted, torch.zeros_like(painted), rtol=0, atol=1e-7)
    with pytest.raises(HeatproofError, match="pass an hp.Model"):
        fill("black", torch.ones(2, 3, 8, 8), None)


@pytest.mark.parametrize("shape", [(4, 1, 5, 5), (3, 3, 4, 6), (2, 5, 7, 3)])
def test_image_colours_are_the_mean_and_median_of_each_image(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for name, function in {"image-mean": np.mean, "image-median": np.median}.items():
        painted = fill(name, x, None)
        theirs = torch.from_numpy(function(x.double().numpy(), axis=(2, 3)))
        torch.testing.assert_close(
            painted.double(), theirs[..., None, None].expand(shape), rtol=1e-6, atol=1e-7
        )


def test_a_random_color_is_constant_per_image_and_in_range(model):
    painted = fill("random-color", torch.zeros(400, 3, 2, 2), model)
    assert (painted == painted[:, :, :1, :1]).all()
    colours = model.denormalize(painted)[:, :, 0, 0]
    assert len(colours.unique(dim=0)) == 400
    assert colours.min() >= -1e-6 and colours.max() <= 1 + 1e-6
    assert (colours.mean(0) - 0.5).abs().max() < 5 * np.sqrt(1 / 12 / 400)
    assert 2 <= fill("random-color(2, 3)", torch.zeros(1, 1, 2, 2), None).mean() < 3
