"""Guided backpropagation and DeconvNet against Captum and slow re-implementations."""

import captum.attr
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import heatproof as hp
from heatproof.errors import NotApplicable
from heatproof.methods import METHODS, Explainer, Expression
from heatproof.models.batch import ModelBatch
from heatproof.models.nets import NETS
from heatproof.tensor.noise import Rng

CAPTUM = {"guided-backprop": captum.attr.GuidedBackprop, "deconvnet": captum.attr.Deconvolution}


@pytest.fixture(scope="module")
def plain(spread, with_relu):
    return with_relu(nn.ReLU()), spread((3, 3, 10, 10)), torch.tensor([0, 3, 1])


def by_hand(net, x, target, name):
    """Compute the map of the two layers explicitly, from the head to the input."""

    def through_relu(gradient, active):
        return gradient.relu() * active if name == "guided-backprop" else gradient.relu()

    first = net.conv1(x)
    second = net.conv2(first.relu())
    gradient = (net.fc.weight[target] / second[0, 0].numel())[:, :, None, None].expand_as(second)
    gradient = F.conv_transpose2d(through_relu(gradient, second > 0), net.conv2.weight)
    return F.conv_transpose2d(through_relu(gradient, first > 0), net.conv1.weight, padding=1)


@pytest.mark.parametrize("name", CAPTUM)
def test_maps_do_not_depend_on_how_a_relu_is_written(raw, plain, name, written):
    net, x, target = plain
    expected = by_hand(net, x, target, name)
    maps = raw(hp.Model(written[1], size=10), x, target, name)
    torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(maps, raw(hp.Model(net, size=10), x, target, "saliency"))


@pytest.mark.parametrize("name", CAPTUM)
@pytest.mark.parametrize("net", ["resnet", "vgg-bn"])
@pytest.mark.parametrize("score", ["logit", "softmax"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_captum_agrees(raw, spread, name, net, score):
    model = (
        hp.load_model("paperbirds/resnet")
        if net == "resnet"
        else hp.Model(NETS[net].module().eval(), size=64)
    )
    # Both in one layout, because the gradients of the softmax are about 1e-10.
    x = spread((3, 3, 64, 64)).contiguous(memory_format=torch.channels_last)
    target = torch.tensor([1, 5, 30])
    whole = nn.Sequential(model.module, nn.Softmax(1)) if score == "softmax" else model.module
    theirs = CAPTUM[name](whole).attribute(x, target=target)
    ours = raw(model, x, target, name, score=score)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=float(1e-6 * theirs.abs().max()))


@pytest.mark.parametrize("name", CAPTUM)
@pytest.mark.parametrize("layer", ["conv1", "relu", "layer1", "layer3", "layer4"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_captum_agrees_at_every_layer(raw, golden_model, images, name, layer):
    """Apply Captum to the tail of the network."""
    model, (x, target) = golden_model("resnet"), images
    net = model.module
    parts = [
        net.conv1,
        net.bn1,
        net.relu,
        net.maxpool,
        net.layer1,
        net.layer2,
        net.layer3,
        net.layer4,
        net.avgpool,
        nn.Flatten(),
        net.fc,
    ]
    h = model.activation(x, layer)
    tail = nn.Sequential(*parts[parts.index(getattr(net, layer)) + 1 :])
    theirs = CAPTUM[name](tail).attribute(h, target=target)
    torch.testing.assert_close(
        raw(model, x, target, name, layer), theirs, rtol=1e-4, atol=float(1e-6 * theirs.abs().max())
    )


@pytest.mark.parametrize("name", CAPTUM)
def test_a_network_without_relus_is_refused(spread, name):
    model = hp.Model(NETS["vit"].module().eval(), size=64, name="vit")
    with pytest.raises(
        NotApplicable,
        match=r"vit has no ReLUs, so it would be the plain gradient; "
        r"use saliency\(reduce=sum_abs\)",
    ):
        hp.explain(model, spread((1, 3, 64, 64)), [0], name)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.head = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))

    def forward(self, x):
        x = x if x.sum() > -1e9 else -x  # otherwise the trace enters the checkpoint
        return self.head(torch.utils.checkpoint.checkpoint(self.net, x, use_reentrant=True))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x.relu()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)
        self.relu = torch.jit.script(nn.ReLU())

    def forward(self, x):
        return self.head(self.relu(self.conv(x)).mean((2, 3)))


@pytest.mark.filterwarnings(
    "ignore:None of the inputs", "ignore:.torch.jit", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("method", ["guided-backprop", "deepshap", "lrp-focus"])
def test_operations_that_cannot_be_intercepted_are_refused(spread, with_relu, method):
    x = spread((1, 3, 10, 10))
    with pytest.raises(NotApplicable, match="CheckpointFunctionBackward"):
        hp.explain(hp.Model(Checkpointed(), size=10), x, [0], method)
    with pytest.raises(NotApplicable, match="DoubleBackward"):
        hp.explain(
            hp.Model(with_relu(lambda h: Double.apply(h if h.sum() > -1e9 else -h)), size=10),
            x,
            [0],
            method,
        )
    if method == "guided-backprop":
        assert hp.explain(hp.Model(Scripted(), size=10), x, [0], method).isfinite().all()
    else:
        with pytest.raises(NotApplicable, match=r"cannot look into TorchScript \(relu\)"):
            hp.explain(hp.Model(Scripted(), size=10), x, [0], method)


@pytest.mark.parametrize("name", ["guided-backprop", "deconvnet"])
def test_the_network_is_left_unchanged(raw, spread, with_relu, name):
    net = with_relu(nn.ReLU(inplace=True)).train()
    net.conv1.weight.requires_grad_(False)
    model, x, target = hp.Model(net, size=10), spread((5, 3, 10, 10)), torch.tensor([0, 1, 2, 3, 0])
    original, state = x.clone(), {k: v.clone() for k, v in net.state_dict().items()}
    maps = raw(model, x, target, name)
    assert net.training and net.relu.inplace and torch.equal(x, original)
    assert [p.requires_grad for p in net.parameters()] == [False, *[True] * 5]
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert not any(m._forward_hooks or m._backward_hooks for m in net.modules())
    with model.passes.batches_of(2):
        torch.testing.assert_close(raw(model, x, target, name), maps)
    double = raw(hp.Model(net.double(), size=10), x.double(), target, name)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), maps, rtol=1e-4, atol=1e-7)


def test_the_network_is_restored_after_an_error(spread, with_relu):
    net = with_relu(nn.ReLU()).train()
    model = hp.Model(net, size=10)
    with pytest.raises(RuntimeError):
        METHODS["guided-backprop"].function(
            model, spread((1, 4, 10, 10)), torch.tensor([0]), rng=None
        )
    assert net.training and all(p.requires_grad for p in net.parameters())


def test_a_network_that_cannot_be_traced_is_explained(raw, with_relu, plain):
    net, x, target = plain

    class Branching(with_relu):
        def forward(self, x):
            return super().forward(x if x.sum() > -1e9 else -x)

    model = hp.Model(Branching(nn.ReLU()), size=10, layers=["conv1"])
    torch.testing.assert_close(
        raw(model, x, target, "deconvnet"), raw(hp.Model(net, size=10), x, target, "deconvnet")
    )
    torch.testing.assert_close(
        raw(model, x, target, "deconvnet", "conv1"),
        raw(hp.Model(net, size=10), x, target, "deconvnet", "conv1"),
        rtol=1e-4,
        atol=1e-7,
    )


def test_channels_are_reduced_as_in_the_grid_paper(raw, plain):
    net, x, target = plain
    model = hp.Model(net, size=10)
    native = Explainer(ModelBatch(model, x, target), Rng(0, "abc")).native(
        Expression.parse("guided-backprop")
    )
    torch.testing.assert_close(native, raw(model, x, target, "guided-backprop").abs().sum(1))
