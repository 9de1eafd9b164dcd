"""DeepSHAP against Captum's DeepLift, summation to delta, and closed forms."""

import copy

import captum.attr
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heatproof as hp
from heatproof.errors import NotApplicable
from heatproof.tensor.scores import SCORES

SHIPPED = ["resnet", "vgg", "vgg-bn", "resnet-nobn", "vgg-nobias"]


def assert_maps_close(ours, theirs, tolerance=1e-5):
    torch.testing.assert_close(
        ours, theirs.detach(), rtol=1e-4, atol=float(tolerance * theirs.abs().max())
    )


@pytest.mark.parametrize("name", ["resnet", "vgg", "vgg-bn", "vgg-nobias"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_captum_agrees(raw, spread, shipped, name):
    """In double precision: quotients of small differences amplify rounding."""
    model = hp.Model(copy.deepcopy(shipped(name).module).double(), size=64)
    x = spread((3, 3, 64, 64)).double()
    target = torch.tensor([1, 5, 30])
    theirs = captum.attr.DeepLift(model.module).attribute(x, target=target)
    assert_maps_close(raw(model, x, target, "deepshap", compat="captum"), theirs)


@pytest.mark.parametrize("name", ["resnet", "vgg"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_captums_deepshap_agrees(raw, spread, shipped, deviation, name):
    """Captum's DeepLiftShap wants at least two references; both are zero, as in Li et al. 2024."""
    model = hp.Model(copy.deepcopy(shipped(name).module).double(), size=64)
    x = spread((2, 3, 64, 64)).double()
    target = torch.tensor([1, 5])
    references = torch.zeros(2, 3, 64, 64).double()
    method = captum.attr.DeepLiftShap(model.module)
    theirs = method.attribute(x, references, target=target)
    ours = raw(model, x, target, "deepshap", compat="captum")
    deviation("deepshap(compat=captum)", "Captum 0.9", ours, theirs)
    assert_maps_close(ours, theirs)
    if name == "vgg":  # the default attributes gains and losses of max pools
        default = raw(model, x, target, "deepshap")
        assert (default - theirs).abs().max() > 0.1 * theirs.abs().max()


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("layer", ["input", "middle", "final", "cam"])
@pytest.mark.parametrize("score", ["logit", "softmax", "logprob"])
def test_maps_sum_to_the_difference_of_the_scores(raw, spread, shipped, name, layer, score):
    model, x, target = shipped(name), spread((3, 3, 64, 64)), torch.tensor([1, 5, 30])
    h, tail = model.activation(x, layer), model.tail(layer)
    sums = raw(model, x, target, "deepshap", layer, score=score).flatten(1).sum(1)
    difference = SCORES[score](tail.logits(h), target) - SCORES[score](
        tail.logits(torch.zeros_like(h)), target
    )
    torch.testing.assert_close(sums, difference, rtol=1e-3, atol=1e-5)


class Pools(nn.Module):
    """Has overlapping max pools before and after ReLUs, and a window won by the reference."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv1, self.conv2, self.fc = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.Linear(24, 4),
        )

    def forward(self, x):
        h = F.relu(F.max_pool2d(self.conv1(x), 3, 2, 1))
        h = F.max_pool2d(F.leaky_relu(self.conv2(h), 0.1), kernel_size=2, ceil_mode=True)
        return self.fc(F.adaptive_max_pool2d(torch.tanh(h) + h, 2).flatten(1))


def test_maps_sum_to_the_difference_with_overlapping_pools(raw, spread):
    net = Pools().double()
    model, x, target = (
        hp.Model(net, size=11),
        spread((4, 3, 11, 11)).double(),
        torch.tensor([0, 1, 2, 3]),
    )
    sums = raw(model, x, target, "deepshap").sum((1, 2, 3))
    difference = (model.logits(x) - model.logits(torch.zeros_like(x))).gather(1, target[:, None])[
        :, 0
    ]
    torch.testing.assert_close(sums, difference, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(
        raw(model, x, target, "deepshap", compat="captum").sum((1, 2, 3)), difference
    )


def test_captum_agrees_on_a_max_pool_of_one_window(raw, spread):
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 2)).double()
    x, target = spread((1, 3, 2, 2), 3).double(), torch.tensor([1])
    theirs = captum.attr.DeepLift(net).attribute(x, target=target)
    assert_maps_close(raw(hp.Model(net, size=2), x, target, "deepshap"), theirs, 1e-12)


def test_maps_do_not_depend_on_how_a_relu_is_written(raw, spread, with_relu, written):
    how, net = written
    if how == "maximum":
        with pytest.raises(NotApplicable, match='deepshap has no rule for "maximum"'):
            raw(hp.Model(net, size=10), spread((1, 3, 10, 10)), torch.tensor([0]), "deepshap")
        return
    x, target = spread((3, 3, 10, 10)), torch.tensor([0, 3, 1])
    expected = raw(hp.Model(with_relu(nn.ReLU()), size=10), x, target, "deepshap")
    assert_maps_close(raw(hp.Model(net, size=10), x, target, "deepshap"), expected)


def test_the_map_of_a_linear_model_is_input_times_weight(raw, spread):
    torch.manual_seed(0)
    model = hp.Model(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), size=8)
    x, target = spread((5, 3, 8, 8)), torch.tensor([0, 1, 2, 3, 0])
    assert_maps_close(
        raw(model, x, target, "deepshap"), x * model.module[1].weight[target].reshape(5, 3, 8, 8)
    )


def test_the_map_of_a_zero_image_is_zero(raw, shipped):
    assert not raw(
        shipped("resnet"), torch.zeros(2, 3, 64, 64), torch.tensor([0, 1]), "deepshap"
    ).any()


def test_operations_without_a_rule_are_reported(spread, shipped):
    x = spread((1, 3, 64, 64))
    with pytest.raises(
        NotApplicable,
        match=r'deepshap has no rule for "layer_norm" in block1.norm1 \(LayerNorm\); '
        r"ig\(steps=50\) works",
    ):
        hp.explain(shipped("vit"), x, [0], "deepshap")

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 3, 3), nn.Linear(3, 2)

        def forward(self, x):
            h = self.conv(x)
            return self.fc((h * torch.sigmoid(h)).mean((2, 3)))

    with pytest.raises(NotApplicable, match='no rule for "mul"'):
        hp.explain(hp.Model(Gated(), size=8), spread((1, 3, 8, 8)), [0], "deepshap")


def test_the_network_is_left_unchanged_and_batch_size_does_not_matter(raw, spread, with_relu):
    net = with_relu(nn.ReLU(inplace=True)).train()
    model, x, target = hp.Model(net, size=10), spread((5, 3, 10, 10)), torch.tensor([0, 1, 2, 3, 0])
    original, state = x.clone(), {k: v.clone() for k, v in net.state_dict().items()}
    maps = raw(model, x, target, "deepshap")
    assert net.training and net.relu.inplace and torch.equal(x, original)
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    with model.passes.batches_of(2):
        assert_maps_close(raw(model, x, target, "deepshap"), maps)
    alone = raw(model, x[[3]], target[[3]], "deepshap")
    assert_maps_close(alone, maps[[3]])
