"""CAMs on the tokens of transformers, compared with pytorch-grad-cam."""

import numpy as np
import pytest
import tiny_networks as tiny
import torch
from torch import nn

import heatproof as hp
from heatproof.errors import NotApplicable
from heatproof.methods.explain import Explainer
from heatproof.methods.expression import Expression
from heatproof.models.batch import ModelBatch
from heatproof.models.tokens import Grid, find_grid
from heatproof.tensor.noise import Rng


def native(model, x, target, method):
    expression = Expression.parse(method)
    batch = ModelBatch(model, x, target, [expression.layer])
    return Explainer(batch, Rng(0, ["0", "1"], model.device)).native(expression)


def tokens_as_grid(prefix, side):
    """What pytorch-grad-cam's documentation tells users to write."""

    def reshape(tensor):
        tensor = tensor[:, prefix:, :].reshape(len(tensor), side, side, tensor.shape[2])
        return tensor.transpose(2, 3).transpose(1, 2)

    return reshape


def channels_last_as_grid(tensor):
    return tensor.transpose(2, 3).transpose(1, 2)


class Logits(nn.Module):
    """What users of pytorch-grad-cam write around a network of transformers."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        out = self.net(x)
        return getattr(out, "logits", out)


# Network, its layer there, our layer, how tokens are reshaped.
CASES = [
    ("transformers:ViT", "vit.layers.1", "block2", tokens_as_grid(1, 4)),
    ("transformers:DeiT", "deit.layers.1", "deit.layers.1", tokens_as_grid(2, 4)),
    ("transformers:Beit", "beit.layers.2", "beit.layers.2", tokens_as_grid(1, 4)),
    # Blocks of Swin return a tuple there, which pytorch-grad-cam cannot read.
    ("transformers:Swin", "swin.layernorm", "swin.layernorm", tokens_as_grid(0, 8)),
    ("timm:vit_tiny_patch16_224", "blocks.0", "block1", tokens_as_grid(1, 2)),
    ("timm:swin_tiny_patch4_window7_224", "layers.0", "layers.0", channels_last_as_grid),
    ("timm:swin_tiny_patch4_window7_224", "norm", "cam", channels_last_as_grid),
    ("torchvision:swin", "features.1", "features.1", channels_last_as_grid),
    ("transformers:ResNet", "resnet.encoder.stages.1", "cam", lambda t: t),
]
METHODS = {
    "gradcam": "GradCAM",
    "xgradcam": "XGradCAM",
    "layercam": "LayerCAM",
    "ablationcam": "AblationCAM",
}


def theirs(cam_class, net, layer, reshape, x, target):
    """Compute pytorch-grad-cam's maps before it scales them to [0, 1]."""
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    cam = cam_class(
        model=Logits(net), target_layers=[net.get_submodule(layer)], reshape_transform=reshape
    )
    seen = []
    for k, label in enumerate(target.tolist()):
        image = x[k : k + 1]
        cam.activations_and_grads(image.clone().requires_grad_())
        out = cam.activations_and_grads(image.clone().requires_grad_())
        net.zero_grad()
        ClassifierOutputTarget(label)(out[0]).backward()
        activations = cam.activations_and_grads.activations[-1].cpu().numpy()
        gradients = cam.activations_and_grads.gradients[-1].cpu().numpy()
        map_ = cam.get_cam_image(
            image,
            cam.target_layers[0],
            [ClassifierOutputTarget(label)],
            activations,
            gradients,
            False,
        )
        seen.append(torch.from_numpy(map_).clamp(min=0)[0])
    cam.activations_and_grads.release()
    return torch.stack(seen)


@pytest.mark.parametrize("method", ["gradcam", "xgradcam", "layercam"])
@pytest.mark.parametrize(("name", "layer", "ours", "reshape"), CASES, ids=[c[0] for c in CASES])
def test_cams_on_tokens_are_those_of_pytorch_grad_cam(name, layer, ours, reshape, method):
    pytest.importorskip("transformers")
    tiny.import_torchvision()
    library = pytest.importorskip("pytorch_grad_cam")
    net = tiny.build(name).double()
    size = tiny.SIDES.get(name, 32)
    x = torch.randn(
        2, 3, size, size, dtype=torch.double, generator=torch.Generator().manual_seed(1)
    )
    target = torch.tensor([1, 3])
    reference = theirs(getattr(library, METHODS[method]), net, layer, reshape, x, target)
    named = [layer] if layer == "swin.layernorm" else None
    model = hp.Model(net, size=size, layers=named, mean=(0.5,) * 3, std=(0.5,) * 3)
    maps = native(model, x, target, f"{method}@{ours}").double()
    assert reference.abs().max() > 0
    # pytorch-grad-cam adds 1e-7 to XGrad-CAM's divisor, we 1e-8.
    torch.testing.assert_close(maps, reference, rtol=1e-4, atol=1e-5 * float(reference.max()))


def test_ablationcam_removes_a_channel_of_all_tokens():
    net = tiny.build("transformers:ViT")
    model = hp.Model(net, mean=(0.5,) * 3, std=(0.5,) * 3)
    x = torch.randn(2, 3, 32, 32)
    target = torch.tensor([1, 3])
    h = model.activation(x, "block2")
    tail = model.tail("block2")
    expected = torch.zeros(2, 4, 4)
    for channel in range(24):
        without = h.clone()
        without[..., channel] = 0
        drop = (tail(h) - tail(without)).gather(1, target[:, None])[:, 0]
        expected += drop[:, None, None].detach() * h[:, 1:, channel].reshape(2, 4, 4)
    maps = native(model, x, target, "ablationcam@block2")
    torch.testing.assert_close(maps, expected.relu().detach(), rtol=1e-4, atol=1e-7)


def test_integrated_gradients_at_tokens_sum_gradients_along_the_line():
    model = hp.Model(tiny.build("timm:vit_tiny_patch16_224").double(), size=32)
    x = torch.randn(2, 3, 32, 32, dtype=torch.double)
    target = torch.tensor([1, 3])
    tail = model.tail("block1")
    h = model.activation(x, "block1")
    nodes, weights = np.polynomial.legendre.leggauss(6)
    total = torch.zeros_like(h)
    for node, weight in zip(nodes, weights, strict=True):
        point = (h * (1 + node) / 2).requires_grad_()
        score = tail(point).gather(1, target[:, None]).sum()
        total += weight / 2 * torch.autograd.grad(score, point)[0]
    expected = (h * total)[:, 1:].sum(-1).reshape(2, 2, 2)
    maps = native(model, x, target, "ig(steps=6)@block1").double()
    torch.testing.assert_close(maps, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("shape", "image", "grid"),
    [
        ((16, 24), (32, 32), Grid(4, 4, 0)),
        ((17, 24), (32, 32), Grid(4, 4, 1)),
        ((18, 24), (32, 32), Grid(4, 4, 2)),
        ((21, 24), (32, 32), Grid(4, 4, 5)),
        ((9, 24), (32, 16), Grid(4, 2, 1)),
        ((32, 24), (64, 32), Grid(8, 4, 0)),
        ((15, 24), (32, 32), None),
        ((17, 25), (32, 32), None),  # no norm of 25 channels
        ((8, 8, 24), (32, 32), Grid(8, 8)),
        ((24, 8, 8), (32, 32), None),  # channels first
        ((24, 24, 24), (32, 32), None),
        ((24,), (32, 32), None),
    ],
)
def test_a_table_says_which_tokens_are_positions(shape, image, grid):
    net = nn.Sequential(nn.LayerNorm(24))
    assert find_grid(net, shape, image) == grid


def test_tokens_of_no_position_are_dropped():
    grid = Grid(2, 3, 1)
    tokens = torch.arange(2 * 7 * 4).reshape(2, 7, 4)
    seen = grid.channels_first(tokens)
    assert seen.shape == (2, 4, 2, 3)
    assert torch.equal(seen[1, 2].flatten(), tokens[1, 1:, 2])


def test_the_cam_layer_of_a_transformer_is_the_last_whose_patches_matter():
    deit = hp.Model(tiny.build("transformers:DeiT"), mean=(0.5,) * 3, std=(0.5,) * 3)
    assert deit.landmarks["cam"] == "deit.layers.1"  # after layers.2 only the class token counts
    beit = hp.Model(tiny.build("transformers:Beit"), mean=(0.5,) * 3, std=(0.5,) * 3)
    assert beit.landmarks["cam"] == "beit.layers.2"  # it averages the patches


def test_a_plain_vit_needs_no_block_for_cams():
    model = hp.Model(tiny.build("transformers:ViT"), mean=(0.5,) * 3, std=(0.5,) * 3)
    images = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    maps = hp.explain(model, images, 0, "gradcam")
    assert torch.equal(maps, hp.explain(model, images, 0, "gradcam@block3.norm1"))
    with pytest.raises(NotApplicable, match="CAMs at the first norm of the last block: gradcam"):
        hp.explain(model, images, 0, "gradcam@final")


@pytest.mark.parametrize("method", ["rise(masks=8)", "occlusion", "lime(masks=8)"])
def test_methods_that_change_regions_do_not_apply_to_tokens(method):
    model = hp.Model(tiny.build("transformers:Swin"), mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(NotApplicable, match=r"has tokens of 8×8 patches.*@input"):
        hp.explain(model, torch.zeros(1, 3, 32, 32), 0, f"{method}@cam")


def test_a_layer_without_positions_says_so():
    model = hp.Model(tiny.build("transformers:Swin"), mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(NotApplicable, match="layer embedding .* has no positions; those that have"):
        hp.explain(model, torch.zeros(1, 3, 32, 32), 0, "ixg@embedding")


@pytest.mark.parametrize("name", ["transformers:Swin", "timm:swin_tiny_patch4_window7_224"])
def test_grids_are_not_for_transformers(name):
    model = hp.Model(tiny.build(name), size=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(NotApplicable, match="grids are for convolutional networks"):
        hp.evaluate(model, (torch.rand(8, 3, 32, 32), None), ["ixg"], ["gridpg"])
