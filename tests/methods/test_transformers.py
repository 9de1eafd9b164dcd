"""Attention-based methods against closed forms and slower computations."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

import heatproof as hp
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods import Explainer, Expression
from heatproof.methods.transformers import (
    RULES,
    Relevance,
    attention_evidence,
    class_row,
    mean_attention,
)
from heatproof.models.arithmetic import Product, Sum
from heatproof.models.batch import ModelBatch
from heatproof.models.guards import HOOKS
from heatproof.models.hooks import ModuleCall, record_calls
from heatproof.models.vit import Block, vit
from heatproof.tensor.noise import Rng

METHODS = ["rollout", "rollout(start=0)", "chefer", "chefer(start=0)", "vit-gradcam", "legrad"]
METHODS += ["grad-rollout", "grad-rollout(start=1)", "legrad(blocks=3)"]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def small():
    """A ViT of 3 × 3 patches in double precision, with weights large enough to vary attention."""
    torch.manual_seed(1)
    net = vit(5, size=12, patch=4, dim=24, depth=3, heads=3).double().eval()
    for weight in net.parameters():
        nn.init.normal_(weight, std=0.5)
    return (
        hp.Model(net, size=12, name="small"),
        torch.randn(4, 3, 12, 12).double(),
        torch.tensor([0, 4, 2, 2]),
    )


def native(model, x, target, text):
    return Explainer(ModelBatch(model, x, target), Rng(0, [str(i) for i in range(len(x))])).native(
        Expression.parse(text)
    )


def hooks(net):
    return [hook for m in net.modules() for kind in HOOKS for hook in getattr(m, kind).values()]


@pytest.mark.parametrize("method", METHODS)
def test_a_map_has_one_value_per_patch(small, method):
    """It is repeated over the pixels of the patch, or resized bilinearly and last."""
    model, x, target = small
    call = method.rstrip(")") + (", " if "(" in method else "(")
    patches = native(model, x, target, f"{call}resize=bilinear)")
    assert patches.shape == (4, 3, 3)
    assert patches.min() >= 0
    assert (patches.flatten(1).std(1) > 0).any()
    repeated = patches.repeat_interleave(4, 1).repeat_interleave(4, 2)
    assert torch.equal(hp.explain(model, x, target, method), repeated)
    smooth = hp.explain(model, x, target, f"{call}resize=bilinear)")
    assert smooth.shape == (4, 12, 12) and not torch.equal(smooth, repeated)


@pytest.mark.parametrize("method", METHODS)
def test_a_map_does_not_depend_on_the_batch(small, method):
    model, x, target = small
    whole = native(model, x, target, method)
    for size in (1, 3):
        with model.passes.batches_of(size):
            maps = native(model, x[[3, 0]], target[[3, 0]], method)
        torch.testing.assert_close(maps, whole[[3, 0]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["chefer", "vit-gradcam"])
def test_maps_depend_on_the_class_except_for_rollout(small, method):
    model, x, target = small
    assert not torch.allclose(
        native(model, x, target, method), native(model, x, (target + 1) % 5, method)
    )
    assert torch.equal(
        native(model, x, target, "rollout"), native(model, x, (target + 1) % 5, "rollout")
    )


def test_rows_of_rollout_sum_to_one(small):
    attention = [torch.rand(2, 7, 7).double().softmax(-1) for _ in range(3)]
    torch.testing.assert_close(
        class_row([mean_attention(a) for a in attention]).sum(1), torch.ones(2).double()
    )


def test_the_class_row_is_the_first_row_of_the_product():
    first, second, third = torch.rand(3, 2, 7, 7).double()
    torch.testing.assert_close(class_row([first, second, third]), (third @ second @ first)[:, 0])


def test_uniform_attention_gives_flat_maps(small):
    """Rollout mixes (1/n + I)/2, whose product over k blocks leaves (1 − 2⁻ᵏ)/n for every patch."""
    _, x, target = small
    net = vit(5, size=12, patch=4, dim=12, depth=3, heads=3).double().eval()
    for number in (1, 2, 3):
        nn.init.zeros_(net.get_submodule(f"block{number}.attn.qkv").weight)
    even = hp.Model(net, size=12)
    for start, blocks in ((0, 3), (1, 2), (2, 1)):
        expected = (1 - 2.0**-blocks) / 10
        torch.testing.assert_close(
            native(even, x, target, f"rollout(start={start})"), torch.full((4, 12, 12), expected)
        )
    assert native(even, x, target, "vit-gradcam").abs().max() < 1e-6


def test_relevance_is_conserved(small):
    """The relevance at the input of every block sums to the one that the target was given.

    This needs a positive contribution to every output, which is nearly certain with 24 inputs.
    """
    model, x, target = small
    stages = list(model.module.children())[1:]
    with (
        torch.no_grad(),
        record_calls(
            (m for s in stages for m in s.modules() if type(m) in RULES), keep=lambda call: call
        ) as calls,
    ):
        logits = model(x)
        walk, relevance = Relevance(calls), one_hot(target, logits.shape[1]).double()
        for stage in reversed(stages):
            relevance = walk.back(stage, relevance)
            torch.testing.assert_close(
                relevance.flatten(1).sum(1), torch.ones(4).double(), rtol=1e-6, atol=1e-6
            )
    assert set(walk.at) == {m for m in model.module.modules() if isinstance(m, nn.Softmax)}


def test_the_linear_rule_distributes_by_positive_contributions():
    layer, x = nn.Linear(24, 3).double(), torch.randn(2, 24).double()
    given = torch.rand(2, 3).double()
    contributions = (x[:, None] * layer.weight).clamp(min=0)  # x⁺W⁺ + x⁻W⁻, term by term
    slow = torch.einsum("boi,bo->bi", contributions / contributions.sum(2, keepdim=True), given)
    torch.testing.assert_close(
        RULES[nn.Linear](Relevance({layer: ModuleCall((x,), layer(x))}), layer, given), slow
    )


def test_the_product_rule_distributes_by_terms():
    product, a, b = Product(), torch.randn(2, 3, 4).double(), torch.randn(2, 4, 5).double()
    given, terms = torch.rand(2, 3, 5).double(), a[..., None] * b[:, None]  # (2, 3, 4, 5)
    slow = terms / terms.sum(2, keepdim=True) * given[:, :, None] / 2
    of_a, of_b = RULES[Product](Relevance({product: ModuleCall((a, b), a @ b)}), product, given)
    torch.testing.assert_close(of_a, slow.sum(3))
    torch.testing.assert_close(of_b, slow.sum(1))


def test_the_sum_rule_distributes_by_absolute_totals():
    """The result of a sample does not depend on the others in the batch."""
    add, a, b = Sum(), torch.randn(3, 4).double(), torch.randn(3, 4).double()
    given = torch.rand(3, 4).double()
    relevances = RULES[Sum](Relevance({add: ModuleCall((a, b), a + b)}), add, given)
    for i in range(3):
        part_a, part_b = a[i] * given[i] / (a[i] + b[i]), b[i] * given[i] / (a[i] + b[i])
        total = part_a.sum().abs() + part_b.sum().abs()
        for part, ours in zip((part_a, part_b), relevances, strict=True):
            torch.testing.assert_close(ours[i], part * part.sum().sign() / total * given[i].sum())


def test_exact_zeros_get_no_relevance():
    layer = nn.Linear(2, 2)
    relevance = RULES[nn.Linear](
        Relevance({layer: ModuleCall((torch.zeros(1, 2),), layer.bias[None])}),
        layer,
        torch.ones(1, 2),
    )
    assert torch.equal(relevance, torch.zeros(1, 2))


def test_the_relevance_of_the_last_attention_is_half_of_its_input(small):
    """The other half of the relevance of the mixing goes to the values."""
    model, x, target = small
    _, relevances = attention_evidence(model, x, target, start=2)
    assert len(relevances) == 1
    given = Relevance({})
    with (
        torch.no_grad(),
        record_calls(
            (m for m in model.module[3:].modules() if type(m) in RULES), keep=lambda call: call
        ) as given.calls,
    ):
        model(x)
    block: Block = model.module[3]
    tail = given.back_through(list(model.module[4:]), one_hot(target, 5).double())
    around, through = given.back(block.add2, tail)
    _, mixed = given.back(
        block.add1, around + given.back_through([block.norm2, block.mlp], through)
    )
    torch.testing.assert_close(
        relevances[0].flatten(1).sum(1), mixed.flatten(1).sum(1) / 2, rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_network_is_left_unchanged(small, method, monkeypatch):
    model, x, target = small
    model.module.train()
    native(model, x, target, method)
    assert not hooks(model.module)
    assert all(m.training for m in model.module.modules())
    assert all(p.grad is None for p in model.module.parameters())
    monkeypatch.setattr(model.module.get_submodule("head"), "forward", lambda x: math.sqrt(-1))
    with pytest.raises(ValueError, match=r"math domain|nonnegative"):
        native(model, x, target, method)
    assert not hooks(model.module)
    model.module.eval()


@pytest.mark.parametrize("method", METHODS)
def test_frozen_networks_are_explained_and_passes_are_counted(small, method):
    model, x, target = small
    whole = native(model, x, target, method)
    model.module.requires_grad_(False)
    model.pass_counts.clear()
    with torch.no_grad():
        assert torch.equal(native(model, x, target, method), whole)
    model.module.requires_grad_(True)
    forwards, backwards = Expression.parse(method).cost
    assert (model.pass_counts["forward"], model.pass_counts["backward"]) == (
        4 * forwards,
        4 * backwards,
    )


@pytest.mark.parametrize("method", ["rollout", "chefer", "vit-gradcam"])
def test_methods_for_transformers_suggest_an_alternative(method):
    with pytest.raises(
        NotApplicable,
        match=f"{method} does not apply: paperbirds/resnet is not a plain vision transformer.*"
        "ixg.*gradcam",
    ):
        hp.explain(hp.load_model("paperbirds/resnet"), torch.zeros(1, 3, 64, 64), 0, method)


def test_unknown_blocks_and_other_layers_are_refused(small):
    with pytest.raises(HeatproofError, match="start=3: small has 3 blocks, counted from 0"):
        hp.explain(*small, "rollout(start=3)")
    with pytest.raises(HeatproofError, match="greater than or equal to 0"):
        hp.explain(*small, "chefer(start=-1)")
    with pytest.raises(NotApplicable, match="at the input"):
        native(*small, "chefer@tokens")


def test_the_embedded_transformer_is_explained():
    model = hp.load_model("paperbirds/vit")
    result = hp.evaluate(
        model, "paperbirds:test", ["rollout", "chefer", "vit-gradcam"], ["sds"], limit=4
    )
    assert set(result.scores["status"]) == {"ok"}
