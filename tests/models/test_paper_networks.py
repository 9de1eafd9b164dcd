"""Networks of the papers: weight names, arithmetic, layers, preprocessing and downloads."""

import argparse
import io
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from math import log, prod
from threading import Thread
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import heatproof as hp
from heatproof.baselines import Baseline
from heatproof.errors import HeatproofError
from heatproof.files import file_hash
from heatproof.models import download, paper_networks
from heatproof.models.bagnet import BagNet
from heatproof.models.model import Model
from heatproof.models.paper_networks import FINE_TUNED_NAMES, NETWORKS, OURS
from heatproof.models.weights_file import load_weights, looks_like
from heatproof.models.zoo import load_fine_tuned, load_model
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import make_spec
from heatproof.tensor.noise import Rng

DEPTHS = (3, 4, 6, 3)


class Weights(dict[str, Tensor]):
    """Weights drawn on first use, so that a forward pass defines the names and shapes it needs."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.rng, self.dtype = torch.Generator().manual_seed(0), dtype

    def __call__(self, name: str, *shape: int, around: float = 0.0, spread: float = 0.1) -> Tensor:
        if name not in self:
            fan = prod(shape[1:]) if len(shape) > 1 else 0
            noise = (
                torch.randn(4099, generator=self.rng)
                .repeat(-(-prod(shape) // 4099))[: prod(shape)]
                .reshape(shape)
            )
            self[name] = (around + noise * ((2 / fan) ** 0.5 if fan else spread)).to(self.dtype)
        return self[name]


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    c = x.shape[1]
    mean, var = w(f"{name}.running_mean", c), w(f"{name}.running_var", c, around=1)
    return F.batch_norm(x, mean, var, w(f"{name}.weight", c, around=1), w(f"{name}.bias", c))


def conv(
    w: Weights, name: str, x: Tensor, outputs: int, kernel: int, stride: int = 1, padding: int = 0
) -> Tensor:
    return F.conv2d(
        x, w(f"{name}.weight", outputs, x.shape[1], kernel, kernel), stride=stride, padding=padding
    )


def fixup(w: Weights, x: Tensor, scalars: bool = True) -> Tensor:
    """Zhang et al. 2019, with the names of github.com/hongyi-zhang/Fixup.

    X-DNNs are the same without the scalar parameters.
    """

    def b(name: str, around: float = 0.0) -> Tensor | float:
        return w(name, 1, around=around) if scalars else around

    x = F.max_pool2d((conv(w, "conv1", x, 64, 7, 2, 3) + b("bias1")).relu(), 3, 2, 1)
    for layer, depth in enumerate(DEPTHS):
        for block in range(depth):
            at, planes, stride = (
                f"layer{layer + 1}.{block}.",
                64 << layer,
                2 if layer and not block else 1,
            )
            shifted = x + b(at + "bias1a")
            out = (conv(w, at + "conv1", shifted, planes, 1) + b(at + "bias1b")).relu()
            out = (
                conv(w, at + "conv2", out + b(at + "bias2a"), planes, 3, stride, 1)
                + b(at + "bias2b")
            ).relu()
            out = conv(w, at + "conv3", out + b(at + "bias3a"), 4 * planes, 1) * b(
                at + "scale", 1.0
            ) * 1.0 + b(at + "bias3b")
            x = (
                out + (x if block else conv(w, at + "downsample", shifted, 4 * planes, 1, stride))
            ).relu()
    return F.linear(
        x.mean((2, 3)) + b("bias2"),
        w("fc.weight", 1000, 2048),
        w("fc.bias", 1000) if scalars else None,
    )


def x_vgg(w: Weights, x: Tensor) -> Tensor:
    """The X-VGG with the names of github.com/visinf/fast-axiomatic-attribution.

    Names are indices among all layers, activations included.
    """
    at = 0
    for group in ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3):
        for width in group:
            x, at = conv(w, f"features.{at}", x, width, 3, 1, 1).relu(), at + 2
        x, at = F.max_pool2d(x, 2), at + 1
    x = F.adaptive_avg_pool2d(x, 7).flatten(1)
    x = F.linear(
        F.linear(x, w("classifier.0.weight", 4096, 25088)).relu(),
        w("classifier.3.weight", 4096, 4096),
    ).relu()
    return F.linear(x, w("classifier.6.weight", 1000, 4096))


def bagnet(w: Weights, x: Tensor, kernels: tuple[int, ...]) -> Tensor:
    """Brendel & Bethge 2019.

    The names are those of github.com/wielandbrendel/bag-of-local-features-models.
    """
    x = norm(w, "bn1", conv(w, "conv2", conv(w, "conv1", x, 64, 1), 64, 3)).relu()
    for layer, depth in enumerate(DEPTHS):
        for block in range(depth):
            at, planes = f"layer{layer + 1}.{block}.", 64 << layer
            kernel, stride = (1, 1) if block else (kernels[layer], (2, 2, 2, 1)[layer])
            out = norm(w, at + "bn1", conv(w, at + "conv1", x, planes, 1)).relu()
            out = norm(w, at + "bn2", conv(w, at + "conv2", out, planes, kernel, stride)).relu()
            out = norm(w, at + "bn3", conv(w, at + "conv3", out, 4 * planes, 1))
            kept = (
                x
                if block
                else norm(
                    w, at + "downsample.1", conv(w, at + "downsample.0", x, 4 * planes, 1, stride)
                )
            )
            x = (out + kept[:, :, : out.shape[2], : out.shape[3]]).relu()
    return F.linear(x.mean((2, 3)), w("fc.weight", 1000, 2048), w("fc.bias", 1000))


def bcos(w: Weights, x: Tensor, depths: tuple[int, ...], bottleneck: bool) -> Tensor:
    """Böhle et al. 2022, with the names of github.com/B-cos/B-cos-v2.

    The norms of patches are computed from the patches themselves.
    """

    def layer(name: str, x: Tensor, outputs: int, kernel: int, stride: int = 1) -> Tensor:
        weight = w(f"{name}.linear.weight", outputs, x.shape[1], kernel, kernel)
        patches = F.unfold(x, kernel, padding=kernel // 2, stride=stride)  # (B, C k k, positions)
        unit = weight.flatten(1) / weight.flatten(1).norm(dim=1, keepdim=True)
        out = unit @ patches
        out = out.abs() / (patches.square().sum(1, keepdim=True) + 1e-6).sqrt() * out
        return out.unflatten(2, (-(-x.shape[2] // stride), -(-x.shape[3] // stride)))

    def uncentred(name: str, x: Tensor) -> Tensor:
        w(f"{name}.running_mean", x.shape[1])  # stored, but not used
        w[f"{name}.num_batches_tracked"] = torch.tensor(7)
        # Matched to the data; otherwise values would shrink from layer to layer.
        variance = w.setdefault(f"{name}.running_var", 1.5 * x.var((0, 2, 3)))
        weight = w(f"{name}.weight", x.shape[1], around=1)
        return x / (variance + 1e-5).sqrt()[:, None, None] * weight[:, None, None]

    x = F.avg_pool2d(uncentred("bn1", layer("conv1", torch.cat([x, 1 - x], 1), 64, 7, 2)), 3, 2, 1)
    for number, depth in enumerate(depths):
        for block in range(depth):
            at, planes, stride = (
                f"layer{number + 1}.{block}.",
                64 << number,
                2 if number and not block else 1,
            )
            shape = (
                ((planes, 1, 1), (planes, 3, stride), (4 * planes, 1, 1))
                if bottleneck
                else ((planes, 3, stride), (planes, 3, 1))
            )
            out = x
            for i, (width, kernel, step) in enumerate(shape, 1):
                out = uncentred(f"{at}bn{i}", layer(f"{at}conv{i}", out, width, kernel, step))
            changes = out.shape != x.shape
            x = out + (
                uncentred(
                    at + "downsample.1", layer(at + "downsample.0", x, out.shape[1], 1, stride)
                )
                if changes
                else x
            )
    return layer("fc", x, 1000, 1).mean((2, 3)) + log(1 / 999)


REFERENCES = {
    "fixup-resnet50": fixup,
    "x-resnet50": lambda w, x: fixup(w, x, scalars=False),
    "x-vgg16": x_vgg,
    "bagnet9": lambda w, x: bagnet(w, x, (3, 3, 1, 1)),
    "bagnet17": lambda w, x: bagnet(w, x, (3, 3, 3, 1)),
    "bagnet33": lambda w, x: bagnet(w, x, (3, 3, 3, 3)),
    "bcos-resnet18": lambda w, x: bcos(w, x, (2, 2, 2, 2), bottleneck=False),
    "bcos-resnet50": lambda w, x: bcos(w, x, DEPTHS, bottleneck=True),
}


def untrained(build, *args, **options):
    """Build a network with random weights that are cheap to draw."""
    with torch.device("meta"):
        module = build(*args, **options)
        if "vgg" in str(args) + build.__qualname__ + str(getattr(build, "__self__", "")):
            # A narrow head: the real one has a hundred million weights.
            for at, inputs in ((0, 25088), (3, 32), (6, 32)):
                module.classifier[at] = torch.nn.Linear(
                    inputs, 32, bias=module.classifier[at].bias is not None
                )
    module.to_empty(device="cpu")
    draw = Weights()
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            value.copy_(draw(name, *value.shape, around=float(name.endswith(("var", "scale")))))
        else:
            value.zero_()
    return module.eval()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", OURS)
def test_published_weights_load_and_give_the_published_logits(name, x, tmp_path):
    """Compare names, shapes and arithmetic with a plain implementation based on the names alone.

    B-cos layers square their inputs, so random weights amplify rounding: they are compared in
    double precision.
    """
    dtype = torch.float64 if name.startswith("bcos") else torch.float32
    weights = Weights(dtype)
    with torch.no_grad():
        expected = REFERENCES[name](weights, x.to(dtype))
    state = {f"module.model.{k}": v for k, v in weights.items()}
    torch.save(
        {"epoch": 90, "arch": name, "best_acc1": torch.tensor(70.0), "state_dict": state},
        tmp_path / "published.pth.tar",
    )
    with torch.device("meta"):
        module = NETWORKS[name].module()
    module = module.to(dtype).to_empty(device="cpu").eval()
    load_weights(module, tmp_path / "published.pth.tar", name)
    with torch.no_grad():
        logits = module(x.to(dtype))
    spread = expected.std().item()
    assert spread > 1e-3
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * spread)
    assert looks_like(weights) == name


def assert_cuts_and_maps(model: Model, x: Tensor) -> None:
    """Check that every layer is an exact cut and that maps can be computed at the aliases."""
    x = x.contiguous(memory_format=torch.channels_last)  # as in every pass of a model
    with torch.no_grad():
        logits, seen = model.body.run(x, 0, watch=range(len(model.layers)))
        for at, layer in enumerate(model.layers):
            assert torch.equal(model.tail(layer)(seen[at]), logits), layer
    target = logits.argmax(1)
    methods = (
        ["ixg@input", *(f"ixg@{name}" for name in ("middle", "final")), "gradcam@cam"]
        if "middle" in model.landmarks
        else ["ixg", "rollout", "gradcam@cam"]
    )
    for expression in methods:
        maps = hp.explain(model, x, target, expression)
        assert maps.shape == (1, *x.shape[2:])
        assert maps.isfinite().all()
        assert maps.abs().max() > 0 or "cam" in expression  # a CAM may have no positive part


@pytest.mark.parametrize("name", OURS)
def test_every_layer_of_our_networks_is_an_exact_cut(name, x):
    network = NETWORKS[name]
    model = Model(
        untrained(network.module),
        name=name,
        size=64,
        mean=network.mean,
        std=network.std,
    )
    assert model.landmarks == network.layers
    assert_cuts_and_maps(model, model.normalize(x))
    if name.startswith("bcos"):
        assert hp.explain(model, model.normalize(x), torch.tensor([3]), "bcos").abs().max() > 0


@pytest.mark.parametrize(("name", "field"), [("bagnet9", 9), ("bagnet17", 17), ("bagnet33", 33)])
def test_receptive_fields_of_bagnets(name, field):
    with torch.device("meta"):
        net = NETWORKS[name].module()
    assert isinstance(net, BagNet)
    assert (net.field, net.stride) == (field, 8)


# More of the same blocks as in networks that are not listed here
DEEPER = {
    "torchvision:resnet34",
    "torchvision:resnet101",
    "torchvision:resnet152",
    "torchvision:wide_resnet50_2",
    "torchvision:vgg13",
    "torchvision:vgg19",
    "torchvision:vgg13_bn",
    "torchvision:vgg19_bn",
    "torchvision:vit_b_16",
    "timm:vit_base_patch16_224",
    "timm:vit_small_patch16_224",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.soak) if name in DEEPER else name
        for name in NETWORKS
        if name not in OURS
    ],
)
def test_every_layer_of_library_networks_is_an_exact_cut(name, x, timm, torchvision):
    network, (package, _, net) = NETWORKS[name], name.partition(":")
    if package == "timm":
        module = untrained(timm.create_model, net, img_size=64, depth=3)
    else:
        options = (
            {"image_size": 64}
            if "vit" in net
            else {"init_weights": False, "transform_input": True}
            if net == "googlenet"
            else {}
        )
        module = untrained(torchvision.models.get_model, net, **options)
    model = Model(module, name=name, size=64, mean=network.mean, std=network.std)
    if "vit" in net or "deit" in net:
        assert set(model.landmarks) == {"cam"}  # the first norm of the last block
    else:
        assert model.landmarks == network.layers
    assert_cuts_and_maps(model, model.normalize(x))
    if network.layers:  # the grid paper's layers: 56 px of 448 in the middle, 28 px of GoogLeNet
        channels, side, _ = model.shape("middle")
        assert side == (4 if "googlenet" in name else 8)
        assert channels == 512 or "vgg" not in name
        assert model.shape("final")[1] == (4 if "vgg" in name else 2)
        assert model.shape("cam")[1] == 2


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in OURS])
def test_the_table_agrees_with_the_libraries(name, timm, torchvision):
    network, (package, _, net) = NETWORKS[name], name.partition(":")
    if package == "timm":
        config = timm.get_pretrained_cfg(net)
        published = (
            config.input_size[-1],
            256 if network.papers else int(config.input_size[-1] / config.crop_pct),
            tuple(config.mean),
            tuple(config.std),
            config.num_classes,
        )
    else:
        entry = next(iter(torchvision.models.get_model_weights(net)))
        transforms = entry.transforms()
        published = (
            transforms.crop_size[0],
            transforms.resize_size[0],
            tuple(transforms.mean),
            tuple(transforms.std),
            len(entry.meta["categories"]),
        )
    assert published == (network.size, network.resize, network.mean, network.std, network.classes)


def test_the_colour_of_the_zero_baseline(x):
    """The table states the colour of the zero baseline in the image."""
    colours = {
        "bcos-resnet18": (0.0, 0.0, 0.0),
        "timm:vit_base_patch16_224": (0.5, 0.5, 0.5),
        "bagnet33": (0.485, 0.456, 0.406),
    }
    words = {
        "bcos-resnet18": "black",
        "timm:vit_base_patch16_224": "mid-grey",
        "bagnet33": "mean colour",
    }
    for name, colour in colours.items():
        network = NETWORKS[name]
        model = Model(
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 2)),
            size=64,
            mean=network.mean,
            std=network.std,
        )
        blank = model.denormalize(
            Baseline.parse("zero").fill(model.normalize(x), model, Rng(0, ["a"]))
        )
        torch.testing.assert_close(blank, torch.tensor(colour).reshape(1, 3, 1, 1).expand_as(x))
        assert network.zero == words[name]


def test_our_networks_load_by_name(torchvision):
    model, again = load_model("bcos-resnet18", "random"), load_model("bcos-resnet18", "random")
    assert (model.name, model.size, model.resize, model.n_classes) == (
        "bcos-resnet18",
        224,
        256,
        1000,
    )
    assert model.fingerprint() == again.fingerprint()
    assert model.classes is not None and model.classes[:3] == (
        "tench",
        "goldfish",
        "great white shark",
    )
    assert model.shape("encode") == (6, 224, 224)


# Checkpoints that do not fit


def saved(path, state, **more):
    torch.save({**state, **more}, path)
    return path


def test_a_checkpoint_for_another_network_says_what_it_looks_like(tmp_path):
    state = {
        f"module.{k}": v
        for k, v in untrained(NETWORKS["bcos-resnet18"].module).state_dict().items()
    }
    with torch.device("meta"):
        module = NETWORKS["x-resnet50"].module()
    with pytest.raises(
        HeatproofError,
        match=r"w.pth does not fit x-resnet50: it looks like bcos-resnet18: .*"
        r"missing .* and \d+ more; unexpected",
    ):
        load_weights(module, saved(tmp_path / "w.pth", state), "x-resnet50")


def test_missing_unexpected_and_misshapen_weights_are_all_listed(tmp_path):
    module = NETWORKS["bcos-resnet18"].module()
    state = module.state_dict()
    del state["layer1.0.conv1.weight"]
    state |= {"fc.weight": torch.zeros(10, 512, 1, 1), "extra": torch.zeros(1)}
    message = (
        r"does not fit mine: it looks like bcos-resnet18: "
        r"fc.weight is \(10, 512, 1, 1\), not \(1000, 512, 1, 1\); "
        r"missing layer1.0.conv1.weight; unexpected extra"
    )
    with pytest.raises(HeatproofError, match=message):
        load_weights(module, saved(tmp_path / "w.pth", state), "mine")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"epoch": 3, "lr": 0.1}, r"holds no weights by name, but epoch \(int\), lr \(float\)"),
        ({}, "but nothing"),
        ([1], "but no names"),
        (7, "but no names"),
    ],
)
def test_a_file_without_weights_is_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(HeatproofError, match=message):
        load_weights(torch.nn.Linear(2, 2), tmp_path / "w.pth")


@pytest.mark.parametrize("wrap", [{}, {"state_dict": 0}, {"model": 0}, {"model_state_dict": 0}])
@pytest.mark.parametrize("prefix", ["", "module.", "model.", "module.model.", "_orig_mod."])
def test_wrappers_and_prefixes_of_training_code_are_removed(tmp_path, wrap, prefix):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
    state = {prefix + k: v + 1 for k, v in net.state_dict().items()}
    torch.save(dict.fromkeys(wrap, state) or state, tmp_path / "w.pth")
    load_weights(net, tmp_path / "w.pth")
    assert all(torch.equal(v, state[prefix + k]) for k, v in net.state_dict().items())


def test_a_prefix_is_kept_where_the_network_has_a_module_of_that_name(tmp_path):
    net = torch.nn.Sequential()
    net.add_module("module", torch.nn.Linear(2, 2))
    load_weights(net, saved(tmp_path / "w.pth", {k: v + 1 for k, v in net.state_dict().items()}))
    features = torch.nn.Sequential()
    features.add_module("features", torch.nn.Linear(2, 2))
    state = {"features.module.weight": torch.ones(2, 2), "features.module.bias": torch.ones(2)}
    load_weights(features, saved(tmp_path / "w.pth", state))
    assert features.features.bias.tolist() == [1, 1]


def test_old_files_without_batch_counters_load(tmp_path):
    net = torch.nn.Sequential(torch.nn.BatchNorm2d(4))
    load_weights(
        net,
        saved(
            tmp_path / "w.pth",
            {k: v + 1 for k, v in net.state_dict().items() if "tracked" not in k},
        ),
    )
    assert (net[0].running_var.tolist(), net[0].num_batches_tracked.item()) == ([2.0] * 4, 0)


def training_checkpoint(net, path, args=None):
    """Save what PyTorch's ImageNet example saves after an epoch, with the arguments of the run."""
    parallel = torch.nn.DataParallel(net)
    optimizer = torch.optim.SGD(parallel.parameters(), 1e-3, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.1)
    sum(p.sum() for p in net.parameters()).backward()
    optimizer.step()
    scheduler.step()
    content = {
        "epoch": 30,
        "arch": "resnet50",
        "state_dict": parallel.state_dict(),
        "best_acc1": torch.tensor(75.1),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "args": args
        or argparse.Namespace(data="imagenet", lr=1e-3, gpu=None, seed=0, evaluate=False),
    }
    torch.save(content, path)
    return path


def test_a_checkpoint_of_pytorchs_imagenet_example_loads_as_it_is(tmp_path, torchvision):
    net = torchvision.models.resnet18()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    file = training_checkpoint(net, tmp_path / BAGNET_FILE.replace("bagnet33", "resnet18"))
    model = load_model("torchvision:resnet18", file)
    again = load_model("torchvision:resnet18", "random", fine_tuned_weights={"16/zero": file})
    fine_tuned = load_fine_tuned(again, "16/zero")
    for loaded in (model, fine_tuned):
        state = loaded.module.state_dict()
        assert all(torch.equal(state[k], v) for k, v in net.state_dict().items())
        assert not torch.equal(state["fc.weight"], before["fc.weight"])


class Hostile:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code was run')",))


class HostileArguments(argparse.Namespace):
    def __reduce__(self):
        return (exec, ("raise SystemExit('code was run')",))


@pytest.mark.parametrize(
    "args",
    [
        argparse.Namespace(lr=Hostile()),
        argparse.Namespace(nested=argparse.Namespace(lr=[Hostile()])),
        argparse.Namespace(lr=exec),
        HostileArguments(lr=1),
        [HostileArguments],
    ],
)
def test_arguments_in_a_checkpoint_cannot_run_code(tmp_path, args):
    file = training_checkpoint(torch.nn.Linear(2, 2), tmp_path / "w.pth.tar", args)
    with pytest.raises(HeatproofError, match="cannot read weights"):
        load_weights(torch.nn.Linear(2, 2), file)
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


# Missing weights


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))

    def refuse(url, timeout):
        raise OSError("there is no network")

    monkeypatch.setattr(download, "urlopen", refuse)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("bagnet33", "bagnet32-2ddd53ed.pth.tar"),
        ("torchvision:resnet50", "resnet50-0676ba61.pth"),
        ("timm:vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"),
    ],
)
def test_nothing_is_downloaded_unless_asked_and_the_file_is_named(
    offline, timm, monkeypatch, name, file
):
    requested = []
    monkeypatch.setattr(download, "urlopen", lambda url, timeout: requested.append(url))
    with pytest.raises(
        HeatproofError,
        match=f"{name} needs weights, and nothing is downloaded unless asked .*"
        f"cache/weights/{file}.*=download",
    ):
        load_model(name)
    assert not requested


def test_a_failed_download_is_reported_at_once(offline):
    with pytest.raises(
        HeatproofError,
        match=r"cannot download https://bitbucket.*: there is no network. "
        r"Looked for .*bagnet32-2ddd53ed.pth.tar",
    ):
        load_model("bagnet33", "download")
    assert not [*(offline / "cache" / "weights").iterdir()]
    with pytest.raises(HeatproofError, match="weights=download is for published networks"):
        load_model("paperbirds/resnet", "download")


def test_a_download_is_verified_and_cached(offline, monkeypatch):
    class Answer(io.BytesIO):
        headers: ClassVar = {"Content-Length": "5"}

    answers = {"net-2cf24dba5f.pth": b"hello", "net-00000000.pth": b"hello", "net.pth": b"hel"}
    monkeypatch.setattr(
        download, "urlopen", lambda url, timeout: Answer(answers[url.rpartition("/")[2]])
    )
    source = download.Source.at("https://there/net-2cf24dba5f.pth")  # SHA-256 of hello
    assert download.cached(source) is None
    path = download.fetch(source)
    assert (path.read_bytes(), download.cached(source)) == (b"hello", path)
    with pytest.raises(
        HeatproofError,
        match="gave another file than it should: its SHA-256 begins with 2cf24dba5f, not 00000000",
    ):
        download.fetch(download.Source.at("https://there/net-00000000.pth"))
    with pytest.raises(HeatproofError, match="it ended after 3 of 5 bytes"):
        download.fetch(download.Source.at("https://there/net.pth"))
    names = sorted(p.name for p in path.parent.iterdir())
    assert names == [path.name, f"{path.name}.sha256"]


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Serve a directory on loopback, in place of the address of the fine-tuned weights."""
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))
    directory = tmp_path / "served"
    directory.mkdir()
    handler = partial(QuietHandler, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/"
        monkeypatch.setattr(paper_networks, "FINE_TUNED_ADDRESS", address)
        yield directory
        server.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


BAGNET_FILE = "bagnet33_imagenet1000_lr0.001_epochs30_step10_checkpoint_best.pth.tar"


def test_the_table_has_the_16_checkpoints_of_the_authors():
    """As the README of visinf/idsds lists them."""
    files = {paper_networks.fine_tuned_url(n).rpartition("/")[2] for n in FINE_TUNED_NAMES}
    assert len(files) == 16 and BAGNET_FILE in files
    assert all(file.endswith(BAGNET_FILE.removeprefix("bagnet33")) for file in files)
    assert {f.split("_")[0] for f in files if f.startswith("x")} == {"xresnet50", "xvgg16"}
    assert FINE_TUNED_NAMES.keys() <= NETWORKS.keys()
    assert paper_networks.fine_tuned_url("bagnet33", "64/zero") == ""
    assert paper_networks.fine_tuned_url("bagnet17") == ""
    assert paper_networks.fine_tuned_url("bagnet33") == (
        "https://download.visinf.tu-darmstadt.de/data/2024-neurips-hesse-idsds/models_finetuned/"
        + BAGNET_FILE
    )


def test_fine_tuned_weights_are_downloaded_and_compared_with_the_first_download(served, tmp_path):
    net = untrained(NETWORKS["bagnet33"].module)
    training_checkpoint(net, served / BAGNET_FILE)
    spec = make_spec(
        {
            "models": [{"name": "bagnet33", "fine_tuned_weights": "download"}],
            "data": f"folder:{image_folder(tmp_path)}",
            "methods": ["ixg"],
            "protocols": ["idsds"],
        }
    )
    plan = open_spec(spec, "cpu", measure=False)  # without the weights before fine-tuning
    (model,) = {task.model for task in plan.tasks}
    assert torch.equal(model.module.state_dict()["fc.weight"], net.state_dict()["fc.weight"])
    file = tmp_path / "cache" / "weights" / BAGNET_FILE
    record = file.with_name(f"{BAGNET_FILE}.sha256")
    assert record.read_text().startswith(file_hash(file, 64))
    (served / BAGNET_FILE).unlink()
    load_model("bagnet33", "random", fine_tuned_weights="download")  # from the cache

    file.unlink()
    net.fc.bias.data += 1
    training_checkpoint(net, served / BAGNET_FILE)
    with pytest.raises(HeatproofError, match="gave another file than it should.*; delete .*sha256"):
        load_model("bagnet33", "random", fine_tuned_weights="download")


@pytest.mark.parametrize("length", [0, 1000, 100_000])
def test_a_download_that_is_no_checkpoint_is_not_kept(served, tmp_path, length):
    whole = training_checkpoint(torch.nn.Linear(300, 300), tmp_path / "whole.pth.tar").read_bytes()
    (served / BAGNET_FILE).write_bytes(whole[:length])
    with pytest.raises(HeatproofError) as error:
        load_model("bagnet33", "random", fine_tuned_weights="download")
    message = str(error.value)
    assert "\n" not in message
    for part in ("http://127.0.0.1", BAGNET_FILE, "Nothing was kept; try again"):
        assert part in message
    assert not list((tmp_path / "cache" / "weights").iterdir())


def test_a_download_of_another_network_or_none_is_named_with_the_cure(served, tmp_path):
    with pytest.raises(HeatproofError, match=rf"cannot download http://127.*{BAGNET_FILE}"):
        load_model("bagnet33", "random", fine_tuned_weights="download")
    other = training_checkpoint(torch.nn.Linear(3, 3), tmp_path / "other.pth.tar")
    with pytest.raises(HeatproofError, match=rf"other.pth.tar: .*does not fit.*{BAGNET_FILE}$"):
        load_model("bagnet33", "random", fine_tuned_weights={"16/zero": other})
    with pytest.raises(HeatproofError, match="is for what Hesse et al. publish.*got 4/zero of bag"):
        load_model("bagnet33", "random", fine_tuned_weights={"4/zero": "download"})
    model = load_model("bagnet33", "random")
    with pytest.raises(HeatproofError, match=rf"nothing is downloaded unless.*{BAGNET_FILE}$"):
        load_fine_tuned(model, "16/zero")


def image_folder(tmp_path):
    folder = tmp_path / "images" / "n01440764"
    folder.mkdir(parents=True)
    Image.new("RGB", (230, 230), (90, 130, 60)).save(folder / "a.png")
    return folder.parent


def test_weights_in_the_torch_cache_are_used_if_their_hash_is_right(offline, tmp_path, monkeypatch):
    file = tmp_path / "torch" / "hub" / "checkpoints" / "resnet_18-68b4160fff.pth"
    file.parent.mkdir(parents=True)
    torch.save(untrained(NETWORKS["bcos-resnet18"].module).state_dict(), file)
    with (
        pytest.warns(UserWarning, match="is not used, since it is damaged"),
        pytest.raises(HeatproofError),
    ):
        load_model("bcos-resnet18")
    monkeypatch.setattr(download, "known_hash", lambda path: "68b4160fff")
    assert load_model("bcos-resnet18").n_classes == 1000
