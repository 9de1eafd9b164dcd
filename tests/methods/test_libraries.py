"""Methods of other libraries give what the libraries give, and leave the network as it was."""

import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.methods import Explainer, Expression
from heatproof.methods.adapters import seeded_by
from heatproof.methods.map_checks import as_maps
from heatproof.models.batch import ModelBatch
from heatproof.models.guards import HOOKS
from heatproof.models.vision import import_torchvision
from heatproof.tensor.filters import resize
from heatproof.tensor.noise import Rng
from heatproof.userfile import from_file

import_torchvision()

import captum.attr as captum  # noqa: E402
import pytorch_grad_cam as grad_cam  # noqa: E402
import quantus  # noqa: E402
import torchcam.methods as torchcam  # noqa: E402
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget  # noqa: E402
from zennit.attribution import Gradient, SmoothGrad  # noqa: E402
from zennit.composites import EpsilonGammaBox, EpsilonPlusFlat  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
IDS = ["a", "b", "c", "d"]
TARGET = torch.tensor([3, 0, 4, 1])


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential()
    net.add_module("conv", nn.Conv2d(3, 6, 3, padding=1))
    net.add_module("relu", nn.ReLU(inplace=True))
    block = nn.Sequential(nn.Conv2d(6, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    block[1].running_mean.uniform_(-0.1, 0.1)
    net.add_module("block", block)
    net.add_module("pool", nn.AdaptiveAvgPool2d(1))
    net.add_module("flat", nn.Flatten())
    net.add_module("head", nn.Linear(8, 5))
    return net.eval()


@pytest.fixture
def net():
    return small_net()


@pytest.fixture(scope="module")
def images():
    return torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def plain_gradient(model, x, target):
    """Leave gradients behind, as code that calls ``backward`` does."""
    x.requires_grad_()
    model(x).gather(1, target[:, None]).sum().backward()
    return x.grad


def by_quantus(net, x, target, **options):
    return torch.from_numpy(quantus.explain(net, x.numpy(), target.numpy(), **options))


def by_grad_cam(net, x, target, kind, layers, **options):
    """Call it image by image, as in its README."""
    maps = []
    for image, index in zip(x, target.tolist(), strict=True):
        with kind(model=net, target_layers=layers) as cam:
            targets = [ClassifierOutputTarget(index)]
            maps.append(cam(input_tensor=image[None], targets=targets, **options)[0])
    return torch.from_numpy(np.stack(maps))


def by_torchcam(net, x, target, kind, *arguments):
    """Call it image by image, as in its README."""
    maps = []
    for image, index in zip(x, target.tolist(), strict=True):
        with kind(net, *arguments) as extractor:
            cams = extractor(index, net(image[None].clone().requires_grad_()))
            maps.append(extractor.fuse_cams(cams) if len(cams) > 1 else cams[0])
    return torch.cat(maps)


def by_zennit(net, x, target, attributor):
    with attributor:
        return attributor(x.clone(), torch.eye(5)[target])[1]


CASES = {
    "captum saliency": (
        lambda net: captum.Saliency(net),
        lambda net, x, t: captum.Saliency(net).attribute(x.clone().requires_grad_(), target=t),
    ),
    "captum occlusion": (
        lambda net: hp.named(
            "o", captum.Occlusion(net), sliding_window_shapes=(3, 8, 8), strides=(3, 4, 4)
        ),
        lambda net, x, t: captum.Occlusion(net).attribute(x, (3, 8, 8), (3, 4, 4), target=t),
    ),
    "captum integrated gradients": (
        lambda net: hp.named("i", captum.IntegratedGradients(net), baselines=0.5, n_steps=8),
        lambda net, x, t: captum.IntegratedGradients(net).attribute(x, 0.5, t, n_steps=8),
    ),
    "captum layer": (
        lambda net: captum.LayerGradCam(net, net.block),
        lambda net, x, t: captum.LayerGradCam(net, net.block).attribute(x, t),
    ),
    "captum guided backprop": (
        lambda net: captum.GuidedBackprop(net),
        lambda net, x, t: captum.GuidedBackprop(net).attribute(x.clone().requires_grad_(), t),
    ),
    "captum noise tunnel": (
        lambda net: hp.named("n", captum.NoiseTunnel(captum.Saliency(net)), nt_samples=3),
        lambda net, x, t: captum.NoiseTunnel(captum.Saliency(net)).attribute(
            x, nt_samples=3, target=t
        ),
    ),
    "captum gradient shap": (
        lambda net: hp.named("g", captum.GradientShap(net), baselines=torch.zeros(1, 3, 32, 32)),
        lambda net, x, t: captum.GradientShap(net).attribute(
            x, torch.zeros(1, 3, 32, 32), target=t
        ),
    ),
    "captum function": (
        lambda net: captum.InputXGradient(lambda x: net(x).softmax(1)),
        lambda net, x, t: captum.InputXGradient(lambda x: net(x).softmax(1)).attribute(
            x.clone().requires_grad_(), t
        ),
    ),
    **{
        f"grad-cam {kind.__name__}": (
            lambda net, kind=kind: kind(model=net, target_layers=[net.block]),
            lambda net, x, t, kind=kind: by_grad_cam(net, x, t, kind, [net.block]),
        )
        for kind in (
            grad_cam.GradCAM,
            grad_cam.HiResCAM,
            grad_cam.GradCAMPlusPlus,
            grad_cam.ScoreCAM,
            grad_cam.AblationCAM,
            grad_cam.EigenCAM,
            grad_cam.EigenGradCAM,
            grad_cam.LayerCAM,
            grad_cam.XGradCAM,
        )
    },
    "grad-cam two layers": (
        lambda net: hp.named("c", grad_cam.GradCAM(net, [net.conv, net.block]), eigen_smooth=True),
        lambda net, x, t: by_grad_cam(
            net, x, t, grad_cam.GradCAM, [net.conv, net.block], eigen_smooth=True
        ),
    ),
    **{
        f"torchcam {kind.__name__}": (
            lambda net, kind=kind: kind(net, "block"),
            lambda net, x, t, kind=kind: by_torchcam(net, x, t, kind, "block"),
        )
        for kind in (
            torchcam.GradCAM,
            torchcam.GradCAMpp,
            torchcam.LayerCAM,
            torchcam.XGradCAM,
            torchcam.ScoreCAM,
            torchcam.FinerCAM,
        )
    },
    "torchcam CAM": (
        lambda net: torchcam.CAM(net, "block", "head"),
        lambda net, x, t: by_torchcam(net, x, t, torchcam.CAM, "block", "head"),
    ),
    "torchcam two layers": (
        lambda net: torchcam.GradCAM(net, ["conv", "block"]),
        lambda net, x, t: by_torchcam(net, x, t, torchcam.GradCAM, ["conv", "block"]),
    ),
    "torchcam RefineCAM": (
        lambda net: torchcam.RefineCAM(net, ["conv", "block"]),
        lambda net, x, t: by_torchcam(net, x, t, torchcam.RefineCAM, ["conv", "block"]),
    ),
    "zennit attributor": (
        lambda net: Gradient(model=net, composite=EpsilonPlusFlat()),
        lambda net, x, t: by_zennit(net, x, t, Gradient(net, EpsilonPlusFlat())),
    ),
    "zennit without composite": (
        lambda net: Gradient(model=net),
        lambda net, x, t: by_zennit(net, x, t, Gradient(net)),
    ),
    "zennit smoothgrad": (
        lambda net: SmoothGrad(model=net, n_iter=3),
        lambda net, x, t: by_zennit(net, x, t, SmoothGrad(net, n_iter=3)),
    ),
    "zennit composite": (
        lambda net: EpsilonGammaBox(low=-3.0, high=3.0),
        lambda net, x, t: by_zennit(net, x, t, Gradient(net, EpsilonGammaBox(low=-3.0, high=3.0))),
    ),
    "quantus": (
        lambda net: hp.named("q", quantus.explain, method="Saliency"),
        lambda net, x, t: by_quantus(net, x, t, method="Saliency"),
    ),
    "quantus partial": (
        lambda net: functools.partial(quantus.explain, method="IntegratedGradients"),
        lambda net, x, t: by_quantus(net, x, t, method="IntegratedGradients"),
    ),
    "function of a network": (lambda net: plain_gradient, plain_gradient),
}


def state(net: nn.Module):
    """Everything of a network that a method could change."""
    return (
        [(p, p.requires_grad, p.grad, p.grad is None or p.grad.tolist()) for p in net.parameters()],
        [v.tolist() for v in net.state_dict().values()],
        [(m, m.training) for m in net.modules()],
        [dict(getattr(m, kind)) for m in net.modules() for kind in HOOKS],
    )


def assert_same(one, other):
    for a, b in zip(one[0], other[0], strict=True):
        assert a[0] is b[0] and a[2] is b[2] and a[1] == b[1] and a[3] == b[3]
    assert one[1:] == other[1:]


def native(model, x, method):
    expression = Expression.parse(method)
    batch = ModelBatch(model, x, TARGET, [expression.layer])
    return Explainer(batch, Rng(0, IDS)).native(expression)


@pytest.mark.parametrize("case", CASES)
def test_maps_are_those_of_the_library(case, net, images):
    make, reference = CASES[case]
    # In double precision the order of additions, which processors choose, does not matter; Quantus
    # converts images to single precision itself.
    dtype = torch.float32 if case.startswith("quantus") else torch.float64
    net = net.to(dtype)
    method = make(net)
    model = hp.Model(net, size=32)
    x = model.normalize(images)
    net.block.train()
    net.conv.weight.grad = torch.ones_like(net.conv.weight)
    net.head.bias.requires_grad_(False)
    before = state(net)
    maps = native(model, x, method)
    assert_same(state(net), before)
    fresh = small_net().to(dtype)
    with seeded_by(Rng(0, IDS)):
        theirs = torch.as_tensor(reference(fresh, x.clone(), TARGET)).detach().float()
    theirs = theirs.sum(1) if theirs.ndim == 4 else theirs
    assert maps.shape == theirs.shape
    assert (maps - theirs).abs().max() <= 1e-6 * theirs.abs().max()
    assert theirs.flatten(1).std(1).min() > 0
    resized = hp.explain(model, x, TARGET, method, ids=IDS)
    torch.testing.assert_close(resized, resize(maps, 32, 32), rtol=0, atol=0)


def test_all_run_side_by_side_without_disturbing_each_other(net, images):
    methods = [hp.named(name, make(net)) for name, (make, _) in CASES.items()]
    layers = hp.Model(small_net(), size=32).layers
    model = hp.Model(net, size=32)
    assert model.layers == layers  # the hooks of the objects are no obstacle to tracing
    before = state(net)
    data = (images, TARGET)
    result = hp.evaluate(model, data, ["ixg", *methods, "gradcam@block"], ["sds"], batch_size=2)
    assert_same(state(net), before)
    assert set(result.scores["status"]) == {"ok"}, result.left_out
    assert set(result.scores["method"]) == {"ixg", "gradcam@block", *CASES}
    alone = hp.evaluate(hp.Model(small_net(), size=32), data, ["ixg", "gradcam@block"], ["sds"])
    for method in ("ixg", "gradcam@block"):
        ours, theirs = (r.scores[r.scores["method"] == method]["value"] for r in (result, alone))
        assert ours.tolist() == theirs.tolist()


def test_passes_are_not_recorded_by_objects_that_are_not_called(net, images):
    cam = grad_cam.GradCAM(model=net, target_layers=[net.block])
    extractor = torchcam.ScoreCAM(net, "block")
    model = hp.Model(net, size=32)
    hp.evaluate(model, (images, TARGET), ["ixg", cam, extractor], ["sds"])
    assert cam.activations_and_grads.activations == []
    assert extractor.hook_a == [None]
    net(images)  # the user's own passes are recorded as before
    assert len(cam.activations_and_grads.activations) == 1
    assert extractor.hook_a[0].shape == (4, 8, 16, 16)


def test_the_network_of_an_object_may_be_wrapped_copied_or_converted(net, images):
    model = hp.Model(net, size=32)
    x = model.normalize(images)
    expected = hp.explain(model, x, TARGET, captum.Saliency(net))
    for same in (nn.Sequential(net), nn.DataParallel(net), copy.deepcopy(net)):
        maps = hp.explain(model, x, TARGET, captum.Saliency(same))
        torch.testing.assert_close(maps, expected)
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    vit = VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5).eval()
    nn.init.normal_(vit.heads.head.weight)
    converted = hp.Model(vit, size=32)
    assert converted.module is not vit
    maps = hp.explain(converted, x, TARGET, captum.Saliency(vit))
    theirs = captum.Saliency(vit).attribute(x.clone().requires_grad_(), target=TARGET).sum(1)
    assert (maps - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    layer = captum.LayerActivation(vit, vit.encoder.layers[0])
    with pytest.raises(HeatproofError, match="has no height and width; arrange the tokens"):
        hp.explain(converted, x, TARGET, layer)


@pytest.mark.parametrize(
    "make",
    [
        captum.Saliency,
        lambda net: grad_cam.GradCAM(model=net, target_layers=[net.block]),
        lambda net: torchcam.GradCAM(net, "block"),
        lambda net: Gradient(model=net),
    ],
)
def test_an_object_of_another_network_is_refused(make, net, images):
    other = small_net()
    nn.init.normal_(other.head.weight)
    model = hp.Model(net, size=32)
    with pytest.raises(HeatproofError, match="another network than Sequential; make it with model"):
        hp.explain(model, images, TARGET, make(other))
    with pytest.raises(HeatproofError, match="another network"):
        hp.evaluate(model, (images, TARGET), [make(other)])


def test_a_view_of_a_network_is_not_explained_by_an_object(net, images):
    model = hp.Model(net, size=32)

    class Doubled(type(model.body)):
        def run(self, *arguments, **options):
            output, seen = super().run(*arguments, **options)
            return 2 * output, seen

    view = model.with_view("doubled", 1, Doubled(model.body.stages, model.body.aliases))
    for method in (captum.Saliency(net), plain_gradient):
        with pytest.raises(HeatproofError, match="the network itself, not the view doubled"):
            hp.explain(view, images, TARGET, method)


def test_objects_that_cannot_be_used_say_what_to_do(net):
    with pytest.raises(
        HeatproofError, match="Occlusion needs sliding_window_shapes; give it as hp"
    ):
        Expression.parse(captum.Occlusion(net))
    with pytest.raises(HeatproofError, match="Saliency does not take steps; it takes: abs"):
        Expression.parse(hp.named("s", captum.Saliency(net), steps=3))
    with grad_cam.GradCAM(model=net, target_layers=[net.block]) as cam:
        pass
    with pytest.raises(HeatproofError, match="hooks of GradCAM were removed"):
        Expression.parse(cam)
    with torchcam.GradCAM(net, "block") as extractor:
        pass
    with pytest.raises(HeatproofError, match="use it inside the block, or make it without one"):
        Expression.parse(extractor)
    with (
        Gradient(model=net, composite=EpsilonPlusFlat()) as attributor,
        pytest.raises(HeatproofError, match="leave its with block"),
    ):
        Expression.parse(attributor)
    with pytest.raises(HeatproofError, match="takes no keyword arguments; got low"):
        Expression.parse(hp.named("z", EpsilonPlusFlat(), low=3))
    with pytest.raises(HeatproofError, match="does not take a target for each image"):
        Expression.parse(grad_cam.FinerCAM(net, [net.block]))
    with pytest.raises(HeatproofError, match="Saliency is a class"):
        Expression.parse(captum.Saliency)
    for wrong in (3, None, {"a": 1}):
        with pytest.raises(HeatproofError, match="a method is an expression, a function"):
            Expression.parse(wrong)


# Functions


def test_a_function_is_called_by_its_signature(net, images):
    seen = {}

    def of_tensors(x, target, scale=1.0):
        seen["tensors"] = x, target
        return scale * x.detach().numpy()

    def of_network(model, x, target=None):
        seen["network"] = model
        return x

    def of_anything(f, x, t):
        seen["anything"] = f
        return x

    def as_in_quantus(model, inputs, targets, **kwargs):
        seen["arrays"] = model, inputs, targets, kwargs
        return inputs[:, :1]

    def ours(model, x, target, *, rng):
        seen["ours"] = model
        return x

    class Explainer:
        def explain(self, x, target):
            return x

    model = hp.Model(net, size=32)
    methods = [of_tensors, of_network, of_anything, as_in_quantus, ours, Explainer().explain]
    result = hp.evaluate(model, (images, TARGET), methods, ["sds"])
    assert set(result.scores["status"]) == {"ok"}, result.left_out
    assert isinstance(seen["tensors"][0], torch.Tensor) and seen["tensors"][1].equal(TARGET)
    assert seen["network"] is net and seen["anything"] is net
    assert isinstance(seen["ours"], hp.Model)
    network, inputs, targets, options = seen["arrays"]
    assert network is net and options == {}
    assert isinstance(inputs, np.ndarray) and targets.tolist() == TARGET.tolist()
    doubled = hp.explain(model, images, TARGET, hp.named("d", of_tensors, scale=2.0))
    torch.testing.assert_close(doubled, 2 * images.sum(1))
    with pytest.raises(HeatproofError, match="of_tensors does not take scala; it takes: scale"):
        Expression.parse(hp.named("d", of_tensors, scala=2.0))
    with pytest.raises(HeatproofError, match=r"must be callable as .*\(x, target\)"):
        Expression.parse(lambda model, x: x)


def test_channels_may_stand_last_where_that_is_clear():
    x = torch.zeros(2, 3, 8, 8)
    last = np.random.default_rng(0).random((2, 8, 8, 3))
    assert as_maps(last, x).equal(torch.from_numpy(last).permute(0, 3, 1, 2))
    assert as_maps(last[..., :1], x).shape == (2, 1, 8, 8)
    assert as_maps(last[..., 0], x).shape == (2, 8, 8)
    assert as_maps(last[:, ::-1, :, 0], x).shape == (2, 8, 8)
    assert as_maps(torch.zeros(2, 8, 8, 8), x).shape == (2, 8, 8, 8)
    assert as_maps(torch.zeros(2, 64, 3, 3), x).shape == (2, 64, 3, 3)
    with pytest.raises(HeatproofError, match=r"return \(B, C, h, w\): maps.permute"):
        as_maps(torch.zeros(2, 4, 4, 3), x)
    with pytest.raises(HeatproofError, match="real numbers; got an array of object"):
        as_maps(np.array([None]), x)


def test_results_of_objects_do_not_depend_on_global_generators(net, images):
    model = hp.Model(net, size=32)
    cam = hp.named("random cam", grad_cam.RandomCAM(net, [net.block]))
    tunnel = captum.NoiseTunnel(captum.Saliency(net))
    for method in (cam, tunnel):
        first = hp.explain(model, images, TARGET, method)
        torch.manual_seed(5)
        np.random.seed(5)
        state_before = torch.get_rng_state(), np.random.get_state()[1].tolist()
        assert hp.explain(model, images, TARGET, method).equal(first)
        assert torch.get_rng_state().equal(state_before[0])
        assert np.random.get_state()[1].tolist() == state_before[1]
        assert not hp.explain(model, images, TARGET, method, seed=1).equal(first)


# Names


def test_methods_have_names(net, images):
    model = hp.Model(net, size=32)
    deep = captum.LayerGradCam(net, net.block)
    shallow = captum.LayerGradCam(net, net.conv)
    with pytest.raises(HeatproofError, match="two methods are called LayerGradCam.*hp.named"):
        hp.evaluate(model, (images, TARGET), [deep, shallow])
    odd = 'my "deep" | <b>cam</b> @ 3, ünïcode'
    methods = [
        (odd, deep),
        hp.named("shallow", shallow),
        hp.named("my ig", "ig(steps=3)|abs"),
        hp.named("my ig 5", "ig", steps=5),
        "ig(steps=5)",
        hp.named("mine", plain_gradient),
    ]
    result = hp.evaluate(model, (images, TARGET), methods, ["sds"])
    names = [odd, "shallow", "my ig", "my ig 5", "ig(steps=5)", "mine"]
    assert list(dict.fromkeys(result.scores["method"])) == names
    assert set(result.scores["status"]) == {"ok"}, result.left_out
    by_name = result.scores.groupby("method")["value"].apply(list)
    assert by_name["my ig 5"] == by_name["ig(steps=5)"]
    assert set(result.summary()["method"]) == set(names)
    assert hp.explain(model, images, TARGET, (odd, deep)).shape == (4, 32, 32)
    everywhere = Expression.parse(hp.named("g", "ixg")).at("block")
    assert everywhere.label == "g@block"


def test_a_report_shows_any_name(net, images, tmp_path):
    model = hp.Model(net, size=32)
    name = "<script>alert(1)</script> & co | x"
    result = hp.evaluate(model, (images, TARGET), [(name, captum.Saliency(net)), "ixg"], ["sds"])
    page = result.report(tmp_path / "report").read_text()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_names_that_are_none_are_refused(net):
    for wrong in ("", " ", 3, "two\nlines"):
        with pytest.raises(HeatproofError, match="the name of a method is a line of text"):
            hp.named(wrong, "ixg")
    with pytest.raises(HeatproofError, match='"ixg" is that of a method of the library'):
        hp.named("ixg", captum.Saliency(net))
    with pytest.raises(HeatproofError, match=r"a pair \(name, method\)"):
        Expression.parse(("a", "ixg", 3))
    assert Expression.parse(hp.named("b", hp.named("a", "ig", steps=3))).label == "b"


def test_what_is_recognised_in_a_second_run(net, images, tmp_path):
    """Functions by their code and options; objects never, as their settings cannot be read."""
    (tmp_path / "mine.py").write_text(
        "calls = []\n\ndef scaled(x, target, scale=1):\n"
        "    calls.append(scale)\n    return scale * x.abs()\n"
    )
    scaled = from_file(f"file:{tmp_path}/mine.py:scaled")
    model = hp.Model(net, size=32)

    def computed(*methods):
        scaled.__globals__["calls"].clear()
        hp.evaluate(model, (images, TARGET), methods, ["sds"], out=tmp_path / str(len(methods)))
        return scaled.__globals__["calls"]

    assert computed(hp.named("s", scaled, scale=2)) == [2]
    assert computed(hp.named("s", scaled, scale=2)) == []
    assert computed(hp.named("s", scaled, scale=3)) == [3]
    unreadable = hp.named("s", scaled, scale=torch.tensor(2.0))
    assert computed(unreadable, "ixg") == computed(unreadable, "ixg") == [2]
    for method in (captum.Saliency(net), quantus.explain, functools.partial(scaled, scale=2)):
        assert Expression.parse(method).sources[0] == ""


def test_objects_in_files_have_the_names_of_their_variables(images, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import captum.attr, torch\n"
        "import heatproof as hp\n"
        "torch.manual_seed(0)\n"
        "net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(),\n"
        "    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 5)).eval()\n"
        "plain = captum.attr.Saliency(net)\n"
        "product = captum.attr.InputXGradient(net)\n"
        "cubes = hp.named('2 × 2', captum.attr.Occlusion(net), sliding_window_shapes=(3, 2, 2))\n"
        "text = 'ixg'\n"
        "def model():\n    return hp.Model(net, size=32)\n"
    )
    model = from_file(f"file:{tmp_path}/mine.py:model")()
    methods = [f"file:{tmp_path}/mine.py:{n}" for n in ("plain", "product", "cubes", "product|abs")]
    result = hp.evaluate(model, (images, TARGET), [*methods, "ixg"], ["sds"])
    assert set(result.scores["status"]) == {"ok"}, result.left_out
    assert set(result.scores["method"]) == {"plain", "product", "2 × 2", "product|abs", "ixg"}
    with pytest.raises(HeatproofError, match="text is an expression; write it into the spec"):
        Expression.parse(f"file:{tmp_path}/mine.py:text")
    with pytest.raises(HeatproofError, match="defined at the input only"):
        hp.explain(model, images, TARGET, f"file:{tmp_path}/mine.py:plain@0")
