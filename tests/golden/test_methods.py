"""Cases 4, 6 and 12: maps of the grid paper's code, TorchCAM 0.4, Captum 0.7 and Xplique 2.0.

TorchCAM and Captum are called as the IDSDS code calls them.
"""

import copy

import numpy as np
import pytest
import torch

import heatproof as hp
from heatproof.methods import Explainer, Expression
from heatproof.methods.gradients import integrated_gradients
from heatproof.models.batch import ModelBatch
from heatproof.tensor.noise import Rng

FORWARDS = {"AblationCam": "ablationcam(compat=rao)", "ScoreCam": "scorecam(compat=rao)"}
RAO = {
    "Grad": "saliency(reduce=sum_abs)",
    "IxG": "ixg",
    "IntGrad": "ig(steps=20)",
    "GradCam": "gradcam",
    "LayerCam": "layercam",
}
TORCHCAM = {
    "gradcam": "gradcam",
    "gradcampp": "gradcam++(compat=torchcam)",
    "xgradcam": "xgradcam",
    "layercam": "layercam",
}


GRID = "the grid paper's code"


# Rounding errors of the stored maps as fractions of their largest value, where they exceed 1e-5;
# our maps are in double precision. Integrated gradients: a ReLU at its kink flips at one node of
# the path (at most 4e-5). Grad-CAM++ at the image: a denominator near zero (7e-4).
ROUNDING = {"IntGrad": 1e-4, "ig": 1e-4, "GradCamPlusPlus@Input": 1e-3}


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize("layer", ["Input", "Middle", "Final"])
@pytest.mark.parametrize("method", RAO)
def test_maps_at_every_layer(
    golden,
    golden_model,
    double_model,
    deviation,
    name,
    layer,
    method,
    native,
    inputs,
    assert_maps,
    layers,
):
    case = golden("case04_rao_methods")
    model = double_model(name) if method in ROUNDING else golden_model(name)
    ours = native(model, *inputs(case), f"{RAO[method]}@{layers[name][layer]}")
    deviation(RAO[method], GRID, ours, case[f"{name}__{layer}__{method}"])
    assert_maps(ours, case[f"{name}__{layer}__{method}"], ROUNDING.get(method, 1e-5))


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize(
    ("method", "fraction"),
    [("ixg", 1e-5), ("ig(steps=20)", 5e-4), ("ig", 5e-4)],
)
def test_single_precision_changes_a_small_fraction_of_a_map(
    golden, golden_model, double_model, name, method, fraction, native, inputs
):
    """Compare the mean deviation of single from double precision with the map's mean magnitude.

    Pixels of IG are not bounded one by one: where weights and images move by half a unit in their
    last place, a ReLU that flips at its kink moves a pixel by up to 3e-3 of the largest value, but
    all maps by at most 4e-5 of their sum (twelve draws). The bound is ten times that.
    """
    x, target = inputs(golden("case04_rao_methods"))
    single = native(golden_model(name), x, target, method)
    double = native(double_model(name), x, target, method)
    assert np.abs(single - double).sum() < fraction * np.abs(double).sum()


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize("layer", ["Input", "Middle", "Final"])
def test_gradcam_plus_plus_up_to_its_scale(
    golden, golden_model, double_model, deviation, name, layer, native, inputs, assert_maps, layers
):
    """The stored maps carry exp(logit), a factor common to all pixels of an image.

    At the image, weights and images moved by half a unit in their last place move scaled maps by
    up to 1.3e-4 of their sum (twelve draws). The denominators come close to zero, and errors of a
    size e are as frequent as 1/e: single precision may cost a hundredth of the sum.
    """
    case = golden("case04_rao_methods")
    method = f"gradcam++@{layers[name][layer]}"
    ours = native(double_model(name), *inputs(case), method)
    stored = case[f"{name}__{layer}__GradCamPlusPlus"].astype(np.float64)
    peak = stored.max((1, 2), keepdims=True)
    np.testing.assert_array_equal(peak > 0, ours.max((1, 2), keepdims=True) > 0)
    positive = peak[:, 0, 0] > 0

    def scaled(maps):
        return maps[positive] / maps[positive].max((1, 2), keepdims=True)

    deviation("gradcam++", GRID, scaled(ours), scaled(stored))
    rounding = ROUNDING.get(f"GradCamPlusPlus@{layer}", 1e-5)
    assert_maps(scaled(ours), scaled(stored), rounding)
    single = scaled(native(golden_model(name), *inputs(case), method))
    assert np.abs(single - scaled(ours)).sum() < 1e-2 * scaled(ours).sum()


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize("method", TORCHCAM)
def test_torchcam(golden, golden_model, deviation, name, method, native, inputs, assert_maps):
    """The library rescales to [0, 1]; compared after the same rescaling."""
    case, model = golden("case06_torchcam_captum"), golden_model(name)
    ours = native(
        model, *inputs(case), f"{TORCHCAM[method]}@{'features' if name == 'vgg' else 'layer4'}"
    )
    low, high = ours.min((1, 2), keepdims=True), ours.max((1, 2), keepdims=True)
    ours = (ours - low) / (high - low + 1e-8)
    deviation(TORCHCAM[method], "TorchCAM 0.4", ours, case[f"{name}__{method}__native"])
    assert_maps(ours, case[f"{name}__{method}__native"])
    assert model.layer_name("cam") == model.layer_name("features" if name == "vgg" else "layer4")


@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_resizing_to_the_image(golden, name, assert_maps):
    from heatproof.tensor.filters import resize

    case = golden("case06_torchcam_captum")
    ours = resize(torch.from_numpy(case[f"{name}__gradcam__native"]), 32, 32)
    assert_maps(ours, case[f"{name}__gradcam__map32"][:, 0])


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize(
    ("method", "stored"),
    [("ixg", "ixg__raw"), ("saliency(reduce=sum)", "gradient__raw"), ("ig", "ig__raw")],
)
def test_captum(golden, double_model, deviation, name, method, stored, inputs, assert_maps):
    case = golden("case06_torchcam_captum")
    x, target = inputs(case)
    ours = hp.explain(double_model(name), x.double(), target, method)
    deviation(method, "Captum 0.7", ours, case[f"{name}__{stored}"][:, 0])
    assert_maps(ours, case[f"{name}__{stored}"][:, 0], ROUNDING.get(method, 1e-5))


@pytest.mark.parametrize("method", ["ixg", "ig", "saliency(reduce=sum)"])
@pytest.mark.parametrize("transform", ["abs", "relu"])
def test_transforms_act_after_the_channel_sum(
    golden, double_model, method, transform, inputs, assert_maps
):
    case = golden("case06_torchcam_captum")
    name = {"saliency(reduce=sum)": "gradient"}.get(method, method)
    x, target = inputs(case)
    ours = hp.explain(double_model("resnet"), x.double(), target, f"{method}|{transform}")
    assert_maps(ours, case[f"resnet__{name}__{transform}"][:, 0], ROUNDING.get(method, 1e-5))


@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_ig_from_a_noise_image(golden, double_model, deviation, name, inputs, assert_maps):
    case = golden("case06_torchcam_captum")
    x, target = inputs(case)
    x = x.double()
    start = torch.from_numpy(case["baseline_U"]).double().expand_as(x)
    parts = integrated_gradients(double_model(name), x, start, target, 50, "gauss", "logit")
    ours = parts.sum(1).numpy()
    deviation("ig-u", "Captum 0.7", ours, case[f"{name}__ig_u__raw"][:, 0])
    assert_maps(ours, case[f"{name}__ig_u__raw"][:, 0])


class Recorded(Rng):
    """Replays the noise that the reference drew: (B, samples, C, H, W)."""

    def __init__(self, noise):
        super().__init__(0, [str(i) for i in range(len(noise))])
        self.noise = noise

    def normal(self, purpose, shape):
        return self.noise[:, int(purpose.removeprefix("noise "))]


@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_smooth_gradcam_plus_plus(golden, double_model, deviation, name, inputs, assert_maps):
    case, model = golden("case06_torchcam_captum"), double_model(name)
    noise = torch.from_numpy(case[f"{name}__sgcampp__noise"]).double() / 0.3  # stored times σ = 0.3
    x, target = (v[: len(noise)] for v in inputs(case))
    ours = (
        Explainer(ModelBatch(model, x.double(), target), Recorded(noise))
        .native(Expression.parse("sg-cam++(compat=torchcam)"))
        .numpy()
    )
    low, high = ours.min((1, 2), keepdims=True), ours.max((1, 2), keepdims=True)
    ours = (ours - low) / (high - low + 1e-8)
    deviation("sg-cam++(compat=torchcam)", "TorchCAM 0.4", ours, case[f"{name}__sgcampp__native"])
    assert_maps(ours, case[f"{name}__sgcampp__native"])


def test_smooth_gradcam_plus_plus_is_gradcam_plus_plus_behind_global_pooling(
    golden, double_model, native, inputs, assert_maps
):
    """There the gradient is the same for every image, and the features are those without noise.

    TorchCAM takes the features of a noisy image, hence the difference in Hesse et al. 2024.
    """
    x, target = inputs(golden("case06_torchcam_captum"))
    plain = native(double_model("resnet"), x, target, "gradcam++")
    for std in (0.15, 1):
        assert_maps(native(double_model("resnet"), x, target, f"sg-cam++(std={std})"), plain)
    theirs = native(double_model("resnet"), x, target, "sg-cam++(compat=torchcam)")
    assert np.abs(theirs - plain).max() > 0.05 * plain.max()
    vgg = [native(double_model("vgg"), x, target, method) for method in ("gradcam++", "sg-cam++")]
    assert np.abs(vgg[1] - vgg[0]).max() > 0.05 * vgg[0].max()


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize(
    ("method", "stored"),
    [
        ("ixg-sg(n=4, std=1, unit=absolute)", "ixg_sg"),
        ("ig-sg(n=4, std=1, unit=absolute)", "ig_sg"),
        ("ig-sq(n=4, std=1, unit=absolute)", "ig_sg_sq"),
        ("ig-var(n=4, std=1, unit=absolute)", "ig_sg_vg"),
    ],
)
def test_noise(golden, double_model, deviation, name, method, stored, inputs, assert_maps):
    case, model = golden("case06_torchcam_captum"), double_model(name)
    noise = torch.from_numpy(case["noisetunnel_noise"]).double().reshape(4, 4, 3, 32, 32)
    x, target = (v[:4] for v in inputs(case))
    explainer = Explainer(ModelBatch(model, x.double(), target), Recorded(noise))
    ours = explainer.native(Expression.parse(method)).numpy()
    deviation(method, "Captum 0.7", ours, case[f"{name}__{stored}__raw"][:, 0])
    assert_maps(ours, case[f"{name}__{stored}__raw"][:, 0])


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize("layer", ["Input", "Middle", "Final"])
@pytest.mark.parametrize("method", FORWARDS)
def test_cams_by_forward_passes(
    golden, golden_model, deviation, name, layer, method, native, inputs, assert_maps, layers
):
    """A constant channel makes every stored Score-CAM nan; ours leaves it out by default."""
    case, model = golden("case04_rao_methods"), golden_model(name)
    stored = case[f"{name}__{layer}__{method}"]
    text = f"{FORWARDS[method]}@{layers[name][layer]}"
    ours = native(model, *inputs(case), text)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(stored))
    finite = np.isfinite(stored)
    if finite.any():
        deviation(FORWARDS[method], GRID, ours[finite], stored[finite])
        assert_maps(ours[finite], stored[finite], 2e-5)
    assert np.isfinite(native(model, *inputs(case), text.replace("compat=rao", ""))).all()


def test_scorecam_where_every_channel_varies(
    golden, golden_model, native, inputs, assert_maps, layers
):
    case, module = golden("case04_rao_methods"), copy.deepcopy(golden_model("vgg").module)
    for layer in (5, 7):
        module.features[layer].bias.data = torch.from_numpy(case[f"vggalive__features{layer}_bias"])
    model = hp.Model(module, size=32)
    for layer in ("Middle", "Final"):
        for text in ("scorecam", "scorecam(compat=rao)"):  # the same where no channel is constant
            assert_maps(
                native(model, *inputs(case), f"{text}@{layers['vgg'][layer]}"),
                case[f"vggalive__{layer}__ScoreCam"],
                2e-5,
            )


XPLIQUE = {
    "saliency": "saliency(reduce=max_abs)",
    "gradient_input": "ixg(reduce=mean)",
    "integrated_gradients_50": "ig(steps=50, rule=trapezoid, reduce=mean)",
    "integrated_gradients_20": "ig(steps=20, rule=trapezoid, reduce=mean)",
}


@pytest.mark.parametrize("stored", XPLIQUE)
def test_xplique(golden, double_model, deviation, stored, native, assert_maps):
    case = golden("case12_xplique_methods")
    x = torch.from_numpy(case["images_nhwc"]).permute(0, 3, 1, 2).contiguous()
    target = torch.from_numpy(case["targets"])
    ours = native(double_model("vgg"), x, target, XPLIQUE[stored])
    theirs = case[stored][..., 0]
    deviation(XPLIQUE[stored], "Xplique 2.0", ours, theirs)
    assert_maps(ours, theirs, 1e-4 if stored.startswith("integrated") else 1e-5)
