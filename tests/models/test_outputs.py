"""Outputs that are probabilities are noticed when a model is made; logits never are."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heatproof as hp
from heatproof.models.outputs import probabilities
from heatproof.runs.store import Store


def small(classes, *last, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(6, classes), *last).eval()


class Function(nn.Module):
    """A network whose last operation is a function, not a module."""

    def __init__(self, net, function):
        super().__init__()
        self.net = net
        self.function = function

    def forward(self, x):
        return self.function(self.net(x))


def by_hand(z):
    powers = z.exp()
    return powers / powers.sum(1, keepdim=True)


@pytest.mark.parametrize("classes", [2, 3, 1000])
@pytest.mark.parametrize("function", [lambda z: z.softmax(1), by_hand])
def test_a_softmax_is_noticed_however_it_is_written(classes, function):
    with pytest.warns(UserWarning, match=r"look like probabilities: .* each row sums to 1"):
        hp.Model(Function(small(classes), function), size=16)


@pytest.mark.parametrize("classes", [1, 2, 14])
@pytest.mark.parametrize("function", [torch.sigmoid, lambda z: F.sigmoid(z).reshape(len(z), -1)])
def test_a_sigmoid_is_noticed(classes, function):
    with pytest.warns(UserWarning, match="the last operation is a sigmoid"):
        hp.Model(Function(small(classes), function), size=16)


def test_the_warning_has_the_line_that_cures_it():
    net = small(5, nn.Softmax(1))
    with pytest.warns(UserWarning, match="probabilities") as caught:
        hp.Model(net, size=16, name="mine")
    (message,) = [str(warning.message) for warning in caught]
    assert message.startswith("the outputs of mine look like probabilities")
    cure = message.rpartition(": ")[2]
    exec(cure, {"net": net, "torch": torch})
    assert hp.Model(net, size=16).output_advice == ""


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
def test_logits_are_not_taken_for_probabilities(classes):
    """Untrained networks of few classes often have all their logits in [0, 1]."""
    inside = 0
    for seed in range(200):
        net = small(classes, seed=seed)
        images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        outputs = net(images).detach()
        inside += bool(((outputs >= 0) & (outputs <= 1)).all())
        assert probabilities(net, images, outputs) == ""
    if classes <= 2:
        assert inside > 10


@pytest.mark.parametrize("name", ["paperbirds/resnet", "paperbirds/vgg", "paperbirds/vit"])
def test_trained_networks_are_not_warned_of(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hp.load_model(name).output_advice == ""


def test_a_run_and_its_report_say_so(tmp_path):
    with pytest.warns(UserWarning, match="look like probabilities"):
        model = hp.Model(small(4, nn.Softmax(1)), size=16, name="mine")
    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    result = hp.evaluate(model, (images, [0, 1, 2]), "ixg", ["sds"], out=tmp_path / "run")
    facts = Store(tmp_path / "run").provenance().models
    assert "net[5] = torch.nn.Identity()" in facts[0].output_advice
    assert "outputs of mine look like probabilities" in result.report().read_text()
