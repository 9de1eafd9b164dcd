"""The layers of a network are the same however it is loaded: by name, as a module, from a file."""

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.methods import Explainer, Expression
from heatproof.models import vision
from heatproof.models.batch import ModelBatch
from heatproof.models.cutting import wrappers
from heatproof.models.families import FAMILIES, fingerprint, middle_of
from heatproof.models.paper_networks import NETWORKS
from heatproof.models.vision import library_module
from heatproof.tensor.noise import Rng

# A network of every class of torchvision, and a small side that all its layers fit into.
SIDES = {
    "alexnet": 128,
    "convnext_tiny": 64,
    "densenet121": 64,
    "efficientnet_b0": 64,
    "googlenet": 64,
    "inception_v3": 160,
    "maxvit_t": 224,
    "mnasnet0_5": 64,
    "mobilenet_v2": 64,
    "mobilenet_v3_large": 64,
    "regnet_y_400mf": 64,
    "resnet18": 64,
    "resnet50": 64,
    "shufflenet_v2_x0_5": 64,
    "squeezenet1_1": 64,
    "swin_t": 224,
    "vgg11_bn": 64,
    "vit_b_32": 224,
}
# With published weights these normalize their images once more, which is a layer of its own.
TRANSFORMING = ("googlenet", "inception_v3")
# A file builds the same model as a call, whatever the network.
IN_FILES = ("googlenet", "mobilenet_v2", "resnet18", "squeezenet1_1")


@pytest.fixture
def few_blocks(torchvision, monkeypatch):
    """Build transformers with two blocks per stage: the others are the same again."""
    library = torchvision.models
    vit, swin = library.vision_transformer, library.swin_transformer
    build_vit, build_swin = vit._vision_transformer, swin._swin_transformer
    shallow_vit = lambda **options: build_vit(**options | {"num_layers": 2})  # noqa: E731
    shallow_swin = lambda **options: build_swin(**options | {"depths": [2] * 4})  # noqa: E731
    monkeypatch.setattr(vit, "_vision_transformer", shallow_vit)
    monkeypatch.setattr(swin, "_swin_transformer", shallow_swin)


@pytest.mark.usefixtures("cheap_weights", "few_blocks")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.soak) if n == "maxvit_t" else n for n in SIDES],
)
def test_layers_are_the_same_by_name_as_module_and_from_a_file(name, tmp_path, monkeypatch):
    if name not in IN_FILES:  # which are also loaded at the library's size
        of_side = lambda module, **options: hp.Model(module, **options | {"size": SIDES[name]})  # noqa: E731
        monkeypatch.setattr(vision, "Model", of_side)
    by_name = hp.load_model(f"torchvision:{name}", "random")
    options = "transform_input=True, init_weights=False" if name in TRANSFORMING else ""
    source = (
        "import heatproof as hp\n"
        "from torchvision.models import get_model\n\n\n"
        f"def module():\n    return get_model({name!r}, weights=None, {options})\n\n\n"
        f"def build():\n    return hp.Model(module().eval(), size={SIDES[name]})\n"
    )
    (tmp_path / "mine.py").write_text(source)
    names = {}
    exec(source, names)
    as_module = hp.Model(names["module"](), size=SIDES[name])  # in training mode, as it is built
    assert by_name.layers == as_module.layers
    assert by_name.landmarks == as_module.landmarks
    assert by_name.landmarks
    assert ("middle" not in by_name.landmarks) or "vit_b" not in name
    assert by_name.all_layers == as_module.all_layers
    if "middle" in by_name.landmarks:
        assert by_name.shape("middle")[0] == as_module.shape("middle")[0]  # channels
    if name not in IN_FILES:
        return
    from_file = hp.load_model(f"file:{tmp_path}/mine.py:build")
    assert as_module.layers == from_file.layers
    assert as_module.landmarks == from_file.landmarks
    assert as_module.all_layers == from_file.all_layers
    for layer in as_module.landmarks:
        assert as_module.shape(layer) == from_file.shape(layer)


def normalized(net):
    """Return the network after a normalization of its images, as many users wrap it."""

    class Normalize(nn.Module):
        def forward(self, x):
            return (x - 0.5) / 0.5

    return nn.Sequential(Normalize(), net)


class Wrapper(nn.Module):
    """A network that returns another's logits."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize(
    ("wrap", "prefix"),
    [(normalized, "1."), (Wrapper, "net."), (nn.DataParallel, "module."), (lambda net: net, "")],
)
def test_a_wrapped_network_has_the_layers_of_the_network(wrap, prefix, torchvision):
    net = torchvision.models.resnet50(num_classes=7)
    model = hp.Model(wrap(net).eval(), size=64)
    names = {"middle": "layer2", "final": "layer4", "cam": "layer4"}
    assert model.landmarks == {alias: prefix + layer for alias, layer in names.items()}


def test_a_subclass_has_the_layers_of_its_network(torchvision):
    class Mine(torchvision.models.ResNet):
        def forward(self, x):
            return super().forward(x) / 2

    block = torchvision.models.resnet.Bottleneck
    assert hp.Model(Mine(block, [3, 4, 6, 3]), size=64).layer_name("middle") == "layer2"


def test_a_network_that_cannot_be_traced_has_the_same_middle_where_it_is_named(torchvision):
    class Branching(torchvision.models.ResNet):
        def forward(self, x):
            return super().forward(x) if x.sum() > -1e9 else x

    net = Branching(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1])
    model = hp.Model(net, size=64, layers=["layer1", "layer2", "layer3", "layer4"])
    assert model.landmarks == {"middle": "layer2", "final": "layer4", "cam": "layer4"}
    assert hp.Model(net, size=64, layers=["layer3"]).landmarks["middle"] == "layer3"


@pytest.mark.parametrize("name", [n for n in NETWORKS if n.startswith("torchvision:")])
def test_the_fingerprint_finds_the_middle_that_the_table_states(name, torchvision):
    """No pass is needed: the structure alone says it, for every network of the papers."""
    with torch.device("meta"):
        net = library_module(name)
    assert middle_of(net) == NETWORKS[name].layers.get("middle")


def test_the_fingerprint_depends_on_the_structure_alone(torchvision):
    with torch.device("meta"):
        few, many = (torchvision.models.resnet18(num_classes=n) for n in (3, 1000))
        wider = torchvision.models.wide_resnet50_2()
        other = torchvision.models.resnet34()
        same = torchvision.models.resnet50()
    assert fingerprint(few) == fingerprint(many) != fingerprint(other)
    assert fingerprint(wider) == fingerprint(same)  # the same blocks with more channels
    assert fingerprint(few).startswith("conv1:Conv2d bn1:BatchNorm2d relu:ReLU maxpool:MaxPool2d")
    assert middle_of(normalized(few), wrappers(normalized(few))) == "1.layer2"


@pytest.mark.parametrize("name", ["alexnet", "densenet121", "mobilenet_v2", "squeezenet1_0"])
def test_other_families_match_no_pattern(name, torchvision):
    with torch.device("meta"):
        net = torchvision.models.get_model(name)
    assert middle_of(net) is None
    assert set(FAMILIES) == {"ResNet", "VGG", "GoogLeNet"}


class PoolingHead(nn.Module):
    """A head with the global pooling inside, as in timm and B-cos networks."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(x.mean((2, 3)))


def test_final_is_the_last_spatial_layer_where_the_head_has_the_last_pooling():
    net = nn.Sequential()
    net.add_module("conv1", nn.Conv2d(3, 4, 3))
    net.add_module("pool1", nn.MaxPool2d(2))
    net.add_module("conv2", nn.Conv2d(4, 8, 3))
    net.add_module("conv3", nn.Conv2d(8, 8, 3))
    net.add_module("head", PoolingHead())
    model = hp.Model(net, size=32)
    assert model.landmarks == {"middle": "conv2", "final": "conv3", "cam": "conv3"}


@pytest.fixture(scope="module")
def vgg16_file(tmp_path_factory):
    """A VGG-16 with few channels in its head: the structure of its features is torchvision's."""
    path = tmp_path_factory.mktemp("vgg") / "mine.py"
    path.write_text(
        "import heatproof as hp\n"
        "import torch\n"
        "from torchvision.models import vgg16\n\n\n"
        "def module():\n"
        "    torch.manual_seed(0)\n"
        "    with torch.device('meta'):\n"
        "        net = vgg16()\n"
        "    net.classifier = torch.nn.Linear(25088, 5)\n"
        "    net.features.to_empty(device='cpu')\n"
        "    for p in net.features.parameters():\n"
        "        torch.nn.init.kaiming_normal_(p) if p.ndim > 1 else torch.nn.init.zeros_(p)\n"
        "    return net.eval()\n\n\n"
        "def build():\n"
        "    return hp.Model(module(), size=64)\n"
    )
    return path


def test_a_cam_at_the_last_convolution_before_its_relu(vgg16_file, torchvision):
    """The soundness paper's Grad-CAM, by hand: weights are mean gradients at ``features.28``."""
    names = {}
    exec(vgg16_file.read_text(), names)
    net = names["module"]()
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([1, 3])
    h = net.features[:29](x).detach().requires_grad_()
    logits = net.classifier(net.avgpool(net.features[29:](h.clone())).flatten(1))
    (gradient,) = torch.autograd.grad(logits.gather(1, target[:, None]).sum(), h)
    expected = (gradient.mean((2, 3), keepdim=True) * h).sum(1).relu()
    for model in (hp.Model(net, size=64), hp.load_model(f"file:{vgg16_file}:build")):
        assert model.layer_name("last-conv") == "features.28"
        for layer in ("features.28", "last-conv"):
            maps = Explainer(ModelBatch(model, x, target), Rng(0, ["a", "b"])).native(
                Expression.parse(f"gradcam@{layer}")
            )
            torch.testing.assert_close(
                maps.relu(), expected, rtol=1e-4, atol=1e-5 * expected.max().item()
            )
        assert model.layer_name("cam") == "features"


def test_the_last_convolution_of_other_networks(torchvision):
    resnet = hp.Model(torchvision.models.resnet18().eval(), size=64)
    assert resnet.layer_name("last-conv") == "layer4"
    embedded = hp.load_model("paperbirds/vgg")
    assert embedded.layer_name("last-conv") == "conv6.conv"
    assert hp.load_model("paperbirds/vgg-bn").layer_name("last-conv") == "conv6.conv"
