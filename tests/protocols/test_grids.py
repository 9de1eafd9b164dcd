"""The three grid settings from end to end, tested by properties of their construction."""

import pytest
import torch
from click.testing import CliRunner
from report_text import report_text

import heatproof as hp
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.cli import main
from heatproof.data import grids as data_grids
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.protocols import EvalBatch, ViewKey, make_protocol
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


def kept_grids(run):
    """Return the images and the evaluated grid cell of every sample, as stored with the run."""
    stored = RunStatistics(run.store)
    return {
        sample: grid
        for view in stored.views("paperbirds/vgg")
        for sample, grid in stored.kept("paperbirds/vgg", view).grids.items()
    }


def test_there_is_one_row_per_grid_and_evaluated_grid_cell(run):
    grids = kept_grids(run)
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


def test_difull_and_dipart_use_the_same_grids(run):
    samples = run.scores.groupby("protocol")["sample"].agg(lambda s: set(s))
    assert samples["difull"] == samples["dipart"] and not samples["difull"] & samples["gridpg"]


def test_disconnected_grid_cells_have_no_attribution(run):
    """Gradients outside the grid cell are exactly 0, so all positive attribution is inside."""
    rows = run.scores[(run.scores["protocol"] == "difull") & run.scores["method"].isin(METHODS[:4])]
    assert len(rows) == 4 * 12 and set(rows["value"]) == {1.0}


def test_a_constant_map_scores_one_quarter(run):
    rows = run.scores[run.scores["method"] == "constant"]
    assert (rows["status"] == "ok").all()
    assert rows["value"].tolist() == pytest.approx([0.25] * len(rows), abs=1e-12)


def test_methods_that_do_not_apply_have_a_message(run):
    rows = run.scores[run.scores["method"].isin(["iba", "rollout"])]
    assert set(rows["status"]) == {"n/a"} and rows["message"].str.len().min() > 0


def test_the_mass_of_every_grid_cell_is_kept(run):
    stored = RunStatistics(run.store)
    for protocol in ("gridpg", "difull", "dipart"):
        facts = next(p for p in stored.protocols.values() if p.id == protocol)
        rows = run.scores[
            (run.scores["protocol"] == protocol) & (run.scores["method"] == "ixg@final")
        ].set_index("sample")["value"]
        for view in (v for v in stored.views("paperbirds/vgg") if v.name.startswith(protocol)):
            kept = stored.kept("paperbirds/vgg", view)
            cells = kept.curves(facts, "ixg@final", "cells")
            assert cells.shape == (6, 4)
            fractions = cells[:, view.cell] / cells.sum(1)
            assert fractions.tolist() == pytest.approx(rows[kept.ids].tolist(), rel=1e-5)
        assert facts.random_score == 0.25


def test_the_plan_records_the_pool_of_every_view(run):
    pools = [view.pool for view in run.store.plan().views]
    assert len(pools) == 8  # one view per evaluated grid cell
    assert all(1 <= sum(pool.values()) <= 128 for pool in pools)


def test_images_that_occur_in_several_grids_are_counted_and_reported(tmp_path):
    """Twenty grids of four need 80 images; there are fewer than 48."""
    result = hp.evaluate(
        "paperbirds/vgg",
        "paperbirds:test",
        ["ixg"],
        ["difull(confidence=0)", "gridpg(confidence=0)"],
        limit=48,
        out=tmp_path / "run",
    )
    views = {view.view.name.split()[0]: view for view in result.store.plan().views}
    assert views["gridpg"].reused == 0
    few = views["difull"].reused
    assert 0 < few <= sum(views["difull"].pool.values()) <= 48
    page = report_text(result.report(tmp_path / "site"))
    assert f"needs more images than there are: {few} of them occur in more than one grid" in page


def test_planning_running_and_resuming_make_one_pass_over_the_images(tmp_path, monkeypatch):
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))
    computed = []
    compute = data_grids._compute_label_confidence
    monkeypatch.setattr(
        data_grids,
        "_compute_label_confidence",
        lambda model, data: computed.append(model.name) or compute(model, data),
    )
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "version: 1\nmodels: [paperbirds/vgg]\ndata: {name: paperbirds, split: test, limit: 64}\n"
        "methods: [ixg]\nprotocols: [{name: difull, grids: 4}]\n"
    )
    runner = CliRunner()
    commands = (["plan", str(spec)], *[["run", str(spec), "-o", str(tmp_path / "run")]] * 2)
    for command in commands:
        assert runner.invoke(main, command, catch_exceptions=False).exit_code == 0
        data_grids._confidences.clear()  # the memory of a process
    assert computed == ["paperbirds/vgg"]


def test_a_larger_number_of_grids_begins_with_the_same_grids():
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
    common = few.merge(more, on=["sample", "method"])
    assert len(common) == 8
    torch.testing.assert_close(torch.tensor(common["value_x"]), torch.tensor(common["value_y"]))


def test_the_report_is_built(run, tmp_path):
    assert run.report(tmp_path / "site").is_file()


@pytest.mark.parametrize("grid", [2, 3])
def test_the_score_is_the_fraction_of_positive_mass_in_the_grid_cell(grid):
    protocol = make_protocol("gridpg", {"grid": grid})
    maps = torch.zeros(3, 12, 12)
    maps[0, -1, -1], maps[1, 0, 0], maps[1, -1, -1] = 2, 3, 1
    ids = ["a", "b", "c"]
    view = ViewKey("grid", "gridpg", cell=grid**2 - 1)
    batch = EvalBatch(ids, maps, torch.zeros(3), maps, Rng(0, ids), view=view)
    scores = protocol.score_maps(None, batch, {}, maps)
    assert scores.value.tolist() == [1, 0.25, 0] and not any(scores.reasons)
    assert protocol.facts()["random_score"] == pytest.approx(1 / grid**2)


# Bad input


def test_a_grid_with_more_cells_than_classes_is_refused(golden_model):
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


@pytest.mark.parametrize(
    ("name", "classes", "message"),
    [
        ("gridpg", [0, 1, 2], "6 images in 3 classes: not enough .*images of 4 classes"),
        ("difull", [0, 1], "4 images in 2 classes: .*images of 3 classes, two of one class"),
    ],
)
def test_data_without_enough_classes_for_a_grid_are_refused_before_any_pass(
    name, classes, message, golden_model
):
    images = torch.rand(2 * len(classes), 3, 64, 64, generator=torch.Generator().manual_seed(0))
    data = hp.TensorData(images, labels=classes * 2)
    model = golden_model("vgg")
    before = dict(model.pass_counts)
    with pytest.raises(HeatproofError, match=f"{message}$"):
        hp.evaluate(model, data, ["ixg"], [f"{name}(grids=1)"])
    assert model.pass_counts == before


def test_a_model_without_grids_does_not_stop_other_models(tmp_path):
    """Check that its rows state the reason and that its other protocols are evaluated."""
    result = hp.evaluate(
        ["paperbirds/vit", "paperbirds/vgg"],
        "paperbirds:test",
        ["ixg", "random"],
        ["sds(patches=4)", "gridpg(grids=2)", "difull(grids=2)"],
        limit=64,
        out=tmp_path / "run",
    )
    status = result.scores.groupby(["model", "protocol"])["status"].agg(set)
    assert status["paperbirds/vit"].to_dict() == {
        "sds": {"ok"},
        "gridpg": {"n/a"},
        "difull": {"n/a"},
    }
    assert status["paperbirds/vgg"].to_dict() == {"sds": {"ok"}, "gridpg": {"ok"}, "difull": {"ok"}}
    refused = result.scores[result.scores["status"] == "n/a"]
    assert refused["message"].str.contains("grids are for convolutional networks").all()
    assert "grids are for convolutional networks" in report_text(result.report())


def test_a_common_pool_gives_all_models_the_same_grids():
    models = [
        "paperbirds/vgg",
        "paperbirds/resnet",
        "paperbirds/vit",
    ]  # the last has no grids and does not restrict the pool
    separate, common = (
        hp.evaluate(
            models, "paperbirds:test", ["random"], [f"gridpg(grids=4{pool})"], limit=128
        ).scores
        for pool in ("", ", pool=common")
    )
    samples = {
        len(rows): rows.groupby("model")["sample"].agg(set)
        for rows in (separate[separate["status"] == "ok"],)
    }
    assert samples[32]["paperbirds/vgg"] != samples[32]["paperbirds/resnet"]
    common_samples = common[common["status"] == "ok"].groupby("model")["sample"].agg(set)
    assert (
        common_samples["paperbirds/vgg"] == common_samples["paperbirds/resnet"]
        and len(common_samples["paperbirds/vgg"]) == 16
    )


def test_invalid_settings_are_refused_by_name():
    for settings in ({"grid": 1}, {"confidence": 1.5}, {"grids": 0}, {"cells": 3}):
        with pytest.raises(HeatproofError, match=f"protocol gridpg.*{next(iter(settings))}"):
            make_protocol("gridpg", settings)


def test_a_data_set_that_is_too_small_is_refused():
    with pytest.raises(
        HeatproofError, match="enough for .* grids of 2×2, not 100|not enough for a grid"
    ):
        hp.evaluate("paperbirds/vgg", "paperbirds:test", ["ixg"], ["gridpg(grids=100)"], limit=64)
