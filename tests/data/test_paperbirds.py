from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from heatproof.data.paperbirds import (
    ANCHORS,
    BIRD,
    BIRD_CENTRE,
    CLASSES,
    DISTRACTORS,
    MEAN,
    NAMES,
    OVERSAMPLING,
    PART_OF_PAINT,
    PARTS,
    SHADOW_LENGTH,
    SPLITS,
    STD,
    VARIANTS,
    Chance,
    Paperbirds,
    Stage,
    compatible,
    lit,
    paste,
    render,
)

Array = NDArray[Any]


def without(part: str) -> list[str]:
    return [other for other in PARTS if other != part]


def reach(index: int, part: str, size: int) -> Array:
    """Return the pixels that a part or a step of its shadow covers, even partially.

    They are computed from the pasted paper.
    """
    stage, label, side = Stage(Chance(0, "test", index)), index % len(CLASSES), size * OVERSAMPLING
    covered = paste(stage, label, side, PARTS) != paste(stage, label, side, without(part))
    reached = covered.copy()
    for step in (1 / 3, 2 / 3, 1):
        right, down = np.rint(stage.shadow * SHADOW_LENGTH * side * step).astype(int)
        for y, x in np.argwhere(covered) + np.array([down, right]):
            if 0 <= y < side and 0 <= x < side:
                reached[y, x] = True
    return reached.reshape(size, OVERSAMPLING, size, OVERSAMPLING).any((1, 3))


def test_an_image_is_a_pure_function_of_its_identity() -> None:
    first, _, second = render(3, "val", 17), render(3, "val", 18), render(3, "val", 17)
    assert np.array_equal(first.image, second.image)
    assert np.array_equal(first.part_map, second.part_map)
    assert (first.label, first.visible) == (second.label, second.visible)


@pytest.mark.parametrize("other", [(1, "test", 5), (0, "train", 5), (0, "test", 37)])
def test_seed_split_and_index_each_change_the_image(other: tuple[int, str, int]) -> None:
    assert not np.array_equal(render(0, "test", 5).image, render(*other).image)


@pytest.mark.parametrize("index", range(4))
def test_the_scene_is_the_same_at_every_size(index: int) -> None:
    small, large = render(0, "test", index, size=64), render(0, "test", index, size=128)
    reduced = large.image.reshape(64, 2, 64, 2, 3).mean((1, 3))
    assert np.abs(reduced - small.image).mean() < 1.5
    for part in PARTS:
        assert large.visible[part] == pytest.approx(4 * small.visible[part], rel=0.1, abs=12)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("index", [0, 9, 20, 31])
def test_removing_a_part_changes_only_the_part_and_its_shadow(part: str, index: int) -> None:
    whole, rest = render(0, "test", index), render(0, "test", index, parts=without(part))
    changed = (whole.image != rest.image).any(-1)
    assert changed.any()
    assert not (changed & ~reach(index, part, 64)).any()
    assert (changed & (whole.part_map == 2 + PARTS.index(part))).sum() > 0.9 * whole.visible[part]
    elsewhere = whole.part_map != 2 + PARTS.index(part)
    assert np.array_equal(whole.part_map[elsewhere], rest.part_map[elsewhere])


def test_the_order_of_parts_does_not_matter() -> None:
    bare = render(0, "test", 4, parts=["eye", "tail"])
    assert [part for part in PARTS if bare.visible[part]] == ["eye", "tail"]
    assert np.array_equal(bare.image, render(0, "test", 4, parts=("tail", "eye")).image)


@pytest.mark.parametrize("part", ["beak", "tail"])
def test_removing_an_invisible_part_changes_nothing(part: str) -> None:
    stage = Stage(Chance(0, "test", 4))
    towards_the_part = np.sign((np.array(ANCHORS[part]) - BIRD_CENTRE) @ stage.pose)[0]
    stage.position = stage.position + np.array([0.6 * towards_the_part, 0])
    paints, rest = (paste(stage, 4, 256, parts) for parts in (PARTS, without(part)))
    assert (PART_OF_PAINT[paints] == 1).any()  # the body is still in the image
    assert not (PART_OF_PAINT[paints] == 2 + PARTS.index(part)).any()
    assert np.array_equal(lit(stage, 4, paints), lit(stage, 4, rest))


def test_part_maps_agree_with_the_counts_and_contain_a_body() -> None:
    for index in range(32):
        scene = render(0, "val", index)
        assert {
            part: int((scene.part_map == 2 + i).sum()) for i, part in enumerate(PARTS)
        } == scene.visible
        assert (scene.part_map == 1).any()
        assert scene.part_map.max() < 2 + len(PARTS)


def test_every_part_of_every_bird_is_visible() -> None:
    assert min(min(render(0, "test", index).visible.values()) for index in range(400)) > 20


def test_splits_share_no_sample() -> None:
    ids = [set(Paperbirds(split, seed=seed).ids) for split in SPLITS for seed in (0, 1)]
    pictures = [
        {render(0, split, index).image.tobytes() for index in range(64)} for split in SPLITS
    ]
    for sets in (ids, pictures):
        assert all(a.isdisjoint(b) for a, b in combinations(sets, 2))
    assert all(len(images) == 64 for images in pictures)


def test_every_part_has_twins_that_differ_in_it_alone() -> None:
    differing = [
        [p for p, x, y in zip(PARTS, a, b, strict=True) if x != y]
        for a, b in combinations(CLASSES, 2)
    ]
    twins = {part: sum(difference == [part] for difference in differing) for part in PARTS}
    assert min(twins.values()) >= 8
    assert sum(twins.values()) == 2 * len(CLASSES)  # four twins for every class


def test_classes_are_distinct_named_and_made_of_known_variants() -> None:
    assert len(set(CLASSES)) == len(CLASSES) == len(set(NAMES)) == len(NAMES)
    used = {
        (part, variant)
        for variants in CLASSES
        for part, variant in zip(PARTS, variants, strict=True)
    }
    assert used == {(part, variant) for part, variants in VARIANTS.items() for variant in variants}


def test_compatible_classes_share_all_visible_parts() -> None:
    assert compatible(5, PARTS) == (5,)
    assert compatible(5, ()) == tuple(range(len(CLASSES)))
    assert len(compatible(5, without("eye"))) == 2


def test_distractors_never_have_the_colour_of_a_part() -> None:
    colours = {
        colour
        for variants in VARIANTS.values()
        for pieces in variants.values()
        for colour, _ in pieces
    }
    distances = np.linalg.norm(
        np.array(sorted(colours))[:, None] - np.array(DISTRACTORS)[None], axis=-1
    )
    assert distances.min() > 60


def test_the_background_does_not_depend_on_the_class() -> None:
    """With every class on the same stage, the pixels outside of all birds are equal."""
    stage = Stage(Chance(0, "test", 12))
    canvases = [paste(stage, label, 256, PARTS) for label in range(len(CLASSES))]
    away = np.logical_and.reduce([canvas < BIRD for canvas in canvases])
    assert away.mean() > 0.4
    assert all(np.array_equal(canvas[away], canvases[0][away]) for canvas in canvases)


def test_mean_and_std_are_those_of_the_training_images() -> None:
    pixels = (
        np.stack([render(0, "train", index).image for index in range(300)]).reshape(-1, 3) / 255
    )
    assert pixels.mean(0) == pytest.approx(MEAN, abs=0.01)
    assert pixels.std(0) == pytest.approx(STD, abs=0.01)


def test_the_data_set_loads_samples() -> None:
    data = Paperbirds("test", size=96, limit=40)
    sample = data.load(33)
    assert (data.name, len(data), sample.id, sample.label) == (
        "paperbirds:test",
        40,
        "test-00033",
        1,
    )
    assert sample.image.shape == (3, 96, 96)
    assert 0 <= sample.image.min() <= sample.image.max() <= 1
    assert sample.silhouette is not None
    assert 0.1 < sample.silhouette.float().mean() < 0.5
    assert sorted(Paperbirds(limit=64).labels) == sorted(2 * list(range(32)))  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Paperbirds("dev"), '"dev"; it has: train, val, test'),
        (lambda: render(0, "test", 0, parts=["crest"]), '"crest"; they have: beak, eye'),
        (lambda: render(0, "test", 0, size=8), "32 to 1024 pixels per side; got 8"),
        (lambda: render(0, "test", -1), "got -1"),
        (lambda: Paperbirds(limit=0), "at least 1; got 0"),
    ],
)
def test_invalid_arguments_are_reported(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
