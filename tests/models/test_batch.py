"""Methods that share a batch handle compute their common passes once."""

import pytest
import torch

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.methods import Explainer, Expression
from heatproof.models.batch import ModelBatch
from heatproof.tensor.noise import Rng


@pytest.fixture
def model(golden_model):
    model = golden_model("resnet")
    model.pass_counts.clear()
    return model


def backward_passes(model):
    return sum(n for kind, n in model.pass_counts.items() if kind.startswith("backward"))


def test_a_gradient_is_computed_once_per_score(model, images):
    x, target = images
    batch = ModelBatch(model, x, target, ["input"])
    assert batch.gradient() is batch.gradient("input", "logit")
    assert backward_passes(model) == len(x)
    assert torch.equal(batch.at("input").gradient("softmax"), batch.gradient(score="softmax")[2])
    assert backward_passes(model) == 2 * len(x)


def test_the_backward_pass_stops_at_the_first_announced_layer(model, images):
    x, target = images
    batch = ModelBatch(model, x, target, ["layer3", "cam"])
    batch.gradient("cam")
    batch.gradient("layer3")
    assert set(model.pass_counts) == {"forward", "backward from layer3"}
    assert backward_passes(model) == len(x)


def test_an_activation_recorded_by_the_backward_pass_needs_no_extra_pass(model, images):
    x, target = images
    expected = model.activation(x, "cam")
    model.pass_counts.clear()
    batch = ModelBatch(model, x, target, ["input", "cam"])
    assert torch.equal(batch.activation("cam"), expected)
    assert batch.activation("cam") is batch.activation("layer4")
    assert model.pass_counts == {"backward": len(x)}


def test_a_method_sees_its_layer_as_its_input(model, images):
    x, target = images
    at = ModelBatch(model, x, target, ["cam"]).at("cam")
    tail = model.tail("cam")
    assert torch.equal(at.x, model.activation(x, "cam"))
    assert at.target is target
    assert torch.equal(
        at.gradient("softmax"), tail.gradient(at.x, target, score="softmax").gradient
    )
    assert torch.equal(at.activation("avgpool"), tail.activation(at.x, "avgpool"))


def test_an_unknown_layer_is_reported_at_once(model, images):
    with pytest.raises(HeatproofError, match='unknown layer "layer9"'):
        ModelBatch(model, *images, ["layer9"])


def test_a_user_method_shares_passes_by_taking_the_batch(model, images):
    def alone(model, x, target, *, rng):
        return x * model.gradient(x, target).gradient

    def sharing(model, x, target, *, rng, batch):
        return x * batch.gradient()

    x, target = images
    explainer = Explainer(ModelBatch(model, x, target, ["input"]), Rng(0, "01234567"))
    expected = explainer.native(Expression.parse("ixg"))
    assert backward_passes(model) == len(x)
    assert torch.equal(explainer.native(Expression.parse(sharing)), expected)
    assert backward_passes(model) == len(x)
    assert torch.equal(explainer.native(Expression.parse(alone)), expected)
    assert backward_passes(model) == 2 * len(x)


def test_noisy_copies_have_their_own_batches(model, images):
    x, target = images
    explainer = Explainer(ModelBatch(model, x, target, ["input"]), Rng(0, "01234567"))
    explainer.native(Expression.parse("ixg"))
    explainer.native(Expression.parse("ixg|noise(n=2, std=0.1)"))
    assert backward_passes(model) == 3 * len(x)


def test_the_baseline_of_a_method_receives_its_prepared_state(model, images):
    x, target = images
    reference = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    mean = model.normalize(reference).double().mean((0, 2, 3)).float().reshape(3, 1, 1)
    for method in ("ig(steps=1, baseline=mean)", "occlusion(size=8, baseline=mean)"):
        with pytest.raises(HeatproofError, match="baseline mean needs reference images"):
            hp.explain(model, x, target, method)
        assert hp.explain(model, x, target, method, reference=reference).isfinite().all()
    midpoint = (x + mean) / 2
    expected = (x - mean) * model.gradient(midpoint, target).gradient
    maps = hp.explain(model, x, target, "ig(steps=1, baseline=mean)", reference=reference)
    torch.testing.assert_close(maps, expected.sum(1), rtol=1e-4, atol=1e-5)
