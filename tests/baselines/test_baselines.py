import pytest
import scipy.ndimage
import scipy.stats
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
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)),
        size=32,
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.25, 0.5),
    )


def fill(text, x, model, ids=None, seed=0, reference=None):
    baseline, rng = Baseline.parse(text), Rng(seed, ids or [str(i) for i in range(len(x))])
    return baseline.fill(x, model, rng, prepared=prepared(baseline, model, reference))


def prepared(baseline, model, reference):
    return baseline.prepared_by(lambda part: part.prepare(model, iter([reference])))


# Without featurevis, which is optimised for a network that has features.
PAINTED = [e.id for e in BASELINES if not e.imputes and e.id != "featurevis"]
COMPAT = [
    "random-color",
    "local-mean",
    "mosaic",
    "permutation",
    "local-permutation",
    "scramble-magnitude",
    "scramble-phase",
]


@pytest.fixture(scope="module")
def reference(model):
    """Reference images for the baselines that need them."""
    return model.normalize(torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(7)))


@pytest.mark.parametrize("name", PAINTED)
def test_only_removed_pixels_change(model, reference, name):
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    removed = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(1)) < 0.3
    baseline = Baseline.parse(name)
    remove = baseline.remover(x, model, Rng(0, "abc"), prepared(baseline, model, reference))
    without = remove(torch.arange(3), removed)
    kept = ~removed[:, None].expand_as(x)
    assert torch.equal(without[kept], x[kept])
    # A pixel of a 4×4 cell keeps its position with probability 1/16.
    stays = 1 / 16 if name == "local-permutation" else 0
    assert abs((without[~kept] == x[~kept]).float().mean() - stays) < 0.01


@pytest.mark.parametrize("text", PAINTED + [f"{name}(compat=xplique)" for name in COMPAT])
@pytest.mark.parametrize("size", [32, 29])
def test_a_sample_does_not_depend_on_the_batch(model, reference, text, size):
    """Results are bitwise equal alone, in another order and among others."""
    x = torch.randn(5, 3, size, size, generator=torch.Generator().manual_seed(0))
    whole = fill(text, x, model, list("abcde"), reference=reference)
    assert torch.isfinite(whole).all() and whole.dtype == x.dtype
    assert torch.equal(whole, fill(text, x, model, list("abcde"), reference=reference))
    for rows in ([2], [4, 0, 3], [1, 2]):
        ids = ["abcde"[i] for i in rows]
        assert torch.equal(whole[rows], fill(text, x[rows], model, ids, reference=reference))


@pytest.mark.parametrize("name", PAINTED)
def test_a_blind_baseline_does_not_depend_on_the_image(model, reference, name):
    x, other = torch.randn(2, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    painted = [fill(name, images, model, reference=reference) for images in (x, other)]
    alike = torch.equal(*painted)
    assert alike == BASELINES[name].blind


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_any_number_of_channels_is_supported(channels):
    module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2))
    model = hp.Model(module, size=8, mean=(0.5,) * channels, std=(0.25,) * channels)
    x = torch.randn(3, channels, 8, 8, generator=torch.Generator().manual_seed(0))
    for text in [*PAINTED, *(f"{name}(compat=xplique)" for name in COMPAT)]:
        assert torch.isfinite(fill(text, x, model, reference=x)).all(), text


def test_uniform_covers_the_models_input_range(model):
    painted = fill("uniform", torch.zeros(20, 3, 32, 32), model)
    low, high = model.input_range
    for channel in range(3):
        values = painted[:, channel]
        assert low[channel] <= values.min() < low[channel] + 0.01 * (high - low)[channel]
        assert high[channel] - 0.01 * (high - low)[channel] < values.max() <= high[channel]
    painted = fill("uniform(-1, 1)", torch.zeros(20, 3, 32, 32), None)
    assert -1 <= painted.min() < -0.99 < 0.99 < painted.max() <= 1


def test_normal_noise_is_clipped_only_on_request(model):
    x = torch.zeros(40, 3, 32, 32)
    plain = Rng(0, [str(i) for i in range(40)]).normal("baseline normal", (3, 32, 32))
    assert torch.equal(fill("normal", x, None), plain)
    assert scipy.stats.kstest(plain.flatten(), "norm").pvalue > 1e-3
    assert torch.equal(fill("normal(clip=true)", x, model), plain.clamp(*model.input_range))
    assert torch.equal(fill("normal(-1, 1)", x, None), plain.clamp(-1, 1))
    with pytest.raises(HeatproofError, match="both bounds or none"):
        fill("normal(-1)", x, model)


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("additive-uniform", scipy.stats.uniform(0, 1)),
        ("additive-uniform(-0.25, 0.25)", scipy.stats.uniform(-0.25, 0.5)),
        ("additive-normal", scipy.stats.norm(0, 1)),
        ("additive-normal(0.5)", scipy.stats.norm(0, 0.5)),
    ],
)
def test_additive_noise_is_added_to_the_image(text, distribution):
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    noise = (fill(text, x, None) - x).flatten()
    assert scipy.stats.kstest(noise, distribution.cdf).pvalue > 1e-3


def test_local_mean_is_the_mean_colour_of_the_image_as_in_the_papers_text():
    x = torch.randn(2, 3, 9, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(fill("local-mean", x, None), fill("image-mean", x, None))
    assert torch.equal(
        fill("local-mean(compat=xplique)", x, None), fill("mosaic(compat=xplique)", x, None)
    )


@pytest.mark.parametrize(
    ("height", "width", "cells"), [(32, 32, 8), (24, 16, 8), (29, 13, 8), (5, 40, 8), (9, 9, 2)]
)
def test_a_mosaic_has_the_mean_of_every_cell(height, width, cells):
    x = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))
    painted = fill(f"mosaic(cells={cells})", x, None)
    sizes = [set(), set()]
    for i in range(height):
        for j in range(width):
            cell = [
                [
                    p
                    for p in range(side)
                    if p * min(cells, side) // side == at * min(cells, side) // side
                ]
                for at, side in ((i, height), (j, width))
            ]
            expected = x[:, :, cell[0]][..., cell[1]].double().mean((2, 3))
            torch.testing.assert_close(painted[:, :, i, j].double(), expected, rtol=1e-5, atol=1e-6)
            sizes[0].add(len(cell[0])), sizes[1].add(len(cell[1]))
    assert all(max(s) - min(s) <= 1 for s in sizes)
    if height % cells == width % cells == 0:
        pooled = nn.functional.avg_pool2d(x, (height // cells, width // cells))
        torch.testing.assert_close(
            painted[:, :, :: height // cells, :: width // cells], pooled, rtol=1e-5, atol=1e-6
        )


def test_noise_is_keyed_by_sample(model):
    x = torch.zeros(2, 3, 32, 32)
    assert torch.equal(
        fill("uniform", x, model, ["a", "b"])[1], fill("uniform", x, model, ["b", "c"])[0]
    )
    assert not torch.equal(fill("uniform", x, model, seed=0), fill("uniform", x, model, seed=1))


def test_blur_is_a_gaussian_of_the_papers_size_in_proportion():
    x = torch.randn(1, 1, 224, 224, generator=torch.Generator().manual_seed(0))
    ours = fill("blur", x, None)[0, 0]
    theirs = scipy.ndimage.gaussian_filter(x[0, 0].double().numpy(), 41, radius=25, mode="mirror")
    torch.testing.assert_close(ours, torch.from_numpy(theirs).float(), rtol=1e-4, atol=1e-5)
    small = fill("blur", x[..., :64, :64], None)[0, 0]
    theirs = scipy.ndimage.gaussian_filter(
        x[0, 0, :64, :64].double().numpy(), 41 * 64 / 224, radius=7, mode="mirror"
    )
    torch.testing.assert_close(small, torch.from_numpy(theirs).float(), rtol=1e-4, atol=1e-5)


def test_blur_leaves_a_constant_image_unchanged():
    x = torch.full((1, 3, 32, 32), 0.7)
    torch.testing.assert_close(fill("blur", x, None), x)
    assert (fill("blur(compat=idsds)", x, None) < 0.7).all()  # padded with zeros


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zer", 'unknown baseline "zer"; did you mean zero'),
        ("blur(compat=rao)", "compat: found 'rao'; input should be 'idsds'"),
        ("blur(size=4)", "must be odd"),
        ("uniform(1)", "both bounds or none"),
        ("random-color(1)", "both bounds or none"),
        ("mosaic(cells=0)", "greater than or equal to 1"),
        ("permutation(compat=idsds)", "input should be 'xplique'"),
        ("zero(1)", "zero takes: no arguments"),
    ],
)
def test_invalid_baselines_are_reported_with_what_is_allowed(text, message):
    with pytest.raises(HeatproofError, match=message):
        fill(text, torch.zeros(1, 3, 32, 32), None)


def test_a_baseline_that_needs_the_model_is_reported_without_one():
    x = torch.zeros(1, 3, 8, 8)
    with pytest.raises(
        HeatproofError, match=r"pass an hp.Model, or give the bounds: uniform\(-1, 1\)"
    ):
        F.patch_drops(lambda batch: batch.mean((2, 3)), x, torch.tensor([0]), 4, "uniform")
