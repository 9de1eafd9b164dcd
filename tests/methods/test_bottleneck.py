"""Information bottleneck: its statistics, its pieces against the slow way, and what is true of its maps."""

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.methods.bottleneck import _bits, _slope, statistics
from heatproof.tensor.noise import Rng


@pytest.fixture(scope="module")
def model():
    return hp.load_model("paperbirds/vgg")


@pytest.fixture(scope="module")
def some(model):
    data = hp.load_data("paperbirds:test", model, limit=3)
    return model.normalize(torch.stack([data.load(i).image for i in range(3)])), torch.tensor(
        data.labels
    )


def test_statistics_over_batches_are_those_of_all(model):
    x = torch.randn(20, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    found = statistics(model.tail("conv3"), iter(torch.split(x, 7)))
    h = model.activation(x, "conv3").double()
    torch.testing.assert_close(found["mean"].double(), h.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["std"].double(), h.std(0, correction=0), rtol=1e-3, atol=1e-4)
    assert torch.equal(found["active"].bool(), (h != 0).double().mean(0) >= 0.01)


def test_bits_are_the_divergence_between_two_normal_distributions():
    z, keep = torch.randn(50), torch.rand(50) * 0.98 + 0.01
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(keep * z, 1 - keep),
        torch.distributions.Normal(torch.zeros(50), torch.ones(50)),
    )
    torch.testing.assert_close(_bits(z, keep), expected, rtol=1e-4, atol=1e-5)


def test_the_slope_is_that_of_the_loss(model, some):
    x, target = some
    part, h = model.tail("conv4"), model.activation(x, "conv4")
    noise, active = torch.randn(3, 4, *h.shape[1:]), torch.ones(h.shape[1:])
    keep = (torch.rand_like(h) * 0.5 + 0.25).requires_grad_()
    losses = []
    for copy in range(4):
        logits = part(keep * h + (1 - keep) * noise[:, copy])
        losses.append(nn.functional.cross_entropy(logits, target, reduction="none"))
    (expected,) = torch.autograd.grad(torch.stack(losses).mean(0).sum(), keep)
    found = _slope(part, h, target, keep.detach(), noise, active)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())


def test_maps_are_bits_the_same_twice_and_for_any_neighbours(model, some):
    x, target = some
    given = {"reference": hp.load_data("paperbirds:train", model, limit=64)}
    maps = hp.explain(model, x, target, "iba", **given)
    assert maps.min() >= 0 and (maps.flatten(1).amax(1) > maps.flatten(1).amin(1)).all()
    assert torch.equal(maps, hp.explain(model, x, target, "iba", **given))
    torch.testing.assert_close(
        hp.explain(model, x[1:], target[1:], "iba", ids=["1", "2"], **given),
        maps[1:],
        rtol=1e-3,
        atol=1e-4 * maps.max().item(),
    )
    stricter = hp.explain(model, x, target, "iba(beta=1000)", **given)
    assert stricter.sum() < maps.sum()  # information is dearer


def test_it_needs_images_that_are_not_judged(model, some, tmp_path):
    x, target = some
    with pytest.raises(HeatproofError, match="needs reference images"):
        hp.explain(model, x, target, "iba")
    images = torch.rand(4, 3, 64, 64)
    alone = hp.evaluate(model, (images, [0, 1, 2, 3]), ["iba(steps=1, copies=1)", "ixg"])
    assert set(alone.scores.loc[alone.scores["method"] == "iba(steps=1, copies=1)", "status"]) == {
        "n/a"
    }
    with_some = hp.evaluate(
        model,
        (images, [0, 1, 2, 3]),
        ["iba(steps=1, copies=1)"],
        reference=torch.rand(8, 3, 64, 64),
    )
    assert with_some.scores["status"].eq("ok").all()
    same = hp.evaluate(model, (images, [0, 1, 2, 3]), ["iba(steps=1, copies=1)"], reference=images)
    assert same.scores["message"].str.contains("4 of the 4 reference images of .* are judged").all()


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


def test_noise_keyed_by_sample():
    rng = Rng(0, ["a", "b"])
    assert torch.equal(rng.normal("iba 0", (2, 3))[1], Rng(0, ["b"]).normal("iba 0", (2, 3))[0])
