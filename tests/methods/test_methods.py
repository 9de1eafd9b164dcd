"""Methods against Captum, against closed forms, and against each other."""

from functools import cache

import captum.attr
import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods import METHODS
from heatproof.methods.map_checks import MapError
from heatproof.models.batch import ModelBatch

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
FEW = {
    "steps": 3,
    "masks": 130,
    "designs": 4,
    "turns": 1,
    "n": 2,
}  # few evaluations: the tests check that a method runs


@pytest.fixture(scope="module")
def bird():
    model = hp.load_model("paperbirds/resnet")
    data = hp.load_data("paperbirds:test", model, limit=4)
    from heatproof.data.catalog import load_batch

    batch = load_batch(data, range(4), model)
    return model, batch.x, torch.tensor(batch.labels), batch.silhouette


@pytest.fixture(scope="module")
def linear():
    torch.manual_seed(0)
    return hp.Model(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)), size=8)


REFERENCE = torch.rand(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))
IDS = [
    "saliency",
    "ixg",
    "ig",
    "ig-u",
    "ixg-sg",
    "ig-sg",
    "ig-sq",
    "ig-var",
    "smoothgrad",
    "squaregrad",
    "vargrad",
    "guided-backprop",
    "deconvnet",
    "deepshap",
    "rise",
    "rise-u",
    "occlusion",
    "lime",
    "kernelshap",
    "sobol",
    "hsic",
    "extremal",
    "iba",
    "input-iba",
    "gradcam",
    "gradcam++",
    "sg-cam++",
    "xgradcam",
    "layercam",
    "ablationcam",
    "scorecam",
    "lrp-focus",
    "lrp-composite",
    "rollout",
    "chefer",
    "vit-gradcam",
    "grad-rollout",
    "legrad",
    "attnlrp",
    "bcos",
    "bagnet",
    "random",
    "constant",
    "edges",
    "center",
    "object",
]


def quick(name):
    arguments = [f"{k}={v}" for k, v in FEW.items() if k in METHODS[name].parameters]
    return f"{name}({', '.join(arguments)})"


def test_every_method_of_the_papers_is_registered():
    assert set(IDS) <= {entry.id for entry in METHODS if entry.source is None}


@cache
def embedded(net):
    return hp.load_model(f"paperbirds/{net}")


@pytest.mark.parametrize("name", [e.id for e in METHODS if e.source is None and e.id != "constant"])
def test_every_method_gives_a_map_on_an_embedded_model_it_applies_to(bird, name):
    _, _, target, silhouette = bird
    entry = METHODS[name]
    models = map(embedded, ("resnet", "vit", "bagnet", "bcos"))
    model = next(m for m in models if not (entry.applies and entry.applies(m)))
    x = model.normalize(
        torch.stack(
            [hp.load_data("paperbirds:test", model, limit=4).load(i).image for i in range(4)]
        )
    )
    maps = hp.explain(model, x, target, quick(name), silhouette=silhouette, reference=REFERENCE)
    assert maps.shape == (4, 64, 64)
    assert maps.isfinite().all()
    assert (maps.flatten(1).std(1) > 0).all()
    if not entry.signed:
        assert maps.min() >= 0


@pytest.mark.parametrize(
    "name",
    [
        "saliency",
        "ixg",
        "ig(steps=3)",
        "ig-u(steps=3)",
        "ig-sg(steps=2, n=2)",
        "gradcam++",
        "guided-backprop",
    ],
)
def test_images_that_require_gradients_are_explained_like_others(bird, name):
    model, x, target, _ = bird
    requiring_grad = x.clone().requires_grad_()
    maps = hp.explain(model, requiring_grad, target, name)
    assert not maps.requires_grad and requiring_grad.grad is None
    assert torch.equal(maps, hp.explain(model, x, target, name))


@pytest.mark.parametrize(
    "name",
    [e.id for e in METHODS if e.source is None and e.applies is None and e.family != "control"],
)
@pytest.mark.parametrize("layer", ["input", "middle", "final", "cam"])
def test_every_method_works_at_every_layer(bird, name, layer):
    model, x, target, _ = bird
    maps = hp.explain(model, x, target, f"{quick(name)}@{layer}", reference=REFERENCE)
    assert maps.shape == (4, 64, 64)
    assert maps.isfinite().all()


@pytest.mark.parametrize("score", ["logit", "softmax", "logprob"])
def test_captum_agrees_on_gradients(bird, score):
    model, x, target, _ = bird
    after = {
        "logit": lambda z: z,
        "softmax": lambda z: z.softmax(1),
        "logprob": lambda z: z.log_softmax(1),
    }[score]

    def forward(batch):
        return after(model.module(batch))

    saliency = captum.attr.Saliency(forward).attribute(x, target=target, abs=False)
    torch.testing.assert_close(
        hp.explain(model, x, target, f"saliency(score={score})"), saliency.sum(1).abs(), **CLOSE
    )
    torch.testing.assert_close(
        hp.explain(model, x, target, f"saliency(score={score}, reduce=sum_abs)"),
        saliency.abs().sum(1),
        **CLOSE,
    )
    torch.testing.assert_close(
        hp.explain(model, x, target, f"saliency(score={score}, reduce=max_abs)"),
        saliency.abs().amax(1),
        **CLOSE,
    )
    ixg = captum.attr.InputXGradient(forward).attribute(x, target=target)
    torch.testing.assert_close(
        hp.explain(model, x, target, f"ixg(score={score})"), ixg.sum(1).detach(), **CLOSE
    )


@pytest.mark.parametrize(
    ("rule", "theirs"), [("gauss", "gausslegendre"), ("trapezoid", "riemann_trapezoid")]
)
def test_captum_agrees_on_integrated_gradients(bird, rule, theirs):
    """Compare all pixels but those behind a ReLU that flips in single precision.

    The weights of Captum's trapezoid rule sum to (n − 1)/n, ours to 1.
    """
    model, x, target, _ = bird
    maps = (
        captum.attr.IntegratedGradients(model.module)
        .attribute(x, target=target, n_steps=20, method=theirs)
        .sum(1)
    )
    maps = maps * (20 / 19 if rule == "trapezoid" else 1)
    ours = hp.explain(model, x, target, f"ig(steps=20, rule={rule})")
    far = (ours - maps).abs() > 1e-5 * maps.abs().max()
    assert far.float().mean() < 0.01
    assert (ours - maps).abs().max() < 1e-2 * maps.abs().max()


@pytest.mark.parametrize("layer", ["layer2", "layer4"])
def test_captum_agrees_on_gradcam_at_any_layer(bird, layer):
    model, x, target, _ = bird
    theirs = captum.attr.LayerGradCam(
        model.module, dict(model.module.named_modules())[layer]
    ).attribute(x, target=target, relu_attributions=True)
    from heatproof.methods import Explainer, Expression
    from heatproof.tensor.noise import Rng

    ours = Explainer(ModelBatch(model, x, target), Rng(0, "0123")).native(
        Expression.parse(f"gradcam@{layer}")
    )
    torch.testing.assert_close(ours, theirs[:, 0].detach(), **CLOSE)


def test_xgradcam_is_gradcam_where_the_head_pools_globally(bird):
    model, x, target, _ = bird
    torch.testing.assert_close(
        hp.explain(model, x, target, "xgradcam"),
        hp.explain(model, x, target, "gradcam"),
        rtol=1e-3,
        atol=1e-4,
    )


def test_layercam_is_the_positive_ixg_where_gradients_are_positive():
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    with torch.no_grad():
        body[4].weight.abs_()
    model, x, target = hp.Model(body, size=16), torch.randn(3, 3, 16, 16), torch.tensor([0, 1, 0])
    torch.testing.assert_close(
        hp.explain(model, x, target, "layercam@1"), hp.explain(model, x, target, "ixg@1|relu")
    )


def test_ig_sums_to_the_difference_of_the_logits(bird):
    model, x, target, _ = bird
    for baseline, start in {
        "zero": torch.zeros_like(x),
        "uniform(0, 0)": torch.zeros_like(x),
    }.items():
        maps = hp.explain(model, x, target, f"ig(steps=200, baseline={baseline})")
        difference = (model.logits(x) - model.logits(start)).gather(1, target[:, None])[:, 0]
        torch.testing.assert_close(maps.sum((1, 2)), difference, rtol=0.02, atol=0.05)


@pytest.mark.parametrize(
    "text", ["ig(steps=1)", "ig(steps=7)", "ig(steps=2, rule=trapezoid)", "ixg"]
)
def test_maps_of_a_linear_model_agree_with_the_closed_form(linear, text):
    x, target = torch.randn(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0])
    weight = linear.module[1].weight[target].reshape(5, 3, 8, 8)
    torch.testing.assert_close(
        hp.explain(linear, x, target, text), (x * weight).sum(1), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        hp.explain(linear, x, target, "saliency(reduce=sum)"), weight.sum(1).detach()
    )


def test_ig_u_uses_one_baseline_for_all_samples(linear):
    from heatproof.tensor.noise import Rng

    x, target = torch.randn(2, 3, 8, 8), torch.tensor([1, 1])
    start = 2 * Rng(5, [""]).once("ig-u", (3, 8, 8)) - 1
    assert start.min() < -0.9 < 0.9 < start.max()
    expected = ((x - start) * linear.module[1].weight[1].reshape(3, 8, 8)).sum(1)
    torch.testing.assert_close(
        hp.explain(linear, x, target, "ig-u(steps=4)", seed=5), expected, rtol=1e-4, atol=1e-5
    )


def test_maps_do_not_depend_on_the_batch(bird):
    model, x, target, _ = bird
    ids = ["a", "b", "c", "d"]
    for method in ("ig(steps=7)", "random", "gradcam"):
        whole = hp.explain(model, x, target, method, ids=ids)
        for size in (1, 3, 64):
            model.batch_size = size
            reordered = hp.explain(model, x[[2, 0]], target[[2, 0]], method, ids=["c", "a"])
            assert (reordered - whole[[2, 0]]).abs().max() <= 1e-5 * whole.abs().max(), (
                method,
                size,
            )
        model.batch_size = 64


def test_edges_detect_a_vertical_line(linear):
    x = torch.zeros(1, 3, 8, 8)
    x[..., 4:] = 1
    maps = hp.explain(linear, x, [0], "edges")
    assert (maps[0, :, 3:5] > 0).all()
    assert (maps[0, :, [0, 1, 6, 7]] < 1e-6).all()


def test_the_prediction_is_explained_where_no_target_is_given(bird):
    model, x, _, _ = bird
    torch.testing.assert_close(
        hp.explain(model, x, None, "ixg"), hp.explain(model, x, model.logits(x).argmax(1), "ixg")
    )


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda x: None, "returned NoneType; a method returns a tensor"),
        (lambda x: x[:1, 0], r"returned shape \(1, 8, 8\); expected \(2, C, h, w\)"),
        (lambda x: x.repeat(1, 1, 2, 2), r"with h ≤ 8 and w ≤ 8"),
        (lambda x: x.sum(), r"returned shape \(\)"),
        (lambda x: x[:, 0] / 0, "the map of image 0, 1 is not finite"),
    ],
)
def test_a_map_that_breaks_the_contract_is_refused(linear, returned, message):
    def broken(model, x, target, *, rng):
        return returned(x)

    with pytest.raises(MapError, match=message):
        hp.explain(linear, torch.randn(2, 3, 8, 8), [0, 0], broken)


def test_bad_input_is_refused_at_once(linear, bird):
    x = torch.randn(2, 3, 8, 8)
    with pytest.raises(
        HeatproofError, match=r"takes images of shape \(B, 3, 8, 8\); got \(2, 3, 9, 9\)"
    ):
        hp.explain(linear, torch.randn(2, 3, 9, 9), [0, 0])
    with pytest.raises(HeatproofError, match="class indices from 0 to 3"):
        hp.explain(linear, x, [0, 4], "ixg")
    with pytest.raises(HeatproofError, match="unknown layer"):
        hp.explain(linear, x, [0, 0], "ixg@layer9")
    with pytest.raises(
        HeatproofError, match="steps: found 0; input should be greater than or equal to 1"
    ):
        hp.explain(linear, x, [0, 0], "ig(steps=0)")
    with pytest.raises(
        HeatproofError, match="rule: found 'simpson'; input should be 'gauss' or 'trapezoid'"
    ):
        hp.explain(linear, x, [0, 0], "ig(rule=simpson)")
    with pytest.raises(
        HeatproofError,
        match="score: found 'probability'; input should be 'logit', 'softmax' or 'logprob'",
    ):
        hp.explain(linear, x, [0, 0], "ixg(score=probability)")
    with pytest.raises(NotApplicable, match="needs data with silhouettes"):
        hp.explain(linear, x, [0, 0], "object")
    model, photos, target, _ = bird
    with pytest.raises(HeatproofError, match="starts from zero features"):
        hp.explain(model, photos, target, "ig(baseline=blur)@middle")
