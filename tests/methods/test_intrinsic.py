"""BagNet and B-cos explanations against slower computations of the same values."""

import pytest
import torch
from torch.nn.functional import pad

import heatproof as hp
from heatproof.errors import NotApplicable
from heatproof.methods import Explainer, Expression
from heatproof.models.bagnet import bagnet
from heatproof.models.batch import ModelBatch
from heatproof.models.bcos import BcosConv, bcos, explaining
from heatproof.tensor.noise import Rng


@pytest.fixture(scope="module", params=[16, 18], ids=["whole strides", "a rest"])
def bag(request):
    torch.manual_seed(0)
    net = bagnet(5, stem=4, planes=(2, 3, 4, 4), kernels=(3, 3, 1, 1)).eval()
    x = torch.randn(2, 3, request.param, request.param)
    with torch.no_grad():
        net.train()(torch.randn(8, 3, 32, 32))  # calibrates the norms
    return hp.Model(net.eval(), size=request.param), x, torch.tensor([1, 4])


@pytest.fixture(scope="module")
def cosine():
    torch.manual_seed(0)
    net = bcos(5, widths=(6, 8), strides=(1, 2), stem=1, temperature=0.1).eval()
    return (
        hp.Model(net, size=16, mean=(0, 0, 0), std=(1, 1, 1)),
        torch.rand(3, 3, 16, 16),
        torch.tensor([1, 4, 0]),
    )


def test_a_bagnet_map_has_the_logit_of_every_patch(bag):
    model, x, target = bag
    margin, side = model.module.field // 2, model.size
    space = pad(x, (margin,) * 4)
    patches = (
        space.unfold(2, model.module.field, 1)
        .unfold(3, model.module.field, 1)
        .permute(0, 2, 3, 1, 4, 5)
    )
    with torch.no_grad():
        logits = model.module(patches.flatten(0, 2)).unflatten(0, (len(x), side, side))
    slow = torch.stack([logits[i, :, :, t] for i, t in enumerate(target)])
    torch.testing.assert_close(hp.explain(model, x, target, "bagnet"), slow, rtol=1e-4, atol=1e-5)


def test_bagnet_logits_are_the_mean_over_positions(bag):
    model, x, _ = bag
    features = model.module[:-2](x)
    torch.testing.assert_close(model.module.fc(features.flatten(2).mT).mean(1), model.module(x))


def test_bagnet_maps_do_not_depend_on_batch_size_and_passes_are_counted(bag):
    model, x, target = bag
    before, maps = model.pass_counts["forward"], hp.explain(model, x, target, "bagnet")
    assert model.pass_counts["forward"] - before == 16 * len(x)
    with model.passes.batches_of(3):
        torch.testing.assert_close(hp.explain(model, x, target, "bagnet"), maps)


def test_bcos_maps_sum_to_the_logit_without_its_bias(cosine):
    model, x, target = cosine
    logit = model.logits(x).gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(
        hp.explain(model, x, target, "bcos").sum((1, 2)) + model.module[-1].logit_bias,
        logit,
        rtol=1e-4,
        atol=1e-5,
    )


def test_bcos_is_a_linear_map_at_every_layer(cosine):
    model, x, target = cosine
    logit = model.logits(x).gather(1, target[:, None])[:, 0] - model.module[-1].logit_bias
    part, h = model.tail("layer1"), model.activation(x, "layer1")
    with explaining(model.module):
        weight = part.gradient(h, target).gradient
    torch.testing.assert_close((h * weight).sum((1, 2, 3)), logit, rtol=1e-4, atol=1e-5)
    assert hp.explain(model, x, target, "bcos@layer1").shape == (3, 16, 16)


def test_the_linear_map_does_not_change_the_shared_gradient(cosine):
    model, x, target = cosine
    alone = model.gradient(x, target).gradient
    batch = ModelBatch(model, x, target, ["input"])
    Explainer(batch, Rng(0, "abc")).native(Expression.parse("bcos"))
    assert torch.equal(batch.gradient().gradient, alone)


def test_explaining_is_reset_after_errors(cosine):
    layers = [m for m in cosine[0].module.modules() if isinstance(m, BcosConv)]
    with explaining(cosine[0].module):
        assert all(layer.explaining for layer in layers)
        with pytest.raises(KeyError), explaining(cosine[0].module):
            raise KeyError
        assert all(layer.explaining for layer in layers)
    assert not any(layer.explaining for layer in layers)


def test_explaining_changes_gradients_not_logits(cosine):
    model, x, target = cosine
    logits, gradient = model.logits(x), model.gradient(x, target).gradient
    with explaining(model.module):
        assert torch.equal(model.logits(x), logits)
        assert not torch.allclose(model.gradient(x, target).gradient, gradient)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("bagnet", "not a BagNet, such as paperbirds/bagnet"),
        ("bcos", "no B-cos layers, as paperbirds/bcos"),
    ],
)
def test_methods_for_other_models_suggest_an_alternative(method, reason):
    with pytest.raises(
        NotApplicable, match=f"{method} does not apply: paperbirds/vgg .*{reason}.*ixg"
    ):
        hp.explain(hp.load_model("paperbirds/vgg"), torch.zeros(1, 3, 64, 64), 0, method)


def test_a_bagnet_is_explained_at_the_input_only(bag):
    with pytest.raises(NotApplicable, match="at the input"):
        hp.explain(*bag, "bagnet@layer1")


def test_maps_of_the_embedded_bcos_network_sum_to_the_logit():
    model = hp.load_model("paperbirds/bcos")
    birds = hp.load_data("paperbirds:test", model, limit=2)
    x = model.normalize(torch.stack([birds.load(i).image for i in range(2)]))
    logits, maps = model.logits(x), hp.explain(model, x, None, "bcos")
    torch.testing.assert_close(
        maps.sum((1, 2)) + model.module[-1].logit_bias, logits.amax(1), rtol=1e-4, atol=1e-3
    )
    assert logits.argmax(1).tolist() == birds.labels[:2]
