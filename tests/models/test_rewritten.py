"""DiFull with the same function in other layers (Rao et al. 2024, Supplement H).

Some rules of LRP distinguish the two; methods that depend on the function alone do not.
"""

from collections import Counter

import pytest
import torch
from torch import nn

import heatproof as hp
import heatproof.functional as F
from heatproof.errors import NotApplicable
from heatproof.execute.runner import execute
from heatproof.methods import Explainer, Expression, parse_methods
from heatproof.models import views
from heatproof.models.batch import ModelBatch
from heatproof.plan.cost import plan_passes
from heatproof.plan.make_plan import make_plan
from heatproof.plan.spec import parse_protocols
from heatproof.runs.store import Store
from heatproof.tensor.noise import Rng

CELL = 1


@pytest.fixture(scope="module", params=["vgg", "resnet"])
def pair(request):
    """A trained network as DiFull sees it, and the same function in other layers."""
    model = hp.load_model(f"paperbirds/{request.param}")
    return [views.difull(model, 2, CELL, rewritten) for rewritten in (False, True)]


@pytest.fixture(scope="module")
def grids(pair):
    data = hp.load_data("paperbirds:test", hp.load_model("paperbirds/vgg"), limit=8)
    images = torch.stack([data.load(i).image for i in range(8)]).view(2, 2, 2, 3, 64, 64)
    tiled = images.permute(0, 3, 1, 4, 2, 5).reshape(2, 3, 128, 128)
    x = pair[0].normalize(tiled)
    return x, pair[0].logits(x).argmax(1)


def outside(maps):
    """Return what is attributed to the cells that the network cannot see, ``(B, 2, 2, h, w)``."""
    height, width = (side // 2 for side in maps.shape[-2:])
    cells = maps.reshape(len(maps), 2, height, 2, width).permute(0, 1, 3, 2, 4).clone()
    cells[:, CELL // 2, CELL % 2] = 0
    return cells


def native(model, x, target, text):
    batch = ModelBatch(model, x, target)
    return Explainer(batch, Rng(0, [str(i) for i in range(len(x))])).native(Expression.parse(text))


def test_both_compute_the_same_function(pair, grids):
    first, second = (view.logits(grids[0]) for view in pair)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-4 * float(first.abs().max()))
    embeddings = [view.passes.forward(grids[0])[1] for view in pair]
    torch.testing.assert_close(*embeddings, rtol=0, atol=1e-4 * float(embeddings[0].abs().max()))


@pytest.mark.parametrize(
    "method",
    [
        "saliency",
        "ixg@middle",
        "ig(steps=5)",
        "gradcam@final",
        "layercam@middle",
        "occlusion(size=16, stride=16)",
    ],
)
def test_methods_that_depend_on_the_function_alone_give_the_same_maps(pair, grids, method):
    first, second = (hp.explain(view, *grids, method) for view in pair)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-4 * float(first.abs().max()))


@pytest.mark.parametrize("layer", ["input", "middle", "final"])
def test_the_epsilon_rule_attributes_nothing_to_cells_without_effect(pair, grids, layer):
    """The rule is γ = 0: the sums that are added and subtracted cancel."""
    maps = native(pair[1], *grids, f"lrp-composite(gamma=0)@{layer}")
    assert float(outside(maps).abs().max()) < 1e-4 * float(maps.abs().max())


def test_the_z_plus_rule_moves_relevance_to_cells_without_effect(pair, grids):
    before, after = (F.localization(hp.explain(v, *grids, "lrp-focus"), CELL) for v in pair)
    assert (before == 1).all() and (after < 0.05).all()


def test_the_relevance_that_moves_is_that_of_the_closed_form(grids, pair):
    """Behind global pooling: of a logit z, S / (S + z) goes to other cells; S sums their features.

    What is left goes to the evaluated cell, but for the part of a positive bias.
    """
    view = pair[1]
    head = view.module.head if hasattr(view.module, "head") else None
    if head is None:
        pytest.skip("the VGG has further layers after the one that is rewritten")
    x, target = grids
    features = view.activation(x, "final").double()
    side = features.shape[-1] // 2
    pooled = (
        features.reshape(2, -1, 2, side, 2, side).mean((3, 5)).permute(0, 2, 3, 1)
    )  # (B, 2, 2, C)
    own = pooled[:, CELL // 2, CELL % 2]
    total = pooled.sum((1, 2, 3)) - own.sum(1)
    weight, bias = head.weight[target].double(), head.bias[target].double()
    z = (own * weight).sum(1) + bias
    assert (z > 0).all()
    ups = (own * weight.clamp(min=0)).sum(1)
    kept = z * z / (total + z) * ups / (ups + bias.clamp(min=0))
    maps = native(view, x, target, "lrp-focus@final").double()
    elsewhere = outside(maps).sum((1, 2, 3, 4))
    torch.testing.assert_close(elsewhere, z * total / (total + z), rtol=1e-4, atol=0)
    torch.testing.assert_close(maps.sum((1, 2)) - elsewhere, kept, rtol=1e-4, atol=1e-6)


def test_a_head_without_a_linear_layer_is_refused():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 5, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    model = hp.Model(net, size=8, layers=["1"], aliases={"cam": "1"})
    with pytest.raises(NotApplicable, match="has no linear layer after 1"):
        views.difull(model, 2, 0, rewritten=True)


def test_a_run_scores_both_and_makes_the_passes_that_are_planned(tmp_path):
    model = hp.load_model("paperbirds/resnet")
    data = hp.load_data("paperbirds:test", model, limit=64)
    methods = ["ixg", "lrp-focus", "lrp-focus@final", "occlusion(size=32, stride=32)"]
    settings = ["difull(grids=2)", "difull(grids=2, rewritten=true)"]
    plan = make_plan([model], [data], parse_methods(methods), parse_protocols(settings))
    planned = plan_passes(plan)
    execute(plan, Store(tmp_path / "run"))
    made = {}
    for view, subject in {id(t.model): (t.model, t.subject) for t in plan.tasks}.values():
        made.setdefault(subject, Counter()).update(view.pass_counts)
    assert {s: +Counter(counts) for s, counts in planned.items()} == {
        s: +counts for s, counts in made.items()
    }
    means = (
        hp.evaluate(model, data, methods, settings)
        .summary()
        .set_index(["setting", "method"])["mean"]
    )
    plain, rewritten = sorted(set(means.index.get_level_values("setting")), key=len)
    for name in ("ixg", "occlusion(size=32, stride=32)"):
        assert means[plain, name] == pytest.approx(means[rewritten, name], abs=1e-4)
    for name in ("lrp-focus", "lrp-focus@final"):
        assert means[rewritten, name] < 0.05 and means[plain, name] > 0.95
