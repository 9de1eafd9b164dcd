"""Part deletion on paperbirds, tested by properties of its construction."""

import json

import pytest
import torch

import heatproof as hp
from heatproof.data.catalog import load_batch
from heatproof.data.paperbirds import PARTS, Paperbirds
from heatproof.errors import HeatproofError
from heatproof.protocols import EvalBatch, make_protocol
from heatproof.protocols.parts import part_sums
from heatproof.tensor.noise import Rng


@pytest.fixture(scope="module")
def evaluation():
    model = hp.load_model("paperbirds/resnet")
    loaded = load_batch(Paperbirds("test", limit=24), range(24), model, with_parts=True)
    eval_batch = EvalBatch(
        loaded.ids,
        loaded.x,
        torch.tensor(loaded.labels),
        model.logits(loaded.x),
        Rng(0, loaded.ids),
        loaded.parts,
    )
    protocol = make_protocol("parts", {})
    return model, protocol, eval_batch, protocol.compute_shared(model, eval_batch)


def test_views_are_the_scene_without_each_part():
    data = Paperbirds("test", limit=3)
    views = data.parts(2)
    scene = data.scene(2)
    for i, part in enumerate(PARTS):
        without = torch.from_numpy(data.scene(2, [p for p in PARTS if p != part]).image).permute(
            2, 0, 1
        )
        assert torch.equal(views.without[i], without)
        assert views.masks[i].sum() == scene.visible[part]


def test_an_oracle_that_paints_the_drops_on_the_parts_scores_one(evaluation):
    model, protocol, batch, shared = evaluation
    masks = batch.parts.masks[:, :, 0].double()
    area = masks.sum((2, 3)).clamp(min=1)
    oracle = torch.einsum("bp,bphw->bhw", shared["drops"].double() / area, masks)
    visible = (masks.sum((2, 3)) > 0).all(1)
    value = protocol.score_maps(model, batch, shared, oracle.float()).value
    assert visible.any()
    torch.testing.assert_close(value[visible], torch.ones(int(visible.sum()), dtype=torch.float64))
    value = protocol.score_maps(model, batch, shared, -oracle.float()).value
    torch.testing.assert_close(value[visible], -torch.ones(int(visible.sum()), dtype=torch.float64))


def test_a_random_map_scores_zero(evaluation):
    model, protocol, batch, shared = evaluation
    draws = [
        protocol.score_maps(
            model,
            batch,
            shared,
            torch.randn(24, 64, 64, generator=torch.Generator().manual_seed(i)),
        ).value
        for i in range(40)
    ]
    assert abs(torch.cat(draws).nanmean()) < 3 / (24 * 40 * 4) ** 0.5


def test_drops_equal_a_slow_implementation(evaluation):
    model, _, batch, shared = evaluation
    for i in (0, 7):
        for p in range(5):
            with torch.no_grad():
                both = torch.stack(
                    [batch.x[i], model.normalize(batch.parts.without[i, p].float() / 255)]
                )
                logits = model.module(both)[:, batch.target[i]]
            assert shared["drops"][i, p].item() == pytest.approx(
                (logits[0] - logits[1]).item(), abs=1e-4
            )


def test_masks_are_widened_and_summed_over_instances():
    masks = torch.zeros(1, 1, 2, 9, 9, dtype=torch.bool)
    masks[0, 0, 0, 4, 4] = masks[0, 0, 1, 4, 6] = True
    assert part_sums(torch.ones(1, 9, 9), masks, 1).item() == 2
    assert part_sums(torch.ones(1, 9, 9), masks, 3).item() == 18
    assert part_sums(torch.ones(1, 9, 9), masks, 5).item() == 50


def test_part_deletion_is_not_applicable_to_data_without_parts():
    model = hp.load_model("paperbirds/resnet")
    scores = hp.evaluate(
        model, (torch.rand(2, 3, 64, 64), [0, 1]), ["edges"], ["parts", "sds"]
    ).scores
    assert scores.groupby("protocol")["status"].agg(set).to_dict() == {
        "parts": {"n/a"},
        "sds": {"ok"},
    }
    assert "has no parts" in scores[scores["protocol"] == "parts"]["message"].iloc[0]


def test_parts_and_single_deletion_run_together_and_are_reported(tmp_path):
    result = hp.evaluate(
        "paperbirds/resnet",
        "paperbirds:test",
        ["ixg", "gradcam", "object"],
        ["sds", "parts"],
        limit=6,
    )
    assert set(result.scores["status"]) == {"ok"}
    assert result.scores.groupby("protocol").size().to_dict() == {"sds": 18, "parts": 18}
    assert result.report(tmp_path / "report").is_file()


def test_an_incomplete_funnybirds_folder_is_refused(tmp_path):
    with pytest.raises(HeatproofError, match="a FunnyBirds folder has classes.json"):
        hp.load_data(f"funnybirds:{tmp_path}")
    (tmp_path / "parts.json").write_text(json.dumps({"beak": []}))
    (tmp_path / "dataset_test.json").write_text(json.dumps([{"class_idx": 3}]))
    with pytest.raises(HeatproofError, match="lacks 1 of 1 test images"):
        hp.load_data(f"funnybirds:{tmp_path}")
