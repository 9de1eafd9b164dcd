"""Cases 2, 10 (ROAD) and 12: curves of incremental deletion, ROAD, deletion and insertion."""

import numpy as np
import pytest
import torch

import heatproof as hp
import heatproof.functional as F
from heatproof.protocols import EvalBatch, make_protocol
from heatproof.tensor.noise import Rng

ORDERS = {"ascending": "least", "descending": "most"}
BASELINES = {
    "zero": "zero",
    "mean": "image-mean",
    "median": "image-median",
    "local_mean": "local-mean(compat=xplique)",
}


def eval_batch(model, x, target):
    ids = [str(i) for i in range(len(x))]
    return EvalBatch(ids, x, target, model.logits(x), Rng(0, ids))


def assert_curves_close(ours, stored):
    np.testing.assert_allclose(ours, stored, rtol=1e-4, atol=1e-5 * max(1, np.abs(stored).max()))


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("label", ["ixg_resnet", "random_normal", "smooth"])
def test_incremental_deletion_agrees_with_the_stored_curves(
    golden, golden_model, name, order, label
):
    case, model = golden("case02_incremental_deletion"), golden_model(name)
    batch = eval_batch(model, torch.from_numpy(case["images"]), torch.from_numpy(case["labels"]))
    maps = torch.from_numpy(case[f"map__{label}"])[:, 0]
    protocol = make_protocol("ids", {"order": ORDERS[order]})
    scores = protocol.score_maps(model, batch, {}, maps)
    stored = case[f"{name}__fixed__{order}__{label}__curve"]
    assert_curves_close(scores.curves["score"], stored)
    score = case[f"{name}__fixed__{order}__{label}__score"]
    np.testing.assert_allclose(
        scores.value, score if order == "ascending" else stored[:, 0] - score, atol=1e-4
    )
    plain = F.removal_curve(
        model,
        batch.x,
        batch.target,
        maps,
        [k / 32 for k in range(32)],
        ORDERS[order],
        score="softmax",
    )
    torch.testing.assert_close(plain, scores.curves["score"])


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize("order", ORDERS)
def test_updated_incremental_deletion_agrees_with_the_stored_curves(
    golden, double_model, name, order
):
    """Compare in double precision: where two pixels nearly tie, rounding decides what follows."""
    case, model = golden("case02_incremental_deletion"), double_model(name)
    x, target = torch.from_numpy(case["images"]).double(), torch.from_numpy(case["labels"])
    curve = F.updated_curve(
        model,
        x,
        target,
        lambda now: hp.explain(model, now, target, "ixg"),
        [k / 32 for k in range(32)],
        ORDERS[order],
        score="softmax",
    )
    stored = case[f"{name}__updated_ixg__{order}__curve"]
    np.testing.assert_allclose(curve, stored, rtol=0, atol=1e-5)


STORED = [
    *(
        (baseline, label, 10, "logit")
        for baseline in BASELINES
        for label in ("smooth", "ixg_absmean")
    ),
    *(
        ("zero", "smooth", steps, score)
        for steps, score in [(10, "sigmoid"), (10, "softmax"), (5, "sigmoid"), (7, "logit")]
    ),
]


@pytest.mark.parametrize(("baseline", "label", "steps", "score"), STORED)
def test_deletion_and_insertion_agree_with_the_stored_curves(
    golden, golden_model, baseline, label, steps, score
):
    case, model = golden("case12_deletion_insertion"), golden_model("vgg")
    prefix = f"{baseline}__{label}__steps{steps}__{score}__"
    x = torch.from_numpy(case["images_nhwc"]).permute(0, 3, 1, 2)
    batch = eval_batch(model, x, torch.from_numpy(case["targets"]))
    maps = torch.from_numpy(case[f"map__{label}"])
    settings = {"steps": steps, "score": score, "baseline": BASELINES[baseline]}
    for name in ("deletion", "insertion"):
        scores = make_protocol(name, settings).score_maps(model, batch, {}, maps)
        assert_curves_close(scores.curves["score"], case[f"{prefix}{name}__curves"])
        np.testing.assert_allclose(scores.value, case[f"{prefix}{name}__auc"], rtol=1e-4, atol=1e-4)
    gain = make_protocol("srg", settings).score_maps(model, batch, {}, maps)
    np.testing.assert_allclose(gain.value, case[prefix + "srg"], rtol=1e-4, atol=2e-4)


def test_steps_of_one_pixel_agree_with_the_stored_curves(golden, golden_model):
    case, model = golden("case12_deletion_insertion"), golden_model("vgg")
    x = torch.from_numpy(case["images_nhwc"]).permute(0, 3, 1, 2)[:1]
    batch = eval_batch(model, x, torch.from_numpy(case["targets"])[:1])
    for name in ("deletion", "insertion"):
        scores = make_protocol(name, {"steps": 1024}).score_maps(
            model, batch, {}, torch.from_numpy(case["map__smooth"])[:1]
        )
        assert_curves_close(
            scores.curves["score"], case[f"zero__smooth__steps-1__logit__{name}__curves"]
        )


@pytest.mark.parametrize(
    ("stored", "baseline"),
    [("zero", "zero"), ("channelmean", "image-mean"), ("linear", "linear(noise=0)")],
)
@pytest.mark.parametrize("direction", ["morf", "lerf"])
def test_road_agrees_with_the_stored_curves(golden, golden_model, stored, baseline, direction):
    """The stored fraction is the removed one (MoRF) or the kept one (LeRF)."""
    case, model = golden("case10_road_evaluation"), golden_model("resnet")
    x, target = torch.from_numpy(case["images_f16"]).float(), torch.from_numpy(case["labels"])
    maps = torch.from_numpy(case["explanations_hwc"]).double().sum(-1)
    fractions = (
        case["percentages"]
        if direction == "morf"
        else 1 - np.floor(1024 * case["percentages"]) / 1024
    )
    order = {"morf": "most", "lerf": "least"}[direction]
    logits = F.removal_curve(model, x, target, maps, fractions.tolist(), order, baseline)
    assert_curves_close(logits.T, case[f"{stored}__{direction}__logits_target"])
    correct = F.removal_curve(
        model, x, target, maps, fractions.tolist(), order, baseline, score="correct"
    )
    flips = (correct.T.numpy() != (case[f"{stored}__{direction}__pred"] == case["labels"])).sum()
    assert flips <= 1
    np.testing.assert_allclose(
        correct.mean(0), case[f"{stored}__{direction}__acc"], atol=1 / 30 + 1e-6
    )
