"""Networks as users have them: wrapped, compiled, scripted, or with rich outputs."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import heatproof as hp
from heatproof.errors import HeatproofError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

METHODS = ["ixg", "ig(steps=2)", "gradcam", "rise(masks=8)"]


def small(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(6, 4)).eval()


class Wrapped(nn.Module):
    """A network around another, whose outputs are more than logits."""

    def __init__(self, net, wrap):
        super().__init__()
        self.net = net
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.net(x))


class Training(nn.Module):
    """A module that trains a network, without a forward of its own."""

    def __init__(self, net):
        super().__init__()
        self.model = net
        self.loss = nn.CrossEntropyLoss()


@dataclass
class Output:
    """An output with an attribute for the logits."""

    features: Tensor
    logits: Tensor


Pair = namedtuple("Pair", "features scores")
WRAPPERS = {
    "dict": (lambda z: {"features": z * 2, "logits": z}, None),
    "attribute": (lambda z: Output(z * 2, z), None),
    "key": (lambda z: {"features": z * 2, "scores": z}, "scores"),
    "tuple": (lambda z: (z * 2, z), 1),
    "list": (lambda z: [z, z * 2], 0),
    "named tuple": (lambda z: Pair(z * 2, z), "scores"),
}


def check_same(model, plain, x):
    assert torch.equal(model.logits(x), plain.logits(x))
    for method in METHODS:
        ours = hp.explain(model, x, 1, method)
        torch.testing.assert_close(ours, hp.explain(plain, x, 1, method), msg=method)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_logits_are_taken_from_the_outputs(kind):
    wrap, output = WRAPPERS[kind]
    net = Wrapped(small(), wrap)
    names = [name for name, _ in net.named_modules()]
    model = hp.Model(net, size=16, output=output)
    check_same(model, hp.Model(small(), size=16), torch.randn(2, 3, 16, 16))
    assert not isinstance(net(torch.zeros(1, 3, 16, 16)), Tensor)  # the network is as it was
    assert [name for name, _ in model.module.named_modules()] == names
    assert model.module.state_dict().keys() == net.state_dict().keys()


@pytest.mark.parametrize(
    ("wrap", "output", "message"),
    [
        (lambda z: (z[:, :, None], z), None, r"tuple of 0 \(2, 4, 1\), 1 \(2, 4\).*output=1\)"),
        (lambda z: {"out": z}, None, r"dict of 'out' \(2, 4\).*hp.Model\(net, output=\"out\"\)"),
        (lambda z: {"out": z}, "scores", r"without 'scores'; it has: 'out' \(2, 4\)"),
        (lambda z: (z,), 3, r"without 3; it has: 0 \(2, 4\)"),
        (lambda z: z, "out", "returns a tensor, which has no output 'out'"),
        (lambda z: None, None, "must return logits of shape .* got NoneType"),
        (lambda z: {"last_hidden_state": z}, None, "AutoModelForImageClassification"),
    ],
)
def test_the_error_names_the_outputs_that_there_are(wrap, output, message):
    with pytest.raises(HeatproofError, match=message):
        hp.Model(Wrapped(small(), wrap), size=16, output=output)


def test_the_choice_of_an_output_is_part_of_the_fingerprint():
    net = Wrapped(small(), lambda z: (z, z * 2))
    first, second = (hp.Model(net, size=16, output=i).fingerprint() for i in (0, 1))
    assert first != second


def test_a_file_can_say_which_output(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import heatproof as hp\nimport torch\n\n\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.fc = torch.nn.Linear(3, 4)\n\n"
        "    def forward(self, x):\n        return {'out': self.fc(x.mean((2, 3)))}\n\n\n"
        "def build():\n    return hp.Model(Net(), size=16, output='out')\n"
    )
    assert hp.load_model(f"file:{tmp_path}/mine.py:build").n_classes == 4


@pytest.mark.parametrize(
    "wrap",
    [
        Training,
        torch.compile,
        lambda net: nn.DataParallel(torch.compile(net)),
        lambda net: Training(torch.compile(net)),
    ],
    ids=["training", "compiled", "both", "nested"],
)
def test_the_network_inside_of_a_wrapper_is_evaluated(wrap):
    net = small()
    model = hp.Model(wrap(net), size=16)
    assert model.module is net
    assert model.layers == hp.Model(net, size=16).layers
    check_same(model, hp.Model(net, size=16), torch.randn(2, 3, 16, 16))


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda net: Training(nn.DataParallel(net))])
def test_data_parallel_stays_in_the_names_of_layers(wrap):
    net = small()
    model = hp.Model(wrap(net), size=16)
    assert model.layers[1] == "module.0"
    check_same(model, hp.Model(net, size=16), torch.randn(2, 3, 16, 16))


@pytest.mark.parametrize("kind", ["script", "trace", "frozen"])
def test_scripted_networks_run_as_a_whole(kind):
    net = small()
    x = torch.randn(2, 3, 16, 16)
    scripts = {
        "script": lambda: torch.jit.script(net),
        "trace": lambda: torch.jit.trace(net, x),
        "frozen": lambda: torch.jit.freeze(torch.jit.script(net)),
    }
    model = hp.Model(scripts[kind](), size=16)
    plain = hp.Model(net, size=16)
    torch.testing.assert_close(model.logits(x), plain.logits(x))
    for method in ("ixg", "ig(steps=2)", "rise(masks=8)", "occlusion"):
        torch.testing.assert_close(hp.explain(model, x, 1, method), hp.explain(plain, x, 1, method))
    with pytest.raises(HeatproofError, match="no spatial layer"):
        hp.explain(model, x, 1, "gradcam")
    other = nn.Sequential(*small()[:1], nn.Tanh(), *small()[2:]).eval()
    assert model.fingerprint() != hp.Model(torch.jit.script(other), size=16).fingerprint()


def test_a_scripted_network_may_return_a_tuple():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            z = self.net(x)
            return z * 2, z

    model = hp.Model(torch.jit.script(Both().eval()), size=16, output=1)
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model.logits(x), hp.Model(small(), size=16).logits(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_networks_in_half_precision_run_where_torch_can(dtype):
    model = hp.Model(small().to(dtype), size=16)
    x = torch.randn(2, 3, 16, 16)
    for method in METHODS:
        maps = hp.explain(model, x, 1, method)
        assert maps.dtype == torch.float32
        assert maps.isfinite().all()
    result = hp.evaluate(model, (torch.rand(4, 3, 16, 16), None), ["ixg"], ["sds(patches=4)"])
    assert set(result.scores["status"]) <= {"ok", "undefined"}


def test_half_precision_that_cannot_run_has_the_line_that_cures_it():
    class NoHalf(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 4)

        def forward(self, x):
            return torch.linalg.inv(torch.eye(4).to(x)) @ self.fc(x.mean((2, 3))).mT

    with pytest.raises(HeatproofError, match=r"in float16 on cpu; .*net\.float\(\)"):
        hp.Model(NoHalf().half(), size=16)


@pytest.mark.parametrize("traceable", [True, False])
def test_nan_is_named_as_nan(traceable):
    def spoil(z):
        return z * float("nan") if traceable or z.sum() > -1e9 else z

    with pytest.raises(HeatproofError, match="returns NaN for 2 of 2 images"):
        hp.Model(Wrapped(small(), spoil), size=16)


def test_layers_have_names_that_users_know():
    class Rich(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Wrapped(small()[:2], lambda h: Output(h, h))
            self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))

        def forward(self, x):
            return self.head(self.body(x).logits)

    model = hp.Model(Rich(), size=16)
    assert model.layers[:2] == ("input", "body.logits")
    assert not [layer for layer in model.layers if "getattr" in layer or "getitem" in layer]
