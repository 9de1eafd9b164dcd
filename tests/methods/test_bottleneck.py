"""Information bottleneck: statistics, parts against slow versions, properties of maps."""

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.methods.bottleneck import _slope, information, statistics
from heatproof.tensor.noise import Rng


@pytest.fixture(scope="module")
def model():
    return hp.load_model("paperbirds/vgg")


@pytest.fixture(scope="module")
def birds(model):
    data = hp.load_data("paperbirds:test", model, limit=3)
    return model.normalize(torch.stack([data.load(i).image for i in range(3)])), torch.tensor(
        data.labels
    )


def test_statistics_do_not_depend_on_batches(model):
    x = torch.randn(20, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    stats = statistics(model.tail("conv3"), iter(torch.split(x, 7)))
    h = model.activation(x, "conv3").double()
    torch.testing.assert_close(stats["mean"].double(), h.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(stats["std"].double(), h.std(0, correction=0), rtol=1e-3, atol=1e-4)
    assert torch.equal(stats["active"].bool(), (h != 0).double().mean(0) >= 0.01)


def test_bits_are_the_divergence_between_two_normal_distributions():
    z, keep = torch.randn(50), torch.rand(50) * 0.98 + 0.01
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(keep * z, 1 - keep),
        torch.distributions.Normal(torch.zeros(50), torch.ones(50)),
    )
    torch.testing.assert_close(information(z, keep), expected, rtol=1e-4, atol=1e-5)


def test_the_slope_is_the_gradient_of_the_loss(model, birds):
    x, target = birds
    part, h = model.tail("conv4"), model.activation(x, "conv4")
    noise, active = torch.randn(3, 4, *h.shape[1:]), torch.ones(h.shape[1:])
    keep = (torch.rand_like(h) * 0.5 + 0.25).requires_grad_()
    losses = []
    for copy in range(4):
        logits = part(keep * h + (1 - keep) * noise[:, copy])
        losses.append(nn.functional.cross_entropy(logits, target, reduction="none"))
    (expected,) = torch.autograd.grad(torch.stack(losses).mean(0).sum(), keep)
    slope, entropy = _slope(part, h, target, keep.detach(), noise, active)
    torch.testing.assert_close(entropy, torch.stack(losses).mean(0).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(slope, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())


def test_maps_are_reproducible_and_do_not_depend_on_the_batch(model, birds):
    x, target = birds
    options = {"reference": hp.load_data("paperbirds:train", model, limit=64)}
    maps = hp.explain(model, x, target, "iba", **options)
    assert maps.min() >= 0 and (maps.flatten(1).amax(1) > maps.flatten(1).amin(1)).all()
    assert torch.equal(maps, hp.explain(model, x, target, "iba", **options))
    torch.testing.assert_close(
        hp.explain(model, x[1:], target[1:], "iba", ids=["1", "2"], **options),
        maps[1:],
        rtol=1e-3,
        atol=1e-4 * maps.max().item(),
    )
    stricter = hp.explain(model, x, target, "iba(beta=1000)", **options)
    assert stricter.sum() < maps.sum()  # information costs more


def test_reference_images_must_not_be_evaluated(model, birds, tmp_path):
    x, target = birds
    with pytest.raises(HeatproofError, match="needs reference images"):
        hp.explain(model, x, target, "iba")
    images = torch.rand(4, 3, 64, 64)
    without_reference = hp.evaluate(
        model, (images, [0, 1, 2, 3]), ["iba(steps=1, copies=1)", "ixg"]
    )
    assert set(
        without_reference.scores.loc[
            without_reference.scores["method"] == "iba(steps=1, copies=1)", "status"
        ]
    ) == {"n/a"}
    with_reference = hp.evaluate(
        model,
        (images, [0, 1, 2, 3]),
        ["iba(steps=1, copies=1)"],
        reference=torch.rand(8, 3, 64, 64),
    )
    assert with_reference.scores["status"].eq("ok").all()
    with pytest.raises(HeatproofError, match="4 of the 4 reference images of .* are evaluated"):
        hp.evaluate(model, (images, [0, 1, 2, 3]), ["iba(steps=1, copies=1)"], reference=images)


def test_a_run_prepares_once(model, tmp_path, monkeypatch):
    from heatproof.methods import bottleneck
    from heatproof.methods.base import METHODS

    calls = []

    def counting(part, images):
        calls.append(part.start_layer)
        return bottleneck.statistics(part, images)

    object.__setattr__(METHODS["iba"], "prepare", counting)
    try:
        arguments = {"limit": 70, "out": tmp_path / "run"}
        hp.evaluate(
            model,
            "paperbirds:test",
            ["iba(steps=1, copies=1)", "iba(steps=1, copies=1)|abs"],
            ["sds"],
            **arguments,
        )
        assert len(calls) == 1
        hp.evaluate(
            model,
            "paperbirds:test",
            ["iba(steps=1, copies=1)", "iba(steps=1, copies=1)|abs"],
            ["sds"],
            **arguments,
        )
        assert len(calls) == 1
        assert len(list((tmp_path / "run" / "prepared").iterdir())) == 1
    finally:
        object.__setattr__(METHODS["iba"], "prepare", bottleneck.statistics)


def test_noise_is_keyed_by_sample():
    rng = Rng(0, ["a", "b"])
    assert torch.equal(rng.normal("iba 0", (2, 3))[1], Rng(0, ["b"]).normal("iba 0", (2, 3))[0])
