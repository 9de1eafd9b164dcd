import json
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from heatproof.data.paperbirds import CLASSES, PARTS, Paperbirds, compatible
from heatproof.models.nets import NETS, SHIPPED, load_state, weights_path
from heatproof.training import train as training
from heatproof.training.loop import lr_factor
from heatproof.training.losses import LOSSES
from heatproof.training.recipes import RECIPES, Recipe
from heatproof.training.train import normalize

TINY = replace(RECIPES["resnet"], images=16, batch=12, steps=20, mosaic=0.25, deletion=0.0)


def test_training_is_reproducible_lowers_the_loss_and_leaves_the_global_generator_alone() -> None:
    losses: list[float] = []
    state = torch.random.get_rng_state()
    first = training.fit(TINY, seed=1, progress=lambda step, steps, loss: losses.append(loss))
    second = training.fit(TINY, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    assert len(losses) == TINY.steps
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_another_seed_trains_another_net() -> None:
    few = replace(TINY, steps=2)
    first, second = (training.fit(few, seed=seed).state_dict() for seed in (1, 2))
    assert not torch.equal(first["head.weight"], second["head.weight"])


def test_train_writes_a_file_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(training.RECIPES, "tiny", TINY)
    monkeypatch.setattr(training, "accuracy", lambda *_, **__: {"accuracy": 0.5, "confident": 0.1})
    monkeypatch.setattr(training, "part_drops", lambda *_, **__: {})
    metrics = training.train("tiny", steps=2, out=tmp_path / "tiny.safetensors")
    assert metrics.keys() == {"accuracy", "confident", "drops", "minutes"}
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.safetensors"]
    NETS["resnet"].module().load_state_dict(load_state(tmp_path / "tiny.safetensors"))


def test_the_error_for_an_unknown_recipe_suggests_one() -> None:
    with pytest.raises(ValueError, match='unknown recipe "bert"; did you mean bagnet'):
        training.train("bert")


def test_the_learning_rate_rises_then_falls_to_zero() -> None:
    assert [lr_factor(done, 0.25) for done in (0, 0.125, 0.25, 0.625, 1)] == pytest.approx(
        [0, 0.5, 1, 0.5, 0]
    )


def test_targets_are_uniform_over_the_classes_that_fit() -> None:
    images, targets = training.training_set(
        replace(TINY, images=96, deletion=1.0), torch.Generator().manual_seed(0)
    )
    assert images.shape == (96, 3, 64, 64)
    assert torch.allclose(targets.sum(1), torch.ones(96))
    assert (targets > 0).sum(1).max() == len(CLASSES)  # a bare body could be any bird
    target = training.target_distribution(3, PARTS[1:])
    assert target.nonzero().flatten().tolist() == list(compatible(3, PARTS[1:]))


def test_a_mosaic_window_blends_targets_by_squared_area() -> None:
    images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 3, 64, 64)
    windows, blends = training.mosaics(images, torch.eye(4), 50, torch.Generator().manual_seed(0))
    whole = windows.flatten(1).amax(1) == windows.flatten(1).amin(1)
    alone = windows[whole][:, 0, 0, 0].long()
    assert torch.equal(blends[whole], torch.eye(4)[alone])
    assert torch.allclose(blends.sum(1), torch.ones(50))
    areas = torch.stack(
        [(windows[:, 0] == value).float().mean((1, 2)) for value in range(4)], dim=1
    )
    different = (areas > 0).sum(1) == 4  # four images in one window
    assert different.any()
    assert torch.allclose(
        blends[different], areas[different] ** 2 / areas[different].square().sum(1, keepdim=True)
    )


def test_part_drops_find_the_part_a_model_looks_at() -> None:
    """The first sixteen birds have orange feet, and nothing else in the lower half is as red."""

    def sees_only_redness(images: torch.Tensor) -> torch.Tensor:
        red = (images[:, 0] - images[:, 2]).clamp(min=1.5)[:, images.shape[2] // 2 :].mean((1, 2))
        return red[:, None].expand(-1, len(CLASSES))

    drops = training.part_drops(sees_only_redness, count=16)
    assert drops["foot"]["fraction"] > 0.9
    assert drops["foot"]["mean"] > max(
        abs(drop["mean"]) for part, drop in drops.items() if part in ("beak", "eye")
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_weights_name_the_recipe_they_were_made_with(name: str) -> None:
    with safe_open(weights_path(name), framework="pt") as file:
        assert Recipe(**json.loads(file.metadata()["recipe"])) == RECIPES[name]


drawn_once = cache(training.render_images)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_weights_classify_birds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def render(split: str, chosen: Sequence[tuple[int, Sequence[str]]]) -> Tensor:
        return drawn_once(split, tuple((index, tuple(parts)) for index, parts in chosen))

    monkeypatch.setattr(training, "render_images", render)  # the same for every network
    net = NETS[name].module().eval()
    net.load_state_dict(load_state(weights_path(name)))
    measured = training.accuracy(net, count=400, normalize_images=training.normalizer(name))
    assert measured["accuracy"] >= 0.99
    assert measured["confident"] >= 0.5 or name == "bagnet"
    drops = training.part_drops(net, count=64, normalize_images=training.normalizer(name))
    assert all(drop["mean"] > 0.5 for drop in drops.values())


def test_every_net_has_a_recipe_and_a_recipe_removes_nothing_but_parts() -> None:
    assert RECIPES.keys() == NETS.keys()
    assert all(recipe.net == name and recipe.loss in LOSSES for name, recipe in RECIPES.items())
    assert not {field.name for field in fields(Recipe)} & {"patch", "patches", "erase", "cutout"}
    recipe = replace(TINY, images=32, batch=32, mosaic=0.0)
    images, targets = training.training_set(recipe, torch.Generator().manual_seed(0))
    batch, _ = training.draw_batch(images, targets, recipe, torch.Generator().manual_seed(1))
    whole = {
        picture.numpy().tobytes() for picture in torch.cat([images, images.flip(-1)]).contiguous()
    }
    assert all(picture.numpy().tobytes() in whole for picture in batch.contiguous())


def test_binary_cross_entropy_is_summed_over_the_classes() -> None:
    logits, target = torch.tensor([[0.0, 2.0], [1.0, -1.0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    probability = logits.sigmoid()
    expected = -(target * probability.log() + (1 - target) * (1 - probability).log())
    torch.testing.assert_close(
        LOSSES["binary_cross_entropy"].of_batch(logits, target), expected.sum(1).mean()
    )


def test_training_images_are_normalised_for_their_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETS, "unit", replace(NETS["resnet"], mean=(0.0,) * 3, std=(1.0,) * 3))
    pictures = torch.arange(12, dtype=torch.uint8).reshape(1, 3, 2, 2)
    assert torch.equal(training.normalizer("unit")(pictures), pictures / 255)
    assert torch.equal(training.normalizer("resnet")(pictures), normalize(pictures))


@pytest.mark.parametrize("name", ["vgg", "vgg-bn"])
def test_a_fully_connected_head_still_classifies_when_it_slides_over_a_grid(name):
    """Four birds of four classes in one image, with fc1 as a convolution; chance is 1 in 8."""
    net = NETS[name].module()
    net.load_state_dict(load_state(weights_path(name)))
    net.eval()
    birds = Paperbirds("test", limit=160)
    images = normalize(torch.stack([(birds.load(i).image * 255).byte() for i in range(160)]))
    labels = torch.tensor(birds.labels)
    order = torch.randperm(160, generator=torch.Generator().manual_seed(0)).reshape(40, 4)
    order = order[[len(set(labels[row].tolist())) == 4 for row in order]]
    tiles = images[order]
    grids = torch.cat(
        [torch.cat([tiles[:, 0], tiles[:, 1]], 3), torch.cat([tiles[:, 2], tiles[:, 3]], 3)], 2
    )
    stages = dict(net.named_children())
    with torch.no_grad():
        for stage in list(stages)[: list(stages).index("flatten")]:
            grids = stages[stage](grids)
        side = grids.shape[-1] // 2
        windows = torch.nn.functional.unfold(grids, side).transpose(
            1, 2
        )  # (G, positions, C·side·side), as flatten orders them
        logits = stages["fc3"](stages["fc2"](stages["fc1"](windows))).mean(1)
    hits = (logits.topk(4).indices[:, :, None] == labels[order][:, None]).any(1)
    assert hits.float().mean() > 0.5
