from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from heatproof.data import paperbirds
from heatproof.models.arithmetic import Sum
from heatproof.models.bagnet import bagnet
from heatproof.models.bcos import BcosConv, Uncentred
from heatproof.models.nets import (
    ASSETS,
    NETS,
    SHIPPED,
    Residual,
    load_state,
    resnet,
    stored,
    vgg,
)
from heatproof.models.vit import Attention, vit

MOST_PARAMETERS = 220_000


@pytest.fixture(params=list(NETS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_networks_are_small(name: str) -> None:
    assert (
        sum(parameter.numel() for parameter in NETS[name].module().parameters()) <= MOST_PARAMETERS
    )


def test_slices_compose_to_the_net(name: str, images: torch.Tensor) -> None:
    net = NETS[name].module().eval()
    logits = net(images)
    assert logits.shape == (2, len(paperbirds.CLASSES))
    for cut in range(len(net) + 1):
        assert torch.equal(net[cut:](net[:cut](images)), logits)


STAGES = {  # the first stage and the last ones
    "resnet": ["stem", "layer1", "layer2", "layer3", "layer4", "pool", "head"],
    "vgg": ["conv1", "flatten", "fc1", "fc2", "fc3"],
    "bagnet": ["conv1", "layer1", "layer2", "layer3", "layer4", "pool", "fc"],
    "bcos": ["encode", "layer1", "layer2", "layer3", "layer4", "fc"],
    "vit": ["tokens", "block1", "block2", "block3", "block4", "norm", "pool", "head"],
}


def test_stages_have_names(name: str) -> None:
    names = [stage for stage, _ in NETS[name].module().named_children()]
    first, *last = STAGES[name.partition("-")[0].rstrip("0123456789")]
    assert (names[0], names[-len(last) :]) == (first, last)


def test_relus_keep_their_input_and_residuals_add_in_a_module(name: str) -> None:
    modules = list(NETS[name].module().modules())
    assert not any(module.inplace for module in modules if isinstance(module, nn.ReLU))
    assert any(isinstance(module, Sum) for module in modules) == (not name.startswith("vgg"))


def test_the_last_map_of_the_resnet_is_eight_wide(images: torch.Tensor) -> None:
    assert NETS["resnet"].module().eval()[:5](images).shape[2:] == (8, 8)


def test_variants_are_options_of_the_builders(images: torch.Tensor) -> None:
    plain = NETS["resnet"].build(
        7, widths=(8, 16), blocks=(2, 1), strides=(1, 2), norm=False, bias=False
    )
    assert plain(images).shape == (2, 7)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in plain.modules())
    assert not any(key.endswith("bias") for key in plain.state_dict())


def test_zero_is_the_mean_colour_of_the_data(name: str) -> None:
    """B-cos networks are the exception: their encoding takes images in [0, 1]."""
    net = NETS[name]
    space = ((0.0,) * 3, (1.0,) * 3) if name == "bcos" else (paperbirds.MEAN, paperbirds.STD)
    assert (net.mean, net.std, net.classes) == (*space, len(paperbirds.CLASSES))


@pytest.mark.parametrize(
    "net", [resnet(5, norm=False, bias=False), vgg(5, bias=False)], ids=["resnet", "vgg"]
)
def test_without_biases_the_logits_scale_with_the_image(
    net: nn.Sequential, images: torch.Tensor
) -> None:
    for weight in net.parameters():
        nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
    net.double().eval()
    x = images.double()
    assert not any(key.endswith("bias") for key in net.state_dict())
    for factor in (0.25, 3.0):
        torch.testing.assert_close(net(factor * x), factor * net(x))
    assert net(x).std() > 0.01


def test_without_norms_every_branch_starts_at_zero(images: torch.Tensor) -> None:
    blocks = [module for module in resnet(5, norm=False).modules() if isinstance(module, Residual)]
    x = resnet(5, norm=False)[0](images)
    assert len(blocks) == 4
    assert blocks[0].branch(x).abs().max() == 0
    torch.testing.assert_close(blocks[0](x), x)  # x is not negative
    first, last = (
        module.weight for module in blocks[-1].branch.modules() if isinstance(module, nn.Conv2d)
    )
    assert first.std().item() == pytest.approx((2 / first[0].numel()) ** 0.5 / 4**0.5, rel=0.05)
    assert last.abs().max() == 0
    kinds = [type(module).__name__ for module in blocks[0].branch]
    assert kinds == [
        "Shift",
        "Sequential",
        "Shift",
        "ReLU",
        "Shift",
        "Sequential",
        "Scale",
        "Shift",
    ]


def test_the_receptive_field_of_a_bagnet_position_is_its_patch() -> None:
    net = bagnet(5).double().eval()
    assert (net.field, net.stride) == (17, 4)
    image = torch.randn(1, 3, 33, 33, dtype=torch.double, requires_grad=True)
    torch.autograd.backward(net[:-2](image)[0, :, 2, 1].sum())
    assert image.grad is not None
    seen = image.grad[0].abs().sum(0) > 0
    assert (seen[8:25, 4:21].any(), seen.sum() == seen[8:25, 4:21].sum()) == (True, True)
    assert seen.any(0).nonzero().flatten()[[0, -1]].tolist() == [4, 20]


def test_bcos_layers_are_bounded_by_their_input() -> None:
    """|cos| · |ŵᵀx| ≤ |x|, and equal where weight and input are parallel."""
    layer = BcosConv(4, 3, 1)
    x = layer.weight[:1].detach() * 7
    out = layer(x)[0, :, 0, 0]
    assert out[0].item() == pytest.approx(x.norm().item(), rel=1e-4)
    assert (out.abs() <= x.norm() * (1 + 1e-5)).all()


def test_the_norm_about_zero_learns_the_mean_square() -> None:
    norm, x = Uncentred(2, momentum=1.0), 3 + torch.randn(8, 2, 4, 4)
    torch.testing.assert_close(
        norm(x).square().mean((0, 2, 3)), torch.ones(2), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(norm.running_var, x.square().mean((0, 2, 3)))
    torch.testing.assert_close(norm.eval()(2 * x), 2 * norm(x))


def test_the_transformer_exposes_its_attention(images: torch.Tensor) -> None:
    net, seen = vit(5), list[torch.Tensor]()
    for module in net.modules():
        if isinstance(module, Attention):
            module.softmax.register_forward_hook(lambda m, a, out: seen.append(out))
    assert net(images).shape == (2, 5)
    assert [attention.shape for attention in seen] == [(2, 4, 65, 65)] * 4
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(2, 4, 65))


def test_attention_agrees_with_torch() -> None:
    ours, theirs, x = (
        Attention(12, 3),
        nn.MultiheadAttention(12, 3, batch_first=True),
        torch.randn(2, 5, 12),
    )
    theirs.load_state_dict(
        {
            "in_proj_weight": ours.qkv.weight,
            "in_proj_bias": ours.qkv.bias,
            "out_proj.weight": ours.proj.weight,
            "out_proj.bias": ours.proj.bias,
        }
    )
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0])


@pytest.mark.parametrize("path", sorted(ASSETS.glob("*.safetensors")), ids=lambda path: path.stem)
def test_shipped_weights_are_float16_and_fit(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        kinds = {file.get_tensor(key).dtype for key in file.keys()}  # noqa: SIM118 (not a dict)
    assert metadata.keys() >= {"recipe", "accuracy", "classes", "heatproof"}
    assert kinds <= {torch.float16, torch.int64}
    state = load_state(path)
    name = metadata["net"] if "net" in metadata else metadata["model"].removeprefix("paperbirds/")
    NETS[name].module().load_state_dict(state)
    assert all(
        torch.equal(value, state[key].to(value.dtype)) for key, value in stored(state).items()
    )
    assert path.stat().st_size < 500_000


def test_all_weights_together_are_small() -> None:
    assert sum(path.stat().st_size for path in ASSETS.iterdir()) < 10_000_000
