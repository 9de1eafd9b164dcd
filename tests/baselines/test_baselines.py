import pytest
import scipy.ndimage
import torch
from torch import nn

import heatproof as hp
import heatproof.functional as F
from heatproof.baselines import BASELINES, Baseline
from heatproof.errors import HeatproofError
from heatproof.tensor.noise import Rng


@pytest.fixture(scope="module")
def model():
    return hp.Model(
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)), size=32, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5)
    )


def fill(text, x, model, ids=None, seed=0):
    return Baseline.parse(text).fill(x, model, Rng(seed, ids or [str(i) for i in range(len(x))]))


@pytest.mark.parametrize("name", [e.id for e in BASELINES])
def test_only_what_is_removed_changes(model, name):
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    removed = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(1)) < 0.3
    without = Baseline.parse(name).remover(x, model, Rng(0, "abc"))(torch.arange(3), removed)
    kept = ~removed[:, None].expand_as(x)
    assert torch.equal(without[kept], x[kept])
    assert (without[~kept] != x[~kept]).float().mean() > 0.99


def test_uniform_covers_the_models_input_range(model):
    painted = fill("uniform", torch.zeros(20, 3, 32, 32), model)
    low, high = model.input_range
    for channel in range(3):
        values = painted[:, channel]
        assert low[channel] <= values.min() < low[channel] + 0.01 * (high - low)[channel]
        assert high[channel] - 0.01 * (high - low)[channel] < values.max() <= high[channel]
    painted = fill("uniform(-1, 1)", torch.zeros(20, 3, 32, 32), None)
    assert -1 <= painted.min() < -0.99 < 0.99 < painted.max() <= 1


def test_noise_belongs_to_the_sample(model):
    x = torch.zeros(2, 3, 32, 32)
    assert torch.equal(fill("uniform", x, model, ["a", "b"])[1], fill("uniform", x, model, ["b", "c"])[0])
    assert not torch.equal(fill("uniform", x, model, seed=0), fill("uniform", x, model, seed=1))


def test_blur_is_a_gaussian_of_the_papers_size_in_proportion():
    x = torch.randn(1, 1, 224, 224, generator=torch.Generator().manual_seed(0))
    ours = fill("blur", x, None)[0, 0]
    theirs = scipy.ndimage.gaussian_filter(x[0, 0].double().numpy(), 41, radius=25, mode="mirror")
    torch.testing.assert_close(ours, torch.from_numpy(theirs).float(), rtol=1e-4, atol=1e-5)
    small = fill("blur", x[..., :64, :64], None)[0, 0]
    theirs = scipy.ndimage.gaussian_filter(x[0, 0, :64, :64].double().numpy(), 41 * 64 / 224, radius=7, mode="mirror")
    torch.testing.assert_close(small, torch.from_numpy(theirs).float(), rtol=1e-4, atol=1e-5)


def test_blur_leaves_a_constant_image_as_it_is():
    x = torch.full((1, 3, 32, 32), 0.7)
    torch.testing.assert_close(fill("blur", x, None), x)
    assert (fill("blur(compat=idsds)", x, None) < 0.7).all()  # zeros beyond the border


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zer", 'unknown baseline "zer"; did you mean zero'),
        ("blur(compat=rao)", "compat: found rao; input should be 'idsds'"),
        ("blur(size=4)", "must be odd"),
        ("uniform(1)", "both ends or none"),
        ("zero(1)", "zero takes: no arguments"),
    ],
)
def test_bad_baselines_say_what_is_allowed(text, message):
    with pytest.raises(HeatproofError, match=message):
        fill(text, torch.zeros(1, 3, 32, 32), None)


def test_a_baseline_that_needs_the_model_asks_for_it():
    x = torch.zeros(1, 3, 8, 8)
    with pytest.raises(HeatproofError, match=r"pass an hp.Model, or say uniform\(-1, 1\)"):
        F.patch_drops(lambda batch: batch.mean((2, 3)), x, torch.tensor([0]), 4, "uniform")
