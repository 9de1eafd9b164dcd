"""Whether networks are equally far fine-tuned."""

import json
from typing import Any

import pytest

from heatproof.analysis.fine_tuning import fine_tuning_warnings, movements
from heatproof.models.nets import FINE_TUNED, fine_tuned_path
from heatproof.models.weights_file import metadata
from heatproof.runs.format import FineTuningFacts


def facts(idsds: list[float], worst: list[float] | None = None, **changes: Any) -> FineTuningFacts:
    worst = worst or [0.5] * len(idsds)
    history = [
        {
            "epoch": k,
            "accuracy": 1.0,
            "worst_all": worst[k],
            "worst_largest": worst[k],
            "idsds": value,
            "idsds_error": 0.01,
        }
        for k, value in enumerate(idsds)
    ]
    settings: dict[str, Any] = {
        "fine_tuned": "16/zero",
        "base": "abc",
        "data": "paperbirds:train",
        "lr": 0.003,
        "epochs": len(idsds) - 1,
        "batch_size": 64,
        "step": 8,
        "seed": 0,
        "loss": "cross_entropy",
        "images": 6000,
        "tested": 512,
        "kept": len(idsds) - 1,
        "history": history,
    }
    return FineTuningFacts(**settings | changes)


SETTLED = [0.8, 0.6, 0.5, 0.45, 0.43, 0.42, 0.42]


def test_equal_settings_that_have_settled_give_no_warning():
    assert not fine_tuning_warnings({"a": facts(SETTLED), "b": facts(SETTLED, seed=3)})


@pytest.mark.parametrize(
    ("key", "value", "title"),
    [
        ("lr", 0.01, "learning rate"),
        ("epochs", 9, "epochs"),
        ("images", 800, "training images"),
        ("batch_size", 32, "batch size"),
        ("loss", "binary_cross_entropy", "loss"),
    ],
)
def test_a_setting_that_differs_is_named_with_its_values(key: str, value: Any, title: str):
    networks = {"a": facts(SETTLED), "b": facts(SETTLED, **{key: value})}
    found = fine_tuning_warnings(networks)
    assert found.settings == {title: {"a": str(getattr(networks["a"], key)), "b": str(value)}}
    assert not found.moving and not found.disjoint


def test_a_score_that_still_moves_over_the_last_third_is_named():
    falling = facts([0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35])
    (moved,) = movements(falling)
    assert (moved.measure, moved.since, moved.until) == ("probe IDSDS", 4, 6)
    assert (moved.before, moved.after) == (0.45, 0.35)
    # 1.96 · √2 · 0.01 = 0.0277: the change must be larger.
    assert not movements(facts([0.8, 0.6, 0.5, 0.45, 0.447, 0.43, 0.42]))
    assert movements(facts([0.8, 0.6, 0.5, 0.45, 0.449, 0.43, 0.42]))
    (moved,) = movements(facts(SETTLED, worst=[0.1, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6]))
    assert moved.measure == "worst-patch accuracy"
    assert not movements(facts(SETTLED, worst=[0.1, 0.9, 0.9, 0.9, 1.0, 1.0, 1.0]))
    assert not movements(facts([0.5]))


def test_worst_patch_accuracies_with_disjoint_intervals_are_named():
    low = facts(SETTLED, worst=[0.3] * 7)
    high = facts(SETTLED, worst=[0.6] * 7)
    assert fine_tuning_warnings({"a": high, "b": low}).disjoint == ("b", "a")
    assert fine_tuning_warnings({"a": high, "b": facts(SETTLED, worst=[0.58] * 7)}).disjoint is None


def test_weights_that_say_nothing_are_named():
    assert fine_tuning_warnings({"a": facts(SETTLED), "b": None}).unrecorded == ["b"]
    for damaged in (
        {},
        {"recipe": "{}", "history": "[]", "epoch": "1"},
        {"recipe": "[1]", "history": "[]", "epoch": "1"},
        {"recipe": json.dumps({"data": 3}), "history": "[]", "epoch": "1"},
        {"recipe": "nonsense"},
    ):
        assert FineTuningFacts.from_metadata(damaged) is None


@pytest.mark.parametrize("net", FINE_TUNED)
def test_the_shipped_weights_say_how_they_were_fine_tuned(net: str):
    for fine_tuned in FINE_TUNED[net]:
        read = FineTuningFacts.from_metadata(metadata(fine_tuned_path(net, fine_tuned)))
        assert read is not None
        assert (read.fine_tuned, read.data) == (fine_tuned, "paperbirds:train")
        assert len(read.history) == read.epochs + 1
        assert read.kept_epoch.epoch == read.kept
        assert {"ixg", "saliency", "ig(steps=10)"} <= set(read.history[-1].probes)


def test_the_shipped_networks_differ_in_nothing_but_the_loss_of_bcos():
    networks = {
        net: FineTuningFacts.from_metadata(metadata(fine_tuned_path(net, "16/zero")))
        for net in FINE_TUNED
    }
    found = fine_tuning_warnings(networks)
    assert not found.unrecorded
    assert set(found.settings) == {"loss"}
    losses = {name for name, loss in found.settings["loss"].items() if loss != "cross_entropy"}
    assert losses == {"bcos"}
