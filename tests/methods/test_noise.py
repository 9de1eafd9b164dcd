"""The noise transform: its effect on maps, shared samples and cost."""

import numpy as np
import pytest
import torch

import heatproof as hp
from heatproof.bench.cost import plan_cost
from heatproof.bench.layout import ModelView
from heatproof.bench.plan import make_plan
from heatproof.bench.spec import parse_protocols
from heatproof.errors import HeatproofError
from heatproof.methods import Explainer, Expression, parse_methods
from heatproof.models.batch import ModelBatch
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
        ours = native(model, x, target, f"saliency(reduce=sum)|noise(5, 0.5, {kind})", rng)
        torch.testing.assert_close(
            ours.double(), moment.sum(1), rtol=1e-3, atol=1e-5 * moment.abs().max().item()
        )


def test_relative_noise_scales_with_the_range_of_each_image(golden_model, images):
    model, (x, target) = golden_model("vgg"), images
    widths = (x.flatten(1).amax(1) - x.flatten(1).amin(1)).tolist()
    ours = native(model, x, target, "ixg|noise(2, 0.1, relative=True)")
    for i, width in enumerate(widths):
        one = native(model, x[[i]], target[[i]], f"ixg|noise(2, {0.1 * width})", Rng(0, [str(i)]))
        torch.testing.assert_close(ours[[i]], one, rtol=1e-3, atol=1e-4 * one.abs().max().item())


def test_more_noise_samples_extend_fewer(golden_model, images):
    model, (x, target) = golden_model("vgg"), images
    few, more = (native(model, x, target, f"ixg|noise(n={n}, std=1)") for n in (1, 2))
    rng = Rng(0, [str(i) for i in range(len(x))])
    noisy = x + rng.normal("noise 1", x.shape[1:])
    second = (noisy * model.gradient(noisy, target).gradient).sum(1)
    torch.testing.assert_close(more, (few + second) / 2, rtol=1e-4, atol=1e-4)


def test_kinds_share_noise_samples_and_the_plan_counts_them_once():
    methods = ["ig-sg(steps=3)", "ig-sq(steps=3)|abs", "ig(steps=3)|noise(kind=var)", "ixg-sg"]
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


def test_named_methods_have_the_numbers_of_the_papers():
    numbers = {
        e: Expression.parse(e).noise
        for e in ("ixg-sg", "ig-sg", "ig-sq", "ig-var", "smoothgrad", "squaregrad", "vargrad")
    }
    assert {e: (n.n, n.std, n.kind) for e, n in numbers.items()} == {
        "ixg-sg": (4, 1.0, "mean"),
        "ig-sg": (4, 1.0, "mean"),
        "ig-sq": (4, 1.0, "sq"),
        "ig-var": (20, 0.3, "var"),
        "smoothgrad": (50, 0.2, "mean"),
        "squaregrad": (50, 0.2, "sq"),
        "vargrad": (50, 0.2, "var"),
    }
    changed = Expression.parse("ig-sg(n=20, std=0.3, steps=5)")
    assert (changed.noise.n, changed.noise.std, changed.label) == (
        20,
        0.3,
        "ig-sg(steps=5, n=20, std=0.3)",
    )
    assert Expression.parse(changed.label).canonical == changed.canonical
    assert changed.drawn == Expression.parse("ig(steps=5)|noise(n=20, std=0.3, kind=sq)").drawn
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
