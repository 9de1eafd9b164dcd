"""Networks and images as they occur in practice.

Training mode, ReLUs of all kinds, double precision, odd sizes, and gradients that are not finite.
"""

import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heatproof as hp
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods import METHODS, Expression
from heatproof.methods.map_checks import MapError

SIZE = 37  # no stride divides it
FEW = {"steps": 2, "masks": 130, "designs": 2, "n": 2, "copies": 2, "turns": 1}
FOR_OTHER_NETWORKS = (
    "bcos",
    "bagnet",
    "rollout",
    "chefer",
    "vit-gradcam",
    "grad-rollout",
    "legrad",
)
OURS = [e.id for e in METHODS if e.source is None]


def quick(name):
    return (
        f"{name}({', '.join(f'{k}={v}' for k, v in FEW.items() if k in METHODS[name].parameters)})"
    )


class Untidy(nn.Module):
    """Has norms, dropout, strides, a ReLU module that is used twice and a functional ReLU."""

    def __init__(self, inplace):
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.norm, self.pool = (
            nn.Conv2d(3, 8, 5, 2, 1),
            nn.BatchNorm2d(8),
            nn.MaxPool2d(3, 2),
        )
        self.conv2, self.conv3 = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        self.relu, self.drop, self.fc, self.inplace = (
            nn.ReLU(inplace),
            nn.Dropout(),
            nn.Linear(12, 4),
            inplace,
        )
        self.norm.running_mean.normal_(0, 0.1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = self.pool(self.relu(self.norm(self.conv1(x))))
        x = F.relu(self.conv3(self.relu(self.conv2(x))), self.inplace)
        return self.fc(self.drop(x.mean((2, 3))))


@pytest.fixture(scope="module")
def photos(spread):
    return spread((2, 3, SIZE, SIZE))


@pytest.fixture(scope="module")
def explained(photos):
    reference = torch.rand(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))

    def explain(net, name):
        model = hp.Model(net, size=SIZE, name="untidy")
        return hp.explain(
            model, photos, [1, 2], quick(name), silhouette=photos[:, 0] > 0, reference=reference
        )

    return explain


@pytest.mark.parametrize("name", [name for name in OURS if name not in FOR_OTHER_NETWORKS])
def test_maps_do_not_depend_on_notation_or_mode_of_the_network(explained, name):
    plain, untidy = Untidy(False).eval(), Untidy(True).train()
    maps = explained(plain, name)
    assert maps.shape == (2, SIZE, SIZE) and maps.isfinite().all()
    assert torch.equal(explained(untidy, name), maps)
    assert untidy.training and untidy.norm.training and untidy.relu.inplace
    assert (
        torch.equal(untidy.norm.running_mean, plain.norm.running_mean)
        and int(untidy.norm.num_batches_tracked) == 0
    )
    double = explained(Untidy(False).double(), name)
    assert (double - maps).abs().max() <= 2e-3 * maps.abs().max()


def test_guided_backpropagation_of_a_functional_relu_is_not_the_gradient(explained):
    guided, gradient = (explained(Untidy(True), name) for name in ("guided-backprop", "saliency"))
    assert not torch.allclose(guided, gradient, atol=float(0.1 * gradient.max()))


class Root(nn.Module):
    """Its gradient is not finite where a pixel is zero."""

    def forward(self, x):
        return x.sqrt().relu().flatten(1)[:, :4]


@pytest.mark.parametrize("method", ["saliency", "ixg", "ixg|abs", "guided-backprop", "ig(steps=1)"])
def test_gradients_that_are_not_finite_are_reported(method):
    model, x = hp.Model(Root(), size=4, mean=[0] * 3, std=[1] * 3), torch.ones(3, 3, 4, 4)
    assert hp.explain(model, x, 0, method).isfinite().all()
    x[1] = 0
    with pytest.raises(MapError, match="the map of image 1 is not finite"):
        hp.explain(model, x, 0, method)


def test_images_and_targets_that_do_not_fit_are_refused(photos):
    model = hp.Model(Untidy(False), size=SIZE, name="untidy")
    with pytest.raises(
        HeatproofError, match=r"takes images of shape \(B, 3, 37, 37\); got \(2, 3, 37, 20\)"
    ):
        hp.explain(model, photos[..., :20], 0, "ixg")
    with pytest.raises(
        HeatproofError, match=r"images must be floats in the model's input space; got torch.uint8"
    ):
        hp.explain(model, (photos * 255).byte(), 0, "ixg")
    for target in (-1, 4, [0, 4], [0.5, 1.0], [0, 1, 2], [], "ixg", ["cat", "dog"], {0: 1}):
        with pytest.raises(HeatproofError, match="targets must be 2 class indices from 0 to 3"):
            hp.explain(model, photos, target, "ixg")


@pytest.mark.parametrize(
    "name", [name for name in OURS if METHODS[name].layers == "input" and not METHODS[name].applies]
)
def test_methods_defined_at_the_input_refuse_other_layers(photos, name):
    model = hp.Model(Untidy(False), size=SIZE, name="untidy")
    with pytest.raises(
        NotApplicable,
        match=f"{name}@conv2 does not apply: it is defined at the input only; write {name}",
    ):
        hp.explain(model, photos, 0, f"{name}@conv2", silhouette=photos[:, 0] > 0)


@pytest.mark.parametrize("name", [e.id for e in METHODS if e.layer == "middle"])
def test_methods_that_need_a_spatial_layer_suggest_others_for_transformers(name):
    with pytest.raises(
        NotApplicable,
        match=f"^{re.escape(name)} does not apply: "
        "paperbirds/vit has no spatial layer.* vit-gradcam",
    ):
        hp.explain(
            hp.load_model("paperbirds/vit"),
            torch.zeros(1, 3, 64, 64),
            0,
            name,
            reference=torch.rand(2, 3, 64, 64),
        )


@pytest.mark.parametrize(("name", "instead"), [("lrp-focus", "ixg"), ("deepshap", "ig")])
def test_methods_without_rules_for_transformers_suggest_others(name, instead):
    with pytest.raises(
        NotApplicable,
        match=f'^{name} does not apply: .* has no rule for ".*" in .*; '
        f".*{instead}.* works on any model",
    ):
        hp.explain(hp.load_model("paperbirds/vit"), torch.zeros(1, 3, 64, 64), 0, name)


@pytest.mark.parametrize(
    ("name", "short"), [("integrated_gradients", "ig"), ("InputXGradient", "ixg")]
)
def test_the_names_of_other_libraries_are_known(name, short):
    with pytest.raises(HeatproofError, match=rf"did you mean {short}\?"):
        Expression.parse(name)


def test_all_unknown_names_are_told_at_once():
    with pytest.raises(HeatproofError) as told:
        hp.evaluate("paperbirds/vgg", "paperbirds:test", ["gradcm", "ixg", "ixx"], ["sdss"])
    first, second, third = str(told.value).splitlines()
    assert "gradcm" in first and "ixx" in second and "sdss" in third


def test_targets_may_be_floats_that_are_whole_numbers():
    model = hp.load_model("paperbirds/vgg")
    x = torch.zeros(2, 3, 64, 64)
    maps = hp.explain(model, x, torch.tensor([1.0, 2.0]), "ixg")
    assert torch.equal(maps, hp.explain(model, x, [1, 2], "ixg"))
    with pytest.raises(HeatproofError, match="class indices from 0"):
        hp.explain(model, x, torch.tensor([1.0, 0.5]), "ixg")
    with pytest.raises(HeatproofError, match="torch.from_numpy"):
        hp.explain(model, x.numpy(), 0, "ixg")


@pytest.mark.parametrize(
    ("shape", "cure"),
    [
        ((2, 64, 64, 3), r"write images.permute\(0, 3, 1, 2\)"),
        ((64, 64, 3), r"write images.permute\(2, 0, 1\)\[None\]"),
        ((3, 64, 64), r"write images\[None\]"),
    ],
)
def test_images_of_another_layout_are_told_how_to_be_turned(shape, cure):
    with pytest.raises(HeatproofError, match=cure):
        hp.explain(hp.load_model("paperbirds/vgg"), torch.zeros(shape), 0, "ixg")


def test_pictures_where_normalized_images_are_wanted_are_noticed():
    model = hp.load_model("paperbirds/vgg")
    pictures = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match=r"look like pictures in \[0, 1\].*model.normalize"):
        hp.explain(model, pictures, 0, "ixg")
    for name in ("paperbirds/vgg", "paperbirds/bcos"):
        with pytest.warns(UserWarning, match=r"from 0 to 255.*model.normalize\(images / 255\)"):
            hp.explain(hp.load_model(name), 255 * pictures, 0, "ixg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hp.explain(model, model.normalize(pictures), 0, "ixg")
        hp.explain(model, torch.zeros(2, 3, 64, 64), 0, "ixg")
        hp.explain(hp.load_model("paperbirds/bcos"), pictures, 0, "ixg")


def test_maps_of_another_shape_than_the_image_are_noticed():
    model = hp.load_model("paperbirds/vgg")
    x = model.normalize(torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)))

    def flat(model, x, target):
        return x.abs().sum(1)[:, :5]

    with pytest.warns(UserWarning, match="2 of 2 maps.*5×64 for 64×64 px, so it is stretched"):
        hp.explain(model, x, 0, flat)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hp.explain(model, x, 0, lambda model, x, target: x.abs().sum(1)[:, ::5, ::5])
        hp.explain(model, x, 0, lambda model, x, target: x.abs().sum(1)[:, :3, :4])  # a cell
