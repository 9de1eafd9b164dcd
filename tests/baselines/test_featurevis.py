"""The image that says nothing to the model: what holds by construction, on networks small and embedded."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.baselines import Baseline
from heatproof.baselines import featurevis as fv
from heatproof.errors import HeatproofError
from heatproof.models.guards import assert_unchanged
from heatproof.tensor.noise import Rng, generator
from heatproof.tensor.spectra import COLOURS, recorrelated, resample_crops

QUICK = "steps=12, crops=4"


@pytest.fixture(scope="module")
def vgg():
    return hp.load_model("paperbirds/vgg")


@pytest.fixture(scope="module")
def reference(vgg):
    data = hp.load_data("paperbirds:train", vgg, limit=12)
    return torch.stack([data.load(i).image for i in range(12)])


def prepared(text, model, images, size=5):
    return Baseline.parse(text).prepare(model, iter(torch.split(model.normalize(images), size)))


def network(*layers, size=16, channels=3):
    return hp.Model(
        nn.Sequential(*layers),
        size=size,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        name="small",
    )


@pytest.mark.parametrize("name", ["vgg", "vit", "bagnet"])
@pytest.mark.parametrize(
    "arguments",
    [
        "whole=1",
        "whole=1, objective=l1",
        "whole=1, learn_magnitude=True",
        "whole=1, parametrisation=fourier",
    ],
)
def test_the_embedding_gets_smaller(name, arguments, reference):
    model = hp.load_model(f"paperbirds/{name}")
    found = prepared(f"featurevis({QUICK}, {arguments})", model, reference)
    assert found["still"] == 0 and (found["norm"] < found["start"] or "l1" in arguments)
    assert found["trace"].shape == (12,) and found["trace"][-3:].mean() < found["trace"][:3].mean()


def test_what_is_told_of_the_image_is_so(vgg, reference):
    found = prepared(f"featurevis({QUICK})", vgg, reference)
    assert found["image"].shape == (3, 64, 64)
    shown = vgg.denormalize(found["image"])
    assert shown.min() >= 0 and shown.max() <= 1 and shown.std() > 0.1
    logits, embedding = vgg.forward(found["image"][None])
    torch.testing.assert_close(found["norm"], embedding.square().sum().sqrt())
    torch.testing.assert_close(found["logits"], logits[0])
    torch.testing.assert_close(
        found["entropy"], torch.distributions.Categorical(logits=logits[0]).entropy()
    )


def test_every_sample_gets_the_same_image(vgg, reference):
    baseline = Baseline.parse(f"featurevis({QUICK})")
    found = prepared(baseline.label, vgg, reference)
    painted = baseline.fill(torch.zeros(2, 3, 64, 64), vgg, Rng(0, "ab"), prepared=found)
    assert torch.equal(painted, found["image"].expand(2, -1, -1, -1))


def test_magnitudes_are_the_means_over_the_reference(vgg, reference):
    found = fv.magnitudes(vgg, iter(torch.split(vgg.normalize(reference), 5)))
    mixed = np.einsum("nchw,cd->ndhw", reference.double().numpy() - 0.5, np.linalg.inv(COLOURS))
    np.testing.assert_allclose(
        found.numpy(), np.abs(np.fft.rfft2(mixed)).mean(0), rtol=1e-3, atol=1e-3
    )


def test_the_magnitude_is_kept_whatever_the_phase():
    magnitude, numbers = (
        torch.fft.rfft2(torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))).abs(),
        generator("test"),
    )
    spectrum = fv.maco(magnitude, numbers, learn_magnitude=False)
    (phase,) = spectrum.start
    for moved in (phase, 3 * phase + 1, phase**3):
        pixels = np.fft.irfft2(spectrum.coefficients(moved).numpy(), s=(16, 16))
        found = np.abs(np.fft.rfft2(pixels))
        alone = np.zeros((16, 9), dtype=bool)
        alone[np.ix_([0, 8], [0, 8])] = True  # these four are real, and can only shrink
        np.testing.assert_allclose(found[:, ~alone], magnitude.numpy()[:, ~alone], rtol=1e-4)
        assert (found[:, alone] <= magnitude.numpy()[:, alone] + 1e-5).all()
        seen = fv.render(spectrum, [moved])
        before = torch.from_numpy(pixels)[
            None
        ].float()  # what is shown is this, recoloured, at one contrast
        both = torch.stack([recorrelated(before[0]).flatten(), torch.logit(seen).flatten()])
        assert torch.corrcoef(both)[0, 1] > 0.9999
        torch.testing.assert_close(
            torch.logit(seen).std(correction=0), torch.tensor(1.0), rtol=1e-3, atol=0
        )


def test_the_spectrum_starts_without_a_spot():
    """Phases near zero would add up at the origin."""
    spectrum = fv.maco(torch.ones(3, 64, 33), generator("test"), learn_magnitude=False)
    pixels = torch.fft.irfft2(spectrum.coefficients(*spectrum.start), s=(64, 64))
    assert (pixels[:, 0, 0].abs() < 5 * pixels.std()).all()


def test_crops_lie_within_the_image():
    numbers = generator("test")
    for side in np.linspace(0.5, 0.05, 20):
        centre, sides = fv.draw_crops(numbers, 200, 3, side)
        assert (centre - sides[:, None] / 2).min() >= -1e-6 and (
            centre + sides[:, None] / 2
        ).max() <= 1 + 1e-6
        assert (
            sides.min() >= 0.05 - 1e-6
            and (sides[:3] == 1).all()
            and torch.equal(centre[:3], torch.full((3, 2), 0.5))
        )
        assert abs(sides[3:].mean() - max(side, 0.07)) < 0.02


def test_the_gradient_is_that_of_the_mean_over_noisy_looks():
    """The whole chain at once, by autograd, against what is handed from one part to the next."""
    model = network(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 14 * 14, 2))
    spectrum = fv.maco(
        torch.rand(3, 32, 17, generator=torch.Generator().manual_seed(0)),
        generator("test"),
        learn_magnitude=True,
    )
    leaves = [leaf.clone().requires_grad_() for leaf in spectrum.start]
    seen = model.normalize(
        resample_crops(fv.render(spectrum, leaves), *fv.draw_crops(generator(1), 5, 2, 0.4), 16)
    )
    expected = torch.autograd.grad(
        model.module[:3](seen).square().sum(1).mean(), leaves, retain_graph=True
    )
    with model.passes.batches_of(2):
        values, slope = fv.objective_gradient(model, seen.detach(), fv.OBJECTIVES["l2"])
    found = torch.autograd.grad(seen, leaves, slope / 5)
    torch.testing.assert_close(values, model.module[:3](seen).square().sum(1))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_objectives_are_their_formulas():
    embedding = torch.tensor([[3.0, -4.0], [0.0, 0.0]])
    expected = {"l2": [25, 0], "l1": [3.5, 0], "inverse": [-(1 / 9.1 + 1 / 16.1) / 2, -10]}
    for name, values in expected.items():
        torch.testing.assert_close(
            fv.OBJECTIVES[name](embedding), torch.tensor(values, dtype=torch.float32)
        )


def test_an_embedding_of_zero_leaves_the_bias():
    """A linear model of the mean colour: mid-grey has no embedding, and can be reached."""
    model = network(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    images = (
        torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1.0, 0.6, 0.3])[:, None, None]
    )
    found = prepared("featurevis(steps=150, crops=2, whole=1)", model, images)
    assert found["norm"] < 0.05 < found["start"]
    torch.testing.assert_close(found["logits"], model.module[2].bias.detach(), rtol=0, atol=0.05)


def test_the_same_twice_and_nothing_else_is_touched(vgg, reference):
    text = f"featurevis({QUICK})"
    torch.manual_seed(0)
    np.random.seed(0)
    before, theirs = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    settings = vgg.batch_size, vgg.pad_batches
    with assert_unchanged(vgg.module), torch.no_grad():
        first = prepared(text, vgg, reference)
    assert torch.equal(torch.random.get_rng_state(), before) and np.array_equal(
        np.random.get_state()[1], theirs
    )
    assert settings == (vgg.batch_size, vgg.pad_batches) and all(
        p.requires_grad for p in vgg.module.parameters()
    )
    torch.manual_seed(1)
    again = prepared(text, vgg, reference)
    assert all(torch.equal(first[key], again[key]) for key in first)
    with vgg.passes.batches_of(8):  # as in a run
        torch.testing.assert_close(
            prepared(text, vgg, reference)["image"], first["image"], rtol=1e-3, atol=1e-3
        )
    assert not torch.equal(
        prepared(f"featurevis({QUICK}, seed=1)", vgg, reference)["image"], first["image"]
    )


def test_passes_are_counted(vgg, reference):
    vgg.pass_counts.clear()
    prepared(f"featurevis({QUICK})", vgg, reference)
    assert vgg.pass_counts == {"forward": 2, "backward": 12 * 4}


@pytest.mark.parametrize(
    "dead",
    [
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Threshold(1e6, 2.0)),
    ],
)
def test_without_a_gradient_it_says_so_and_gives_what_it_has(dead):
    part = dead()
    nn.init.constant_(part[0].bias, -1e5)
    model = network(part, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with pytest.warns(
        UserWarning, match="the embedding of small has no gradient, so the image was not optimised"
    ):
        found = prepared(f"featurevis({QUICK})", model, images)
    assert all(value.isfinite().all() for value in found.values())
    assert found["still"] == 12 and found["norm"] == found["start"]


def test_a_reference_of_one_grey_gives_grey():
    model = network(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    found = prepared(f"featurevis({QUICK})", model, torch.full((2, 3, 16, 16), 0.5))
    torch.testing.assert_close(model.denormalize(found["image"]), torch.full((3, 16, 16), 0.5))


def test_not_a_number_is_an_error(reference):
    class Bad(nn.Module):
        def forward(self, x):
            return (0 * x).sqrt()  # its slope at zero is infinite

    model = network(Bad(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2), size=64)
    with pytest.raises(HeatproofError, match="gradient of small's embedding is not finite"):
        prepared(f"featurevis({QUICK})", model, reference)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "featurevis(objective=l3)",
            "objective: found l3; input should be 'l2', 'l1' or 'inverse'",
        ),
        ("featurevis(steps=0)", "greater than or equal to 1"),
        ("featurevis(whole=2)", "less than or equal to 1"),
        ("featurevis(parametrisation=fourier, learn_magnitude=True)", "fourier has no magnitudes"),
    ],
)
def test_arguments_that_do_not_fit_are_told(text, message, vgg, reference):
    with pytest.raises(HeatproofError, match=message):
        prepared(text, vgg, reference)


def test_it_is_for_colour_images():
    with pytest.raises(HeatproofError, match="takes 1 channels"):
        Baseline.parse("featurevis").prepare(
            SimpleNamespace(mean=torch.zeros(1, 1, 1), name="grey"), iter([])
        )
