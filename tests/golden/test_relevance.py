"""Cases 4, 12, 13 and 15: guided backpropagation, DeconvNet, LRP and DeepLIFT.

References are the papers' code, Xplique, Zennit and Captum.
"""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.methods import METHODS
from heatproof.methods.notes import MapNotes
from heatproof.methods.relevance import epsilon_rule, relevance, z_plus
from heatproof.models.batch import ModelBatch


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize("layer", ["Input", "Middle", "Final"])
def test_guided_backprop_of_the_grid_paper(
    golden, golden_model, name, layer, deviation, native, inputs, assert_maps, layers
):
    case = golden("case04_rao_methods")
    ours = native(golden_model(name), *inputs(case), f"guided-backprop@{layers[name][layer]}")
    deviation("guided-backprop", "the grid paper's code", ours, case[f"{name}__{layer}__GB"])
    assert_maps(ours, case[f"{name}__{layer}__GB"])


@pytest.mark.parametrize(
    ("method", "stored"), [("guided-backprop", "guided_backprop"), ("deconvnet", "deconvnet")]
)
def test_xplique(golden, golden_model, method, stored, deviation, native, assert_maps):
    case = golden("case12_xplique_methods")
    x, target = (
        torch.from_numpy(case["images_nhwc"]).permute(0, 3, 1, 2).contiguous(),
        torch.from_numpy(case["targets"]),
    )
    deviation(
        f"{method}(reduce=mean)",
        "Xplique 2.0",
        native(golden_model("vgg"), x, target, f"{method}(reduce=mean)"),
        case[stored][..., 0],
    )
    assert_maps(
        native(golden_model("vgg"), x, target, f"{method}(reduce=mean)"), case[stored][..., 0]
    )


def test_deeplift_of_captum(golden, golden_model, deviation, inputs, assert_maps):
    case = golden("case15_bonus_deeplift_extremal")
    ours = (
        METHODS["deepshap"]
        .function(golden_model("vgg"), *inputs(case), rng=None, compat="captum")
        .numpy()
    )
    deviation("deepshap(compat=captum)", "Captum 0.9", ours, case["vgg__deeplift_zero"])
    assert_maps(ours, case["vgg__deeplift_zero"])


LRP = {
    "focus_eps0.25": "lrp-focus(start=one)",
    "composite_g0.0_eps0.25": "lrp-composite(gamma=0, start=one)",
    "composite_g0.01_eps0.25": "lrp-composite(gamma=0.01, start=one)",
    "composite_g0.25_eps0.25": "lrp-composite(start=one)",
    "composite_g0.25_eps1e-6": "lrp-composite(epsilon=1e-6, start=one)",
}


def as_zennit_leaves_it(model):
    """Scale every norm by 1/√(1 + 1e-5): Zennit merges norms and then applies their ε again."""
    module = copy.deepcopy(model.module)
    with torch.no_grad():
        for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.weight /= math.sqrt(1 + 1e-5)
            norm.bias /= math.sqrt(1 + 1e-5)
    return hp.Model(module, size=32)


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize("stored", LRP)
def test_zennit(golden, double_model, name, stored, deviation, native, inputs, assert_maps):
    """With γ near 0 the rules divide by differences near zero, so ours are in double precision."""
    case = golden("case13_lrp")
    maps = case[f"{name}__{stored}__onehot"]
    maps = maps.sum(1) if maps.ndim == 4 else maps
    ours = native(as_zennit_leaves_it(double_model(name)), *inputs(case), LRP[stored])
    deviation(LRP[stored], "Zennit 0.5, its norms", ours, maps)
    assert_maps(ours, maps)
    exact = native(double_model(name), *inputs(case), LRP[stored])
    assert np.abs(exact - maps).max() < 1e-3 * np.abs(maps).max()


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize(
    ("method", "fraction"),
    [("lrp-focus", 3e-5), ("lrp-composite(gamma=0.01)", 3e-5), ("lrp-composite(gamma=0)", 1e-3)],
)
def test_single_precision_changes_a_small_fraction_of_a_map(
    golden, golden_model, double_model, name, method, fraction, native, inputs
):
    """Compare the mean deviation of single from double precision with the map's mean magnitude.

    With weights and images moved by half a unit in their last place, maps move by up to 5e-7 of
    their sum with γ = 0.01 and 3e-6 with γ = 0 (twelve draws). With γ = 0 denominators come close
    to zero, and errors of a size e are as frequent as 1/e: the bound is hundreds of times the
    largest of twelve draws. Single precision costs 9e-5 on some processors.
    """
    x, target = inputs(golden("case13_lrp"))
    single = native(golden_model(name), x, target, method)
    double = native(double_model(name), x, target, method)
    assert np.abs(single - double).sum() < fraction * np.abs(double).sum()


@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_zennit_channel_by_channel(golden, golden_model, name, inputs, assert_maps):
    case = golden("case13_lrp")
    x, target = inputs(case)
    model = as_zennit_leaves_it(golden_model(name))
    ours = METHODS["lrp-focus"].function(
        model,
        x,
        target,
        batch=ModelBatch(model, x, target).at("input"),
        rng=None,
        notes=MapNotes(len(x)),
        start="one",
    )
    assert_maps(ours.numpy(), case[f"{name}__focus_eps0.25__onehot"])


@pytest.mark.parametrize(
    ("name", "layer"),
    [("vgg", "features.6"), ("vgg", "features.8"), ("resnet", "layer2"), ("resnet", "layer4")],
)
def test_zennit_at_a_layer(golden, golden_model, name, layer, native, inputs, assert_maps):
    case = golden("case13_lrp")
    method = f"lrp-focus(start=one)@{layer}"
    ours = native(as_zennit_leaves_it(golden_model(name)), *inputs(case), method)
    assert_maps(ours, case[f"{name}__focus_nozb_eps0.25__at_{layer}__onehot"])


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize(
    ("stored", "rule", "epsilon"),
    [("focus_nozb_eps0.25", z_plus, 0.25), ("epsilon_all_1e-6", epsilon_rule(1e-6), 1e-6)],
)
def test_zennit_without_a_rule_for_the_image(
    golden, double_model, name, stored, rule, epsilon, inputs, assert_maps
):
    case = golden("case13_lrp")
    x, target = inputs(case)
    model = as_zennit_leaves_it(double_model(name))
    ours = relevance(
        ModelBatch(model, x.double(), target).at("input"), rule, epsilon, box=False, start="one"
    ).sum(1)
    assert_maps(ours.numpy(), case[f"{name}__{stored}__onehot"])
