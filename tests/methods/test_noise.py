"""The noise transform: its effect on maps, shared samples and cost."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.methods import METHODS, Explainer, Expression, parse_methods
from heatproof.methods.noise import Noise
from heatproof.models.batch import ModelBatch
from heatproof.plan.cost import plan_cost
from heatproof.plan.make_plan import make_plan
from heatproof.plan.spec import parse_protocols
from heatproof.runs.format import ModelView
from heatproof.tensor.noise import Rng


def native(model, x, target, text, rng=None):
    return Explainer(
        ModelBatch(model, x, target), rng or Rng(0, [str(i) for i in range(len(x))])
    ).native(Expression.parse(text))


@pytest.mark.parametrize("layer", ["input", "layer2"])
def test_zero_noise_gives_the_plain_method(golden_model, images, layer):
    model, (x, target) = golden_model("resnet"), images
    plain = native(model, x, target, f"ixg@{layer}")
    torch.testing.assert_close(native(model, x, target, f"ixg@{layer}|noise(n=3, std=0)"), plain)
    assert (
        native(model, x, target, f"ixg@{layer}|noise(n=3, std=0, kind=var)").abs().max()
        <= 1e-5 * plain.abs().max() ** 2
    )


def test_moments_agree_with_a_plain_loop(golden_model, images):
    """Values are squared before the channels are summed."""
    model, (x, target) = golden_model("vgg"), images
    rng = Rng(3, [str(i) for i in range(len(x))])
    raw = torch.stack(
        [
            model.gradient(x + 0.5 * rng.normal(f"noise {i}", x.shape[1:]), target).gradient
            for i in range(5)
        ]
    ).double()
    expected = {"mean": raw.mean(0), "sq": (raw**2).mean(0), "var": raw.var(0, correction=0)}
    for kind, moment in expected.items():
        ours = native(
            model, x, target, f"saliency(reduce=sum)|noise(5, 0.5, {kind}, absolute)", rng
        )
        torch.testing.assert_close(
            ours.double(), moment.sum(1), rtol=1e-3, atol=1e-5 * moment.abs().max().item()
        )


@pytest.mark.parametrize(
    ("layer", "unit"), [("input", "image"), ("layer2", "image"), ("layer2", "range")]
)
def test_noise_scales_with_the_range_of_each_image(golden_model, images, layer, unit):
    """A layer within the network has no black and white: its range is that of the activation."""
    model, (x, target) = golden_model("resnet"), images
    h = model.activation(x, layer).flatten(1)
    ours = native(model, x, target, f"ixg@{layer}|noise(2, 0.1, unit={unit})")
    for i, width in enumerate((h.amax(1) - h.amin(1)).tolist()):
        absolute = f"ixg@{layer}|noise(2, {0.1 * width}, unit=absolute)"
        one = native(model, x[[i]], target[[i]], absolute, Rng(0, [str(i)]))
        torch.testing.assert_close(ours[[i]], one, rtol=1e-3, atol=1e-4 * one.abs().max().item())


@pytest.mark.parametrize("method", ["smoothgrad(n=3)", "ig-var(n=3, steps=3)", "sg-cam++"])
def test_noise_means_the_same_for_every_normalization(golden_model, images, method):
    """The same function of pixels, once of images in [0, 1] and once of 8-bit values."""
    pixels, target = images[0].sigmoid().double(), images[1]
    net = copy.deepcopy(golden_model("resnet").module).double()
    model = hp.Model(net, size=32, mean=[0.0] * 3, std=[1.0] * 3)
    bytes_model = hp.Model(
        nn.Sequential(Divide(), copy.deepcopy(net)).eval(),
        size=32,
        mean=[0.0] * 3,
        std=[1 / 255] * 3,
        aliases={"cam": "1.layer4"},
    )
    expected = native(model, pixels, target, method)
    ours = native(bytes_model, bytes_model.normalize(pixels), target, method)
    if method.startswith("smoothgrad"):
        ours = 255 * ours  # a gradient has the inverse unit of the pixels
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6 * expected.max().item())


class Divide(nn.Module):
    def forward(self, x):
        return x / 255


def test_more_noise_samples_extend_fewer(golden_model, images):
    model, (x, target) = golden_model("vgg"), images
    few, more = (
        native(model, x, target, f"ixg|noise(n={n}, std=1, unit=absolute)") for n in (1, 2)
    )
    rng = Rng(0, [str(i) for i in range(len(x))])
    noisy = x + rng.normal("noise 1", x.shape[1:])
    second = (noisy * model.gradient(noisy, target).gradient).sum(1)
    torch.testing.assert_close(more, (few + second) / 2, rtol=1e-4, atol=1e-4)


def test_kinds_share_noise_samples_and_the_plan_counts_them_once():
    methods = [
        "ig-sg(steps=3, n=4)",
        "ig-sq(steps=3, n=4)|abs",
        "ig(steps=3)|noise(n=4, kind=var)",
        "ixg-sg(n=4)",
    ]
    model = hp.load_model("paperbirds/vgg")
    data = hp.load_data("paperbirds:test", model, limit=4)
    plan = make_plan([model], [data], parse_methods(methods), parse_protocols(["sds"]))
    planned = plan_cost(plan)[ModelView("paperbirds/vgg")]
    assert planned.backwards == 4 * (4 * 3 + 4)
    hp.evaluate(model, data, methods, ["sds"])
    assert model.pass_counts["backward"] == planned.backwards


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ixg|abs|noise(2)", "noise stands directly after the method"),
        ("ixg-sg|noise(2)", "noise stands directly after the method"),
        ("ixg|noise(n=0)", "greater than or equal to 1"),
        ("ixg|noise(std=-1)", "greater than or equal to 0"),
        ("ixg|noise(kind=max)", "'mean', 'sq' or 'var'"),
        ("ig-sg(kind=sq)", "ig-sg takes: steps=50"),
    ],
)
def test_invalid_noise_is_reported_with_what_is_allowed(text, message):
    with pytest.raises(HeatproofError, match=message):
        Expression.parse(text)


def test_named_methods_differ_in_kind_alone():
    """Noise is a fraction of the range from black to white unless another unit is given."""
    noise = {e.id: e.noise for e in METHODS if e.noise}
    assert {name: n.kind for name, n in noise.items()} == {
        "ixg-sg": "mean",
        "ig-sg": "mean",
        "ig-sq": "sq",
        "ig-var": "var",
        "smoothgrad": "mean",
        "squaregrad": "sq",
        "vargrad": "var",
    }
    assert {(n.std, n.unit) for n in (*noise.values(), Noise())} == {(0.15, "range")}
    copies = {name: n.n for name, n in noise.items()}
    assert len({copies[name] for name in ("ixg-sg", "ig-sg", "ig-sq", "ig-var")}) == 1
    assert len({copies[name] for name in ("smoothgrad", "squaregrad", "vargrad")}) == 1


def test_gradients_over_noisy_inputs_are_ranked_by_their_size(golden_model, images):
    """As saliency is: a gradient is a sensitivity, not evidence for the class."""
    model, (x, target) = golden_model("vgg"), images
    for name in ("smoothgrad", "squaregrad", "vargrad"):
        assert not Expression.parse(name).signed
        assert native(model, x, target, f"{name}(n=2)").min() >= 0
    torch.testing.assert_close(
        native(model, x, target, "smoothgrad(n=1, std=0)"), native(model, x, target, "saliency")
    )


def test_numbers_of_noise_can_be_set():
    changed = Expression.parse("ig-sg(n=20, std=0.3, steps=5)")
    assert (changed.noise.n, changed.noise.std, changed.label) == (
        20,
        0.3,
        "ig-sg(steps=5, std=0.3)",
    )
    assert Expression.parse(changed.label).canonical == changed.canonical
    assert (
        changed.noise_key == Expression.parse("ig(steps=5)|noise(n=20, std=0.3, kind=sq)").noise_key
    )
    assert (
        len(
            {
                Expression.parse(f"ixg|noise(n={n}, kind={k})").canonical
                for n in (4, 5)
                for k in ("mean", "sq", "var")
            }
        )
        == 6
    )
    assert np.isclose(changed.cost[1], 100)
