"""Weights that are trained on demand: once, then kept in the cache."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import heatproof as hp
from heatproof.data import paperbirds
from heatproof.files import content_hash
from heatproof.models.weights_file import metadata
from heatproof.plan.cost import plan_cost
from heatproof.plan.open_models import pending_training
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import make_spec
from heatproof.runs.format import FineTuningFacts
from heatproof.training import cache, recipes, schedule
from heatproof.training import train as training


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Shorten the recipes to a few steps and use an empty cache."""
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))
    for name in ("vgg7", "resnet18"):
        monkeypatch.setitem(
            recipes.RECIPES, name, replace(recipes.RECIPES[name], images=32, steps=2, batch=16)
        )
    monkeypatch.setitem(
        schedule.SCHEDULES, "short", replace(schedule.SCHEDULES["short"], epochs=1, limit=64)
    )
    monkeypatch.setitem(paperbirds.SPLITS, "val", 16)
    monkeypatch.setattr(training, "accuracy", lambda *_, **__: {"accuracy": 0.5, "confident": 0.1})
    monkeypatch.setattr(training, "part_drops", lambda *_, **__: {})
    return tmp_path / "cache"


SPEC = {
    "models": [{"train": "paperbirds/vgg7"}, {"train": "paperbirds/vgg7", "seed": 1}],
    "data": {"name": "paperbirds", "limit": 4},
    "methods": ["ixg", "random"],
    "protocols": ["sds", "idsds", {"name": "idsds", "patches": 4}],
}


def test_models_are_trained_once(quick: Path, tmp_path: Path) -> None:
    spec, trained = make_spec(SPEC), []
    assert len(pending_training(spec)) == 6
    stand_in = open_spec(spec, "cpu", train=False)
    assert not quick.exists()
    plan = open_spec(spec, "cpu", progress=lambda what, done, total: trained.append(what))
    assert plan_cost(plan) == plan_cost(stand_in)
    assert set(trained) == {
        "training vgg7",
        *(
            f"fine-tuning paperbirds/vgg7{s} for {to}"
            for s in ("", " seed 1")
            for to in ("16/zero", "4/zero")
        ),
    }
    assert pending_training(spec) == []
    assert len(list(quick.glob("*.safetensors"))) == 6  # and no unfinished files
    again: list[str] = []
    result = hp.run(
        spec,
        tmp_path / "run",
        "cpu",
        plan=open_spec(spec, "cpu", progress=lambda *step: again.append(str(step))),
    )
    assert again == []
    assert set(result.scores["model"]) == {"paperbirds/vgg7", "paperbirds/vgg7 seed 1"}
    assert result.scores["status"].eq("ok").all()


def test_everything_that_changes_the_weights_changes_their_path(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {
        cache.weights_path("vgg7"),
        cache.weights_path("vgg7", 1),
        cache.weights_path("vgg7", 0, 3),
        cache.weights_path("resnet18"),
    }
    monkeypatch.setitem(recipes.RECIPES, "vgg7", replace(recipes.RECIPES["vgg7"], rate=0.1))
    paths.add(cache.weights_path("vgg7"))
    assert len(paths) == 5
    base = cache.weights_path("vgg7")
    assert (
        len(
            {
                cache.fine_tuned_path(base, cache.FineTuning(to))
                for to in ("16/zero", "4/zero", "16/uniform(-1, 1)")
            }
        )
        == 3
    )
    monkeypatch.setitem(recipes.RECIPES, "vgg7", replace(recipes.RECIPES["vgg7"], minutes=99.0))
    assert cache.weights_path("vgg7") == base


def test_fine_tuned_weights_are_stored_like_those_that_ship(quick: Path) -> None:
    weights = cache.trained("vgg7")
    model = hp.load_model("paperbirds/vgg7", weights)
    path = cache.fine_tuned(model, weights, cache.FineTuning("4/zero"))
    assert metadata(path)["fine_tuned"] == "4/zero"
    assert (
        hp.load_model(
            "paperbirds/vgg7", weights, fine_tuned_weights={"4/zero": path}, fine_tuned="4/zero"
        ).fine_tuned
        == "4/zero"
    )
    shipped = metadata(hp.load_model("paperbirds/vgg").fine_tuned_weights["16/zero"])
    assert metadata(path).keys() == shipped.keys()


def test_an_embedded_model_is_fine_tuned_with_other_settings(quick: Path, tmp_path: Path) -> None:
    spec = make_spec(
        {
            **SPEC,
            "models": [
                "paperbirds/vgg",
                {"name": "paperbirds/vgg", "fine_tuning": {"lr": [0.001, 0.01], "seed": 1}},
                {"train": "paperbirds/vgg7", "fine_tuning": {"images": 48}},
            ],
            "protocols": ["idsds"],
        }
    )
    names = [
        "paperbirds/vgg",
        "paperbirds/vgg fine-tuning seed 1 lr 0.001",
        "paperbirds/vgg fine-tuning seed 1 lr 0.01",
        "paperbirds/vgg7 fine-tuning images 48",
    ]
    pending = pending_training(spec)
    assert [text.partition(",")[0] for text in pending] == [
        *(f"fine-tune {name} for 16/zero" for name in names[1:3]),
        "train paperbirds/vgg7",
        f"fine-tune {names[3]} for 16/zero",
    ]
    plan = open_spec(spec, "cpu")
    assert [task.model_name for task in plan.tasks] == names
    assert pending_training(spec) == []
    _, *others = (FineTuningFacts.from_metadata(t.model.weights_metadata) for t in plan.tasks)
    assert [(f.lr, f.seed, f.images) for f in others if f] == [
        (0.001, 1, 64),
        (0.01, 1, 64),
        (schedule.SCHEDULES["short"].lr, 0, 48),
    ]
    states = [task.model.module.state_dict() for task in plan.tasks[:3]]
    assert len({content_hash(repr(state["fc3.bias"].tolist())) for state in states}) == 3


def test_a_model_that_is_trained_on_few_images_is_fine_tuned_on_them(quick: Path) -> None:
    spec = make_spec(
        {
            **SPEC,
            "models": [
                {
                    "train": "paperbirds/vgg7",
                    "trained_on": "plain",
                    "images": 64,
                    "epochs": 1,
                    "fine_tuning": {"epochs": 2},
                }
            ],
            "protocols": ["idsds"],
        }
    )
    assert len(pending_training(spec)) == 2
    (task,) = open_spec(spec, "cpu").tasks
    facts = FineTuningFacts.from_metadata(task.model.weights_metadata)
    assert facts is not None
    assert (facts.data, facts.images, facts.epochs) == ("paperbirds:train", 64, 2)
    assert pending_training(spec) == []


def test_seeds_of_training_and_of_fine_tuning_are_apart() -> None:
    models = [
        {"train": "paperbirds/vgg7", "seed": [0, 1]},
        {"name": "paperbirds/vgg", "fine_tuning": {"seed": [0, 1]}},
    ]
    spec = make_spec({**SPEC, "models": models})
    assert [(m.seed, m.fine_tuning and m.fine_tuning.seed) for m in spec.models] == [
        (0, None),
        (1, None),
        (None, 0),
        (None, 1),
    ]


def test_a_trained_model_can_be_loaded_fine_tuned(quick: Path) -> None:
    spec = {
        **SPEC,
        "models": [{"train": "paperbirds/resnet18", "fine_tuned": "4/zero"}],
        "protocols": ["sds"],
    }
    (task,) = open_spec(make_spec(spec), "cpu").tasks
    assert task.model_name == "paperbirds/resnet18 4/zero"
    assert task.model.fine_tuned == "4/zero"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"train": "paperbirds/resnet19"}, "did you mean paperbirds/resnet18"),
        ({"train": "paperbirds/vgg7", "name": "paperbirds/vgg"}, "a name, or a recipe"),
        ({"weights": "x.pth"}, "a name, or a recipe"),
        ({"name": "paperbirds/vgg", "seed": 1}, "seed goes with train"),
        ({"train": "paperbirds/vgg7", "weights": "x.pth"}, "takes no weights"),
        ({"name": "bagnet33", "fine_tuning": {"lr": 0.1}}, "heatproof finetune"),
        (
            {"name": "paperbirds/vgg", "weights": "x.pth", "fine_tuning": {"lr": 0.1}},
            "heatproof finetune",
        ),
        ({"name": "paperbirds/vgg", "fine_tuning": {"lr": 0}}, "greater than 0"),
        ({"name": "paperbirds/vgg", "fine_tuning": {"rate": 1}}, "rate"),
    ],
)
def test_a_model_of_a_spec_has_one_origin(model: dict[str, object], message: str) -> None:
    with pytest.raises(hp.HeatproofError, match=message):
        make_spec({**SPEC, "models": [model]})


def test_a_spec_can_name_fine_tuned_weights_and_use_them(tmp_path: Path) -> None:
    path = hp.load_model("paperbirds/vgg").fine_tuned_weights["16/zero"]
    named = {"name": "paperbirds/vgg", "fine_tuned_weights": {"16/zero": str(path)}}
    plan = open_spec(
        make_spec(
            {
                **SPEC,
                "models": [named, {**named, "fine_tuned": "16/zero"}],
                "protocols": ["sds", "idsds"],
            }
        ),
        "cpu",
    )
    assert [t.subject.title for t in plan.tasks] == [
        "paperbirds/vgg",
        "paperbirds/vgg, fine-tuned 16/zero",
        "paperbirds/vgg 16/zero",
        "paperbirds/vgg 16/zero, fine-tuned 16/zero",
    ]
    tuned = [t.model.module.state_dict() for t in plan.tasks[1:]]
    assert all(torch.equal(state[key], tuned[0][key]) for state in tuned for key in state)
