"""Single deletion: properties of its construction, and comparison with slow implementations."""

import numpy as np
import pytest
import scipy.stats
import torch

import heatproof as hp
import heatproof.functional as F
from heatproof.errors import HeatproofError
from heatproof.protocols import PROTOCOLS, EvalBatch, make_protocol
from heatproof.tensor.noise import Rng


@pytest.mark.parametrize("patches", [4, 16, 64])
@pytest.mark.parametrize("baseline", ["zero", "blur", "uniform(-1, 1)"])
def test_an_oracle_map_scores_one_and_its_negative_minus_one(
    golden_model, images, patches, baseline
):
    model, (x, target) = golden_model("resnet"), images
    drops = F.patch_drops(model, x, target, patches, baseline)
    side = int(patches**0.5)
    oracle = (
        drops.reshape(-1, side, side)
        .repeat_interleave(32 // side, 1)
        .repeat_interleave(32 // side, 2)
    )
    rho = F.spearman(F.patch_sums(oracle, patches), drops.double())
    torch.testing.assert_close(rho, torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(
        F.spearman(F.patch_sums(-oracle, patches), drops.double()),
        -torch.ones(8, dtype=torch.float64),
    )


def test_a_random_map_scores_zero(golden_model, images):
    model, (x, target) = golden_model("vgg"), images
    drops = F.patch_drops(model, x, target, 16).double().repeat(50, 1)
    maps = torch.randn(400, 32, 32, generator=torch.Generator().manual_seed(0))
    assert abs(F.spearman(F.patch_sums(maps, 16), drops).mean()) < 3 / np.sqrt(400 * 15)


def test_drops_and_correlation_equal_a_slow_implementation(golden_model, images):
    model, (x, target) = golden_model("resnet"), images
    drops = F.patch_drops(model, x, target, 16, "zero", "softmax")
    maps = hp.explain(model, x, target, "ixg")
    rho = F.spearman(F.patch_sums(maps, 16), drops.double())
    for i in range(len(x)):
        slow, sums = [], []
        for row in range(4):
            for column in range(4):
                patch = slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8)
                without = x[i].clone()
                without[:, patch[0], patch[1]] = 0
                with torch.no_grad():
                    both = model.module(torch.stack([x[i], without])).softmax(1)[:, target[i]]
                slow.append((both[0] - both[1]).item())
                sums.append(maps[i][patch].double().sum().item())
        np.testing.assert_allclose(drops[i], slow, atol=1e-5)
        assert rho[i].item() == pytest.approx(scipy.stats.spearmanr(sums, slow).statistic, abs=0.02)


def test_predictions_without_each_patch_equal_a_slow_implementation(golden_model, images):
    model, (x, target) = golden_model("vgg"), images
    rng = Rng(0, [str(i) for i in range(len(x))], x.device)
    shared = make_protocol("sds", {"patches": 4}).compute_shared(
        model, EvalBatch(rng.ids, x, target, model.logits(x), rng)
    )
    for patch, (row, column) in enumerate([(0, 0), (0, 16), (16, 0), (16, 16)]):
        without = x.clone()
        without[:, :, row : row + 16, column : column + 16] = 0
        logits = model.module(without).detach()
        assert torch.equal(shared["correct"][:, patch].bool(), logits.argmax(1) == target)
        cross_entropy = torch.nn.functional.cross_entropy(logits, target, reduction="none")
        torch.testing.assert_close(
            shared["log_prob"][:, patch], -cross_entropy, rtol=1e-4, atol=1e-4
        )


def test_in_domain_single_deletion_is_single_deletion_with_fine_tuned_weights():
    means = {}

    def knows_the_drops(model, x, target, *, rng):
        drops = F.patch_drops(model, x, target, 16, ids=rng.ids)
        return drops.reshape(-1, 4, 4).repeat_interleave(16, 1).repeat_interleave(16, 2)

    def says_the_opposite(model, x, target, *, rng):
        return -knows_the_drops(model, x, target, rng=rng)

    methods = ["ixg", knows_the_drops, says_the_opposite, "random"]
    base = hp.evaluate(
        "paperbirds/vgg", "paperbirds:test", methods, ["sds", "idsds"], limit=48
    ).scores
    fine_tuned = hp.evaluate(
        hp.load_model("paperbirds/vgg", fine_tuned="16/zero"),
        "paperbirds:test",
        methods,
        ["sds", "idsds"],
        limit=48,
    ).scores
    for protocol in ("sds", "idsds"):  # a fine-tuned model is evaluated as it is
        expected = fine_tuned[fine_tuned["protocol"] == protocol]["value"].to_numpy()
        np.testing.assert_array_equal(
            base[base["protocol"] == "idsds"]["value"].to_numpy(), expected
        )
    assert not np.allclose(
        base[base["protocol"] == "sds"]["value"], base[base["protocol"] == "idsds"]["value"]
    )
    assert set(base["model"]) == {"paperbirds/vgg"}
    for (_, method), rows in base.groupby(["protocol", "method"]):
        means.setdefault(method, []).append(rows["value"].mean())
    assert means["knows_the_drops"] == pytest.approx([1, 1])
    assert means["says_the_opposite"] == pytest.approx([-1, -1])
    assert max(map(abs, means["random"])) < 3 / np.sqrt(48 * 15)


def test_noise_is_drawn_per_sample_independently_of_the_batch(golden_model, images):
    model, (x, target) = golden_model("vgg"), images
    ids = list("abcdefgh")
    whole = F.patch_drops(model, x, target, 16, "uniform", ids=ids, seed=3)
    part = F.patch_drops(model, x[[5, 1]], target[[5, 1]], 16, "uniform", ids=["f", "b"], seed=3)
    torch.testing.assert_close(part, whole[[5, 1]], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(
        whole, F.patch_drops(model, x, target, 16, "uniform", ids=ids, seed=4)
    )


def test_a_patch_that_the_model_ignores_has_no_drop():
    def sees_the_first_quarter(x):
        return x[:, :, :4, :4].sum((1, 2, 3))[:, None] * torch.tensor([[1.0, 2.0]])

    drops = F.patch_drops(sees_the_first_quarter, torch.ones(2, 3, 8, 8), torch.tensor([0, 1]), 4)
    assert drops.tolist() == [[48, 0, 0, 0], [96, 0, 0, 0]]


def test_undefined_scores_have_a_reason(golden_model, images):
    from heatproof.protocols import EvalBatch
    from heatproof.tensor.noise import Rng

    model, (x, target) = golden_model("resnet"), images
    protocol = make_protocol("sds", {})
    batch = EvalBatch(list("abcdefgh"), x, target, model.logits(x), Rng(0, "abcdefgh"))
    maps = torch.randn(8, 32, 32)
    maps[2] = 0
    shared = dict(protocol.compute_shared(model, batch))
    shared["drops"][5] = 1.0
    value, reasons, _ = protocol.score_maps(model, batch, shared, maps)
    assert value.isnan().nonzero().flatten().tolist() == [2, 5]
    assert reasons[2] == "the map is the same in every patch"
    assert reasons[5] == "every patch drops the score by the same amount"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patches": 5}, "patches=5 is not the square of a number above 1; the nearest: 4 or 9"),
        ({"patch": 4}, "protocol sds has no setting 'patch'; it has: baseline, patches, score"),
        ({"baseline": "blurr"}, "did you mean blur"),
        ({"score": "loss"}, "found 'loss'; input should be 'logit'|Input should be 'logit'"),
    ],
)
def test_the_error_for_a_bad_setting_says_what_is_allowed(settings, message):
    with pytest.raises(HeatproofError, match=message):
        make_protocol("sds", settings)


def test_every_protocol_states_its_facts():
    for entry in PROTOCOLS:
        protocol = entry.cls
        assert protocol.citation
        assert protocol.summary
        assert (
            protocol.range is None
            or protocol.random_score is None
            or protocol.range[0] <= protocol.random_score <= protocol.range[1]
        )
        assert protocol.target in ("label", "prediction")
        assert f"{protocol.id}@{protocol.version}(" in protocol().canonical
