"""Curves compared with a slow implementation, and properties of all curve protocols."""

import numpy as np
import pytest
import torch

import heatproof as hp
import heatproof.functional as F
from heatproof.errors import HeatproofError
from heatproof.plan.spec import parse_protocols
from heatproof.protocols import EvalBatch, make_protocol
from heatproof.runs.store import Store
from heatproof.tensor.noise import Rng

CURVES = ["deletion", "insertion", "srg", "ids", "road(baseline=zero)"]


@pytest.fixture(scope="module")
def model():
    return hp.load_model("paperbirds/vgg")


@pytest.fixture(scope="module")
def batch(model):
    data = hp.load_data("paperbirds:test", model, limit=5)
    x = model.normalize(torch.stack([data.load(i).image for i in range(5)]))
    return EvalBatch(
        list(data.ids), x, model.logits(x).argmax(1), model.logits(x), Rng(3, data.ids)
    )


@pytest.fixture
def maps():
    """Return maps with ties: one with few levels, a constant one and one of coarse resolution."""
    maps = torch.randn(5, 64, 64, generator=torch.Generator().manual_seed(0))
    maps[1] = maps[1].round()
    maps[2] = 1.5
    maps[3] = torch.nn.functional.interpolate(maps[3:4, None, ::16, ::16], size=(64, 64))[0, 0]
    return maps


def one_by_one(model, batch, maps, select_removed, counts, score):
    """Compute the curves directly: sort, blank pixels and predict, one image at a time."""
    order = F.removal_order(maps, batch.ids, batch.rng.seed)
    curves = np.empty((len(maps), len(counts)))
    for i in range(len(maps)):
        pixels = sorted(range(64 * 64), key=lambda p: order[i].flatten()[p].item())
        for k, count in enumerate(counts):
            image = batch.x[i].clone().flatten(1)
            image[:, select_removed(pixels, count)] = 0
            logits = model.logits(image.reshape(1, 3, 64, 64))[0]
            curves[i, k] = {"logit": logits, "softmax": logits.softmax(0)}[score][batch.target[i]]
    return curves


def test_deletion_and_insertion_equal_the_slow_implementation(model, batch, maps):
    counts = [int(k * 4096 / 6) for k in range(7)]
    for name, select_removed in {
        "deletion": lambda p, n: p[:n],
        "insertion": lambda p, n: p[n:],
    }.items():
        scores = make_protocol(name, {"steps": 6}).score_maps(model, batch, {}, maps)
        slow = one_by_one(model, batch, maps, select_removed, counts, "logit")
        np.testing.assert_allclose(scores.curves["score"], slow, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(scores.value, np.trapezoid(slow, dx=1 / 6), rtol=1e-4, atol=1e-4)


def test_incremental_deletion_equals_the_slow_implementation(model, batch, maps):
    counts = [int(k * 4096 / 5) for k in range(5)]
    scores = make_protocol("ids", {"steps": 5}).score_maps(model, batch, {}, maps)
    slow = one_by_one(model, batch, maps, lambda p, n: p[len(p) - n :], counts, "softmax")
    np.testing.assert_allclose(scores.curves["score"], slow, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores.value, slow.mean(1), atol=1e-5)


def test_updated_maps_explain_the_image_at_that_step(model, batch):
    """Repeat each step by hand: explain the remaining image and remove the next pixels."""
    x, target, ids = batch.x[:3], batch.target[:3], batch.ids[:3]
    no_ties = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)) / 1000

    def explain(images):
        return hp.explain(model, images, target, "ixg", ids=ids) + no_ties

    fractions = [0.0, 0.25, 0.5, 0.75]
    curve = F.updated_curve(model, x, target, explain, fractions, "least", score="softmax", ids=ids)
    current, removed = x.clone(), torch.zeros(3, 64, 64, dtype=torch.bool)
    for k, fraction in enumerate(fractions):
        if k:
            maps = explain(current).masked_fill(removed, -torch.inf)
            removed = (
                maps <= maps.flatten(1).sort(1).values[:, int(4096 * fraction) - 1][:, None, None]
            )
            current = x.masked_fill(removed[:, None], 0)
        torch.testing.assert_close(
            curve[:, k],
            model.logits(current).softmax(1).gather(1, target[:, None])[:, 0],
            rtol=1e-4,
            atol=1e-5,
        )
    protocol = make_protocol("ids", {"steps": 4, "updated": True})
    part = EvalBatch(ids, x, target, batch.clean[:3], Rng(0, ids), explain=explain)
    torch.testing.assert_close(
        protocol.score_maps(model, part, {}, explain(x)).curves["score"], curve
    )


def test_every_pixel_has_one_rank_and_ties_are_ordered_per_sample(maps):
    ids = ["a", "b", "c", "d", "e"]
    order = F.removal_order(maps, ids)
    assert (order.flatten(1).sort(1).values == torch.arange(4096)).all()
    for i in range(5):
        sorted_values = maps[i].flatten()[order[i].flatten().argsort()]
        assert (sorted_values[:-1] >= sorted_values[1:]).all()
        assert torch.equal(F.removal_order(maps[i : i + 1], ids[i : i + 1])[0], order[i])
    flat = torch.zeros(2, 64, 64)
    assert not torch.equal(*F.removal_order(flat, ["a", "b"]))
    assert torch.equal(
        F.removal_order(flat, ["a", "b"])[0], F.removal_order(2 * flat + 1, ["a", "b"])[0]
    )
    assert not torch.equal(
        F.removal_order(flat, ["a", "b"], seed=1)[0], F.removal_order(flat, ["a", "b"])[0]
    )


def test_a_curve_does_not_depend_on_other_samples_of_the_batch(model, batch, maps):
    protocol = make_protocol("deletion", {"steps": 4, "baseline": "uniform"})
    with model.passes.batches_of(8):
        together = protocol.score_maps(model, batch, {}, maps).curves["score"]
        for i in range(5):
            one = slice(i, i + 1)
            alone = EvalBatch(
                batch.ids[one],
                batch.x[one],
                batch.target[one],
                batch.clean[one],
                Rng(3, batch.ids[one]),
            )
            assert torch.equal(
                protocol.score_maps(model, alone, {}, maps[one]).curves["score"][0], together[i]
            )


def test_protocols_share_passes_and_the_plan_counts_them_once(tmp_path):
    """Reuse deletion and insertion for srg, and endpoints and clean image for all methods."""
    model = hp.load_model("paperbirds/vgg")
    model.pass_counts.clear()
    hp.evaluate(
        model,
        "paperbirds:test",
        ["ixg", "saliency"],
        ["deletion(steps=4)", "insertion(steps=4)", "srg(steps=4)"],
        limit=4,
        out=tmp_path,
    )
    assert model.pass_counts["forward"] == 4 * (1 + 1 + 2 * 2 * 3)
    assert Store(tmp_path).plan().views[0].cost.forwards == model.pass_counts["forward"]
    again = hp.load_model("paperbirds/vgg")
    hp.evaluate(
        again,
        "paperbirds:test",
        ["ig(steps=5)"],
        ["ids(steps=4, updated=true)"],
        limit=4,
        out=tmp_path / "updated",
    )
    cost = Store(tmp_path / "updated").plan().views[0].cost
    assert again.pass_counts["backward"] == cost.backwards == 4 * 5 * (1 + 2)
    assert again.pass_counts["forward"] == cost.forwards == 4 * (1 + 3)


def test_curves_are_kept_for_every_sample_and_flat_maps_are_flagged(tmp_path):
    result = hp.evaluate(
        "paperbirds/vgg",
        "paperbirds:test",
        ["ixg", "constant"],
        CURVES,
        limit=6,
        keep_maps=2,
        out=tmp_path,
    )
    store = Store(tmp_path)
    tensors = store.tensors(store.plan().tasks[0].name).tensors
    for protocol in parse_protocols(CURVES):
        curves = [
            values
            for key, values in tensors.items()
            if (key.kind, key.protocol, key.method) == ("curve", protocol.canonical, "ixg")
        ]
        assert curves
        assert all(len(c) == 6 and torch.isfinite(c).all() for c in curves)
    flat = result.scores[result.scores["method"] == "constant"]
    assert (flat["status"] == "undefined").all()
    assert flat["message"].str.contains("same everywhere").all()


def test_bad_settings_and_maps_are_refused(model, batch, maps):
    for name, settings in {
        "deletion": {"steps": 0},
        "insertion": {"steps": -1},
        "ids": {"steps": 1},
        "road": {"steps": 1},
    }.items():
        with pytest.raises(HeatproofError, match="greater than or equal to"):
            make_protocol(name, settings)
    with pytest.raises(HeatproofError, match="an image of paperbirds/vgg has only 4096 pixels"):
        make_protocol("deletion", {"steps": 4097}).check(model)
    with pytest.raises(HeatproofError, match="not finite"):
        F.removal_curve(model, batch.x, batch.target, maps / 0, [0.5])
    with pytest.raises(HeatproofError, match="the size of the images"):
        F.removal_curve(model, batch.x, batch.target, maps[:, ::2], [0.5])
    with pytest.raises(HeatproofError, match="between 0 and 1"):
        F.removal_curve(model, batch.x, batch.target, maps, [1.5])
    curve = F.updated_curve(
        model, batch.x, batch.target, lambda x: torch.full_like(x[:, 0], torch.nan), [0.0, 0.5]
    )
    assert torch.isfinite(curve[:, 0]).all()
    assert curve[:, 1].isnan().all()
