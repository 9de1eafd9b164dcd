"""Appendix H of Rao et al. 2024: one function written in two ways, which rules of LRP tell apart and gradients do not."""

import pytest
import torch

import heatproof as hp
import heatproof.functional as F
from heatproof.errors import HeatproofError
from heatproof.models.invariance import SEEN, WINDOW


@pytest.fixture(scope="module")
def pair():
    return [hp.load_model(f"rao2024/invariance-{which}") for which in "ab"]


@pytest.fixture(scope="module")
def images(pair):
    x = torch.randn((4, 3, 64, 64), generator=torch.Generator().manual_seed(0))
    return x, pair[0].logits(x).argmax(1)


def test_they_are_one_function(pair, images):
    first, second = (model.logits(images[0]) for model in pair)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-4 * float(first.abs().max()))


@pytest.mark.parametrize(
    "method",
    ["saliency", "ixg", "ig(steps=5)", "gradcam@3", "layercam@3", "occlusion(size=16, stride=16)"],
)
def test_what_asks_the_function_alone_does_not_tell_them_apart(pair, images, method):
    first, second = (hp.explain(model, *images, method) for model in pair)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-3 * float(first.abs().max()))


def test_the_epsilon_rule_takes_both_sums_for_nothing(pair, images):
    """γ = 0 is that rule; what is added and taken away cancels."""
    first, second = (hp.explain(model, *images, "lrp-composite(gamma=0)@3") for model in pair)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-3 * float(first.abs().max()))


def test_z_plus_gives_what_is_disconnected_its_sum(pair, images):
    """The closed form, window by window: of a class's relevance, n / (n + z⁺) goes to what does not count, n being its sum."""
    x, target = images
    model = pair[1]
    features = model.activation(x, "3").double()
    weight = pair[0].module[4].weight.detach().double()
    expected = torch.zeros_like(features)
    for i, k in enumerate(target.tolist()):
        windows = {
            (r, c): features[i, :, r : r + WINDOW, c : c + WINDOW] for r in (0, 1) for c in (0, 1)
        }
        z = {at: float((w * weight[k]).sum()) for at, w in windows.items()}
        for (r, c), window in windows.items():
            relevance = z[r, c] / sum(z.values())
            away = window.clone()
            away[:, :SEEN, :SEEN] = 0
            n, positive = float(away.sum()), window * weight[k].clamp(min=0)
            share = n / (n + max(z[r, c], 0))
            own = (1 - share) * positive / positive.sum() + share * away / n
            expected[i, :, r : r + WINDOW, c : c + WINDOW] += relevance * own
    found = hp.explain(model, x, target, "lrp-focus@3")
    maps = torch.nn.functional.interpolate(
        expected.sum(1)[:, None], size=64, mode="bilinear", align_corners=False
    )[:, 0].float()
    torch.testing.assert_close(found, maps, rtol=0, atol=1e-3 * float(maps.abs().max()))
    before, after = (F.localization(hp.explain(m, x, target, "lrp-focus"), 0).mean() for m in pair)
    assert before == 1 and after < 1


def test_another_name_is_told():
    with pytest.raises(HeatproofError, match="rao2024/invariance-b, rao2024/invariance-a"):
        hp.load_model("rao2024/invarance")
