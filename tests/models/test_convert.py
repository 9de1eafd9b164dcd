"""Conversion of timm's and torchvision's vision transformers to the library's own."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.errors import NotApplicable
from heatproof.models.convert import OUTPUT_TOLERANCE, canonical, renamed
from heatproof.models.guards import HOOKS
from heatproof.models.vit import Attention, is_vit, vit

TIMM = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 3,
    "mlp_ratio": 3,
    "num_classes": 7,
}
TORCHVISION = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_dim": 24,
    "num_layers": 2,
    "num_heads": 3,
    "mlp_dim": 72,
    "num_classes": 7,
}


def randomised(net):
    """Draw every weight at random: libraries leave heads, class tokens and biases at zero."""
    torch.manual_seed(0)
    for weight in net.parameters():
        nn.init.normal_(weight, std=0.2)
    return net.eval()


@pytest.fixture
def from_timm(timm):
    return lambda **options: randomised(
        timm.models.vision_transformer.VisionTransformer(**TIMM | options)
    )


@pytest.fixture
def from_torchvision(torchvision):
    return lambda **options: randomised(
        torchvision.models.VisionTransformer(**TORCHVISION | options)
    )


@pytest.fixture(params=["from_timm", "from_torchvision"])
def theirs(request):
    return request.getfixturevalue(request.param)()


def relative_deviation(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def test_the_converted_network_gives_the_same_logits(theirs):
    ours, x = canonical(theirs), torch.randn(3, 3, 32, 32)
    assert is_vit(ours)
    assert relative_deviation(ours(x), theirs(x)) <= OUTPUT_TOLERANCE
    assert relative_deviation(ours.double()(x.double()), theirs.double()(x.double())) <= 1e-12


def test_the_epsilons_of_norms_are_kept(from_timm):
    theirs, x = (
        from_timm(norm_layer=lambda dim, **k: nn.LayerNorm(dim, eps=0.3, **k)),
        torch.randn(2, 3, 32, 32),
    )
    theirs.norm.eps = 0.1
    assert relative_deviation(canonical(theirs)(x), theirs(x)) <= OUTPUT_TOLERANCE


def test_weights_are_shared_and_the_original_is_unchanged(theirs):
    theirs.train().requires_grad_(False)
    ours, x = canonical(theirs), torch.randn(2, 3, 32, 32)
    assert {p.data_ptr() for p in ours.parameters()} == {p.data_ptr() for p in theirs.parameters()}
    assert all(m.training for m in theirs.modules())
    assert not any(p.requires_grad for p in theirs.parameters())
    assert not [
        hook for m in theirs.modules() for kind in HOOKS for hook in getattr(m, kind).values()
    ]
    with torch.no_grad():
        next(theirs.parameters()).mul_(2)
    assert relative_deviation(ours.eval()(x), theirs.eval()(x)) <= OUTPUT_TOLERANCE


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"init_values": 1e-2}, "LayerScale"),
        ({"qk_norm": True}, "norms of queries and keys"),
        ({"reg_tokens": 2}, "register tokens"),
        ({"pre_norm": True}, "a norm before the blocks"),
        ({"qkv_bias": False}, "no bias of queries, keys and values"),
        (
            {"global_pool": "avg"},
            'a norm after the pooling.*pooling by "avg" instead of the class token',
        ),
        ({"global_pool": "avg", "class_token": False}, "no class token"),
        ({"global_pool": "map"}, "pooling by attention"),
        ({"num_classes": 0}, "no linear head"),
        ({"act_layer": nn.ReLU}, r"ReLU\(\) instead of GELU"),
        ({"act_layer": lambda: nn.GELU(approximate="tanh")}, "GELU.*tanh.*instead of GELU"),
        ({"dynamic_img_size": True}, "images of any size"),
        ({"img_size": (32, 16)}, "not square"),
        ({"no_embed_class": True}, r"not built like a plain one.*pos_embed"),
    ],
)
def test_variants_are_refused_with_the_reason(from_timm, options, reason):
    with pytest.raises(NotApplicable, match=f"timm's VisionTransformer.*{reason}"):
        canonical(from_timm(**options))


def test_a_network_with_missing_attributes_is_used_unconverted(from_timm):
    theirs = from_timm()
    theirs.patch_embed.img_size, theirs.patch_embed.strict_img_size = None, False
    model = hp.Model(theirs, size=32)
    assert model.module is theirs
    assert "not built like a plain one" in model.unconverted


def test_a_distilled_transformer_is_refused(timm):
    with pytest.raises(NotApplicable, match="a distillation token"):
        canonical(timm.models.deit.VisionTransformerDistilled(**TIMM))


def test_torchvisions_variants_are_refused(torchvision, from_torchvision):
    stem = [torchvision.models.vision_transformer.ConvStemConfig(8, 3, 8)]
    for options, reason in (
        ({"representation_size": 8}, "a hidden layer in its head"),
        ({"conv_stem_configs": stem}, "several layers"),
    ):
        with pytest.raises(NotApplicable, match=f"torchvision's VisionTransformer has .*{reason}"):
            canonical(from_torchvision(**options))


def test_a_network_that_computes_something_else_is_refused(timm):
    class Loud(timm.models.vision_transformer.VisionTransformer):
        def forward(self, x):
            return super().forward(x.flip(-1))

    with pytest.raises(
        NotApplicable, match=r"Loud is not a plain one: .* differ by .* of the largest"
    ):
        canonical(randomised(Loud(**TIMM)))


def test_networks_that_are_not_transformers_are_refused():
    with pytest.raises(
        NotApplicable, match="Linear is not a VisionTransformer of timm or torchvision"
    ):
        canonical(nn.Linear(2, 2))


def test_a_wrapped_transformer_exposes_its_attention(theirs):
    model, x = hp.Model(theirs, size=32, name="theirs"), torch.randn(3, 3, 32, 32)
    assert is_vit(model.module) and model.unconverted == ""
    assert relative_deviation(model.logits(x), theirs(x).detach()) <= OUTPUT_TOLERANCE
    for method in ("rollout", "chefer", "vit-gradcam", "ixg"):
        assert hp.explain(model, x, None, method).isfinite().all()


def test_a_refused_transformer_is_used_unconverted_and_methods_say_why(from_timm):
    theirs = from_timm(init_values=1.0)
    model = hp.Model(theirs, size=32, name="theirs")
    assert model.module is theirs
    assert hp.explain(model, torch.randn(1, 3, 32, 32), 0, "ixg").isfinite().all()
    with pytest.raises(
        NotApplicable,
        match=r"rollout does not apply: theirs is not .* "
        r"\(timm's VisionTransformer has LayerScale\); ixg",
    ):
        hp.explain(model, torch.randn(1, 3, 32, 32), 0, "rollout")


def test_named_layers_refer_to_the_unconverted_network(from_timm):
    theirs = from_timm()
    model = hp.Model(theirs, size=32, layers=["blocks.0"])
    assert model.module is theirs
    assert "blocks.0" in model.layers


def test_weights_of_either_library_get_our_names(theirs):
    ours = vit(7, size=32, patch=8, dim=24, depth=2, heads=3, ratio=3)
    assert renamed(theirs.state_dict()).keys() == ours.state_dict().keys()
    assert renamed(ours.state_dict()).keys() == ours.state_dict().keys()


def test_old_weight_names_of_torchvision_are_recognised(from_torchvision):
    state = from_torchvision().state_dict()
    old = {
        k.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): v
        for k, v in state.items()
    }
    assert renamed(old).keys() == renamed(state).keys()


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224",
        "deit_tiny_patch16_224",
        pytest.param("vit_base_patch16_224", marks=pytest.mark.slow),
    ],
)
def test_transformers_of_timm_are_converted(timm, name):
    theirs, x = timm.create_model(name).eval(), torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert relative_deviation(canonical(theirs)(x), theirs(x)) <= OUTPUT_TOLERANCE


@pytest.mark.slow
def test_the_transformer_of_torchvision_is_converted(torchvision):
    theirs, x = torchvision.models.get_model("vit_b_16").eval(), torch.randn(1, 3, 224, 224)
    nn.init.normal_(theirs.heads.head.weight)
    ours = canonical(theirs)
    assert [m.heads for m in ours.modules() if isinstance(m, Attention)] == [12] * 12
    with torch.no_grad():
        assert relative_deviation(ours(x), theirs(x)) <= OUTPUT_TOLERANCE


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_heatproof_alone_imports_neither_library():
    code = (
        "import sys, torch, heatproof as hp; "
        "net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2)); "
        "hp.Model(net, size=8); "
    )
    assert run(code + "print([m for m in ('timm', 'torchvision') if m in sys.modules])") == "[]\n"


def test_torchvision_can_be_imported_with_any_torch(torchvision):
    code = (
        "from heatproof.models.vision import import_timm, import_torchvision as load; "
        "a = load(); import_timm(); import torchvision; "
        "print(a is torchvision is load(), a.models.resnet18().fc.out_features)"
    )
    assert run(code) == "True 1000\n"
