"""Networks trained on altered images, and evaluated on images altered in the same way."""

from pathlib import Path

import numpy as np
import pytest
import torch

import heatproof as hp
from heatproof.data.altered import ALTERATIONS
from heatproof.models.nets import load_state, net_named
from heatproof.plan.cost import plan_cost
from heatproof.plan.open_models import pending_training
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import DataSpec, make_spec
from heatproof.training import cache
from heatproof.training.loop import init_network
from heatproof.training.retrain import RetrainRecipe, retrain
from heatproof.training.train import normalize

SMALL = {"train": "paperbirds/resnet-narrow", "images": 128, "epochs": 1}


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def spec_of(*models: dict, data: object = "paperbirds", **more: object):
    spec = {
        "models": list(models),
        "data": {"name": data, "limit": 6},
        "methods": ["ixg", "random"],
        "protocols": ["attr-mass"],
    }
    return make_spec({**spec, **more})


def test_each_alteration_gives_a_model_that_is_evaluated_on_the_same_alteration(
    empty_cache: Path, tmp_path: Path
) -> None:
    spec = spec_of(
        {**SMALL, "trained_on": ["plain", "watermark", "disc"]},
        {**SMALL, "trained_on": "notch", "evaluated_on": "plain"},
    )
    assert (
        len(pending_training(spec)) == 4
        and "128 images forward and backward" in pending_training(spec)[0]
    )
    stand_in, progress_calls = open_spec(spec, "cpu", train=False), []
    assert not empty_cache.exists()
    plan = open_spec(
        spec, "cpu", progress=lambda what, done, total: progress_calls.append((what, done, total))
    )
    assert plan_cost(plan) == plan_cost(stand_in) and pending_training(spec) == []
    assert {total for _, _, total in progress_calls} == {2} and len(
        {what for what, _, _ in progress_calls}
    ) == 4
    evaluated = {task.model_name: task.data.name for task in plan.tasks}
    assert evaluated == {
        "paperbirds/resnet-narrow trained on plain": "paperbirds:test",
        "paperbirds/resnet-narrow trained on watermark": "watermark:paperbirds:test",
        "paperbirds/resnet-narrow trained on disc": "disc:paperbirds:test",
        "paperbirds/resnet-narrow trained on notch evaluated on plain": "paperbirds:test",
    }
    again: list[object] = []
    open_spec(spec, "cpu", progress=lambda *step: again.append(step))
    assert again == [] and len(list(empty_cache.glob("*.safetensors"))) == 4
    rows = hp.run(spec, tmp_path / "run", "cpu", plan=plan).scores
    assert set(rows.loc[rows["status"] == "n/a", "model"]) == {
        "paperbirds/resnet-narrow trained on disc"
    }


def test_an_existing_model_can_be_evaluated_on_altered_images() -> None:
    (task,) = open_spec(spec_of({"name": "paperbirds/resnet", "evaluated_on": "disc"}), "cpu").tasks
    assert (
        task.model_name == "paperbirds/resnet evaluated on disc"
        and task.data.name == "disc:paperbirds:test"
    )


def test_everything_that_changes_the_weights_changes_their_path(tmp_path: Path) -> None:
    def path(kind: str = "watermark:", seed: int = 0, limit: int = 64, **recipe: object) -> Path:
        data = hp.load_data(f"{kind}paperbirds:train", limit=limit)
        return cache.retrained_path(
            RetrainRecipe(**{"net": "paperbirds/vgg7", "images": 64, **recipe}), data, seed
        )

    paths = [path(kind) for kind in ("", *(f"{kind}:" for kind in ALTERATIONS))]
    paths += [
        path(seed=1),
        path(limit=70),
        path(images=32),
        path(epochs=2),
        path(rate=1e-4),
        path(net="paperbirds/vgg"),
    ]
    assert len(set(paths)) == len(paths)
    assert path() == path()


def test_the_loss_is_that_of_the_images_in_the_seeds_order(tmp_path: Path) -> None:
    """Compute the first step again, without the training loop."""
    data = hp.load_data("stripes:paperbirds:train", limit=32)
    recipe = RetrainRecipe("paperbirds/resnet-narrow", images=32, epochs=2, batch=16)
    losses: list[float] = []
    retrain(
        recipe, data, tmp_path / "a.safetensors", 5, lambda step, steps, loss: losses.append(loss)
    )
    retrain(recipe, data, tmp_path / "b.safetensors", 5)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert len(losses) == recipe.steps == 4
    kind = net_named("paperbirds/resnet-narrow")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(5)
        net = kind.build(kind.classes, **kind.options).train()
    picks = torch.randperm(32, generator=torch.Generator().manual_seed(5))[:16].tolist()
    x = torch.stack([data.load(i).image for i in picks])
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (kind.mean, kind.std))
    logits = net((x - mean) / std)
    expected = torch.nn.functional.cross_entropy(
        logits, torch.tensor([data.labels[i] for i in picks])
    )
    assert losses[0] == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_the_first_step_is_that_of_the_optimizer(optimizer: str, tmp_path: Path) -> None:
    """With a constant rate and without clipping, as Li et al. train on CIFAR-10."""
    data = hp.load_data("paperbirds:train", limit=64)
    recipe = RetrainRecipe(
        "paperbirds/resnet-narrow",
        images=64,
        epochs=1,
        batch=64,
        rate=0.01,
        warmup=0,
        decay=0.1,
        clip=float("inf"),
        optimizer=optimizer,
    )
    retrain(recipe, data, tmp_path / "net.safetensors", seed=3)
    net = init_network(lambda: net_named(recipe.net).build(32, widths=(12, 16, 28, 44)), 3)
    kind = net_named(recipe.net)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(3)).tolist()
    images = torch.stack([(data.load(i).image * 255).round().byte() for i in order])
    labels = torch.tensor([data.labels[i] for i in order])
    classes = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    more = {"momentum": 0.9} if optimizer == "sgd" else {}
    stepper = classes[optimizer](net.parameters(), lr=0.01, weight_decay=0.1, **more)
    loss = torch.nn.functional.cross_entropy(
        net.train()(normalize(images, kind.mean, kind.std)), labels
    )
    loss.backward()
    stepper.step()
    trained = load_state(tmp_path / "net.safetensors")
    for name, value in net.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(trained[name], value.half().float(), atol=2e-3, rtol=2e-3)


def test_stripes_are_learned(tmp_path: Path) -> None:
    """A few steps are enough to learn stripes on a blank canvas."""
    spec = spec_of({**SMALL, "images": 512, "epochs": 6, "trained_on": "stripes-blank"})
    (task,) = open_spec(spec, "cpu").tasks
    data = hp.load_data("stripes-blank:paperbirds:test", limit=64)
    x = torch.stack([data.load(i).image for i in range(64)])
    logits, labels = task.model.logits(task.model.normalize(x)), torch.tensor(data.labels)
    assert torch.nn.functional.cross_entropy(logits, labels) < torch.nn.functional.cross_entropy(
        torch.zeros_like(logits), labels
    )


def test_cifar10_needs_only_another_model_and_data(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "cifar10.npz"
    x, y = rng.integers(0, 256, (80, 32, 32, 3), dtype=np.uint8), np.arange(80) % 10
    np.savez(path, train_x=x, train_y=y, test_x=x[:12], test_y=y[:12])
    model = {
        "train": "cifar10/resnet20",
        "images": 64,
        "epochs": 1,
        "trained_on": ["plain", "disc-notch"],
    }
    plan = open_spec(spec_of(model, data=f"cifar10:{path}"), "cpu")
    assert [task.data.name for task in plan.tasks] == [
        f"cifar10:{path}:test",
        f"disc-notch:cifar10:{path}:test",
    ]
    assert plan.tasks[0].model.shape("cam") == (64, 8, 8)
    moved = tmp_path / "elsewhere.npz"
    path.rename(moved)
    assert (
        pending_training(spec_of(model, data=f"cifar10:{moved}")) == []
    )  # recognised by its content


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"train": "paperbirds/vgg7", "trained_on": "watermarks"}, "did you mean watermark"),
        ({"train": "paperbirds/vgg8", "trained_on": "plain"}, "did you mean paperbirds/vgg"),
        ({"name": "paperbirds/vgg", "trained_on": "plain"}, "trained_on goes with train"),
        ({"name": "paperbirds/vgg", "evaluated_on": "discs"}, "did you mean disc"),
        ({"train": "paperbirds/vgg7", "epochs": 3}, "epochs goes with trained_on"),
        ({"train": "cifar10/resnet20"}, "unknown recipe"),
    ],
)
def test_bad_models_are_explained(model: dict, message: str) -> None:
    with pytest.raises(hp.HeatproofError, match=message):
        spec_of(model)


def test_too_few_images_are_explained(tmp_path: Path) -> None:
    with pytest.raises(
        hp.HeatproofError,
        match="cannot train on 30000 images: watermark:paperbirds:train has 24000",
    ):
        open_spec(spec_of({**SMALL, "images": 30_000, "trained_on": "watermark"}), "cpu")
    with pytest.raises(hp.HeatproofError, match="a batch has 64; set images"):
        open_spec(spec_of({**SMALL, "images": 10, "trained_on": "watermark"}), "cpu")
    for data in (
        {"name": "paperbirds:train", "limit": 6},
        {"name": "paperbirds", "split": "train", "limit": 6},
    ):
        with pytest.raises(hp.HeatproofError, match="cannot be evaluated on it"):
            open_spec(
                spec_of({**SMALL, "trained_on": "watermark"}).model_copy(
                    update={"data": DataSpec(**data)}
                ),
                "cpu",
            )
    with pytest.raises(hp.HeatproofError, match="no split to train on"):
        open_spec(spec_of({**SMALL, "trained_on": "watermark"}, data="folder:/images"), "cpu")
