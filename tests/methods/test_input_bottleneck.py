"""InputIBA: its prior, one turn of its fit against a slow version, and properties of its maps."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heatproof as hp
from heatproof.errors import NotApplicable
from heatproof.methods import input_bottleneck
from heatproof.methods.bottleneck import FeatureNoise, information
from heatproof.methods.input_bottleneck import MaskFit, critic_slope, critic_weights
from heatproof.tensor.noise import Rng

QUICK = "input-iba(steps=12, copies=4, turns=1)"


@pytest.fixture(scope="module")
def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )
    return hp.Model(module, size=16, name="net")


@pytest.fixture(scope="module")
def birds():
    model = hp.load_model("paperbirds/vgg")
    data = hp.load_data("paperbirds:test", model, limit=3)
    x = model.normalize(torch.stack([data.load(i).image for i in range(3)]))
    reference = hp.load_data("paperbirds:train", model, limit=64)
    return model, x, torch.tensor(data.labels), reference


def photos(count, seed):
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_information_is_the_divergence_from_what_the_prior_lets_pass():
    """The bottleneck is λx + (1 − λ)ε; under the prior it sees only mx + (1 − m)ε of the image."""
    z = drawn(50).double()
    keep = torch.linspace(0.01, 0.99, 50).double()
    prior = torch.linspace(0.97, 0.02, 50).double()
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(keep * z, 1 - keep),
        torch.distributions.Normal(keep * prior * z, 1 - keep * prior),
    )
    torch.testing.assert_close(information(z, keep, prior), expected)


def test_there_is_no_information_where_the_prior_keeps_everything():
    keep = torch.linspace(0, 0.999, 30)
    told = information(drawn(30), keep, torch.ones(30))
    torch.testing.assert_close(told, torch.zeros(30), rtol=0, atol=1e-6)
    assert (information(drawn(30), keep, torch.full((30,), 0.5)) >= 0).all()


def test_statistics_of_the_images_are_those_of_each_channel(net):
    images = drawn(10, 3, 16, 16) * torch.tensor([1.0, 2, 3]).view(3, 1, 1) + 1
    prepared = input_bottleneck._prepare(net, iter(images.split(4)))
    torch.testing.assert_close(prepared["image mean"], images.mean((0, 2, 3)))
    torch.testing.assert_close(prepared["image std"], images.std((0, 2, 3), correction=0))
    assert prepared["mean"].shape == net.shape("middle")


class Critic(nn.Module):
    """The critic as modules."""

    def __init__(self, weights):
        super().__init__()
        first, second, last = (w.detach().clone() for w in weights)
        self.body = nn.Sequential(
            nn.Conv2d(first.shape[1], len(first), 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2),
            nn.Conv2d(second.shape[1], len(second), 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(last.shape[1], 1, bias=False),
        )
        for layer, weight in zip((0, 2, 5), (first, second, last), strict=True):
            self.body[layer].weight.data = weight

    def forward(self, z):
        return self.body(z)[:, 0]


@pytest.fixture
def fit(net):
    image = drawn(3, 16, 16, seed=1)
    features = net.activation(image[None], "middle")[0]
    mean = features.mean((1, 2), keepdim=True).expand_as(features)
    noise = FeatureNoise(mean, torch.full_like(features, 0.5), torch.ones_like(features))
    keep = drawn(*features.shape, seed=2).sigmoid()
    channels = torch.ones(1, 3, 1, 1)
    image_noise = FeatureNoise(0.1 * channels, 0.9 * channels, channels)
    start = drawn(16, 16, seed=3).abs()
    return MaskFit(net, image, start, image_noise, (features, keep, noise), Rng(0, ["a"]))


def test_the_slope_of_the_generator_is_that_of_its_loss(net, fit):
    images = drawn(32, 3, 16, 16, seed=4).requires_grad_()
    assert net.layer_name("middle") == "1"  # after the first two modules
    loss = -Critic(fit.critic)(fit._standardized(net.module[:2](images))).mean()
    (expected,) = torch.autograd.grad(loss, images)
    found = critic_slope(net, images.detach(), fit.critic, fit._standardized)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


def test_one_step_of_the_critic_is_a_step_of_a_wasserstein_gan(net, fit):
    """RMSprop on the difference of the means, then every weight is clipped."""
    critic = Critic(fit.critic)
    optimiser = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    rng = Rng(0, ["a"])
    eps = rng.normal("input-iba real 0 0", (32, *fit.features.shape))[0]
    real = fit.keep * fit.features + (1 - fit.keep) * (fit.noise.mean + fit.noise.std * eps)
    eps = rng.normal("input-iba fake 0 0", (32, 3, 16, 16))[0]
    mask = fit.mask.detach().sigmoid()
    fake = net.activation(mask * fit.image + (1 - mask) * (0.1 + 0.9 * eps), "middle")
    before = [w.detach().clone() for w in fit.critic]
    real, fake = ((z - fit.noise.mean) / fit.noise.std for z in (real, fake))
    (critic(fake).mean() - critic(real).mean()).backward()
    slopes = [p.grad.clone() for p in critic.parameters()]
    optimiser.step()
    fit._step_critic("0 0")
    for weight, other, slope, old in zip(
        fit.critic, critic.parameters(), slopes, before, strict=True
    ):
        assert weight.abs().max() <= 0.01
        # A first step of RMSprop has the size 10 · lr and the sign of the slope, which rounding
        # decides where the slope is tiny.
        clear = slope.abs() > 1e-3 * slope.abs().max()
        assert clear.any() and not torch.equal(weight.detach()[clear], old[clear])
        torch.testing.assert_close(
            weight.detach()[clear], other.detach().clamp(-0.01, 0.01)[clear], rtol=1e-3, atol=1e-6
        )


def test_the_fit_moves_features_towards_those_of_the_bottleneck(net, fit, monkeypatch):
    """With larger steps than the authors', so that it shows: mean features come nearer."""
    monkeypatch.setattr(input_bottleneck, "CRITIC_RATE", 2e-3)
    again = MaskFit(
        net,
        fit.image,
        torch.zeros(16, 16),
        fit.image_noise,
        (fit.features, torch.ones_like(fit.features), fit.noise),
        Rng(0, ["a"]),
    )
    again.optimisers["generator"].param_groups[0]["lr"] = 0.05

    def distance():
        with torch.no_grad():
            z = net.activation(again._generated("distance"), "middle")
        return (z.mean(0) - fit.features).square().mean().item()

    first = distance()
    for _ in range(12):
        again.step()
    assert distance() < 0.7 * first
    assert again.turn == 12


def test_maps_lie_between_zero_and_one_and_do_not_depend_on_the_batch(birds):
    model, x, target, reference = birds
    maps = hp.explain(model, x, target, QUICK, reference=reference)
    assert maps.shape == (3, 64, 64) and maps.min() >= 0 and maps.max() <= 1
    assert (maps.flatten(1).std(1) > 0.01).all()
    again = hp.explain(model, x[1:], target[1:], QUICK, ids=["1", "2"], reference=reference)
    difference = (again - maps[1:]).abs().mean()
    assert difference < 0.01 * maps.std()
    stricter = hp.explain(
        model, x, target, "input-iba(steps=12, copies=4, turns=1, beta=2000)", reference=reference
    )
    assert stricter.mean() < maps.mean()


class LeftHalf(nn.Module):
    """The brightness of the left half decides between two classes."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        nn.init.constant_(self.features[0].weight, 1 / 27)
        nn.init.zeros_(self.features[0].bias)

    def forward(self, x):
        left = self.features(x)[..., : x.shape[3] // 2].mean((1, 2, 3))
        return torch.stack([20 * left - 20, torch.zeros_like(left)], 1)


def test_the_map_leaves_out_what_does_not_matter():
    """The right half can be noise at no cost, but for the pixel next to the left half."""
    model = hp.Model(LeftHalf(), size=16, name="left")
    x = torch.full((1, 3, 16, 16), 1.5)
    expression = "input-iba(turns=1, beta=1)"
    maps = hp.explain(model, x, torch.tensor([0]), expression, reference=photos(8, 5))
    assert maps[..., :7].mean() > 5 * maps[..., 11:].mean()


def test_an_unfinished_map_has_a_note(net):
    notes = hp.MapNotes(1)
    hp.explain(
        net, drawn(1, 3, 16, 16), torch.tensor([0]), "input-iba(steps=2, copies=2, turns=1)",
        reference=photos(4, 5), notes=notes,
    )  # fmt: skip
    assert notes.texts[0].startswith("not converged")


def test_networks_without_a_layer_for_the_critic_are_refused():
    flat = hp.Model(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), size=8)
    with pytest.raises(NotApplicable, match="input-iba"):
        hp.explain(
            flat,
            drawn(1, 3, 8, 8),
            torch.tensor([0]),
            "input-iba",
            reference=torch.rand(2, 3, 8, 8),
        )


def test_critics_differ_between_samples():
    first, second = (critic_weights((8, 8, 8), Rng(0, [i]), torch.zeros(())) for i in "ab")
    assert not torch.equal(first[0], second[0])
    assert F.conv2d(torch.zeros(1, 8, 8, 8), first[0], stride=2, padding=1).shape == (1, 64, 4, 4)
