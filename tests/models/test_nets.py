from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from heatproof.data import paperbirds
from heatproof.models.nets import NETS, Sum, build, load_state, stored, weights_path

MOST_PARAMETERS = 220_000


@pytest.fixture(params=list(NETS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_nets_are_small(name: str) -> None:
    assert sum(parameter.numel() for parameter in build(name).parameters()) <= MOST_PARAMETERS


def test_slices_compose_to_the_net(name: str, images: torch.Tensor) -> None:
    net = build(name).eval()
    logits = net(images)
    assert logits.shape == (2, len(paperbirds.CLASSES))
    for cut in range(len(net) + 1):
        assert torch.equal(net[cut:](net[:cut](images)), logits)


def test_stages_have_names(name: str) -> None:
    names = [stage for stage, _ in build(name).named_children()]
    expected = ["stem", "layer1", "layer2", "layer3", "layer4", "pool", "head"]
    assert names == expected if name == "resnet" else (names[0], names[-4:]) == ("conv1", ["flatten", "fc1", "fc2", "fc3"])


def test_relus_keep_their_input_and_residuals_add_in_a_module(name: str) -> None:
    modules = list(build(name).modules())
    assert not any(module.inplace for module in modules if isinstance(module, nn.ReLU))
    assert any(isinstance(module, Sum) for module in modules) == (name == "resnet")


def test_the_last_map_of_the_resnet_is_eight_wide(images: torch.Tensor) -> None:
    assert build("resnet").eval()[:5](images).shape[2:] == (8, 8)


def test_variants_are_options_of_the_builders(images: torch.Tensor) -> None:
    plain = NETS["resnet"].build(7, widths=(8, 16), blocks=(2, 1), strides=(1, 2), norm=False, bias=False)
    assert plain(images).shape == (2, 7)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in plain.modules())
    assert not any(key.endswith("bias") for key in plain.state_dict())


def test_zero_is_the_mean_colour_of_the_data(name: str) -> None:
    net = NETS[name]
    assert (net.mean, net.std, net.classes) == (paperbirds.MEAN, paperbirds.STD, len(paperbirds.CLASSES))


def test_an_unknown_net_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match='no net "alexnet"; there are: resnet, vgg'):
        build("alexnet")


def test_shipped_weights_are_float16_and_fit(name: str) -> None:
    path = weights_path(name)
    with safe_open(path, framework="pt") as file:
        assert file.metadata().keys() == {"net", "recipe", "accuracy", "classes", "heatproof"}
        assert file.metadata()["net"] == name
        kinds = {file.get_tensor(key).dtype for key in file.keys()}  # noqa: SIM118 (not a dict)
    assert kinds <= {torch.float16, torch.int64}
    state = load_state(path)
    build(name).load_state_dict(state)
    assert all(torch.equal(value, state[key].to(value.dtype)) for key, value in stored(state).items())
    assert Path(path).stat().st_size < 500_000
