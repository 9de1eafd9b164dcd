"""Cutting is exact, passes are shared, and the network is left unchanged."""

import copy

import pytest
import torch
from torch import Tensor, nn

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.models.batch import ModelBatch
from heatproof.models.cutting import Hooked, Staged
from heatproof.models.last_norm import WithLastNorm
from heatproof.models.nets import SHIPPED

EMBEDDED = [f"paperbirds/{n}" for n in SHIPPED]


class Branching(nn.Module):
    """Cannot be traced: its control flow depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Conv2d(3, 4, 3, padding=1)
        self.late = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.early(x).relu()
        if h.mean() > 1e6:
            return h.mean((2, 3))[:, :1].expand(-1, 5)
        return self.fc(self.late(h).relu().mean((2, 3)))


class Skipping(Branching):
    def forward(self, x: Tensor) -> Tensor:
        h = self.early(x)
        if h.mean() > 1e6:
            return h.mean((2, 3))[:, :1].expand(-1, 5)
        return self.fc((self.late(h) + h).relu().mean((2, 3)))


def tiny(module_type: type[nn.Module] = Branching, **options) -> hp.Model:
    torch.manual_seed(0)
    return hp.Model(module_type().eval(), size=16, **options)


def photos(model: hp.Model, n: int = 3) -> Tensor:
    return model.normalize(
        torch.rand(n, 3, model.size, model.size, generator=torch.Generator().manual_seed(n))
    )


def assert_cuts_are_exact(model: hp.Model) -> None:
    x = photos(model)
    # Another memory layout may round differently.
    whole = model.module(x.contiguous(memory_format=model.layout))
    for layer in (*model.layers, *model.landmarks):
        pre, explain = model.cut(layer)
        with torch.no_grad():
            assert torch.equal(explain(pre(x)), whole), layer


@pytest.mark.parametrize("name", EMBEDDED)
def test_cutting_an_embedded_model_is_exact_at_every_layer(name):
    model = hp.load_model(name)
    assert isinstance(model.body, (Staged, WithLastNorm))
    assert len(model.layers) > 5
    assert_cuts_are_exact(model)


@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_cutting_a_user_module_is_exact_at_every_layer(golden_model, name):
    assert_cuts_are_exact(golden_model(name))


def test_images_may_have_either_memory_layout(golden_model, images):
    model, (x, _) = golden_model("vgg"), images
    torch.testing.assert_close(
        model.activation(x.contiguous(memory_format=torch.channels_last), "final"),
        model.activation(x, "final"),
    )


def test_in_place_operations_do_not_change_a_cut(golden_model, images):
    """Most published networks have ReLUs that overwrite the activation before them."""
    module, (x, target) = copy.deepcopy(golden_model("vgg").module), images
    for m in module.modules():
        if isinstance(m, nn.ReLU):
            m.inplace = True
    model = hp.Model(module, size=32)
    for layer in model.layers:
        pre, explain = model.cut(layer)
        h = pre(x)
        before = h.clone()
        with torch.no_grad():
            assert torch.equal(explain(h), golden_model("vgg")(x)), layer
        expected = golden_model("vgg").gradient(x, target, layer)
        actual = model.gradient(x, target, layer)
        assert torch.equal(actual.gradient, expected.gradient), layer
        assert torch.equal(actual.activation, expected.activation), layer
        assert torch.equal(h, before), layer
    assert all(m.inplace for m in module.modules() if isinstance(m, nn.ReLU))


def test_a_network_that_cannot_be_traced_is_cut_by_hooks():
    model = tiny(layers=["early", "late"])
    assert isinstance(model.body, Hooked)
    assert model.layers == ("input", "early", "late", "embedding")
    assert_cuts_are_exact(model)
    x, target = photos(model), torch.tensor([0, 1, 2])
    shared = ModelBatch(model, x, target, ["input", "late"]).gradient("late").gradient
    alone = model.tail("late").gradient(model.activation(x, "late"), target).gradient
    torch.testing.assert_close(shared, alone)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())


def test_a_layer_that_does_not_separate_the_network_is_refused():
    with pytest.raises(HeatproofError, match='layer "late" does not separate'):
        tiny(Skipping, layers=["late"])


def test_landmarks_are_the_expected_layers(golden_model):
    resnet, vgg = golden_model("resnet"), golden_model("vgg")
    assert [resnet.layer_name(a) for a in ("middle", "final", "cam")] == [
        "layer2",
        "layer4",
        "layer4",
    ]
    assert [vgg.layer_name(a) for a in ("final", "cam")] == ["features.8", "features"]
    assert vgg.layer_name("features.9") == "features"
    assert resnet.forward(torch.zeros(2, 3, 32, 32))[1].shape == (2, 40)
    assert vgg.forward(torch.zeros(2, 3, 32, 32))[1].shape == (2, 48)


def test_the_embedding_is_the_input_of_the_last_linear_layer(golden_model):
    for model in (golden_model("resnet"), golden_model("vgg"), tiny(), tiny(layers=["early"])):
        last = [m for m in model.module.modules() if isinstance(m, nn.Linear)][-1]
        x = photos(model)
        logits, embedding = model.forward(x)
        torch.testing.assert_close(last(embedding), logits)


def test_an_unknown_layer_is_reported_with_suggestions(golden_model):
    with pytest.raises(HeatproofError, match=r'unknown layer "layer9"; did you mean layer4'):
        golden_model("resnet").cut("layer9")
    with pytest.raises(HeatproofError, match="unknown layer"):
        tiny(layers=["erly"])


def test_gradients_equal_plain_autograd(golden_model, images):
    model, (x, target) = golden_model("resnet"), images
    leaf = x.clone().requires_grad_()
    model.module(leaf).gather(1, target[:, None]).sum().backward()
    torch.testing.assert_close(model.gradient(x, target).gradient, leaf.grad)
    leaf = x.clone().requires_grad_()
    model.module(leaf).softmax(1).gather(1, target[:, None]).sum().backward()
    torch.testing.assert_close(model.gradient(x, target, score="softmax").gradient, leaf.grad)


@pytest.mark.parametrize("name", ["resnet", "vgg"])
def test_one_backward_pass_gives_bitwise_equal_gradients_at_all_layers(golden_model, images, name):
    model, (x, target) = golden_model(name), images
    alone = {
        layer: model.tail(layer).gradient(model.activation(x, layer), target).gradient
        for layer in ("input", "middle", "cam")
    }
    model.pass_counts.clear()
    batch = ModelBatch(model, x, target, list(alone))
    for layer, expected in alone.items():
        assert torch.equal(batch.at(layer).gradient(), expected), layer
    assert model.pass_counts["backward"] == len(x)
    assert sum(n for kind, n in model.pass_counts.items() if kind.startswith("backward")) == len(x)


def test_results_do_not_depend_on_other_samples_of_the_batch(golden_model, images):
    model, (x, target) = golden_model("resnet"), images
    with model.passes.batches_of(8):
        logits, gradient = model.logits(x), model.gradient(x, target).gradient
        for rows in ([0], [5, 2], [7, 6, 5, 4, 3, 2, 1, 0]):
            assert torch.equal(model.logits(x[rows]), logits[rows])
            assert torch.equal(model.gradient(x[rows], target[rows]).gradient, gradient[rows])
    for size in (1, 3, 8):
        with model.passes.batches_of(size):
            assert (model.logits(x) - logits).abs().max() <= 2e-6 * logits.abs().max()
            assert (
                model.gradient(x, target).gradient - gradient
            ).abs().max() <= 2e-6 * gradient.abs().max()


def test_the_network_is_left_unchanged(golden_model, images):
    module = copy.deepcopy(golden_model("resnet").module).train()
    module.bn1.eval()
    (module.conv1.weight * 0).sum().backward()
    before = copy.deepcopy(module)
    modes = [m.training for m in module.modules()]
    model, (x, target) = hp.Model(module, size=32), images
    for method in ("ixg", "gradcam", "ig(steps=3)@middle"):
        hp.explain(model, x, target, method)
    model.forward(x)
    assert [m.training for m in module.modules()] == modes
    for (name, now), then in zip(module.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(now, then), name
        assert now.requires_grad
        assert (now.grad is None) == (name != "conv1.weight")
        assert now.stride() == then.stride()
    for now, then in zip(module.buffers(), before.buffers(), strict=True):
        assert torch.equal(now, then)
    assert not any(
        m._forward_hooks or m._backward_hooks or m._forward_pre_hooks for m in module.modules()
    )


def test_the_network_always_runs_in_eval_mode(golden_model, images):
    module = copy.deepcopy(golden_model("vgg").module).train()
    x, _ = images
    assert torch.equal(hp.Model(module, size=32).logits(x), golden_model("vgg").logits(x))


def test_denormalize_inverts_normalize():
    model = tiny(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    image = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(model.denormalize(model.normalize(image)), image)
    low, high = model.input_range
    torch.testing.assert_close(model.normalize(torch.zeros(1, 3, 1, 1))[0], low)
    torch.testing.assert_close(model.normalize(torch.ones(1, 3, 1, 1))[0], high)


def test_the_fingerprint_depends_on_weights_and_preprocessing():
    model, same = tiny(), tiny()
    assert model.fingerprint() == same.fingerprint()
    assert tiny(mean=(0, 0, 0)).fingerprint() != model.fingerprint()
    with torch.no_grad():
        same.module.fc.bias[0] += 1e-6
    assert same.fingerprint() != model.fingerprint()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: hp.Model(lambda x: x), "takes a torch.nn.Module"),
        (lambda: hp.Model(nn.Conv2d(3, 3, 3), size=16), "must return logits of shape"),
        (
            lambda: hp.Model(nn.Sequential(nn.Flatten(), nn.Linear(10, 2)), size=16),
            "Is size=16 correct",
        ),
        (lambda: tiny(classes=["a", "b"]), "5 logits, but 2 class names"),
    ],
)
def test_a_module_that_is_not_an_image_classifier_is_refused(build, message):
    with pytest.raises(HeatproofError, match=message):
        build()


def test_only_named_layers_exist(golden_model):
    model = hp.Model(golden_model("resnet").module, size=32, layers=["layer1", "layer3", "layer4"])
    assert isinstance(model.body, Staged)
    assert model.layers == ("input", "layer1", "layer3", "layer4")
    assert_cuts_are_exact(model)
    with pytest.raises(HeatproofError, match="unknown layer"):
        model.cut("layer2")


def test_aliases_can_be_set(golden_model):
    model = hp.Model(
        golden_model("resnet").module, size=32, aliases={"cam": "layer3", "middle": "layer1"}
    )
    assert (model.layer_name("cam"), model.layer_name("middle")) == ("layer3", "layer1")


class Reusing(nn.Module):
    """Calls one ReLU several times, as many networks do, and adds in place without a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.c0, self.c1, self.c2 = (
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
        )
        self.relu, self.fc = nn.ReLU(), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.c1(self.relu(self.c0(x))))
        h.add_(1)
        return self.fc(self.relu(self.c2(h)).mean((2, 3)))


def test_each_call_of_a_module_is_a_layer():
    model = tiny(Reusing)
    assert {"relu", "relu:2", "relu:3"} <= set(model.layers)
    assert len(set(model.layers)) == len(model.layers)
    assert_cuts_are_exact(model)
    x, target = photos(model), torch.tensor([0, 1, 2])
    for layer in model.layers:
        alone = model.tail(layer).gradient(model.activation(x, layer), target)
        assert torch.equal(alone.logits, model.gradient(x, target).logits), layer
        together = ModelBatch(model, x, target, ["input", layer]).gradient(layer)
        assert torch.equal(together.gradient, alone.gradient), layer
        h = model.activation(x, layer)
        with torch.no_grad():
            assert torch.equal(model.tail(layer)(h), model.tail(layer)(h)), layer


class Wrapper(nn.Module):
    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, scale: float = 1.0, features: bool = False) -> Tensor:
        return self.net(x) if not features else self.net.features(x)


def test_a_wrapper_does_not_hide_the_network(golden_model):
    model = hp.Model(Wrapper(golden_model("resnet").module), size=32)
    assert model.layer_name("cam") == "net.layer4"
    assert_cuts_are_exact(model)


class Opaque(nn.Module):
    """Cannot be traced and has no named layers."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(x, Tensor)
        halves = self.c(x).chunk(2, 1) if float(x.detach().sum()) < 1e9 else (x, x)
        return self.fc(torch.cat(halves, 1).mean((2, 3)))


def test_without_spatial_layers_cams_do_not_apply():
    model = tiny(Opaque)
    assert model.landmarks == {}
    with pytest.raises(HeatproofError, match=r"has no spatial layer after its input; name some"):
        model.cut("cam")
    scores = hp.evaluate(
        model, (torch.rand(2, 3, 16, 16), [0, 1]), ["gradcam", "ixg"], ["sds"]
    ).scores
    assert scores.groupby("method")["status"].agg(set).to_dict() == {
        "gradcam": {"n/a"},
        "ixg": {"ok"},
    }
    assert tiny(Opaque, layers=["c"]).landmarks == {"middle": "c", "final": "c", "cam": "c"}


def test_named_layers_are_in_the_order_of_computation():
    assert tiny(layers=["late", "early"]).layers == ("input", "early", "late", "embedding")


class Noisy(Branching):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(())


def test_a_nondeterministic_network_is_refused():
    with pytest.raises(HeatproofError, match="returns different logits for the same images"):
        tiny(Noisy, layers=["early"])


def test_layers_are_classified_as_features_pool_or_head(golden_model):
    vgg, resnet = golden_model("vgg"), golden_model("resnet")

    def kinds(model, *layers):
        return [model.layer_table.kind(model.layer_index(layer)) for layer in layers]

    assert kinds(vgg, "features.3", "features", "flatten", "classifier.0") == [
        "features",
        "features",
        "pool",
        "head",
    ]
    assert kinds(resnet, "layer1", "layer4", "avgpool", "flatten") == [
        "features",
        "features",
        "pool",
        "pool",
    ]


class Steep(torch.autograd.Function):
    """The identity with a custom gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 50 * gradient


class CustomBackward(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(Steep.apply(self.conv(x)).relu().mean((2, 3)))


def test_a_custom_backward_is_kept():
    torch.manual_seed(0)
    net = CustomBackward().eval()
    model = hp.Model(net, size=16)
    x = photos(model).requires_grad_()
    (expected,) = torch.autograd.grad(net(x)[:, 1].sum(), x)
    torch.testing.assert_close(
        model.gradient(x.detach(), torch.ones(3, dtype=torch.long)).gradient, expected
    )


def test_a_network_that_views_its_features_as_rows_runs():
    """`x.view(len(x), -1)` fails for channels-last features."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Linear(4 * 64, 5)

        def forward(self, x):
            h = torch.relu(self.conv(x))
            return self.fc(h.view(len(h), -1))

    model = hp.Model(Net(), size=8)
    x = torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(model.logits(x), model.module(x))
    torch.testing.assert_close(model.passes.logits_and_activation(x, 1)[0], model.module(x))


class _Scale(nn.Module):
    def forward(self, x):
        return (x - 0.5) / 0.25


class _Normalised(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.scale, self.net = _Scale(), net

    def forward(self, x):
        return self.net(self.scale(x))


@pytest.mark.parametrize(
    "wrapped",
    [
        _Normalised,
        lambda net: nn.Sequential(_Scale(), net),
        lambda net: nn.Sequential(nn.Identity(), _Scale(), net),
    ],
)
def test_layers_behind_a_normalisation_are_recognised(wrapped):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2, self.fc = (
                nn.Conv2d(3, 4, 3),
                nn.Conv2d(4, 6, 3),
                nn.Linear(6, 5),
            )

        def forward(self, x):
            return self.fc(torch.relu(self.conv2(torch.relu(self.conv1(x)))).mean((2, 3)))

    torch.manual_seed(0)
    net = Net().eval()
    model = hp.Model(wrapped(net), size=16, mean=[0] * 3, std=[1] * 3)
    x = torch.rand(2, 3, 16, 16)
    assert model.activation(x, "cam").shape == (2, 6, 12, 12)
    plain = hp.Model(net, size=16, mean=[0.5] * 3, std=[0.25] * 3)
    torch.testing.assert_close(
        hp.explain(model, x, 1, "gradcam"), hp.explain(plain, plain.normalize(x), 1, "gradcam")
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": [123, 117, 104], "std": [58, 57, 57]}, "divide them by 255"),
        ({"std": [0, 0, 0]}, "divide them by 255"),
        ({"mean": 0.5}, "a number for each channel"),
        ({"layers": "0"}, r'layers=\["0"\]'),
        ({"size": (96, 96, 3)}, "size is the side"),
        ({"size": (96, 0)}, r"such as \(96, 160\); got \(96, 0\)"),
        ({"size": "96"}, "size is the side"),
    ],
)
def test_implausible_units_and_sizes_are_refused(options, message):
    with pytest.raises(HeatproofError, match=message):
        hp.Model(
            nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), **options
        )


def test_a_network_that_writes_into_its_input_is_refused():
    class Careless(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(
                nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
            )

        def forward(self, x):
            x -= 0.5
            return self.inner(x)

    with pytest.raises(HeatproofError, match="writes into its input"):
        hp.Model(Careless(), size=16)


def test_gradients_do_not_depend_on_the_memory_layout():
    """Compare a channels-last network with one whose `view` needs contiguous memory."""

    class Net(nn.Module):
        def __init__(self, strict):
            super().__init__()
            self.strict = strict
            self.conv, self.again, self.head = (
                nn.Conv2d(3, 8, 3, padding=1),
                nn.Conv2d(8, 8, 3),
                nn.Linear(8 * 14 * 14, 5),
            )

        def forward(self, x):
            h = self.again(self.conv(x).relu()).relu()
            return self.head(h.view(len(h), -1) if self.strict else h.flatten(1))

    torch.manual_seed(0)
    free, strict = Net(False), Net(True)
    strict.load_state_dict(free.state_dict())
    one, other = (hp.Model(net.eval(), size=16, layers=["conv", "again"]) for net in (free, strict))
    assert (one.layout, other.layout) == (torch.channels_last, torch.contiguous_format)
    x, target = torch.rand(6, 3, 16, 16), torch.arange(6) % 5
    for layer in ("input", "conv"):
        for method in ("ixg", "ig(steps=4)", "gradcam++", "guided-backprop"):
            maps = [hp.explain(model, x, target, f"{method}@{layer}") for model in (one, other)]
            torch.testing.assert_close(*maps, rtol=1e-4, atol=1e-6)
            assert maps[0].abs().max() > 0
