"""The three settings from end to end: what is true by construction."""

import pytest
import torch

import heatproof as hp
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.protocols import EvalBatch, ViewKey, make_protocol
from heatproof.report.run_data import Run
from heatproof.tensor.noise import Rng

METHODS = [
    "saliency(reduce=sum_abs)",
    "ixg",
    "layercam@input",
    "lrp-focus",
    "constant",
    "gradcam@final",
    "ixg@final",
    "iba",
    "rollout",
]
SETTINGS = ["gridpg(grids=6)", "difull(grids=6)", "dipart(grids=6)"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return hp.evaluate(
        "paperbirds/vgg",
        "paperbirds:test",
        METHODS,
        SETTINGS,
        limit=128,
        out=tmp_path_factory.mktemp("runs") / "grids",
    )


def contents(run):
    """The images and the evaluated cell of every sample, as stored with the run."""
    stored = Run(run.store)
    return {
        sample: grid
        for view in stored.views("paperbirds/vgg")
        for sample, grid in stored.kept("paperbirds/vgg", view).grids.items()
    }


def test_one_row_for_every_grid_and_evaluated_cell(run):
    grids = contents(run)
    rows = run.scores[run.scores["method"] == "ixg"].assign(
        cell=lambda t: t["sample"].map(lambda sample: grids[sample].cell)
    )
    counts = rows.groupby(["protocol", "cell"]).size().unstack(fill_value=0)
    assert counts.loc["gridpg"].tolist() == [6, 6, 6, 6]
    assert counts.loc["difull"].tolist() == counts.loc["dipart"].tolist() == [6, 0, 0, 6]
    assert not rows.duplicated(["protocol", "sample"]).any()
    data = hp.load_data("paperbirds:test", limit=128)
    label = dict(zip(data.ids, data.labels, strict=True))
    for sample, target, cell in rows[["sample", "target", "cell"]].itertuples(index=False):
        assert label[grids[sample].images[cell]] == target
    assert set(rows["target_is"]) == {"label"} and set(rows["model"]) == {"paperbirds/vgg"}


def test_difull_and_dipart_show_the_same_grids(run):
    samples = run.scores.groupby("protocol")["sample"].agg(lambda s: set(s))
    assert samples["difull"] == samples["dipart"] and not samples["difull"] & samples["gridpg"]


def test_what_cannot_be_seen_has_no_attribution(run):
    """Gradients outside the cell are exactly 0: all of what is positive is inside."""
    found = run.scores[
        (run.scores["protocol"] == "difull") & run.scores["method"].isin(METHODS[:4])
    ]
    assert len(found) == 4 * 12 and set(found["value"]) == {1.0}


def test_a_constant_map_has_a_score(run):
    found = run.scores[run.scores["method"] == "constant"]
    assert (found["status"] == "ok").all()
    assert found["value"].tolist() == pytest.approx([0.25] * len(found), abs=1e-12)


def test_what_does_not_apply_is_said(run):
    found = run.scores[run.scores["method"].isin(["iba", "rollout"])]
    assert set(found["status"]) == {"n/a"} and found["message"].str.len().min() > 0


def test_every_cells_share_is_kept(run):
    stored = Run(run.store)
    for protocol in ("gridpg", "difull", "dipart"):
        facts = next(p for p in stored.protocols.values() if p.id == protocol)
        rows = run.scores[
            (run.scores["protocol"] == protocol) & (run.scores["method"] == "ixg@final")
        ].set_index("sample")["value"]
        for view in (v for v in stored.views("paperbirds/vgg") if v.name.startswith(protocol)):
            kept = stored.kept("paperbirds/vgg", view)
            cells = kept.curves(facts, "ixg@final", "cells")
            assert cells.shape == (6, 4)
            shares = cells[:, view.cell] / cells.sum(1)
            assert shares.tolist() == pytest.approx(rows[kept.ids].tolist(), rel=1e-5)
        assert facts.random_score == 0.25


def test_the_pool_is_on_record(run):
    pools = [view.pool for view in run.store.plan().views]
    assert len(pools) == 8  # a view for every evaluated cell
    assert all(1 <= sum(pool.values()) <= 128 for pool in pools)


def test_more_grids_begin_with_those_of_fewer():
    few, more = (
        hp.evaluate(
            "paperbirds/vgg",
            "paperbirds:test",
            ["ixg"],
            [f"difull(grids={n})"],
            limit=256,
            batch_size=4,
        ).scores
        for n in (4, 9)
    )
    both = few.merge(more, on=["sample", "method"])
    assert len(both) == 8
    torch.testing.assert_close(torch.tensor(both["value_x"]), torch.tensor(both["value_y"]))


def test_the_report_is_built(run, tmp_path):
    assert run.report(tmp_path / "site").is_file()


@pytest.mark.parametrize("grid", [2, 3])
def test_values_are_those_of_the_maps(grid):
    protocol = make_protocol("gridpg", {"grid": grid})
    maps = torch.zeros(3, 12, 12)
    maps[0, -1, -1], maps[1, 0, 0], maps[1, -1, -1] = 2, 3, 1
    ids = ["a", "b", "c"]
    view = ViewKey("grid", "gridpg", cell=grid**2 - 1)
    batch = EvalBatch(ids, maps, torch.zeros(3), maps, Rng(0, ids), view=view)
    found = protocol.score_maps(None, batch, {}, maps)
    assert found.value.tolist() == [1, 0.25, 0] and not any(found.reasons)
    assert protocol.facts()["random_score"] == pytest.approx(1 / grid**2)


# Bad input


def test_fewer_classes_than_cells(golden_model):
    for name, needed in (("gridpg", 16), ("difull", 15)):
        with pytest.raises(
            HeatproofError,
            match=f"a grid of 4×4 shows {needed} classes, but vgg has 10; choose a smaller grid",
        ):
            make_protocol(name, {"grid": 4}).check(golden_model("vgg"))
    make_protocol("difull", {"grid": 3}).check(golden_model("vgg"))


@pytest.mark.parametrize("name", ["gridpg", "difull", "dipart"])
def test_a_vision_transformer_is_refused_before_anything_runs(name):
    with pytest.raises(NotApplicable, match="grids are for convolutional networks"):
        hp.evaluate("paperbirds/vit", "paperbirds:test", ["ixg"], [name], limit=8)


def test_a_model_without_grids_does_not_stop_the_others(tmp_path):
    """Its rows say why; what else is asked of it is judged."""
    found = hp.evaluate(
        ["paperbirds/vit", "paperbirds/vgg"],
        "paperbirds:test",
        ["ixg", "random"],
        ["sds(patches=4)", "gridpg(grids=2)", "difull(grids=2)"],
        limit=64,
        out=tmp_path / "run",
    )
    status = found.scores.groupby(["model", "protocol"])["status"].agg(set)
    assert status["paperbirds/vit"].to_dict() == {
        "sds": {"ok"},
        "gridpg": {"n/a"},
        "difull": {"n/a"},
    }
    assert status["paperbirds/vgg"].to_dict() == {"sds": {"ok"}, "gridpg": {"ok"}, "difull": {"ok"}}
    refused = found.scores[found.scores["status"] == "n/a"]
    assert refused["message"].str.contains("grids are for convolutional networks").all()
    assert "grids are for convolutional networks" in found.report().read_text()


def test_a_common_pool_shows_all_models_the_same_grids():
    models = [
        "paperbirds/vgg",
        "paperbirds/resnet",
        "paperbirds/vit",
    ]  # the last has no grids, and no vote
    own, common = (
        hp.evaluate(
            models, "paperbirds:test", ["random"], [f"gridpg(grids=4{pool})"], limit=128
        ).scores
        for pool in ("", ", pool=common")
    )
    shown = {
        len(rows): rows.groupby("model")["sample"].agg(set)
        for rows in (own[own["status"] == "ok"],)
    }
    assert shown[32]["paperbirds/vgg"] != shown[32]["paperbirds/resnet"]
    same = common[common["status"] == "ok"].groupby("model")["sample"].agg(set)
    assert same["paperbirds/vgg"] == same["paperbirds/resnet"] and len(same["paperbirds/vgg"]) == 16


def test_settings_that_make_no_sense():
    for settings in ({"grid": 1}, {"confidence": 1.5}, {"grids": 0}, {"cells": 3}):
        with pytest.raises(HeatproofError, match=f"protocol gridpg.*{next(iter(settings))}"):
            make_protocol("gridpg", settings)


def test_a_data_set_that_is_too_small_is_told():
    with pytest.raises(
        HeatproofError, match="enough for .* grids of 2×2, not 100|not enough for a grid"
    ):
        hp.evaluate("paperbirds/vgg", "paperbirds:test", ["ixg"], ["gridpg(grids=100)"], limit=64)
