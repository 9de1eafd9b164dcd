"""Methods of other libraries by name: their maps are those of the objects that a user makes."""

import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods import Expression
from heatproof.methods.library_tables import LIBRARIES, library_of
from heatproof.models.vision import import_torchvision
from heatproof.models.vit import vit

import_torchvision()

import captum.attr as captum  # noqa: E402
import pytorch_grad_cam as grad_cam  # noqa: E402
import torchcam.methods as torchcam  # noqa: E402
import zennit.attribution  # noqa: E402
import zennit.composites  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
TARGET = torch.tensor([3, 0, 4])


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(x + self.norm(self.conv(x)))


def resnet() -> nn.Module:
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
    layers = {"stem": stem, "layer1": Residual(), "layer2": Residual(), "layer3": Residual()}
    net = nn.Sequential()
    for name, layer in layers.items():
        net.add_module(name, layer)
    net.add_module("pool", nn.AdaptiveAvgPool2d(1))
    net.add_module("flat", nn.Flatten())
    net.add_module("head", nn.Linear(8, 5))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
    nn.init.normal_(net.head.weight, std=20.0)
    return net.double().eval()


def transformer() -> nn.Module:
    torch.manual_seed(0)
    net = vit(5, size=32, patch=4, dim=16, depth=3, heads=2).double().eval()
    nn.init.normal_(net.head.weight)
    return net


def on_grid(tokens):
    """What users of pytorch-grad-cam write for vision transformers."""
    return tokens[:, 1:].reshape(len(tokens), 8, 8, -1).permute(0, 3, 1, 2)


X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1)).double()
ZERO = torch.zeros(1, 3, 32, 32).double()
SQUARES = (torch.arange(32)[:, None] // 4 * 8 + torch.arange(32) // 4)[None, None]
AT_INPUT = {
    "Deconvolution": {},
    "DeepLift": {},
    "DeepLiftShap": {"baselines": ZERO.repeat(2, 1, 1, 1)},
    "FeatureAblation": {"feature_mask": SQUARES},
    "GradientShap": {"baselines": ZERO},
    "GuidedBackprop": {},
    "InputXGradient": {},
    "IntegratedGradients": {},
    "KernelShap": {"feature_mask": SQUARES},
    "Lime": {"feature_mask": SQUARES},
    "Occlusion": {"sliding_window_shapes": (3, 16, 16), "strides": (3, 8, 8)},
    "Saliency": {},
    "ShapleyValueSampling": {"feature_mask": SQUARES},
}
AT_LAYER = {
    "GuidedGradCam": {},
    "InternalInfluence": {},
    "LayerActivation": {},
    "LayerConductance": {},
    "LayerDeepLift": {},
    "LayerDeepLiftShap": {"baselines": ZERO.repeat(2, 1, 1, 1)},
    "LayerFeatureAblation": {"layer_mask": torch.arange(256).reshape(1, 1, 16, 16)},
    "LayerGradCam": {},
    "LayerGradientShap": {"baselines": ZERO},
    "LayerGradientXActivation": {},
    "LayerIntegratedGradients": {},
}
OBJECTS = {
    **{
        f"captum:{name}": lambda net, name=name, o=options: hp.named(
            name, getattr(captum, name)(net), **o
        )
        for name, options in AT_INPUT.items()
    },
    **{
        f"captum:{name}": lambda net, name=name, o=options: hp.named(
            name, getattr(captum, name)(net, net.layer3), **o
        )
        for name, options in AT_LAYER.items()
    },
    "captum:NoiseTunnel": lambda net: captum.NoiseTunnel(captum.Saliency(net)),
    **{
        f"grad-cam:{name}": lambda net, name=name: getattr(grad_cam, name)(net, [net.layer3])
        for name in (
            "AblationCAM",
            "EigenCAM",
            "EigenGradCAM",
            "FEM",
            "GradCAM",
            "GradCAMElementWise",
            "GradCAMPlusPlus",
            "HiResCAM",
            "KPCA_CAM",
            "LayerCAM",
            "RandomCAM",
            "SESS",
            "ScoreCAM",
            "SegEigenCAM",
            "ShapleyCAM",
            "XGradCAM",
        )
    },
    "grad-cam:FullGrad": lambda net: grad_cam.FullGrad(net, []),
    "grad-cam:RefineCAM": lambda net: grad_cam.RefineCAM(net, [net.layer2, net.layer3]),
    **{
        f"torchcam:{name}": lambda net, name=name: getattr(torchcam, name)(net, "layer3")
        for name in (
            "CAM",
            "FinerCAM",
            "GradCAM",
            "GradCAMpp",
            "ISCAM",
            "LayerCAM",
            "SSCAM",
            "ScoreCAM",
            "SmoothGradCAMpp",
            "XGradCAM",
        )
    },
    "torchcam:RefineCAM": lambda net: torchcam.RefineCAM(net, ["layer2", "layer3"]),
    **{
        f"zennit:{name}": lambda net, name=name: getattr(zennit.composites, name)()
        for name in (
            "BetaSmooth",
            "DeconvNet",
            "EpsilonAlpha2Beta1",
            "EpsilonAlpha2Beta1Flat",
            "EpsilonPlus",
            "EpsilonPlusFlat",
            "ExcitationBackprop",
            "GuidedBackprop",
        )
    },
    "zennit:EpsilonGammaBox": lambda net: zennit.composites.EpsilonGammaBox(low=0.0, high=1.0),
    **{
        f"zennit:{name}": lambda net, name=name: getattr(zennit.attribution, name)(net)
        for name in ("Gradient", "IntegratedGradients", "Occlusion", "SmoothGrad")
    },
}
LRP = {"captum:LRP", "captum:LayerLRP"}  # they have no rule for sums and norms
NOT_FOR_RESNETS = LRP | {"torchcam:LeGrad"}


def make_model(net):
    """Pixels are not normalized, and layers are those that a user would name."""
    model = hp.Model(net, size=32, mean=(0, 0, 0), std=(1, 1, 1))
    if "layer3" in model.layers:
        assert model.landmarks["cam"] == "layer3"
        model.layer_table = model.layer_table.with_alias("middle", model.layer_index("layer2"))
    return model


def test_every_method_is_compared():
    named = {f"{library.name}:{k}" for library in LIBRARIES.values() for k in library.methods()}
    assert named == set(OBJECTS) | NOT_FOR_RESNETS
    assert len(OBJECTS) >= 45


@pytest.mark.parametrize("name", OBJECTS)
def test_maps_are_those_of_the_object(name):
    net = resnet()
    model = make_model(net)
    hooks = [dict(m._forward_hooks) for m in net.modules()]
    maps = hp.explain(model, X, TARGET, name)
    assert [dict(m._forward_hooks) for m in net.modules()] == hooks
    assert net.head.weight.grad is None
    theirs = hp.explain(model, X, TARGET, OBJECTS[name](net))
    assert theirs.flatten(1).std(1).max() > 0
    assert (maps - theirs).abs().max() <= 1e-6 * theirs.abs().max()


@pytest.mark.parametrize("name", sorted(NOT_FOR_RESNETS))
def test_what_a_library_cannot_do_is_known_before_a_run(name):
    with pytest.raises(NotApplicable, match=f"^{name} does not apply: .* fails: "):
        hp.explain(make_model(resnet()), X, TARGET, name)


# On a ViT: captum at the tokens of the last block's first norm, CAMs as their users write them.
VIT_OBJECTS = {
    **{name: OBJECTS[name] for name in OBJECTS if name.partition(":")[2] in AT_INPUT},
    **{
        f"grad-cam:{name}": lambda net, name=name: getattr(grad_cam, name)(
            net, [net.block3.norm1], reshape_transform=on_grid
        )
        for name in (
            "EigenCAM",
            "EigenGradCAM",
            "GradCAM",
            "GradCAMElementWise",
            "GradCAMPlusPlus",
            "HiResCAM",
            "KPCA_CAM",
            "LayerCAM",
            "RandomCAM",
            "SESS",
            "ScoreCAM",
            "SegEigenCAM",
            "XGradCAM",
        )
    },
    "grad-cam:FEM(k=1)": lambda net: grad_cam.FEM(
        net, [net.block3.norm1], reshape_transform=on_grid, k=1
    ),
    "grad-cam:AblationCAM": lambda net: grad_cam.AblationCAM(
        net,
        [net.block3.norm1],
        reshape_transform=on_grid,
        ablation_layer=grad_cam.ablation_layer.AblationLayerVit(),
    ),
    **{
        f"torchcam:{name}": lambda net, name=name: getattr(torchcam, name)(
            net, "block3.norm1", reshape_transform=on_grid
        )
        for name in (
            "GradCAM",
            "GradCAMpp",
            "LayerCAM",
            "ScoreCAM",
            "SmoothGradCAMpp",
            "XGradCAM",
        )
    },
}
NO_RELUS = {
    "captum:Deconvolution",
    "captum:GuidedBackprop",
    "zennit:DeconvNet",
    "zennit:GuidedBackprop",
}


@pytest.mark.parametrize("name", sorted(set(VIT_OBJECTS) - NO_RELUS))
def test_maps_of_a_transformer_are_those_of_the_object(name):
    net = transformer()
    model = make_model(net)
    maps = hp.explain(model, X, TARGET, name)
    theirs = hp.explain(model, X, TARGET, VIT_OBJECTS[name](net))
    assert theirs.flatten(1).std(1).max() > 0
    assert (maps - theirs).abs().max() <= 1e-6 * theirs.abs().max()


@pytest.mark.parametrize("name", ["LayerActivation", "LayerGradientXActivation", "LayerDeepLift"])
def test_attributions_of_tokens_become_a_grid(name):
    net = transformer()
    maps = hp.explain(make_model(net), X, TARGET, f"captum:{name}(layer=block2)")
    attribution = getattr(captum, name)(net, net.block2)
    target = {} if name == "LayerActivation" else {"target": TARGET}
    tokens = attribution.attribute(X.clone().requires_grad_(), **target)
    tokens = tokens[0] if isinstance(tokens, tuple) else tokens
    small = on_grid(tokens.detach()).sum(1, keepdim=True).float()
    theirs = nn.functional.interpolate(small, (32, 32), mode="bilinear", antialias=False)[:, 0]
    torch.testing.assert_close(maps, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(NO_RELUS))
def test_changed_gradients_of_relus_need_relus(name):
    with pytest.raises(NotApplicable, match="gradients of ReLUs, and the network has none"):
        hp.explain(make_model(transformer()), X, TARGET, name)

    class Functional(nn.Module):
        def forward(self, x):
            return nn.functional.relu(x)

    net = resnet()
    net.layer1.relu = Functional()
    with pytest.raises(NotApplicable, match="it finds ReLUs that are modules, 3 of 4"):
        hp.explain(make_model(net), X, TARGET, name)


def test_channels_of_tokens_are_not_taken_for_positions():
    with pytest.raises(NotApplicable, match="second dimension of features as channels"):
        hp.explain(make_model(transformer()), X, TARGET, "captum:LayerGradCam")


def test_arguments_are_those_of_the_library():
    net = resnet()
    model = make_model(net)

    def same(text, thing):
        ours, theirs = (hp.explain(model, X, TARGET, m) for m in (text, thing))
        assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max()

    same(
        "captum:IntegratedGradients(n_steps=7, baselines=0.5)",
        hp.named("i", captum.IntegratedGradients(net), n_steps=7, baselines=0.5),
    )
    blurred = hp.explain(model, X, TARGET, "captum:IntegratedGradients(baselines=blur)")
    assert not torch.equal(blurred, hp.explain(model, X, TARGET, "captum:IntegratedGradients"))
    same(
        "grad-cam:HiResCAM(target_layers=[layer1, layer3], eigen_smooth=True)",
        hp.named("h", grad_cam.HiResCAM(net, [net.layer1, net.layer3]), eigen_smooth=True),
    )
    same("torchcam:LayerCAM(target_layer=layer2.norm)", torchcam.LayerCAM(net, "layer2.norm"))
    same(
        "captum:NoiseTunnel(attribution_method=IntegratedGradients(n_steps=3), nt_type=vargrad)",
        hp.named(
            "n",
            captum.NoiseTunnel(captum.IntegratedGradients(net)),
            nt_type="vargrad",
            n_steps=3,
        ),
    )
    same(
        "zennit:Gradient(composite=EpsilonPlus(epsilon=0.1))",
        zennit.attribution.Gradient(net, zennit.composites.EpsilonPlus(epsilon=0.1)),
    )
    from zennit.canonizers import SequentialMergeBatchNorm

    same(
        "zennit:EpsilonPlus(canonizers=[SequentialMergeBatchNorm])",
        zennit.composites.EpsilonPlus(canonizers=[SequentialMergeBatchNorm()]),
    )


def test_an_image_is_compared_with_its_own_baseline():
    """Captum would draw among those of the whole batch."""
    model = make_model(resnet())
    name = "captum:GradientShap(baselines=blur, n_samples=3)"
    together = hp.explain(model, X, TARGET, name)
    for row in range(3):
        alone = hp.explain(model, X[row : row + 1], TARGET[row : row + 1], name, ids=[str(row)])
        assert torch.equal(alone[0], together[row])


def test_a_baseline_that_prepares_is_given_reference_images():
    model = make_model(resnet())
    named = "captum:IntegratedGradients(n_steps=4, baselines=mean)"
    assert Expression.parse(named).needs_reference
    assert not Expression.parse("captum:IntegratedGradients").needs_reference
    with pytest.raises(HeatproofError, match="needs reference images"):
        hp.explain(model, X, TARGET, named)
    grey = X.mean((0, 2, 3)).reshape(1, 3, 1, 1).expand(1, 3, 32, 32)
    theirs = hp.named("i", captum.IntegratedGradients(model.module), n_steps=4, baselines=grey)
    torch.testing.assert_close(
        hp.explain(model, X, TARGET, named, reference=X), hp.explain(model, X, TARGET, theirs)
    )


def test_names_with_one_output():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.append(nn.Linear(4, 1))
    model = hp.Model(net.eval(), size=32, mean=(0, 0, 0), std=(1, 1, 1))
    x = X[:2].float()
    for class_ in (0, 1):
        maps = hp.explain(model, x, class_, "captum:InputXGradient")
        torch.testing.assert_close(maps, hp.explain(model, x, class_, "ixg"))


def test_names_are_used_in_runs(tmp_path):
    net = resnet()
    model = make_model(net)
    methods = ["ixg", "captum:InputXGradient", "torchcam:LeGrad", ("mine", "zennit:EpsilonPlus")]
    result = hp.evaluate(model, (X.float(), TARGET), methods, ["deletion"], out=tmp_path / "run")
    status = result.scores.groupby("method")["status"].unique().map(list).to_dict()
    assert status == {
        "ixg": ["ok"],
        "captum:InputXGradient": ["ok"],
        "torchcam:LeGrad": ["n/a"],
        "mine": ["ok"],
    }
    values = result.scores.set_index(["method", "sample"])["value"]
    torch.testing.assert_close(
        torch.tensor(values["captum:InputXGradient"].to_numpy()),
        torch.tensor(values["ixg"].to_numpy()),
        rtol=0,
        atol=1e-4,
    )
    again = hp.evaluate(model, (X.float(), TARGET), methods, ["deletion"], out=tmp_path / "run")
    assert again.scores.equals(result.scores)


def test_keys_hold_the_version_of_the_library(monkeypatch):
    library = LIBRARIES["captum"]
    expression = Expression.parse("captum:Saliency(abs=False)")
    assert expression.label == "captum:Saliency(abs=False)"
    assert expression.map_key.endswith(f"@input v1+captum {library.version}")
    monkeypatch.setattr(
        "heatproof.methods.library_tables.version", lambda name: "99.0", raising=True
    )
    assert Expression.parse("captum:Saliency(abs=False)").map_key.endswith("+captum 99.0")


# Bad input


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("captum:Salency", r'unknown method of Captum "Salency"; did you mean Saliency\?'),
        ("torchcam:LayerCam", r"did you mean LayerCAM"),
        ("captun:Saliency", r'unknown library of methods "captun"; did you mean captum\?'),
        ("captum:visualization", "captum:visualization is no attribution method; list them with"),
        ("captum:NeuronGradient", "cannot be used by name: it explains a neuron, not a class"),
        ("captum:FeaturePermutation", "permutes pixels between the images of a batch"),
        ("grad-cam:FinerCAM", "use torchcam:FinerCAM"),
        ("zennit:LayerMapComposite", "needs a map of rules"),
        (
            "captum:IntegratedGradients(steps=3)",
            r"unexpected keyword argument 'steps'; .* takes: .*n_steps=50",
        ),
        ("captum:IntegratedGradients(baselines=blurr)", "did you mean blur"),
    ],
)
def test_wrong_names_are_told_when_they_are_read(name, message):
    with pytest.raises(HeatproofError, match=message) as told:
        Expression.parse(name)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchcam:LayerCAM(target_layer=layer9)", r'unknown layer "layer9"; did you mean layer'),
        ("grad-cam:GradCAM(target_layers=3.5)", "a layer is a name such as cam or layer3; got 3.5"),
        ("captum:Lime(feature_mask=99)", "number of squares along a side"),
        ("captum:NoiseTunnel(attribution_method=Salency)", "did you mean Saliency"),
        ("zennit:EpsilonPlus(canonizers=Merge)", "unknown canonizers of Zennit"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_computed(name, message):
    model = make_model(resnet())
    with pytest.raises(HeatproofError, match=message) as told:
        hp.evaluate(model, (X.float(), TARGET), ["ixg", name], ["deletion"])
    assert "\n" not in str(told.value)
    assert not model.pass_counts


def test_a_layer_is_an_argument_of_the_library():
    with pytest.raises(NotApplicable, match=re.escape("torchcam:LayerCAM(target_layer=layer2)")):
        hp.explain(make_model(resnet()), X, TARGET, "torchcam:LayerCAM@layer2")


def test_a_layer_that_is_no_module_is_explained():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 5, 3)

        def forward(self, x):
            return nn.functional.relu(self.conv(x)).mean((2, 3))

    model = hp.Model(Functional().eval(), size=32, mean=(0, 0, 0), std=(1, 1, 1))
    with pytest.raises(NotApplicable, match="is the output of no module.*another layer: conv"):
        hp.explain(model, X.float(), TARGET, "torchcam:LayerCAM")
    maps = hp.explain(model, X.float(), TARGET, "torchcam:LayerCAM(target_layer=conv)")
    assert maps.shape == (3, 32, 32)


def test_a_library_that_is_not_installed_names_the_extra(monkeypatch):
    from heatproof.methods import library_tables

    def missing(name):
        raise library_tables.PackageNotFoundError(name)

    monkeypatch.setattr(library_tables, "version", missing)
    library_tables._classes.cache_clear()
    try:
        with pytest.raises(HeatproofError, match=r'pip install "heatproof\[torchcam\]"'):
            library_of("torchcam:GradCAM").methods()
    finally:
        library_tables._classes.cache_clear()


# Lists


def test_methods_are_listed_without_torch(tmp_path):
    code = (
        "import sys; from heatproof.cli import main; "
        "main(sys.argv[1:], standalone_mode=False); "
        "print(sorted({'torch', 'captum', 'torchcam', 'zennit'} & set(sys.modules)))"
    )

    def listed():
        command = [sys.executable, "-c", code, "list", "methods"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    monkeypatched = pytest.MonkeyPatch()
    monkeypatched.setenv("HEATPROOF_CACHE", str(tmp_path))
    try:
        *first, imported = listed().splitlines()
        assert "torch" in imported and "captum" not in imported
        *second, imported = listed().splitlines()
    finally:
        monkeypatched.undo()
    assert second == first
    assert imported == "[]"
