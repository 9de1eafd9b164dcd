"""Cases 3, 4, 12, 14 and 15: occlusion, RISE, Sobol, HSIC and extremal perturbations."""

import numpy as np
import pytest
import torch

from heatproof.methods import extremal
from heatproof.methods.extremal import Bumps, blurred
from heatproof.methods.perturbation import SoftMasks, rise_maps
from heatproof.methods.surrogates import (
    dependence,
    enlarged,
    replicated_designs,
    sobol_sequence,
    total_indices,
)
from heatproof.tensor.noise import Rng


def nhwc(case):
    return torch.from_numpy(case["images_nhwc"]).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(
        case["targets"]
    )


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize(
    ("layer", "size", "stride"),
    [
        ("Input", 16, 8),
        ("Input", 8, 4),
        ("Input", 5, 2),
        ("Middle", 5, 2),
        ("Middle", 4, 2),
        ("Final", 5, 2),
        ("Final", 4, 2),
    ],
)
def test_occlusion_of_the_grid_paper(
    golden, golden_model, name, layer, size, stride, deviation, native, inputs, assert_maps, layers
):
    case = golden("case04_rao_methods")
    ours = native(
        golden_model(name), *inputs(case), f"occlusion({size}, {stride})@{layers[name][layer]}"
    )
    deviation(
        f"occlusion({size}, {stride})",
        "the grid paper's code",
        ours,
        case[f"{name}__{layer}__Occlusion_Occ{size}_{stride}"],
    )
    assert_maps(ours, case[f"{name}__{layer}__Occlusion_Occ{size}_{stride}"])


@pytest.mark.parametrize(("size", "stride"), [(7, 7), (4, 2), (3, 3)])
def test_occlusion_of_xplique(golden, golden_model, size, stride, deviation, native, assert_maps):
    case = golden("case12_xplique_methods")
    method = f"occlusion({size}, {stride}, compat=xplique)"
    ours = native(golden_model("vgg"), *nhwc(case), method)
    deviation(method, "Xplique 2.0", ours, case[f"occlusion_{size}_{stride}"][..., 0])
    assert_maps(ours, case[f"occlusion_{size}_{stride}"][..., 0])


def stored_masks(case, prefix, side):
    return SoftMasks.from_grids(
        torch.from_numpy(case[f"{prefix}grid_bits"]).float(),
        torch.from_numpy(case[f"{prefix}offsets_xy"]),
        side,
        side,
    )


@pytest.mark.parametrize(
    ("prefix", "side"), [("", 32), ("vgg__rao__Middle__", 16), ("resnet__rao__Middle__", 8)]
)
def test_rise_masks_from_grids_and_offsets(golden, prefix, side):
    case = golden("case03_rise")
    masks = stored_masks(case, prefix, side)
    np.testing.assert_allclose(masks(torch.arange(200)), case[f"{prefix}masks"], atol=1e-6)


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize("fill", ["zero", "U"])
def test_rise_of_idsds(golden, golden_model, name, fill, deviation, inputs, assert_maps):
    case = golden("case03_rise")
    x, target = inputs(case)
    noise = torch.from_numpy(case["baseline_U"]).expand_as(x) if fill == "U" else None
    ours = rise_maps(
        golden_model(name), x, target, stored_masks(case, "", 32), 0.1, "softmax", noise
    )
    method = "rise(masks=200)" if fill == "zero" else "rise-u(masks=200)"
    deviation(method, "the IDSDS code", ours, case[f"{name}__idsds__{fill}__map"])
    assert_maps(ours, case[f"{name}__idsds__{fill}__map"])
    if fill == "zero":
        deviation(method, "the grid paper's code", ours, case[f"{name}__rao__Input__map"])
        assert_maps(ours, case[f"{name}__rao__Input__map"])


@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_rise_at_a_middle_layer(golden, golden_model, name, deviation, inputs, assert_maps, layers):
    case = golden("case03_rise")
    x, target = inputs(case)
    before, part = golden_model(name).cut(layers[name]["Middle"])
    h = before(x)
    ours = rise_maps(
        part,
        h,
        target,
        stored_masks(case, f"{name}__rao__Middle__", h.shape[-1]),
        0.1,
        "softmax",
        None,
    )
    deviation(
        "rise(masks=200, cells=6)", "the grid paper's code", ours, case[f"{name}__rao__Middle__map"]
    )
    assert_maps(ours, case[f"{name}__rao__Middle__map"])


@pytest.mark.parametrize(("side", "cells"), [(32, 8), (32, 6), (28, 6), (16, 6)])
def test_rise_masks_have_the_statistics_of_the_generator(golden, side, cells):
    """Six thousand masks on either side: three standard errors."""
    case = golden("case03_rise")
    count, mean, std, *_, none, _ = case[f"stat__h{side}_s{cells}__summary"]
    masks = SoftMasks.draw(
        Rng(0, ["0"]), torch.zeros(1, 3, side, side), int(count), cells, 0.1, None
    )(torch.arange(int(count))).numpy()
    error = 3 * np.sqrt(2 * 0.09 / cells**2 / count)
    assert abs(masks.mean() - mean) < error
    assert abs(masks.std() - std) < 2 * error
    assert abs((masks == 0).mean() - none) < 4 * error
    per_pixel = masks.mean(0) - case[f"stat__h{side}_s{cells}__meanmask"]
    assert (
        np.abs(per_pixel).max()
        < 5 * np.sqrt(2 / count) * case[f"stat__h{side}_s{cells}__stdmask"].max()
    )


@pytest.mark.parametrize(("cells", "designs"), [(8, 32), (4, 16)])
def test_sobol(golden, golden_model, cells, designs, deviation, native, assert_maps):
    """The stored masks have the design B too, whose scores the index does not use."""
    case, prefix = golden("case14_sobol_hsic"), f"sobol_g{cells}_d{designs}__"
    used = np.r_[:designs, 2 * designs : designs * (cells**2 + 2)]
    np.testing.assert_array_equal(
        replicated_designs(cells**2, designs), case[f"{prefix}masks"][used].reshape(len(used), -1)
    )
    indices = total_indices(torch.from_numpy(case[f"{prefix}outputs"][:, used]).double(), designs)
    assert_maps(indices, case[f"{prefix}grid_scores"].reshape(3, -1))
    x, target = nhwc(case)
    assert_maps(
        enlarged(torch.from_numpy(case[f"{prefix}grid_scores"]).reshape(3, -1), x, "xplique"),
        case[f"{prefix}map"][..., 0],
    )
    for compat, against, stored in (
        ("xplique", "Xplique 2.0", case[f"{prefix}map"]),
        ("None", "Xplique 2.0, positive part", case[f"{prefix}map"].clip(0)),
    ):
        method = f"sobol(designs={designs}, cells={cells}, compat={compat})"
        ours = native(golden_model("vgg"), x, target, method)
        deviation(method, against, ours, stored[..., 0])
        assert_maps(ours, stored[..., 0])


@pytest.mark.parametrize(("cells", "masks"), [(8, 256), (4, 128)])
def test_hsic(golden, golden_model, cells, masks, deviation, native, assert_maps):
    case, prefix = golden("case14_sobol_hsic"), f"hsic_g{cells}_d{masks}__"
    kept = sobol_sequence(masks, cells**2) > 0.5
    np.testing.assert_array_equal(kept, case[f"{prefix}masks"].reshape(masks, -1))
    found = dependence(kept, torch.from_numpy(case[f"{prefix}outputs"]).double(), "xplique")
    assert_maps(found, case[f"{prefix}grid_scores"].reshape(3, -1))
    method = f"hsic(masks={masks}, cells={cells}, compat=xplique)"
    ours = native(golden_model("vgg"), *nhwc(case), method)
    deviation(method, "Xplique 2.0", ours, case[f"{prefix}map"][..., 0])
    assert_maps(ours, case[f"{prefix}map"][..., 0])


def test_the_parts_of_extremal_perturbations(golden, assert_maps):
    case = golden("case15_bonus_deeplift_extremal")
    bumps = Bumps((32, 32), 4, 8)
    masks, _ = bumps.masks(torch.from_numpy(case["maskgen_in"])[:, 0])
    assert_maps(masks, case["maskgen_out_padded"][:, 0])
    assert_maps(bumps.inner(masks), case["maskgen_out"][:, 0])
    assert_maps(
        blurred(torch.from_numpy(case["images"][:1]), 20.0)[0], case["blur_pyramid_first_image"]
    )


TIED = [
    (4, 10),
    (4, 34),
    (10, 4),
    (10, 40),
    (34, 4),
    (34, 40),
    (40, 10),
    (40, 34),
]  # in the first mask; three belong to the area
THEIRS = [(4, 10), (10, 4), (34, 4)]


def break_ties_as_torchray(monkeypatch):
    """Break the ties of the first mask as TorchRay did.

    Eight pixels are equal and three of them belong to the area. Rounding chose for TorchRay; our
    code divides what is left of the area among all eight.
    """
    largest, calls = extremal.largest, []

    def with_their_choice(masks, areas):
        if not calls:
            masks = masks.clone()
            for pixel in TIED:
                masks[:, *pixel] += 1e-4 if pixel in THEIRS else -1e-4
        calls.append(1)
        return largest(masks, areas)

    monkeypatch.setattr(extremal, "largest", with_their_choice)


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize(
    ("steps", "precision"), [(1, "single"), (2, "single"), (2, "double"), (10, "double")]
)
def test_extremal_perturbations(
    golden,
    golden_model,
    double_model,
    monkeypatch,
    name,
    steps,
    precision,
    deviation,
    native,
    inputs,
    assert_maps,
):
    """Single precision is compared in the first steps only.

    Gradient descent through ReLUs and levels of blur amplifies its rounding later: from 1e-6 to
    2e-3 within ten steps on some processors. In double precision all agree.
    """
    break_ties_as_torchray(monkeypatch)
    case = golden("case15_bonus_deeplift_extremal")
    x, target = inputs(case)
    model = golden_model(name) if precision == "single" else double_model(name)
    method = f"extremal(steps={steps}, step=4, sigma=8, blur=20)"
    ours = native(model, x[:2], target[:2], method)
    deviation(method, "TorchRay", ours, case[f"{name}__ep_iter{steps}"][:, 0])
    assert_maps(ours, case[f"{name}__ep_iter{steps}"][:, 0])


@pytest.mark.parametrize(("name", "within"), [("vgg", 2e-4), ("resnet", 0.05)])
def test_extremal_perturbations_in_the_long_run(
    golden, double_model, name, within, native, inputs, assert_maps
):
    """A hundred steps amplify the first tie, which TorchRay broke by rounding.

    In double precision our maps, and so their deviations, are the same on every machine.
    """
    case = golden("case15_bonus_deeplift_extremal")
    x, target = inputs(case)
    for area, stored in zip((0.1, 0.25), case[f"{name}__ep_iter100"].swapaxes(0, 1), strict=True):
        ours = native(
            double_model(name),
            x[:2],
            target[:2],
            f"extremal(steps=100, areas=[{area}], step=4, sigma=8, blur=20)",
        )
        assert_maps(ours, stored, within)
