"""Heads: scores, predictions and maps of models with one output or a sigmoid for each."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heatproof as hp
from heatproof.data.grids import label_confidence
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.models.heads import as_logits
from heatproof.models.vision import import_timm
from heatproof.protocols.removal import removal_curve
from heatproof.protocols.single_deletion import patch_drops
from heatproof.tensor.information import label_negentropy, negentropy, prediction_entropy
from heatproof.tensor.scores import HEADS, is_correct, score_function
from heatproof.training.losses import loss_function

MEAN = {"mean": [0.5] * 3, "std": [0.5] * 3}


def images(count=4, channels=3, height=16, width=16, seed=0):
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(seed))


def small(outputs, *last, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, outputs), *last).eval()


def doubled(net, factor=1.0):
    """Return the same network with two outputs, (−z, z) times a factor."""
    twin = small(2)
    state = net.state_dict()
    for name in ("4.weight", "4.bias"):
        state[name] = torch.cat([-factor * state[name], factor * state[name]])
    twin.load_state_dict(state)
    return twin


@pytest.fixture
def binary():
    return hp.Model(small(1), size=16, **MEAN)


def test_one_output_is_found_to_be_binary_and_said(binary):
    assert binary.head == "binary"
    assert binary.n_classes == 2
    assert "2 classes (binary head)" in repr(binary)
    assert hp.Model(small(3), size=16).head == "softmax"
    row = hp.Model(nn.Sequential(small(1), nn.Flatten(0)), size=16, **MEAN)
    x = row.normalize(images())
    assert row.head == "binary"
    assert torch.equal(row.logits(x), binary.logits(x))


def test_scores_of_a_binary_head_in_closed_form(binary):
    x = binary.normalize(images())
    with torch.no_grad():
        z = binary.module(binary.passes.to_layout(x))[:, 0]
    logits = binary.logits(x)
    assert torch.equal(logits, torch.stack([-z, z], 1))
    for target, sign in ((0, -1), (1, 1)):
        targets = torch.full((4,), target)
        p = 1 / (1 + torch.exp(-sign * z))
        for name, value in {
            "logit": sign * z,
            "softmax": p,
            "sigmoid": p,
            "logprob": p.log(),
        }.items():
            torch.testing.assert_close(binary.score_function(name)(logits, targets), value)
        assert torch.equal(binary.score_function("correct")(logits, targets) == 1, sign * z > 0)
    torch.testing.assert_close(binary.probabilities(logits).sum(1), torch.ones(4))


def test_gradients_of_class_0_are_those_of_class_1_negated():
    torch.manual_seed(0)
    linear = nn.Linear(3 * 64, 1)
    model = hp.Model(nn.Sequential(nn.Flatten(), linear), size=8, **MEAN)
    x = model.normalize(images(2, height=8, width=8))
    weight = linear.weight.detach().reshape(1, 3, 8, 8).expand(2, -1, -1, -1)
    for target, sign in ((0, -1), (1, 1)):
        targets = torch.tensor([target, target])
        gradient = model.gradient(x, targets).gradient
        torch.testing.assert_close(gradient, sign * weight)
        maps = hp.explain(model, x, targets, "ixg")
        torch.testing.assert_close(maps, sign * (weight * x).sum(1))
        drops = patch_drops(model, x, targets, 4)
        slow = torch.stack(
            [maps[:, r : r + 4, c : c + 4].sum((1, 2)) for r in (0, 4) for c in (0, 4)], 1
        )
        torch.testing.assert_close(drops, slow, rtol=1e-4, atol=1e-5)


def test_a_deletion_curve_of_a_linear_network_is_a_curve_of_sigmoids():
    torch.manual_seed(0)
    linear = nn.Linear(3 * 64, 1)
    model = hp.Model(nn.Sequential(nn.Flatten(), linear), size=8, **MEAN)
    x = model.normalize(images(2, height=8, width=8))
    target = torch.tensor([0, 1])
    maps = hp.explain(model, x, target, "ixg")
    curve = removal_curve(model, x, target, maps, [0, 0.25, 0.5, 1], score="softmax")
    ordered = maps.flatten(1).sort(descending=True).values
    bias = linear.bias.detach() * torch.tensor([-1, 1])
    logits = [ordered[:, int(f * 64) :].sum(1) + bias for f in (0, 0.25, 0.5, 1)]
    torch.testing.assert_close(curve, torch.stack(logits, 1).sigmoid())


METHODS = [
    "saliency",
    "ixg",
    "ig",
    "smoothgrad",
    "gradcam",
    "gradcam++",
    "ablationcam",
    "scorecam",
    "guided-backprop",
    "deepshap",
    "deepshap(score=softmax)",
    "deepshap(score=logprob)",
    "saliency(score=softmax)",
    "saliency(score=logprob)",
    "lrp-focus",
    "lrp-composite",
    "occlusion(size=4)",
    "rise(masks=20)",
    "lime(masks=50, cells=4)",
    "kernelshap(masks=60, cells=4)",
]


@pytest.mark.parametrize("method", METHODS)
def test_maps_of_one_output_are_those_of_two_outputs_with_a_sigmoid_each(binary, method):
    twin = hp.Model(doubled(small(1)), size=16, head="sigmoid", **MEAN)
    x = binary.normalize(images())
    target = torch.tensor([0, 1, 0, 1])
    torch.testing.assert_close(
        hp.explain(binary, x, target, method),
        hp.explain(twin, x, target, method),
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize("method", ["saliency", "deepshap", "ig", "rise(masks=20)", "gradcam"])
@pytest.mark.parametrize("score", ["softmax", "logprob"])
def test_probabilities_of_a_binary_head_are_those_of_a_softmax_over_half_the_logits(
    binary, method, score
):
    if method == "rise(masks=20)":
        method = "rise(masks=20"
    name = f"{method}, score={score})" if "(" in method else f"{method}(score={score})"
    twin = hp.Model(doubled(small(1), 0.5), size=16, **MEAN)
    x = binary.normalize(images())
    target = torch.tensor([0, 1, 1, 0])
    theirs = hp.explain(twin, x, target, name)
    if method == "deepshap":  # a softmax is taken apart into other functions than a sigmoid
        total = twin.score_function(score)
        gain = total(twin.logits(x), target) - total(twin.logits(torch.zeros_like(x)), target)
        ours = hp.explain(binary, x, target, name).sum((1, 2))
        torch.testing.assert_close(ours, gain, rtol=1e-3, atol=1e-5)
        return
    torch.testing.assert_close(hp.explain(binary, x, target, name), theirs, rtol=1e-3, atol=1e-6)


def test_each_label_of_a_sigmoid_head_is_scored_by_itself():
    softmax = hp.Model(small(3), size=16, **MEAN)
    model = hp.load_model(softmax, head="sigmoid")
    x = model.normalize(images())
    logits = model.logits(x)
    target = torch.tensor([2, 0, 1, 2])
    picked = logits[torch.arange(4), target]
    assert softmax.head == "softmax"
    torch.testing.assert_close(model.score_function("softmax")(logits, target), picked.sigmoid())
    torch.testing.assert_close(
        model.score_function("logprob")(logits, target), picked.sigmoid().log()
    )
    assert torch.equal(model.score_function("correct")(logits, target), (picked > 0).float())
    assert torch.equal(model.probabilities(logits), logits.sigmoid())
    drops = patch_drops(model, x, target, 4, score="softmax")
    left = x[:1].clone()
    left[..., :8, :8] = 0
    slow = picked[0].sigmoid() - model.logits(left)[0, 2].sigmoid()
    torch.testing.assert_close(drops[0, 0], slow)


def test_heads_change_fingerprints_only_where_they_are_not_the_default():
    net = small(3)
    for parameter in net.parameters():
        nn.init.constant_(parameter, 0.5)
    model = hp.Model(net, size=16)
    same = hp.Model(net, size=(16, 16), head="softmax")
    other = hp.Model(net, size=16, head="sigmoid")
    # The fingerprint of such a model before there were heads, which keys of stored results contain.
    assert model.fingerprint() == same.fingerprint() == "694ad8777cbbaa37"
    assert other.fingerprint() != model.fingerprint()


@pytest.mark.parametrize(
    ("outputs", "head", "message"),
    [
        (1, "softmax", 'write head="binary"'),
        (1, "sigmoid", 'write head="binary"'),
        (3, "binary", 'head="sigmoid" for several labels'),
        (3, "softplus", "sigmoid, softmax"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(outputs, head, message):
    with pytest.raises(HeatproofError, match=message):
        hp.Model(small(outputs), size=16, head=head)
    with pytest.raises(HeatproofError, match=message):
        hp.load_model(hp.Model(small(outputs), size=16), head=head)


def test_a_sigmoid_at_the_end_is_noticed_with_its_cure():
    net = small(1, nn.Sigmoid())
    with pytest.warns(UserWarning, match=r"Remove the sigmoid: .* net\[5\] = torch.nn.Identity"):
        assert hp.Model(net, size=16).head == "binary"
    with pytest.warns(UserWarning, match="last operation is a sigmoid"):
        hp.Model(small(1, nn.Sigmoid(), nn.Flatten(0)), size=16)
    with pytest.warns(UserWarning, match='Make the model with head="sigmoid", and remove'):
        hp.Model(small(4, nn.Sigmoid()), size=16)


def test_losses_are_torchs_own():
    binary = hp.Model(small(1), size=16)
    outputs = torch.randn(5, 1, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 1, 0, 1])
    ours = loss_function(binary)(as_logits(outputs, "binary"), labels)
    theirs = F.binary_cross_entropy_with_logits(outputs[:, 0], labels.float(), reduction="none")
    torch.testing.assert_close(ours, theirs)
    several = hp.Model(small(3), size=16, head="sigmoid")
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    theirs = nn.BCEWithLogitsLoss()(logits, F.one_hot(labels, 3).float())
    torch.testing.assert_close(loss_function(several)(logits, labels).mean(), theirs)


def test_information_of_a_binary_head_is_that_of_a_softmax_over_half_the_logits():
    z = torch.randn(6, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = torch.cat([-z, z], 1)
    torch.testing.assert_close(label_negentropy(logits), negentropy(logits / 2))
    torch.testing.assert_close(prediction_entropy(logits, "binary"), prediction_entropy(logits / 2))
    torch.testing.assert_close(
        prediction_entropy(logits, "sigmoid"), 2 * prediction_entropy(logits, "binary")
    )


def test_confidence_in_grids_is_the_probability_of_the_label(binary):
    pictures = images(6)
    labels = [0, 1, 0, 1, 0, 1]
    z = binary.module(binary.normalize(pictures)).detach()[:, 0].double()
    expected = torch.where(torch.tensor(labels) == 1, z, -z)
    expected = torch.where(expected > 0, expected.sigmoid(), -1)
    found = label_confidence(binary, hp.TensorData(pictures, labels))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_what_counts_as_correct_for_each_head():
    logits = torch.tensor([[2.0, 1.0], [-1.0, -2.0]])
    labels = torch.tensor([1, 0])
    classes = [head for head in HEADS if head != "regression"]
    correct = {head: is_correct(logits, labels, head).tolist() for head in classes}
    assert correct["softmax"] == correct["binary"] == [False, True]
    assert correct["sigmoid"] == [True, False]
    with pytest.raises(HeatproofError, match="score"):
        score_function("margin", "sigmoid")
    with pytest.raises(NotApplicable, match="a regression head is one number"):
        is_correct(logits[:, :1], labels, "regression")


def test_backends_give_the_two_logits(binary):
    x = binary.normalize(images())
    eager = binary.logits(x)
    binary.backend = "fused"
    torch.testing.assert_close(binary.logits(x), eager, rtol=1e-4, atol=1e-5)


def test_captum_is_made_with_the_model_itself(binary):
    captum = pytest.importorskip("captum.attr")
    x = binary.normalize(images())
    target = torch.tensor([0, 1, 0, 1])
    with pytest.raises(HeatproofError, match=r"Saliency\(model\)"):
        hp.explain(binary, x, target, captum.Saliency(binary.module))
    maps = hp.explain(binary, x, target, captum.InputXGradient(binary))
    torch.testing.assert_close(maps, hp.explain(binary, x, target, "ixg"))


@pytest.mark.parametrize("method", ["rollout", "chefer", "vit-gradcam"])
def test_attention_of_one_output_is_that_of_two(method):
    timm = import_timm()

    def transformer(outputs):
        torch.manual_seed(0)
        net = timm.models.vision_transformer.VisionTransformer(
            img_size=16, patch_size=4, in_chans=1, num_classes=outputs, embed_dim=12, depth=2,
            num_heads=2,
        )  # fmt: skip
        nn.init.normal_(net.head.weight)
        return net.eval()

    one = transformer(1)
    two = transformer(2)
    state = one.state_dict()
    for name in ("head.weight", "head.bias"):
        state[name] = torch.cat([-state[name], state[name]])
    two.load_state_dict(state)
    options = {"size": 16, "mean": [0.5], "std": [0.5]}
    binary = hp.Model(one, **options)
    twin = hp.Model(two, head="sigmoid", **options)
    x = binary.normalize(images(3, 1))
    target = torch.tensor([0, 1, 0])
    ours = hp.explain(binary, x, target, method)
    assert ours.abs().max() > 0
    torch.testing.assert_close(ours, hp.explain(twin, x, target, method), rtol=1e-4, atol=1e-6)


def test_a_function_is_given_two_logits_of_one_output(binary):
    def gradient(model, x, target):
        x = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(model(x).gather(1, target[:, None]).sum(), x)
        return x * found

    x = binary.normalize(images())
    target = torch.tensor([0, 1, 0, 1])
    maps = hp.explain(binary, x, target, gradient)
    torch.testing.assert_close(maps, hp.explain(binary, x, target, "ixg"))
