"""Code of users: any signature, whatever it does to torch's settings, and its networks' faults."""

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.errors import HeatproofError


@pytest.fixture
def model() -> hp.Model:
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)]
    return hp.Model(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), *head).eval(), size=16)


def evaluated(model: hp.Model, method: object) -> hp.Result:
    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return hp.evaluate(model, (images, [0, 1, 2]), [method], ["sds(patches=4)"])


def many(model, x, y, *args, **kw):
    return x[:, 0]


def renamed(net, images, labels, *more, rng, power=2, **kw):
    return images[:, 0] ** power


@pytest.mark.parametrize("method", [many, renamed, lambda *args, **kw: args[1][:, 0]])
def test_a_method_may_have_any_signature(model, method):
    assert evaluated(model, hp.named("mine", method)).scores["status"].eq("ok").all()


def test_settings_of_torch_are_restored(model):
    def careless(model, x, target, *, rng):
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_grad_enabled(False)
        return x[:, 0]

    before = torch.get_num_threads()
    evaluated(model, careless)
    assert torch.get_num_threads() == before
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.is_grad_enabled()


class Fragile(nn.Module):
    """Returns NaN for dark images."""

    def forward(self, x):
        return torch.where(
            x.flatten(1).mean(1, keepdim=True) < -1.5, torch.nan, x.flatten(1)[:, :3]
        )


def test_logits_that_are_not_numbers_are_the_reason():
    model = hp.Model(Fragile(), size=16)
    images = torch.cat([torch.rand(2, 3, 16, 16), torch.zeros(1, 3, 16, 16)])
    scores = hp.evaluate(model, (images, [0, 1, 2]), ["ixg"], ["sds(patches=4)"]).scores
    assert "logits of the network are not finite" in scores["message"].iloc[2]
    assert scores["status"].tolist() == ["ok", "ok", "failed"]


def test_no_command_reaches_the_terminal():
    with pytest.raises(HeatproofError) as caught:
        hp.load_model("\x1b[2Jno\u202e")
    assert "\x1b" not in str(caught.value)
    assert "\u202e" not in str(caught.value)
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = hp.Model(net, size=16, name="a\x1b[2J\u202eb")
    result = evaluated(model, "ixg")
    for text in (repr(model), str(result), repr(result)):
        assert "\x1b" not in text and "\u202e" not in text
