"""Networks with random weights: which layers change, what is shared, and what stays as it was."""

import copy

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.errors import NotApplicable
from heatproof.models.random_weights import layers_with_parameters, random_networks


def network() -> hp.Model:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
    net[1].running_mean.normal_()
    nn.init.uniform_(net[1].weight)
    return hp.Model(net, size=16)


def changed(model: hp.Model, view: hp.Model) -> list[str]:
    """Return the layers with other weights."""
    names = layers_with_parameters(model)
    before, after = (dict(m.module.named_parameters()) for m in (model, view))
    return [n for n in names if not torch.equal(before[f"{n}.weight"], after[f"{n}.weight"])]


def test_each_mode_and_order_randomises_the_layers_that_it_says():
    model = network()
    layers = layers_with_parameters(model)
    assert len(layers) == 4

    def made(*args):
        return [changed(model, view) for view in random_networks(model, *args)]

    assert made("cascading") == [layers[3:], layers[2:], layers[1:], layers]
    assert made("cascading", "bottom-up") == [layers[:k] for k in (1, 2, 3, 4)]
    assert made("independent") == [[layer] for layer in layers[::-1]]
    assert made("all") == [layers]
    assert made("cascading", "top-down", 2) == [layers[2:], layers]


def test_all_networks_share_tensors_and_a_layer_has_the_same_random_weights_in_each():
    model = network()
    first, *_, last = random_networks(model, "cascading", seed=3)
    own, one, all_of_them = (dict(m.module.named_parameters()) for m in (model, first, last))
    top = f"{layers_with_parameters(model)[-1]}.weight"
    bottom = f"{layers_with_parameters(model)[0]}.weight"
    assert one[bottom] is own[bottom]
    assert torch.equal(one[top], all_of_them[top])
    other = random_networks(model, "all", seed=4)[0]
    assert not torch.equal(dict(other.module.named_parameters())[top], one[top])
    assert random_networks(model, "cascading", seed=3)[0] is first


def test_the_network_stays_as_it_was_and_the_global_generator_too():
    model = network()
    before = copy.deepcopy(model.module.state_dict())
    x = torch.rand(2, 3, 16, 16)
    logits = model.logits(x)
    state = torch.random.get_rng_state()
    (view,) = random_networks(model, "all")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[k], v) for k, v in model.module.state_dict().items())
    assert torch.equal(model.logits(x), logits)
    assert not torch.allclose(view.logits(x), logits)
    mean = dict(view.module.named_buffers())[f"{layers_with_parameters(model)[1]}.running_mean"]
    assert not mean.any()  # as in a batch norm that has seen nothing


def test_a_random_network_equals_one_that_is_loaded_with_its_weights():
    model = network()
    (view,) = random_networks(model, "all")
    plain = copy.deepcopy(model.module)
    plain.load_state_dict(view.module.state_dict())
    x = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(view.logits(x), plain.eval()(x))
    cam = view.landmarks["cam"]
    torch.testing.assert_close(view.tail(cam).logits(view.activation(x, cam)), plain(x))


def test_parameters_without_an_initialisation_are_shuffled():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.arange(3.0).reshape(1, 3, 1, 1))
            self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))

        def forward(self, x):
            return self.head(x * self.scale)

    model = hp.Model(Scaled(), size=8)
    scales = {
        tuple(random_networks(model, "all", seed=seed)[0].module.scale.flatten().tolist())
        for seed in range(8)
    }
    assert len(scales) > 1 and all(sorted(scale) == [0, 1, 2] for scale in scales)


def test_transformers_are_random_in_every_layer():
    model = hp.load_model("paperbirds/vit")
    (view,) = random_networks(model, "all")
    x = torch.rand(2, *model.image_shape)
    assert not torch.allclose(view.logits(x), model.logits(x))


def test_a_network_without_parameters_is_not_applicable():
    class Means(nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    with pytest.raises(NotApplicable, match="has no parameters.*leave the protocol out"):
        random_networks(hp.Model(Means(), size=8), "all")
