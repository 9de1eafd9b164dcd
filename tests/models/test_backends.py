"""Every backend agrees with the network, for any batch, and leaves the network unchanged."""

import copy
import importlib.util
import os
import shutil
import sys

import pytest
import torch
from forked import Forked
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d

import heatproof as hp
import heatproof.functional as F
from heatproof.data.catalog import load_batch
from heatproof.data.grids import tile
from heatproof.errors import HeatproofError
from heatproof.models import backends, views
from heatproof.models.guards import assert_unchanged

PROMISE = 1e-3  # of the range of logits and embeddings
ROUNDING = 1e-5  # of the range of logits; single precision leaves 1e-6 on every processor tried
NETS = ("resnet", "vgg-bn", "vit", "bagnet", "bcos", "resnet-nobn")
ROWS = 16
compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"
)
installed = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="needs openvino"
)
CASES = [
    *(pytest.param(net, "fused", id=f"{net}-fused") for net in NETS),
    *(pytest.param(net, "openvino", id=f"{net}-openvino", marks=installed) for net in NETS),
    pytest.param("block", "compile", id="block-compile", marks=[compiler, pytest.mark.slow]),
    pytest.param(
        "resnet", "compile", id="resnet-compile", marks=[compiler, pytest.mark.soak]
    ),  # half a minute of C++ for every network
]
each = pytest.mark.parametrize("backend", ["fused", pytest.param("openvino", marks=installed)])


@pytest.fixture(scope="module", autouse=True)
def instruction_sets(tmp_path_factory):
    """Let each backend use one instruction set throughout, where the environment limits torch's.

    Torch reads ONEDNN_MAX_CPU_ISA when it first convolves. OpenVINO has a oneDNN of its own, which
    reads it later, but chooses its other kernels by the processor; the mixture does not run.
    torch.compile finds kernels in its cache whatever instruction set they were written for, and
    compiles them for the current one: errors or NaNs.
    """
    conv2d(torch.ones(1, 8, 8, 8), torch.ones(8, 8, 3, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
        if "ATEN_CPU_CAPABILITY" in os.environ:
            patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.fixture(scope="module")
def models():
    """Return a model by name, with two batches of images and their labels."""
    loaded: dict[str, tuple[hp.Model, Tensor, Tensor]] = {}

    def load(net: str) -> tuple[hp.Model, Tensor, Tensor]:
        if net not in loaded:
            model = block() if net == "block" else hp.load_model(f"paperbirds/{net}")
            model.batch_size = ROWS
            batch = load_batch(
                hp.load_data("paperbirds:test", model, limit=2 * ROWS), range(2 * ROWS), model
            )
            loaded[net] = model, batch.x, torch.tensor(batch.labels)
        loaded[net][0].backend = "eager"
        return loaded[net]

    return load


def fraction_of_range(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / (theirs.max() - theirs.min()))


def assert_same_order(ours: Tensor, theirs: Tensor, within: float) -> None:
    """Assert that values (B, N) further apart than `within` are in the same order in every row."""
    gaps = theirs[:, :, None] - theirs[:, None]
    clear = gaps > within
    assert clear.sum() > gaps.numel() / 4  # at most half of the gaps are positive
    assert (ours[:, :, None] > ours[:, None])[clear].all()


class Block(nn.Module):
    """The operations of the ResNet, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.conv = nn.Conv2d(16, 16, 3, 1, 1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(self.norm(self.stem(x)).relu(), 2)
        x = (x + self.conv(x)).relu()
        return self.fc(x.mean((2, 3)))


def block() -> hp.Model:
    torch.manual_seed(0)
    net = Block()
    net.norm.running_mean.normal_()
    net.norm.running_var.uniform_(0.5, 2)
    return hp.Model(net.eval(), size=64)


def small() -> hp.Model:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 4),
    )
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    return hp.Model(net, size=16, batch_size=4)


@pytest.mark.parametrize(("net", "backend"), CASES)
def test_a_backend_gives_what_the_network_gives(models, net, backend):
    """Logits and embeddings agree, drops are ranked alike, and an image gives the same bytes at
    any position of any batch.

    Drops are logits minus logits: two of them that differ by no more than rounding, such as those
    of patches without effect, may swap.
    """
    model, x, target = models(net)
    expected = model.forward(x)
    drops = F.patch_drops(model, x[:3], target[:3], patches=16)
    model.backend = backend
    with assert_unchanged(model.module):
        outputs = model.forward(x)
    for ours, theirs in zip(outputs, expected, strict=True):
        assert ours.shape == theirs.shape and fraction_of_range(ours, theirs) <= PROMISE
    logits = expected[0]
    within = ROUNDING * float(logits.max() - logits.min())
    assert_same_order(F.patch_drops(model, x[:3], target[:3], patches=16), drops, within)
    for rows in ([3], [20, 3, 30], list(range(ROWS, 0, -1))):
        for ours, theirs in zip(model.forward(x[rows]), outputs, strict=True):
            assert torch.equal(ours, theirs[rows])
    others = x[:ROWS].flip(1).contiguous() * 3
    others[3] = x[3]
    assert torch.equal(model.logits(others)[3], outputs[0][3])


def test_scores_of_a_run_keep_their_order(models, tmp_path):
    """Per-sample scores of sds agree over 64 images, and no backend re-uses another's records."""
    model, _, _ = models("resnet")
    methods = ["ixg", "rise(masks=4)"]
    found, reused = {}, []
    for backend in (
        "eager",
        "fused",
        "fused",
        *(["openvino"] if importlib.util.find_spec("openvino") else []),
    ):
        model.backend = backend
        result = hp.evaluate(
            model,
            "paperbirds:test",
            methods,
            limit=64,
            batch_size=ROWS,
            keep_maps=0,
            out=tmp_path,
            progress=lambda _, r: reused.append(r),
        )
        found[backend] = torch.tensor(result.scores["value"].to_numpy()).reshape(len(methods), 64)
    assert reused[:4] == [False, False, True, False][: len(reused)]
    for scores in found.values():
        assert F.spearman(scores, found["eager"]).min() >= 0.999


def test_only_whole_passes_without_gradients_leave_the_network(models):
    model, x, target = models("resnet")
    x, target = x[:ROWS], target[:ROWS]
    tail, h = model.tail("layer2"), model.activation(x, "layer2")
    expected = [tail.logits(h), model.gradient(x, target).gradient, model(x).detach(), h]
    model.backend = "fused"
    tail = model.tail("layer2")
    found = [
        tail.logits(h),
        model.gradient(x, target).gradient,
        model(x).detach(),
        model.passes.logits_and_activation(x, model.layer_index("layer2"))[1],
    ]
    assert all(map(torch.equal, found, expected))
    assert torch.equal(
        model.passes.logits_and_activation(x, model.layer_index("layer2"))[0], model.forward(x)[0]
    )
    before = model.pass_counts.copy()
    model.tail("input").logits(x)
    assert (model.pass_counts - before) == {"forward": ROWS}


@each
@pytest.mark.parametrize("net", ["vgg", "resnet"])
@pytest.mark.parametrize(
    "view",
    [
        lambda m: views.gridpg(m, 2),
        lambda m: views.difull(m, 2, 1),
        lambda m: views.dipart(m, 2, 3),
    ],
)
def test_views_of_a_network_run_too(models, net, backend, view):
    model, x, _ = models(net)
    seen, grids = view(model), torch.stack([tile(list(x[:4]), 2), tile(list(x[4:8]), 2)])
    seen.batch_size, expected = 2, seen.forward(grids)
    seen.backend = backend
    for ours, theirs in zip(seen.forward(grids), expected, strict=True):
        assert fraction_of_range(ours, theirs) <= PROMISE


def test_norms_are_folded_into_convolutions():
    """By hand: w·γ/√(σ² + ε), and no norm is left in the graph."""
    model = small()
    conv, norm = model.module[0], model.module[1]
    program = torch.export.export(
        backends.Whole("small", model.module.eval(), model.body, model.layer_table.embedding),
        (torch.zeros(4, 3, 16, 16),),
    )
    graph = backends._fused(program)
    assert not graph.graph.find_nodes(op="call_function", target=torch.ops.aten.batch_norm.default)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    (folded,) = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.conv2d.default)
    weight, bias = (getattr(graph, node.target) for node in folded.args[1:3])
    torch.testing.assert_close(weight, conv.weight * scale[:, None, None, None])
    torch.testing.assert_close(bias, norm.bias - norm.running_mean * scale)
    x = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(conv2d(x, weight, bias), norm.eval()(conv(x)))


@pytest.mark.parametrize("backend", ["eager", "fused"])
def test_autocast_of_the_caller_does_not_matter(models, backend):
    model, x, target = models("resnet")
    model.backend = backend
    logits = model.logits(x)
    gradient = model.gradient(x, target).gradient
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.logits(x), logits)
        assert torch.equal(model.gradient(x, target).gradient, gradient)
        assert torch.is_autocast_enabled("cpu")


@each
def test_the_network_is_left_unchanged(backend):
    model = small()
    model.module.train()
    model.module[1].eval()
    model.backend = backend
    before, drawn, x = copy.deepcopy(model.module), torch.get_rng_state(), torch.zeros(3, 3, 16, 16)
    with assert_unchanged(model.module):
        model.logits(x)
    assert [m.training for m in model.module.modules()] == [m.training for m in before.modules()]
    assert model.module[2].inplace
    assert torch.get_rng_state().equal(drawn)


@each
def test_other_weights_and_other_shapes_are_seen(backend):
    model = small()
    x = torch.randn(6, 3, 16, 16)

    def compare(image: Tensor) -> None:
        model.backend = "eager"
        expected = model.logits(image)
        model.backend = backend
        torch.testing.assert_close(model.logits(image), expected)

    compare(x)
    with torch.no_grad():
        model.module[5].weight.mul_(2)
        compare(x)
        model.module[1].running_var.mul_(3)
        compare(x)
    compare(torch.randn(2, 3, 24, 24))
    model.batch_size = 2
    compare(x)
    again = copy.deepcopy(model)
    nn.init.zeros_(again.module[5].weight)
    assert not torch.equal(again.logits(x), model.logits(x))


class Branch(nn.Module):
    """What it computes depends on what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3))
        return self.linear(means * 2 if means.sum() > 0 else means)


class ByShape(Branch):
    """Cannot be cut, but its branch is the same for all images of a size."""

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3))
        return self.linear(means * 2 if x.shape[-1] > 8 else means)


def test_a_network_that_cannot_be_followed_is_refused():
    model = hp.Model(Branch().eval(), size=16, batch_size=2)
    model.backend = "fused"
    with pytest.raises(
        HeatproofError,
        match="Branch cannot run on the backend fused: torch.export cannot follow .* eager runs it",
    ):
        model.logits(torch.zeros(2, 3, 16, 16))


@each
def test_a_network_that_cannot_be_cut_runs_nevertheless(backend):
    model = hp.Model(ByShape().eval(), size=16, batch_size=2)
    x = torch.randn(3, 3, 16, 16)
    expected = model.forward(x)
    torch.testing.assert_close(expected[1], 2 * x.mean((2, 3)))
    model.backend = backend
    for ours, theirs in zip(model.forward(x), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    for ours, theirs in zip(copy.deepcopy(model).forward(x), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_backend_that_is_wrong_is_refused(monkeypatch):
    model = small()

    def wrong(program):
        right = backends._fused(program)
        return lambda x: (right(x)[0], right(x)[1] * 1.01)

    monkeypatch.setitem(backends._MAKERS, "fused", wrong)
    model.backend = "fused"
    with pytest.raises(
        HeatproofError, match="for noise, its embeddings differ from .* of their range"
    ):
        model.logits(torch.zeros(2, 3, 16, 16))


def test_what_is_missing_is_named(monkeypatch):
    model = small()
    with pytest.raises(HeatproofError, match='unknown backend "openvin"; did you mean openvino'):
        model.backend = "openvin"
    monkeypatch.setitem(sys.modules, "openvino", None)
    model.backend = "openvino"
    with pytest.raises(HeatproofError, match=r"pip install 'heatproof\[openvino\]'"):
        model.logits(torch.zeros(2, 3, 16, 16))


@pytest.mark.slow
def test_without_a_compiler_the_message_says_so(tmp_path):
    script = tmp_path / "script.py"
    code = """
import torch
import heatproof as hp
model = hp.load_model("paperbirds/vgg", backend="compile")
model.logits(torch.zeros(1, 3, 64, 64))
"""
    script.write_text(code)
    environment = {
        "PATH": "",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "OMP_NUM_THREADS": "1",
    }
    done = Forked([script], tmp_path / "log", environment)
    assert done.wait() != 0
    assert "torch.compile finds no C++ compiler; install g++" in done.text
