"""Rao et al. 2024, appendix H: one function written in two ways.

Some rules of LRP distinguish the two networks; gradients do not.
"""

import pytest
import torch

import heatproof as hp
import heatproof.functional as F
from heatproof.errors import HeatproofError
from heatproof.models.invariance import KERNEL_SIDE, NONZERO_SIDE


@pytest.fixture(scope="module")
def pair():
    return [hp.load_model(f"rao2024/invariance-{which}") for which in "ab"]


@pytest.fixture(scope="module")
def images(pair):
    x = torch.randn((4, 3, 64, 64), generator=torch.Generator().manual_seed(0))
    return x, pair[0].logits(x).argmax(1)


def test_both_networks_compute_the_same_function(pair, images):
    first, second = (model.logits(images[0]) for model in pair)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-4 * float(first.abs().max()))


@pytest.mark.parametrize(
    "method",
    ["saliency", "ixg", "ig(steps=5)", "gradcam@3", "layercam@3", "occlusion(size=16, stride=16)"],
)
def test_methods_that_depend_on_the_function_alone_give_the_same_maps(pair, images, method):
    first, second = (hp.explain(model, *images, method) for model in pair)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-3 * float(first.abs().max()))


def test_the_epsilon_rule_gives_the_same_maps(pair, images):
    """The rule is γ = 0: the sums that are added and subtracted cancel."""
    first, second = (hp.explain(model, *images, "lrp-composite(gamma=0)@3") for model in pair)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-3 * float(first.abs().max()))


def test_the_z_plus_rule_attributes_relevance_to_disconnected_features(pair, images):
    """Compare with the closed form, window by window.

    Of a class's relevance, n / (n + z⁺) goes to the features that do not count; n is their sum.
    """
    x, target = images
    model = pair[1]
    features = model.activation(x, "3").double()
    weight = pair[0].module[4].weight.detach().double()
    expected = torch.zeros_like(features)
    for i, k in enumerate(target.tolist()):
        windows = {
            (r, c): features[i, :, r : r + KERNEL_SIDE, c : c + KERNEL_SIDE]
            for r in (0, 1)
            for c in (0, 1)
        }
        z = {at: float((w * weight[k]).sum()) for at, w in windows.items()}
        for (r, c), window in windows.items():
            relevance = z[r, c] / sum(z.values())
            disconnected = window.clone()
            disconnected[:, :NONZERO_SIDE, :NONZERO_SIDE] = 0
            n, positive = float(disconnected.sum()), window * weight[k].clamp(min=0)
            fraction = n / (n + max(z[r, c], 0))
            attribution = (1 - fraction) * positive / positive.sum() + fraction * disconnected / n
            expected[i, :, r : r + KERNEL_SIDE, c : c + KERNEL_SIDE] += relevance * attribution
    maps = hp.explain(model, x, target, "lrp-focus(start=one)@3")
    expected_maps = torch.nn.functional.interpolate(
        expected.sum(1)[:, None], size=64, mode="bilinear", align_corners=False
    )[:, 0].float()
    torch.testing.assert_close(
        maps, expected_maps, rtol=0, atol=1e-3 * float(expected_maps.abs().max())
    )
    before, after = (F.localization(hp.explain(m, x, target, "lrp-focus"), 0).mean() for m in pair)
    assert before == 1 and after < 1


def test_an_unknown_name_is_reported():
    with pytest.raises(HeatproofError, match="rao2024/invariance-b, rao2024/invariance-a"):
        hp.load_model("rao2024/invarance")
