"""The uninformative image: properties that hold by construction, on small networks."""

import numpy as np
import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.baselines import Baseline
from heatproof.baselines import featurevis as fv
from heatproof.baselines.maco import RENDERERS, Renderer, maco, magnitudes
from heatproof.errors import HeatproofError
from heatproof.models.guards import assert_unchanged
from heatproof.tensor.noise import Rng, generator
from heatproof.tensor.spectra import COLOURS, recorrelated

QUICK = "steps=12, crops=4"
DEFAULT, XPLIQUE = RENDERERS[None], RENDERERS["xplique"]


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
def test_the_norm_of_the_embedding_decreases(name, arguments, reference):
    model = hp.load_model(f"paperbirds/{name}")
    state = prepared(f"featurevis({QUICK}, {arguments})", model, reference)
    assert state["still"] == 0 and (state["norm"] < state["start"] or "l1" in arguments)
    assert state["trace"].shape == (12,) and state["trace"][-3:].mean() < state["trace"][:3].mean()


def test_an_embedding_that_is_not_near_zero_is_warned_of(vgg, reference):
    with pytest.warns(UserWarning, match="is not near zero after 1 steps: its norm was"):
        state = prepared("featurevis(steps=1, crops=1, whole=1)", vgg, reference)
    assert not state["converged"]
    state = prepared("featurevis(steps=60, crops=2, whole=1)", vgg, reference)
    assert state["converged"] == (state["norm"] <= 0.1 * state["start"])


def test_stored_facts_agree_with_the_image(vgg, reference):
    state = prepared(f"featurevis({QUICK})", vgg, reference)
    assert state["image"].shape == (3, 64, 64)
    pixels = vgg.denormalize(state["image"])
    assert pixels.min() >= 0 and pixels.max() <= 1 and pixels.std() > 0.1
    logits, embedding = vgg.forward(state["image"][None])
    torch.testing.assert_close(state["norm"], embedding.square().sum().sqrt())
    torch.testing.assert_close(state["logits"], logits[0])
    torch.testing.assert_close(
        state["entropy"], torch.distributions.Categorical(logits=logits[0]).entropy()
    )


def test_every_sample_gets_the_same_image(vgg, reference):
    baseline = Baseline.parse(f"featurevis({QUICK})")
    state = prepared(baseline.label, vgg, reference)
    painted = baseline.fill(torch.zeros(2, 3, 64, 64), vgg, Rng(0, "ab"), prepared=state)
    assert torch.equal(painted, state["image"].expand(2, -1, -1, -1))


def test_magnitudes_are_means_over_the_reference(vgg, reference):
    means = magnitudes(vgg, iter(torch.split(vgg.normalize(reference), 5)))
    mixed = np.einsum("nchw,cd->ndhw", reference.double().numpy() - 0.5, np.linalg.inv(COLOURS))
    np.testing.assert_allclose(
        means.numpy(), np.abs(np.fft.rfft2(mixed)).mean(0), rtol=1e-3, atol=1e-3
    )


def test_the_magnitude_does_not_depend_on_the_phase():
    magnitude, numbers = (
        torch.fft.rfft2(torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))).abs(),
        generator("test"),
    )
    spectrum = maco(magnitude, numbers, False, (16, 16), DEFAULT)
    (phase,) = spectrum.start
    for moved in (phase, 3 * phase + 1, phase**3):
        pixels = np.fft.irfft2(spectrum.coefficients(moved).numpy(), s=(16, 16))
        ours = np.abs(np.fft.rfft2(pixels))
        self_mirrored = np.zeros((16, 9), dtype=bool)
        self_mirrored[np.ix_([0, 8], [0, 8])] = True  # these four are real and can only shrink
        np.testing.assert_allclose(
            ours[:, ~self_mirrored], magnitude.numpy()[:, ~self_mirrored], rtol=1e-4
        )
        assert (ours[:, self_mirrored] <= magnitude.numpy()[:, self_mirrored] + 1e-5).all()
        image = DEFAULT.render(spectrum, [moved])
        # The image is this one, recoloured and scaled to unit contrast.
        before = torch.from_numpy(pixels)[None].float()
        both = torch.stack([recorrelated(before[0]).flatten(), torch.logit(image).flatten()])
        assert torch.corrcoef(both)[0, 1] > 0.9999
        torch.testing.assert_close(
            torch.logit(image).std(correction=0), torch.tensor(1.0), rtol=1e-3, atol=0
        )


def test_the_initial_image_has_no_bright_spot():
    """Phases near zero would add up at the origin."""
    spectrum = maco(torch.ones(3, 64, 33), generator("test"), False, (64, 64), DEFAULT)
    pixels = torch.fft.irfft2(spectrum.coefficients(*spectrum.start), s=(64, 64))
    assert (pixels[:, 0, 0].abs() < 5 * pixels.std()).all()


def test_crops_lie_within_the_image():
    numbers = generator("test")
    renderer = DEFAULT._replace(crops=200, whole=0.015)
    for progress in np.linspace(0, 1, 20):
        centre, sides = renderer.draw_crops(numbers, progress)
        side = 0.5 - 0.45 * progress
        assert (centre - sides[:, None] / 2).min() >= -1e-6 and (
            centre + sides[:, None] / 2
        ).max() <= 1 + 1e-6
        assert (
            sides.min() >= 0.05 - 1e-6
            and (sides[:3] == 1).all()
            and torch.equal(centre[:3], torch.full((3, 2), 0.5))
        )
        assert abs(sides[3:].mean() - max(side, 0.07)) < 0.02


def test_the_gradient_is_that_of_the_mean_over_noisy_crops():
    """Compare autograd over the whole chain with gradients passed from part to part."""
    model = network(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 14 * 14, 2))
    magnitude = torch.rand(3, 32, 17, generator=torch.Generator().manual_seed(0))
    spectrum = maco(magnitude, generator("test"), True, (32, 32), DEFAULT)
    leaves = [leaf.clone().requires_grad_() for leaf in spectrum.start]
    renderer = DEFAULT._replace(crops=5, whole=0.4)
    image = renderer.render(spectrum, leaves)
    crops = model.normalize(renderer.crop(image, generator(1), 0.2, (16, 16)))
    expected = torch.autograd.grad(
        model.module[:3](crops).square().sum(1).mean(), leaves, retain_graph=True
    )
    with model.passes.batches_of(2):
        values, slope = fv.objective_gradient(model, crops.detach(), fv.OBJECTIVES["l2"])
    gradients = torch.autograd.grad(crops, leaves, slope / 5)
    torch.testing.assert_close(values, model.module[:3](crops).square().sum(1))
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_objectives_are_their_formulas():
    embedding = torch.tensor([[3.0, -4.0], [0.0, 0.0]])
    expected = {"l2": [25, 0], "l1": [3.5, 0], "inverse": [-(1 / 9.1 + 1 / 16.1) / 2, -10]}
    for name, values in expected.items():
        torch.testing.assert_close(
            fv.OBJECTIVES[name](embedding), torch.tensor(values, dtype=torch.float32)
        )


def test_xplique_sets_the_contrast_before_recolouring_and_pairs_no_phases():
    """Compare with Xplique's formula, in NumPy; its own code gave the same to 1e-5."""
    numbers = np.random.default_rng(0)
    magnitude = numbers.random((3, 12, 7)).astype(np.float32)
    spectrum = maco(torch.from_numpy(magnitude), numbers, False, (12, 12), XPLIQUE)
    (phase,) = (leaf.double().numpy() for leaf in spectrum.start)
    assert abs(phase.mean()) < 0.2 and abs(phase.std() - 1) < 0.1
    for deviation in (1, 0.5):
        pixels = np.fft.irfft2(magnitude * np.exp(1j * (phase - phase.mean()) / phase.std()))
        pixels = deviation * (pixels - pixels.mean()) / pixels.std()
        expected = 1 / (1 + np.exp(-np.einsum("chw,cd->dhw", pixels, np.array(COLOURS))))
        ours = XPLIQUE._replace(deviation=deviation).render(spectrum, spectrum.start)
        np.testing.assert_allclose(ours.numpy(), expected, atol=1e-5)


def test_crops_of_xplique_may_reach_beyond_the_image():
    """Compare with TensorFlow's ``crop_and_resize``, pixel by pixel."""
    image = np.random.default_rng(0).random((3, 20, 20)).astype(np.float32)
    renderer = XPLIQUE._replace(crops=12, max_side=0.9)
    crops = renderer.crop(torch.from_numpy(image), generator("test"), 0.0, (6, 6)).numpy()
    centres, sides = renderer.draw_crops(generator("test"), 0.0)
    corners = (centres - sides[:, None] / 2).numpy()
    assert corners.min() < 0
    for crop, corner, side in zip(crops, corners, sides.numpy(), strict=True):
        for i, j in np.ndindex(6, 6):
            y, x = (19 * (c + side * k / 5) for c, k in zip(corner, (i, j), strict=True))
            expected = np.full(3, 0.5)
            if 0 <= y <= 19 and 0 <= x <= 19:
                top, left = min(int(y), 18), min(int(x), 18)
                down, along = y - top, x - left
                upper, lower = (
                    (1 - along) * image[:, row, left] + along * image[:, row, left + 1]
                    for row in (top, top + 1)
                )
                expected = (1 - down) * upper + down * lower
            np.testing.assert_allclose(crop[:, i, j], expected, atol=1e-5)


def test_compat_sets_the_renderer_and_yields_to_what_is_given():
    known = Baseline.parse("featurevis(compat=xplique, crops=5, contrast=rgb)").arguments
    assert Renderer.of(known) == XPLIQUE._replace(crops=5, contrast="rgb")
    assert Renderer.of(Baseline.parse("featurevis").arguments) == DEFAULT
    assert Baseline.parse("featurevis(compat=xplique, steps=2)").preparation() == (2, 64)


def test_uniform_sides_lie_between_their_bounds():
    renderer = DEFAULT._replace(crop_sides="uniform", max_side=0.7, crops=500, whole=0)
    for progress in (0, 1):
        _, sides = renderer.draw_crops(generator("test"), progress)
        assert sides.min() >= 0.05 and sides.max() <= 0.7 and abs(sides.mean() - 0.375) < 0.03


@pytest.mark.parametrize(
    "option",
    [
        "contrast=decorrelated",
        "deviation=0.5",
        "phase_start=normal",
        "crop_sides=uniform",
        "min_side=0.2",
        "max_side=0.7",
        "whole=0",
        "scale=1",
        "stretch=True",
        "learn_magnitude=True, gain_start=0",
        "compat=xplique, scale=1",
    ],
)
def test_every_option_of_the_renderer_changes_the_image(option, vgg, reference):
    plain = "featurevis(steps=2, crops=4)"
    chosen = plain.replace(")", f", {option})")
    assert Baseline.parse(chosen).label != Baseline.parse(plain).label
    first, second = (prepared(text, vgg, reference)["image"] for text in (plain, chosen))
    assert (first - second).abs().max() > 1e-3
    if "stretch" in option:
        pixels = vgg.denormalize(second)
        assert abs(pixels.min()) < 1e-5 and abs(pixels.max() - 1) < 1e-5


def test_free_factors_that_start_at_zero_start_from_grey():
    renderer = XPLIQUE._replace(gain_start=0)
    spectrum = maco(torch.rand(3, 16, 9) + 1, generator("test"), True, (16, 16), renderer)
    leaves = [leaf.requires_grad_() for leaf in spectrum.start]
    image = renderer.render(spectrum, leaves)
    assert torch.equal(image, torch.full_like(image, 0.5))
    _, gain = torch.autograd.grad(image[:, :4].sum(), leaves)
    assert gain.isfinite().all() and gain.any()


def test_a_zero_embedding_gives_the_bias_as_logits():
    """The model is linear in the mean colour: mid-grey has a zero embedding and is reachable."""
    model = network(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    images = (
        torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1.0, 0.6, 0.3])[:, None, None]
    )
    state = prepared("featurevis(steps=150, crops=2, whole=1)", model, images)
    assert state["norm"] < 0.05 < state["start"]
    torch.testing.assert_close(state["logits"], model.module[2].bias.detach(), rtol=0, atol=0.05)


def test_the_image_is_reproducible_and_no_other_state_changes(vgg, reference):
    text = f"featurevis({QUICK})"
    torch.manual_seed(0)
    np.random.seed(0)
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    settings = vgg.batch_size, vgg.pad_batches
    with assert_unchanged(vgg.module), torch.no_grad():
        first = prepared(text, vgg, reference)
    assert torch.equal(torch.random.get_rng_state(), torch_state) and np.array_equal(
        np.random.get_state()[1], numpy_state
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
def test_without_a_gradient_it_warns_and_returns_the_initial_image(dead):
    part = dead()
    nn.init.constant_(part[0].bias, -1e5)
    model = network(part, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with pytest.warns(
        UserWarning, match="the embedding of small has no gradient, so the image was not optimized"
    ):
        state = prepared(f"featurevis({QUICK})", model, images)
    assert all(value.isfinite().all() for value in state.values())
    assert state["still"] == 12 and state["norm"] == state["start"]


def test_a_reference_of_one_grey_gives_grey():
    model = network(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    state = prepared(f"featurevis({QUICK})", model, torch.full((2, 3, 16, 16), 0.5))
    torch.testing.assert_close(model.denormalize(state["image"]), torch.full((3, 16, 16), 0.5))


def test_a_gradient_that_is_not_finite_is_an_error(reference):
    class Bad(nn.Module):
        def forward(self, x):
            return (0 * x).sqrt()  # its gradient at zero is infinite

    model = network(Bad(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2), size=64)
    with pytest.raises(HeatproofError, match="gradient of small's embedding is not finite"):
        prepared(f"featurevis({QUICK})", model, reference)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "featurevis(objective=l3)",
            "objective: found 'l3'; input should be 'l2', 'l1' or 'inverse'",
        ),
        ("featurevis(steps=0)", "greater than or equal to 1"),
        ("featurevis(whole=2)", "less than or equal to 1"),
        (
            "featurevis(parametrisation=fourier, learn_magnitude=True)",
            "fourier has no fixed magnitudes",
        ),
    ],
)
def test_invalid_arguments_are_reported(text, message, vgg, reference):
    with pytest.raises(HeatproofError, match=message):
        prepared(text, vgg, reference)
