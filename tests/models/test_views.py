"""Grid views of a model; what is exact is tested for exact equality."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import heatproof as hp
import heatproof.functional as F
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods import METHODS, Explainer, Expression, expand_layers, parse_methods
from heatproof.models import views
from heatproof.models.batch import ModelBatch
from heatproof.models.nets import bagnet
from heatproof.models.paper_networks import NETWORKS
from heatproof.tensor.noise import Rng
from heatproof.tensor.patches import patch_masks

FEW = {
    "steps": 3,
    "masks": 40,
    "designs": 2,
    "n": 2,
    "cells": 3,
    "copies": 2,
    "turns": 1,
}  # few evaluations: the test checks that a method runs
VIEWS = {
    "gridpg": lambda model, grid, cell: views.gridpg(model, grid),
    "difull": views.difull,
    "dipart": views.dipart,
}
LAYERS = ["input", "middle", "final"]


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def crop(x, cell, grid=2):
    side = x.shape[-1] // grid
    row, column = divmod(cell, grid)
    return x[..., row * side : (row + 1) * side, column * side : (column + 1) * side]


@pytest.fixture(scope="module")
def model():
    return hp.load_model("paperbirds/vgg")


@pytest.fixture(scope="module")
def resnet():
    return hp.load_model("paperbirds/resnet")


@pytest.fixture(scope="module")
def grids():
    """Two grids of 2×2 for the embedded nets, and targets."""
    return noise(2, 3, 128, 128), torch.tensor([3, 30])


# The settings


@pytest.mark.parametrize(
    "name", ["paperbirds/vgg", "paperbirds/resnet", "paperbirds/bcos", "paperbirds/bagnet"]
)
def test_gridpg_on_a_single_cell_is_the_network(name):
    model, x = hp.load_model(name), noise(4, 3, 64, 64)
    assert torch.equal(views.gridpg(model, 2)(x), model(x))


def test_a_fully_connected_head_slides_as_a_convolution(golden_model):
    model, x = golden_model("vgg"), noise(3, 3, 64, 64)
    first, second, third = (m for m in model.module.classifier if isinstance(m, nn.Linear))
    h = torch.nn.functional.conv2d(
        model.module.features(x), first.weight.view(48, 32, 8, 8), first.bias
    ).relu()
    h = torch.nn.functional.conv2d(h, second.weight[..., None, None], second.bias).relu()
    logits = torch.nn.functional.conv2d(h, third.weight[..., None, None], third.bias)
    assert logits.shape[2:] == (9, 9)
    torch.testing.assert_close(views.gridpg(model, 2)(x), logits.mean((2, 3)), rtol=1e-4, atol=1e-4)


def test_global_pooling_covers_the_whole_grid(resnet, grids):
    # The layout of every pass of a model; another one may round differently.
    x = grids[0].contiguous(memory_format=torch.channels_last)
    assert torch.equal(views.gridpg(resnet, 2)(x), resnet.module(x))


def test_a_pool_of_fixed_size_is_applied_per_grid_cell():
    torch.manual_seed(0)
    features, head = (
        nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(5, 4)),
    )
    fixed = hp.Model(nn.Sequential(features, nn.AvgPool2d(8), head), size=8)
    adaptive = hp.Model(nn.Sequential(features, nn.AdaptiveAvgPool2d(1), head), size=8)
    x = noise(2, 3, 24, 24)
    torch.testing.assert_close(views.gridpg(fixed, 3)(x), views.gridpg(adaptive, 3)(x))


@pytest.mark.parametrize("cell", range(4))
def test_difull_depends_on_its_cell_alone(model, grids, cell):
    x, _ = grids
    view = views.difull(model, 2, cell)
    assert torch.equal(view(x), model(crop(x, cell)))
    assert torch.equal(
        view.activation(x, "final"),
        tiled([model.activation(crop(x, k), "final") for k in range(4)]),
    )


def tiled(cells, grid=2):
    return torch.cat(
        [torch.cat(cells[row * grid : (row + 1) * grid], -1) for row in range(grid)], -2
    )


@pytest.mark.parametrize("cell", range(4))
def test_dipart_passes_the_features_of_one_cell_to_the_head(model, grids, cell):
    x = grids[0].contiguous(memory_format=torch.channels_last)
    features = model.module[:-4](x)  # up to the last pool
    assert torch.equal(views.dipart(model, 2, cell)(x), model.module[-4:](crop(features, cell)))


def pointwise():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 5, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(80, 4),
    )


@pytest.mark.parametrize("net", [pointwise(), bagnet(4, planes=(4, 4, 4, 4)).eval()])
def test_dipart_is_difull_where_features_see_no_other_cell(net):
    """Features see no other cell if the receptive field is one pixel, or if nothing is padded.

    Without padding the features of each cell are cut out.
    """
    size = 8 if isinstance(net[-1], nn.Linear) and len(net) == 7 else 64
    model, x = hp.Model(net, size=size), noise(2, 3, 3 * size, 3 * size)
    for cell in (0, 4, 8):
        torch.testing.assert_close(views.dipart(model, 3, cell)(x), views.difull(model, 3, cell)(x))


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_a_view_is_a_model(golden_model, kind, name):
    model, x = golden_model(name), noise(2, 3, 64, 64)
    view = VIEWS[kind](model, 2, 3)
    assert view.size == 64 and view.landmarks == model.landmarks and view.root is view
    for layer in view.layers[: view.layers.index(view.layer_name("cam")) + 1]:
        pre, explain = view.cut(layer)
        assert torch.equal(explain(pre(x)), view(x)), layer
    target = torch.tensor([1, 2])
    alone = {layer: view.gradient(x, target, layer) for layer in LAYERS}
    batch = ModelBatch(view, x, target, LAYERS)
    for layer in LAYERS:
        for ours, theirs in zip(batch.gradient(layer), alone[layer], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert (
        len({view.fingerprint(), model.fingerprint(), VIEWS[kind](model, 3, 3).fingerprint()}) == 3
    )


def test_logits_need_the_evaluated_cell_alone(model, grids):
    x, _ = grids
    seen = []
    handle = model.module.conv1.conv.register_forward_hook(
        lambda m, a, out: seen.append(a[0].shape)
    )
    try:
        views.difull(model, 2, 0).logits(x)
        assert seen == [(2, 3, 64, 64)]
        views.difull(model, 2, 0).gradient(x, torch.tensor([0, 1]), "final")
        assert seen[1:] == [(2, 3, 64, 64), (6, 3, 64, 64)]
    finally:
        handle.remove()


# Methods on views


@pytest.mark.parametrize(
    "name",
    [
        "saliency(reduce=sum_abs)",
        "ixg",
        "ig(steps=4)",
        "guided-backprop",
        "deconvnet",
        "layercam",
        "deepshap",
    ],
)
@pytest.mark.parametrize("net", ["vgg", "resnet"])
def test_difull_maps_are_those_of_the_cell_and_zero_elsewhere(golden_model, net, name):
    model, x, target = golden_model(net), noise(3, 3, 64, 64), torch.tensor([1, 2, 3])
    for layer in ("input", "middle", "final"):
        whole = native(views.difull(model, 2, 3), x, target, f"{name}@{layer}")
        torch.testing.assert_close(
            crop(whole, 3),
            native(model, crop(x, 3), target, f"{name}@{layer}"),
            rtol=1e-4,
            atol=1e-5,
        )
        assert not any(crop(whole, cell).any() for cell in range(3))
        if layer == "input":
            full = F.localization(whole, 3)
            assert torch.equal(full, (full > 0).double())  # 1, or an empty map


@pytest.mark.parametrize("name", ["lrp-focus", "lrp-composite", "lrp-focus(start=logit)"])
@pytest.mark.parametrize("net", ["vgg", "resnet"])
def test_difull_relevance_is_that_of_the_cell_and_zero_elsewhere(golden_model, net, name):
    model, x, target = golden_model(net), noise(3, 3, 64, 64), torch.tensor([1, 2, 3])
    for layer in LAYERS:
        whole = native(views.difull(model, 2, 1), x, target, f"{name}@{layer}")
        alone = native(model, crop(x, 1), target, f"{name}@{layer}")
        torch.testing.assert_close(
            crop(whole, 1), alone, rtol=1e-3, atol=1e-5 * float(alone.abs().max())
        )
        assert not any(crop(whole, cell).any() for cell in (0, 2, 3))


def native(model, x, target, text):
    return Explainer(ModelBatch(model, x, target), Rng(0, [str(i) for i in range(len(x))])).native(
        Expression.parse(text)
    )


@pytest.mark.parametrize("method", ["lrp-focus", "lrp-composite"])
def test_a_sliding_fully_connected_layer_keeps_the_rule_of_the_head(golden_model, method):
    """Compare with the same network written with convolutions, with its head marked as such."""

    class Sliding(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.features, self.pool, convolutions = net.features, nn.AdaptiveAvgPool2d(1), []
            for linear, side in zip(
                (m for m in net.classifier if isinstance(m, nn.Linear)), (8, 1, 1), strict=True
            ):
                conv = nn.Conv2d(linear.in_features // side**2, linear.out_features, side)
                conv.weight.data, conv.bias.data = (
                    linear.weight.data.reshape(conv.weight.shape),
                    linear.bias.data,
                )
                convolutions += [conv, nn.ReLU()]
            self.head = nn.Sequential(*convolutions[:-1])

        def forward(self, x):
            return self.pool(self.head(self.features(x))).flatten(1)

    x, target = noise(2, 3, 64, 64), torch.tensor([0, 5])
    written = hp.Model(Sliding(golden_model("vgg").module), size=64, aliases={"cam": "features"})
    head = written.layers.index("features")
    written.layer_table = replace(written.layer_table, head=head)
    ours, theirs = (
        native(model, x, target, method)
        for model in (views.gridpg(golden_model("vgg"), 2), written)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))


def test_occlusion_of_another_cell_changes_nothing(model, grids):
    x, target = grids
    view = views.difull(model, 2, 0)
    with view.passes.batches_of(8):
        maps = native(view, x, target, "occlusion(size=16, stride=16)")
    assert crop(maps, 0).any()
    assert not any(crop(maps, cell).any() for cell in (1, 2, 3))


def test_occlusion_at_a_late_layer_runs_the_layers_after_it_alone(model, grids):
    x, target = grids
    view = views.gridpg(model, 2)
    h = view.activation(x, "final")
    view.pass_counts.clear()
    METHODS["occlusion"].function(view.tail("final"), h, target, rng=Rng(0, ["a"] * len(h)))
    assert set(view.pass_counts) == {"forward from conv6"}


def test_the_gradient_of_global_pooling_is_the_same_at_every_position(golden_model):
    view, target = views.gridpg(golden_model("resnet"), 3), torch.tensor([4, 5])
    for method in ("saliency(reduce=sum_abs)@final", "guided-backprop@final"):
        maps = hp.explain(view, noise(2, 3, 96, 96), target, method)
        torch.testing.assert_close(
            F.localization(maps, 4, grid=3), torch.full((2,), 1 / 9, dtype=torch.float64)
        )


def quick(name, layer):
    arguments = [f"{k}={v}" for k, v in FEW.items() if k in METHODS[name].parameters]
    if name == "occlusion" and layer == "input":
        arguments += ["size=32", "stride=32"]
    return name + (f"({', '.join(arguments)})" if arguments else "")


@pytest.mark.parametrize("name", [entry.id for entry in METHODS])
@pytest.mark.parametrize("kind", VIEWS)
def test_every_method_works_on_every_view(model, grids, name, kind):
    x, target = grids
    view, silhouette = VIEWS[kind](model, 2, 3), patch_masks(4, 128, 128)[:2]
    applied = 0
    for layer in LAYERS[:1] if METHODS[name].family == "control" else LAYERS:
        try:
            maps = hp.explain(
                view,
                x,
                target,
                f"{quick(name, layer)}@{layer}",
                silhouette=silhouette,
                reference=torch.rand(4, 3, 128, 128),
            )
        except NotApplicable:
            with pytest.raises(NotApplicable):  # it does not apply to the network either
                hp.explain(
                    model,
                    x[..., :64, :64],
                    target,
                    f"{quick(name, layer)}@{layer}",
                    silhouette=silhouette[..., :64, :64],
                )
            continue
        applied += 1
        assert maps.shape == (2, 128, 128) and maps.isfinite().all()
    for_vits = ("rollout", "chefer", "vit-gradcam", "grad-rollout", "legrad")
    assert applied or name in (*for_vits, "bcos", "bagnet")


@pytest.mark.parametrize(("name", "method"), [("bcos", "bcos"), ("bagnet", "bagnet")])
def test_intrinsic_explanations_apply_to_views(name, method):
    model, x, target = (
        hp.load_model(f"paperbirds/{name}"),
        torch.rand(2, 3, 128, 128),
        torch.tensor([0, 1]),
    )
    x = model.normalize(x)
    whole = hp.explain(views.gridpg(model, 2), x, target, method)
    torch.testing.assert_close(
        whole, hp.explain(hp.Model(model.module, size=128), x, target, method)
    )
    if name == "bagnet":
        with pytest.raises(NotApplicable, match="all but one grid cell is cut off"):
            hp.explain(views.difull(model, 2, 0), x, target, method)
    else:
        maps = hp.explain(views.difull(model, 2, 2), x, target, method)
        torch.testing.assert_close(
            crop(maps, 2), hp.explain(model, crop(x, 2), target, method), rtol=1e-4, atol=1e-6
        )
        assert not any(crop(maps, cell).any() for cell in (0, 1, 3))


# Other networks


FAMILIES = {  # the last layer before the last pool, and how many layers there are besides the input
    "vgg11": ("features.19", 8),
    "vgg16": ("features.29", 13),
    "vgg19": ("features.35", 16),
    "vgg11_bn": ("features.27", 8),
    "vgg16_bn": ("features.42", 13),
    "vgg19_bn": ("features.51", 16),
    **dict.fromkeys(
        ["resnet18", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "wide_resnet50_2"],
        ("layer4", 5),
    ),
    "googlenet": ("inception5b", 12),
}


# More of the same blocks
DEEPER = ("vgg19", "vgg19_bn", "resnet101", "resnet152", "wide_resnet50_2")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.soak) if n in DEEPER else n for n in FAMILIES],
)
def test_maps_at_every_layer_of_the_papers_networks_in_every_view(torchvision, name):
    """Check shapes, the order of layers, and that one backward pass serves all of them."""
    final, count = FAMILIES[name]
    model, x, target = untrained(torchvision, name), noise(1, 3, 128, 128), torch.tensor([3])
    layers = model.all_layers
    assert (layers[0], layers[-1], len(layers)) == ("input", final, count + 1)
    assert set(NETWORKS[f"torchvision:{name}"].layers.values()) <= {*layers, "features"}
    for kind in VIEWS.values():
        view = kind(model, 2, 1)
        sides = []
        before = view.pass_counts.copy()
        batch = ModelBatch(view, x, target, layers)
        for expression in expand_layers(parse_methods(["ixg@all", "gradcam@all"]), model):
            maps = Explainer(batch, Rng(0, ["a"])).native(expression)
            assert (
                torch.isfinite(maps).all()
                and maps.shape[1:] == batch.activation(expression.layer).shape[2:]
            )
            sides.append(maps.shape[-1])
        assert sides == sorted(sides[: count + 1], reverse=True) * 2 and sides[0] == 128
        assert (view.pass_counts - before)["backward"] == 1


def untrained(torchvision, name):
    """Build an untrained network, with a narrow head for VGGs.

    The first layer of torchvision's head alone has 100 million weights.
    """
    torch.manual_seed(0)
    # Their initialisation is slow. With its weights, torchvision's GoogLeNet normalizes the image.
    options = {"init_weights": False} if name == "googlenet" or "vgg" in name else {}
    options |= {"transform_input": True} if name == "googlenet" else {}
    with torch.device("meta"):
        net = getattr(torchvision.models, name)(weights=None, num_classes=7, **options).eval()
        if "vgg" in name:
            net.classifier = nn.Sequential(
                nn.Linear(512 * 49, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 7)
            )
    net = net.to_empty(device="cpu").eval()
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return hp.Model(net, size=64, name=name)


@pytest.mark.parametrize("name", ["resnet18", "googlenet"])
def test_views_of_torchvision_networks_agree_with_the_network(torchvision, name):
    model, x = untrained(torchvision, name), noise(1, 3, 128, 128)
    with torch.no_grad():
        assert torch.equal(views.difull(model, 2, 3)(x), model(crop(x, 3)))
        torch.testing.assert_close(views.gridpg(model, 2)(x), model.module(x), rtol=1e-4, atol=1e-5)


def test_a_pool_that_changes_nothing_does_not_shrink_the_grid():
    """Torchvision's VGGs have an adaptive pool to the size that the features already have."""
    torch.manual_seed(0)
    features = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(),
    )
    head = nn.Sequential(
        nn.Flatten(), nn.Linear(4 * 49, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 5)
    )
    model, x = (
        hp.Model(nn.Sequential(features, nn.AdaptiveAvgPool2d(7), head).eval(), size=28),
        noise(2, 3, 56, 56),
    )
    whole = features(x)
    windows = [whole[..., i : i + 7, j : j + 7] for i in range(8) for j in range(8)]
    torch.testing.assert_close(
        views.gridpg(model, 2)(x), torch.stack([head(w) for w in windows]).mean(0)
    )
    torch.testing.assert_close(views.dipart(model, 2, 1)(x), head(whole[..., :7, 7:]))


@pytest.mark.parametrize("kind", VIEWS)
def test_the_embedding_is_that_of_the_evaluated_cell(model, grids, kind):
    x, _ = grids
    embedding = VIEWS[kind](model, 2, 1).forward(x)[1]
    assert embedding.shape == (2, 128)
    if kind == "difull":
        torch.testing.assert_close(embedding, model.forward(crop(x, 1))[1])


# Networks without views


def test_a_vision_transformer_is_refused_with_the_reason():
    model = hp.load_model("paperbirds/vit", weights="random")
    for kind in VIEWS.values():
        with pytest.raises(NotApplicable, match="vision transformer.*mixes all positions"):
            kind(model, 2, 0)


def test_a_stride_that_does_not_divide_the_grid_cell_is_reported(torchvision):
    model = hp.Model(
        torchvision.models.resnet18(weights=None, num_classes=5).eval(), size=72, name="odd"
    )
    for kind in ("gridpg", "dipart"):
        with pytest.raises(
            HeatproofError,
            match="features of 3×3 for a grid cell of 72×72 px, but of 5×5 .* "
            "stride does not divide the grid",
        ):
            VIEWS[kind](model, 2, 0)


class Opaque(nn.Module):
    """Cannot be traced."""

    def __init__(self):
        super().__init__()
        self.features, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x):
        h = self.features(x).relu()
        return self.head(h.mean((2, 3)) if float(h.detach().sum()) > -1e9 else h.amax((2, 3)))


def test_an_unknown_head_is_reported_with_a_remedy():
    torch.manual_seed(0)
    with pytest.raises(
        HeatproofError,
        match=r"where its features end and its head begins; name the last spatial layer .*layers=",
    ):
        views.gridpg(hp.Model(Opaque(), size=8), 2)
    named, x = (
        hp.Model(Opaque(), size=8, layers=["features"]),
        noise(2, 3, 16, 16).contiguous(memory_format=torch.channels_last),
    )
    assert torch.equal(views.gridpg(named, 2)(x), named.module(x))
    assert torch.equal(views.difull(named, 2, 2)(x), named(crop(x, 2)))
    assert torch.equal(
        views.dipart(named, 2, 2)(x),
        named.module.head(crop(named.module.features(x), 2).relu().mean((2, 3))),
    )
