"""AttnLRP, LeGrad, gradient-weighted rollout and CAMs of ViTs against slow computations."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heatproof as hp
from heatproof.errors import NotApplicable
from heatproof.methods.relevance import Affine, gamma_rule
from heatproof.methods.transformer_relevance import gamma_multiplier
from heatproof.models.vision import import_timm
from heatproof.models.vit import vit

PATCHES = (3, 3)


@pytest.fixture
def net():
    torch.manual_seed(1)
    net = vit(5, size=12, patch=4, dim=24, depth=3, heads=3).double().eval()
    for weight in net.parameters():
        nn.init.normal_(weight, std=0.3)
    return net


@pytest.fixture
def model(net):
    return hp.Model(net, size=12, mean=[0.5] * 3, std=[0.5] * 3)


@pytest.fixture
def x():
    return torch.randn(2, 3, 12, 12, dtype=torch.double, generator=torch.Generator().manual_seed(0))


TARGET = torch.tensor([1, 3])


def attention_of(block, h):
    """Return attention, values and the block's output, written out."""
    n = F.layer_norm(h, h.shape[-1:], block.norm1.weight, block.norm1.bias, block.norm1.eps)
    q, k, v = (n @ block.attn.qkv.weight.T + block.attn.qkv.bias).chunk(3, -1)
    q, k, v = (t.unflatten(-1, (3, 8)).transpose(1, 2) for t in (q, k, v))
    attention = (q @ k.mT / math.sqrt(8)).softmax(-1)
    mixed = (attention @ v).transpose(1, 2).flatten(2)
    h = h + mixed @ block.attn.proj.weight.T + block.attn.proj.bias
    m = F.layer_norm(h, h.shape[-1:], block.norm2.weight, block.norm2.bias, block.norm2.eps)
    hidden = F.gelu(m @ block.mlp.fc1.weight.T + block.mlp.fc1.bias)
    return attention, h + hidden @ block.mlp.fc2.weight.T + block.mlp.fc2.bias


def blocks_of(net):
    return [stage for name, stage in net.named_children() if name.startswith("block")]


# AttnLRP, by the relevance of every value


def linear_back(x, weight, relevance, z):
    return x * ((relevance / z) @ weight)


def norm_back(norm, x, relevance):
    """The deviation is a constant, so each output is linear in its input."""
    centred = x - x.mean(-1, keepdim=True)
    deviation = (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    z = centred / deviation * norm.weight + norm.bias
    share = relevance / z * norm.weight / deviation
    return x * (share - share.mean(-1, keepdim=True))


def product_back(a, b, relevance):
    """Each term a_jk b_kp of an output takes its part, half of it for either factor."""
    terms = a[..., :, :, None] * b[..., None, :, :]  # (…, j, k, p)
    part = terms * (relevance / (a @ b))[..., :, None, :] / 2
    return part.sum(-1), part.sum(-3)


def slow_attnlrp(net, x, target):
    """Propagate relevance, and not multipliers, with the formulas of the paper and ε = 0."""
    h = net.tokens(x)
    seen = []
    for block in blocks_of(net):
        n1 = block.norm1(h)
        qkv = block.attn.qkv(n1)
        q, k, v = (t.unflatten(-1, (3, 8)).transpose(1, 2) for t in qkv.chunk(3, -1))
        scores = q @ k.mT / math.sqrt(8)
        attention = scores.softmax(-1)
        mixed = attention @ v
        flat = mixed.transpose(1, 2).flatten(2)
        out = block.attn.proj(flat)
        h1 = h + out
        n2 = block.norm2(h1)
        f1 = block.mlp.fc1(n2)
        g = F.gelu(f1)
        f2 = block.mlp.fc2(g)
        of_attention = (qkv, q, k, v, scores, attention, flat, out)
        seen.append((block, h, n1, of_attention, h1, n2, f1, g, f2))
        h = h1 + f2
    normed = net.norm(h)
    logits = net.head(normed[:, 0])
    relevance = F.one_hot(target, 5) * logits
    first = linear_back(normed[:, 0], net.head.weight, relevance, logits)
    relevance = torch.zeros_like(normed)
    relevance[:, 0] = first
    relevance = norm_back(net.norm, h, relevance)
    for block, h, n1, values, h1, n2, f1, g, f2 in seen[::-1]:
        qkv, q, k, v, scores, attention, flat, out = values
        ratio = relevance / (h1 + f2)
        through = linear_back(g, block.mlp.fc2.weight, ratio * f2, f2)  # GELU passes it on
        through = linear_back(n2, block.mlp.fc1.weight, through, f1)
        relevance = ratio * h1 + norm_back(block.norm2, h1, through)
        ratio = relevance / (h + out)
        through = linear_back(flat, block.attn.proj.weight, ratio * out, out)
        of_mixed = through.unflatten(-1, (3, 8)).transpose(1, 2)
        of_attention, of_v = product_back(attention, v, of_mixed)
        of_scores = scores * (of_attention - attention * of_attention.sum(-1, keepdim=True))
        of_q, of_kt = product_back(q, k.mT, of_scores)
        parts = [t.transpose(1, 2).flatten(2) for t in (of_q, of_kt.mT, of_v)]
        through = linear_back(n1, block.attn.qkv.weight, torch.cat(parts, -1), qkv)
        relevance = ratio * h + norm_back(block.norm1, h, through)
    z = net.tokens(x)[:, 1:]
    share = (relevance[:, 1:] / z).mT.unflatten(-1, PATCHES)
    back = F.conv_transpose2d(share, net.tokens.proj.weight, stride=4)
    return (x * back).sum(1)


def test_multipliers_give_the_relevance_of_the_paper(net, model, x, deviation):
    method = "attnlrp(gamma=0, conv_gamma=0)"
    found = hp.explain(model, x, TARGET, method)
    with torch.no_grad():
        expected = slow_attnlrp(net, x, TARGET).float()
    deviation(method, "the paper's formulas, value by value", found, expected)
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("gamma", [0.05, 0.25, 3.0])
@pytest.mark.parametrize("convolves", [False, True])
def test_two_products_give_the_gamma_rule(gamma, convolves):
    generator = torch.Generator().manual_seed(0)
    shape, weight = ((4, 6, 5, 5), (7, 6, 3, 3)) if convolves else ((4, 6), (7, 6))
    x, w = (torch.randn(s, generator=generator, dtype=torch.double) for s in (shape, weight))
    bias = torch.randn(7, generator=generator, dtype=torch.double)
    options = {"stride": 1, "padding": 1, "dilation": 1, "groups": 1} if convolves else None
    layer = Affine(w, bias, options)
    z = layer(x, w, bias)
    m = torch.randn(z.shape, generator=generator, dtype=torch.double)
    found = x * gamma_multiplier(layer, x, z, m, gamma)
    expected = gamma_rule(gamma)(layer, x, z, z * m)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gamma", [0.0, 0.05])
def test_without_biases_and_with_constant_attention_relevance_is_conserved(net, model, x, gamma):
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "bias" in name or "cls_token" in name or "pos_embed" in name:
                parameter.zero_()
    maps = hp.explain(
        model, x, TARGET, f"attnlrp(gamma={gamma}, conv_gamma={gamma}, softmax=constant)"
    )
    logits = model.logits(x).gather(1, TARGET[:, None])[:, 0]
    torch.testing.assert_close(maps.sum((1, 2)).double(), logits, rtol=1e-4, atol=1e-5)


def test_it_costs_one_backward_pass(model, x):
    before = model.pass_counts.copy()
    hp.explain(model, x, TARGET, "attnlrp")
    assert dict(model.pass_counts - before) == {"backward": 2}


def test_vits_of_libraries_have_rules_however_they_write_attention(x):
    timm = import_timm()
    torch.manual_seed(0)
    options = {"img_size": 12, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3}
    theirs = timm.models.VisionTransformer(num_classes=5, **options).double().eval()
    for weight in theirs.parameters():
        nn.init.normal_(weight, std=0.2)
    ours = hp.Model(theirs, size=12)
    plain = hp.Model(theirs, size=12, layers=["blocks.0"])  # as it is, with fused attention
    assert ours.module is not theirs and plain.module is theirs
    for method in ("attnlrp", "attnlrp(gamma=0)", "attnlrp(softmax=constant)"):
        maps = [hp.explain(m, x, TARGET, method) for m in (ours, plain)]
        torch.testing.assert_close(maps[0], maps[1], rtol=1e-4, atol=1e-6)
    registers = timm.models.VisionTransformer(num_classes=5, reg_tokens=4, **options).eval()
    assert hp.explain(hp.Model(registers, size=12), x, TARGET, "attnlrp").isfinite().all()


class Cosines(nn.Module):
    """Scores of an embedding of length 1, as networks such as CLIP have them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3 * 4 * 4, 6)
        self.head = nn.Linear(6, 5, bias=False)

    def forward(self, x):
        return self.head(F.normalize(self.embed(x.flatten(1)), dim=-1))


def test_the_length_of_an_embedding_is_a_constant():
    torch.manual_seed(0)
    net = Cosines().eval()
    x = torch.randn(2, 3, 4, 4)
    maps = hp.explain(hp.Model(net, size=4), x, TARGET, "attnlrp(gamma=0)")
    with torch.no_grad():
        lengths = net.embed(x.flatten(1)).norm(dim=1, keepdim=True)
        multiplier = net.head.weight[TARGET] / lengths @ net.embed.weight
    torch.testing.assert_close(maps, (x * multiplier.view_as(x)).sum(1))


# LeGrad and gradient-weighted rollout


def test_legrad_is_the_gradient_of_each_blocks_own_logit(net, model, x, deviation):
    total = torch.zeros(2, 9, dtype=torch.double)
    for last in (1, 2):
        h = net.tokens(x)
        for block in blocks_of(net)[: last + 1]:
            attention, h = attention_of(block, h)
        score = net.head(net.norm(h.mean(1))).gather(1, TARGET[:, None]).sum()
        (gradient,) = torch.autograd.grad(score, attention)
        total += gradient.clamp(min=0).mean(1).mean(1)[:, 1:]
    total = total.reshape(2, *PATCHES)
    low, high = total.amin((1, 2), True), total.amax((1, 2), True)
    found = hp.explain(model, x, TARGET, "legrad")[:, ::4, ::4]
    expected = (total - low) / (high - low)
    deviation("legrad", "a block at a time, written out", found, expected)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_gradient_weighted_rollout_is_a_product_of_positive_parts(net, model, x, deviation):
    h = net.tokens(x)
    seen = []
    for block in blocks_of(net):
        attention, h = attention_of(block, h)
        seen.append(attention)
    score = net.head(net.norm(h)[:, 0]).gather(1, TARGET[:, None]).sum()
    rollout = torch.eye(10, dtype=torch.double).expand(2, -1, -1)
    for attention, gradient in zip(seen, torch.autograd.grad(score, seen), strict=True):
        rollout = rollout + (attention * gradient).clamp(min=0).mean(1) @ rollout
    expected = rollout[:, 0, 1:].reshape(2, *PATCHES)
    found = hp.explain(model, x, TARGET, "grad-rollout")[:, ::4, ::4]
    deviation("grad-rollout", "attention written out", found, expected)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


# CAMs at the first norm of the last block


def test_cams_of_a_plain_vit_explain_the_first_norm_of_its_last_block(net, model, x):
    assert model.landmarks["cam"] == "block3.norm1"
    kept = []
    handle = net.block3.norm1.register_forward_hook(lambda m, i, out: kept.append(out))
    score = net(x).gather(1, TARGET[:, None]).sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(score, kept[0])
    features, g = (t.detach()[:, 1:].mT.unflatten(-1, PATCHES) for t in (kept[0], gradient))
    expected = (features * g.mean((2, 3), True)).sum(1).relu()
    expected = F.interpolate(expected[:, None], (12, 12), mode="bilinear")[:, 0]
    found = hp.explain(model, x, TARGET, "gradcam")
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(NotApplicable, match="name a block: ablationcam@block2"):
        hp.explain(model, x, TARGET, "ablationcam")


def test_the_layer_in_the_last_block_changes_no_logit(model, x):
    body = model.body
    whole = model.logits(x)
    for layer in model.layers:
        assert torch.equal(model.tail(layer).logits(model.activation(x, layer)), whole), layer
    watched, seen = body.run(x, 0, watch=range(len(body.layers)))
    assert torch.equal(watched, body.run(x, 0)[0])
    assert sorted(seen) == list(range(len(body.layers)))
    for layer, name in enumerate(model.layers):
        h = seen[layer]
        for _, run in body.steps(layer):
            h = run(h)
        assert torch.equal(h, watched), name
        assert torch.equal(body.run(x, 0, layer)[0], seen[layer])
