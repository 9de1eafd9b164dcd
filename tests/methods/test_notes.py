"""Notes on maps: methods write them, and they travel with the scores."""

import numpy as np
import pandas as pd
import pytest
import torch
from report_text import report_text
from torch import nn

import heatproof as hp
from heatproof.methods import bottleneck
from heatproof.methods.notes import kind_of


def noting(model, x, target, *, rng, notes):
    """Maps of which every other one has a note, and the third is missing."""
    for row in range(0, len(x), 2):
        notes.add(row, f"odd: the number {row}")
    if len(x) > 2:
        notes.add_missing(2, "it was not made")
    return x


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "noted"
    methods = [noting, "ixg"]
    return hp.evaluate("paperbirds/vgg", "paperbirds:test", methods, ["sds"], limit=5, out=out)


def test_notes_are_stored_with_the_scores(result):
    rows = result.scores[result.scores["method"] == "noting"].reset_index()
    assert rows["note"].tolist() == [
        "odd: the number 0",
        "",
        "odd: the number 2",
        "",
        "odd: the number 4",
    ]
    assert rows["status"].tolist() == ["ok", "ok", "missing", "ok", "ok"]
    assert rows["message"].tolist()[2] == "it was not made"
    assert np.isnan(rows["value"][2])
    assert (result.scores.loc[result.scores["method"] == "ixg", "note"] == "").all()


def test_the_summary_counts_noted_scores_and_missing_maps(result):
    summary = result.summary().set_index("method")
    assert summary.loc["noting", ["n", "missing", "noted"]].tolist() == [4, 1, 2]
    assert summary.loc["ixg", ["n", "missing", "noted"]].tolist() == [5, 0, 0]
    assert result.notes[["method", "kind", "samples"]].values.tolist() == [["noting", "odd", 3]]


def test_the_report_shows_notes_with_an_example(result):
    page = report_text(result.report())
    assert "odd: the number 0" in page
    assert "4*" in page
    assert "it was not made" in page


def test_a_run_without_notes_can_be_read(result):
    store = result.store
    for task in store.plan().tasks:
        rows = store.table(task.name).drop_columns(["note"])
        store.commit(task.name, rows, store.tensors(task.name), store.timings(task.name))
    again = hp.Result.load(result.store.root)
    assert (again.scores["note"] == "").all()
    pd.testing.assert_series_equal(again.scores["value"], result.scores["value"])


def test_explain_warns_of_doubts_or_returns_the_notes():
    model = hp.load_model("paperbirds/vgg")
    x = torch.zeros(2, 3, 64, 64)
    with pytest.warns(UserWarning, match="noting, 1 of 2 maps: for example, odd: the number 0"):
        hp.explain(model, x, 0, noting)
    notes = hp.MapNotes(2)
    hp.explain(model, x, 0, noting, notes=notes)
    assert notes.texts == ["odd: the number 0", ""]
    with pytest.raises(hp.HeatproofError, match="no map of image 2: it was not made"):
        hp.explain(model, torch.zeros(3, 3, 64, 64), 0, noting)


def test_notes_of_noisy_copies_are_counted():
    notes = hp.MapNotes(2)
    copies = [hp.MapNotes(2) for _ in range(3)]
    copies[1].add(0, "odd: the number 1")
    copies[2].add(0, "odd: the number 2")
    notes.add_of_copies(copies)
    assert notes.texts == ["odd: 2 of 3 noisy copies, the first one: the number 1", ""]


def test_kinds_leave_out_details():
    assert kind_of("odd: the number 1; not converged: .61; odd: 2") == "odd; not converged"


class Shifted(nn.Module):
    """A network whose logits are those of another, plus a constant."""

    def __init__(self, net, shift):
        super().__init__()
        self.net = net
        self.shift = shift

    def forward(self, x):
        return self.net(x) + self.shift


@pytest.mark.parametrize("shift", [-100.0, 0.0, 100.0])
def test_ablationcam_does_not_depend_on_the_sign_of_the_logit(shift):
    """A constant on all logits changes no loss of a score, so it must not change the map."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    ).double()
    x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    method = "ablationcam@1"
    expected = hp.explain(hp.Model(net, size=8), x, 1, method)
    model = hp.Model(Shifted(net, shift), size=8, layers=["net.1"])
    notes = hp.MapNotes(3)
    maps = hp.explain(model, x, 1, "ablationcam@net.1", notes=notes)
    torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-6)
    assert all(("logit is negative" in note) == (shift < 0) for note in notes.texts) or shift == 0
    if shift < 0:
        literal = hp.MapNotes(3)
        hp.explain(model, x, 1, "ablationcam(compat=rao)@net.1", notes=literal)
        assert all("speaks against the class" in note for note in literal.texts)


def test_extremal_masks_that_are_not_finished_are_noted():
    model = hp.load_model("paperbirds/vgg")
    data = hp.load_data("paperbirds:test", model, limit=1)
    x = model.normalize(data.load(0).image[None])
    with pytest.warns(UserWarning, match=r"not converged: the mask covers 0\.\d\d of its area"):
        hp.explain(model, x, data.labels[:1], "extremal(steps=20)")


@pytest.mark.slow
def test_extremal_masks_converge_at_the_default_settings():
    model = hp.load_model("paperbirds/resnet")
    data = hp.load_data("paperbirds:test", model, limit=1)
    x = model.normalize(data.load(0).image[None])
    notes = hp.MapNotes(1)
    hp.explain(model, x, data.labels, "extremal", notes=notes)
    assert notes.texts == [""]


def test_iba_notes_an_objective_that_still_falls():
    notes = hp.MapNotes(4)
    steps = torch.arange(20.0)
    objectives = torch.stack(
        [100 * 0.5**steps, 100 - 5 * steps, steps, torch.ones(20)], 1
    )  # converges, falls to the end, rises, stays
    bottleneck.note_unconverged(notes, objectives)
    assert [bool(text) for text in notes.texts] == [False, True, True, True]
    assert notes.texts[1] == (
        "not converged: the objective fell by 95 to 5 in 20 steps, by 10 in the last tenth"
    )
