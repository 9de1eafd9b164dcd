"""LRP against Zennit, against its rules written out as sums over pairs, and its properties."""

import copy
import math
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heatproof as hp
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods import Explainer, Expression, parse_methods
from heatproof.methods.explain import check_applicable
from heatproof.methods.relevance import (
    Affine,
    Propagation,
    Rules,
    box_rule,
    epsilon_rule,
    gamma_rule,
    relevance,
    z_plus,
)
from heatproof.models.batch import ModelBatch
from heatproof.models.views import difull, dipart
from heatproof.plan.cost import plan_passes
from heatproof.plan.make_plan import make_plan
from heatproof.plan.spec import parse_protocols
from heatproof.tensor.noise import Rng

NETS = ["resnet", "vgg", "vgg-bn", "resnet-nobn", "vgg-nobias", "resnet-nobias"]
GAMMAS = [0, 0.001, 0.01, 0.1, 0.25, math.inf]


@pytest.fixture
def birds(shipped, spread):
    return lambda name: (shipped(name), spread((3, 3, 64, 64)), torch.tensor([1, 5, 30]))


def assert_like(ours, theirs, share=1e-5, rtol=1e-4):
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=float(share * theirs.abs().max()))


# Rules, against their definitions


def dense(layer, x):
    """The layer as a matrix (outputs, inputs) and its bias (outputs,)."""
    eye = torch.eye(x[0].numel(), dtype=x.dtype).reshape(-1, *x.shape[1:])
    z = layer(x[:1], layer.weight)
    return layer(eye, layer.weight).flatten(1).T, layer.along(layer.bias).expand_as(z[0]).flatten()


def slow(kind, w, b, x, r, low=None, high=None):
    """Sums over pairs (j, i) of inputs and outputs, one sample, from the formulas of the paper."""
    wp, wm, xp, xm = w.clamp(min=0), w.clamp(max=0), x.clamp(min=0), x.clamp(max=0)
    z = w @ x + b
    match kind:
        case ("epsilon", e):
            pairs, total = w * x, z
        case ("plus", _):
            pairs, e = wp * xp + wm * xm, 1e-6
            total = pairs.sum(1) + b.clamp(min=0)
        case ("gamma", g):
            up = (w + g * wp) * xp + (w + g * wm) * xm
            down = (w + g * wm) * xp + (w + g * wp) * xm
            pairs, e = torch.where(z[:, None] > 0, up, down), 1e-6
            total = pairs.sum(1) + b + g * torch.where(z > 0, b.clamp(min=0), b.clamp(max=0))
        case ("box", _):
            pairs, e = w * x - wp * low - wm * high, 1e-6
            total = pairs.sum(1) + b - b.clamp(min=0) - b.clamp(max=0)
    return (pairs * (r / torch.where(total < 0, total - e, total + e))[:, None]).sum(0)


LAYERS = {
    "convolution": (
        (3, 7, 6),
        (4, 3, 3, 3),
        {"stride": 2, "padding": 1, "dilation": 1, "groups": 1},
    ),
    "groups": (
        (4, 6, 6),
        (4, 2, 2, 2),
        {"stride": 1, "padding": (1, 0), "dilation": 2, "groups": 2},
    ),
    "matrix": ((7,), (5, 7), None),
}
RULES = {
    ("epsilon", 0.25): epsilon_rule(0.25),
    ("epsilon", 1e-6): epsilon_rule(1e-6),
    ("plus", 0): z_plus,
} | {("gamma", g): gamma_rule(g) for g in GAMMAS[:-1]}


@pytest.mark.parametrize("kind", RULES, ids=str)
@pytest.mark.parametrize("shape", LAYERS)
@pytest.mark.parametrize("positive", [True, False])
def test_rules_are_sums_over_pairs(spread, kind, shape, positive):
    inputs, weights, options = LAYERS[shape]
    layer = Affine(spread(weights, 1).double(), spread(weights[:1], 2).double(), options)
    x = spread((3, *inputs), 3).double()
    x = x.relu() if positive else x
    z = layer(x, layer.weight, layer.bias)
    r = spread(z.shape, 4).double()
    ours = RULES[kind](layer, x, z, r)
    w, b = dense(layer, x)
    expected = torch.stack(
        [slow(kind, w, b, *(v.flatten() for v in pair)) for pair in zip(x, r, strict=True)]
    )
    torch.testing.assert_close(ours.flatten(1), expected, rtol=1e-9, atol=1e-11)


def test_the_rule_of_the_image_is_a_sum_over_pairs(spread):
    inputs, weights, options = LAYERS["convolution"]
    layer = Affine(spread(weights, 1).double(), spread(weights[:1], 2).double(), options)
    low, high = (
        torch.tensor(v).double().reshape(3, 1, 1) for v in ([-2.1, -2.0, -1.8], [2.2, 2.4, 2.6])
    )
    x = spread((3, *inputs), 3).double().clamp(-1.8, 2.2)
    z = layer(x, layer.weight, layer.bias)
    r = spread(z.shape, 4).double()
    w, b = dense(layer, x)
    bounds = [v.expand(inputs).flatten() for v in (low, high)]
    expected = torch.stack(
        [
            slow(("box", 0), w, b, *(v.flatten() for v in pair), *bounds)
            for pair in zip(x, r, strict=True)
        ]
    )
    torch.testing.assert_close(
        box_rule(low, high)(layer, x, z, r).flatten(1), expected, rtol=1e-9, atol=1e-11
    )


# Zennit


KEPT = []


@pytest.fixture(scope="session")
def zennit():
    """Import zennit, whose torchvision fails beside a CPU torch without two operators."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        operators = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(operators)
    except ImportError:
        pytest.skip("torchvision is not installed")
    return pytest.importorskip("zennit")


def by_zennit(net, x, target, model, convolution, canonizers=()):
    from zennit.attribution import Gradient
    from zennit.composites import SpecialFirstLayerMapComposite
    from zennit.rules import Epsilon, Norm, Pass, ZBox
    from zennit.types import Activation, AvgPool, BatchNorm, Linear

    low, high = model.input_range
    layers = [
        (Activation, Pass()),
        (AvgPool, Norm()),
        (BatchNorm, Pass()),
        (nn.Conv2d, convolution),
        (nn.Linear, Epsilon(0.25)),
    ]
    from zennit.layer import Sum as TheirSum

    from heatproof.models.arithmetic import Sum

    class Stacked(nn.Module):
        def __init__(self):
            super().__init__()
            self.sum = TheirSum()

        def forward(self, a, b):
            return self.sum(torch.stack([a, b], dim=-1))

    net = copy.deepcopy(net)
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Sum):
                setattr(parent, name, Stacked())
    layers.insert(0, (TheirSum, Norm()))
    first = [
        (
            Linear,
            ZBox(
                low[None].expand(1, -1, *x.shape[2:]).clone(),
                high[None].expand(1, -1, *x.shape[2:]).clone(),
            ),
        )
    ]
    composite = SpecialFirstLayerMapComposite(
        layer_map=layers, first_map=first, canonizers=list(canonizers)
    )
    with Gradient(net, composite) as attributor:
        _, found = attributor(x, torch.eye(model.n_classes, dtype=x.dtype)[target])
    return found


def exact_norms(net):
    """The extra 1/√(1 + ε) of Zennit's merged norms, undone beforehand."""
    net = copy.deepcopy(net)
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        with torch.no_grad():
            norm.weight *= math.sqrt(1 + norm.eps)
            norm.bias *= math.sqrt(1 + norm.eps)
    return net


@pytest.mark.parametrize("name", ["resnet", "vgg", "vgg-bn"])
@pytest.mark.parametrize("rule", ["plus", 0.25, 0.01])
def test_zennit_agrees(zennit, raw, birds, name, rule):
    from zennit.canonizers import SequentialMergeBatchNorm
    from zennit.rules import Gamma, ZPlus

    model, x, target = birds(name)
    x = x.clamp(-1, 1)
    theirs = by_zennit(
        exact_norms(model.module),
        x,
        target,
        model,
        ZPlus() if rule == "plus" else Gamma(rule),
        [SequentialMergeBatchNorm()],
    )
    ours = (
        raw(model, x, target, "lrp-focus", start="one")
        if rule == "plus"
        else raw(model, x, target, "lrp-composite", gamma=rule, start="one")
    )
    assert_like(ours, theirs, 1e-4)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg11", "vgg11_bn"])
def test_zennit_agrees_on_torchvisions_nets(zennit, raw, spread, name):
    """These networks re-use a ReLU, work in place and add with `out += identity`.

    In double precision: rounding grows through fifty layers to 3e-4 of the largest relevance.
    """
    import torchvision
    from zennit import torchvision as canonizers
    from zennit.rules import ZPlus

    torch.manual_seed(0)
    with torch.device("meta" if "vgg" in name else "cpu"):
        net = getattr(torchvision.models, name)(num_classes=7)
    if "vgg" in name:  # a narrow head: the real one has a hundred million weights
        net.classifier[0] = nn.Linear(512 * 49, 32)
        net.classifier[3] = nn.Linear(32, 32)
        net.classifier[6] = nn.Linear(32, 7)
        net.features.to_empty(device="cpu")
        for module in net.features.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    with torch.no_grad():
        net.train()(spread((4, 3, 64, 64)))
    net.eval().double()
    model = hp.Model(net, size=64)
    x = spread((2, 3, 64, 64)).double().clamp(-1, 1)
    target = torch.tensor([1, 5])
    canonizer = (
        canonizers.ResNetCanonizer() if name.startswith("resnet") else canonizers.VGGCanonizer()
    )
    plain = [ZPlus(), [canonizer]]
    theirs = by_zennit(exact_norms(net), x, target, model, *plain)
    assert_like(raw(model, x, target, "lrp-focus", start="one"), theirs, 1e-4, 1e-3)


# Properties


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", ["lrp-focus", "lrp-composite"])
@pytest.mark.parametrize("layer", ["input", "middle", "final", "cam"])
def test_nets_of_ours_at_every_layer(birds, name, method, layer):
    model, x, target = birds(name)
    maps = hp.explain(model, x, target, f"{method}@{layer}")
    assert (
        maps.shape == (3, 64, 64) and maps.isfinite().all() and (maps.flatten(1).std(1) > 0).all()
    )


@pytest.mark.parametrize("name", NETS)
def test_outputs_are_the_networks_own(birds, name):
    """Norms are merged on the side: the values that flow are those of the network."""
    model, x, _ = birds(name)
    with model.passes.frozen_eval():
        logits = Propagation(model, Rules(z_plus, z_plus)).logits(x.requires_grad_())
    torch.testing.assert_close(logits.detach(), model.logits(x.detach()), rtol=1e-5, atol=1e-5)


def test_merged_norms_leave_outputs(spread):
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)
    with torch.no_grad():
        for p in (norm.weight, norm.bias, norm.running_mean):
            p.normal_()
        norm.running_var.uniform_(0.5, 2)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    layer = Affine(conv.weight, conv.bias, {}).then(scale, norm.bias - norm.running_mean * scale)
    x = spread((2, 3, 6, 6))
    torch.testing.assert_close(
        layer(x, layer.weight, layer.bias), norm.eval()(conv(x)), rtol=1e-5, atol=1e-5
    )


def without_biases(net):
    """No biases, and norms that only scale; the last layer's logits are then all that is shared."""
    net = copy.deepcopy(net).double()
    with torch.no_grad():
        for m in net.modules():
            if getattr(m, "bias", None) is not None:
                m.bias.zero_()
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.zero_()
    return hp.Model(net.eval(), size=64)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("rule", ["plus", *GAMMAS[:-1]], ids=str)
def test_relevance_is_conserved_without_biases(monkeypatch, birds, name, rule):
    """Relevance is conserved without stabilisers, and nearly so with stabilisers of 1e-6."""
    model, x, target = birds(name)
    model, x = without_biases(model.module), x.double()
    convolution = z_plus if rule == "plus" else gamma_rule(rule)
    ones = relevance(
        ModelBatch(model, x, target).at("input"), convolution, 1e-6, box=False, start="one"
    )
    sums = ones.sum((1, 2, 3))
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=5e-3)
    monkeypatch.setattr(
        "heatproof.methods.relevance.stable", lambda z, epsilon=0: torch.where(z == 0, 1, z)
    )
    sums = relevance(
        ModelBatch(model, x, target).at("input"), convolution, 0, box=False, start="one"
    ).sum((1, 2, 3))
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-9)
    sums = relevance(ModelBatch(model, x, target).at("input"), convolution, 0, box=False).sum(
        (1, 2, 3)
    )
    logits = model.logits(x).gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(sums, logits, rtol=1e-9, atol=1e-9)


def test_positive_relevance_speaks_for_the_class_whatever_the_sign_of_its_logit(spread):
    """From the logit, a map has the signs of the contributions; from one, the logit's sign too."""
    model = hp.load_model("paperbirds/resnet")
    x = spread((3, 3, 64, 64))
    target = model.logits(x).argmin(1)
    logit = model.logits(x).gather(1, target[:, None])[:, 0]
    assert (logit < 0).all()
    notes = hp.MapNotes(len(x))
    from_logit = hp.explain(model, x, target, "lrp-focus@final", notes=notes)
    from_one = hp.explain(model, x, target, "lrp-focus(start=one)@final", notes=hp.MapNotes(len(x)))
    contributions = hp.explain(model, x, target, "ixg@final")
    flat = torch.stack([from_logit, contributions, -from_one]).flatten(2)
    for maps in flat[1:]:
        assert (torch.cosine_similarity(flat[0], maps, dim=1) > 0.99).all()
    for note, value in zip(notes.texts, logit.tolist(), strict=True):
        assert note == f"the target's logit is negative: {value:.3g}"
    with pytest.warns(UserWarning, match="speaks against the class"):
        hp.explain(model, x, target, "lrp-focus(start=one)@final")


def test_gamma_without_end_is_z_plus(raw, birds):
    model, x, target = birds("vgg-bn")
    plus = raw(model, x, target, "lrp-focus")
    assert torch.equal(raw(model, x, target, "lrp-composite", gamma=math.inf), plus)
    assert_like(raw(model, x, target, "lrp-composite", gamma=1e5), plus, 1e-3)
    assert not torch.allclose(raw(model, x, target, "lrp-composite"), plus)


@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_gamma_zero_is_the_epsilon_rule(birds, name):
    model, x, target = birds(name)
    model, x = hp.Model(copy.deepcopy(model.module).double(), size=64), x.double()
    maps = relevance(ModelBatch(model, x, target).at("input"), gamma_rule(0), 0.25)
    assert_like(
        maps, relevance(ModelBatch(model, x, target).at("input"), epsilon_rule(1e-6), 0.25), 1e-9
    )


def test_the_rule_of_the_image_is_for_the_image_alone(birds):
    model, x, target = birds("vgg")
    assert not torch.allclose(
        relevance(ModelBatch(model, x, target).at("input"), z_plus, 0.25, start="one"),
        relevance(ModelBatch(model, x, target).at("input"), z_plus, 0.25, box=False, start="one"),
    )
    tail, h = model.tail("conv1"), model.activation(x, "conv1")
    assert torch.equal(
        relevance(ModelBatch(tail, h, target).at("input"), z_plus, 0.25),
        relevance(ModelBatch(tail, h, target).at("input"), z_plus, 0.25, box=False),
    )


def test_a_layer_between_a_convolution_and_its_norm_has_the_relevance_of_both(
    golden_model, images, raw
):
    model, (x, target) = golden_model("resnet"), images
    torch.testing.assert_close(
        raw(model, x, target, "lrp-focus", "conv1"), raw(model, x, target, "lrp-focus", "bn1")
    )


class Sliding(nn.Module):
    """A VGG whose fully connected layers are convolutions that slide, as in grids."""

    def __init__(self, net, side):
        super().__init__()
        self.features = net.features
        first, *others = (m for m in net.classifier if isinstance(m, nn.Linear))
        self.head = nn.Sequential(
            convolved(first, side),
            *(m for other in others for m in (nn.ReLU(), convolved(other, 1))),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return self.pool(self.head(self.features(x))).flatten(1)


def convolved(linear, side):
    conv = nn.Conv2d(linear.in_features // side**2, linear.out_features, side)
    conv.weight.data, conv.bias.data = (
        linear.weight.data.reshape(conv.weight.shape),
        linear.bias.data,
    )
    return conv


@pytest.mark.parametrize("method", ["lrp-focus", "lrp-composite"])
def test_a_fully_connected_layer_that_slides_is_still_one(golden_model, images, raw, method):
    (x, target), net = images, golden_model("vgg").module
    sliding = hp.Model(Sliding(net, 8), size=32, aliases={"cam": "features"})
    torch.testing.assert_close(
        sliding.logits(x), golden_model("vgg").logits(x), rtol=1e-4, atol=1e-4
    )
    assert_like(raw(sliding, x, target, method), raw(golden_model("vgg"), x, target, method))


# However it is written


def test_the_way_a_layer_is_called_does_not_matter(raw, spread):
    class Called(nn.Module):
        def __init__(self, padding, names=False):
            super().__init__()
            torch.manual_seed(0)
            self.weight, self.fc, self.padding, self.names = (
                nn.Parameter(torch.randn(4, 3, 3, 5)),
                nn.Linear(4, 3),
                padding,
                names,
            )

        def forward(self, x):
            if self.names:
                return self.fc(
                    F.relu(input=F.conv2d(input=x, weight=self.weight, padding=self.padding)).mean(
                        (2, 3)
                    )
                )
            return self.fc(F.conv2d(x, self.weight, None, 1, self.padding).relu().mean((2, 3)))

    x, target = spread((2, 3, 8, 8)), torch.tensor([0, 2])
    nets = Called((1, 2)), Called("same"), Called("same", names=True)
    expected, *others = (raw(hp.Model(net, size=8), x, target, "lrp-composite") for net in nets)
    for maps in others:
        assert_like(maps, expected)


def test_a_shift_along_the_columns_is_not_taken_for_one_along_the_channels(raw, spread):
    class Columns(nn.Module):
        def __init__(self, shape):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.fc, self.shift = (
                nn.Conv2d(3, 6, 3),
                nn.Linear(6, 3),
                nn.Parameter(torch.randn(6).reshape(shape)),
            )

        def forward(self, x):
            return self.fc((self.conv(x) + self.shift).relu().mean((2, 3)))

    x, target = spread((2, 3, 8, 8)), torch.tensor([0, 2])
    columns, channels = (
        raw(hp.Model(Columns(shape), size=8), x, target, "lrp-focus") for shape in ((6,), (6, 1, 1))
    )
    assert columns.isfinite().all() and not torch.allclose(columns, channels)


class Block(nn.Module):
    def __init__(self, add, relu):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.conv, self.norm, self.fc = (
            nn.Conv2d(3, 4, 3, 2, 1),
            nn.Conv2d(4, 4, 3, 1, 1),
            nn.BatchNorm2d(4),
            nn.Linear(4, 3),
        )
        self.add, self.relu = add, relu
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.weight.uniform_(0.5, 1)

    def forward(self, x):
        h = self.relu(self.stem(x))
        h = self.relu(self.add(self.norm(self.conv(h)), h))
        return self.fc(F.adaptive_avg_pool2d(h, 1).flatten(1))


def add_in_place(a, b):
    a += b
    return a


ADDS = {
    "plus": lambda a, b: a + b,
    "in place": add_in_place,
    "torch.add": torch.add,
    "method": lambda a, b: a.add_(b),
}


@pytest.mark.parametrize("add", ADDS)
def test_however_a_sum_is_written(raw, spread, add):
    from heatproof.models.arithmetic import Sum

    x, target = spread((2, 3, 9, 9)), torch.tensor([0, 2])  # 9: the stride does not divide it
    expected = raw(hp.Model(Block(Sum(), nn.ReLU()).eval(), size=9), x, target, "lrp-composite")
    assert_like(
        raw(
            hp.Model(Block(ADDS[add], nn.ReLU(inplace=True)).eval(), size=9),
            x,
            target,
            "lrp-composite",
        ),
        expected,
    )
    assert_like(
        raw(hp.Model(Block(ADDS[add], F.relu_).eval(), size=9), x, target, "lrp-composite"),
        expected,
    )


def test_however_a_relu_is_written(raw, spread, written, with_relu):
    how, net = written
    x, target = spread((3, 3, 10, 10)), torch.tensor([0, 3, 1])
    if how == "maximum":
        with pytest.raises(NotApplicable, match='lrp has no rule for "maximum"'):
            raw(hp.Model(net, size=10), x, target, "lrp-focus")
        return
    if how == "relu6":
        with pytest.raises(NotApplicable, match='lrp has no rule for "div"'):
            raw(hp.Model(net, size=10), x, target, "lrp-focus")
        return
    expected = raw(hp.Model(with_relu(nn.ReLU()), size=10), x, target, "lrp-focus")
    assert_like(raw(hp.Model(net, size=10), x, target, "lrp-focus"), expected)


def test_a_network_that_cannot_be_traced(raw, spread):
    class Branching(Block):
        def forward(self, x):
            return super().forward(x if x.sum() > -1e9 else -x)

    x, target = spread((2, 3, 9, 9)), torch.tensor([0, 2])
    expected = hp.Model(Block(ADDS["plus"], nn.ReLU()).eval(), size=9)
    model = hp.Model(Branching(ADDS["plus"], nn.ReLU()).eval(), size=9)
    assert_like(raw(model, x, target, "lrp-focus"), raw(expected, x, target, "lrp-focus"))


def test_factors_and_shifts_behind_a_convolution_are_part_of_it(raw, spread):
    class Fixed(nn.Module):
        def __init__(self, merged):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.fc, self.merged = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), merged
            self.shift = nn.Parameter(torch.randn(4, 1, 1))
            if merged:
                self.conv.weight.data *= 1.5
                self.conv.bias.data = 1.5 * self.conv.bias.data + self.shift.data.flatten() + 0.25

        def forward(self, x):
            z = self.conv(x)
            z = z if self.merged else 1.5 * z + self.shift + 0.25
            return self.fc(z.relu().mean((2, 3)))

    x, target = spread((2, 3, 8, 8)), torch.tensor([0, 2])
    ours, expected = (
        raw(hp.Model(Fixed(merged), size=8), x, target, "lrp-composite") for merged in (False, True)
    )
    assert_like(ours, expected)


class Normalized(nn.Module):
    """Normalizes the image in one of many notations, or has that merged into its convolution."""

    def __init__(self, normalize):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4, 3)
        self.normalize = normalize
        if normalize is None:
            weight = self.conv.weight.data
            self.conv.bias.data += (weight * SHIFT).sum((1, 2, 3))
            weight *= FACTOR

    def forward(self, x):
        x = x if self.normalize is None else self.normalize(x)
        return self.fc(self.conv(x).relu().mean((2, 3)))


FACTOR = torch.tensor([0.458, -0.6, 2.0])[:, None, None]
SHIFT = torch.tensor([-0.03, 0.5, 0.25])[:, None, None]


def by_channel(x):
    """Normalize as torchvision's GoogLeNet and Inception do."""
    channels = [torch.unsqueeze(x[:, i], 1) * FACTOR[i].item() + SHIFT[i].item() for i in range(3)]
    return torch.cat(channels, 1)


NORMALIZED = {
    "by channel": by_channel,
    "at once": lambda x: FACTOR * x + SHIFT,
    "mean and std": lambda x: (x - (-SHIFT / FACTOR)) / (1 / FACTOR),
    "from the constant": lambda x: SHIFT - x * -FACTOR,
    "in place": lambda x: x.clone().mul_(FACTOR).add_(SHIFT),
}


@pytest.mark.parametrize("how", NORMALIZED)
@pytest.mark.parametrize("method", ["lrp-focus", "lrp-composite"])
def test_factors_and_shifts_of_the_image_are_part_of_the_first_convolution(
    raw, spread, how, method
):
    x, target = spread((2, 3, 8, 8)), torch.tensor([0, 2])
    model, merged = (hp.Model(Normalized(n), size=8) for n in (NORMALIZED[how], None))
    assert_like(model.logits(x), merged.logits(x))
    assert_like(raw(model, x, target, method), raw(merged, x, target, method))


@pytest.mark.parametrize(("name", "size"), [("googlenet", 64), ("inception_v3", 96)])
def test_networks_of_torchvision_that_normalize_the_image(torchvision, raw, spread, name, size):
    """Relevance is conserved without biases; in double precision."""
    torch.manual_seed(0)
    net = getattr(torchvision.models, name)(
        weights=None, num_classes=7, transform_input=True, init_weights=False
    )
    net = net.double().eval()
    nn.init.zeros_(net.fc.bias)
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.train().momentum = None  # after one pass, signals neither vanish nor explode
    with torch.no_grad():
        net(spread((4, 3, size, size), 1).double())
    for norm in norms:
        norm.running_mean.zero_()
    net.eval()
    model = hp.Model(net, size=size, name=name)
    x, target = spread((2, 3, size, size)).double(), torch.tensor([1, 5])
    logits = Propagation(model, Rules(z_plus, z_plus, model.input_range)).logits(
        x.clone().requires_grad_()
    )
    assert_like(logits.detach(), model.logits(x), 1e-10)
    for layer in ("input", "middle", "final"):
        maps = raw(model, x, target, "lrp-focus", layer, epsilon=1e-12, start="one")
        torch.testing.assert_close(maps.sum((1, 2, 3)), torch.ones(2).double(), rtol=1e-3, atol=0)


def test_operations_without_a_rule_are_named(birds, spread):
    model, x, _ = birds("vit")
    with pytest.raises(
        NotApplicable,
        match=r'lrp has no rule for "layer_norm" in block1.norm1 \(LayerNorm\); '
        "it is for convolutions",
    ):
        hp.explain(model, x[:1], [0], "lrp-focus")
    cut_off = nn.Sequential(
        nn.ReLU(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
    ).eval()
    with pytest.raises(
        NotApplicable, match='"conv2d of an image whose pixels were mixed or cut off" in 1'
    ):
        hp.explain(hp.Model(cut_off, size=8), spread((1, 3, 8, 8)), [0], "lrp-focus")
    early = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2)
    ).eval()
    with pytest.raises(
        NotApplicable, match=r'"batch_norm that follows no convolution" in 2 \(BatchNorm2d\)'
    ):
        hp.explain(hp.Model(early, size=8), spread((1, 3, 8, 8)), [0], "lrp-composite")


def test_the_network_is_left_as_it_was_and_batches_do_not_matter(raw, spread):
    net = Block(add_in_place, nn.ReLU(inplace=True)).train()
    model, x, target = hp.Model(net, size=9), spread((5, 3, 9, 9)), torch.tensor([0, 1, 2, 1, 0])
    kept, state = x.clone(), {k: v.clone() for k, v in net.state_dict().items()}
    maps = raw(model, x, target, "lrp-composite")
    assert net.training and net.relu.inplace and torch.equal(x, kept)
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    with model.passes.batches_of(2):
        assert_like(raw(model, x, target, "lrp-composite"), maps)
    double = raw(hp.Model(net.double(), size=9), x.double(), target, "lrp-composite")
    assert double.dtype == torch.float64
    assert_like(double.float(), maps, 1e-4)


@pytest.mark.parametrize(
    "text",
    ["lrp-composite(gamma=inf)", "lrp-composite(gamma=0)", "lrp-focus(epsilon=0.001)@middle"],
)
def test_expressions(text):
    expression = Expression.parse(text)
    assert Expression.parse(expression.label).canonical == expression.canonical


def test_bad_arguments_are_refused():
    for text in (
        "lrp-composite(gamma=-1)",
        "lrp-focus(epsilon=-1)",
        "lrp-focus(epsilon=0)",
        "lrp-composite(gamma=nan)",
    ):
        with pytest.raises(HeatproofError):
            Expression.parse(text)


class PreActivation(nn.Module):
    """A residual block whose input is normalized on one branch alone, after a factor."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.third = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = self.first(x / 0.25)
        x = x + self.second(self.norm(x).relu())
        x = self.third(x.relu())
        x = 2 * x + torch.tensor([0.1, -0.2, 0.3, 0.4])[:, None, None]
        return self.head(x.relu().mean((2, 3)))


def all_layers(model, method):
    found = []
    for layer in model.layer_table.names:
        expression = Expression.parse(f"{method}@{layer}")
        with suppress(NotApplicable):
            check_applicable(expression, model, False)
            found.append(expression)
    return found


@pytest.mark.parametrize("method", ["lrp-focus", "lrp-composite(start=one)"])
@pytest.mark.parametrize("kind", ["vgg-bn", "resnet", "difull", "dipart", "pre-activation"])
def test_one_pass_has_the_relevance_of_all_layers(shipped, spread, kind, method):
    if kind == "pre-activation":
        torch.manual_seed(0)
        model = hp.Model(PreActivation().eval(), size=16)
        merged = 3  # the image in the network; a sum and a product behind a convolution
    else:
        view = {"difull": difull, "dipart": dipart}.get(kind)
        model = shipped("vgg-bn" if view else kind)
        model = view(model, 2, 1) if view else model
        merged = 0
    x = spread((3, *model.image_shape))
    target = torch.tensor([0, 1, 2])
    expressions = all_layers(model, method)
    rng = Rng(0, "abc")
    layers_of = {expressions[0].layers_key: [e.layer for e in expressions]}
    model.pass_counts.clear()
    together = Explainer(ModelBatch(model, x, target, (), layers_of), rng)
    maps = [together.native(e) for e in expressions]
    assert model.pass_counts["backward"] == len(x)
    later = sum(n for kind, n in model.pass_counts.items() if kind.startswith("backward from"))
    assert later <= merged * len(x)
    for expression, ours in zip(expressions, maps, strict=True):
        alone = Explainer(ModelBatch(model, x, target), rng).native(expression)
        torch.testing.assert_close(ours, alone, rtol=0, atol=1e-6 * float(alone.abs().max()))


def test_a_plan_counts_one_pass_for_all_layers(shipped, spread):
    model = shipped("resnet")
    data = hp.TensorData(spread((4, *model.image_shape)).sigmoid(), labels=[0, 1, 2, 3])
    methods = ["lrp-focus", "lrp-focus@middle", "lrp-focus(reduce=mean)@middle", "lrp-focus@cam"]
    protocols = parse_protocols(["sds(patches=4)"])
    plan = make_plan([model], [data], parse_methods(methods), protocols, seed=0, batch_size=4)
    model.pass_counts.clear()
    hp.evaluate(model, data, methods, ["sds(patches=4)"])
    (planned,) = plan_passes(plan).values()
    assert planned["backward"] == model.pass_counts["backward"] == 4
    assert +planned == +model.pass_counts
