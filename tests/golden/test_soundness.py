"""Case 10: soundness, completeness and order-based metrics by the paper's own code.

Imputation is without noise.
"""

import numpy as np
import pytest
import torch

import heatproof as hp
import heatproof.functional as F
from heatproof.protocols import EvalBatch, make_protocol
from heatproof.tensor.noise import Rng

MAPS = ["ixgsmooth", "random"]
FILLS = {"zero": "zero", "road": "linear(noise=0)"}
RATIOS = [k / 10 for k in range(1, 10)]


def eval_batch(model, x, target):
    ids = [str(i) for i in range(len(x))]
    return EvalBatch(ids, x, target, model.logits(x), Rng(0, ids))


@pytest.fixture(scope="module")
def case(golden):
    return golden("case10_soco")


@pytest.fixture(scope="module")
def batch(case, golden_model):
    evaluated = eval_batch(
        golden_model("resnet"),
        torch.from_numpy(case["images_f16"]).float(),
        torch.from_numpy(case["labels"]),
    )
    assert (evaluated.clean.argmax(1).numpy() == case["clean_pred"]).all()
    return evaluated


def first(batch, n):
    """Return the first n images as a batch with empty caches."""
    return EvalBatch(
        batch.ids[:n], batch.x[:n], batch.target[:n], batch.clean[:n], Rng(0, batch.ids[:n])
    )


def maps_of(case, name):
    rank, exponent = (
        torch.from_numpy(case[f"rank__{name}"]).double(),
        torch.from_numpy(case["exponent"])[:, None, None],
    )
    return (rank**exponent / 2.0 ** (10 * exponent - 8)).float()


def stored_correct(case, run):
    return (case[f"{run}__pred"] == case["labels"]).T.astype(np.float32)  # (200, R)


def assert_few_flips(ours, stored):
    assert (ours.numpy() != stored[: len(ours)]).sum(0).max() <= max(1, len(ours) // 200)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("fill", FILLS)
def test_completeness_agrees_with_the_papers_code(case, batch, golden_model, name, fill):
    part = first(batch, 200 if fill == "zero" else 60)
    protocol = make_protocol("completeness", {"baseline": FILLS[fill], "compat": "soco"})
    scores = protocol.score_maps(
        golden_model("resnet"), part, {}, maps_of(case, name)[: len(part.x)]
    )
    clean = (part.clean.argmax(1) == part.target).float()[:, None]
    assert_few_flips(
        clean - scores.curves["drop"], stored_correct(case, f"{name}__completeness_{fill}")
    )
    np.testing.assert_allclose(scores.value, scores.curves["drop"].mean(1), rtol=1e-6)


SOUND = [
    ("ixgsmooth", "zero", 0.01, 40),
    ("random", "zero", 0.01, 60),
    ("ixgsmooth", "road", 0.01, 8),
    ("random", "road", 0.06, 40),
]


@pytest.mark.parametrize(("name", "fill", "step", "n_images"), SOUND)
def test_soundness_agrees_with_the_papers_code(
    case, batch, golden_model, name, fill, step, n_images
):
    """Compare predictions on the first images, and decisions from all stored ones on our masses."""
    run = f"{name}__soundness_{fill}"
    protocol = make_protocol("soundness", {"baseline": FILLS[fill], "compat": "soco", "step": step})
    np.testing.assert_allclose(protocol.missing, case[f"{run}__mask_ratios"], atol=1e-9)
    scores = protocol.score_maps(
        golden_model("resnet"), first(batch, n_images), {}, maps_of(case, name)[:n_images]
    )
    assert_few_flips(scores.curves["score"], stored_correct(case, run))
    np.testing.assert_allclose(
        stored_correct(case, run).mean(0), case[f"{run}__cls_results"], atol=1e-6
    )
    if f"{run}__q" in case:
        q = F.soundness(
            torch.from_numpy(case[f"{run}__cls_results"]), scores.curves["mass"], compat="soco"
        )
        np.testing.assert_allclose(q, case[f"{run}__q"].T[:n_images], atol=1e-6)


def test_soundness_computed_from_the_images_agrees(case, batch, golden_model):
    protocol = make_protocol("soundness", {"baseline": "zero", "compat": "soco", "level": 0.8})
    scores = protocol.score_maps(
        golden_model("resnet"), first(batch, 200), {}, maps_of(case, "ixgsmooth")
    )
    np.testing.assert_allclose(
        protocol.quality(**scores.curves), case["ixgsmooth__soundness_zero__q"].T, atol=1e-6
    )
    at = np.argmax(case["ixgsmooth__soundness_zero__cls_results"] >= 0.8)
    np.testing.assert_allclose(
        protocol.aggregate(scores.curves).value, case["ixgsmooth__soundness_zero__q"][at], atol=1e-6
    )


def test_newly_included_mass_agrees(case, batch, golden_model):
    """The paper's code divides maps by 255, ours by the maximum."""
    maps = maps_of(case, "random")[:4]
    scores = make_protocol("soundness", {"baseline": "zero", "last": 0.03}).score_maps(
        golden_model("resnet"), first(batch, 4), {}, maps
    )
    stored = case["random__soundness_zero__new_added"].T[:4]
    np.testing.assert_allclose(
        scores.curves["mass"] * maps.flatten(1).amax(1)[:, None] / 255, stored, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", MAPS)
def test_soundness_by_the_score_of_each_sample_agrees(case, batch, golden_model, name):
    """Each sample is thresholded separately: one in 200 may be on the other side of eps.

    The stored run has no gate.
    """
    run = f"{name}__soundness_zero_predscore"
    settings = {"baseline": "zero", "compat": "soco", "score": "logit", "step": 0.04, "gate": -100}
    protocol = make_protocol("soundness", settings)
    scores = protocol.score_maps(golden_model("resnet"), first(batch, 200), {}, maps_of(case, name))
    np.testing.assert_allclose(
        scores.curves["score"].mean(0), case[f"{run}__cls_results"], rtol=1e-4, atol=1e-5
    )
    off = np.abs(protocol.quality(**scores.curves).numpy() - case[f"{run}__q"].T).max(1)
    assert (off > 1e-6).sum() <= 1


ORDERED = {
    "road_morf": ("most", "linear(noise=0)"),
    "road_lerf": ("least", "linear(noise=0)"),
    "deletion_zero_morf": ("most", "zero"),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("run", ORDERED)
def test_order_based_metrics_agree(case, batch, golden_model, name, run):
    order, baseline = ORDERED[run]
    part = first(batch, 50)
    maps = maps_of(case, name)[:50]
    correct = F.removal_curve(
        golden_model("resnet"), part.x, part.target, maps, RATIOS, order, baseline, "correct"
    )
    assert_few_flips(correct, stored_correct(case, f"{name}__{run}"))


@pytest.mark.parametrize("name", ["gt", "introduce"])
def test_soundness_and_completeness_of_a_linear_model_agree(golden, sign_of_sum, name):
    case = golden("case10_linear")
    model = hp.Model(sign_of_sum, size=20, mean=[0.0], std=[1.0])
    batch = eval_batch(
        model, torch.from_numpy(case["x"]).reshape(-1, 1, 10, 20), torch.from_numpy(case["labels"])
    )
    maps = torch.from_numpy(case[f"map__{name}"]).reshape(-1, 10, 20)
    complete = make_protocol("completeness", {"baseline": "zero", "compat": "soco"}).score_maps(
        model, batch, {}, maps
    )
    assert_few_flips(
        1 - complete.curves["drop"], (case[f"{name}__completeness_zero__pred"] == case["labels"]).T
    )
    np.testing.assert_allclose(
        complete.curves["drop"].mean(0),
        case[f"{name}__completeness_zero__acc_diffs"],
        atol=1 / 500 + 1e-6,
    )
    protocol = make_protocol("soundness", {"baseline": "zero", "compat": "soco"})
    scores = protocol.score_maps(model, batch, {}, maps)
    q = protocol.quality(**scores.curves)
    np.testing.assert_allclose(
        scores.curves["score"].mean(0), case[f"{name}__soundness_zero__cls_results"], atol=1e-6
    )
    # Some are a rounding error below values such as 0.58, so one pixel fewer is removed.
    ratios = case[f"{name}__soundness_zero__mask_ratios"]
    counted = np.array([int(200 * r) == int(200 * r + 1e-6) for r in ratios])
    same = counted & np.roll(counted, 1)
    assert same.sum() > 80
    np.testing.assert_allclose(
        q[:50, same], case[f"{name}__soundness_zero__q_first50"].T[:, same], atol=1e-5
    )
    np.testing.assert_allclose(
        q.mean(0)[same], case[f"{name}__soundness_zero__attr_ratios"][same], atol=1e-5
    )
